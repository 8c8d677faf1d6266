# SPDX-License-Identifier: BSD-3-Clause
"""DeepEP's ElasticBuffer."""

from __future__ import annotations

import functools
from typing import Any, Optional, Sequence, Union

import torch

import xep
from xep import _ext

from . import arguments
from .arguments import HOST, Rows, WrongType, WrongValue, calls_of, check, counted, integer
from .compat import nodes_of
from .core import Core, NormalPool, processors
from .handles import ALL, EPHandle, Routed, Sent
from .streams import Ending, Ordering
from .utils.event import EventHandle, EventOverlap, event_of
from .utils.math import align, ceil_div

# ---- what a call returns ----


_COLUMN = 4  # words: 16 bytes


class Delivery:
    """Received tensors: views of the slot where that is what was asked for, else written by end(), on the current
    stream of a CUDA device.

    expand: rows by expert; zero: the gaps between experts.
    """

    _behind = False  # weights behind scales, where a cached dispatch has them
    _topk_idx: torch.Tensor

    def __init__(self, made: Routed, sent: xep.Handle, may_view: bool, expand: bool, zero: bool) -> None:
        self._made, self._expand, self._zero = made, expand, zero
        self._sent: Any = sent
        self._may_view = may_view and not expand
        self._copies: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}  # by name: to, and of which received rows

    def receive(
        self, scales: Optional[torch.Tensor], weighted: bool, cached: bool, by_column: bool
    ) -> list[Optional[torch.Tensor]]:
        """Rows, scales, topk_idx, weights. scales: those sent; received by_column."""
        made, received, width = self._made, self._sent.recv, 0 if scales is None else scales.shape[1]
        self._behind = cached and weighted
        found: list[Optional[torch.Tensor]] = [self._take("x", received.x), None, None, None]
        if scales is not None:
            found[1] = self._take("scales", received.scales[:, :width].view(scales.dtype), by_column)
        if not self._expand:  # a copy: what is in the slot is the handle's
            self._topk_idx = torch.full((made.capacity, made.topk), -1, dtype=made.topk_idx.dtype, device=made.on)
            found[2] = self._topk_idx
        if weighted:
            weights = received.scales[:, width:].view(torch.float32) if cached else received.topk_weights
            found[3] = self._take("topk_weights", weights)
        return found

    def _take(self, name: str, source: torch.Tensor, by_column: bool = False) -> torch.Tensor:
        """source [N, ..]; name: of an argument of xep.Handle.expand()."""
        made, expand, is_weights = self._made, self._expand, name == "topk_weights"
        if self._may_view and not by_column and not (is_weights and self._behind) and source.is_contiguous():
            return source
        count = made.num_expanded_tokens if expand else source.shape[0]
        shape = (count,) if expand and is_weights else (count, source.shape[1])
        if by_column:
            to = torch.empty((shape[1], align(count, _COLUMN)), dtype=source.dtype, device=made.on).t()[:count]
        else:
            to = torch.empty(shape, dtype=source.dtype, device=made.on)
        self._copies[name] = (to, source[: made.rows])
        return to

    def end(self) -> None:
        made, sent, copies, zero = self._made, self._sent, self._copies, self._zero
        self._sent, self._copies = None, {}  # with what they see of the slot
        if not self._expand:
            for to, source in copies.values():
                to[: made.rows].copy_(source)
            self._topk_idx[: made.rows].copy_(made.recv_topk_idx)
            if self._behind:  # those for other ranks are in it
                copies["topk_weights"][0][: made.rows].masked_fill_(made.recv_topk_idx < 0, 0.0)
        elif self._behind or not made.expand(sent, {name: to for name, (to, _) in copies.items()}, zero):
            for name, (to, source) in copies.items():
                made.spread(to, source, zero, each=name == "topk_weights")


def _wait_here(previous_event_before_epilogue: Any, on: torch.device) -> None:
    """What is done on the current stream, or on the host, comes after it."""
    event = event_of(previous_event_before_epilogue, "previous_event_before_epilogue")
    if event is not None:
        (event.synchronize if on == HOST else event.current_stream_wait)()


# ---- the ElasticBuffer ----


_UNIT = 2 << 20  # bytes, of which sizes are multiples
_PART = 32  # bytes, of which the parts of a token are
_MOST_TOPK = 32
_COMMON_WAYS = (None, False, False, 0, 0)  # of most calls, which nothing orders but the stream: see _order()
_CHANNEL_TOKENS = 1280
_SECONDS = 300  # num_cpu_timeout_secs, if nothing else is said
MULTIPROCESSORS = 24  # of a CUDA device, where num_sms does not say how many


class ElasticBuffer(Core):
    """Dispatch and combine of MoE tokens, of CPU tensors or those of a CUDA device, without layouts of the program's;
    collective to make.

    group (or an mpi4py communicator), explicitly_destroy, num_slots, timeout: see Buffer.
    num_bytes: a multiple of 2 MiB, or None: the hint for num_max_tokens_per_rank tokens of hidden channels, num_topk
        and use_fp8_dispatch. It limits nothing: shared memory is made at the first dispatch, for its shape, and grows
        by agreement of the ranks.
    num_max_tokens_per_rank: what dispatch takes if it is not told.
    allow_hybrid_mode: where nodes are blocks of as many ranks each, more than one, rows go once to each node, and sums
        come back from it: the logical domain is (nodes, ranks of one) then, else (1, ranks), with rows that go straight
        to their rank. XEP_PATH=flat is as False.
    allow_multiple_reduction: combine may round on the way; else a token is rounded once, and rows go straight to their
        rank, as without allow_hybrid_mode. See combine.
    num_cpu_timeout_secs: of each wait; 300: XEP_TIMEOUT.
    deterministic, prefer_overlap_with_compute, sl_idx, num_allocated_qps, num_gpu_timeout_secs:
        choices among ways of a GPU. Rows always arrive in the same order.
    """

    _is_v25 = False

    def __init__(
        self,
        group: Any = None,
        num_bytes: Optional[int] = None,
        num_cpu_bytes: int = 0,
        num_max_tokens_per_rank: int = 0,
        hidden: int = 0,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        deterministic: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
        prefer_overlap_with_compute: bool = True,
        sl_idx: int = 3,
        num_allocated_qps: int = 0,
        num_cpu_timeout_secs: float = _SECONDS,
        num_gpu_timeout_secs: float = 100,
        explicitly_destroy: bool = False,
        *,
        num_slots: int = 4,
        timeout: Optional[float] = None,
    ) -> None:
        for name, size in (("num_bytes", num_bytes or 0), ("num_cpu_bytes", num_cpu_bytes)):
            if integer(name, size, 0) % _UNIT:
                raise WrongValue(f"{name}: expected a multiple of {_UNIT} bytes, got {size}")
        self.num_max_tokens_per_rank = integer("num_max_tokens_per_rank", num_max_tokens_per_rank, 0)
        self.allow_hybrid_mode, self.allow_multiple_reduction = allow_hybrid_mode, allow_multiple_reduction
        self.prefer_overlap_with_compute, self.deterministic = prefer_overlap_with_compute, deterministic
        qps = 129 if allow_hybrid_mode else 17
        self.num_allocated_qps = integer("num_allocated_qps", num_allocated_qps, 0) or qps
        if timeout is None and num_cpu_timeout_secs != _SECONDS:
            timeout = float(num_cpu_timeout_secs)
        self._join(group, num_slots, timeout, explicitly_destroy)
        try:
            self._agreement.meet(f"a Buffer for {num_max_tokens_per_rank} tokens", counts=False)
        except xep.XepError:
            self._close()
            raise
        self.rank_idx, self.num_ranks = self._xep.rank, self._xep.nranks
        once_to_nodes = allow_hybrid_mode and allow_multiple_reduction  # sums of nodes are rounded
        self.num_scaleout_ranks, self.num_scaleup_ranks = self._nodes.logical(once_to_nodes)
        is_hybrid = self.num_scaleout_ranks > 1
        self._pools.options["normal"].update(path="nodes" if is_hybrid else "flat", sum_by_selection=True)
        self._scaleup_ranks = self.num_scaleup_ranks if is_hybrid else 0  # of several logical domains; else 0
        self.scaleout_rank_idx, self.scaleup_rank_idx = divmod(self.rank_idx, self.num_scaleup_ranks)
        self.num_rdma_ranks, self.num_nvlink_ranks = self.get_physical_domain_size()
        self.num_bytes = num_bytes
        if num_bytes is None:
            shape = (num_max_tokens_per_rank, hidden, num_topk, use_fp8_dispatch)
            ways = (allow_hybrid_mode, allow_multiple_reduction, self._is_v25)
            self.num_bytes = size_hint(self._nodes.count, self.num_ranks, *shape, *ways)

    def destroy(self) -> None:
        """See Buffer.destroy(); nothing, where that was done."""
        if not self._destroyed or not self.explicitly_destroy:
            super().destroy()

    @classmethod
    def get_buffer_size_hint(
        cls,
        group: Any,
        num_max_tokens_per_rank: int,
        hidden: int,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
    ) -> int:
        """DeepEP's hint, in bytes; nodes are those of XEP_NODE_RANKS, else of 8 ranks. Here memory is sized by what is
        dispatched, whatever was hinted."""
        ranks = group.size() if callable(group.size) else group.size
        shape = (num_max_tokens_per_rank, hidden, num_topk, use_fp8_dispatch)
        return size_hint(nodes_of(ranks), ranks, *shape, allow_hybrid_mode, allow_multiple_reduction, cls._is_v25)

    @staticmethod
    def capture() -> EventHandle:
        """An event for what is enqueued on the current stream by now. On a CPU what was called has been done."""
        return EventHandle()

    def barrier(self, use_comm_stream: bool = True, with_cpu_sync: bool = False, sequential: bool = True) -> None:
        """Waits until all ranks are here. Collective."""
        self._usable()
        self._xep.barrier()

    def get_physical_domain_size(self) -> tuple[int, int]:
        """(nodes, ranks of the largest node)."""
        return self._nodes.count, self._nodes.width

    def get_logical_domain_size(self) -> tuple[int, int]:
        """(nodes, ranks of one) where rows go once to each node; (1, ranks) where they go straight to their rank."""
        return self.num_scaleout_ranks, self.num_scaleup_ranks

    def get_theoretical_num_sms(
        self,
        num_experts: int,
        num_topk: int,
        num_scaleout_topk: int = 0,
        rdma_gbs: float = 0,
        nvlink_gbs: float = 0,
        sm_read_gbs: float = 200,
        sm_write_gbs: float = 50,
    ) -> int:
        """This rank's share of the machine's processors, as an even number from 4 on, as DeepEP has it. In a program
        that uses a CUDA device: multiprocessors that fill its links."""
        self._check_experts(num_experts)
        if torch.cuda.is_initialized():
            return MULTIPROCESSORS
        return self._default_sms

    def get_theoretical_num_qps(self, num_sms: int) -> int:
        """DeepEP's number, up to num_allocated_qps; there are no queue pairs here."""
        wanted = 16 * num_sms + 1 if self.allow_hybrid_mode else min(num_sms, 9)
        return min(wanted, self.num_allocated_qps)

    # ---- the calls that move tokens ----

    @counted("normal")
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

        x: see Buffer.dispatch(). topk_idx: [T, K] int64 or int32: expert, or -1. topk_weights: [T, K] float32.
        cumulative_local_expert_recv_stats: [L] int32, to which the selections received are added; not with handle.
        num_max_tokens_per_rank: that no rank exceeds; None: the constructor's. expert_alignment: None: 1.
        num_sms: kept in the handle; multiprocessors of a CUDA device, 0: 24, of memory that is made from then on.
            Threads are XEP_THREADS. num_qps: there are none.
        previous_event, previous_event_before_epilogue: it begins after both.
        async_with_compute_stream: returns when the received rows are counted; the event is reached when they are here.
            Until then x and what is received must not be touched.
        handle: of an earlier dispatch, whose routing is used again, with other x and topk_weights.
        do_handle_copy: the handle has a copy of topk_idx; else topk_idx itself, and using it after that was written is
            an AssertionError.
        do_cpu_sync: False: received tensors have the rows that could arrive at most; on a CUDA device nothing waits for
            counts then, once a call has made memory for so many. None: True without handle.
        do_expand: one row for each selection, by local expert, each at a multiple of expert_alignment, then in the
            order of source rank, then token; weights are [rows] then, and recv_topk_idx is None. Else one for each
            token, in the order of source rank, then token. do_zero_padding: the rows between experts are 0.
        use_tma_aligned_col_major_sf: received scales are stored by column, each column at a multiple of 16 bytes.

        Returns (recv_x or (recv_x, recv_scales), recv_topk_idx [N, K] local expert or -1, recv_topk_weights, handle,
        event). Weights of selections of other ranks are 0 (DeepEP: undefined).
        """
        x, scales = arguments.scaled(x) if isinstance(x, tuple) else (x, None)
        where, tokens, hidden = check("x", x, arguments.ANYWHERE, arguments.ANY, -1, -1)
        pool = self._pools[NormalPool, where]
        ordering = pool.here
        ways = (previous_event, async_with_compute_stream, allocate_on_comm_stream, num_sms, num_qps)
        if ways != _COMMON_WAYS:
            ordering = self._order(pool, *ways)
        if do_zero_padding and not do_expand:
            raise WrongValue("do_zero_padding: expected do_expand with it, else there are no gaps")
        given = (x, scales, topk_idx, topk_weights, cumulative_local_expert_recv_stats)
        found = None if handle is None else self._own(handle, pool)
        with ordering:
            if previous_event_before_epilogue is not None:
                _wait_here(previous_event_before_epilogue, pool.on)
            if found is None:
                numbers = (num_experts, num_max_tokens_per_rank, expert_alignment, num_sms)
                how = (do_cpu_sync is None or do_cpu_sync, do_expand, do_handle_copy)
                made, sent = self._begin(pool, (tokens, hidden), given, numbers, how, ordering)
            else:
                known = dict(num_experts=num_experts, num_max_tokens_per_rank=num_max_tokens_per_rank)
                known.update(expert_alignment=expert_alignment)
                if do_cpu_sync:
                    raise WrongValue("do_cpu_sync: expected False or None with handle, which has the counts")
                made, sent = found, self._begin_again(pool, found, given, known, ordering)
            there, left, event = sent[0].recv, None, EventOverlap()
            is_written = found is not None or sent[1] is not None or use_tma_aligned_col_major_sf
            if is_written or (do_expand and (where != 0 or scales is not None or made.worst)):
                may_view = sent[0].buffer.slots_held() <= pool.views
                written = Delivery(made, sent[0], may_view, do_expand, do_zero_padding)
                weighted, cached = topk_weights is not None, found is not None
                received = written.receive(scales, weighted, cached, use_tma_aligned_col_major_sf)
                if sent[1] is None:
                    written.end()
                else:
                    left = Ending(sent[1], written.end)
            elif do_expand:
                counts, alignment = made._counts, made.expert_alignment
                by_row = (there.x, there.topk_weights)
                slots, rows, weights = _ext.expert_expand(there.topk_idx, counts, alignment, *by_row, do_zero_padding)
                made.__dict__["slots"] = slots
                received = [rows, None, None, weights]
            else:
                received = pool.shown(there, None, ordering.copy)
                received[2] = ordering.copy(received[2])  # what is in the slot is the handle's
            if not ordering.quiet:
                event = self._end(ordering, left, made, *given, *received)
            rows, row_scales, indices, weights = received
            rows = rows if rows.dtype == x.dtype else rows.view(x.dtype)
            if scales is not None:
                rows = (rows, row_scales)
        return rows, indices, weights, handle or EPHandle._of(made), event

    def _end(self, ordering: Ordering, left: Any, made: Routed, *tensors: Optional[torch.Tensor]) -> EventOverlap:
        """Of an operation with these tensors, and those of a handle, which has arrived with it."""
        event = ordering.end(left, *tensors, *(made.tensors() if made.on != HOST else ()))
        if event.event is not None and made.on != HOST:
            made.arrives(event.event)
        return event

    def _begin(
        self, pool: NormalPool, shape: tuple[int, int], given: tuple, numbers: tuple, how: tuple, ordering: Ordering
    ) -> tuple[Routed, Sent]:
        """given: x, scales, topk_idx, topk_weights, stats. how: whether rows are counted, go by expert, and topk_idx is
        copied."""
        (tokens, hidden), (x, scales, topk_idx, topk_weights, stats) = shape, given
        (experts, most, alignment, sms), (counts, expand, copies) = numbers, how
        _, _, topk = check("topk_idx", topk_idx, pool.where, arguments.INDEX, tokens, -1)
        most = self.num_max_tokens_per_rank if most is None else integer("num_max_tokens_per_rank", most, 0)
        if tokens > most:
            raise WrongValue(f"x: expected at most num_max_tokens_per_rank, {most}, tokens, got {tokens}")
        if experts not in pool.used:
            self._check_experts(experts)
        if topk_weights is not None:
            check("topk_weights", topk_weights, pool.where, arguments.FLOAT, tokens, topk)
        alignment = 1 if alignment is None else integer("expert_alignment", alignment, 1)
        if stats is not None:
            local = experts // self._xep.nranks
            check("cumulative_local_expert_recv_stats", stats, pool.where, arguments.INT32, local)
        worst = 0 if counts else most * self._xep.nranks
        counted_there = pool.most_of(most) if worst else 0
        if pool.where:
            pool.multiprocessors = sms or MULTIPROCESSORS
        kept = topk_idx.clone() if copies else topk_idx
        job = (experts, x, topk_idx, topk_weights, scales, worst, counted_there)
        expands = expand and ordering.wait and stats is None  # so nothing comes between
        sent = pool.dispatch(ordering.wait, (tokens, hidden, topk), job, after=ordering.after, will_expand=expands)
        sms = align(sms, 2) if sms else MULTIPROCESSORS if pool.where else self._default_sms
        shown = (most, sms, expand, self._scaleup_ranks)
        made = Routed(self._xep, sent, kept, experts, alignment, worst, counted_there, shown)
        if stats is not None:
            stats.add_(made.num_unaligned_recv_tokens_per_expert)
        return made, sent

    def _begin_again(
        self, pool: NormalPool, made: Routed, given: tuple, known: dict[str, Any], ordering: Ordering
    ) -> Sent:
        """Along the routing of a handle. given: as in _begin(). known: attributes of the handle, or None."""
        x, scales, topk_idx, topk_weights, _ = given
        if topk_idx is not None:
            raise WrongValue("topk_idx: expected None with handle, which has the routing")
        for name, value in known.items():
            if value is not None and value != getattr(made, name):
                text = f"{name}: expected {getattr(made, name)} (or None), as of the handle, got {value!r}"
                raise WrongValue(text)
        arguments.check_tokens(made, x)
        extra = scales
        if topk_weights is not None:  # a cached dispatch has none of its own, and scales are moved untouched
            check("topk_weights", topk_weights, pool.where, arguments.FLOAT, made.num_tokens, made.topk)
            extra = topk_weights
            if scales is not None:
                extra = torch.cat([scales.view(torch.int32), extra.view(torch.int32)], dim=1)
        return pool.again(made, x, extra, ordering)

    @counted("normal")
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

        The order is DeepEP's, bit for bit: the biases, then ranks in the order of the token's last selection of each.
        Where the logical domain has several nodes, the ranks of each are summed so and rounded to x's type, then nodes
        are, by the last selection of each. What a rank has after do_expand is rounded, too. Without
        allow_multiple_reduction a token is rounded once, at the end: after do_expand its selections are added one by
        one, k ascending, by a combine for each k.

        x: rows as they were received, bfloat16 (float16 and float32 too); after do_expand by expert.
        topk_weights: [N, K], after do_expand [rows], float32; what the rank of each selection gives of it comes back.
        bias: one or two [T, H] of x's type, added first.

        Returns (combined_x [T, H], combined_topk_weights [T, K] or None, event).
        """
        where, rows, hidden = check("x", x, arguments.ANYWHERE, arguments.COMBINED, -1, -1)
        pool = self._pools[NormalPool, where]
        ordering = pool.here
        ways = (previous_event, async_with_compute_stream, allocate_on_comm_stream, num_sms, num_qps)
        if ways != _COMMON_WAYS:
            ordering = self._order(pool, *ways)
        found = self._own(handle, pool)
        least, most = (found.num_expanded_tokens,) * 2 if found.do_expand else (found.rows, found.capacity)
        if not least <= rows <= most:
            raise WrongValue(f"x: expected the {most} rows received, got {list(x.shape)}")
        biases = () if bias is None else arguments.biases_of(found, x, where, bias)
        with ordering:
            if previous_event_before_epilogue is not None:
                _wait_here(previous_event_before_epilogue, pool.on)
            weights = None if topk_weights is None else self._weights_back(found, x, where, topk_weights)
            combine = pool.combine if self.allow_multiple_reduction or not found.do_expand else self._sum
            columns = ALL if found.do_expand else None
            combined, weights, request = combine(found, hidden, x, weights, biases, ordering, columns)
            event = EventOverlap()
            if not ordering.quiet:
                event = self._end(ordering, request, found, x, topk_weights, *biases, combined, weights)
        return combined, weights, event

    def _sum(self, made: Routed, hidden: int, x: torch.Tensor, *others: Any) -> tuple:
        """As NormalPool.combine(). What is added one by one comes back in a combine for each selection, and is waited
        for."""
        (weights, biases, ordering, _), pool = others, self._pools[NormalPool, x.get_device() + 1]
        total = torch.zeros((made.num_tokens, hidden), dtype=torch.float32, device=x.device)
        for bias in biases:
            total += bias
        returned, last = None, max(0, made.topk - 1)
        for k in range(last + 1):
            given = (None if k < last else weights, (), ordering, slice(k, k + 1))
            part, returned, request = pool.combine(made, hidden, x, *given)
            if request is not None:
                request.wait()
            total += part
            if part.is_cuda:  # allocated as for the current stream, which does not wait for this one
                part.record_stream(torch.cuda.current_stream(part.device))
        return total.to(x.dtype), returned, None

    # ---- arguments ----

    def _order(
        self, pool: NormalPool, previous_event: Any, asynchronous: bool, on_comm: bool, num_sms: int, num_qps: int
    ) -> Ordering:
        if previous_event is not None and not on_comm:
            raise WrongValue("allocate_on_comm_stream: expected True with previous_event")
        integer("num_sms", num_sms, 0)
        if integer("num_qps", num_qps, 0) > self.num_allocated_qps:
            raise WrongValue(f"num_qps: expected at most num_allocated_qps, {self.num_allocated_qps}, got {num_qps}")
        return self._ordering(pool, previous_event, asynchronous, on_comm)

    def _own(self, handle: Any, pool: NormalPool) -> Routed:
        """Of a handle that a dispatch of this Buffer made; or a program, which is collective the first time."""
        if not isinstance(handle, EPHandle):
            raise WrongType(f"handle: expected an EPHandle, got {type(handle).__name__}")
        if handle._made is None or -1 < handle._version != handle._topk_idx._version:
            topk_idx = handle.topk_idx  # or the error
            x = torch.zeros((topk_idx.shape[0], 1), dtype=torch.uint8, device=topk_idx.device)
            options = dict(num_experts=handle.num_experts, num_max_tokens_per_rank=handle.num_max_tokens_per_rank)
            options.update(expert_alignment=handle.expert_alignment, do_expand=handle.do_expand, do_handle_copy=False)
            options.update(num_sms=handle.num_sms, do_cpu_sync=bool(handle.num_recv_tokens_per_expert_list))
            handle._made = ElasticBuffer.dispatch(self, x, topk_idx, **options)[3]._made
        self._check_own(handle._made, pool)
        return handle._made

    def _weights_back(self, handle: Routed, x: torch.Tensor, where: int, weights: torch.Tensor) -> torch.Tensor:
        """[N, K], 0 where the selection is another rank's: sums are what that rank gave."""
        if handle.do_expand:
            check("topk_weights", weights, where, arguments.FLOAT, x.shape[0])
            return handle.fold_selections(weights)
        check("topk_weights", weights, where, arguments.FLOAT, x.shape[0], handle.topk)
        found = weights.clone()
        found[: handle.rows].masked_fill_(handle.recv_topk_idx < 0, 0.0)
        return found

    # ---- doing it ----

    @functools.cached_property
    def _default_sms(self) -> int:
        """This rank's share of the machine's processors, as an even number from 4 on, as DeepEP has it."""
        return max(4, align(processors(self._xep), 2))


calls_of(ElasticBuffer)


# ---- sizes ----


def size_hint(
    nodes: int, ranks: int, tokens: int, hidden: int, topk: int, fp8: bool, hybrid: bool, multiple: bool, v25: bool
) -> int:
    """DeepEP's: the larger of what dispatch and combine need."""
    topk = topk or _MOST_TOPK
    each, ways = ranks // nodes, 1 if multiple else topk
    packs = 4 * ceil_div(hidden, 32 if v25 else 128) if fp8 else 0
    parts = (hidden if fp8 else 2 * hidden, packs, 12 * topk + 4), (2 * hidden, 8 * topk)
    sent, back = (align(sum(align(part, _PART) for part in of), 64 if v25 else _PART) for of in parts)
    if hybrid and nodes > 1:
        ring = nodes * (tokens + _CHANNEL_TOKENS)
        up, out = (min(each, topk), min(nodes, topk)) if multiple else (topk, topk)
        there = sent * (ranks * tokens + tokens + ring)
        home = back * (up * nodes * tokens + out * tokens + ways * ring)
    else:
        apart = nodes > 1
        there = sent * (ranks * tokens + (tokens if apart else 0))
        home = back * tokens * ((min(ranks, topk) if multiple else topk) + (ranks * ways if apart else 0))
    return align(max(there, home), _UNIT)
