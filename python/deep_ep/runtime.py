# SPDX-License-Identifier: BSD-3-Clause
"""The inner object `runtime` of a Buffer: what programs ask of DeepEP's compiled class."""

from __future__ import annotations

import weakref
from typing import Any, NoReturn

import torch

from .arguments import WrongUse

_AS_BUFFER = frozenset((
    "barrier", "clean_low_latency_buffer", "destroy", "get_comm_stream", "get_local_buffer_tensor",
    "get_logical_domain_size", "get_physical_domain_size", "get_next_low_latency_combine_buffer",
    "low_latency_clean_mask_buffer", "low_latency_query_mask_buffer", "low_latency_update_mask_buffer",
))  # fmt: skip


class Runtime:
    """Ranks of a node are what DeepEP calls NVLink ranks, nodes are its RDMA ranks. Calls that the Buffer has too, with
    the same arguments, are the Buffer's.

    The calls that move tokens take and return what DeepEP's compiled ones do, by position: tensors instead of handles,
    None where there is nothing, an EventHandle or None. As tensors are not handles, a combine costs a dispatch of
    nearly empty rows, as does a dispatch with those of another (see Buffer.dispatch).
    """

    def __init__(self, buffer: Any) -> None:
        self._buffer = weakref.ref(buffer)

    def is_available(self) -> bool:
        buffer = self._buffer()
        return buffer is not None and not buffer._destroyed

    def is_internode_available(self) -> bool:
        """Whether there are other nodes to be reached."""
        return self.is_available() and self.get_num_rdma_ranks() > 1

    def get_num_rdma_ranks(self) -> int:
        """Nodes: the ranks of one map one another's memory."""
        return self._alive()._nodes.count

    def get_rdma_rank(self) -> int:
        """This rank's node."""
        buffer = self._alive()
        return buffer._nodes.node_of[buffer._xep.rank]

    def get_root_rdma_rank(self, global_root: bool) -> int:
        """This rank's place on its node; 0 unless global."""
        buffer = self._alive()
        return buffer._nodes.place_of[buffer._xep.rank] if global_root else 0

    def get_local_device_id(self) -> int:
        """The CUDA device that the Buffer is on; else 0, the host."""
        queue = self._alive()._queue
        return 0 if queue is None else queue.device.index

    # ---- what has no meaning here ----

    def get_local_ipc_handle(self) -> NoReturn:
        raise NotImplementedError("get_local_ipc_handle: xep shares memory by itself and gives no handle of it")

    def get_local_nvshmem_unique_id(self) -> NoReturn:
        raise NotImplementedError("get_local_nvshmem_unique_id: there is no NVSHMEM in xep")

    def sync(self, *_arguments: Any) -> NoReturn:
        raise NotImplementedError("sync: the ranks of a Buffer are connected when it is made")

    # ---- normal mode ----

    def get_dispatch_layout(
        self, topk_idx: Any, num_experts: int, previous_event: Any, async_finish: bool, on_comm_stream: bool
    ) -> tuple:
        *layout, event = self._alive().get_dispatch_layout(
            topk_idx, num_experts, previous_event, async_finish, on_comm_stream
        )
        return (*layout, event.event)

    def intranode_dispatch(
        self, x: Any, x_scales: Any, topk_idx: Any, topk_weights: Any, per_rank: Any, in_rank: Any, per_expert: Any,
        cached_num_recv_tokens: int, cached_rank_prefix_matrix: Any, cached_channel_prefix_matrix: Any, *options: Any,
    ) -> tuple:  # fmt: skip
        """options: expert_alignment, num_worst_tokens, config, previous_event, async_finish,
        allocate_on_comm_stream."""
        handle = None
        if cached_rank_prefix_matrix is not None:
            sources = in_rank.new_empty(cached_num_recv_tokens, dtype=torch.int32)
            handle = (cached_rank_prefix_matrix, cached_channel_prefix_matrix, None, sources, in_rank, None)
        rank_prefix, channel_prefix, recv_channel_prefix, recv_src_idx, _, send_head = range(6)
        shown = (rank_prefix, channel_prefix, recv_channel_prefix, recv_src_idx, send_head)
        layout = (per_rank, None, in_rank, per_expert)
        return self._dispatch(x, x_scales, handle, layout, topk_idx, topk_weights, options, shown)

    def internode_dispatch(
        self, x: Any, x_scales: Any, topk_idx: Any, topk_weights: Any, per_rank: Any, per_node: Any, in_rank: Any,
        per_expert: Any, cached_num_recv_tokens: int, cached_num_rdma_recv_tokens: int,
        cached_rdma_channel_prefix_matrix: Any, cached_recv_rdma_rank_prefix_sum: Any,
        cached_gbl_channel_prefix_matrix: Any, cached_recv_gbl_rank_prefix_sum: Any, *options: Any,
    ) -> tuple:  # fmt: skip
        """options: as of intranode_dispatch."""
        handle = None
        if cached_rdma_channel_prefix_matrix is not None:
            meta = in_rank.new_empty((cached_num_recv_tokens, 8), dtype=torch.uint8)
            handle = (in_rank, *(None,) * 5, cached_recv_gbl_rank_prefix_sum, meta, None, None)
        layout = (per_rank, per_node, in_rank, per_expert)
        return self._dispatch(x, x_scales, handle, layout, topk_idx, topk_weights, options, range(1, 10))

    def intranode_combine(
        self, x: Any, topk_weights: Any, bias_0: Any, bias_1: Any, src_idx: Any, rank_prefix_matrix: Any,
        channel_prefix_matrix: Any, send_head: Any, *options: Any,
    ) -> tuple:  # fmt: skip
        """options: config, previous_event, async_finish, allocate_on_comm_stream."""
        handle = (rank_prefix_matrix, channel_prefix_matrix, None, src_idx, send_head >= 0, send_head)
        return self._combine(x, handle, topk_weights, (bias_0, bias_1), options)

    def internode_combine(
        self, x: Any, topk_weights: Any, bias_0: Any, bias_1: Any, src_meta: Any, in_rank: Any,
        rdma_channel_prefix_matrix: Any, rdma_rank_prefix_sum: Any, gbl_channel_prefix_matrix: Any, rdma_head: Any,
        nvl_head: Any, *options: Any,
    ) -> tuple:  # fmt: skip
        """options: as of intranode_combine."""
        count = (src_meta.view(torch.int32)[:, 0] >= 0).sum(dtype=torch.int32)
        handle = (in_rank, *(None,) * 5, count.expand(self._alive().group_size).contiguous(), src_meta, None, None)
        return self._combine(x, handle, topk_weights, (bias_0, bias_1), options)

    def _dispatch(
        self, x: Any, x_scales: Any, handle: Any, layout: tuple, topk_idx: Any, topk_weights: Any, options: tuple,
        shown: Any,
    ) -> tuple:  # fmt: skip
        rows = x if x_scales is None else (x, x_scales)
        recv_x, recv_idx, recv_weights, counts, made, event = self._alive().dispatch(
            rows, handle, *layout, topk_idx, topk_weights, *options
        )
        recv_scales = None
        if x_scales is not None:
            recv_x, recv_scales = recv_x
        tensors = (made[i] for i in shown) if made is not None else (None for _ in shown)
        return (recv_x, recv_scales, recv_idx, recv_weights, counts, *tensors, event.event)

    def _combine(self, x: Any, handle: tuple, topk_weights: Any, bias: tuple, options: tuple) -> tuple:
        *combined, event = self._alive().combine(x, handle, topk_weights, bias, *options)
        return (*combined, event.event)

    # ---- low latency ----

    def low_latency_dispatch(self, x: Any, topk_idx: Any, *options: Any) -> tuple:
        """options: cumulative_local_expert_recv_stats, dispatch_wait_recv_cost_stats, num_max_dispatch_tokens_per_rank,
        num_experts, use_fp8, round_scale, use_ue8m0, async_finish, return_recv_hook."""
        stats, sizes, how = options[:2], options[2:4], options[4:]
        recv_x, count, handle, event, hook = self._alive().low_latency_dispatch(x, topk_idx, *sizes, *stats, *how)
        rows, scales = recv_x if isinstance(recv_x, tuple) else (recv_x, None)
        return (rows, scales, count, handle[0], handle[1], event.event, hook)

    def low_latency_combine(
        self, x: Any, topk_idx: Any, topk_weights: Any, src_info: Any, layout_range: Any, wait_stats: Any, most: int,
        num_experts: int, use_logfmt: bool, zero_copy: bool, async_finish: bool, return_recv_hook: bool,
        out: Any = None,
    ) -> tuple:  # fmt: skip
        """wait_stats: combine_wait_recv_cost_stats; most: num_max_dispatch_tokens_per_rank."""
        how = (use_logfmt, zero_copy, async_finish, return_recv_hook, out, wait_stats)
        handle = (src_info, layout_range, most, x.shape[-1], num_experts)
        combined, event, hook = self._alive().low_latency_combine(x, topk_idx, topk_weights, handle, *how)
        return combined, event.event, hook

    def __getattr__(self, name: str) -> Any:
        if name not in _AS_BUFFER:
            raise AttributeError(f"buffer.runtime: there is no {name} (calls of DeepEP's compiled Buffer are there)")
        return getattr(self._alive(), name)

    def _alive(self) -> Any:
        buffer = self._buffer()
        if buffer is None:
            raise WrongUse("the Buffer is gone")
        return buffer
