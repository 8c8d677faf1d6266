# SPDX-License-Identifier: BSD-3-Clause
"""The calls of low-latency mode."""

from __future__ import annotations

from typing import Any, Callable, NoReturn, Optional, Union

import torch

import xep

from . import _check
from ._check import WrongType, WrongUse, WrongValue
from .arguments import FLOAT, INDEX, Rows
from .core import Core
from .ending import Ending
from .low_latency import GROUP, HINTED_TOPK, Casting, LowLatency, LowLatencyHandle, Shape
from .low_latency_memory import DeviceMemory, HostRouting
from .ordering import DeviceOrdering, HookOrdering, HostOrdering
from .pace import counted
from .tuples import HandleTuple
from .utils.event import EventHandle, EventOverlap

_MULTIPROCESSORS = 64  # of a CUDA device: they are held while a phase runs, and by none between the two
Ordering = Union[HostOrdering, DeviceOrdering]


class LowLatencyCalls(Core):
    """low_latency_dispatch, low_latency_combine, and what belongs to them."""

    hinted: dict[int, tuple[int, int, int, int]] = {}  # by bytes, what a hint was asked for: tokens, hidden, ranks, E
    _low_latency: LowLatency
    _device_low_latency: Optional[LowLatency] = None
    low_latency_mode: bool
    enable_shrink: bool
    group_size: int

    def _make_hinted(self, num_rdma_bytes: int) -> None:
        """Collective where there is such a hint."""
        tokens, hidden, ranks, experts = self.hinted.get(num_rdma_bytes, (0, 0, 0, 0))
        if ranks == self.group_size and experts % ranks == 0 and hidden % GROUP == 0:
            self._low_latency.threads = self._threads_here()
            self._low_latency.make(Shape(tokens, hidden, experts, min(experts, HINTED_TOPK)))

    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int) -> None:
        """Nothing has to be cleaned here: signals carry numbers that are never used again. What it does do is to make
        usable again what an error left broken; earlier handles end. With enable_shrink it is a dispatch of no tokens, by
        which all know who is masked: a rank that does not come in time is, also one that calls destroy() instead.
        Collective."""
        self._usable()
        if not self.low_latency_mode:
            raise WrongUse("clean_low_latency_buffer: expected a Buffer made with low_latency_mode=True")
        if self.enable_shrink:
            self._low_latency.meet()
        else:
            for low_latency in self._low_latencies():
                low_latency.reset()

    def _low_latencies(self) -> list[LowLatency]:
        return [self._low_latency] + ([] if self._device_low_latency is None else [self._device_low_latency])

    def _last_low_latency(self) -> Optional[xep.Buffer]:
        """Tensors are on a device where any were."""
        return None if self._destroyed or not self.low_latency_mode else self._low_latencies()[-1].last

    def _low_latency_on(self, device: torch.device) -> LowLatency:
        if device == _check.HOST:
            self._low_latency.threads = self._threads_here()
            return self._low_latency
        if self.enable_shrink:
            raise WrongUse("enable_shrink: expected False for tensors of a CUDA device, where no rank can be masked")
        if self._device_low_latency is None:
            memory, free_slots = DeviceMemory(device), self._queue_of(device).free_slots
            made = LowLatency(self._xep, self._agreement, self._num_slots, self._timeout, "fail", memory, free_slots)
            made.threads = _MULTIPROCESSORS
            self._device_low_latency = made
        return self._device_low_latency

    def _phases(self, device: torch.device, async_finish: bool, hooked: bool) -> Ordering:
        """Both phases of a call; or its first one, where the second one is left to a hook."""
        if device == _check.HOST:
            return HostOrdering(None, async_finish or hooked)
        queue = self._queue_of(device)
        return HookOrdering(queue) if hooked else queue.ordering(None, async_finish, False)

    def _shape_of(self, x: torch.Tensor, topk_idx: torch.Tensor, most: int, num_experts: int) -> Shape:
        """Checks what is dispatched; most: tokens of a rank."""
        _check.tensor("x", x, (torch.bfloat16,), (None, None), on=None)
        _check.tensor("topk_idx", topk_idx, INDEX, (x.shape[0], None), on=x.device)
        self._check_experts(num_experts)
        most = _check.integer("num_max_dispatch_tokens_per_rank", most, 1)
        shape = Shape(most, x.shape[1], num_experts, topk_idx.shape[1])
        if shape.hidden % GROUP:
            raise WrongValue(f"x: expected a multiple of {GROUP} channels, got {shape.hidden}")
        if x.shape[0] > shape.tokens:
            raise WrongValue(
                f"x: expected at most num_max_dispatch_tokens_per_rank, {shape.tokens}, tokens, got {x.shape[0]}"
            )
        return shape

    def _check_stats(
        self, x: torch.Tensor, num_experts: int, received: Optional[torch.Tensor], waited: Optional[torch.Tensor]
    ) -> None:
        """Tensors to which a dispatch of x adds: the rows of each local expert, the waits for each rank."""
        if received is not None:
            local = (num_experts // self.group_size,)
            _check.tensor("cumulative_local_expert_recv_stats", received, (torch.int32,), local, on=x.device)
        if waited is not None:
            _check.tensor("dispatch_wait_recv_cost_stats", waited, (torch.int64,), (self.group_size,), on=x.device)
        _check_costs("dispatch_wait_recv_cost_stats", waited)

    @counted("_last_low_latency")
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
        cumulative_local_expert_recv_stats: [L] int32, to which the rows received are added.
        dispatch_wait_recv_cost_stats: of CPU tensors, [R] int64: to each source's are added the nanoseconds for which
            this rank waited for its rows, from the begin of receiving (that of the hook, or of the event's wait) until
            they were there.
        round_scale, use_ue8m0: scales as powers of two; four exponent bytes to an int32.
        return_recv_hook: nothing is received before hook() is called. async_finish: likewise before event; on a CUDA
            device it goes on by itself.

        Returns (recv_x [L, R * Tmax, H], or (recv_x, scales [L, R * Tmax, H / 128] float32 or [.., H / 512] int32,
        stored by column), recv_count [L] int32, handle, event, hook). Rows from recv_count on are undefined. Rows of an
        expert are in the order of source rank, then token.
        """
        if not (async_finish or return_recv_hook or self._destroyed) and self.low_latency_mode:
            shape = (num_max_dispatch_tokens_per_rank, num_experts)
            stats = (cumulative_local_expert_recv_stats, dispatch_wait_recv_cost_stats)
            casting = (use_fp8, round_scale, use_ue8m0)
            common = self._low_latency_common(x, topk_idx, shape, stats, casting)
            if common is not None:
                return common
        self._usable()
        if not self.low_latency_mode:
            raise WrongUse("low_latency_dispatch: expected a Buffer made with low_latency_mode=True")
        _check.one_of("async_finish", async_finish, "return_recv_hook", return_recv_hook)
        shape = self._shape_of(x, topk_idx, num_max_dispatch_tokens_per_rank, num_experts)
        self._check_stats(x, num_experts, cumulative_local_expert_recv_stats, dispatch_wait_recv_cost_stats)
        casting = Casting.of(shape.hidden, use_fp8, round_scale, use_ue8m0)
        low_latency = self._low_latency_on(x.device)
        with self._phases(x.device, async_finish, return_recv_hook) as ordering:
            rows, scales, counts, handle, ending = low_latency.dispatch(
                x, topk_idx, shape, casting, cumulative_local_expert_recv_stats, dispatch_wait_recv_cost_stats, ordering
            )
            event, hook = _left_to(ordering, ending, return_recv_hook, x, topk_idx, rows, scales, counts)
        return rows if scales is None else (rows, scales), counts, HandleTuple.over(handle), event, hook

    def _low_latency_common(self, x: Any, topk_idx: Any, most: tuple, stats: tuple, cast: tuple) -> Optional[tuple]:
        """What most programs do most of the time, of CPU tensors, in a buffer that is there. None: it is something else,
        or wrong."""
        if (
            type(x) is not torch.Tensor
            or type(topk_idx) is not torch.Tensor
            or not (x.is_cpu and x.dtype is torch.bfloat16 and x.is_contiguous())
            or not (topk_idx.is_cpu and topk_idx.dtype in INDEX and topk_idx.is_contiguous())
            or x.dim() != 2
            or topk_idx.dim() != 2
            or x.shape[0] != topk_idx.shape[0]
            or stats != (None, None)
        ):
            return None
        shape = (most[0], x.shape[1], most[1], topk_idx.shape[1])
        made = self._low_latency.made_for.get(shape)
        if made is None or x.shape[0] > most[0]:
            return None
        casting = Casting.of(x.shape[1], *cast)
        rows, counts, handle = self._low_latency.dispatch_common(x, topk_idx, made, shape, casting)
        return rows, counts, HandleTuple.over(handle), EventOverlap(), None

    def _low_latency_back(self, x: Any, topk_idx: Any, topk_weights: Any, handle: Any, out: Any) -> Optional[tuple]:
        """Likewise, the way back."""
        found = handle.core if type(handle) is HandleTuple else None
        if (
            type(found) is not LowLatencyHandle
            or found.xep is None
            or found.owner is not self._xep
            or found.dispatched is not None
            or found.combined is not None
            or type(x) is not torch.Tensor
            or type(topk_weights) is not torch.Tensor
            or not (x.is_cpu and x.dtype is torch.bfloat16 and x.is_contiguous() and x.shape == found.rows)
            or type(found.routing) is not HostRouting
            or found.routing.sent() is not topk_idx
            or not -1 < found.routing.version == topk_idx._version
            or not (topk_weights.is_cpu and topk_weights.dtype is torch.float32 and topk_weights.is_contiguous())
            or topk_weights.shape != topk_idx.shape
            or out is not None
        ):
            return None
        found.was_combined = True
        return found.xep.combine(x, weights=topk_weights), EventOverlap(), None

    @counted("_last_low_latency")
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
        topk_idx: [T, K] as dispatched, which is not checked on a CUDA device; a -1 leaves the selection out.
        topk_weights: [T, K] float32.
        handle: a plain tuple of the items of one, the same on every rank, costs a dispatch; topk_idx is then exactly
            as dispatched.
        use_logfmt: 10 bits for a value on the way to ranks that are reached over a network; lossy.
        out: [T, H] bfloat16 to write to. combine_wait_recv_cost_stats: [R] int64, as in low_latency_dispatch, for
            the outputs of each rank's experts, and before them for that rank to have read those of the last combine.

        Returns (combined_x, event, hook).
        """
        costs = combine_wait_recv_cost_stats
        if not (async_finish or return_recv_hook or use_logfmt or zero_copy or self._destroyed) and costs is None:
            common = self._low_latency_back(x, topk_idx, topk_weights, handle, out)
            if common is not None:
                return common
        self._usable()
        _check.one_of("async_finish", async_finish, "return_recv_hook", return_recv_hook)
        _check.one_of("use_logfmt", use_logfmt, "zero_copy", zero_copy)
        if type(handle) is tuple:
            if zero_copy:
                raise WrongValue("zero_copy: expected False with a handle that is a plain tuple")
            handle = self._adopt_low_latency(handle, topk_idx)
        found = self._own_low_latency(handle)
        shape, tokens = found.shape, found.num_tokens
        rows = (shape.experts // self.group_size, self.group_size * shape.tokens, shape.hidden)
        _check.tensor("x", x, (torch.bfloat16,), rows, contiguous=not zero_copy, on=found.on)
        _check.tensor("topk_idx", topk_idx, INDEX, (tokens, shape.topk), on=found.on)
        _check.tensor("topk_weights", topk_weights, FLOAT, (tokens, shape.topk), on=found.on)
        if out is not None:
            _check.tensor("out", out, (torch.bfloat16,), (tokens, shape.hidden), on=found.on)
        if costs is not None:
            _check.tensor("combine_wait_recv_cost_stats", costs, (torch.int64,), (self.group_size,), on=found.on)
        _check_costs("combine_wait_recv_cost_stats", costs)
        sent = None if zero_copy else x
        with self._phases(found.on, async_finish, return_recv_hook) as ordering:
            combined, ending = _combine(found, sent, topk_idx, topk_weights, out, use_logfmt, costs, ordering)
            if ending is not None:
                ending.handle = found
            event, hook = _left_to(ordering, ending, return_recv_hook, x, topk_idx, topk_weights, combined)
        return combined, event, hook

    def get_next_low_latency_combine_buffer(self, handle: tuple) -> torch.Tensor:
        """[L, R * Tmax, H] bfloat16: where the rows of the next combine of this handle need no copy. Waits until the
        others have read what an earlier combine left there."""
        self._usable()
        return self._own_low_latency(handle).ready().combine_input()

    def _own_low_latency(self, handle: Any) -> LowLatencyHandle:
        found = handle.core if isinstance(handle, HandleTuple) else handle
        if not isinstance(found, LowLatencyHandle):
            raise WrongType(f"handle: expected what low_latency_dispatch returned, got {type(found).__name__}")
        if found.owner is not self._xep:
            raise WrongValue("handle: expected one of this Buffer, got one of another")
        return found

    def _adopt_low_latency(self, handle: tuple, topk_idx: torch.Tensor) -> tuple:
        """A handle like the one that a plain tuple was made of, by a dispatch of zeros. Collective."""
        if len(handle) != 5:
            raise WrongValue(f"handle: expected the 5 items that low_latency_dispatch returned, got {len(handle)}")
        _, layout_range, most, hidden, experts = handle
        _check.tensor("topk_idx", topk_idx, INDEX, (None, None), on=None)
        on = topk_idx.device
        _check.tensor("handle: layout_range", layout_range, (torch.int64,), (None, self.group_size), on=on)
        hidden = _check.integer("handle: hidden", hidden, 1)
        zeros = torch.zeros((topk_idx.shape[0], hidden), dtype=torch.bfloat16, device=on)
        _, _, made, _, _ = self.low_latency_dispatch(zeros, topk_idx, most, experts, use_fp8=False)
        same = torch.equal(made[1], layout_range)
        told = self._xep.allgather(bytes([same]))
        if not all(word[0] for word in told):
            rank = [bool(word[0]) for word in told].index(False)
            raise WrongValue(f"topk_idx: expected what was dispatched with this handle: rank {rank} had other rows")
        return made

    # ---- masks ----

    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """Masks a rank: nothing is sent to it, nothing is awaited from it, and what its experts would have added to a
        combine is missing there, with the other weights as they are. DeepEP's masks are each rank's own; here all
        ranks come to the same one, in their next calls. So a rank that was masked stays masked: without mask this is
        an error for one that is, and nothing for one that is not. Local."""
        self._masks("low_latency_update_mask_buffer")
        rank = _check.integer("rank_to_mask", rank_to_mask, 0)
        if rank >= self.group_size:
            raise WrongValue(f"rank_to_mask: expected a rank below {self.group_size}, got {rank}")
        if mask:
            self._xep.mask_set(rank)
        elif any(masked.rank == rank for masked in self._xep.mask_query()):
            _refuse_to_unmask(rank)

    def low_latency_query_mask_buffer(self, mask_status: torch.Tensor) -> None:
        """Writes 1 for each masked rank into mask_status, [R] int32, and 0 for the others; as far as this rank knows.
        ``buffer.masks()`` says why and since when. Local."""
        self._masks("low_latency_query_mask_buffer")
        _check.tensor("mask_status", mask_status, (torch.int32,), (self.group_size,))
        mask_status.zero_()
        for masked in self._xep.mask_query():
            mask_status[masked.rank] = 1

    def low_latency_clean_mask_buffer(self) -> None:
        """Nothing, if no rank is masked. A masked rank cannot come back into this group: UnsupportedError. Local."""
        self._masks("low_latency_clean_mask_buffer")
        for masked in self._xep.mask_query():
            _refuse_to_unmask(masked.rank)

    def masks(self) -> list[xep.Mask]:
        """The masked ranks, ascending: rank, reason (died, late, or asked for), and since_ns, as time.monotonic_ns()
        counts. Not a call of DeepEP's. Local."""
        self._masks("masks")
        return self._xep.mask_query()

    def _goes_without(self) -> bool:
        if not self.enable_shrink:
            return False
        try:
            self._xep.barrier()  # who is masked is then known to all
        except xep.XepError:  # this rank is
            return True
        return bool(self._xep.mask_query())

    def _masks(self, call: str) -> None:
        self._usable()
        if not self.enable_shrink:
            raise WrongUse(f"{call}: expected a Buffer made with enable_shrink=True")


def _refuse_to_unmask(rank: int) -> NoReturn:
    raise xep.UnsupportedError(
        xep.Status.ERR_UNSUPPORTED, f"rank {rank} is out and cannot come back into this group (a new group)"
    )


def _check_costs(name: str, stats: Optional[torch.Tensor]) -> None:
    if stats is not None and not stats.is_cpu:
        raise WrongValue(f"{name}: expected None for tensors of a CUDA device, where kernels wait and nobody counts")


def _left_to(
    ordering: Ordering, ending: Optional[Ending], hooked: bool, *tensors: Optional[torch.Tensor]
) -> tuple[EventOverlap, Optional[Callable[[], None]]]:
    """The event, which keeps the tensors alive, and the hook of a low-latency call."""
    if ending is None:
        event = ordering.end(None, *tensors)
        event.extra_tensors = tensors if event.event is not None else None
        return event, None
    if not hooked:
        return EventOverlap(EventHandle(ending.request, ending.wait), tensors), None
    ending.hooked = True
    return EventOverlap(), ending.wait


def _combine(
    handle: LowLatencyHandle,
    x: Optional[torch.Tensor],
    topk_idx: torch.Tensor,
    topk_weights: torch.Tensor,
    out: Optional[torch.Tensor],
    logfmt: bool,
    cost_stats: Optional[torch.Tensor],
    ordering: Ordering,
) -> tuple[torch.Tensor, Optional[Ending]]:
    """x None: what was written to combine_input. Collective. The ending unless waited for."""
    back = handle.ready()
    options: dict[str, Any] = dict(weights=handle.routing.weights(topk_idx, topk_weights))
    if out is not None:
        options["out"] = out
    else:
        options.update(ordering.results(("out", (handle.num_tokens, handle.shape.hidden), torch.bfloat16)))
    if logfmt:
        options["logfmt"] = True
    if cost_stats is not None:
        options["wait_ns"] = cost_stats
    handle.combined, handle.was_combined = None, True
    if ordering.wait:
        return back.combine(x, **options), None
    request = back.combine_async(x, **options)
    handle.combined = Ending(request)
    return request.result, handle.combined
