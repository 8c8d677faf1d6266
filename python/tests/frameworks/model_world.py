# SPDX-License-Identifier: BSD-3-Clause
"""Small random models of transformers: over the ranks of a test, and the same in one process, which is the oracle."""

from __future__ import annotations

import tempfile
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import transformers
from torch.distributed.tensor import DTensor
from transformers.distributed import DistributedConfig

VOCABULARY = 97
_SIZES = dict(
    vocab_size=VOCABULARY, hidden_size=48, intermediate_size=64, moe_intermediate_size=24, num_hidden_layers=3,
    num_attention_heads=4, num_experts_per_tok=3, max_position_embeddings=64, initializer_range=0.2,
)  # fmt: skip
MOE_LAYERS = {"qwen3_moe": 3, "deepseek_v3": 2}


def configuration(kind: str, experts: int = 8) -> Any:
    if kind == "qwen3_moe":
        return transformers.Qwen3MoeConfig(
            **_SIZES, num_key_value_heads=2, head_dim=12, num_experts=experts, norm_topk_prob=True
        )
    return transformers.DeepseekV3Config(
        **_SIZES, num_key_value_heads=4, n_routed_experts=experts, n_shared_experts=1, n_group=2, topk_group=2,
        first_k_dense_replace=1, q_lora_rank=20, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=12,
    )  # fmt: skip


class World(NamedTuple):
    """whole: the model in one process; shared: over all ranks. batches: of each rank of data parallelism."""

    whole: Any
    shared: Any
    batches: list[torch.Tensor]
    mine: int

    @property
    def batch(self) -> torch.Tensor:
        return self.batches[self.mine]


def make_world(kind: str, dtype: torch.dtype, implementation: str = "xep", tp: int = 1, experts_by: str = "eager",
               experts: int = 8, change: Any = None) -> World:  # fmt: skip
    """Batches are of different sizes. change: what is done to the weights first."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    whole = transformers.AutoModelForCausalLM.from_config(
        configuration(kind, experts), dtype=dtype, experts_implementation=experts_by
    )
    if change is not None:
        change(whole)
    where = [tempfile.TemporaryDirectory() if rank == 0 else None]
    path = [where[0].name if where[0] is not None else None]
    dist.broadcast_object_list(path)
    if rank == 0:
        whole.save_pretrained(path[0])
    dist.barrier()
    spread = DistributedConfig(tp_size=tp, fsdp_size=ranks // tp, ep_size=ranks, ep_implementation=implementation)
    try:
        shared = transformers.AutoModelForCausalLM.from_pretrained(
            path[0], dtype=dtype, experts_implementation=experts_by, distributed_config=spread
        )
    finally:
        dist.barrier()  # the folder goes with rank 0
    batches = [torch.randint(0, VOCABULARY, (2, 5 + 3 * i)) for i in range(ranks // tp)]
    return World(whole, shared, batches, rank // tp)


def loss(logits: torch.Tensor) -> torch.Tensor:
    """Of the type of the logits, or float32 at least."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return wide.log_softmax(-1)[..., 3].mean() + wide.tanh().square().mean()


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    found, expected = found.detach(), expected.detach()
    scale = float(expected.abs().max())
    return float((found - expected).abs().max()) / scale if scale > 0 else float(found.abs().max())


def step(world: World) -> tuple[torch.Tensor, torch.Tensor]:
    """Forward and backward of both models, the whole one over all batches -> logits of this rank's batch."""
    found = world.shared(world.batch).logits
    loss(found).backward()
    all_logits = [world.whole(batch).logits for batch in world.batches]
    torch.stack([loss(logits) for logits in all_logits]).mean().backward()
    return found.detach(), all_logits[world.mine].detach()


def gradients(world: World) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """(name, found, expected) of every parameter; of those that are spread over ranks, whole."""
    found = []
    expected = dict(world.whole.named_parameters())
    for name, parameter in world.shared.named_parameters():
        grad = parameter.grad
        if isinstance(grad, DTensor):
            grad = grad.full_tensor()
        want = expected.pop(name).grad
        if want is None:  # of experts that nobody chose, one process makes none
            want = torch.zeros_like(grad)
        assert grad is not None and grad.shape == want.shape, name
        found.append((name, grad, want))
    assert not expected
    return found
