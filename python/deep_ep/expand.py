# SPDX-License-Identifier: BSD-3-Clause
"""Rows by expert: a received row is copied to a place for each of its experts here, and their results are summed to
one row again before they go back. So the wire carries a row once for each rank."""

from __future__ import annotations

import functools
from typing import Sequence

import numpy as np
import torch

from ._check import HOST
from .utils.math import align

_BLOCK = 1 << 18  # elements that are summed at once: their sums stay in a cache
_DEVICE_ROWS = 4096  # likewise on a device: what that takes besides is bounded


class Places:
    """Of each (received row, k) with an expert of this rank its expanded row: expert, then received row, ascending;
    each expert begins at a multiple of alignment.

    topk_idx: [N, K] local expert, or -1. counts: rows of each local expert.
    """

    def __init__(self, topk_idx: torch.Tensor, counts: Sequence[int], alignment: int) -> None:
        chosen = topk_idx.numpy().ravel()
        narrow = chosen.astype(np.int16 if len(counts) < 1 << 15 else np.int32)  # of 16 bits sorted by radix
        self._selections = np.argsort(narrow, kind="stable")[chosen.size - sum(counts) :]
        self._rows = self._selections // max(1, topk_idx.shape[1])
        self._runs = _runs_of(counts, alignment)
        self._gaps = [(first + count, align(count, alignment) - count) for _, count, first in self._runs]
        slots = np.full(chosen.size, -1, np.int64)
        for begin, count, first in self._runs:
            slots[self._selections[begin : begin + count]] = np.arange(first, first + count)
        self.slots = torch.from_numpy(slots.reshape(topk_idx.shape))  # [N, K], -1: none

    def spread(self, to: torch.Tensor, source: torch.Tensor) -> None:
        """source [N, ..] of each received row."""
        self._gather(to, source, self._rows)

    def spread_selections(self, to: torch.Tensor, source: torch.Tensor) -> None:
        """source [N, K]; to: one of each expanded row."""
        self._gather(to, source.reshape(-1), self._selections)

    def _gather(self, to: torch.Tensor, source: torch.Tensor, index: np.ndarray) -> None:
        for begin, count, first in self._runs:
            _take(source, index[begin : begin + count], to[first : first + count])

    def zero_gaps(self, tensor: torch.Tensor) -> None:
        """The rows that alignment leaves unused."""
        for begin, count in self._gaps:
            tensor[begin : begin + count].zero_()

    @functools.cached_property
    def _terms(self) -> tuple[list[np.ndarray], np.ndarray]:
        """Received rows with more experts first: the expanded rows of the first expert of each, of the second of those
        that have one, and so on, k ascending; and where each received row is in that order."""
        slots = self.slots.numpy()
        present = slots >= 0
        count = present.sum(axis=1)
        order = np.argsort(-count, kind="stable")
        where = np.empty_like(order)
        where[order] = np.arange(len(order))
        flat, begin = slots[present], (np.cumsum(count) - count)[order]
        many = np.searchsorted(-count[order], -np.arange(count.max(initial=0))).tolist()  # rows with more than n
        return [flat[begin[:rows] + n] for n, rows in enumerate(many)], where

    def fold(self, expanded: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """[N, H]: of each received row the sum of its expanded ones, in fp32, k ascending, rounded to dtype."""
        rows, hidden = self.slots.shape[0], expanded.shape[1]
        terms, where = self._terms
        summed, folded = (torch.empty((rows, hidden), dtype=dtype) for _ in range(2))
        block = max(1, _BLOCK // max(1, hidden))
        for begin in range(0, rows, block):
            part = [term[begin : begin + block] for term in terms if begin < len(term)]
            _sum(expanded, part, summed[begin : begin + len(part[0])])
        _take(summed, where, folded)
        return folded

    def fold_selections(self, expanded: torch.Tensor) -> torch.Tensor:
        return fold_selections(self.slots, expanded)


class DevicePlaces:
    """Places on a CUDA device: the same rows and sums, by operations of torch, for none of which the host waits."""

    def __init__(self, topk_idx: torch.Tensor, counts: Sequence[int], alignment: int) -> None:
        on, total = topk_idx.device, sum(counts)
        chosen = topk_idx.reshape(-1).to(torch.int64)
        ordered, order = torch.where(chosen >= 0, chosen, len(counts)).sort(stable=True)
        shift, gaps, begin, first = [], [], 0, 0
        for count in counts:
            shift.append(first - begin)
            end = first + align(count, alignment)
            gaps.extend(range(first + count, end))
            begin, first = begin + count, end
        self._selections = order[:total]
        self._tokens = self._selections // max(1, topk_idx.shape[1])
        self._rows = torch.arange(total, device=on) + _sent(shift, on)[ordered[:total]]
        self._gaps = _sent(gaps, on)
        slots = torch.full(chosen.shape, -1, dtype=torch.int64, device=on)
        self.slots = slots.scatter_(0, self._selections, self._rows).view(topk_idx.shape)  # [N, K], -1: none

    def spread(self, to: torch.Tensor, source: torch.Tensor) -> None:
        bits = _BITS[source.element_size()]
        to.view(bits).index_copy_(0, self._rows, source.view(bits).index_select(0, self._tokens))

    def spread_selections(self, to: torch.Tensor, source: torch.Tensor) -> None:
        to.index_copy_(0, self._rows, source.reshape(-1).index_select(0, self._selections))

    def zero_gaps(self, tensor: torch.Tensor) -> None:
        tensor.view(_BITS[tensor.element_size()]).index_fill_(0, self._gaps, 0)

    def fold(self, expanded: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        folded = torch.zeros((self.slots.shape[0], expanded.shape[1]), dtype=dtype, device=expanded.device)
        if expanded.shape[0] > 0:
            for slots, to in zip(self.slots.split(_DEVICE_ROWS), folded.split(_DEVICE_ROWS)):
                _sum_there(expanded, slots, to)
        return folded

    def fold_selections(self, expanded: torch.Tensor) -> torch.Tensor:
        return fold_selections(self.slots, expanded)


class PlacesThere(DevicePlaces):
    """Places on a CUDA device where the counts are, too: of all rows that there is room for, and those that have not
    come have no expert. So every expanded row is written, from row 0 where it is none.

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

    def spread(self, to: torch.Tensor, source: torch.Tensor) -> None:
        bits = _BITS[source.element_size()]
        to.view(bits).copy_(source.view(bits).index_select(0, self._tokens))

    def spread_selections(self, to: torch.Tensor, source: torch.Tensor) -> None:
        to.copy_(source.reshape(-1).index_select(0, self._selections))

    def zero_gaps(self, tensor: torch.Tensor) -> None:
        none = self._none if tensor.dim() == 1 else self._none.unsqueeze(1)
        tensor.view(_BITS[tensor.element_size()]).masked_fill_(none, 0)


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


def _sent(numbers: list[int], on: torch.device) -> torch.Tensor:
    """From pinned memory, or the host would wait for the stream."""
    made = torch.tensor(numbers, dtype=torch.int64)
    return made if on == HOST else made.pin_memory().to(on, non_blocking=True)


def fold_selections(slots: torch.Tensor, expanded: torch.Tensor) -> torch.Tensor:
    """[N, K] of one of each expanded row; 0 where the expert is another rank's."""
    if expanded.shape[0] == 0:
        return torch.zeros(slots.shape, dtype=expanded.dtype, device=expanded.device)
    return torch.where(slots >= 0, expanded[slots.clamp(min=0)], 0)


def _sum(source: torch.Tensor, terms: list[np.ndarray], to: torch.Tensor) -> None:
    """The rows of the first term, to which those of each further one are added: as many, or fewer."""
    first = torch.empty((len(terms[0]), source.shape[1]), dtype=source.dtype)
    _take(source, terms[0], first)
    if len(terms) == 1:
        to.copy_(first)
        return
    total = first.to(torch.float32, copy=True)
    for term in terms[1:]:
        _take(source, term, first[: len(term)])
        total[: len(term)] += first[: len(term)]
    to.copy_(total)


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _take(source: torch.Tensor, index: np.ndarray, to: torch.Tensor) -> None:
    """Rows of source. By numpy, which copies rows of any type whole, and takes a tenth of index_select's time."""
    bits = _BITS[source.element_size()]
    if source.shape[0] == 0:
        return
    if to.is_contiguous():
        source.view(bits).numpy().take(index, axis=0, out=to.view(bits).numpy(), mode="clip")
    else:  # scales by column
        to.copy_(source[torch.from_numpy(index)])


def _runs_of(counts: Sequence[int], alignment: int) -> list[tuple[int, int, int]]:
    """(selections before, how many, first expanded row) of what lies together."""
    if alignment == 1:
        return [(0, sum(counts), 0)]
    runs, begin, first = [], 0, 0
    for count in counts:
        runs.append((begin, count, first))
        begin, first = begin + count, first + align(count, alignment)
    return runs
