# SPDX-License-Identifier: BSD-3-Clause
"""A communication of FlashInfer's expert-parallel layer, for tokens in host memory.

    import xep.integrations.flashinfer  # registers "xep"
    from flashinfer.moe_ep import MoEEpLayer, SplitConfig

    layer = MoEEpLayer(bootstrap, fleet_params, weights, backend=SplitConfig(comm="xep", kernel=...))

The ranks are those of bootstrap.process_group, or of torch's default group. Rows are dispatched as they are, in
bfloat16, float16 or float32; a token goes once to each rank that has one of its experts. FlashInfer's own kernels for
experts are for devices.
"""

from __future__ import annotations

import itertools
from typing import Any, Optional

import flashinfer
import torch
import torch.distributed as dist
from flashinfer.moe_ep.core.comm import MoEEpCommParams, MoEEpCommunication, MoEEpDispatchResult, register_communication

import xep

from .alarm import Alarm
from .versions import require

require("flashinfer", flashinfer.__version__, ("0.7.2",))

_TYPES = (torch.bfloat16, torch.float16, torch.float32)
_numbers = itertools.count()


@register_communication("xep")
class XepCommunication(MoEEpCommunication):
    """Collective to make. One dispatch at a time, then its combine."""

    supports_cuda_graph = False

    def __init__(self, bootstrap: Any, params: MoEEpCommParams) -> None:
        super().__init__(bootstrap, params)
        self._check(params)
        group = dist.group.WORLD if bootstrap.process_group is None else bootstrap.process_group
        self._process_group = group
        self._group: Optional[xep.Group] = None
        self._handle: Optional[xep.Handle] = None
        self._alarm = Alarm(group, f"flashinfer/{next(_numbers)}", self._give_up)
        dtype = params.token_dtype
        with self._alarm:
            self._group = xep.Group(group)
            self._buffer = self._group.buffer(
                params.num_experts,
                params.top_k,
                params.hidden_size,
                params.max_tokens_per_rank,
                mode="normal",
                dtype=dtype,
                combine_dtype=dtype,
            )

    @classmethod
    def is_platform_supported(cls) -> bool:
        return True

    def dispatch(
        self,
        hidden_states: torch.Tensor,
        topk_ids: torch.Tensor,
        topk_weights: Optional[torch.Tensor] = None,
        *,
        hidden_states_scale: Optional[torch.Tensor] = None,
        max_tokens_per_rank: Optional[int] = None,
        eplb_local_stats: Optional[torch.Tensor] = None,
    ) -> MoEEpDispatchResult:
        """The rows that have come are the first ones; none is a view."""
        with self._alarm:
            if self._handle is not None:
                raise RuntimeError("dispatch: expected combine first, of the dispatch before it")
            if hidden_states_scale is not None:
                raise NotImplementedError("hidden_states_scale: expected None, xep dispatches unquantized rows")
            tokens = self.params.max_tokens_per_rank if max_tokens_per_rank is None else max_tokens_per_rank
            weights = None if topk_weights is None else topk_weights.to(torch.float32).contiguous()
            self._handle = self._buffer.dispatch(
                hidden_states.contiguous(), topk_ids.to(torch.int64).contiguous(), weights
            )
            return self._rank_major(self._handle.recv, topk_ids.dtype, topk_weights, tokens, eplb_local_stats)

    def combine(self, expert_output: torch.Tensor, *, output: Optional[torch.Tensor] = None) -> torch.Tensor:
        with self._alarm:
            if self._handle is None:
                raise RuntimeError("combine: expected a dispatch before it")
            with self._handle as handle:
                self._handle = None
                rows = expert_output.reshape(-1, expert_output.shape[-1])[: handle.rows]
                sums = handle.combine(rows.contiguous())
        return sums if output is None else output.copy_(sums)

    def destroy(self) -> None:
        group, self._group = self._group, None
        if group is None:
            return
        if self._handle is not None:
            group.abort()
        group.close()

    def _rank_major(
        self, recv: Any, ids: torch.dtype, weights: Optional[torch.Tensor], tokens: int, stats: Optional[torch.Tensor]
    ) -> MoEEpDispatchResult:
        """FlashInfer's experts want rows for the worst case, and the numbers that experts have of all."""
        rows, come = self.ep_size * tokens, recv.x.shape[0]
        if come > rows:
            raise ValueError(f"max_tokens_per_rank: expected the most tokens of any rank, got {tokens}")
        x = recv.x.new_zeros((rows, recv.x.shape[1]))
        x[:come] = recv.x
        found = torch.full((rows, self.params.top_k), self.params.invalid_expert_id, dtype=ids)
        local = recv.topk_idx
        found[:come] = (local + recv.first_expert).masked_fill(local < 0, self.params.invalid_expert_id).to(ids)
        weighed = None
        if weights is not None:
            weighed = weights.new_zeros((rows, self.params.top_k))
            weighed[:come] = recv.topk_weights.to(weights.dtype).masked_fill(local < 0, 0)
        return MoEEpDispatchResult(x, found, weighed, tokens, eplb_gathered_stats=self._gathered(stats))

    def _gathered(self, stats: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
        """[R, ...]"""
        if stats is None:
            return None
        parts = [torch.empty_like(stats) for _ in range(self.ep_size)]
        dist.all_gather(parts, stats.contiguous(), group=self._process_group)
        return torch.stack(parts)

    def _check(self, params: MoEEpCommParams) -> None:
        if params.dispatch_format is not None and params.dispatch_format.name not in ("BF16", "FP16"):
            raise NotImplementedError(
                f"dispatch_format: expected None, BF16 or FP16, got {params.dispatch_format.name}: xep dispatches "
                "unquantized rows here"
            )
        if params.token_dtype not in _TYPES:
            raise NotImplementedError(f"dtype: expected bfloat16, float16 or float32, got {params.token_dtype}")

    def _give_up(self) -> None:
        if self._group is not None:
            self._group.abort()
