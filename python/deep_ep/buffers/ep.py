# SPDX-License-Identifier: BSD-3-Clause
"""V2.5's EPBuffer: dispatch and combine as ElasticBuffer has them, with handles that keep topk_idx itself, results that
are made when they are waited for, and copies of experts on other ranks."""

from __future__ import annotations

from typing import Any, Optional, Union

import torch

from ..arguments import Rows, WrongType, WrongUse, WrongValue, integer
from ..compat import nodes_of
from ..elastic import ElasticBuffer
from ..ep_handle import EPHandle
from ..utils.event import EventHandle, EventOverlap
from ..utils.math import align, ceil_div
from .base import ALLOCATION, ROW, BufferAllocator, BufferBase, storage_of
from .redundant import RedundantExperts, Tensors

_TOKEN = 64  # bytes, of which a token is a multiple
_CHANNEL_TOKENS = 1280
_MOST_TOPK = 32
_SECONDS = 300


class EPBuffer(ElasticBuffer, BufferBase):
    """Dispatch and combine of MoE tokens, of CPU tensors or those of a CUDA device; collective to make.

    group, num_bytes, num_max_tokens_per_rank, hidden, num_topk, use_fp8_dispatch, deterministic, allow_hybrid_mode,
    allow_multiple_reduction, prefer_overlap_with_compute, num_allocated_qps, num_cpu_timeout_secs,
    num_gpu_timeout_secs, explicitly_destroy, num_slots, timeout: see ElasticBuffer. Without num_bytes there must be
    num_max_tokens_per_rank and hidden. sl_idx: UCX's choice here (UCX_IB_SL).
    lb_allocation_plan_or_num_bytes: a plan, or bytes, of what lb_prefetch_weights and lb_reduce_grads have copies in,
        on torch's default device. Plans are alike on all ranks.
    """

    def __init__(
        self,
        group: Any = None,
        num_bytes: Optional[int] = None,
        num_max_tokens_per_rank: int = 0,
        hidden: int = 0,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        lb_allocation_plan_or_num_bytes: Union[BufferAllocator, int] = 0,
        deterministic: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
        prefer_overlap_with_compute: bool = True,
        sl_idx: Optional[int] = None,
        num_allocated_qps: int = 0,
        num_cpu_timeout_secs: float = _SECONDS,
        num_gpu_timeout_secs: float = 100,
        explicitly_destroy: bool = False,
        *,
        num_slots: int = 4,
        timeout: Optional[float] = None,
    ) -> None:
        sizes = (num_max_tokens_per_rank, hidden)
        if num_bytes is None and min(integer("num_max_tokens_per_rank, hidden", size, 0) for size in sizes) == 0:
            raise WrongValue("num_max_tokens_per_rank, hidden: expected both, or num_bytes")
        if num_bytes is not None and integer("num_bytes", num_bytes, 1) % ALLOCATION:
            raise WrongValue(f"num_bytes: expected a multiple of {ALLOCATION}, got {num_bytes}")
        storage = storage_of("lb_allocation_plan_or_num_bytes", lb_allocation_plan_or_num_bytes, 0)
        super().__init__(
            group,
            ALLOCATION if num_bytes is None else num_bytes,
            num_max_tokens_per_rank=num_max_tokens_per_rank,
            deterministic=deterministic,
            allow_hybrid_mode=allow_hybrid_mode,
            allow_multiple_reduction=allow_multiple_reduction,
            prefer_overlap_with_compute=prefer_overlap_with_compute,
            num_allocated_qps=num_allocated_qps,
            num_cpu_timeout_secs=num_cpu_timeout_secs,
            num_gpu_timeout_secs=num_gpu_timeout_secs,
            explicitly_destroy=explicitly_destroy,
            num_slots=num_slots,
            timeout=timeout,
        )
        if num_bytes is None:
            nodes, shape = self._nodes.count, (num_max_tokens_per_rank, hidden, num_topk, use_fp8_dispatch)
            each = self.num_ranks // nodes
            self.num_bytes = _size_hint(nodes, each, *shape, allow_hybrid_mode, allow_multiple_reduction)
        self.num_lb_bytes = storage.nbytes
        self._redundant = RedundantExperts(self._xep, self._nodes, storage) if self.num_lb_bytes else None
        del storage

    @staticmethod
    def get_buffer_size_hint(
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
        nodes = nodes_of(ranks)
        shape = (num_max_tokens_per_rank, hidden, num_topk, use_fp8_dispatch)
        return _size_hint(nodes, ranks // nodes, *shape, allow_hybrid_mode, allow_multiple_reduction)

    def barrier(  # type: ignore[override]
        self,
        wait_comm_stream: bool = True,
        with_cpu_sync: bool = False,
        sequential: bool = True,
        context_idx: Optional[int] = None,
    ) -> None:
        """Waits until all ranks are here. Collective."""
        super().barrier(wait_comm_stream, with_cpu_sync, sequential)

    def dispatch(  # type: ignore[override]
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
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
        handle: Optional[EPHandle] = None,
        do_handle_copy: bool = False,
        do_cpu_sync: Optional[bool] = None,
        do_expand: bool = False,
        do_zero_padding: bool = False,
        use_tma_aligned_col_major_sf: bool = False,
        defer_epilogue: bool = False,
    ) -> Any:
        """Sends every token once to each rank that has one of its experts. Collective. See ElasticBuffer.dispatch;
        else:

        handle: the one that is returned, too; do_expand as it was then.
        do_handle_copy: False: the handle has topk_idx itself, and using it after that was written is an AssertionError.
        num_sms: 0: those of get_theoretical_num_sms(); the handle says how many.
        defer_epilogue: with async_with_compute_stream: returns the event alone, and its first wait returns (recv_x,
            recv_topk_idx, recv_topk_weights, handle). The rows are counted before the call returns (DeepEP: in the
            wait), and several may be waited for in any order.
        """
        if do_handle_copy:
            raise WrongValue("do_handle_copy: expected False: the handle has topk_idx itself")
        self._check_deferred(defer_epilogue, async_with_compute_stream)
        made = self._made_of(handle)
        if handle is not None and bool(do_expand) != handle.do_expand:
            raise WrongValue(f"do_expand: expected {handle.do_expand}, as of the handle, got {bool(do_expand)}")
        if handle is not None and cumulative_local_expert_recv_stats is not None:
            raise WrongValue("cumulative_local_expert_recv_stats: expected None with handle")
        recv_x, recv_idx, recv_weights, made, event = super().dispatch(
            x,
            topk_idx,
            topk_weights,
            cumulative_local_expert_recv_stats,
            num_experts=num_experts,
            num_max_tokens_per_rank=num_max_tokens_per_rank,
            expert_alignment=expert_alignment,
            num_sms=num_sms,
            num_qps=num_qps,
            previous_event=previous_event,
            async_with_compute_stream=async_with_compute_stream,
            allocate_on_comm_stream=allocate_on_comm_stream,
            handle=made,
            do_handle_copy=False,
            do_cpu_sync=do_cpu_sync,
            do_expand=do_expand,
            do_zero_padding=do_zero_padding,
            use_tma_aligned_col_major_sf=use_tma_aligned_col_major_sf,
        )
        if handle is None:
            assert topk_idx is not None
            handle = EPHandle._of(made, topk_idx)
        results = (recv_x, recv_idx, recv_weights, handle)
        return _deferred(event, results) if defer_epilogue else (*results, event)

    def combine(  # type: ignore[override]
        self,
        x: torch.Tensor,
        handle: EPHandle,
        topk_weights: Optional[torch.Tensor] = None,
        bias: Union[torch.Tensor, tuple[Optional[torch.Tensor], ...], None] = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: Any = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
        defer_epilogue: bool = False,
    ) -> Any:
        """Sums what the ranks of a token's experts have made of it, unweighted, in fp32: [T, H]. Collective. See
        ElasticBuffer.combine; else:

        bias: a tensor or a tuple of two, of which either may be None.
        defer_epilogue: with async_with_compute_stream: returns the event alone, and its first wait returns (combined_x,
            combined_topk_weights). bias is read from the call on (DeepEP: in the wait): written in between, it is an
            error of the wait.
        """
        self._check_deferred(defer_epilogue, async_with_compute_stream)
        if bias is not None and not isinstance(bias, (torch.Tensor, tuple)):
            raise WrongType(f"bias: expected a tensor or a tuple of two, got {type(bias).__name__}")
        if handle is None:
            raise WrongType("handle: expected an EPHandle, got None")
        combined, weights, event = super().combine(
            x,
            self._made_of(handle),
            topk_weights,
            bias,  # type: ignore[arg-type]
            num_sms=num_sms,
            num_qps=num_qps,
            previous_event=previous_event,
            async_with_compute_stream=async_with_compute_stream,
            allocate_on_comm_stream=allocate_on_comm_stream,
        )
        if not defer_epilogue:
            return combined, weights, event
        biases = (bias,) if isinstance(bias, torch.Tensor) else bias or ()
        return _deferred(event, (combined, weights), [one for one in biases if one is not None])

    def _made_of(self, handle: Any) -> Any:
        """Of the ElasticBuffer that this is."""
        if handle is None:
            return None
        if not isinstance(handle, EPHandle):
            raise WrongType(f"handle: expected an EPHandle, got {type(handle).__name__}")
        return handle._dispatched(super().dispatch)

    @staticmethod
    def _check_deferred(deferred: bool, asynchronous: bool) -> None:
        if deferred and not asynchronous:
            raise WrongValue("defer_epilogue: expected async_with_compute_stream with it")

    # ---- copies of experts ----

    def lb_get_theoretical_num_sms(self) -> int:
        """This rank's share of the machine's processors, as an even number from 4 on."""
        return self.get_theoretical_num_sms(self.num_ranks, 1)

    def lb_prefetch_weights(
        self,
        redundant_expert_weights: Tensors,
        expert_weights: Tensors,
        redundancy_mapping: torch.Tensor,
        num_sms: int = 0,
        previous_event: Any = None,
    ) -> EventOverlap:
        """Brings the weights of experts to the ranks that have copies of them. Collective over a node.

        redundant_expert_weights: a tensor [S, ...], or up to 16, in the buffer's memory for them. expert_weights: as
            many, [L, ...], as many bytes of an expert, a multiple of 32.
        redundancy_mapping: [n, S] int32, alike on all n ranks of the node: whose weights each rank's slot is for, owner
            * L + local expert, the owner by its place on the node; -1: the slot stays as it is. No rank has a copy of
            its own experts.

        Done when the call returns, which waits for the ranks of the node; the event is reached.
        """
        return self._exchange("prefetch", redundant_expert_weights, expert_weights, redundancy_mapping, previous_event)

    def lb_reduce_grads(
        self,
        redundant_expert_grads: torch.Tensor,
        expert_grads: torch.Tensor,
        redundancy_mapping: torch.Tensor,
        num_sms: int = 0,
        previous_event: Any = None,
    ) -> EventOverlap:
        """Adds the gradients of copies to those of their experts. Collective over a node; see lb_prefetch_weights.

        redundant_expert_grads: [S, h] float32, left as they are. expert_grads: [L, h] float32, to which those of ranks
            ascending are added in fp32; of several slots of one rank the sum is, slots ascending.
        """
        return self._exchange("reduce", redundant_expert_grads, expert_grads, redundancy_mapping, previous_event)

    def _exchange(self, what: str, redundant: Any, own: Any, mapping: Any, previous_event: Any) -> EventOverlap:
        self._usable()
        if self._redundant is None:
            raise WrongUse("the buffer has no memory for copies of experts: lb_allocation_plan_or_num_bytes was 0")
        if previous_event is not None:
            previous_event.current_stream_wait()
        getattr(self._redundant, what)(redundant, own, mapping)
        return EventOverlap(EventHandle())

    def _close(self) -> None:
        redundant, self._redundant = self._redundant, None
        if redundant is not None:
            redundant.close()
        super()._close()


def _deferred(event: EventOverlap, results: tuple, biases: Optional[list[torch.Tensor]] = None) -> EventOverlap:
    versions = [(one, one._version) for one in biases or [] if not one.is_inference()]

    def hand_over() -> tuple:
        if any(one._version != version for one, version in versions):
            raise WrongUse("bias: it was written between combine and the wait for it, and is read by the call here")
        return results

    event.register_hook_after_wait(hand_over)
    return event


def _size_hint(
    nodes: int, each: int, tokens: int, hidden: int, topk: int, fp8: bool, hybrid: bool, multiple: bool
) -> int:
    """DeepEP's: the larger of what dispatch and combine need."""
    topk, ranks, ways = topk or _MOST_TOPK, nodes * each, 1 if multiple else topk or _MOST_TOPK
    packs = 4 * ceil_div(hidden, 32) if fp8 else 0
    parts = (hidden if fp8 else 2 * hidden, packs, 12 * topk + 4), (2 * hidden, 8 * topk)
    sent, back = (align(sum(align(part, ROW) for part in of_token), _TOKEN) for of_token in parts)
    if hybrid and nodes > 1:
        ring = nodes * (tokens + _CHANNEL_TOKENS)
        up, out = (min(each, topk), min(nodes, topk)) if multiple else (topk, topk)
        there = sent * (ranks * tokens + tokens + ring)
        home = back * (up * nodes * tokens + out * tokens + ways * ring)
    else:
        apart = nodes > 1
        there = sent * (ranks * tokens + (tokens if apart else 0))
        home = back * tokens * ((min(ranks, topk) if multiple else topk) + (ranks * ways if apart else 0))
    return align(max(there, home), ALLOCATION)


def _no(name: str, what: str) -> type:
    def refuse(self: Any, *_arguments: Any, **_options: Any) -> None:
        raise NotImplementedError(f"{name}: {what}")

    return type(name, (BufferBase,), {"__init__": refuse, "__doc__": "Not available.", "__module__": __name__})


EngramBuffer = _no("EngramBuffer", "the remote table of engram is not available in xep")
PPBuffer = _no("PPBuffer", "pipeline send and receive are not available in xep; torch.distributed's send and recv are")
