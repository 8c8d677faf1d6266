# SPDX-License-Identifier: BSD-3-Clause
"""numpy arrays as memory of the library, and memory of the library as numpy arrays."""

from __future__ import annotations

import ctypes
from typing import Any, Optional

import numpy as np

from .dtypes import NUMPY, Dtype, dtype_of

_codes = {
    np.dtype(np.uint16): Dtype.BF16,
    np.dtype(np.float16): Dtype.FP16,
    np.dtype(np.float32): Dtype.FP32,
    np.dtype(np.uint8): Dtype.U8,
    np.dtype(np.int32): Dtype.INT32,
    np.dtype(np.int64): Dtype.INT64,
    np.dtype(np.float64): Dtype.FP64,
}


# The first field of numpy's PyArrayObject, as its C interface has it, is the data pointer: read in a tenth of the time that
# __array_interface__ takes, and an operation asks four times.
_Address = ctypes.c_void_p
_DATA = object.__basicsize__
_probe = np.zeros(1)
if _Address.from_address(id(_probe) + _DATA).value != _probe.ctypes.data:
    raise ImportError("xep: this interpreter or its numpy does not keep arrays as CPython and numpy do")


def describe(array: np.ndarray) -> str:
    return f"{array.dtype} array of shape {tuple(array.shape)}"


def place(array: np.ndarray) -> str:
    """Where the elements are, when the library cannot reach them; '' when it can."""
    return ""


def info(array: np.ndarray) -> tuple[int, tuple, tuple, Optional[Dtype]]:
    """Address, shape, strides in bytes, element type."""
    dtype = array.dtype
    code = _codes.get(dtype)
    if code is None and dtype.isnative:
        code = dtype_of(dtype)
    return _Address.from_address(id(array) + _DATA).value or 0, array.shape, array.strides, code


def form(array: np.ndarray) -> tuple:
    """All that info() depends on but the address: arrays of the same form need not be checked again."""
    return type(array), array.dtype, array.shape, array.strides


def address(array: np.ndarray) -> Optional[int]:
    return _Address.from_address(id(array) + _DATA).value


def native(dtype: Dtype) -> np.dtype:
    return NUMPY[dtype]


def native_of(array: np.ndarray) -> np.dtype:
    return array.dtype


def writable(array: np.ndarray) -> bool:
    return array.flags.writeable


def empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    return np.empty(shape, dtype)


def view(memory: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array over memory, from offset on; it keeps memory alive. strides in bytes."""
    if 0 in shape:
        return np.empty(shape, dtype)
    return np.ndarray(shape, dtype, memory, offset, strides)


def from_bytes(data: bytes, shape: tuple[int, ...], dtype: Dtype) -> np.ndarray:
    return np.frombuffer(data, NUMPY[dtype]).reshape(shape).copy()
