# SPDX-License-Identifier: BSD-3-Clause
"""Element types, and what each is called in numpy and torch.

numpy has no bfloat16 and no 8-bit floats: there the bits travel as uint16 and uint8; ``from_bfloat16`` and
``to_bfloat16`` convert them. Of rows of the package ml_dtypes all that comes back is of its types, too.
"""

from __future__ import annotations

import enum
from typing import Any, Optional

import numpy as np


class Dtype(enum.IntEnum):
    """``xep_dtype_t``."""

    BF16 = 1
    FP16 = 2
    FP32 = 3
    E4M3 = 4
    E5M2 = 5
    U8 = 6
    INT32 = 7
    INT64 = 8
    FP64 = 9
    INT8 = 10
    E2M1X2 = 11


class Quant(enum.IntEnum):
    """``xep_quant_t``: how rows are cast on their way, there or, in mode ll, back."""

    NONE = 0
    E4M3 = 1
    E4M3_POW2 = 2
    UE8M0 = 3
    MXFP8 = 4
    MXFP8_E5M2 = 5
    MXFP4 = 6
    NVFP4 = 7
    INT8 = 8
    INT8_ROW = 9
    E4M3_STATIC = 10
    LOGFMT = 11  #: of a combine alone


class Rows(enum.IntEnum):
    """``xep_rows_t``: how received rows are arranged."""

    DEFAULT = 0
    BY_RANK = 1
    BY_EXPERT_COMPACT = 2
    BY_EXPERT_PADDED = 3


# bytes of an element, by Dtype
SIZES = (0, 2, 2, 4, 1, 1, 1, 4, 8, 8, 1, 1)

_NAMES = {
    "bfloat16": Dtype.BF16, "bf16": Dtype.BF16, "uint16": Dtype.BF16,
    "float16": Dtype.FP16, "fp16": Dtype.FP16, "half": Dtype.FP16,
    "float32": Dtype.FP32, "fp32": Dtype.FP32, "float": Dtype.FP32,
    "float8_e4m3fn": Dtype.E4M3, "e4m3": Dtype.E4M3,
    "float8_e5m2": Dtype.E5M2, "e5m2": Dtype.E5M2,
    "uint8": Dtype.U8, "u8": Dtype.U8,
    "int32": Dtype.INT32, "int64": Dtype.INT64,
    "int8": Dtype.INT8, "float4_e2m1fn_x2": Dtype.E2M1X2, "e2m1x2": Dtype.E2M1X2,
    "float64": Dtype.FP64, "fp64": Dtype.FP64, "double": Dtype.FP64,
}  # fmt: skip


def dtype_of(dtype: Any) -> Optional[Dtype]:
    """The element type that a Dtype, a name, a numpy or a torch dtype stands for; None when there is none."""
    if isinstance(dtype, Dtype):
        return dtype
    if isinstance(dtype, str):
        return _NAMES.get(dtype.lower())
    if str(dtype).startswith("torch."):
        return _NAMES.get(str(dtype)[6:])
    try:
        return _NAMES.get(np.dtype(dtype).name)
    except TypeError:
        return None


def name_of(dtype: int) -> str:
    """As a Buffer takes it."""
    return next(name for name, found in _NAMES.items() if found == dtype)


class Bits(np.ndarray):
    """bfloat16 or 8-bit floats as unsigned integers, of memory that a program writes: refuses what numpy would make an
    integer of another value."""

    def __setitem__(self, at: Any, values: Any) -> None:
        kind = np.asarray(values).dtype
        if kind.kind not in "biu":
            raise TypeError(
                f"expected the bits of floats as {self.dtype} (xep.to_bfloat16()), got {kind}: dtype=ml_dtypes.bfloat16"
                ' gives an array that takes floats, as does a Buffer with combine_dtype="float32"'
            )
        super().__setitem__(at, values)


def need_dtype(name: str, dtype: Any) -> Dtype:
    """dtype_of, or a TypeError that names the argument."""
    found = dtype_of(dtype)
    if found is None:
        raise TypeError(f"{name}: expected one of {', '.join(d.name for d in Dtype)}, got {dtype!r}")
    return found


def to_bfloat16(x: np.ndarray) -> np.ndarray:
    """float32 values as bfloat16 bits (uint16), rounded to nearest even."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(x), np.uint32(0x7FC0) | (bits >> 16), rounded).astype(np.uint16)


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    """bfloat16 bits (uint16) as float32 values."""
    return (np.ascontiguousarray(bits).astype(np.uint32) << 16).view(np.float32)
