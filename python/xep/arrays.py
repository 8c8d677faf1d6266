# SPDX-License-Identifier: BSD-3-Clause
"""What the compiled module asks of Python, now and then: sentences on wrong arrays, tensors that DLPack does not tell
of."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

import numpy as np

from . import _ext
from .dtypes import SIZES, Dtype, Quant, Rows, dtype_of, need_dtype


def code_of(dtype: np.dtype) -> int:
    """Of a numpy type of another package; 0: none that xep has."""
    return dtype_of(dtype) or 0


# ---- tensors ----


def meet(name: str, array: Any) -> None:
    """The first tensor, or none."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(array, torch.Tensor):
        raise TypeError(f"{name}: expected a numpy array or a CPU tensor, got {type(array).__name__}")
    meet_torch()


def meet_torch() -> None:
    """Tells the compiled module of torch; ImportError without it."""
    import torch

    natives = [
        getattr(torch, name) for name in ("bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2", "uint8")
    ]
    natives += [torch.int32, torch.int64, torch.float64]
    exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    _ext.use_torch(torch.Tensor, torch.empty, (None, *natives), exchange)


def look(name: str, tensor: Any) -> tuple[int, tuple[int, ...], tuple[int, ...], int]:
    """Address, shape, strides in bytes, element type."""
    import torch

    if not tensor.is_cpu or tensor.layout is not torch.strided:
        raise TypeError(f"{name}: expected an array in host memory, got {tensor.layout} on {tensor.device}")
    strides = tuple(step * tensor.itemsize for step in tensor.stride())
    return tensor.data_ptr(), tuple(tensor.shape), strides, dtype_of(tensor.dtype) or 0


def view(memory: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> Any:
    """A tensor over memory, from offset on; it keeps memory alive. strides in bytes."""
    import torch

    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    steps = [stride // dtype.itemsize for stride in strides]
    count = 1 + sum((n - 1) * step for n, step in zip(shape, steps))
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=offset).as_strided(shape, steps)


# ---- what is wrong ----


def _describe(array: Any) -> str:
    if isinstance(array, np.ndarray):
        return f"{array.dtype} array of shape {tuple(array.shape)}"
    return f"{str(array.dtype)[6:]} tensor of shape {tuple(array.shape)} on {array.device}"


def refuse(name: str, array: Any, dtypes: int, extents: tuple[int, int], dtype_is_wrong: bool) -> NoReturn:
    """dtypes: a bit for each Dtype. extents: -1: any, -2: there is none."""
    allowed = " or ".join(dtype.name for dtype in Dtype if dtypes >> dtype & 1)
    shape = ", ".join("any" if n == -1 else str(n) for n in extents if n != -2)
    error = TypeError if dtype_is_wrong else ValueError
    raise error(f"{name}: expected {allowed} of shape [{shape}], got {_describe(array)}")


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


__all__ = ["SIZES", "Dtype", "Quant", "Rows", "need_dtype"]  # by the compiled module too
