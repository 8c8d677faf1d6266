# SPDX-License-Identifier: BSD-3-Clause
"""Models of transformers over the ranks of torchrun, against the same model in one process."""

from __future__ import annotations

import pytest
from conftest import communicator

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from frameworks.model_world import MOE_LAYERS, gradients, make_world, relative, step  # noqa: E402
from transformers.distributed import expert_parallel  # noqa: E402

import xep.integrations.transformers as integration  # noqa: E402


@pytest.fixture(autouse=True)
def _ranks():
    communicator()
    yield
    integration.close()


def check(world, logits_within: float, gradients_within: float) -> None:
    found, expected = step(world)
    assert relative(found, expected) <= logits_within
    compared = gradients(world)
    wrong = {name: relative(got, want) for name, got, want in compared if relative(got, want) > gradients_within}
    assert not wrong
    assert any("experts" in name and want.abs().max() > 0 for name, _, want in compared)
    assert any("gate.weight" in name and want.abs().max() > 0 for name, _, want in compared)


@pytest.mark.parametrize("experts_by", ["eager", "grouped_mm", "batched_mm"])
@pytest.mark.parametrize("kind", ["qwen3_moe", "deepseek_v3"])
def test_logits_and_gradients_are_those_of_one_process(kind, experts_by):
    world = make_world(kind, torch.float32, experts_by=experts_by)
    before = integration.counts()
    check(world, 1e-6, 1e-5)
    done = integration.counts()
    layers = MOE_LAYERS[kind]
    assert (done.dispatches - before.dispatches, done.combines - before.combines) == (2 * layers, 2 * layers)
    assert done.rows_sent > before.rows_sent and done.bytes_sent > before.bytes_sent


def test_several_steps_and_inference_between():
    world = make_world("qwen3_moe", torch.float32)
    for _ in range(3):
        check(world, 1e-6, 1e-5)
        world.whole.zero_grad(), world.shared.zero_grad()
        with torch.no_grad():
            assert relative(world.shared(world.batch).logits, world.whole(world.batch).logits) <= 1e-6


def test_in_float64():
    """Gradients as with the built-in implementation: those of experts FSDP divides once too often in this type."""
    world, built_in = make_world("qwen3_moe", torch.float64), make_world("qwen3_moe", torch.float64, "all_to_all")
    found, expected = step(world)
    assert relative(found, expected) <= 1e-13
    step(built_in)
    for (name, got, _), (_, want, _) in zip(gradients(world), gradients(built_in)):
        assert relative(got, want) <= 1e-12, name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_half_precision(dtype):
    """No farther from float64 than one process of that type is, but for chance."""

    def rounded(model) -> None:
        for parameter in model.parameters():
            parameter.data.copy_(parameter.data.to(dtype))

    exact = make_world("qwen3_moe", torch.float64, change=rounded)
    world = make_world("qwen3_moe", dtype, change=rounded)
    for ours, theirs in zip(world.whole.parameters(), exact.whole.parameters()):
        theirs.data.copy_(ours.data)
    found, alone = step(world)
    want = exact.whole(exact.batch).logits
    assert found.dtype == dtype
    assert relative(found.double(), want) <= 3 * relative(alone.double(), want)
    assert all(bool(grad.isfinite().all()) for _, grad, _ in gradients(world))


@pytest.mark.parametrize("kind", ["qwen3_moe", "deepseek_v3"])
def test_beside_tensor_parallelism(kind):
    """Two ranks have the same batch, and each sends a part of it."""
    check(make_world(kind, torch.float32, tp=2), 1e-6, 1e-5)


@pytest.mark.parametrize("experts_by", ["eager", "grouped_mm"])
def test_all_tokens_go_to_the_first_rank(experts_by):
    """The others receive nothing, in every layer, and their experts have gradients of zero."""
    few = max(3, 16 // dist.get_world_size() // 2)

    def prefer_the_first(model) -> None:
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer[:few] = 100.0

    world = make_world("deepseek_v3", torch.float32, experts_by=experts_by, experts=16, change=prefer_the_first)
    check(world, 1e-6, 1e-5)
    first_ranks = -(-few * dist.get_world_size() // 16)
    for name, parameter in world.shared.named_parameters():
        if "mlp.experts" in name:
            local = parameter.grad.to_local()
            assert (local.abs().max() > 0) == (dist.get_rank() < first_ranks), name


def test_only_experts_are_trained():
    """Nothing before the first layer of experts has a gradient."""
    world = make_world("qwen3_moe", torch.float32)
    for model in (world.whole, world.shared):
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("experts" in name)
    found, expected = step(world)
    assert relative(found, expected) <= 1e-6
    for name, parameter in world.shared.named_parameters():
        if parameter.requires_grad:
            want = dict(world.whole.named_parameters())[name].grad
            assert relative(parameter.grad.full_tensor(), want) <= 1e-5


def test_generated_tokens_are_those_of_one_process():
    world = make_world("qwen3_moe", torch.float32)
    prompt = world.batch[:, :4]
    options = dict(max_new_tokens=6, do_sample=False, pad_token_id=0)
    assert torch.equal(world.shared.generate(prompt, **options), world.whole.generate(prompt, **options))


def test_two_models_share_the_ranks():
    one, other = make_world("qwen3_moe", torch.float32), make_world("deepseek_v3", torch.float32)
    for world in (one, other, one):
        world.whole.zero_grad(), world.shared.zero_grad()
        check(world, 1e-6, 1e-5)


def test_experts_that_do_not_divide():
    with pytest.raises(ValueError, match="Cannot evenly shard 9 experts"):
        make_world("qwen3_moe", torch.float32, experts=9)


def test_the_built_in_implementation_sends_more():
    """Each (token, expert) is a row there."""
    world = make_world("qwen3_moe", torch.float32, experts_by="grouped_mm")
    built_in = make_world("qwen3_moe", torch.float32, "all_to_all", experts_by="grouped_mm")
    sent = [0]
    call = expert_parallel.all_to_all_single_autograd

    def counting(rows, to, parts, group):
        sent[0] += sum(parts) - parts[dist.get_rank()]
        return call(rows, to, parts, group)

    expert_parallel.all_to_all_single_autograd = counting
    try:
        theirs = built_in.shared(world.batch).logits
    finally:
        expert_parallel.all_to_all_single_autograd = call
    before = integration.counts().rows_sent
    with torch.no_grad():
        assert relative(world.shared(world.batch).logits, theirs) <= 1e-6
    ours = torch.tensor([integration.counts().rows_sent - before, sent[0]])
    dist.all_reduce(ours)
    assert 0 < int(ours[0]) < int(ours[1])
