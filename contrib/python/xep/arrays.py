# SPDX-License-Identifier: BSD-3-Clause
"""Arguments: numpy arrays and CPU tensors, checked once, with errors that say which, what it is, and what it should be."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Iterable, Optional

import numpy as np

from . import _numpy_arrays
from .dtypes import SIZES, Dtype

_adapters: dict[type, ModuleType] = {np.ndarray: _numpy_arrays}


def torch_arrays() -> ModuleType:
    """The adapter of tensors; ImportError without torch."""
    from . import _torch_arrays

    return _torch_arrays


def adapter_of(name: str, array: Any) -> ModuleType:
    """The module that knows this kind of array."""
    adapter = _adapters.get(type(array))
    if adapter is not None:
        return adapter
    torch = sys.modules.get("torch")
    if isinstance(array, np.ndarray):
        adapter = _numpy_arrays
    elif torch is not None and isinstance(array, torch.Tensor):
        adapter = torch_arrays()
    else:
        raise TypeError(f"{name}: expected a numpy array or a CPU tensor, got {type(array).__name__}")
    _adapters[type(array)] = adapter
    return adapter


def _expected(codes: Iterable[Dtype], shape: tuple) -> str:
    extents = ", ".join("any" if n is None else str(n) for n in shape)
    return f"{' or '.join(c.name for c in codes)} of shape [{extents}]"


def _refuse(name: str, array: Any, codes: Iterable[Dtype], shape: tuple, dtype_is_wrong: bool) -> None:
    got = adapter_of(name, array).describe(array)
    error = TypeError if dtype_is_wrong else ValueError
    raise error(f"{name}: expected {_expected(codes, shape)}, got {got}")


def matrix(
    name: str, array: Any, rows: Optional[int], cols: Optional[int], codes: Any, dtype: Optional[Dtype] = None
) -> tuple[int, int, Dtype, tuple]:
    """Address, bytes between rows, element type, shape of a matrix whose rows are dense.

    rows, cols None: any. codes: the element types allowed. dtype: what the bits are said to be.
    """
    adapter = _adapters.get(type(array)) or adapter_of(name, array)
    if adapter is not _numpy_arrays:
        where = adapter.place(array)
        if where:
            raise TypeError(f"{name}: expected a dense array in host memory, got {where}")
    address, shape, strides, code = adapter.info(array)
    if dtype is not None and code is not None and SIZES[code] == SIZES[dtype]:
        code = dtype
    if code not in codes:
        _refuse(name, array, codes, (rows, cols), True)
    if len(shape) != 2 or (rows is not None and shape[0] != rows) or (cols is not None and shape[1] != cols):
        _refuse(name, array, codes, (rows, cols), False)
    count, width = shape
    size = SIZES[code]
    stride, step = strides
    if stride == width * size and step == size:
        return address, stride, code, shape
    width *= size
    if count <= 1 or width == 0:
        stride = width
    if count and width and ((width > size and step != size) or stride < width):
        raise ValueError(
            f"{name}: expected rows of adjacent elements, the next row after the end of the last (strides "
            f"({width} or more, {size}) bytes), got strides {tuple(strides)} of {adapter.describe(array)}"
        )
    return address, stride, code, shape


def strided(name: str, array: Any, rows: int, codes: Any) -> tuple[int, int, int, Dtype, int]:
    """Address, bytes between rows, bytes between columns, element type, columns of a matrix of any strides."""
    adapter = adapter_of(name, array)
    where = adapter.place(array)
    if where:
        raise TypeError(f"{name}: expected an array in host memory, got {where}")
    address, shape, strides, code = adapter.info(array)
    if code not in codes:
        _refuse(name, array, codes, (rows, None), True)
    if len(shape) != 2 or shape[0] != rows:
        _refuse(name, array, codes, (rows, None), False)
    size = SIZES[code]
    row = strides[0] if shape[0] > 1 and shape[1] else shape[1] * size
    column = strides[1] if shape[1] > 1 and shape[0] else size
    if 0 in shape:
        return address, shape[1] * size, size, code, shape[1]
    if row == 0 or column == 0:
        raise ValueError(f"{name}: expected an array of distinct elements, got strides {tuple(strides)}")
    return address, row, column, code, shape[1]


def vector(name: str, array: Any, length: int, codes: Any) -> int:
    """Address of a dense vector that may be written."""
    adapter = adapter_of(name, array)
    where = adapter.place(array)
    if where:
        raise TypeError(f"{name}: expected a dense array in host memory, got {where}")
    address, shape, strides, code = adapter.info(array)
    if code not in codes or tuple(shape) != (length,):
        _refuse(name, array, codes, (length,), code not in codes)
    if (length > 1 and strides[0] != SIZES[code]) or not adapter.writable(array):
        raise ValueError(f"{name}: expected a contiguous, writable vector, got {adapter.describe(array)}")
    return address
