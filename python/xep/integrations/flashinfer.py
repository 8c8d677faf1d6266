# SPDX-License-Identifier: BSD-3-Clause
"""A communication of FlashInfer's expert-parallel layer, for tokens in host memory.

    import xep.integrations.flashinfer  # registers "xep"
    from flashinfer.moe_ep import MoEEpLayer, SplitConfig

    layer = MoEEpLayer(bootstrap, fleet_params, weights, backend=SplitConfig(comm="xep", kernel=...))

The ranks are those of bootstrap.process_group, or of torch's default group. Rows are dispatched as they are, in
bfloat16, float16 or float32, or as a quantizer has made them (dispatch_format: FP8PerTensor, DeepSeekFp8, MXFP8, NVFP4,
MXFP4), with their scales beside them; a token goes once to each rank that has one of its experts. FlashInfer's own
kernels for experts are for devices.
"""

from __future__ import annotations

import dataclasses
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
                scales=self._words_of_scales(),
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
            beside = self._beside(hidden_states, hidden_states_scale)
            tokens = self.params.max_tokens_per_rank if max_tokens_per_rank is None else max_tokens_per_rank
            weights = None if topk_weights is None else topk_weights.to(torch.float32).contiguous()
            self._handle = self._buffer.dispatch(
                hidden_states.contiguous(), topk_ids.to(torch.int64).contiguous(), weights, payloads=beside
            )
            found = self._rank_major(self._handle.recv, topk_ids.dtype, topk_weights, tokens, eplb_local_stats)
            if hidden_states_scale is None:
                return found
            return dataclasses.replace(
                found, hidden_states_scale=self._scales(self._handle.recv, hidden_states_scale, tokens)
            )

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
        x = _padded(recv.x, rows)
        found = torch.full((rows, self.params.top_k), self.params.invalid_expert_id, dtype=ids)
        local = recv.topk_idx
        found[:come] = (local + recv.first_expert).masked_fill(local < 0, self.params.invalid_expert_id).to(ids)
        weighed = None
        if weights is not None:
            weighed = weights.new_zeros((rows, self.params.top_k))
            weighed[:come] = recv.topk_weights.to(weights.dtype).masked_fill(local < 0, 0)
        return MoEEpDispatchResult(x, found, weighed, tokens, eplb_gathered_stats=self._gathered(stats))

    def _words_of_scales(self) -> int:
        """Room beside a row, in words of 4 bytes, for what FlashInfer says that a token takes."""
        params = self.params
        if params.dispatch_format is None:
            return 0
        return (params.dispatch_bytes_per_token - _values_of(params.dispatch_format.name, params.hidden_size) + 7) // 4

    def _beside(self, x: torch.Tensor, scale: Optional[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The scales as bytes [T, B], of which xep asks for no type."""
        room = 4 * self._words_of_scales()
        if scale is None:
            return ()
        rows = scale.reshape(x.shape[0], -1) if scale.dim() > 0 else scale
        each = rows.shape[-1] * rows.element_size() if rows.dim() == 2 else 0
        if each < 1 or each > room:
            raise ValueError(
                f"hidden_states_scale: expected scales of each token, at most {room} bytes by dispatch_format, got "
                f"{tuple(scale.shape)} of {scale.dtype}"
            )
        return (rows.contiguous().view(torch.uint8),)

    def _scales(self, recv: Any, given: torch.Tensor, tokens: int) -> torch.Tensor:
        found = _padded(recv.payloads[0], self.ep_size * tokens).view(given.dtype)
        return found.reshape((found.shape[0], *given.shape[1:]))

    def _gathered(self, stats: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
        """[R, ...]"""
        if stats is None:
            return None
        parts = [torch.empty_like(stats) for _ in range(self.ep_size)]
        dist.all_gather(parts, stats.contiguous(), group=self._process_group)
        return torch.stack(parts)

    def _check(self, params: MoEEpCommParams) -> None:
        if params.token_dtype not in _TYPES:
            raise NotImplementedError(f"dtype: expected bfloat16, float16 or float32, got {params.token_dtype}")

    def _give_up(self) -> None:
        if self._group is not None:
            self._group.abort()


def _values_of(name: str, hidden: int) -> int:
    """Bytes of the values of a token in one of FlashInfer's formats."""
    if name in ("BF16", "FP16"):
        return 2 * hidden
    return (hidden + 1) // 2 if name in ("NVFP4", "MXFP4") else hidden


def _padded(come: torch.Tensor, rows: int) -> torch.Tensor:
    """[N, ...] -> [rows, ...], zeros behind what has come."""
    found = come.new_zeros((rows, *come.shape[1:]))
    found[: come.shape[0]] = come
    return found
