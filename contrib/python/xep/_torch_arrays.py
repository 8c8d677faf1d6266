# SPDX-License-Identifier: BSD-3-Clause
"""CPU tensors as memory of the library, and memory of the library as tensors. Imported only where torch is."""

from __future__ import annotations

import sys
from typing import Any, Optional

import torch

from . import _hot
from .dtypes import SIZES, Dtype

# indexed by Dtype
_natives = (
    None, torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint8, torch.int32,
    torch.int64, torch.float64,
)  # fmt: skip
_codes = {_natives[code]: (code, SIZES[code]) for code in Dtype}
_no_code = (None, 1)


def describe(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype)[6:]} tensor of shape {tuple(tensor.shape)} on {tensor.device}"


def place(tensor: torch.Tensor) -> str:
    """Where the elements are, when the library cannot reach them; '' when it can."""
    return "" if tensor.is_cpu and tensor.layout is torch.strided else f"{tensor.layout} on {tensor.device}"


def info(tensor: torch.Tensor) -> tuple[int, tuple, tuple, Optional[Dtype]]:
    """Address, shape, strides in bytes, element type."""
    code, size = _codes.get(tensor.dtype, _no_code)
    return tensor.data_ptr(), tensor.shape, tuple([s * size for s in tensor.stride()]), code


def form(tensor: torch.Tensor) -> tuple:
    """All that place() and info() depend on but the address: tensors of the same form need not be checked again."""
    if not tensor.is_cpu or tensor.layout is not torch.strided:
        return (object(),)  # the same as no other
    return type(tensor), tensor.dtype, tensor.shape, tensor.stride()


address = torch.Tensor.data_ptr


def native(dtype: Dtype) -> torch.dtype:
    return _natives[dtype]


def native_of(tensor: torch.Tensor) -> torch.dtype:
    return tensor.dtype


def writable(tensor: torch.Tensor) -> bool:
    return True


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


def view(memory: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor over memory, from offset on; it keeps memory alive. strides in bytes."""
    size = dtype.itemsize
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    if len(shape) == 1:
        return torch.frombuffer(memory, dtype=dtype, count=shape[0], offset=offset)
    steps = [stride // size for stride in strides]
    count = 1 + sum((n - 1) * step for n, step in zip(shape, steps))
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=offset).as_strided(shape, steps)


def from_bytes(data: bytes, shape: tuple[int, ...], dtype: Dtype) -> torch.Tensor:
    if not data:
        return torch.empty(shape, dtype=_natives[dtype])
    return torch.frombuffer(bytearray(data), dtype=_natives[dtype]).reshape(shape)


# DLPack's C exchange interface, where this torch has it: the compiled module takes tensors by it, else leaves them to Python
_exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
if _exchange is not None:
    _hot.use_torch(sys.modules[__name__], torch.Tensor, _exchange)
