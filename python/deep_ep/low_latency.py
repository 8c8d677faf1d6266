# SPDX-License-Identifier: BSD-3-Clause
"""The low-latency calls: a row per (token, expert), packed for each local expert; sending and receiving apart.

A hook or an event ends what a call began. The tensors that dispatch returns are views of where rows will be, known
before they are there: where a slot is never changes, and is learned from one empty dispatch of each slot when a
buffer is made.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Optional, Union

import numpy as np
import torch

import xep

from ._check import WrongUse, WrongValue
from .arguments import Rows
from .ending import Ending
from .low_latency_memory import DeviceMemory, HostMemory
from .ordering import DeviceOrdering, HostOrdering
from .pace import Agreement

GROUP = 128  # channels that share a scale
HINTED_TOPK = 16  # a hint does not say how many selections tokens have; they take little memory
OnFailure = Literal["fail", "mask"]
Memory = Union[HostMemory, DeviceMemory]


class Shape(NamedTuple):
    """What every rank passes alike; one buffer for each."""

    tokens: int  # at most, of a rank
    hidden: int
    experts: int
    topk: int


class Offsets(NamedTuple):
    """Offsets in the shared memory, of one slot; addresses, where that is on a device."""

    x: int
    scales: int
    src_token: int


class Casting(NamedTuple):
    """How rows are sent, and what scales they have: words of dtype, or none."""

    quant: xep.Quant
    words: int
    dtype: torch.dtype

    @staticmethod
    @functools.lru_cache
    def of(hidden: int, use_fp8: bool, round_scale: bool, use_ue8m0: bool) -> "Casting":
        if not use_fp8:
            return Casting(xep.Quant.NONE, 0, torch.float32)
        if use_ue8m0 and not round_scale:
            raise WrongValue("round_scale: expected True with use_ue8m0, whose scales are powers of two")
        if use_ue8m0:
            if hidden % (4 * GROUP):
                raise WrongValue(f"x: expected a multiple of {4 * GROUP} channels with use_ue8m0, got {hidden}")
            return Casting(xep.Quant.UE8M0, hidden // (4 * GROUP), torch.int32)
        return Casting(xep.Quant.E4M3_POW2 if round_scale else xep.Quant.E4M3, hidden // GROUP, torch.float32)


class LowLatencyHandle:
    """(src_info, layout_range, num_max_dispatch_tokens_per_rank, hidden, num_experts), as DeepEP's tuple.

    src_info [L, R * Tmax] int32: token of each received row on its source rank. layout_range [L, R] int64: of an
    expert's rows those of a source: how many in the low 32 bits, first in the high ones; sources ascending. Both are
    made when they are looked at, and filled when the dispatch has ended.
    """

    xep: Any  # None without a slot
    dispatched: Optional[Ending] = None  # where that is left to a hook or an event
    combined: Optional[Ending] = None  # likewise, the last time
    was_combined = False
    _src_info: Optional[torch.Tensor] = None
    _layout_range: Optional[torch.Tensor] = None

    def __init__(self, handle: xep.Handle, made: "_Made", shape: tuple, topk_idx: torch.Tensor, viewed: bool) -> None:
        self.owner, self.xep = handle.buffer.group, handle
        self._shape, self.num_tokens = shape, handle.tokens
        self.on, self.rows = topk_idx.device, made.rows
        self.routing = made.memory.routing(topk_idx)
        self._made, self._viewed, self.memory = made, viewed, made.memory

    @property
    def shape(self) -> "Shape":
        return Shape(*self._shape)

    def __len__(self) -> int:
        return 5

    def item(self, index: int) -> Any:
        if index > 1:
            return (self.shape.tokens, self.shape.hidden, self.shape.experts)[index - 2]
        return self._look_at_layout_range() if index else self._look_at_src_info()

    def _rows_here(self) -> bool:
        return self.dispatched is None or self.dispatched.request is None

    def _look_at_src_info(self) -> torch.Tensor:
        if self._src_info is None:
            there = _src_info(self.xep, self._made, self.shape)
            self._src_info = there if self._viewed else torch.empty_like(there)
            if not self._viewed and self._rows_here():
                self._src_info.copy_(there)
        return self._src_info

    def _look_at_layout_range(self) -> torch.Tensor:
        if self._layout_range is None:
            shape = (self._made.local, self._made.buffer.group.nranks)
            self._layout_range = torch.zeros(shape, dtype=torch.int64, device=self.on)
            if self._rows_here():
                self._fill_layout_range(self._layout_range)
        return self._layout_range

    def _fill_layout_range(self, to: torch.Tensor) -> None:
        received = self.xep.recv
        each = received.capacity // self._made.local
        begin = torch.arange(self._made.local, device=self.on).unsqueeze(1) * each
        to.copy_((received.pair_begin.to(torch.int64) - begin) << 32 | received.pair_count.to(torch.int64))

    def fill(self) -> None:
        """What the program has looked at before the dispatch ended."""
        if self._layout_range is not None:
            self._fill_layout_range(self._layout_range)
        if self._src_info is not None and not self._viewed:
            self._src_info.copy_(_src_info(self.xep, self._made, self.shape))

    def ended(self) -> bool:
        """Whether the program has ended all that it began with this handle, or left it to events, which are waited
        for."""
        for ending in (self.dispatched, self.combined):
            if ending is not None and ending.request is not None:
                if ending.hooked:
                    return False
                ending.wait()
        return True

    def ready(self) -> xep.Handle:
        """To combine by."""
        if self.xep is None:
            raise WrongValue(
                "handle: its slot was given to a later dispatch; num_slots says how many of them there are"
            )
        if not self.ended():
            raise WrongUse("handle: hook() of its dispatch, or of the combine before, was not called yet")
        return self.xep

    def keep(self) -> None:
        """What it is made of, without the slot."""
        if self.xep is not None and self._rows_here():
            self._look_at_layout_range()
            self._src_info = self._look_at_src_info().clone()

    def retire(self) -> None:
        """Gives the slot back, where no received tensor is looked at."""
        self.keep()
        self.xep.release()
        self.xep = None


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
        handle, self._handle = self._handle, None  # which has this
        assert handle is not None
        handle.fill()
        self._counts.copy_(handle.memory.counts(handle.xep))
        for to, source in self._copies:
            handle.memory.copy_rows(to, source, self._counts)
        self._copies = ()


class _Made(NamedTuple):
    buffer: xep.Buffer
    memory: Memory
    offsets: dict[int, Offsets]  # by slot
    local: int  # experts
    rows: tuple[int, int, int]  # of what is received: [L, R * Tmax, H]
    begun: list[Ending]  # dispatches that may be in flight; the oldest first, as below
    handles: list["weakref.ref[LowLatencyHandle]"]

    def make_way(self) -> None:
        """For one more dispatch: a mode has as many in flight as slots; and an older handle gives up its slot where
        none is free."""
        self.begun[:] = [ending for ending in self.begun if ending.request is not None]
        self.handles[:] = [ref for ref in self.handles if ref() is not None]
        if len(self.begun) >= self.buffer.slots:
            if self.begun[0].hooked:
                raise WrongUse(
                    f"low_latency_dispatch: hook() of {len(self.begun)} dispatches was not called yet, as many as "
                    "there are slots"
                )
            self.begun.pop(0).wait()
        for newer, ref in zip(reversed(range(len(self.handles))), list(self.handles)):
            if self.buffer.slots_held() < self.buffer.slots:
                break
            handle = ref()
            if handle is not None and handle.ended() and (newer or handle.was_combined):
                handle.retire()
                self.handles.remove(ref)


class LowLatency:
    """Buffers of mode ll, one for each shape; collective to use."""

    def __init__(
        self,
        group: xep.Group,
        agreement: Agreement,
        slots: int,
        timeout: Optional[float],
        on_failure: OnFailure,
        memory: Memory = HostMemory(),
        free_slots: Callable[[], None] = lambda: None,
    ) -> None:
        self._group, self._slots, self._timeout, self._on_failure = group, slots, timeout, on_failure
        self._agreement, self._memory, self._free_slots = agreement, memory, free_slots
        self._made: dict[Shape, _Made] = {}
        self.made_for: dict[tuple, _Made] = {}  # each shape that was dispatched
        self.last: Optional[xep.Buffer] = None  # of the last dispatch
        self.threads = 0

    def buffers(self) -> list[xep.Buffer]:
        return [made.buffer for made in self._made.values()]

    def forget(self) -> None:
        """What was begun is of no more interest; handles keep what they are made of."""
        for made in self._made.values():
            made.begun.clear()
            for ref in made.handles:
                handle = ref()
                if handle is not None:
                    handle.keep()

    def reset(self) -> None:
        self.forget()
        for buffer in self.buffers():
            buffer.reset()

    def make(self, shape: Shape) -> _Made:
        """Collective."""
        self._agreement.meet("low_latency_dispatch")
        buffer = self._group.buffer(
            shape.experts,
            shape.topk,
            shape.hidden,
            shape.tokens,
            mode="ll",
            slots=self._slots,
            threads=self.threads,
            timeout=self._timeout,
            on_failure=self._on_failure,
            memory=self._memory.name,
        )
        offsets = _learn(buffer, self._memory)
        rows = (buffer.local_experts, self._group.nranks * shape.tokens, shape.hidden)
        made = self._made[shape] = _Made(buffer, self._memory, offsets, buffer.local_experts, rows, [], [])
        return made

    def meet(self) -> None:
        """With the ranks that call this, and no other call. Collective."""
        made = next(iter(self._made.values()), None)
        if made is None:  # nor is there a buffer that goes on without a rank
            self._group.barrier()
            return
        made.make_way()
        with made.buffer.dispatch(*_nothing(made.buffer, self._memory)):
            pass

    def _of(self, shape: Shape) -> _Made:
        made = self.made_for.get(shape)
        if made is None and shape.topk <= HINTED_TOPK:
            made = self._made.get(shape._replace(topk=min(shape.experts, HINTED_TOPK)))
        made = self.made_for[shape] = made or self._made.get(shape) or self.make(shape)
        return made

    def dispatch_common(
        self, x: torch.Tensor, topk_idx: torch.Tensor, made: _Made, shape: tuple, casting: Casting
    ) -> tuple[Rows, torch.Tensor, LowLatencyHandle]:
        """One that is waited for, of host memory, with views of its slot, and nothing else. (rows, counts, handle)"""
        buffer, handles = made.buffer, made.handles
        self.last = buffer
        if made.begun or len(handles) > 2 * buffer.slots or buffer.slots_held() >= buffer.slots:
            made.make_way()
        if casting.quant == xep.Quant.NONE:
            sent = buffer.dispatch(x, topk_idx, arrangement=xep.Rows.BY_EXPERT_PADDED)
        else:
            options: Any = dict(arrangement=xep.Rows.BY_EXPERT_PADDED, quant=casting.quant, scales_by_column=True)
            sent = buffer.dispatch(x, topk_idx, **options)
        received = sent.recv
        rows, scales = received.x, received.scales if casting.words else None
        counts = torch.from_numpy(sent.numpy().expert_count.astype(np.int32))
        viewed = buffer.slots_viewed() <= buffer.slots - 2 if buffer.slots > 1 else may_view(buffer)
        if not viewed:
            copies = [torch.empty_like(one) for one in (rows, scales) if one is not None]
            for to, source in zip(copies, (rows, scales)):
                made.memory.copy_rows(to, source, counts)
            rows, scales = copies[0], copies[1] if scales is not None else None
        found = LowLatencyHandle(sent, made, shape, topk_idx, viewed)
        handles.append(weakref.ref(found))
        return rows if scales is None else (rows, scales), counts, found

    def dispatch(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        shape: Shape,
        casting: Casting,
        expert_stats: Optional[torch.Tensor],
        cost_stats: Optional[torch.Tensor],
        ordering: Union[HostOrdering, DeviceOrdering],
    ) -> tuple[torch.Tensor, Optional[torch.Tensor], torch.Tensor, LowLatencyHandle, Optional[Ending]]:
        """(rows [L, R * Tmax, H], scales or None, counts [L], handle, ending unless waited for)"""
        made = self._of(shape)
        self.last = made.buffer
        made.make_way()
        self._free_slots()
        options: dict[str, Any] = dict(arrangement=xep.Rows.BY_EXPERT_PADDED)
        if casting.quant != xep.Quant.NONE:
            options.update(quant=casting.quant, scales_by_column=True)
        if expert_stats is not None:
            options["expert_stats"] = expert_stats
        if cost_stats is not None:
            options["wait_ns"] = cost_stats
        request: Optional[xep.Request] = None
        if ordering.wait:
            handle = made.buffer.dispatch(x, topk_idx, **options)
            rows, scales = handle.recv.x, handle.recv.scales
            counts = self._memory.counts(handle)
        else:
            request = made.buffer.dispatch_async(x, topk_idx, **options)
            handle = request.result
            rows, scales = _rows(handle, made, shape, casting)
            counts = torch.zeros(made.local, dtype=torch.int32, device=self._memory.on)
        ordering.receives(handle)
        copies = []
        viewed = may_view(made.buffer)
        if not viewed:
            copies = [(torch.empty_like(one), one) for one in (rows, scales) if one is not None]
            rows, scales = copies[0][0], copies[1][0] if scales is not None else None
        found = LowLatencyHandle(handle, made, shape, topk_idx, viewed)
        made.handles.append(weakref.ref(found))
        if request is not None:
            found.dispatched = DispatchEnding(request, found, counts, copies)
            found.dispatched.stream = ordering.stream
            made.begun.append(found.dispatched)
        else:
            for to, source in copies:
                self._memory.copy_rows(to, source, counts)
        return rows, scales, counts, found, found.dispatched


def _nothing(buffer: xep.Buffer, memory: Memory) -> tuple[torch.Tensor, torch.Tensor]:
    """No rows, and where they go."""
    x = torch.empty((0, buffer.hidden), dtype=torch.bfloat16, device=memory.on)
    return x, torch.empty((0, buffer.topk), dtype=torch.int64, device=memory.on)


def _learn(buffer: xep.Buffer, memory: Memory) -> dict[int, Offsets]:
    """Where each slot has its rows. Collective."""
    nothing = _nothing(buffer, memory)
    origin = memory.origin(buffer)
    handles = [
        buffer.dispatch(*nothing, arrangement=xep.Rows.BY_EXPERT_PADDED, quant=xep.Quant.E4M3)
        for _ in range(buffer.slots)
    ]
    offsets = {}
    for handle in handles:
        recv = handle.recv
        offsets[handle.slot] = Offsets(*(view.data_ptr() - origin for view in (recv.x, recv.scales, recv.src_token)))
        del recv
        handle.release()
    return offsets


def _rows(
    handle: xep.Handle, made: _Made, shape: Shape, casting: Casting
) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
    """Where rows and scales will be."""
    offsets, rows = made.offsets[handle.slot], handle.nranks * shape.tokens
    cast = casting.quant != xep.Quant.NONE
    dtype = torch.float8_e4m3fn if cast else torch.bfloat16
    width = shape.hidden * dtype.itemsize
    strides = (rows * width, width, dtype.itemsize)
    x = made.memory.view(handle, offsets.x, (made.local, rows, shape.hidden), strides, dtype)
    if not cast:
        return x, None
    strides = (casting.words * rows * 4, 4, rows * 4)
    return x, made.memory.view(handle, offsets.scales, (made.local, rows, casting.words), strides, casting.dtype)


def _src_info(handle: xep.Handle, made: _Made, shape: Shape) -> torch.Tensor:
    rows = handle.nranks * shape.tokens
    offset = made.offsets[handle.slot].src_token
    return made.memory.view(handle, offset, (made.local, rows), (rows * 4, 4), torch.int32)


def may_view(buffer: xep.Buffer) -> bool:
    """Whether what the dispatch just begun receives may be given as views of its slot. A tensor that is kept keeps the
    slot for good; two slots are left to handles alone, of which the newest keeps one and the other is passed on."""
    if buffer.slots == 1:
        return buffer.arrays_alive() == 0
    return buffer.slots_viewed() <= buffer.slots - 2
