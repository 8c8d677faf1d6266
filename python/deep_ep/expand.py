# SPDX-License-Identifier: BSD-3-Clause
"""Rows by expert: a received row is copied to a place for each of its experts here, and their results are summed to
one row again before they go back. So the wire carries a row once for each rank."""

from __future__ import annotations

import functools
from typing import Sequence

import numpy as np
import torch

from .utils.math import align


class Places:
    """Of each (received row, k) with an expert of this rank its expanded row: expert, then received row, ascending;
    each expert begins at a multiple of alignment.

    topk_idx: [N, K] local expert, or -1. counts: rows of each local expert.
    """

    def __init__(self, topk_idx: torch.Tensor, counts: Sequence[int], alignment: int) -> None:
        chosen = topk_idx.numpy().ravel()
        narrow = chosen.astype(np.int16 if len(counts) < 1 << 15 else np.int32)  # of 16 bits sorted by radix
        total = sum(counts)
        order = np.argsort(narrow, kind="stable")[chosen.size - total :]
        self._runs = _runs_of(counts, alignment)  # (begin in order, count, first expanded row)
        slots = np.full(chosen.size, -1, np.int64)
        for begin, count, first in self._runs:
            slots[order[begin : begin + count]] = np.arange(first, first + count)
        self.slots = torch.from_numpy(slots.reshape(topk_idx.shape))  # [N, K], -1: none
        self._selections = torch.from_numpy(order.astype(np.int64, copy=False))
        self._rows = self._selections // max(1, topk_idx.shape[1])
        self._gaps = [(first + count, align(count, alignment) - count) for _, count, first in self._runs]

    def spread(self, to: torch.Tensor, source: torch.Tensor) -> None:
        """source [N, ..] of each received row."""
        self._gather(to, source, self._rows)

    def spread_selections(self, to: torch.Tensor, source: torch.Tensor) -> None:
        """source [N, K]; to: one of each expanded row."""
        self._gather(to, source.reshape(-1), self._selections)

    def _gather(self, to: torch.Tensor, source: torch.Tensor, index: torch.Tensor) -> None:
        if to.dtype.itemsize == 1:  # index_select has no 8-bit floats
            to, source = to.view(torch.uint8), source.view(torch.uint8)
        for begin, count, first in self._runs:
            torch.index_select(source, 0, index[begin : begin + count], out=to[first : first + count])

    def zero_gaps(self, tensor: torch.Tensor) -> None:
        """The rows that alignment leaves unused."""
        for begin, count in self._gaps:
            tensor[begin : begin + count].zero_()

    @functools.cached_property
    def _terms(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """(received rows, expanded rows) of the first expert of each row, of the second, and so on, k ascending."""
        present = self.slots >= 0
        nth = present.cumsum(dim=1)
        found = []
        for n in range(1, int(nth[:, -1].max()) + 1 if nth.numel() else 0):
            rows, k = (present & (nth == n)).nonzero(as_tuple=True)
            found.append((rows, self.slots[rows, k]))
        return found

    def fold(self, expanded: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """[N, H]: of each received row the sum of its expanded ones, in fp32, k ascending, rounded to dtype."""
        folded = torch.empty((self.slots.shape[0], expanded.shape[1]), dtype=dtype)
        if not self._terms:
            return folded
        (_, first), *others = self._terms  # every received row has an expert here
        if dtype == expanded.dtype:
            torch.index_select(expanded, 0, first, out=folded)
        else:
            folded.copy_(expanded[first])
        if others:
            several = others[0][0]
            total = expanded[first[several]].float()
            for rows, slots in others:
                total[torch.searchsorted(several, rows)] += expanded[slots].float()
            folded[several] = total.to(dtype)
        return folded

    def fold_selections(self, expanded: torch.Tensor) -> torch.Tensor:
        """[N, K] of one of each expanded row; 0 where the expert is another rank's."""
        if expanded.shape[0] == 0:
            return torch.zeros(self.slots.shape, dtype=expanded.dtype)
        return torch.where(self.slots >= 0, expanded[self.slots.clamp(min=0)], 0)


def _runs_of(counts: Sequence[int], alignment: int) -> list[tuple[int, int, int]]:
    if alignment == 1:
        return [(0, sum(counts), 0)]
    runs, begin, first = [], 0, 0
    for count in counts:
        runs.append((begin, count, first))
        begin, first = begin + count, first + align(count, alignment)
    return runs
