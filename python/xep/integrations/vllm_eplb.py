# SPDX-License-Identifier: BSD-3-Clause
"""vLLM's balancing of experts (EPLB) on CPU, beside expert parallelism over xep.

vLLM's own code counts the tokens of each expert, places experts and their copies anew, and moves their weights (over
gloo). On CPU four things are missing: the option is refused (allow_option), a model gets no state of it (_load_model),
the kernel that counts and maps to copies is for devices (_map_and_record), and a move asks for a device's stream and
events (_rearrange).
"""

from __future__ import annotations

import functools
import time
from typing import Any, Optional
from unittest import mock

import torch

_HASH = 2654435769  # Knuth's, as in vLLM's kernel: which copy of an expert a token goes to


class _Platform:
    """vLLM's platform, for the module that asks whether it has EPLB."""

    def __init__(self, platform: Any) -> None:
        self._platform = platform

    def __getattr__(self, name: str) -> Any:
        return getattr(self._platform, name)

    def is_cuda_alike(self) -> bool:
        return True


def allow_option() -> None:
    """In every process, before vLLM makes its configuration."""
    from vllm.config import parallel

    if not isinstance(parallel.current_platform, _Platform):
        parallel.current_platform = _Platform(parallel.current_platform)


@functools.cache
def prepare() -> None:
    """In a worker, before it loads its model."""
    from vllm.distributed.eplb.eplb_state import EplbState
    from vllm.model_executor.layers.fused_moe.router import base_router
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    base_router.eplb_map_to_physical_and_record = _map_and_record
    CPUModelRunner.load_model = _load_model(CPUModelRunner.load_model)
    EplbState.rearrange = _rearrange(EplbState.rearrange)


def _map_and_record(
    topk_ids: torch.Tensor,
    expert_load_view: torch.Tensor,
    logical_to_physical_map: torch.Tensor,
    logical_replica_count: torch.Tensor,
    record_enabled: torch.Tensor,
    num_unpadded_tokens: Optional[torch.Tensor] = None,
) -> torch.Tensor:
    """[T, K] logical experts, or -1 -> the copies that are chosen; their tokens are counted."""
    logical = topk_ids.to(torch.int64)
    token = torch.arange(len(logical)).unsqueeze(1)
    safe = logical.clamp_min(0)
    copy = ((token * _HASH) & 0xFFFFFFFF) % logical_replica_count[safe].clamp_min(1)
    physical = logical_to_physical_map[safe, copy].masked_fill(logical < 0, -1)
    if bool(record_enabled):
        counted = physical if num_unpadded_tokens is None else physical[: int(num_unpadded_tokens)]
        counts = torch.bincount(counted[counted >= 0], minlength=len(expert_load_view))
        expert_load_view += counts.to(expert_load_view.dtype)
    return physical.to(topk_ids.dtype)


def _load_model(original: Any) -> Any:
    @functools.wraps(original)
    def load_model(self: Any, load_dummy_weights: bool = False) -> None:
        from vllm.distributed.eplb.eplb_state import EplbState
        from vllm.model_executor.models.interfaces import get_mixture_of_experts_model

        original(self, load_dummy_weights)
        self._moe_model = model = get_mixture_of_experts_model(self.model)
        if model is not None and self.parallel_config.enable_eplb:
            self.eplb_state = EplbState(self.parallel_config, self.device)
            self.eplb_state.add_model(model, self.model_config)

    return load_model


class _Moment:
    """What is used of torch.Event, to take a time, and of the current stream, to wait for it."""

    def __init__(self, **_options: Any) -> None:
        self._at = 0.0

    def record(self) -> None:
        self._at = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: "_Moment") -> float:
        return (end._at - self._at) * 1000


def _rearrange(original: Any) -> Any:
    @functools.wraps(original)
    def rearrange(self: Any, *arguments: Any, **options: Any) -> Any:
        stream = mock.patch.object(torch.accelerator, "current_stream", _Moment)
        with mock.patch.object(torch, "Event", _Moment), stream:
            return original(self, *arguments, **options)

    return rearrange
