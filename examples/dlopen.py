# SPDX-License-Identifier: BSD-3-Clause
"""The smallest program of a language that has dlopen and no header: here Python's ctypes, without the package xep.

    xep_run -n 4 python3 examples/dlopen.py [libxep.so.1]

A struct begins with its size and may end where the program needs no more fields: the library takes 0 for the rest.
"""

import ctypes as c
import os
import sys

FP32 = 3  # xep_dtype_t
TOKENS, HIDDEN, EXPERTS = 4, 16, 8


class BufferParams(c.Structure):
    _fields_ = [
        ("size", c.c_size_t), ("mode", c.c_char_p), ("experts", c.c_uint32), ("topk", c.c_uint32),
        ("hidden", c.c_uint32), ("scales", c.c_uint32), ("tokens", c.c_uint64), ("recv_rows", c.c_uint64),
        ("dtype", c.c_int), ("combine_dtype", c.c_int),
    ]  # fmt: skip


class DispatchArgs(c.Structure):
    _fields_ = [
        ("size", c.c_size_t), ("tokens", c.c_uint64), ("x", c.c_void_p), ("x_stride", c.c_size_t), ("dtype", c.c_int),
        ("hidden", c.c_uint32), ("topk", c.c_uint32), ("topk_idx_dtype", c.c_int), ("topk_idx", c.c_void_p),
    ]  # fmt: skip


class CombineArgs(c.Structure):
    _fields_ = [
        ("size", c.c_size_t), ("x", c.c_void_p), ("x_stride", c.c_size_t), ("dtype", c.c_int), ("hidden", c.c_uint32),
        ("topk_weights", c.c_void_p), ("topk_weights_stride", c.c_size_t), ("bias", c.c_void_p * 2),
        ("bias_stride", c.c_size_t * 2), ("out", c.c_void_p),
    ]  # fmt: skip


class Received(c.Structure):
    _fields_ = [
        ("size", c.c_size_t), ("arrangement", c.c_int), ("quant", c.c_int), ("rows", c.c_uint64),
        ("capacity", c.c_uint64), ("x", c.c_void_p), ("x_stride", c.c_size_t), ("dtype", c.c_int),
        ("hidden", c.c_uint32), ("topk", c.c_uint32), ("topk_idx_dtype", c.c_int), ("topk_idx", c.POINTER(c.c_int64)),
        ("topk_weights", c.c_void_p), ("scales", c.c_void_p), ("nscales", c.c_uint32), ("scales_dtype", c.c_int),
        ("src_token", c.c_void_p), ("src_begin", c.c_void_p), ("rank_rows", c.c_void_p), ("first_expert", c.c_uint32),
    ]  # fmt: skip


xep = c.CDLL(sys.argv[1] if len(sys.argv) > 1 else "libxep.so.1")
xep.xep_last_error.restype = c.c_char_p


def check(status: int) -> None:
    if status != 0:
        raise SystemExit(xep.xep_last_error().decode())


def main() -> None:
    x, out = (c.c_float * (TOKENS * HIDDEN))(*[1.0] * TOKENS * HIDDEN), (c.c_float * (TOKENS * HIDDEN))()
    expert = (c.c_int64 * TOKENS)(0, 2, 4, 6)  # of each token: its only expert
    group, buffer, handle, y, stride = c.c_void_p(), c.c_void_p(), c.c_void_p(), c.c_void_p(), c.c_size_t()
    recv = c.POINTER(Received)()
    shape = BufferParams(size=c.sizeof(BufferParams), experts=EXPERTS, topk=1, hidden=HIDDEN, tokens=TOKENS,
                         dtype=FP32, combine_dtype=FP32)  # fmt: skip
    check(xep.xep_group_create(None, c.byref(group)))
    check(xep.xep_buffer_create(group, c.byref(shape), c.byref(buffer)))
    send = DispatchArgs(size=c.sizeof(DispatchArgs), tokens=TOKENS, x=c.addressof(x), topk_idx=c.addressof(expert))
    check(xep.xep_dispatch(buffer, c.byref(send), c.byref(handle), None))
    check(xep.xep_handle_recv(handle, c.byref(recv)))
    check(xep.xep_handle_combine_input(handle, c.byref(y), c.byref(stride)))
    received = recv.contents
    for row in range(received.rows):
        one = c.c_float * HIDDEN
        source = one.from_address(received.x + row * received.x_stride)
        factor = received.first_expert + received.topk_idx[row] + 1
        one.from_address(y.value + row * stride.value)[:] = [value * factor for value in source]
    rows = received.rows
    back = CombineArgs(size=c.sizeof(CombineArgs), out=c.addressof(out))
    check(xep.xep_combine(handle, c.byref(back), None))
    line = f"{rows} rows for my experts; my token 3 came back as {out[3 * HIDDEN]:g}\n"
    os.write(1, line.encode())  # at once: ranks share the terminal
    xep.xep_handle_release(handle)
    xep.xep_buffer_destroy(buffer)
    xep.xep_group_destroy(group)


if __name__ == "__main__":
    main()
