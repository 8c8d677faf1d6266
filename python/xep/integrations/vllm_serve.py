# SPDX-License-Identifier: BSD-3-Clause
"""Engines of vLLM that have no requests serve their experts, in place of vLLM's dummy batch.

vLLM's engines step together: DPEngineCoreProc.run_busy_loop() (vllm/v1/engine/core.py) has an engine without requests
run Worker.execute_dummy_batch() in each step in which another one may have some, and in each step all ranks tell one
another how many tokens they have (coordinate_batch_across_dp()). Both stay. But an engine that has none says 0 tokens
there, and then runs no model: it serves until the step ends, which the others say behind their model. What it computes
is its experts' rows, layer by layer, by vLLM's own layers (vllm_all2all.py gives them those rows).
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from vllm.distributed import get_ep_group
from vllm.forward_context import set_forward_context

_HELD_BACK = "tensor_parallel_size", "pipeline_parallel_size", "prefill_context_parallel_size"


def can_serve(config: Any) -> bool:
    """Whether an engine's part in the others' steps is its experts only, each layer once."""
    parallel = config.parallel_config
    return (
        parallel.data_parallel_size > 1
        and all(getattr(parallel, name) == 1 for name in _HELD_BACK)
        and not parallel.enable_eplb  # counts the tokens of dummy batches' routing
        and config.speculative_config is None  # whose model has layers of its own
        and not config.use_v2_model_runner
        and not config.model_config.is_multimodal_model  # some layers may be for some kinds of tokens
    )


def _manager() -> Any:
    communicator = get_ep_group().device_communicator
    return getattr(communicator, "all2all_manager", None)


@functools.cache
def end_steps(worker: Any) -> None:
    """Behind each model that has run, real or dummy."""
    for name in ("execute_model", "execute_dummy_batch"):
        setattr(worker, name, _ending(getattr(worker, name)))


def _ending(step: Any) -> Any:
    @functools.wraps(step)
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        found = step(self, *arguments, **options)
        _manager().end_step()
        return found

    return call


@functools.cache
def replace_dummy_batches(worker: Any) -> None:
    """All ranks, or none: their steps go together."""

    def serve(self: Any) -> None:
        _serve(self.model_runner)

    worker.execute_dummy_batch = serve


@torch.inference_mode()
def _serve(runner: Any) -> None:
    config = runner.vllm_config
    found = config.compilation_config
    layers = [found.static_forward_context[name] for name in found.static_all_moe_layers]
    experts = config.model_config.get_num_experts()

    def run(layer: Any) -> None:
        x = torch.zeros((1, layer.moe_config.hidden_dim), dtype=config.model_config.dtype)
        layer._forward_impl(x, x.new_zeros((1, experts)), x, None)

    with set_forward_context(None, config, num_tokens=0):
        _manager().serve_step(layers, run)
