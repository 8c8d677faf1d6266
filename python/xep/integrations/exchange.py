# SPDX-License-Identifier: BSD-3-Clause
"""Dispatch and combine with gradients, over the ranks of a process group: each is the other's backward.

Every rank makes the same calls in the same order, whatever it has: no tokens, no rows, experts that nobody chose. That
holds for the backward pass because of the anchor, a zero that goes from dispatch to combine beside the rows: where a
gradient is wanted at all, combine has an input that requires one on every rank, and so has a backward on every rank.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import weakref
from typing import Any, Optional

import torch
from torch.autograd.function import once_differentiable

import deep_ep

from .alarm import Alarm, RankError

_SLOTS = 6  # for handles of the last layers; one without a slot costs its backward a dispatch that is not cached


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


class Exchange:
    """Ranks that trade rows. group: a process group of any backend. Collective to make, so that a rank that fails
    before it has dispatched anything leaves nobody on the way into the group."""

    def __init__(self, group: Any, name: str) -> None:
        self.group, self.counts = group, Counts()
        self.alarm = Alarm(group, name, give_up=_weakly(self._give_up))
        self.ranks = self.alarm.ranks
        self._buffer: Optional[deep_ep.Buffer] = None
        self._pid = os.getpid()
        with self.alarm:
            self._open()

    # ---- what layers call ----

    def dispatch(
        self, x: torch.Tensor, topk_idx: torch.Tensor, weights: torch.Tensor, experts: int, trained: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, tuple[Route, torch.Tensor]]:
        """x [T, H], topk_idx [T, K] (expert, or -1), weights [T, K] of float types -> rows [N, H], their local experts
        or -1 [N, K], their weights [N, K], and what combine needs. Collective.

        trained: the experts have a gradient of their own to find, even where x and weights need none.
        """
        wanted = torch.is_grad_enabled() and (trained or x.requires_grad or weights.requires_grad)
        anchor = torch.zeros((), requires_grad=wanted)
        rows, idx, row_weights, anchor, route = _Dispatch.apply(self, experts, anchor, x, topk_idx, weights)
        return rows, idx, row_weights.masked_fill(idx < 0, 0.0), (route, anchor)

    def combine(self, y: torch.Tensor, way: tuple[Route, torch.Tensor]) -> torch.Tensor:
        """y [N, H'], a row for each row received -> the sums [T, H'] where the tokens came from. Collective."""
        return _Combine.apply(self, y, way[1], way[0])

    def close(self) -> None:
        """Frees the memory. Collective; after an error, local."""
        self._buffer = None

    # ---- operations ----

    def send(self, x: torch.Tensor, topk_idx: torch.Tensor, weights: torch.Tensor, experts: int) -> tuple:
        """(rows, idx, weights, route)"""
        with self.alarm:
            buffer = self._open()
            topk_idx, width = topk_idx.contiguous(), x.shape[1]
            wide = torch.float64 in (x.dtype, weights.dtype)
            sent = self._packed(x, weights) if wide else x.contiguous()
            carried = torch.zeros(weights.shape) if wide else weights.to(torch.float32).contiguous()
            layout = buffer.get_dispatch_layout(topk_idx, experts)
            rows, idx, row_weights, _, handle, _ = buffer.dispatch(
                sent,
                topk_idx=topk_idx,
                topk_weights=carried,
                num_tokens_per_rank=layout[0],
                num_tokens_per_rdma_rank=layout[1],
                num_tokens_per_expert=layout[2],
                is_token_in_rank=layout[3],
            )
        own = int(layout[0][self.alarm.rank])
        route = Route(handle, experts, x.shape[0], int(layout[0].sum()) - own, len(rows) - own, None)
        self._count("dispatches", route.rows_out, sent, 12 * topk_idx.shape[1])
        if wide:
            route.home = rows[:, -2:].to(torch.int64)
            row_weights = rows[:, width:-2]
            rows = rows[:, :width].contiguous()
        return rows.to(x.dtype), idx, row_weights.to(weights.dtype), route

    def send_again(self, x: torch.Tensor, route: Route) -> torch.Tensor:
        """Other rows [T, H'] along a route."""
        with self.alarm:
            rows = self._open().dispatch(x.contiguous(), handle=route.handle)[0]
        self._count("dispatches", route.rows_out, x)
        return rows

    def sum_at_home(self, rows: torch.Tensor, weights: Optional[torch.Tensor], route: Route) -> tuple:
        """(sums [T, H'], sums of weights [T, K] or None)"""
        if torch.float64 in (rows.dtype, None if weights is None else weights.dtype):
            return self._sum_wide(rows, weights, route)
        with self.alarm:
            carried = None if weights is None else weights.to(torch.float32).contiguous()
            out, sums, _ = self._open().combine(rows.contiguous(), route.handle, topk_weights=carried)
        self._count("combines", route.rows_in, rows, 0 if weights is None else 4 * weights.shape[1])
        return out, None if sums is None or weights is None else sums.to(weights.dtype)

    # ---- rows of float64, of which xep makes no sums: they travel back as they are, and are summed here ----

    def _packed(self, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """[T, H + K + 2]: a row, its weights, its rank, its token."""
        tokens = torch.arange(x.shape[0], dtype=torch.float64).unsqueeze(1)
        rank = torch.full_like(tokens, self.alarm.rank)
        return torch.cat([x.to(torch.float64), weights.to(torch.float64), rank, tokens], 1)

    def _sum_wide(self, rows: torch.Tensor, weights: Optional[torch.Tensor], route: Route) -> tuple:
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
        if self._buffer is None:
            self._buffer = deep_ep.Buffer(self.group, num_slots=_SLOTS)
        return self._buffer

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


class _Dispatch(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        exchange: Exchange,
        experts: int,
        anchor: torch.Tensor,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        weights: torch.Tensor,
    ) -> tuple:
        rows, idx, row_weights, route = exchange.send(x, topk_idx, weights, experts)
        ctx.exchange, ctx.route = exchange, route
        ctx.mark_non_differentiable(idx)
        return rows, idx, row_weights, torch.zeros_like(anchor), route

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, rows: torch.Tensor, _idx: Any, weights: torch.Tensor, _anchor: Any, _route: Any) -> tuple:
        if not (ctx.needs_input_grad[3] or ctx.needs_input_grad[5]):
            return (None,) * 6
        x, weights = ctx.exchange.sum_at_home(rows, weights, ctx.route)
        return None, None, None, x, None, weights


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, exchange: Exchange, y: torch.Tensor, anchor: torch.Tensor, route: Route) -> torch.Tensor:
        ctx.exchange, ctx.route = exchange, route
        return exchange.sum_at_home(y, None, route)[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        return None, ctx.exchange.send_again(grad, ctx.route), torch.zeros(()), None


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
