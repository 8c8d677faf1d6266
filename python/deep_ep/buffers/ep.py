# SPDX-License-Identifier: BSD-3-Clause
"""V2.5's EPBuffer: dispatch and combine as ElasticBuffer has them, with handles that keep topk_idx itself, results that
are made when they are waited for, and copies of experts on other ranks."""

from __future__ import annotations

from typing import Any, Optional, Union

import torch

from ..arguments import WrongUse, WrongValue, integer, without
from ..elastic import ElasticBuffer
from ..utils.event import EventOverlap, request_of
from .base import ALLOCATION, BufferAllocator, BufferBase, storage_of
from .redundant import RedundantExperts, Tensors

_SECONDS = 300


class EPBuffer(ElasticBuffer, BufferBase):
    """Dispatch and combine of MoE tokens, of CPU tensors or those of a CUDA device; collective to make.

    group, num_bytes, num_max_tokens_per_rank, hidden, num_topk, use_fp8_dispatch, deterministic, allow_hybrid_mode,
    allow_multiple_reduction, prefer_overlap_with_compute, num_allocated_qps, num_cpu_timeout_secs,
    num_gpu_timeout_secs, explicitly_destroy, num_slots, timeout: see ElasticBuffer. Without num_bytes there must be
    num_max_tokens_per_rank and hidden. sl_idx: UCX's choice here (UCX_IB_SL).
    dispatch and combine: see ElasticBuffer's, and what they say of V2.5.
    lb_allocation_plan_or_num_bytes: a plan, or bytes, of what lb_prefetch_weights and lb_reduce_grads have copies in,
        on torch's default device. Plans are alike on all ranks.
    """

    _is_v25 = True

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
            num_bytes,
            num_max_tokens_per_rank=num_max_tokens_per_rank,
            hidden=hidden,
            num_topk=num_topk,
            use_fp8_dispatch=use_fp8_dispatch,
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
        self.num_lb_bytes = storage.nbytes
        self._redundant = RedundantExperts(self._xep, self._nodes, storage) if self.num_lb_bytes else None
        del storage

    def barrier(  # type: ignore[override]
        self,
        wait_comm_stream: bool = True,
        with_cpu_sync: bool = False,
        sequential: bool = True,
        context_idx: Optional[int] = None,
    ) -> None:
        """Waits until all ranks are here. Collective."""
        super().barrier(wait_comm_stream, with_cpu_sync, sequential)

    dispatch = without(ElasticBuffer.dispatch, "previous_event_before_epilogue")
    combine = without(ElasticBuffer.combine, "previous_event_before_epilogue")

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

        Done when the call returns, which waits for the ranks of the node; the event is reached. On a CUDA device it is
        on the Buffer's stream, behind previous_event or else the current stream, and the event is of that.
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
        given = [*([own] if isinstance(own, torch.Tensor) else own), mapping]
        request = request_of(previous_event) if mapping.is_cpu else None
        if request is not None:
            request.wait()
        with self._ordering(mapping.device, None if mapping.is_cpu else previous_event, True, False) as ordering:
            getattr(self._redundant, what)(redundant, own, mapping)
            return ordering.end(None, *given)

    def _close(self) -> None:
        redundant, self._redundant = self._redundant, None
        if redundant is not None:
            redundant.close()
        super()._close()


def _no(name: str, what: str) -> type:
    def refuse(self: Any, *_arguments: Any, **_options: Any) -> None:
        raise NotImplementedError(f"{name}: {what}")

    return type(name, (BufferBase,), {"__init__": refuse, "__doc__": "Not available.", "__module__": __name__})


EngramBuffer = _no("EngramBuffer", "the remote table of engram is not available in xep")
PPBuffer = _no("PPBuffer", "pipeline send and receive are not available in xep; torch.distributed's send and recv are")
