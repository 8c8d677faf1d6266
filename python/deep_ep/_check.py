# SPDX-License-Identifier: BSD-3-Clause
"""Arguments: what is wrong with a tensor, in one sentence."""

from __future__ import annotations

import operator
from typing import Any, Optional, Sequence

import torch

from .config import Config


def tensor(
    name: str,
    value: Any,
    dtypes: Optional[Sequence[torch.dtype]],
    shape: Sequence[Optional[int]],
    contiguous: bool = True,
) -> torch.Tensor:
    """value, if it is a CPU tensor of one of dtypes (None: any) and of shape (None: any extent)."""
    if isinstance(value, torch.Tensor) and value.is_cpu and (dtypes is None or value.dtype in dtypes):
        if has_shape(value, shape) and (not contiguous or value.is_contiguous()):
            return value
    raise refusal(name, value, dtypes, shape)


def has_shape(value: torch.Tensor, shape: Sequence[Optional[int]]) -> bool:
    have = value.shape
    if have == shape:
        return True
    if len(have) != len(shape):
        return False
    for want, extent in zip(shape, have):
        if want is not None and want != extent:
            return False
    return True


def refusal(
    name: str, value: Any, dtypes: Optional[Sequence[torch.dtype]], shape: Sequence[Optional[int]]
) -> Exception:
    if not isinstance(value, torch.Tensor):
        return TypeError(f"{name}: expected {expected(dtypes, shape)}, got {type(value).__name__}")
    got = f"{str(value.dtype)[6:]} of shape {list(value.shape)} on {value.device}"
    if not value.is_cpu or (dtypes is not None and value.dtype not in dtypes):
        return TypeError(f"{name}: expected {expected(dtypes, shape)}, got {got}")
    if not has_shape(value, shape):
        return ValueError(f"{name}: expected {expected(dtypes, shape)}, got {got}")
    return ValueError(
        f"{name}: expected a contiguous tensor, got strides {value.stride()} of shape {list(value.shape)}"
    )


def expected(dtypes: Optional[Sequence[torch.dtype]], shape: Sequence[Optional[int]]) -> str:
    kinds = " or ".join(str(dtype)[6:] for dtype in dtypes) + " " if dtypes else ""
    return f"a CPU tensor {kinds}[{', '.join('any' if extent is None else str(extent) for extent in shape)}]"


def integer(name: str, value: Any, least: int) -> int:
    """value, or the integer that it stands for."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: expected an integer, got {value!r}") from None
    if number < least:
        raise ValueError(f"{name}: expected {least} or more, got {value!r}")
    return number


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
