# SPDX-License-Identifier: BSD-3-Clause
"""The low-latency calls: a row per (token, expert), packed for each local expert; sending and receiving apart.

A hook or an event ends what a call began. The tensors that dispatch returns are views of where rows will be, known
before they are there: where a slot is never changes, and is learned from one empty dispatch of each slot when a
buffer is made.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from typing import Any, Callable, NamedTuple, Optional, Sequence

import torch

import xep
from xep.dtypes import need_dtype

from . import arguments
from .arguments import HOST, Rows, WrongType, WrongUse, WrongValue, check, check_strided, counted
from .core import Core, Pool, Pools
from .handles import HandleTuple
from .streams import DeviceOrdering, DeviceQueue, Ending, Ordering, Slot
from .utils.event import EventOverlap

GROUP = 128  # channels that share a scale
HINTED_TOPK = 16  # a hint does not say how many selections tokens have; they take little memory
_ZEROS = 256  # vectors that are made at once


class Shape(NamedTuple):
    """What every rank passes alike; one buffer for each."""

    tokens: int  # at most, of a rank
    hidden: int
    experts: int
    topk: int


class Casting(NamedTuple):
    """How rows are sent, and what scales they have: words of dtype, or none. options: of xep.Buffer.dispatch()."""

    words: int
    dtype: torch.dtype
    options: dict[str, Any]

    @staticmethod
    @functools.lru_cache
    def of(hidden: int, use_fp8: bool, round_scale: bool, use_ue8m0: bool) -> "Casting":
        options: dict[str, Any] = dict(arrangement=xep.Rows.BY_EXPERT_PADDED)
        if not use_fp8:
            return Casting(0, torch.float32, options)
        options.update(quant=xep.Quant.E4M3_POW2 if round_scale else xep.Quant.E4M3, scales_by_column=True)
        if not use_ue8m0:
            return Casting(hidden // GROUP, torch.float32, options)
        if not round_scale:
            raise WrongValue("round_scale: expected True with use_ue8m0, whose scales are powers of two")
        if hidden % (4 * GROUP):
            raise WrongValue(f"x: expected a multiple of {4 * GROUP} channels with use_ue8m0, got {hidden}")
        return Casting(hidden // (4 * GROUP), torch.int32, dict(options, quant=xep.Quant.UE8M0))


class LowLatencyHandle:
    """(src_info, layout_range, num_max_dispatch_tokens_per_rank, hidden, num_experts), as DeepEP's tuple.

    src_info [L, R * Tmax] int32: token of each received row on its source rank. layout_range [L, R] int64: of an
    expert's rows those of a source: how many in the low 32 bits, first in the high ones; sources ascending. Both are
    made when one is looked at, and filled when the dispatch has ended.
    """

    xep: Any  # parked: without a slot
    dispatched: Optional[Ending] = None  # where that is left to a hook or an event
    combined: Optional[Ending] = None  # likewise, the last time

    def __init__(self, handle: xep.Handle, pool: "LowLatency", made: "_Made", topk_idx: torch.Tensor) -> None:
        self.owner, self.xep = handle.buffer.group, handle
        self.on, self.where, self.rows, self._shape = pool.on, pool.where, made.rows, made.shape
        self.num_tokens, self.topk = handle.tokens, handle.topk
        self._routed: Any = weakref.ref(topk_idx)
        self._version = -1 if topk_idx.is_inference() else topk_idx._version
        self._tensors: list[torch.Tensor] = []  # which the ending has, too, and nothing else of this

    def routed(self, topk_idx: Any) -> bool:
        """Whether this is the tensor that was dispatched, and nobody has changed it."""
        return self._routed() is topk_idx and -1 < self._version == topk_idx._version

    @functools.cached_property
    def items(self) -> tuple:
        self._tensors.append(torch.zeros(self.rows[:2], dtype=torch.int32, device=self.on))
        self._tensors.append(torch.zeros((self.rows[0], self.owner.nranks), dtype=torch.int64, device=self.on))
        if self.dispatched is None or self.dispatched.request is None:
            _fill(self._tensors, self.xep)
        return (*self._tensors, *self._shape[:3])

    def ready(self) -> xep.Handle:
        """To combine by. What was left to events is waited for."""
        if self.xep.parked is not None:
            raise WrongValue(
                "handle: its slot was given to a later dispatch; num_slots says how many of them there are"
            )
        for ending in (self.dispatched, self.combined):
            if ending is not None and ending.request is not None:
                if ending.hooked:
                    raise WrongUse("handle: hook() of its dispatch, or of the combine before, was not called yet")
                ending.wait()
        return self.xep


class _Made(NamedTuple):
    """The buffer for a shape. rows: [L, R * Tmax, H] of what is received. begins: addresses of rows and scales, by
    slot. zeros: by stream; [L] int32 each, to which a dispatch adds its rows. pending: endings that copy rows out of
    their slots, and those that are left to a hook on a device, the oldest first."""

    shape: Shape
    buffer: xep.Buffer
    rows: tuple[int, int, int]
    begins: dict[int, tuple[int, int]]
    zeros: dict[int, list[torch.Tensor]]
    pending: list[weakref.ref[Ending]]

    def make_way(self, queue: Optional[DeviceQueue]) -> None:
        """For one more dispatch. Parking a handle does not free a slot whose rows are still to be copied, nor does it
        order streams. An error is told by the hook or the event."""
        slots = self.buffer.slots
        self.pending[:] = [one for one in self.pending if getattr(one(), "request", None) is not None]
        while self.pending and (len(self.pending) >= slots or self.buffer.slots_viewed() >= slots):
            ending = self.pending.pop(0)()
            if ending is not None:
                with contextlib.suppress(xep.XepError):
                    ending.wait()
                if queue is not None and ending.stream is not None:
                    queue.order(queue.current(), ending.stream)


class LowLatency(Pool):
    """One buffer for each shape; collective to use."""

    kind = "ll"
    multiprocessors = 64  # they are held while a phase runs, and by none between the two

    def __init__(self, pools: Pools, queue: Optional[DeviceQueue]) -> None:
        super().__init__(pools, queue)
        self.made: dict[tuple, _Made] = {}  # for each shape that was dispatched

    def buffers(self) -> list[xep.Buffer]:
        return list(dict.fromkeys(made.buffer for made in self.made.values()))

    def make(self, shape: Shape) -> _Made:
        """Collective."""
        self._agreement.meet("low_latency_dispatch")
        tokens, hidden, experts, topk = shape
        buffer = self._make(experts, topk, hidden, tokens)
        rows = (buffer.local_experts, self._group.nranks * tokens, hidden)
        made = self.made[shape] = _Made(shape, buffer, rows, _learn(buffer, self.on), {}, [])
        buffer.park_when_full()
        return made

    def meet(self) -> None:
        """With the ranks that call this, and no other call. Collective."""
        made = next(iter(self.made.values()), None)
        if made is None:  # nor is there a buffer that goes on without a rank
            self._group.barrier()
            return
        made.make_way(self.queue)
        with made.buffer.dispatch(*_nothing(made.buffer, self.on)):
            pass

    def of(self, shape: Shape) -> _Made:
        """Of what was not dispatched yet. Collective, but where a hint has it."""
        made = None
        if shape.topk <= HINTED_TOPK:
            made = self.made.get(shape._replace(topk=min(shape.experts, HINTED_TOPK)))
        made = self.made[shape] = made or self.make(shape)
        return made

    def dispatch(
        self, x: torch.Tensor, topk_idx: torch.Tensor, made: _Made, casting: Casting, ordering: Ordering,
        stats: Optional[torch.Tensor], wait_ns: Optional[torch.Tensor],
    ) -> tuple[Rows, torch.Tensor, LowLatencyHandle]:  # fmt: skip
        """(rows, or rows and scales; counts [L]; handle); unless waited for, with an ending that fills them. stats: to
        which counts are added, or None."""
        buffer, self.last = made.buffer, made.buffer
        if made.pending:
            made.make_way(self.queue)
        if self.queue is not None:
            buffer._make_room(None)
            if self.queue.freed:
                self.queue.free_slots()
        counts, request = self._zeros_of(made), None
        options = dict(casting.options, expert_stats=counts, wait_ns=wait_ns)
        if ordering.wait:
            sent = buffer.dispatch(x, topk_idx, **options)
            received = sent.recv
            rows: Any = (received.x, received.scales) if casting.words else received.x
        else:
            request = buffer.dispatch_async(x, topk_idx, **options)
            sent = request.result
            rows = _rows(sent, made, casting)
        if self.queue is not None:
            Slot(self.queue, sent)  # which the queue keeps
        # A tensor that is kept keeps the slot for good; two slots, this one counted, are left to handles alone, of
        # which the newest keeps one and the other is passed on.
        viewed = buffer.slots_viewed() <= buffer.slots - 2 if buffer.slots > 1 else buffer.arrays_alive() == 0
        copies = []
        if not viewed:
            copies = [(torch.empty_like(one), one) for one in _listed(rows)]
            rows = tuple(to for to, _ in copies) if casting.words else copies[0][0]
        found = LowLatencyHandle(sent, self, made, topk_idx)
        if request is not None:
            end = functools.partial(_end, found._tensors, sent, counts, stats, copies)
            found.dispatched = Ending(request, end, ordering.stream)
            if copies or ordering.stream is not None:
                made.pending.append(weakref.ref(found.dispatched))
        elif copies or stats is not None:
            _end([], sent, counts, stats, copies)
        return rows, counts, found

    def _zeros_of(self, made: _Made) -> torch.Tensor:
        """Many are made at once, of memory of the current stream, if there is one."""
        stream = 0
        if self.on != HOST:
            stream = torch._C._cuda_getCurrentRawStream(self.on.index)
            if torch._C._cuda_isCurrentStreamCapturing():  # to be zeros whenever the graph is launched
                return torch.zeros(made.rows[0], dtype=torch.int32, device=self.on)
        left = made.zeros.get(stream)
        if not left:
            with torch.inference_mode(False):
                zeros = torch.zeros((_ZEROS, made.rows[0]), dtype=torch.int32, device=self.on)
                left = made.zeros[stream] = list(zeros.unbind())
        return left.pop()


def _end(
    tensors: list[torch.Tensor], handle: xep.Handle, counts: torch.Tensor, stats: Optional[torch.Tensor],
    copies: Sequence[tuple[torch.Tensor, torch.Tensor]],
) -> None:  # fmt: skip
    """When a dispatch has ended. tensors: see _fill(). stats: to which counts are added, or None. copies: (to, source)
    of the rows, where a held tensor would keep the last slot."""
    _fill(tensors, handle)
    if stats is not None:
        stats.add_(counts)
    for to, source in copies:
        if not to.is_cpu:  # all, as how many there are the host does not know
            to.copy_(source)
            continue
        for expert, count in enumerate(counts.tolist()):
            to[expert, :count] = source[expert, :count]


def _fill(tensors: list[torch.Tensor], handle: xep.Handle) -> None:
    """src_info and layout_range, where the program has looked at them, as soon as the dispatch has ended."""
    if tensors:
        (src_info, layout_range), received = tensors, handle.parked or handle.recv
        src_info.copy_(received.src_token.view(src_info.shape))
        begin = torch.arange(len(src_info), device=src_info.device).unsqueeze(1) * src_info.shape[1]
        layout_range.copy_((received.pair_begin.long() - begin) << 32 | received.pair_count.long())


def _listed(rows: Rows) -> tuple[torch.Tensor, ...]:
    return rows if isinstance(rows, tuple) else (rows,)


def _nothing(buffer: xep.Buffer, on: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """No rows, and where they go."""
    x = torch.empty((0, buffer.hidden), dtype=torch.bfloat16, device=on)
    return x, torch.empty((0, buffer.topk), dtype=torch.int64, device=on)


def _learn(buffer: xep.Buffer, on: torch.device) -> dict[int, tuple[int, int]]:
    """Where each slot has its rows, and its scales. Collective."""
    nothing, rows = _nothing(buffer, on), xep.Rows.BY_EXPERT_PADDED
    handles = [buffer.dispatch(*nothing, arrangement=rows, quant=xep.Quant.E4M3) for _ in range(buffer.slots)]
    begins = {handle.slot: (handle.recv.x.data_ptr(), handle.recv.scales.data_ptr()) for handle in handles}
    for handle in handles:
        handle.release()
    return begins


def _rows(handle: xep.Handle, made: _Made, casting: Casting) -> Rows:
    """Where rows and scales will be."""
    (x, scales), (local, rows, hidden) = made.begins[handle.slot], made.rows
    dtype = torch.float8_e4m3fn if casting.words else torch.bfloat16
    width = hidden * dtype.itemsize
    strides = (rows * width, width, dtype.itemsize)
    found = handle._view(x, made.rows, strides, need_dtype("", dtype))
    if not casting.words:
        return found
    strides = (casting.words * rows * 4, 4, rows * 4)
    return found, handle._view(scales, (local, rows, casting.words), strides, need_dtype("", casting.dtype))


# ---- calls ----


class LowLatencyCalls(Core):
    """low_latency_dispatch, low_latency_combine, and what belongs to them."""

    hinted: dict[int, tuple[int, int, int, int]] = {}  # by bytes, what a hint was asked for: tokens, hidden, ranks, E
    _low_latency: LowLatency
    low_latency_mode: bool
    enable_shrink: bool
    group_size: int

    def _make_hinted(self, num_rdma_bytes: int) -> None:
        """Collective where there is such a hint."""
        tokens, hidden, ranks, experts = self.hinted.get(num_rdma_bytes, (0, 0, 0, 0))
        if ranks == self.group_size and experts % ranks == 0 and hidden % GROUP == 0:
            self._low_latency.make(Shape(tokens, hidden, experts, min(experts, HINTED_TOPK)))

    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int) -> None:
        """Nothing has to be cleaned here: signals carry numbers that are never used again. What it does do is to make
        usable again what an error left broken; earlier handles end. With enable_shrink it is a dispatch of no tokens,
        by which all know who is masked: a rank that does not come in time is, also one that calls destroy() instead.
        Collective."""
        self._usable()
        if not self.low_latency_mode:
            raise WrongUse("clean_low_latency_buffer: expected a Buffer made with low_latency_mode=True")
        if self.enable_shrink:
            self._low_latency.meet()
        else:
            for pool in self._pools.ordered():
                if isinstance(pool, LowLatency):
                    pool.reset()

    def _check_shape(self, low_latency: LowLatency, shape: Shape, tokens: int) -> None:
        """Of what is dispatched."""
        if low_latency.on != HOST and self.enable_shrink:
            raise WrongUse("enable_shrink: expected False for tensors of a CUDA device, where no rank can be masked")
        self._check_experts(shape.experts)
        most = arguments.integer("num_max_dispatch_tokens_per_rank", shape.tokens, 1)
        if shape.hidden % GROUP:
            raise WrongValue(f"x: expected a multiple of {GROUP} channels, got {shape.hidden}")
        if tokens > most:
            raise WrongValue(f"x: expected at most num_max_dispatch_tokens_per_rank, {most}, tokens, got {tokens}")

    def _phases(self, pool: LowLatency, async_finish: bool, hooked: bool) -> Ordering:
        """Both phases of a call; or its first one, where the second one is left to a hook."""
        arguments.one_of("async_finish", async_finish, "return_recv_hook", hooked)
        if hooked and pool.queue is not None:
            return DeviceOrdering(pool.queue, False)
        return self._ordering(pool, None, True, False)

    def _check_costs(self, name: str, costs: torch.Tensor, where: int) -> None:
        """[R]: to which the waits for each rank are added."""
        check(name, costs, where, arguments.INT64, self.group_size)
        if where:
            raise WrongValue(
                f"{name}: expected None for tensors of a CUDA device, where kernels wait and nobody counts"
            )

    @counted("ll")
    def low_latency_dispatch(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        cumulative_local_expert_recv_stats: Optional[torch.Tensor] = None,
        dispatch_wait_recv_cost_stats: Optional[torch.Tensor] = None,
        use_fp8: bool = True,
        round_scale: bool = False,
        use_ue8m0: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
    ) -> tuple[Rows, torch.Tensor, tuple, EventOverlap, Optional[Callable[[], None]]]:
        """A row for each selection, packed for each local expert, cast to e4m3 unless use_fp8 is False. Collective.

        x: [T, H] bfloat16, H a multiple of 128; T up to num_max_dispatch_tokens_per_rank, Tmax, which with H, K and
            num_experts is the same on every rank. topk_idx: [T, K]: expert, or -1.
        cumulative_local_expert_recv_stats: [L] int32, to which the rows received are added; of an asynchronous call
            when its hook is called, or its event waited for.
        dispatch_wait_recv_cost_stats: of CPU tensors, [R] int64: to each source's are added the nanoseconds for which
            this rank waited for its rows, from the begin of receiving (that of the hook, or of the event's wait) until
            they were there.
        round_scale, use_ue8m0: scales as powers of two; four exponent bytes to an int32.
        return_recv_hook: nothing is received before hook() is called, or a later dispatch needs the slot. async_finish:
            likewise before event; on a CUDA device it goes on by itself.

        Returns (recv_x [L, R * Tmax, H], or (recv_x, scales [L, R * Tmax, H / 128] float32 or [.., H / 512] int32,
        stored by column), recv_count [L] int32, handle, event, hook). Rows from recv_count on are undefined. Rows of an
        expert are in the order of source rank, then token.
        """
        where, tokens, hidden = check("x", x, arguments.ANYWHERE, arguments.BFLOAT16, -1, -1)
        low_latency = self._pools[LowLatency, where]
        if not self.low_latency_mode:
            raise WrongUse("low_latency_dispatch: expected a Buffer made with low_latency_mode=True")
        _, _, topk = check("topk_idx", topk_idx, where, arguments.INDEX, tokens, -1)
        shape = (num_max_dispatch_tokens_per_rank, hidden, num_experts, topk)
        made, casting = low_latency.made.get(shape), Casting.of(hidden, use_fp8, round_scale, use_ue8m0)
        if made is None or tokens > num_max_dispatch_tokens_per_rank:
            self._check_shape(low_latency, Shape(*shape), tokens)
        stats, costs = cumulative_local_expert_recv_stats, dispatch_wait_recv_cost_stats
        if stats is not None:
            check("cumulative_local_expert_recv_stats", stats, where, arguments.INT32, num_experts // self.group_size)
        if costs is not None:
            self._check_costs("dispatch_wait_recv_cost_stats", costs, where)
        ordering = low_latency.here
        if async_finish or return_recv_hook:
            ordering = self._phases(low_latency, async_finish, return_recv_hook)
        with ordering:
            made = made or low_latency.of(Shape(*shape))
            rows, counts, handle = low_latency.dispatch(x, topk_idx, made, casting, ordering, stats, costs)
            event, hook = EventOverlap(), None
            if return_recv_hook and handle.dispatched is not None:
                hook = handle.dispatched.hook()
            elif not ordering.quiet:
                tensors = (*_listed(rows), x, topk_idx, counts)
                event = ordering.end(handle.dispatched, *tensors)
                event.extra_tensors = tensors if event.event is not None else None
        return rows, counts, HandleTuple.over(handle), event, hook

    @counted("ll")
    def low_latency_combine(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        topk_weights: torch.Tensor,
        handle: tuple,
        use_logfmt: bool = False,
        zero_copy: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        out: Optional[torch.Tensor] = None,
        combine_wait_recv_cost_stats: Optional[torch.Tensor] = None,
    ) -> tuple[torch.Tensor, EventOverlap, Optional[Callable[[], None]]]:
        """The weighted sum of each token's rows in fp32, k ascending, one rounding: [T, H] bfloat16. Collective.

        x: [L, R * Tmax, H] bfloat16, in the places of the rows received; with zero_copy what
            get_next_low_latency_combine_buffer(handle) gave, into which the rows were written.
        topk_idx: [T, K] as dispatched, which is not checked; a -1 leaves the selection out.
        topk_weights: [T, K] float32.
        handle: a plain tuple of the items of one, the same on every rank, costs a dispatch; topk_idx is then exactly
            as dispatched.
        use_logfmt: 10 bits for a value on the way to ranks that are reached over a network; lossy.
        out: [T, H] bfloat16 to write to. combine_wait_recv_cost_stats: [R] int64, as in low_latency_dispatch, for
            the outputs of each rank's experts, and before them for that rank to have read those of the last combine.

        Returns (combined_x, event, hook).
        """
        if type(handle) is tuple:
            handle = self._adopt_low_latency(handle, topk_idx, zero_copy)
        found = self._own_low_latency(handle)
        (local, received, hidden), tokens, where = found.rows, found.num_tokens, found.where
        (check_strided if zero_copy else check)("x", x, where, arguments.BFLOAT16, local, received, hidden)
        check("topk_idx", topk_idx, where, arguments.INDEX, tokens, found.topk)
        check("topk_weights", topk_weights, where, arguments.FLOAT, tokens, found.topk)
        options: dict[str, Any] = {"out": out, "weights": topk_weights, "wait_ns": combine_wait_recv_cost_stats}
        if out is not None:
            check("out", out, where, arguments.BFLOAT16, tokens, hidden)
        if options["wait_ns"] is not None:
            self._check_costs("combine_wait_recv_cost_stats", options["wait_ns"], where)
        if use_logfmt:
            arguments.one_of("use_logfmt", use_logfmt, "zero_copy", zero_copy)
            options["quant"] = xep.Quant.LOGFMT
        low_latency = self._pools[LowLatency, where]
        ordering = low_latency.here
        if async_finish or return_recv_hook:
            ordering = self._phases(low_latency, async_finish, return_recv_hook)
        with ordering:
            back, sent = found.ready(), None if zero_copy else x
            if where and out is None and ordering.quiet:
                options["out"] = x.new_empty((tokens, hidden))
            elif where and out is None:
                options.update(ordering.results(("out", (tokens, hidden), torch.bfloat16)))
            if not found.routed(topk_idx):
                options["weights"] = topk_weights.masked_fill(topk_idx < 0, 0.0)
            request = None if ordering.wait else back.combine_async(sent, **options)
            combined = back.combine(sent, **options) if request is None else request.result
            ending = found.combined = None if request is None else Ending(request)
            event, hook = EventOverlap(), None
            if return_recv_hook and ending is not None:
                hook = ending.hook()
            elif not ordering.quiet:
                tensors = (combined, x, topk_idx, topk_weights)
                event = ordering.end(ending, *tensors)
                event.extra_tensors = tensors if event.event is not None else None
        return combined, event, hook

    def get_next_low_latency_combine_buffer(self, handle: tuple) -> torch.Tensor:
        """[L, R * Tmax, H] bfloat16: where the rows of the next combine of this handle need no copy. Waits until the
        others have read what an earlier combine left there."""
        return self._own_low_latency(handle).ready().combine_input()

    def _own_low_latency(self, handle: Any) -> LowLatencyHandle:
        if self._destroyed:
            self._usable()
        found = handle.core if isinstance(handle, HandleTuple) else handle
        if not isinstance(found, LowLatencyHandle):
            raise WrongType(f"handle: expected what low_latency_dispatch returned, got {type(found).__name__}")
        if found.owner is not self._xep:
            raise WrongValue("handle: expected one of this Buffer, got one of another")
        return found

    def _adopt_low_latency(self, handle: tuple, topk_idx: torch.Tensor, zero_copy: bool) -> tuple:
        """A handle like the one that a plain tuple was made of, by a dispatch of zeros. Collective."""
        if zero_copy:
            raise WrongValue("zero_copy: expected False with a handle that is a plain tuple")
        if len(handle) != 5:
            raise WrongValue(f"handle: expected the 5 items that low_latency_dispatch returned, got {len(handle)}")
        _, layout_range, most, hidden, experts = handle
        where, tokens, _ = check("topk_idx", topk_idx, arguments.ANYWHERE, arguments.INDEX, -1, -1)
        check("handle: layout_range", layout_range, where, arguments.INT64, -1, self.group_size)
        hidden = arguments.integer("handle: hidden", hidden, 1)
        zeros = torch.zeros((tokens, hidden), dtype=torch.bfloat16, device=topk_idx.device)
        _, _, made, _, _ = self.low_latency_dispatch(zeros, topk_idx, most, experts, use_fp8=False)
        told = self._xep.allgather(bytes([torch.equal(made[1], layout_range)]))
        if b"\0" in told:
            rank = told.index(b"\0")
            raise WrongValue(f"topk_idx: expected what was dispatched with this handle: rank {rank} had other rows")
        return made

    # ---- masks ----

    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """Masks a rank: nothing is sent to it, nothing is awaited from it, and what its experts would have added to a
        combine is missing there, with the other weights as they are. DeepEP's masks are each rank's own; here all
        ranks come to the same one, in their next calls. So a rank that was masked stays masked: without mask this is
        an error for one that is, and nothing for one that is not. Local."""
        masks = self._masks("low_latency_update_mask_buffer")
        rank = arguments.integer("rank_to_mask", rank_to_mask, 0)
        if rank >= self.group_size:
            raise WrongValue(f"rank_to_mask: expected a rank below {self.group_size}, got {rank}")
        if mask:
            self._xep.mask_set(rank)
        else:
            _stay_masked([masked for masked in masks if masked.rank == rank])

    def low_latency_query_mask_buffer(self, mask_status: torch.Tensor) -> None:
        """Writes 1 for each masked rank into mask_status, [R] int32, and 0 for the others; as far as this rank knows.
        ``buffer.masks()`` says why and since when. Local."""
        masks = self._masks("low_latency_query_mask_buffer")
        check("mask_status", mask_status, 0, arguments.INT32, self.group_size)
        mask_status.zero_()
        mask_status[[masked.rank for masked in masks]] = 1

    def low_latency_clean_mask_buffer(self) -> None:
        """Nothing, if no rank is masked. A masked rank cannot come back into this group: UnsupportedError. Local."""
        _stay_masked(self._masks("low_latency_clean_mask_buffer"))

    def masks(self) -> list[xep.Mask]:
        """The masked ranks, ascending: rank, reason (died, late, or asked for), and since_ns, as time.monotonic_ns()
        counts. Not a call of DeepEP's. Local."""
        return self._masks("masks")

    def _goes_without(self) -> bool:
        if not self.enable_shrink:
            return False
        try:
            self._xep.barrier()  # who is masked is then known to all
        except xep.XepError:  # this rank is
            return True
        return bool(self._xep.mask_query())

    def _masks(self, call: str) -> list[xep.Mask]:
        self._usable()
        if not self.enable_shrink:
            raise WrongUse(f"{call}: expected a Buffer made with enable_shrink=True")
        return self._xep.mask_query()


def _stay_masked(masks: list[xep.Mask]) -> None:
    for masked in masks:
        text = f"rank {masked.rank} is out and cannot come back into this group (make a new group)"
        raise xep.UnsupportedError(xep.Status.ERR_UNSUPPORTED, text)
