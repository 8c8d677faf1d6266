# SPDX-License-Identifier: BSD-3-Clause
"""What a dispatch or combine of an ElasticBuffer returns, and what is done to it when the rows are here."""

from __future__ import annotations

import functools
from typing import Any, Callable, NamedTuple, Optional

import torch

import xep

from ._check import HOST
from .elastic_handle import EPHandle
from .ending import Ending
from .seats import Sent
from .utils.event import event_of
from .utils.math import align

_COLUMN = 4  # words: 16 bytes


class Arrangement(NamedTuple):
    """expand: rows by expert; zero: the gaps between experts; by_column: scales."""

    expand: bool
    zero: bool
    by_column: bool


class Epilogue(Ending):
    """before: an event that what is written here comes after. on: where that is; on a CUDA device it is written on the
    current stream."""

    def __init__(self, request: Optional[xep.Request], before: Any, on: torch.device) -> None:
        self.request, self.on = request, on
        self._before = before

    def _wait_before(self) -> None:
        event = event_of(self._before)
        if event is not None and self.on == HOST:
            event.synchronize()
        elif event is not None:
            event.current_stream_wait()
        self._before = None


class Delivery(Epilogue):
    """Received tensors: views of the slot where that is what was asked for, else written by fill().

    scales: those sent. After a cached dispatch weights, where there are any, are behind them.
    """

    def __init__(
        self,
        handle: EPHandle,
        sent: Sent,
        dtype: torch.dtype,
        scales: Optional[torch.Tensor],
        weighted: bool,
        cached: bool,
        how: Arrangement,
        may_view: bool,
        before: Any,
    ) -> None:
        super().__init__(sent.request, before, handle.on)
        self._handle, self._how, self._may_view = handle, how, may_view
        self._steps: list[Callable[[], Any]] = []
        received, width = sent.handle.recv, 0 if scales is None else scales.shape[1]
        words = received.scales
        x = received.x if received.x.dtype == dtype else received.x.view(dtype)
        self.rows: Any = self._take(x)
        if scales is not None:
            self.rows = (self.rows, self._take(words[:, :width].view(scales.dtype), how.by_column))
        self.topk_idx = None if how.expand else self._take_topk_idx()
        self.weights: Optional[torch.Tensor] = None
        if weighted:
            behind = words[:, width:].view(torch.float32) if cached else received.topk_weights
            self.weights = self._take_weights(behind, cached)

    def tensors(self) -> tuple[Optional[torch.Tensor], ...]:
        """All that is received."""
        rows = self.rows if isinstance(self.rows, tuple) else (self.rows,)
        return (*rows, self.topk_idx, self.weights)

    def fill(self) -> None:
        self._wait_before()
        steps, self._steps = self._steps, []
        for step in steps:
            step()

    def _take(self, source: torch.Tensor, by_column: bool = False) -> torch.Tensor:
        """source [N, ..]."""
        if not self._how.expand and not by_column and self._may_view and source.is_contiguous():
            return source
        count = self._handle.num_expanded_tokens if self._how.expand else source.shape[0]
        to = _empty(count, source, by_column)
        here = source[: self._handle.rows]
        if self._how.expand:
            self._steps.append(functools.partial(_expand, self._handle, self._how.zero, to, "spread", here))
        else:
            self._steps.append(lambda: to[: here.shape[0]].copy_(here))
        return to

    def _take_topk_idx(self) -> torch.Tensor:
        """A copy: what is in the slot is the handle's."""
        handle = self._handle
        to = torch.full((handle.capacity, handle.topk), -1, dtype=handle.topk_idx.dtype, device=self.on)
        self._steps.append(lambda: to[: handle.rows].copy_(handle.recv_topk_idx))
        return to

    def _take_weights(self, source: torch.Tensor, raw: bool) -> torch.Tensor:
        """source [N, K]; raw: with those for other ranks."""
        handle = self._handle
        here = source[: handle.rows]
        if self._how.expand:
            to = torch.empty(handle.num_expanded_tokens, dtype=torch.float32, device=self.on)
            self._steps.append(functools.partial(_expand, handle, self._how.zero, to, "spread_selections", here))
        elif raw:
            to = torch.empty((handle.capacity, handle.topk), dtype=torch.float32, device=self.on)
            out = to[: handle.rows]
            self._steps.append(lambda: out.copy_(torch.where(handle.recv_topk_idx >= 0, here, 0.0)))
        else:
            to = self._take(source)
        return to


def _expand(handle: EPHandle, zero: bool, to: torch.Tensor, spread: str, source: torch.Tensor) -> None:
    """No method: a step that has its Delivery is a cycle, and keeps the slot until somebody collects."""
    getattr(handle.places, spread)(to, source, zero)


class Sum(Epilogue):
    """What combine returns: the sum that the library made, or that rounded."""

    def __init__(self, request: Optional[xep.Request], summed: torch.Tensor, dtype: torch.dtype, before: Any) -> None:
        super().__init__(request, before, summed.device)
        self._summed: Optional[torch.Tensor] = summed
        self.result = summed if summed.dtype == dtype else torch.empty_like(summed, dtype=dtype)

    def fill(self) -> None:
        self._wait_before()
        if self._summed is not self.result and self._summed is not None:
            self.result.copy_(self._summed)
        self._summed = None


def _empty(rows: int, like: torch.Tensor, by_column: bool) -> torch.Tensor:
    """[rows, ..] of like's type."""
    if not by_column:
        return torch.empty((rows, like.shape[1]), dtype=like.dtype, device=like.device)
    return torch.empty((like.shape[1], align(rows, _COLUMN)), dtype=like.dtype, device=like.device).t()[:rows]
