# SPDX-License-Identifier: BSD-3-Clause
"""The low-latency calls: a row per (token, expert), packed for each local expert; sending and receiving apart.

A hook or an event ends what a call began. The tensors that dispatch returns are views of where rows will be, known before
they are there: the place of a slot never changes, and is learned from one empty dispatch of each slot when a buffer is made.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import torch
import xep

GROUP = 128  # channels that share a scale


class Shape(NamedTuple):
    """What every rank passes alike; one buffer for each."""

    tokens: int  # at most, of a rank
    hidden: int
    experts: int
    topk: int


class Place(NamedTuple):
    """Addresses in one slot."""

    x: int
    scales: int
    src_token: int


class Casting(NamedTuple):
    """How rows are sent, and what scales they have: words of dtype, or none."""

    quant: xep.Quant
    words: int
    dtype: torch.dtype

    @staticmethod
    def of(hidden: int, use_fp8: bool, round_scale: bool, use_ue8m0: bool) -> "Casting":
        if not use_fp8:
            return Casting(xep.Quant.NONE, 0, torch.float32)
        if use_ue8m0 and not round_scale:
            raise ValueError("round_scale: expected True with use_ue8m0, whose scales are powers of two")
        if use_ue8m0:
            if hidden % (4 * GROUP):
                raise ValueError(f"x: expected a multiple of {4 * GROUP} channels with use_ue8m0, got {hidden}")
            return Casting(xep.Quant.UE8M0, hidden // (4 * GROUP), torch.int32)
        return Casting(xep.Quant.E4M3_POW2 if round_scale else xep.Quant.E4M3, hidden // GROUP, torch.float32)


class LowLatencyHandle(Sequence):
    """(src_info, layout_range, num_max_dispatch_tokens_per_rank, hidden, num_experts), as DeepEP's tuple.

    src_info [L, R * Tmax] int32: token of each received row on its source rank. layout_range [L, R] int64: of an expert's
    rows those of a source: how many in the low 32 bits, first in the high ones; sources ascending. Both are filled when
    the dispatch has ended.
    """

    def __init__(self, handle: xep.Handle, shape: Shape, topk_idx: torch.Tensor, src_info: torch.Tensor, local: int) -> None:
        self.owner = handle._buffer.group
        self.xep: Any = handle  # None without a slot
        self.num_tokens = handle.tokens
        self.dispatched: Optional[Ending] = None
        self.combined: Optional[Ending] = None  # the last time
        self.shape = shape
        self.topk_idx = topk_idx
        layout_range = torch.zeros((local, handle.nranks), dtype=torch.int64)
        self._items = (src_info, layout_range, shape.tokens, shape.hidden, shape.experts)

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: Any) -> Any:
        return self._items[index]

    def ended(self) -> bool:
        """Whether the program has ended all that it began with this handle, or left it to events, which are waited for."""
        for ending in (self.dispatched, self.combined):
            if ending is not None and ending.request is not None:
                if ending.hooked:
                    return False
                ending.wait()
        return True

    def ready(self) -> xep.Handle:
        """To combine by."""
        if self.xep is None:
            raise ValueError("handle: its slot was given to a later dispatch; num_slots says how many of them there are")
        if not self.ended():
            raise RuntimeError("handle: hook() of its dispatch, or of the combine before, was not called yet")
        return self.xep

    def retire(self) -> None:
        """Gives the slot back, where no received tensor is looked at."""
        self._items = (self._items[0].clone(), *self._items[1:])
        self.xep.release()
        self.xep = None


class Ending:
    """What is left to do when an operation has ended, done once: by a hook, an event, or the call itself."""

    hooked = False  # by a hook

    def __init__(self, request: xep.Request) -> None:
        self.request: Optional[xep.Request] = request

    def wait(self) -> None:
        if self.request is None:
            return
        self.request.wait()
        self.request = None
        self.fill()

    def fill(self) -> None:
        """Results that are not where the library put them."""


class DispatchEnding(Ending):
    """Counts; and, where a held tensor would keep the last slot, copies of the rows."""

    def __init__(
        self,
        request: xep.Request,
        handle: LowLatencyHandle,
        counts: torch.Tensor,
        copies: Sequence[tuple[torch.Tensor, torch.Tensor]],
    ) -> None:
        super().__init__(request)
        self._handle: Optional[LowLatencyHandle] = handle
        self._counts, self._copies = counts, copies

    def fill(self) -> None:
        assert self._handle is not None
        received = self._handle.xep.torch()
        rows = received.capacity // received.local_experts
        begin = torch.arange(received.local_experts).unsqueeze(1) * rows
        pair_begin: Any = received.pair_begin
        pair_count: Any = received.pair_count
        self._handle[1].copy_((pair_begin.to(torch.int64) - begin) << 32 | pair_count.to(torch.int64))
        self._counts.copy_(received.expert_count)
        for to, source in self._copies:
            for expert, count in enumerate(self._counts.tolist()):
                to[expert, :count] = source[expert, :count]
        self._copies = ()
        self._handle = None  # which has this


class _Made(NamedTuple):
    buffer: xep.Buffer
    places: dict[int, Place]  # by slot
    begun: list[Ending]  # dispatches that may be in flight; the oldest first, as below
    handles: list["weakref.ref[LowLatencyHandle]"]

    def make_way(self) -> None:
        """For one more dispatch: a mode has as many in flight as slots; and an older handle gives up its slot where none is free."""
        self.begun[:] = [ending for ending in self.begun if ending.request is not None]
        self.handles[:] = [ref for ref in self.handles if ref() is not None]
        if len(self.begun) >= self.buffer.slots:
            if self.begun[0].hooked:
                raise RuntimeError(f"low_latency_dispatch: hook() of {len(self.begun)} dispatches was not called yet, as many as there are slots")
            self.begun.pop(0).wait()
        for newer, ref in zip(reversed(range(len(self.handles))), list(self.handles)):
            if self.buffer.slots_held() < self.buffer.slots:
                break
            handle = ref()
            if handle is not None and handle.ended() and (newer or handle.combined is not None):
                handle.retire()
                self.handles.remove(ref)


class LowLatency:
    """Buffers of mode ll, one for each shape; collective to use."""

    def __init__(self, group: xep.Group, slots: int, timeout: Optional[float]) -> None:
        self._group, self._slots, self._timeout = group, slots, timeout
        self._made: dict[Shape, _Made] = {}
        self.threads = 0

    def buffers(self) -> list[xep.Buffer]:
        return [made.buffer for made in self._made.values()]

    def forget(self) -> None:
        """What was begun is of no more interest here."""
        for made in self._made.values():
            made.begun.clear()

    def reset(self) -> None:
        self.forget()
        for buffer in self.buffers():
            buffer.reset()

    def _of(self, shape: Shape) -> _Made:
        if shape not in self._made:
            buffer = self._group.buffer(
                shape.experts,
                shape.topk,
                shape.hidden,
                shape.tokens,
                mode="ll",
                slots=self._slots,
                threads=self.threads,
                timeout=self._timeout,
            )
            self._made[shape] = _Made(buffer, _learn(buffer, shape), [], [])
        return self._made[shape]

    def dispatch(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        shape: Shape,
        casting: Casting,
        expert_stats: Optional[torch.Tensor],
        cost_stats: Optional[torch.Tensor],
    ) -> tuple[torch.Tensor, Optional[torch.Tensor], torch.Tensor, LowLatencyHandle, Ending]:
        """(rows [L, R * Tmax, H], scales or None, counts [L], handle, ending)"""
        made = self._of(shape)
        made.make_way()
        buffer = made.buffer
        request = buffer.dispatch_async(
            x,
            topk_idx,
            arrangement=xep.Rows.BY_EXPERT_PADDED,
            quant=casting.quant,
            scales_by_column=True,
            expert_stats=expert_stats,
            wait_ns=cost_stats,
        )
        handle: xep.Handle = request.result
        view = may_view(buffer)
        rows, scales, src_info = _views(handle, made.places, shape, casting)
        copies = []
        if not view:
            originals, (rows, scales) = (rows, scales), (torch.empty_like(rows), None if scales is None else torch.empty_like(scales))
            src_copy = torch.empty_like(src_info)
            copies = [(rows, originals[0]), (src_copy, src_info)] + ([] if scales is None else [(scales, originals[1])])
            src_info = src_copy
        local = buffer.local_experts
        found = LowLatencyHandle(handle, shape, topk_idx.clone(), src_info, local)
        counts = torch.zeros(local, dtype=torch.int32)
        found.dispatched = ending = DispatchEnding(request, found, counts, copies)
        made.begun.append(ending)
        made.handles.append(weakref.ref(found))
        return rows, scales, counts, found, ending


def combine(
    handle: LowLatencyHandle,
    x: Optional[torch.Tensor],
    topk_idx: torch.Tensor,
    topk_weights: torch.Tensor,
    out: Optional[torch.Tensor],
    logfmt: bool,
    cost_stats: Optional[torch.Tensor],
) -> tuple[torch.Tensor, Ending]:
    """x None: what was written to combine_input. Collective."""
    back, weights = handle.ready(), _weights(handle, topk_idx, topk_weights)
    request = back.combine_async(x, weights=weights, out=out, logfmt=logfmt, wait_ns=cost_stats)
    handle.combined = Ending(request)
    return request.result, handle.combined


def _weights(handle: LowLatencyHandle, topk_idx: torch.Tensor, topk_weights: torch.Tensor) -> torch.Tensor:
    """Routing is the dispatch's: what combine may do to it is to leave selections out."""
    if torch.equal(topk_idx, handle.topk_idx):
        return topk_weights
    changed = (topk_idx != handle.topk_idx) & (topk_idx >= 0)
    if bool(changed.any()):
        token, k = changed.nonzero()[0].tolist()
        raise ValueError(
            f"topk_idx: expected what was dispatched (or -1), got expert {int(topk_idx[token, k])} for selection {k} of "
            f"token {token}, which was {int(handle.topk_idx[token, k])}"
        )
    return topk_weights.masked_fill(topk_idx < 0, 0.0)


def _learn(buffer: xep.Buffer, shape: Shape) -> dict[int, Place]:
    """Where each slot has its rows. Collective."""
    nothing = torch.empty((0, shape.hidden), dtype=torch.bfloat16), torch.empty((0, shape.topk), dtype=torch.int64)
    handles = [
        buffer.dispatch(*nothing, arrangement=xep.Rows.BY_EXPERT_PADDED, quant=xep.Quant.E4M3) for _ in range(buffer.slots)
    ]
    places = {}
    for handle in handles:
        recv = handle._counted()
        places[handle.slot] = Place(recv.x, recv.scales, recv.src_token)
        handle.release()
    return places


def _views(
    handle: xep.Handle, places: dict[int, Place], shape: Shape, casting: Casting
) -> tuple[torch.Tensor, Optional[torch.Tensor], torch.Tensor]:
    place = places[handle.slot]
    local, rows = handle._buffer.local_experts, handle.nranks * shape.tokens
    cast = casting.quant != xep.Quant.NONE
    dtype = torch.float8_e4m3fn if cast else torch.bfloat16
    width = shape.hidden * dtype.itemsize
    x = _at(handle, place.x, (local, rows, shape.hidden), (rows * width, width, dtype.itemsize), dtype)
    src_info = _at(handle, place.src_token, (local, rows), (rows * 4, 4), torch.int32)
    if not cast:
        return x, None, src_info
    strides = (casting.words * rows * 4, 4, rows * 4)
    return x, _at(handle, place.scales, (local, rows, casting.words), strides, casting.dtype), src_info


def _at(handle: xep.Handle, address: int, shape: tuple, strides: tuple, dtype: torch.dtype) -> torch.Tensor:
    memory, offset = handle._place(address)
    return xep.arrays.torch_arrays().view(memory, offset, shape, strides, dtype)


def may_view(buffer: xep.Buffer) -> bool:
    """Whether what the dispatch just begun receives may be given as views of its slot. A tensor that outlives its handle keeps the
    slot, and in a loop the next one is about to do so; two more are for the handles of this turn and the last. And of a program
    that keeps handles as well one slot is left, that handles can pass on."""
    return buffer.arrays_alive() <= max(buffer.slots - 4, 0) and buffer.slots_held() <= max(buffer.slots - 1, 1)
