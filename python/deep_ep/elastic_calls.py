# SPDX-License-Identifier: BSD-3-Clause
"""dispatch and combine of an ElasticBuffer."""

from __future__ import annotations

import functools
from typing import Any, Optional, Sequence, Union

import torch

import xep

from . import ep_handle
from ._check import WrongType, WrongValue, integer, tensor
from .arguments import FLOAT, INDEX, Rows, biases_of, carried, check_sum, rows_of
from .core import Core
from .delivery import Arrangement, Delivery, Sum
from .elastic_handle import EPHandle
from .ordering import DeviceOrdering, HostOrdering
from .pace import counted
from .pool import Job
from .seats import Sent
from .utils.event import EventHandle, EventOverlap
from .utils.math import align

MULTIPROCESSORS = 24  # of a CUDA device, where num_sms does not say how many
Ordering = Union[HostOrdering, DeviceOrdering]


class ElasticCalls(Core):
    """The calls that move tokens."""

    num_max_tokens_per_rank: int
    num_allocated_qps: int
    allow_multiple_reduction: bool

    @counted("_last_normal")
    def dispatch(
        self,
        x: Rows,
        topk_idx: Optional[torch.Tensor] = None,
        topk_weights: Optional[torch.Tensor] = None,
        cumulative_local_expert_recv_stats: Optional[torch.Tensor] = None,
        num_experts: Optional[int] = None,
        num_max_tokens_per_rank: Optional[int] = None,
        expert_alignment: Optional[int] = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: Any = None,
        previous_event_before_epilogue: Any = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
        handle: Optional[EPHandle] = None,
        do_handle_copy: bool = True,
        do_cpu_sync: Optional[bool] = None,
        do_expand: bool = False,
        do_zero_padding: bool = False,
        use_tma_aligned_col_major_sf: bool = False,
    ) -> tuple[Rows, Optional[torch.Tensor], Optional[torch.Tensor], EPHandle, EventOverlap]:
        """Sends every token once to each rank that has one of its experts. Collective.

        x: [T, H] rows of any element type, or (rows of 1 byte [T, H], scales [T, S] float32 or int32 of any strides).
        topk_idx: [T, K] int64 or int32: expert, or -1. topk_weights: [T, K] float32.
        cumulative_local_expert_recv_stats: [L] int32, to which the selections received are added; not with handle.
        num_max_tokens_per_rank: that no rank exceeds; None: the constructor's. expert_alignment: None: 1.
        num_sms: kept in the handle; multiprocessors of a CUDA device, 0: 24, of memory that is made from then on.
            Threads are XEP_THREADS. num_qps: there are none.
        previous_event: it begins after it. previous_event_before_epilogue: what is not received in place is written
            after it.
        async_with_compute_stream: returns when the received rows are counted; the event is reached when they are here.
            Until then x and what is received must not be touched.
        handle: of an earlier dispatch, whose routing is used again, with other x and topk_weights.
        do_handle_copy: the handle has a copy of topk_idx; else the program must not change it.
        do_cpu_sync: False: received tensors have the rows that could arrive at most; on a CUDA device nothing waits for
            counts then, once a call has made memory for so many. None: True without handle.
        do_expand: one row for each selection, by local expert, each at a multiple of expert_alignment, then in the
            order of source rank, then token; weights are [rows] then, and recv_topk_idx is None. Else one for each
            token, in the order of source rank, then token. do_zero_padding: the rows between experts are 0.
        use_tma_aligned_col_major_sf: received scales are stored by column, each column at a multiple of 16 bytes.

        Returns (recv_x or (recv_x, recv_scales), recv_topk_idx [N, K] local expert or -1, recv_topk_weights, handle,
        event). Weights of selections of other ranks are 0 (DeepEP: undefined).
        """
        self._usable()
        self._check_ways(previous_event, allocate_on_comm_stream, num_qps, do_zero_padding and not do_expand)
        rows, scales = rows_of(x, on=None)
        given = (handle, topk_idx, topk_weights, cumulative_local_expert_recv_stats, num_experts)
        limits = (num_max_tokens_per_rank, expert_alignment, do_cpu_sync)
        arrangement = Arrangement(do_expand, do_zero_padding, use_tma_aligned_col_major_sf)
        waits = (previous_event, async_with_compute_stream, allocate_on_comm_stream)
        with self._ordering(rows.device, *waits) as ordering:
            made, sent = self._begin(rows, scales, *given, *limits, num_sms, do_expand, do_handle_copy, ordering)
            delivery = Delivery(
                made, sent, rows.dtype, scales, topk_weights is not None, handle is not None, arrangement,
                self._pool_on(rows.device).may_view(sent.handle.buffer), previous_event_before_epilogue,
            )  # fmt: skip
            event = self._end(delivery, sent.request, ordering, made, rows, scales, *given[1:4], *delivery.tensors())
        return delivery.rows, delivery.topk_idx, delivery.weights, made, event

    def _begin(
        self,
        rows: torch.Tensor,
        scales: Optional[torch.Tensor],
        handle: Optional[EPHandle],
        topk_idx: Any,
        topk_weights: Any,
        stats: Any,
        num_experts: Any,
        num_max_tokens_per_rank: Any,
        expert_alignment: Any,
        do_cpu_sync: Any,
        num_sms: int,
        do_expand: bool,
        do_handle_copy: bool,
        ordering: Ordering,
    ) -> tuple[EPHandle, Sent]:
        """A dispatch along the routing of handle, or with one of its own."""
        if handle is None:
            worst = 0
            most = self._most_tokens(rows, num_max_tokens_per_rank)
            if do_cpu_sync is not None and not do_cpu_sync:
                worst = most * self._xep.nranks
            job = self._job(rows, scales, topk_idx, topk_weights, num_experts, worst, most, ordering.after)
            alignment = 1 if expert_alignment is None else integer("expert_alignment", expert_alignment, 1)
            if stats is not None:
                local = (job.experts // self._xep.nranks,)
                tensor("cumulative_local_expert_recv_stats", stats, (torch.int32,), local, on=rows.device)
            sent, made = self._send(job, ordering, alignment, most, num_sms, do_expand, do_handle_copy)
            if stats is not None:
                stats += made.num_unaligned_recv_tokens_per_expert
        else:
            made = self._own(handle, rows.device)
            self._check_again(made, rows, topk_idx, num_experts, num_max_tokens_per_rank, expert_alignment, do_cpu_sync)
            extra = _extra_words(made, scales, topk_weights)
            made.arrived()
            sent = self._pool_on(rows.device).again(made, carried(rows), extra, ordering.after, ordering.wait)
            ordering.receives(sent.handle)
        return made, sent

    @counted("_last_normal")
    def combine(
        self,
        x: torch.Tensor,
        handle: EPHandle,
        topk_weights: Optional[torch.Tensor] = None,
        bias: Union[torch.Tensor, Sequence[torch.Tensor], None] = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: Any = None,
        previous_event_before_epilogue: Any = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[torch.Tensor, Optional[torch.Tensor], EventOverlap]:
        """Sums what the ranks of a token's experts have made of it, unweighted, in fp32: [T, H]. Collective.

        The order: the biases, then ranks ascending. Where the logical domain has several nodes, then nodes ascending:
        the ranks of this node one by one, of every other node the sum of its ranks, ascending. What another node has
        summed, and what a rank has after do_expand, is rounded to x's type before it goes back; without
        allow_multiple_reduction it goes back in fp32, and a token is rounded once, at the end.

        x: rows as they were received, bfloat16 (float16 and float32 too). After do_expand the rows of a token are first
            summed on their rank, k ascending.
        topk_weights: [N, K], after do_expand [rows], float32; what the rank of each selection gives of it comes back.
        bias: one or two [T, H] of x's type, added first.

        Returns (combined_x [T, H], combined_topk_weights [T, K] or None, event).
        """
        self._usable()
        self._check_ways(previous_event, allocate_on_comm_stream, num_qps, False)
        on = tensor("x", x, None, (None, None), on=None).device
        found = self._own(handle, on)
        rows = found.num_expanded_tokens if found.do_expand else found.rows
        check_sum(x, rows, rows if found.do_expand else found.capacity, on)
        biases: tuple = biases_of(found, x, bias)
        with self._ordering(on, previous_event, async_with_compute_stream, allocate_on_comm_stream) as ordering:
            found.arrived()
            result_type, given = x.dtype, (x, topk_weights, *biases)
            weights = self._weights_back(found, x, topk_weights)
            if found.do_expand:
                x = found.places.fold(x, result_type if self.allow_multiple_reduction else torch.float32)
                biases = tuple(one.to(x.dtype) for one in biases)
            options: dict[str, Any] = {}
            if weights is not None:
                options["topk_weights"] = weights
            if biases:
                options["bias"] = biases
            if ordering.after is not None:
                options["after"] = ordering.after
            result, request = self._pool_on(on).combine(found, x, options, wait=ordering.wait)
            combined, weights = result if isinstance(result, tuple) else (result, None)
            ending = Sum(request, combined, result_type, previous_event_before_epilogue)
            event = self._end(ending, request, ordering, found, *given, ending.result, weights)
        return ending.result, weights, event

    # ---- arguments ----

    def _check_ways(self, previous_event: Any, allocate_on_comm_stream: bool, num_qps: int, gapless: bool) -> None:
        if previous_event is not None and not allocate_on_comm_stream:
            raise WrongValue("allocate_on_comm_stream: expected True with previous_event")
        if integer("num_qps", num_qps, 0) > self.num_allocated_qps:
            raise WrongValue(f"num_qps: expected at most num_allocated_qps, {self.num_allocated_qps}, got {num_qps}")
        if gapless:
            raise WrongValue("do_zero_padding: expected do_expand with it, else there are no gaps")

    def _most_tokens(self, x: torch.Tensor, most: Optional[int]) -> int:
        most = integer("num_max_tokens_per_rank", self.num_max_tokens_per_rank if most is None else most, 0)
        if x.shape[0] > most:
            raise WrongValue(f"x: expected at most num_max_tokens_per_rank, {most}, tokens, got {x.shape[0]}")
        return most

    def _job(
        self,
        x: torch.Tensor,
        scales: Any,
        topk_idx: Any,
        topk_weights: Any,
        experts: Any,
        worst: int,
        most: int,
        after: Any,
    ) -> Job:
        tensor("topk_idx", topk_idx, INDEX, (x.shape[0], None), on=x.device)
        self._check_experts(experts)
        if topk_weights is not None:
            tensor("topk_weights", topk_weights, FLOAT, tuple(topk_idx.shape), on=x.device)
        most = self._pool_on(x.device).most_of(most) if worst else 0
        return Job(experts, carried(x), topk_idx, topk_weights, scales, 1, worst, after, most)

    def _check_again(
        self, handle: EPHandle, x: torch.Tensor, topk_idx: Any, experts: Any, most: Any, alignment: Any, sync: Any
    ) -> None:
        if topk_idx is not None:
            raise WrongValue("topk_idx: expected None with handle, which has the routing")
        if sync:
            raise WrongValue("do_cpu_sync: expected False or None with handle, which has the counts")
        for name, value, known in (
            ("num_experts", experts, handle.num_experts),
            ("num_max_tokens_per_rank", most, handle.num_max_tokens_per_rank),
            ("expert_alignment", alignment, handle.expert_alignment),
        ):
            if value is not None and value != known:
                raise WrongValue(f"{name}: expected {known} (or None), as of the handle, got {value!r}")
        if x.shape[0] != handle.num_tokens:
            raise WrongValue(
                f"x: expected the {handle.num_tokens} tokens of the dispatch that made handle, got {x.shape[0]}"
            )

    def _own(self, handle: Any, on: torch.device) -> EPHandle:
        if type(handle) is ep_handle.EPHandle:  # by a program
            handle = handle._dispatched(functools.partial(ElasticCalls.dispatch, self))
        if not isinstance(handle, EPHandle):
            raise WrongType(f"handle: expected an EPHandle, got {type(handle).__name__}")
        if handle.owner is not self._xep:
            raise WrongValue("handle: expected one of this Buffer, got one of another")
        if handle.is_gone:
            raise WrongValue("handle: its dispatch ended when the Buffer was reset")
        if handle.on != on:
            raise WrongValue(f"x: expected a tensor of {handle.on}, as what was dispatched, got {on}")
        return handle

    def _weights_back(self, handle: EPHandle, x: torch.Tensor, weights: Any) -> Optional[torch.Tensor]:
        """[N, K], 0 where the selection is another rank's: sums are what that rank gave."""
        if weights is None:
            return None
        if handle.do_expand:
            return handle.places.fold_selections(tensor("topk_weights", weights, FLOAT, (x.shape[0],), on=x.device))
        found = tensor("topk_weights", weights, FLOAT, (x.shape[0], handle.topk), on=x.device).clone()
        found[: handle.rows].masked_fill_(handle.recv_topk_idx < 0, 0.0)
        return found

    # ---- doing it ----

    @functools.cached_property
    def _default_sms(self) -> int:
        """This rank's share of the machine's processors, as an even number from 4 on, as DeepEP has it."""
        return max(4, align(self._processors(), 2))

    def _send(
        self, job: Job, ordering: Ordering, alignment: int, most: int, num_sms: int, do_expand: bool, do_copy: bool
    ) -> tuple[Sent, EPHandle]:
        pool = self._pool_on(job.x.device)
        pool.threads = self._threads_here() if job.x.is_cpu else num_sms or MULTIPROCESSORS
        topk_idx = job.topk_idx.clone() if do_copy else job.topk_idx
        sent = pool.dispatch(job, False, ordering.wait)
        slot = ordering.receives(sent.handle)
        used = align(num_sms, 2) or (self._default_sms if job.x.is_cpu else MULTIPROCESSORS)
        made = EPHandle(
            self._xep, sent.handle.recv, topk_idx, job.experts, alignment, most, used, do_expand, job.worst, job.most
        )
        made.sit(sent, pool.seat(job.experts, sent))
        if slot is not None:
            made.look_again = slot.look_again
        return sent, made

    def _end(
        self,
        ending: Union[Delivery, Sum],
        request: Optional[xep.Request],
        ordering: Ordering,
        handle: EPHandle,
        *tensors: Optional[torch.Tensor],
    ) -> EventOverlap:
        """tensors: all that was given and is returned."""
        if request is not None:
            return EventOverlap(EventHandle(request, ending.wait))
        ending.fill()
        event = ordering.end(None, *tensors, *handle.tensors())
        if event.event is not None:
            handle.arrives(event.event)
        return event


def _extra_words(handle: EPHandle, scales: Optional[torch.Tensor], weights: Any) -> Optional[torch.Tensor]:
    """Scales and behind them weights: a cached dispatch has no weights of its own, and scales are moved untouched."""
    if weights is None:
        return scales
    tensor("topk_weights", weights, FLOAT, (handle.num_tokens, handle.topk), on=handle.on)
    return weights if scales is None else torch.cat([scales.view(torch.int32), weights.view(torch.int32)], dim=1)
