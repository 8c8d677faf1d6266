# SPDX-License-Identifier: BSD-3-Clause
"""How the tokens of SGLang's experts travel through xep; loaded where a layer has this dispatcher (sglang.py).

A token goes once to each rank that has one of its experts, with its weights; the runner sums what this rank's experts
make of it (SGLang's standard format), and the sums of all ranks come back. Rows may be cast to NVFP4 or MXFP8 before
they leave, and reach the runner with their scales. The layers of a process share a buffer.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from sglang.srt.layers.moe.token_dispatcher.base import BaseDispatcher
from sglang.srt.layers.moe.token_dispatcher.standard import (
    StandardCombineInput,
    StandardDispatchOutput,
    _keeps_global_expert_ids,
)
from sglang.srt.layers.moe.topk import StandardTopKOutput, TopKOutput, TopKOutputChecker
from sglang.srt.layers.moe.utils import get_flashinfer_a2a_dispatch_type
from sglang.srt.runtime_context import get_parallel

from . import quantizers
from .exchange import Exchange, exchange_of


class XepDispatcher(BaseDispatcher):
    """Of one layer. Each dispatch is followed by its combine."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        if config.num_fused_shared_experts:
            raise NotImplementedError(
                f"experts by xep: num_fused_shared_experts: expected 0, got {config.num_fused_shared_experts}"
            )
        if _keeps_global_expert_ids(config.runner_backend):
            raise NotImplementedError(
                f"experts by xep: expected a runner that takes the expert ids of its rank, got {config.runner_backend}"
            )
        self.runner_backend = config.runner_backend
        self._experts = config.num_experts
        self._route: Optional[Any] = None

    def dispatch(self, hidden_states: torch.Tensor, topk_output: TopKOutput) -> StandardDispatchOutput:
        """[T, H] and their experts -> rows [N, H], their experts of this rank or -1 with weight 0."""
        if hidden_states.device.type != "cpu":
            raise NotImplementedError(f"experts by xep: expected tokens in host memory, got {hidden_states.device}")
        if not TopKOutputChecker.format_is_standard(topk_output):
            raise NotImplementedError(f"experts by xep: expected the standard top-k output, got {topk_output.format}")
        weights, ids = topk_output.topk_weights, topk_output.topk_ids
        cast, scales = self._cast(hidden_states)
        if scales is None:
            sent = self._exchange().send(cast, ids.to(torch.int64), weights, self._experts)
        else:
            sent = self._exchange().send_quantized(cast, scales, ids.to(torch.int64), weights, self._experts)
        rows, local, row_weights, self._route = sent
        rows, scales = (rows, None) if scales is None else rows
        row_weights = row_weights.masked_fill(local < 0, 0)
        chosen = StandardTopKOutput(row_weights, local.to(ids.dtype), topk_output.router_logits)
        return StandardDispatchOutput(rows, scales, chosen)

    def _cast(self, x: torch.Tensor) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
        """As SGLang's dispatcher for FlashInfer chooses it: by the server's --flashinfer-a2a-dispatch-type, in layers
        that say that they take such rows."""
        layer = self.quant_config or {}
        wanted = get_flashinfer_a2a_dispatch_type().value if layer else "bf16"
        if wanted == "nvfp4" and layer.get("input_global_scale") is not None:
            q, scales = quantizers.nvfp4(x, 1.0 / float(layer["input_global_scale"]))
            return q, scales.view(torch.uint8)
        if wanted == "mxfp8" and layer.get("use_mxfp8", False):
            return quantizers.mxfp8(x)
        return x, None

    def combine(self, combine_input: StandardCombineInput) -> torch.Tensor:
        route, self._route = self._route, None
        if route is None:
            raise RuntimeError("combine: expected a dispatch before it")
        return self._exchange().sum_at_home(combine_input.hidden_states, None, route)[0]

    def _exchange(self) -> Exchange:
        return exchange_of(get_parallel().moe_ep_group.cpu_group)
