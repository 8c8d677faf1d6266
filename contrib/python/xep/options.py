# SPDX-License-Identifier: BSD-3-Clause
"""Keywords of Group.buffer(), Buffer.dispatch() and Handle.combine(), for type checkers and editors; those docstrings say what they mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional, TypedDict

from .dtypes import Quant, Rows

if TYPE_CHECKING:
    from .handle import Handle
    from .request import Request


class BufferOptions(TypedDict, total=False):
    mode: Optional[str]
    dtype: Any
    combine_dtype: Any
    scales: int
    recv_rows: int
    slots: int
    threads: int
    timeout: Optional[float]


class DispatchOptions(TypedDict, total=False):
    scales: Any
    cached: Optional[Handle]
    capacity: int
    expert_alignment: int
    dtype: Any
    quant: Quant
    arrangement: Optional[Rows]
    scales_by_column: bool
    send_weights: bool
    expert_stats: Any
    wait_ns: Any
    after: Optional[Request]
    timeout: Optional[float]


class CombineOptions(TypedDict, total=False):
    topk_weights: Any
    weights: Any
    bias: Any
    out_weights: Any
    dtype: Any
    logfmt: bool
    wait_ns: Any
    after: Optional[Request]
    timeout: Optional[float]
