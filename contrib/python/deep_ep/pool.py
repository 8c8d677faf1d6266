# SPDX-License-Identifier: BSD-3-Clause
"""Buffers of mode normal for shapes that are not known before they are dispatched.

DeepEP is given bytes, xep a shape; a rank's tokens and received rows are known to no other rank beforehand. So a buffer is made
by agreement at the first dispatch, and replaced by a larger one when a rank has more than fits: the library
tells every rank so (CapacityError), having moved nothing. A rank whose own tokens do not fit says so by a
dispatch that cannot be received: two tokens to itself, with room for one.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, Optional

import torch
import xep

_WIDEST = {1: (2, torch.bfloat16), 2: (2, torch.bfloat16), 4: (4, torch.float32), 8: (8, torch.float64)}
_MARGIN = 5 / 4  # more room than was needed, so that growing ends soon


class Job(NamedTuple):
    """One dispatch: T tokens, K top-k, S scales. worst: rows of the received arrays, or 0."""

    experts: int
    x: torch.Tensor
    topk_idx: torch.Tensor
    topk_weights: Optional[torch.Tensor]
    scales: Optional[torch.Tensor]
    alignment: int
    worst: int
    after: Optional[xep.Request]

    @property
    def nscales(self) -> int:
        return 0 if self.scales is None else self.scales.shape[1]


class Room(NamedTuple):
    """What a buffer has room for. All of it is the same on every rank."""

    elem_bytes: int
    hidden: int
    topk: int
    scales: int
    tokens: int
    recv_rows: int

    def holds_rows_of(self, job: Job) -> bool:
        """By what every rank knows of the others."""
        row = job.x.shape[1] * job.x.element_size()
        return row <= self.elem_bytes * self.hidden and job.topk_idx.shape[1] <= self.topk and job.nscales <= self.scales


class NormalPool:
    """For each number of experts the buffer in use; and those that were replaced while handles of them were alive."""

    def __init__(self, group: xep.Group, slots: int, timeout: Optional[float]) -> None:
        self._group, self._slots, self._timeout = group, slots, timeout
        self._used: dict[int, tuple[xep.Buffer, Room]] = {}
        self._replaced: list[xep.Buffer] = []
        self.threads = 0

    def buffers(self) -> list[xep.Buffer]:
        return [buffer for buffer, _ in self._used.values()] + self._replaced

    def dispatch(self, job: Job) -> xep.Request[xep.Handle]:
        """Begun, and its rows counted. Collective; blocks until every rank has told how many rows it sends."""
        used = self._used.get(job.experts)
        if used is None or not used[1].holds_rows_of(job):
            used = self._replace(job)
        while True:
            buffer, room = used
            try:
                if job.x.shape[0] > room.tokens or job.worst > room.recv_rows:
                    self._call_for_room(buffer, job)
                return self._send(buffer, job)
            except xep.CapacityError:
                used = self._replace(job)

    def _send(self, buffer: xep.Buffer, job: Job) -> xep.Request[xep.Handle]:
        request: xep.Request[xep.Handle] = buffer.dispatch_async(
            job.x,
            job.topk_idx,
            job.topk_weights,
            scales=job.scales,
            capacity=job.worst,
            expert_alignment=job.alignment,
            after=job.after,
        )
        request.wait_counts()
        return request

    def _call_for_room(self, buffer: xep.Buffer, job: Job) -> None:
        """Always CapacityError, here and on every rank that dispatches meanwhile."""
        first = xep.expert_range(job.experts, self._group.nranks, self._group.rank)[0]
        topk_idx = torch.full((2, job.topk_idx.shape[1]), -1, dtype=job.topk_idx.dtype)
        topk_idx[:, 0] = first
        weights = None if job.topk_weights is None else torch.zeros(topk_idx.shape)
        scales = None if job.scales is None else torch.zeros((2, job.nscales), dtype=job.scales.dtype)
        x = torch.zeros((2, job.x.shape[1]), dtype=job.x.dtype)
        handle = buffer.dispatch(x, topk_idx, weights, scales=scales, capacity=1, after=job.after)
        handle.release()
        raise AssertionError("two rows were received where one has room")

    # ---- agreement ----

    def _replace(self, job: Job) -> tuple[xep.Buffer, Room]:
        """A buffer in which this dispatch fits on every rank. Collective: every rank comes here at the same dispatch."""
        old = self._used.get(job.experts)
        room = self._agree(job, old[1] if old else None)
        if job.experts in self._used:  # it was not closed: a handle of it is alive somewhere
            self._replaced.append(self._used.pop(job.experts)[0])
        widest = _WIDEST[room.elem_bytes][1]
        buffer = self._group.buffer(
            job.experts,
            room.topk,
            room.hidden,
            room.tokens,
            mode="normal",
            dtype=widest,
            combine_dtype=torch.bfloat16 if room.elem_bytes == 2 else torch.float32,
            scales=room.scales,
            recv_rows=room.recv_rows,
            slots=self._slots,
            threads=self.threads,
            timeout=self._timeout,
        )
        self._used[job.experts] = (buffer, room)
        return buffer, room

    def _agree(self, job: Job, old: Optional[Room]) -> Room:
        nranks = self._group.nranks
        buffers = self.buffers()
        to_ranks = xep.layout(job.topk_idx, job.experts, nranks).tokens_per_rank.tolist()
        busy = [int(buffer.slots_held() > 0) for buffer in buffers]
        mine = struct.pack(f"<{2 + nranks + len(busy)}q", job.x.shape[0], job.worst, *to_ranks, *busy)
        all_ranks = [struct.unpack(f"<{len(mine) // 8}q", part) for part in self._group.allgather(mine)]
        rows = [sum(words[2 + rank] for words in all_ranks) for rank in range(nranks)]
        for rank, words in enumerate(all_ranks):
            if 0 < words[1] < rows[rank]:
                raise xep.CapacityError(
                    xep.Status.ERR_OVERFLOW,
                    f"num_worst_tokens: rank {rank} gets {rows[rank]} rows and has room for {words[1]}",
                )
        self._close_idle([buffer for i, buffer in enumerate(buffers) if not any(words[2 + nranks + i] for words in all_ranks)])
        return self._room(job, old, max(words[0] for words in all_ranks), max(rows), max(words[1] for words in all_ranks))

    def _close_idle(self, buffers: list[xep.Buffer]) -> None:
        """Those of which no rank has a handle or an array: the same on every rank, in the same order."""
        for buffer in buffers:
            self._used = {experts: used for experts, used in self._used.items() if used[0] is not buffer}
            self._replaced = [other for other in self._replaced if other is not buffer]
            buffer.close()

    def _room(self, job: Job, old: Optional[Room], tokens: int, rows: int, worst: int) -> Room:
        elem, hidden = _WIDEST[job.x.element_size()][0], job.x.shape[1]
        nranks = self._group.nranks
        topk = min(job.experts, max(job.topk_idx.shape[1], nranks))
        fresh = Room(elem, hidden, topk, job.nscales, max(2, int(tokens * _MARGIN)), 0)
        if old is not None:
            elem = max(old.elem_bytes, elem)
            hidden = max(-(-old.elem_bytes * old.hidden // elem), -(-fresh.elem_bytes * hidden // elem))
            fresh = Room(elem, hidden, max(old.topk, topk), max(old.scales, job.nscales), max(old.tokens, fresh.tokens), 0)
        rows = max(2, int(rows * _MARGIN), worst, old.recv_rows if old else 0)
        return fresh._replace(recv_rows=max(worst, min(rows, nranks * fresh.tokens)))


def may_view(buffer: xep.Buffer) -> bool:
    """Whether received tensors may be views of the slot. A tensor that outlives its handle keeps its slot, and in a loop
    the next one is about to do so; two more are for the handles of this turn and the last."""
    return buffer.arrays_alive() <= max(buffer.slots - 4, 0)


def exchange_counts(buffer: xep.Buffer, counts: torch.Tensor) -> torch.Tensor:
    """[R, E] int32: what every rank gives. A dispatch of one token, to every rank. Collective, blocking."""
    nranks = buffer.group.nranks
    everyone = torch.arange(nranks, dtype=torch.int64).unsqueeze(0)
    with buffer.dispatch(counts.to(torch.int32).reshape(1, -1), everyone) as handle:
        return handle.recv.x.clone()


def counts_buffer(group: xep.Group, experts: int) -> xep.Buffer:
    """For exchange_counts. Collective, blocking."""
    return group.buffer(group.nranks, group.nranks, experts, 1, mode="normal", dtype=torch.int32, slots=1)
