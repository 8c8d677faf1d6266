# SPDX-License-Identifier: BSD-3-Clause
"""xep.nn's dispatch and combine for frameworks: of float64, too, with counts, and one rank's error on every rank."""

from __future__ import annotations

import dataclasses
import itertools
import os
import weakref
from typing import Any, Optional

import torch

import deep_ep
import xep

from .. import nn
from .alarm import Alarm, RankError


@dataclasses.dataclass
class Counts:
    """What this rank has done. bytes_sent: rows, indices and weights that left for other ranks."""

    dispatches: int = 0
    combines: int = 0
    rows_sent: int = 0
    bytes_sent: int = 0


@dataclasses.dataclass
class Route:
    """The way of one dispatch. home [N, 2]: source rank and token of each row, where rows travel as float64."""

    handle: Any
    experts: int
    tokens: int
    rows_out: int  # to other ranks
    rows_in: int  # from other ranks
    home: Optional[torch.Tensor]


class Exchange(nn.Exchange):
    """Ranks that trade rows, also of float64, with an alarm: what fails on one rank is an error on every rank. group: a
    process group of any backend. Collective to make, so that a rank that fails before it has dispatched anything
    leaves nobody on the way into the group."""

    def __init__(self, group: Any, name: str) -> None:
        self.counts, self._pid = Counts(), os.getpid()
        self.alarm = Alarm(group, name, give_up=_weakly(self._give_up))
        with self.alarm:
            super().__init__(group)

    def close(self) -> None:
        """Frees the memory. Collective; after an error, local."""
        self._buffer = None

    # ---- operations ----

    def _check(self, **tensors: torch.Tensor) -> None:
        with self.alarm:
            super()._check(**tensors)

    def send(
        self, x: torch.Tensor, topk_idx: torch.Tensor, weights: torch.Tensor, experts: int, capacity: int = 0
    ) -> tuple[Any, ...]:
        width, wide = x.shape[1], torch.float64 in (x.dtype, weights.dtype)
        with self.alarm:
            sent = self._packed(x, weights) if wide else x
            carried = torch.zeros(weights.shape) if wide else weights
            rows, idx, row_weights, handle = super().send(sent, topk_idx, carried, experts, capacity)
        per_rank = xep.layout(topk_idx.contiguous(), experts, self.ranks).tokens_per_rank.tolist()
        own = per_rank[self.alarm.rank]
        route = Route(handle, experts, x.shape[0], sum(per_rank) - own, len(rows) - own, None)
        self._count("dispatches", route.rows_out, sent, 12 * topk_idx.shape[1])
        if wide:
            route.home = rows[:, -2:].to(torch.int64)
            row_weights = rows[:, width:-2].masked_fill(idx < 0, 0.0)
            rows = rows[:, :width].contiguous()
        return rows.to(x.dtype), idx, row_weights.to(weights.dtype), route

    def send_quantized(
        self, x: torch.Tensor, scales: torch.Tensor, topk_idx: torch.Tensor, weights: torch.Tensor, experts: int
    ) -> tuple[Any, ...]:
        """Rows of bytes and their scales, of bytes too, a multiple of 4 for each -> (rows, scales), idx, weights,
        route."""
        words = scales.contiguous().view(torch.int32)
        given = x.contiguous().view(torch.uint8), words
        with self.alarm:
            (rows, row_scales), idx, row_weights, handle = super().send(given, topk_idx, weights, experts, 0)
        per_rank = xep.layout(topk_idx.contiguous(), experts, self.ranks).tokens_per_rank.tolist()
        own = per_rank[self.alarm.rank]
        route = Route(handle, experts, x.shape[0], sum(per_rank) - own, len(rows) - own, None)
        self._count("dispatches", route.rows_out, given[0], 12 * topk_idx.shape[1] + scales.shape[1])
        return (rows.view(x.dtype), row_scales.view(scales.dtype)), idx, row_weights, route

    def send_again(self, x: torch.Tensor, route: Route) -> torch.Tensor:
        with self.alarm:
            rows = super().send_again(x, route.handle)
        self._count("dispatches", route.rows_out, x)
        return rows

    def sum_at_home(self, rows: torch.Tensor, weights: Optional[torch.Tensor], route: Route) -> tuple[Any, ...]:
        if torch.float64 in (rows.dtype, None if weights is None else weights.dtype):
            return self._sum_wide(rows, weights, route)
        with self.alarm:
            found = super().sum_at_home(rows, weights, route.handle)
        self._count("combines", route.rows_in, rows, 0 if weights is None else 4 * weights.shape[1])
        return found

    # ---- rows of float64, of which xep makes no sums: they travel back as they are, and are summed here ----

    def _packed(self, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """[T, H + K + 2]: a row, its weights, its rank, its token."""
        tokens = torch.arange(x.shape[0], dtype=torch.float64).unsqueeze(1)
        rank = torch.full_like(tokens, self.alarm.rank)
        return torch.cat([x.to(torch.float64), weights.to(torch.float64), rank, tokens], 1)

    def _sum_wide(self, rows: torch.Tensor, weights: Optional[torch.Tensor], route: Route) -> tuple[Any, ...]:
        if route.home is None:
            raise TypeError(f"rows: expected the type that was dispatched, or one of its kind, got {rows.dtype}")
        parts = [rows.to(torch.float64)]
        if weights is not None:
            parts.append(weights.to(torch.float64))
        owners = route.home[:, :1] * (route.experts // self.ranks)
        parts.append(route.home[:, 1:].to(torch.float64))
        back, _, _, _ = self.send(torch.cat(parts, 1), owners, torch.zeros(owners.shape), route.experts)
        self.counts.dispatches -= 1
        self.counts.combines += 1
        sums = torch.zeros((route.tokens, back.shape[1] - 1), dtype=torch.float64)
        sums.index_add_(0, back[:, -1].to(torch.int64), back[:, :-1])
        out = sums[:, : rows.shape[1]].to(rows.dtype)
        return out, None if weights is None else sums[:, rows.shape[1] :].to(weights.dtype)

    # ---- its memory ----

    def _open(self) -> deep_ep.Buffer:
        if os.getpid() != self._pid:
            raise RuntimeError("this process was forked off the rank that made the model: it has no part in its ranks")
        return super()._open()

    def _give_up(self) -> None:
        if self._buffer is not None:
            self._buffer.abort()

    def _count(self, kind: str, rows: int, x: torch.Tensor, beside: int = 0) -> None:
        setattr(self.counts, kind, getattr(self.counts, kind) + 1)
        self.counts.rows_sent += rows
        self.counts.bytes_sent += rows * (x.shape[1] * x.element_size() + beside)


def _weakly(method: Any) -> Any:
    """The method, without keeping its object."""
    found = weakref.WeakMethod(method)

    def call() -> None:
        bound = found()
        if bound is not None:
            bound()

    return call


_shared: dict[str, Exchange] = {}
_numbers: dict[str, Any] = {}


def exchange_of(group: Any) -> Exchange:
    """That of a process group: made at the first call, and again after one that failed. Collective.

    It stays until the process ends, for which one it is may depend on nothing but the order of the calls, and least of
    all on when a rank collects its garbage.
    """
    name = group.group_name
    found = _shared.get(name)
    if found is not None and found.group is group:
        found.alarm.look()
        if found.alarm.reason is None:
            return found
    number = next(_numbers.setdefault(name, itertools.count()))
    made = _shared[name] = Exchange(group, f"{name}/{number}")
    return made


def exchanges() -> list[Exchange]:
    """All of them, in the order of their making."""
    return list(_shared.values())


__all__ = ["Counts", "Exchange", "RankError", "exchange_of", "exchanges"]
