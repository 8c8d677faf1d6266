# SPDX-License-Identifier: BSD-3-Clause
"""What the compiled module asks of Python, now and then: sentences on wrong arrays, tensors that DLPack does not tell
of, arrays and streams of other packages. Where an array is: 0 in host memory, n + 1 on CUDA device n."""

from __future__ import annotations

import contextlib
import operator
import struct
import sys
import warnings
from typing import Any, NamedTuple, NoReturn, Optional

import numpy as np

from . import _ext
from .dtypes import SIZES, Dtype, Quant, Rows, dtype_of, name_of, need_dtype
from .plan import Plan

# ---- types that the package ml_dtypes adds to numpy ----


def meet_ml_dtypes() -> None:
    """Tells the compiled module of them; without the package nothing."""
    try:
        import ml_dtypes
    except ImportError:
        return
    _ext.use_ml_dtypes(*map(np.dtype, (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)))


def is_ml(dtype: Any) -> Optional[bool]:
    """Whether it is one of them; False: it is numpy's for bits; None: it says neither, as names do."""
    if isinstance(dtype, str):
        return False if dtype.lower().startswith("uint") else None
    try:
        found = np.dtype(dtype)
    except TypeError:
        return None
    if found.isbuiltin == 2:  # of another package
        meet_ml_dtypes()
        return True
    return False if found.kind == "u" else None


# ---- tensors ----


def meet(name: str, array: Any) -> bool:
    """Whether it is a tensor, the first one; else it is an array of another package."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        meet_torch()
        return True
    if hasattr(array, "__cuda_array_interface__") or hasattr(array, "__dlpack_device__"):
        return False
    raise TypeError(f"{name}: expected a numpy array, a tensor or a CUDA array, got {type(array).__name__}")


def meet_torch() -> None:
    """Tells the compiled module of torch; ImportError without it."""
    import torch

    natives = [
        getattr(torch, name) for name in ("bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2", "uint8")
    ]
    natives += [torch.int32, torch.int64, torch.float64, torch.int8]
    natives.append(getattr(torch, "float4_e2m1fn_x2", torch.uint8))  # since 2.8
    exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    _ext.use_torch(torch.Tensor, torch.empty, torch.device("cpu"), (None, *natives), exchange)


def warn_of_gradients(name: str) -> bool:
    """Whether gradients are recorded, and so there is a warning."""
    import torch

    if not torch.is_grad_enabled():
        return False
    warnings.warn(
        f"{name} requires grad, but no gradient passes through xep's calls: xep.nn has dispatch and combine with "
        "gradients; else use torch.no_grad() or detach() (said once)",
        stacklevel=2,
    )
    return True


Look = tuple[int, tuple[int, ...], tuple[int, ...], int, int]
_DLPACK_CUDA = 2  # kind of device


def look(name: str, tensor: Any, where: int) -> Look:
    """Address, shape, strides in bytes, element type, whether it may be written."""
    import torch

    there = 0 if tensor.is_cpu else tensor.get_device() + 1 if tensor.is_cuda else -1
    if there != where or tensor.layout is not torch.strided:
        refuse_elsewhere(name, tensor, where)
    strides = tuple(step * tensor.itemsize for step in tensor.stride())
    return tensor.data_ptr(), tuple(tensor.shape), strides, dtype_of(tensor.dtype) or 0, 1


def look_interface(name: str, array: Any, where: int) -> Look:
    """The same of an array of another package, by __cuda_array_interface__ or else by DLPack."""
    if where == 0:
        refuse_elsewhere(name, array, where)
    if not hasattr(array, "__cuda_array_interface__"):
        if tuple(array.__dlpack_device__()) != (_DLPACK_CUDA, where - 1):
            refuse_elsewhere(name, array, where)
        return _ext.look_capsule(array.__dlpack__(stream=-1))  # nothing waits: xep is given streams
    told = array.__cuda_array_interface__
    shape, dtype, (address, read_only) = tuple(told["shape"]), np.dtype(told["typestr"]), told["data"]
    strides = told.get("strides")
    if strides is None:
        strides = tuple(dtype.itemsize * int(np.prod(shape[i + 1 :])) for i in range(len(shape)))
    return address or 0, shape, tuple(strides), dtype_of(dtype) or 0, int(not read_only)


def empty(shape: tuple[int, ...], dtype: Any, device: int) -> Any:
    """A tensor of torch's own memory of a CUDA device."""
    import torch

    return torch.empty(shape, dtype=dtype, device=f"cuda:{device}")


def view_device(array: Any) -> Any:
    """A tensor over a DeviceArray, which it keeps alive."""
    import torch

    return torch.from_dlpack(array)


def stream_of(stream: Any, device: int) -> int:
    """Address of a stream of torch (None: its current one), of cupy, of whatever has __cuda_stream__, or given so."""
    if stream is None:
        import torch

        return int(torch._C._cuda_getCurrentRawStream(device))
    protocol = getattr(stream, "__cuda_stream__", None)
    found = protocol()[1] if callable(protocol) else stream
    for name in ("cuda_stream", "ptr"):
        found = getattr(found, name, found)
    try:
        return operator.index(found)
    except TypeError:
        raise TypeError(f"stream: expected a CUDA stream, or its address, got {type(stream).__name__}") from None


def view(memory: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> Any:
    """A tensor over memory, from offset on; it keeps memory alive. strides in bytes."""
    import torch

    if 0 in shape:
        return torch.empty(shape, dtype=dtype, device="cpu")
    steps = [stride // dtype.itemsize for stride in strides]
    count = 1 + sum((n - 1) * step for n, step in zip(shape, steps))
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=offset).as_strided(shape, steps)


# ---- handles without a slot ----


class Parked(NamedTuple):
    """Of a dispatch that has given its slot back: as of Received, but copies."""

    topk_idx: Any
    src_token: Any
    rank_rows: Any
    pair_begin: Any
    pair_count: Any


def parked(handle: _ext.Handle) -> Parked:
    recv = handle.recv
    arrays = (recv.topk_idx, recv.src_token, recv.rank_rows, recv.pair_begin, recv.pair_count)
    return Parked(*(None if one is None else one.clone() if hasattr(one, "clone") else one.copy() for one in arrays))


# ---- a loop ----


class Pieces:
    """What Handle.pieces() loops over. The first iteration brings nothing, as the dispatch has brought its piece.

    outputs: None or False, as next() is given them.
    """

    def __init__(self, handle: _ext.Handle, outputs: Any, timeout: Optional[float]) -> None:
        self._handle, self._outputs, self._timeout = handle, outputs, timeout
        self._piece = -1  # that the last iteration gave

    def __iter__(self) -> Pieces:
        return self

    def __next__(self) -> _ext.Received:
        try:
            recv = self._handle.recv
            if self._piece not in (-1, recv.piece):
                raise ValueError(
                    f"pieces: the handle shows piece {recv.piece + 1}, the last iteration gave {self._piece + 1} (one "
                    "loop at a time, without next())"
                )
        except Exception:  # of which this rank alone may know: refused as a call is
            with contextlib.suppress(Exception):
                self._handle.buffer.dispatch(None)
            raise
        if self._piece != -1:
            if recv.piece + 1 >= recv.pieces:
                raise StopIteration
            self._handle.next(outputs=self._outputs, timeout=self._timeout)
            recv = self._handle.recv
        self._piece = recv.piece
        return recv


# ---- ranks, as the library has them: 32 bits each ----


def bytes_of_ranks(name: str, ranks: Any, count: int) -> bytes:
    listed = _listed(name, ranks, "a sequence of ranks")
    if len(listed) != count:
        raise ValueError(f"{name}: expected {count} ranks, one for each expert, got {len(listed)}")
    with contextlib.suppress(struct.error, TypeError):
        return struct.pack(f"={count}I", *listed)
    return b"".join(_bytes_of_rank(name, i, rank) for i, rank in enumerate(listed))


def bytes_of_replicas(name: str, replicas: Any) -> bytes:
    found = b""
    for i, replica in enumerate(_listed(name, replicas, "a sequence of (expert, rank)")):
        pair = _listed(name, replica, "(expert, rank)")
        if len(pair) != 2:
            raise ValueError(f"{name}[{i}]: expected (expert, rank), got {replica!r}")
        found += _bytes_of_rank(name, i, pair[0]) + _bytes_of_rank(name, i, pair[1])
    return found


def _listed(name: str, given: Any, expected: str) -> list[Any]:
    try:
        return list(given)
    except TypeError:
        raise TypeError(f"{name}: expected {expected}") from None


def _bytes_of_rank(name: str, i: int, rank: Any) -> bytes:
    try:
        return struct.pack("=I", rank)
    except (struct.error, TypeError):  # TypeError: by __index__() of arrays
        raise ValueError(f"{name}[{i}]: expected a rank, got {rank!r}") from None


# ---- what objects say of themselves ----


def show_handle(handle: _ext.Handle) -> str:
    try:
        state = f"{handle.rows} rows received"
    except (ValueError, RuntimeError):
        state = "released" if handle._memory is None else "rows not counted yet"
    return f"<xep.Handle: {handle.tokens} tokens, {state}>"


def show_received(received: _ext.Received) -> str:
    return (
        f"<xep.Received: {received.rows} rows of {received.hidden} {received.dtype.name}, {received.arrangement.name}, "
        f"topk {received.topk}, {received.local_experts} experts from {received.first_expert} on>"
    )


# ---- what is wrong ----


def _describe(array: Any) -> str:
    if isinstance(array, np.ndarray):
        return f"{array.dtype} array of shape {tuple(array.shape)}"
    if hasattr(array, "is_cpu"):
        return f"{str(array.dtype)[6:]} tensor of shape {tuple(array.shape)} on {array.device}"
    if isinstance(array, _ext.DeviceArray):
        return f"{array.dtype.name} array of shape {array.shape} on cuda:{array.device}"
    if not hasattr(array, "__cuda_array_interface__"):
        return f"{type(array).__name__} on DLPack's device {tuple(array.__dlpack_device__())}"
    told = array.__cuda_array_interface__
    return f"{np.dtype(told['typestr'])} CUDA array of shape {tuple(told['shape'])}"


def refuse_elsewhere(name: str, array: Any, where: int) -> NoReturn:
    expected = f"the memory of CUDA device {where - 1}" if where else "host memory"
    got = f"{array.layout} on {array.device}" if hasattr(array, "is_cpu") else _describe(array)
    raise TypeError(f"{name}: expected an array in {expected}, got {got}")


def refuse(name: str, array: Any, dtypes: int, extents: tuple[int, int], dtype_is_wrong: bool) -> NoReturn:
    """dtypes: a bit for each Dtype. extents: -1: any, -2: there is none."""
    allowed = " or ".join(dtype.name for dtype in Dtype if dtypes >> dtype & 1)
    shape = ", ".join("any" if n == -1 else str(n) for n in extents if n != -2)
    error = TypeError if dtype_is_wrong else ValueError
    raise error(f"{name}: expected {allowed} of shape [{shape}], got {_describe(array)}")


def refuse_cast(array: Any, own: int, given: int) -> NoReturn:
    raise TypeError(
        f"dtype: expected None or {Dtype(own).name}, which x is, got {Dtype(given).name} for {_describe(array)} "
        "(nothing is cast: dtype only says what the bits of a uint8 or uint16 array are)"
    )


def refuse_wide(array: Any, hidden: int, argument: str, dtype: int, widest: int) -> NoReturn:
    raise ValueError(
        f"x: expected rows of at most {hidden * SIZES[widest]} bytes ({hidden} elements of {Dtype(widest).name}, the "
        f"{argument} of this Buffer), got {_describe(array)}: make the Buffer with "
        f'{argument}="{name_of(dtype)}" (default: "bfloat16")'
    )


def refuse_rows(name: str, array: Any, strides: tuple[int, int], row: tuple[int, int]) -> NoReturn:
    raise ValueError(
        f"{name}: expected rows of adjacent elements, the next row after the end of the last (strides "
        f"({row[0]} or more, {row[1]}) bytes), got strides {strides} of {_describe(array)}"
    )


def refuse_overlap(name: str, array: Any, strides: tuple[int, int], _row: tuple[int, int]) -> NoReturn:
    raise ValueError(f"{name}: expected an array of distinct elements, got strides {strides} of {_describe(array)}")


def refuse_vector(name: str, array: Any, _strides: tuple[int, int], _row: tuple[int, int]) -> NoReturn:
    raise ValueError(f"{name}: expected a contiguous vector, got {_describe(array)}")


def refuse_experts(x: Any) -> NoReturn:
    strides = x.strides if isinstance(x, np.ndarray) else x.stride()
    raise ValueError(f"x: expected experts one after the other, got strides {tuple(strides)} of {_describe(x)}")


def refuse_count(name: str, array: Any, rows: int, columns: str) -> NoReturn:
    raise ValueError(f"{name}: expected [{rows}, {columns}], the rows received, got {_describe(array)}")


__all__ = ["SIZES", "Dtype", "Plan", "Quant", "Rows", "need_dtype"]  # by the compiled module too
