# SPDX-License-Identifier: BSD-3-Clause
"""Rows, events and sums as dispatch and combine take them, of Buffer and ElasticBuffer alike."""

from __future__ import annotations

from typing import Any, Optional, Union

import torch

from ._check import HOST, Place, WrongType, WrongValue, tensor
from .dispatched import Dispatched

INDEX = (torch.int64, torch.int32)
FLOAT = (torch.float32,)
COMBINED = (torch.bfloat16, torch.float16, torch.float32)
_SCALE = (torch.float32, torch.int32)
KNOWN = frozenset((
    torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint8,
    torch.int32, torch.int64,
))  # fmt: skip
_SENT_AS = {1: torch.uint8, 2: torch.bfloat16, 4: torch.int32, 8: torch.int64, 16: torch.float64}

Rows = Union[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]


def rows_of(x: Rows, on: Place = HOST) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
    """Rows [T, H] of any element type, and scales [T, S] of any strides, or None."""
    if not isinstance(x, tuple):
        return tensor("x", x, None, (None, None), on=on), None
    if len(x) != 2:
        raise WrongValue(f"x: expected (rows, scales), got {len(x)} tensors")
    rows = tensor("x[0]", x[0], None, (None, None), on=on)
    if rows.element_size() != 1:
        raise WrongType(f"x[0]: expected elements of 1 byte beside scales, got {rows.dtype}")
    return rows, tensor("x[1]", x[1], _SCALE, (rows.shape[0], None), contiguous=False, on=rows.device)


def carried(x: torch.Tensor) -> torch.Tensor:
    """x, of an element type that xep knows: rows go as bytes."""
    return x if x.dtype in KNOWN else x.view(_SENT_AS[x.element_size()])


def check_sum(x: torch.Tensor, rows: int, capacity: int, on: Place = HOST) -> None:
    """x as combine takes it."""
    tensor("x", x, COMBINED, (None, None), on=on)
    if not rows <= x.shape[0] <= capacity:
        raise WrongValue(f"x: expected the {capacity} rows received, got {list(x.shape)}")


def biases_of(handle: Dispatched, x: torch.Tensor, bias: Any) -> tuple[torch.Tensor, ...]:
    """None, one, or two [T, H] of x's type."""
    if bias is not None and not isinstance(bias, (torch.Tensor, tuple, list)):
        raise WrongType(f"bias: expected a tensor or two, got {type(bias).__name__}")
    biases = (bias,) if isinstance(bias, torch.Tensor) else tuple(bias or ())
    if len(biases) > 2:
        raise WrongValue(f"bias: expected at most 2 tensors, got {len(biases)}")
    for i, one in enumerate(biases):
        if one is not None:  # either of two, as DeepEP has it
            tensor(f"bias[{i}]", one, (x.dtype,), (handle.num_tokens, x.shape[1]), on=x.device)
    return tuple(one for one in biases if one is not None)
