# SPDX-License-Identifier: BSD-3-Clause
"""Arguments: what is wrong with a tensor, in one sentence."""

from __future__ import annotations

from typing import Any, Optional, Sequence

import torch

from .config import Config


def tensor(
    name: str, value: Any, dtypes: Optional[Sequence[torch.dtype]], shape: Sequence[Optional[int]], contiguous: bool = True
) -> torch.Tensor:
    """value, if it is a CPU tensor of one of dtypes (None: any) and of shape (None: any extent)."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name}: expected {expected(dtypes, shape)}, got {type(value).__name__}")
    got = f"{str(value.dtype)[6:]} of shape {list(value.shape)} on {value.device}"
    if not value.is_cpu or (dtypes is not None and value.dtype not in dtypes):
        raise TypeError(f"{name}: expected {expected(dtypes, shape)}, got {got}")
    if value.dim() != len(shape) or any(want not in (None, have) for want, have in zip(shape, value.shape)):
        raise ValueError(f"{name}: expected {expected(dtypes, shape)}, got {got}")
    if contiguous and not value.is_contiguous():
        raise ValueError(f"{name}: expected a contiguous tensor, got strides {value.stride()} of shape {list(value.shape)}")
    return value


def expected(dtypes: Optional[Sequence[torch.dtype]], shape: Sequence[Optional[int]]) -> str:
    kinds = " or ".join(str(dtype)[6:] for dtype in dtypes) + " " if dtypes else ""
    return f"a CPU tensor {kinds}[{', '.join('any' if extent is None else str(extent) for extent in shape)}]"


def streams(previous_event: Any, async_finish: bool, allocate_on_comm_stream: bool) -> None:
    """DeepEP's rule: allocating on the stream that communicates needs both others."""
    if allocate_on_comm_stream and (previous_event is None or not async_finish):
        raise ValueError("allocate_on_comm_stream: expected previous_event and async_finish with it")


def config(value: Any) -> None:
    if value is not None and not isinstance(value, Config):
        raise TypeError(f"config: expected a Config, got {type(value).__name__}")
    if value is not None and value.num_sms % 2:
        raise ValueError(f"config: expected an even num_sms, got {value.num_sms}")


def one_of(name: str, value: bool, other: str, other_value: bool) -> None:
    if value and other_value:
        raise ValueError(f"{name}, {other}: expected at most one of them")
