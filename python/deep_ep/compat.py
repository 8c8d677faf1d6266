# SPDX-License-Identifier: BSD-3-Clause
"""What DeepEP has beside its buffers: tuning values, size hints, and `runtime`, the object of DeepEP's compiled class
in a Buffer."""

from __future__ import annotations

import dataclasses
from typing import Any, Iterable

import torch

import xep

from .arguments import WrongType, WrongValue
from .utils.math import align

# ---- tuning values and hints ----


topk_idx_t = torch.int64

ALIGNMENT = 128  # bytes, of buffer sizes
_MOST_TOPK = _MOST_SCALES = 128  # that the hints make room for
_SOURCE_META = 8  # bytes


@dataclasses.dataclass(eq=False)
class Config:
    """Chunks and ring capacities in tokens, with DeepEP's rules of validity.

    There are no rings here: rows go straight to their final place. The values are kept, and used by the size hints;
    ``num_sms`` also on a CUDA device.
    """

    num_sms: int = 20
    num_max_nvl_chunked_send_tokens: int = 6
    num_max_nvl_chunked_recv_tokens: int = 256
    num_max_rdma_chunked_send_tokens: int = 6
    num_max_rdma_chunked_recv_tokens: int = 256

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, int):
                raise WrongType(f"{name}: expected an integer, got {value!r}")
        num_sms, nvl_send, nvl_recv, rdma_send, rdma_recv = vars(self).values()
        _expect(num_sms >= 0, f"num_sms: expected 0 or more, got {num_sms}")
        _expect(0 < nvl_send < nvl_recv, f"nvl chunks: expected 0 < send < recv, got send {nvl_send}, recv {nvl_recv}")
        got = f"got send {rdma_send}, recv {rdma_recv}"
        _expect(rdma_send > 0 and rdma_recv > 0, f"rdma chunks: expected above 0, {got}")
        rdma_recv = self.num_max_rdma_chunked_recv_tokens = align(rdma_recv, rdma_send)
        _expect(2 * rdma_send <= rdma_recv, f"rdma chunks: expected send of at most half of recv, {got}")

    def _token_bytes(self, hidden_bytes: int, num_ranks: int) -> int:
        got = f"got {hidden_bytes}, {num_ranks}"
        _expect(hidden_bytes >= 0 and num_ranks > 0, f"expected hidden_bytes, num_ranks of 0, 1 or more, {got}")
        return hidden_bytes + _SOURCE_META + _MOST_TOPK * topk_idx_t.itemsize + _MOST_TOPK * 4 + _MOST_SCALES * 4

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """DeepEP's hint, in bytes. Here memory is sized by what is dispatched, whatever was hinted."""
        token, local = self._token_bytes(hidden_bytes, num_ranks), min(num_ranks, node_ranks())
        nodes, channels = nodes_of(num_ranks), self.num_sms // 2
        size = channels * local * (2 * nodes + 3) * 4
        size += channels * local * self.num_max_nvl_chunked_recv_tokens * token
        return align(size, ALIGNMENT)

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """DeepEP's hint, in bytes; 0 on one node. Here memory is sized by what is dispatched, whatever was hinted."""
        token, nodes, channels = self._token_bytes(hidden_bytes, num_ranks), nodes_of(num_ranks), self.num_sms // 2
        if nodes == 1:
            return 0
        size = channels * nodes * (node_ranks() * 2 + 2) * 2 * 4
        size += channels * nodes * self.num_max_rdma_chunked_recv_tokens * 2 * (token + 16)
        return align(size, ALIGNMENT)


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise WrongValue(message)


def node_ranks() -> int:
    """Ranks of a node, for hints, which are asked for before there is a group: XEP_NODE_RANKS, else DeepEP's 8."""
    return next((int(v.value) for v in xep.config() if v.name == "XEP_NODE_RANKS"), 0) or 8


def nodes_of(num_ranks: int) -> int:
    return -(-num_ranks // node_ranks())


def check_config(value: Any) -> None:
    """What a call is given as config."""
    if value is not None and not isinstance(value, Config):
        raise WrongType(f"config: expected a Config, got {type(value).__name__}")
    if value is not None and value.num_sms % 2:
        raise WrongValue(f"config: expected an even num_sms, got {value.num_sms}")


# ranks: (nvl_send, nvl_recv, rdma_send, rdma_recv)
DISPATCH = {
    2: (24, 256, 6, 128), 4: (6, 256, 6, 128), 8: (6, 256, 6, 128), 16: (36, 288, 20, 128), 24: (32, 288, 8, 128),
    32: (32, 288, 8, 128), 48: (32, 288, 8, 128), 64: (32, 288, 8, 128),
    96: (20, 480, 12, 128), 128: (20, 560, 12, 128),
    144: (32, 720, 12, 128), 160: (28, 720, 12, 128),
}  # fmt: skip
COMBINE = {
    2: (10, 256, 6, 128), 4: (9, 256, 6, 128), 8: (4, 256, 6, 128), 16: (4, 288, 12, 128), 24: (1, 288, 8, 128),
    32: (1, 288, 8, 128), 48: (1, 288, 8, 128), 64: (1, 288, 8, 128), 96: (1, 480, 8, 128), 128: (1, 560, 8, 128),
    144: (2, 720, 8, 128), 160: (2, 720, 8, 128),
}  # fmt: skip


def config_of(table: dict[int, tuple[int, int, int, int]], num_sms: int, num_ranks: int) -> Config:
    """DeepEP's table; between its rows that of the next larger number of ranks."""
    _expect(num_ranks > 0, f"num_ranks: expected 1 or more, got {num_ranks}")
    return Config(num_sms, *table[min((n for n in table if n >= num_ranks), default=max(table))])


def low_latency_size_hint(num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int) -> int:
    """DeepEP's hint for its double buffer, in bytes."""
    tokens, scales = num_max_dispatch_tokens_per_rank, hidden // 128
    _expect(
        min(tokens, hidden, num_ranks, num_experts) > 0,
        f"expected sizes above 0, got {tokens}, {hidden}, {num_ranks}, {num_experts}",
    )
    dispatch_message = 16 + max(2 * hidden, hidden + 4 * scales)
    combine_message = 4 * scales + 2 * hidden
    send = max(tokens * dispatch_message, num_experts * tokens * combine_message)
    recv = num_experts * tokens * max(dispatch_message, combine_message)
    total = 2 * align(4 * num_experts, ALIGNMENT) + 2 * send + 2 * recv
    return (total + ALIGNMENT) // ALIGNMENT * ALIGNMENT


# ---- the inner object ----


class Runtime:
    """Ranks of a node are what DeepEP calls NVLink ranks, nodes are its RDMA ranks. All other calls are the Buffer's,
    which is alive as long as this object.

    The calls that move tokens take and return what DeepEP's compiled ones do, by position: tensors instead of handles,
    None where there is nothing, an EventHandle or None. As tensors are not handles, a combine costs a dispatch of
    nearly empty rows, as does a dispatch with those of another (see Buffer.dispatch).
    """

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer

    def is_available(self) -> bool:
        return not self._buffer._destroyed

    def is_internode_available(self) -> bool:
        """Whether there are other nodes to be reached."""
        return self.is_available() and self.get_num_rdma_ranks() > 1

    def get_num_rdma_ranks(self) -> int:
        """Nodes: the ranks of one map one another's memory."""
        return self._buffer._nodes.count

    def get_rdma_rank(self) -> int:
        """This rank's node."""
        return self._buffer._nodes.node_of[self._buffer._xep.rank]

    def get_root_rdma_rank(self, global_root: bool) -> int:
        """This rank's place on its node; 0 unless global."""
        return self._buffer._nodes.place_of[self._buffer._xep.rank] if global_root else 0

    def get_local_device_id(self) -> int:
        """The CUDA device that the Buffer is on; else 0, the host."""
        queue = self._buffer._pools.queue
        return 0 if queue is None else queue.device.index

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # of Python, which asks an object that has no Buffer yet, too
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._buffer, name)

    # ---- normal mode ----

    def get_dispatch_layout(self, topk_idx: Any, num_experts: int, *options: Any) -> tuple:
        """options: previous_event, async_finish, allocate_on_comm_stream."""
        *layout, event = self._buffer.get_dispatch_layout(topk_idx, num_experts, *options)
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
        given = (per_rank, None, in_rank, per_expert, topk_idx, topk_weights, *options)
        return self._dispatch(x, x_scales, handle, given, (0, 1, 2, 3, 5))

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
        given = (per_rank, per_node, in_rank, per_expert, topk_idx, topk_weights, *options)
        return self._dispatch(x, x_scales, handle, given, range(1, 10))

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
        handle = (in_rank, *(None,) * 5, count.expand(self._buffer.group_size).contiguous(), src_meta, None, None)
        return self._combine(x, handle, topk_weights, (bias_0, bias_1), options)

    def _dispatch(self, x: Any, x_scales: Any, handle: Any, given: tuple, shown: Iterable[int]) -> tuple:
        """given: behind the handle, as Buffer.dispatch() has it. shown: items of the new handle."""
        rows = x if x_scales is None else (x, x_scales)
        recv_x, recv_idx, recv_weights, counts, made, event = self._buffer.dispatch(rows, handle, *given)
        received = (recv_x, None) if x_scales is None else recv_x
        tensors = (made[i] if made is not None else None for i in shown)
        return (*received, recv_idx, recv_weights, counts, *tensors, event.event)

    def _combine(self, x: Any, handle: tuple, topk_weights: Any, bias: tuple, options: tuple) -> tuple:
        *combined, event = self._buffer.combine(x, handle, topk_weights, bias, *options)
        return (*combined, event.event)

    # ---- low latency ----

    def low_latency_dispatch(self, x: Any, topk_idx: Any, *options: Any) -> tuple:
        """options: cumulative_local_expert_recv_stats, dispatch_wait_recv_cost_stats, num_max_dispatch_tokens_per_rank,
        num_experts, use_fp8, round_scale, use_ue8m0, async_finish, return_recv_hook."""
        stats, sizes, how = options[:2], options[2:4], options[4:]
        recv_x, count, handle, event, hook = self._buffer.low_latency_dispatch(x, topk_idx, *sizes, *stats, *how)
        received = recv_x if isinstance(recv_x, tuple) else (recv_x, None)
        return (*received, count, handle[0], handle[1], event.event, hook)

    def low_latency_combine(
        self, x: Any, topk_idx: Any, topk_weights: Any, src_info: Any, layout_range: Any, wait_stats: Any, most: int,
        num_experts: int, use_logfmt: bool, zero_copy: bool, async_finish: bool, return_recv_hook: bool,
        out: Any = None,
    ) -> tuple:  # fmt: skip
        """wait_stats: combine_wait_recv_cost_stats; most: num_max_dispatch_tokens_per_rank."""
        how = (use_logfmt, zero_copy, async_finish, return_recv_hook, out, wait_stats)
        handle = (src_info, layout_range, most, x.shape[-1], num_experts)
        combined, event, hook = self._buffer.low_latency_combine(x, topk_idx, topk_weights, handle, *how)
        return combined, event.event, hook
