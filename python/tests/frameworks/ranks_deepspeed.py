# SPDX-License-Identifier: BSD-3-Clause
"""DeepSpeed's AutoEP with comm_backend "deepep", as it is: training steps beside those of its own all-to-all."""

from __future__ import annotations

import os
import types

import pytest
from conftest import communicator

os.environ.setdefault("DS_ACCELERATOR", "cpu")
torch = pytest.importorskip("torch", reason="torch is not installed")
deepspeed = pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")
import torch.distributed as dist  # noqa: E402

import deep_ep  # noqa: E402

HIDDEN, WIDE, EXPERTS_OF_RANK, TOPK, LAYERS, STEPS = 32, 48, 2, 2, 2, 3


class Experts(torch.nn.Module):
    def __init__(self, experts: int) -> None:
        super().__init__()
        self.num_experts = experts
        self.gate_up_proj = torch.nn.Parameter(torch.randn(experts, 2 * WIDE, HIDDEN) / HIDDEN**0.5)
        self.down_proj = torch.nn.Parameter(torch.randn(experts, HIDDEN, WIDE) / WIDE**0.5)


class Mixture(torch.nn.Module):
    """Of Mixtral's names, by which AutoEP finds and replaces it."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.gate = torch.nn.Linear(HIDDEN, experts, bias=False)
        self.experts = Experts(experts)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        raise AssertionError("AutoEP has not replaced this layer")


class Model(torch.nn.Module):
    def __init__(self, experts: int) -> None:
        super().__init__()
        self.config = types.SimpleNamespace(
            model_type="mixtral", num_local_experts=experts, num_experts_per_tok=TOPK, hidden_size=HIDDEN
        )
        layer = torch.nn.Module
        self.model = layer()
        self.model.layers = torch.nn.ModuleList([layer() for _ in range(LAYERS)])
        for one in self.model.layers:
            one.mlp = Mixture(experts)

    def forward(self, x: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        for layer in self.model.layers:
            out = layer.mlp(x)
            x = x + (out[0] if isinstance(out, tuple) else out)
        return (x.float() - wanted.float()).square().mean()


@pytest.fixture(autouse=True)
def _on_cpu(monkeypatch):
    """Two things of DeepSpeed's that a CPU has not: an operation it would compile, and a device's number in barrier."""
    communicator()
    monkeypatch.setitem(deepspeed.ops.__compatible_ops__, "deepspeed_shm_comm", False)
    barrier = dist.barrier
    monkeypatch.setattr(dist, "barrier", lambda *arguments, device_ids=None, **options: barrier(*arguments, **options))
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)


def train(backend: str) -> tuple[list, dict]:
    """Losses, and by how much each parameter of this rank changed."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Model(EXPERTS_OF_RANK * ranks).bfloat16()
    parallel = dict(
        enabled=True, autoep_size=ranks, preset_model="mixtral", use_grouped_mm=False, comm_backend=backend,
        comm_max_tokens_per_rank=64,
    )  # fmt: skip
    config = dict(
        train_micro_batch_size_per_gpu=2,
        bf16=dict(enabled=True),
        optimizer=dict(type="SGD", params=dict(lr=0.5)),
        expert_parallel=parallel,
    )
    engine, *_ = deepspeed.initialize(model=model, config=config, model_parameters=list(model.parameters()))
    before = {name: one.detach().float().clone() for name, one in engine.module.named_parameters()}
    generator = torch.Generator().manual_seed(100 + rank)
    losses = []
    for _ in range(STEPS):
        x, wanted = (torch.randn((2, 7 + 3 * rank, HIDDEN), generator=generator).bfloat16() for _ in range(2))
        loss = engine(x, wanted)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    changed = {name: one.detach().float() - before[name] for name, one in engine.module.named_parameters()}
    engine.destroy()
    return losses, changed


def apart(one: dict, two: dict) -> float:
    """The largest angle between two changes, as 1 - cosine."""
    return max(1 - float(torch.cosine_similarity(one[k].flatten(), two[k].flatten(), dim=0)) for k in one)


def test_training_is_that_of_all_to_all(monkeypatch):
    """Losses and changes of every parameter, router and experts among them; and the calls that were made."""
    made = {"dispatch": 0, "combine": 0}
    for name in made:
        call = getattr(deep_ep.ElasticBuffer, name)

        def counted(self, *arguments, _call=call, _name=name, **options):
            made[_name] += 1
            return _call(self, *arguments, **options)

        monkeypatch.setattr(deep_ep.ElasticBuffer, name, counted)
    losses, changes = train("comm")
    assert made == {"dispatch": 0, "combine": 0}
    ours, our_changes = train("deepep")
    assert made == {"dispatch": 2 * LAYERS * STEPS, "combine": 2 * LAYERS * STEPS}, "forward and backward"
    assert ours == pytest.approx(losses, rel=2e-3)
    assert our_changes.keys() == changes.keys() and all(bool(one.any()) for one in our_changes.values())
    assert apart(our_changes, changes) < 0.02


def test_what_is_wrong_is_noticed(monkeypatch):
    """Sums that belong to the token before."""
    combine = deep_ep.ElasticBuffer.combine

    def rolled(self, *arguments, **options):
        summed, weights, event = combine(self, *arguments, **options)
        return summed.roll(1, 0), weights, event

    _, changes = train("comm")
    monkeypatch.setattr(deep_ep.ElasticBuffer, "combine", rolled)
    _, wrong = train("deepep")
    assert apart(wrong, changes) > 0.1
