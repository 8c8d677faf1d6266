# SPDX-License-Identifier: BSD-3-Clause
"""V2.5's EPBuffer: dispatch and combine as ElasticBuffer has them, with handles that keep topk_idx itself, results that
are made when they are waited for, and copies of experts on other ranks."""

from __future__ import annotations

import inspect
from typing import Any, Callable, Optional, Union

import torch

from ..arguments import WrongType, WrongUse, WrongValue, counted, integer, leave_to_python, version_of
from ..core import NormalPool
from ..elastic import ElasticBuffer
from ..handles import EPHandle
from ..utils.event import EventOverlap, request_of
from .base import ALLOCATION, BufferAllocator, BufferBase, storage_of, without
from .redundant import RedundantExperts, Tensors

_SECONDS = 300


# ---- what V2.5's calls have, or refuse, that V2's do not ----


def _check_dispatch(
    handle: Any = None,
    do_handle_copy: bool = False,
    do_expand: bool = False,
    cumulative_local_expert_recv_stats: Any = None,
    **_others: Any,
) -> None:
    """What DeepEP refuses, or does wrong without a word."""
    if do_handle_copy:
        raise WrongValue("do_handle_copy: expected False: the handle has topk_idx itself")
    if isinstance(handle, EPHandle) and bool(do_expand) != handle.do_expand:
        raise WrongValue(f"do_expand: expected {handle.do_expand}, as of the handle, got {bool(do_expand)}")
    if handle is not None and cumulative_local_expert_recv_stats is not None:
        raise WrongValue("cumulative_local_expert_recv_stats: expected None with handle")


def _check_combine(bias: Any = None, **_others: Any) -> None:
    if not (bias is None or isinstance(bias, (torch.Tensor, tuple))):
        raise WrongType(f"bias: expected a tensor or a tuple of two, got {type(bias).__name__}")


def _deferred(event: EventOverlap, results: tuple, bias: Any) -> EventOverlap:
    biases = bias if isinstance(bias, tuple) else (bias,)
    versions = [(one, version_of(one)) for one in biases if one is not None]

    def hand_over() -> tuple:
        if any(version_of(one) != version for one, version in versions):
            raise WrongUse("bias: it was written between combine and the wait for it, and is read by the call here")
        return results

    event.register_hook_after_wait(hand_over)
    return event


def _of_v25(call: Any, check: Callable[..., None], **defaults: Any) -> Any:
    """call of V2's, with other defaults, without previous_event_before_epilogue, and with defer_epilogue at the end."""
    shorter = without(call, "previous_event_before_epilogue")
    defaults["defer_epilogue"] = False
    last = inspect.Parameter("defer_epilogue", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    known = [*inspect.signature(shorter).parameters.values(), last]
    signature = inspect.Signature([one.replace(default=defaults.get(one.name, one.default)) for one in known])
    names = list(signature.parameters)[1:]

    @counted("normal")
    def made(self: Any, *given: Any, **options: Any) -> Any:
        named = {**dict(zip(names, given)), **options}
        if len(named) < len(given) + len(options):  # more than there are, or one of them twice
            signature.bind(self, *given, **options)
        named = {**defaults, **named}
        deferred = named.pop("defer_epilogue")
        check(**named)
        if deferred and not named.get("async_with_compute_stream"):
            raise WrongValue("defer_epilogue: expected async_with_compute_stream with it")
        *results, event = shorter(self, **named)
        return _deferred(event, tuple(results), named.get("bias")) if deferred else (*results, event)

    made.__name__ = made.__qualname__ = call.__name__
    made.__doc__ = call.__doc__
    made.__signature__ = signature  # type: ignore[attr-defined]
    leave_to_python(made)
    return made


class EPBuffer(ElasticBuffer, BufferBase):
    """Dispatch and combine of MoE tokens, of CPU tensors or those of a CUDA device; collective to make.

    group, num_bytes, num_max_tokens_per_rank, hidden, num_topk, use_fp8_dispatch, deterministic, allow_hybrid_mode,
    allow_multiple_reduction, prefer_overlap_with_compute, num_allocated_qps, num_cpu_timeout_secs,
    num_gpu_timeout_secs, explicitly_destroy, num_slots, timeout: see ElasticBuffer. Without num_bytes there must be
    num_max_tokens_per_rank and hidden. sl_idx: UCX's choice here (UCX_IB_SL).
    dispatch and combine: see ElasticBuffer's. The handle has topk_idx itself, and no copy (do_handle_copy). bias is a
        tensor or a tuple, of which either may be None. defer_epilogue, with async_with_compute_stream: returns the
        event alone, and its first wait returns (recv_x, recv_topk_idx, recv_topk_weights, handle), or (combined_x,
        combined_topk_weights). Rows are counted before dispatch returns (DeepEP: in the wait), and several may be
        waited for in any order. combine reads bias from the call on (DeepEP: in the wait): written in between, it is
        an error of the wait.
    lb_allocation_plan_or_num_bytes: a plan, or bytes, of what lb_prefetch_weights and lb_reduce_grads have copies in,
        on torch's default device. Plans are alike on all ranks.
    """

    _is_v25 = True
    _redundant: Optional[RedundantExperts] = None

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

    dispatch = _of_v25(ElasticBuffer.dispatch, _check_dispatch, do_handle_copy=False)
    combine = _of_v25(ElasticBuffer.combine, _check_combine)

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
        pool = self._pools[NormalPool, mapping.get_device() + 1]
        with self._ordering(pool, None if mapping.is_cpu else previous_event, True, False) as ordering:
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
