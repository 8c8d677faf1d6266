# SPDX-License-Identifier: BSD-3-Clause
"""Who gets what, by operations of torch where tokens are on a device; and rows by expert: a received row is copied to a
place for each of its experts here, and their results are summed to one row again before they go back. So the wire
carries a row once for each rank.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any, NamedTuple

import torch

import xep
from xep import _ext

from .arguments import HOST, SENT_AS

# ---- layouts ----


class Layout(NamedTuple):
    """Tokens for each rank [R] int32, selections of each expert [E] int32, whether a token goes to a rank [T, R]."""

    per_rank: torch.Tensor
    per_expert: torch.Tensor
    in_rank: torch.Tensor


def layout_there(topk_idx: torch.Tensor, experts: int, nranks: int) -> Layout:
    """By few operations of torch. An index that is neither an expert nor -1 counts for nobody: the dispatch refuses it,
    as to raise here the host would have to wait for the device."""
    device = topk_idx.device
    one, owner_of = _constants(experts, nranks, device)
    chosen = topk_idx.to(torch.int64).clamp(-1, experts) + 1  # 0, experts + 1: none
    per_expert = torch.zeros(experts + 2, dtype=torch.int32, device=device)
    per_expert.scatter_add_(0, chosen.flatten(), one.expand(chosen.numel()))
    in_rank = torch.zeros((chosen.shape[0], nranks + 1), dtype=torch.bool, device=device)
    in_rank = in_rank.scatter_(1, owner_of[chosen], True)[:, :nranks].contiguous()
    return Layout(in_rank.sum(0, dtype=torch.int32), per_expert[1:-1], in_rank)


@functools.lru_cache
def _constants(experts: int, nranks: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """One; and of each expert, with what is none before and behind them, the rank, or nranks."""
    owners = torch.full((experts + 2,), nranks)
    owners[1:-1] = torch.arange(experts) // (experts // nranks)
    return torch.ones((), dtype=torch.int32).to(device), owners.to(device)


def tokens_per_rank(topk_idx: torch.Tensor, experts: int, nranks: int) -> list[int]:
    if topk_idx.is_cpu:
        return xep.layout(topk_idx, experts, nranks).tokens_per_rank.tolist()
    return layout_there(topk_idx, experts, nranks).per_rank.tolist()


# ---- rows by expert ----


ALL = slice(None)  # selections
_DEVICE_ROWS = 4096  # that are summed at once on a device: what that takes besides is bounded


class Places:
    """Of each (received row, k) with an expert of this rank its expanded row: expert, then received row, ascending;
    each expert begins at a multiple of alignment.

    slots: [N, K] these, -1: none. counts: rows of each local expert.
    """

    def __init__(self, slots: torch.Tensor, counts: list[int], alignment: int) -> None:
        self.slots, self._counts, self._alignment = slots, counts, alignment

    @classmethod
    def expand(
        cls,
        topk_idx: torch.Tensor,
        counts: list[int],
        alignment: int,
        x: Any = None,
        weights: Any = None,
        zero: bool = False,
    ) -> tuple[Places, Any, Any]:
        """(the places, x and weights by expert). topk_idx, weights: [N, K]: local expert, or -1. x: [N, ..] or None.
        zero: the rows that alignment leaves unused become 0."""
        slots, rows, row_weights = _ext.expert_expand(topk_idx, counts, alignment, x, weights, zero)
        return cls(slots, counts, alignment), rows, row_weights

    def spread(self, to: torch.Tensor, source: torch.Tensor, zero: bool = False) -> None:
        """source [N, ..] of each received row. zero: the rows that alignment leaves unused become 0."""
        bits = SENT_AS[source.element_size()]
        alignment = self._alignment if zero else 0
        _ext.expert_spread(to.view(bits), source.view(bits), self.slots, self._counts, alignment, False)

    def spread_selections(self, to: torch.Tensor, source: torch.Tensor, zero: bool = False) -> None:
        """source [N, K]; to: one of each expanded row."""
        alignment = self._alignment if zero else 0
        _ext.expert_spread(to.unsqueeze(1), source, self.slots, self._counts, alignment, True)

    def fold(self, expanded: torch.Tensor, columns: slice = ALL) -> torch.Tensor:
        """[N, H]: of each received row the sum of its expanded ones, of these columns of slots, in fp32, k ascending,
        rounded to their type."""
        return _ext.expert_sum(expanded, self.slots if columns is ALL else self.slots[:, columns])

    def fold_selections(self, expanded: torch.Tensor) -> torch.Tensor:
        """[N, K] of one of each expanded row; 0 where the expert is another rank's."""
        found = torch.empty(self.slots.shape, dtype=torch.float32, device=HOST)
        _ext.expert_gather(found, expanded.unsqueeze(1), self.slots)
        return found


class PlacesThere:
    """Places on a CUDA device, where the counts are, too: the same rows and sums, by operations of torch, for none of
    which the host waits. Rows that have not come have no expert. Every expanded row is written, from row 0 where it is
    none.

    counts: [L] int64. expanded: rows that there is room for.
    """

    def __init__(self, topk_idx: torch.Tensor, counts: torch.Tensor, alignment: int, expanded: int) -> None:
        on, local = topk_idx.device, counts.shape[0]
        chosen = topk_idx.reshape(-1).to(torch.int64)
        ordered, order = torch.where(chosen >= 0, chosen, local).sort(stable=True)
        aligned = aligned_counts(counts, alignment)
        shift = (aligned.cumsum(0) - aligned) - (counts.cumsum(0) - counts)
        there = ordered < local
        rows = torch.arange(chosen.shape[0], device=on) + shift[ordered.clamp(max=local - 1)]
        slots = torch.empty_like(chosen).scatter_(0, order, torch.where(there, rows, -1))
        self.slots = slots.view(topk_idx.shape)  # [N, K], -1: none
        selections = torch.full((expanded + 1,), -1, dtype=torch.int64, device=on)
        selections.scatter_(0, torch.where(there, rows, expanded), order)  # what is none is behind the last
        self._none = selections[:-1] < 0
        self._selections = selections[:-1].clamp_(min=0)
        self._tokens = self._selections // max(1, topk_idx.shape[1])

    def spread(self, to: torch.Tensor, source: torch.Tensor, zero: bool = False) -> None:
        bits = SENT_AS[source.element_size()]
        if source.shape[0]:
            to.view(bits).copy_(source.view(bits).index_select(0, self._tokens))
        if zero:
            to.view(bits).masked_fill_(self._none.unsqueeze(1), 0)

    def spread_selections(self, to: torch.Tensor, source: torch.Tensor, zero: bool = False) -> None:
        if source.shape[0]:
            to.copy_(source.reshape(-1).index_select(0, self._selections))
        if zero:
            to.masked_fill_(self._none, 0)

    def fold(self, expanded: torch.Tensor, columns: slice = ALL) -> torch.Tensor:
        folded = expanded.new_zeros((self.slots.shape[0], expanded.shape[1]))
        if expanded.shape[0] > 0:
            for slots, to in zip(self.slots[:, columns].split(_DEVICE_ROWS), folded.split(_DEVICE_ROWS)):
                _sum_there(expanded, slots, to)
        return folded

    def fold_selections(self, expanded: torch.Tensor) -> torch.Tensor:
        if expanded.shape[0] == 0:
            return torch.zeros(self.slots.shape, dtype=expanded.dtype, device=expanded.device)
        return torch.where(self.slots >= 0, expanded[self.slots.clamp(min=0)], 0)


class PlacesOfLibrary(PlacesThere):
    """Places that a kernel of the library has found. While their handle has its slot, it sums rows, too.

    slots: [capacity of the received arrays, K] int32.
    """

    def __init__(self, made: Any, slots: torch.Tensor) -> None:
        self._made, self._all = weakref.ref(made), slots
        self.slots = slots[: made.rows]

    def spread(self, to: torch.Tensor, source: torch.Tensor, zero: bool = False) -> None:
        self._find_selections()
        super().spread(to, source, zero)

    def spread_selections(self, to: torch.Tensor, source: torch.Tensor, zero: bool = False) -> None:
        self._find_selections()
        super().spread_selections(to, source, zero)

    def _find_selections(self) -> None:
        """Which a cached dispatch with weights needs, and the kernel does not tell."""
        if not hasattr(self, "_selections"):
            super().__init__(*self._made().placed_by())

    def fold(self, expanded: torch.Tensor, columns: slice = ALL) -> torch.Tensor:
        made = self._made()
        if columns is not ALL or made is None or not made.has_slot() or expanded.shape[0] == 0:
            return super().fold(expanded, columns)
        made.look_again()
        folded = expanded.new_empty((self.slots.shape[0], expanded.shape[1]))
        made.xep.reduce(expanded, self._all, folded)
        return folded


def aligned_counts(counts: torch.Tensor, alignment: int) -> torch.Tensor:
    return (counts + (alignment - 1)) // alignment * alignment


def _sum_there(expanded: torch.Tensor, slots: torch.Tensor, to: torch.Tensor) -> None:
    total = torch.zeros(to.shape, dtype=torch.float32, device=to.device)
    begun = torch.zeros((to.shape[0], 1), dtype=torch.bool, device=to.device)
    for slot in slots.unbind(1):
        there = (slot >= 0).unsqueeze(1)
        row = expanded.index_select(0, slot.clamp(min=0)).float()
        total = torch.where(there, torch.where(begun, total + row, row), total)
        begun = begun | there
    to.copy_(total)
