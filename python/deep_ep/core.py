# SPDX-License-Identifier: BSD-3-Clause
"""What the calls of both modes share."""

from __future__ import annotations

import os

import torch

import xep

from .event import EventHandle, EventOverlap
from .low_latency import LowLatency
from .pool import NormalPool

INDEX = (torch.int64, torch.int32)
FLOAT = (torch.float32,)


class Core:
    """The part of a Buffer that its calls need; Buffer fills it in."""

    num_sms: int = 20
    _threads: int = 0
    _destroyed: bool
    _xep: xep.Group
    _pool: NormalPool
    _low_latency: LowLatency
    _counts: dict[int, xep.Buffer]
    _last_layout: tuple
    rank: int
    group_size: int
    low_latency_mode: bool

    def _usable(self) -> None:
        if self._destroyed:
            raise RuntimeError("the Buffer was destroyed")

    def _threads_here(self) -> int:
        """Of a rank: 0 leaves it to XEP_THREADS."""
        if self._threads == 0:
            return 0
        share = len(os.sched_getaffinity(0)) * self._xep.nnodes // self.group_size
        return max(1, min(self._threads, share))

    def _check_experts(self, num_experts: int) -> None:
        if not isinstance(num_experts, int) or num_experts <= 0 or num_experts % self.group_size:
            raise ValueError(f"num_experts: expected a multiple of the {self.group_size} ranks, got {num_experts!r}")


def done(async_finish: bool) -> EventOverlap:
    return EventOverlap(EventHandle()) if async_finish else EventOverlap()
