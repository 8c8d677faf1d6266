# SPDX-License-Identifier: BSD-3-Clause
"""Arrays in device memory that tell of themselves by DLPack alone."""

from __future__ import annotations

import ctypes
from typing import Any

from .dtypes import Dtype

_CPU, _CUDA = 1, 2
_DTYPES = {
    (0, 32): Dtype.INT32, (0, 64): Dtype.INT64, (1, 8): Dtype.U8, (2, 16): Dtype.FP16, (2, 32): Dtype.FP32,
    (2, 64): Dtype.FP64, (4, 16): Dtype.BF16, (10, 8): Dtype.E4M3, (12, 8): Dtype.E5M2,
}  # fmt: skip


class _Tensor(ctypes.Structure):
    """DLTensor of DLPack's specification."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def where_is(array: Any) -> int:
    """As in arrays.py; -1: neither host memory nor a CUDA device."""
    kind, number = array.__dlpack_device__()
    return number + 1 if kind == _CUDA else 0 if kind == _CPU else -1


def look(array: Any) -> tuple[int, tuple[int, ...], tuple[int, ...], int, int]:
    """Address, shape, strides in bytes, element type (0: none that xep has), whether it may be written. The memory is
    the array's, with or without the capsule; -1: that nothing is to be waited for, as streams are given to xep."""
    capsule = array.__dlpack__(stream=-1)
    tensor = _Tensor.from_address(_get_pointer(capsule, b"dltensor"))
    dtype = _DTYPES.get((tensor.code, tensor.bits), 0) if tensor.lanes == 1 else 0
    shape = tuple(tensor.shape[: tensor.ndim])
    steps = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else _dense(shape)
    strides = tuple(step * (tensor.bits // 8) for step in steps)
    return (tensor.data or 0) + tensor.byte_offset, shape, strides, int(dtype), 1


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    steps = [1]
    for extent in reversed(shape[1:]):
        steps.append(steps[-1] * extent)
    return tuple(reversed(steps))[-len(shape) :] if shape else ()
