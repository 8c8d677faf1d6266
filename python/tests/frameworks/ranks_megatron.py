# SPDX-License-Identifier: BSD-3-Clause
"""Megatron-core's flex dispatcher, as it is, with backend "deepep": forward and backward against one process."""

from __future__ import annotations

import warnings

import pytest
from conftest import communicator

torch = pytest.importorskip("torch", reason="torch is not installed")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("megatron.core", reason="Megatron-core is not installed")
    import torch.distributed as dist
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.transformer.moe import fused_a2a
    from megatron.core.transformer.moe.token_dispatcher import MoEFlexTokenDispatcher
    from megatron.core.transformer.transformer_config import TransformerConfig

import deep_ep  # noqa: E402

HIDDEN, TOPK, EXPERTS_OF_RANK = 32, 3, 4
WITHIN = {torch.float32: 1e-5, torch.bfloat16: 0.1}


@pytest.fixture(autouse=True)
def _without_compiling():
    """The dispatcher compiles small functions of its own where it can: they are right without, and sooner."""
    communicator()
    with torch.compiler.set_stance("force_eager"):
        yield
    fused_a2a._buffer = None  # all ranks drop it here


@pytest.fixture
def calls(monkeypatch):
    """How often each call of deep_ep was made."""
    made = {"dispatch": 0, "combine": 0}

    def counted(name: str):
        call = getattr(deep_ep.Buffer, name)

        def instead(self, *arguments, **options):
            made[name] += 1
            return call(self, *arguments, **options)

        return instead

    for name in made:
        monkeypatch.setattr(deep_ep.Buffer, name, counted(name))
    return made


def dispatcher(tp: int, **options) -> MoEFlexTokenDispatcher:
    """Over all ranks: ep times tp of them, tensor-parallel ones beside each other."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    tensor = [dist.new_group(list(range(i, i + tp))) for i in range(0, ranks, tp)]
    expert = [dist.new_group(list(range(i, ranks, tp))) for i in range(tp)]
    experts = EXPERTS_OF_RANK * (ranks // tp)
    config = TransformerConfig(
        num_layers=1, hidden_size=HIDDEN, num_attention_heads=4, num_moe_experts=experts, moe_router_topk=TOPK,
        moe_token_dispatcher_type="flex", moe_flex_dispatcher_backend="deepep", moe_router_dtype="fp32",
        moe_enable_deepep=True, expert_model_parallel_size=ranks // tp, **options,
    )  # fmt: skip
    groups = ProcessGroupCollection(ep=expert[rank % tp], expt_tp=tensor[rank // tp], tp_ep=dist.group.WORLD)
    first = rank // tp * EXPERTS_OF_RANK
    return MoEFlexTokenDispatcher(EXPERTS_OF_RANK, list(range(first, first + EXPERTS_OF_RANK)), config, groups)


def matrices(experts: int, dtype) -> torch.Tensor:
    made = torch.randn((experts, HIDDEN, HIDDEN), generator=torch.Generator().manual_seed(3)) / HIDDEN**0.5
    return made.to(dtype)


def inputs(rank: int, experts: int, dtype, dropped: bool):
    """x [S, 1, H], routing map and probabilities [S, E], gradient of the output. Ranks have different numbers."""
    generator = torch.Generator().manual_seed(50 + rank)
    tokens = [11, 2, 30, 1][rank % 4]
    x, grad = (torch.randn((tokens, 1, HIDDEN), generator=generator).to(dtype) for _ in range(2))
    scores = torch.rand((tokens, experts), generator=generator) + 0.1
    chosen = torch.zeros((tokens, experts), dtype=torch.bool)
    chosen.scatter_(1, scores.topk(TOPK, 1).indices, True)
    if dropped:
        chosen &= torch.rand(chosen.shape, generator=generator) < 0.6
    return x.requires_grad_(), chosen, scores.masked_fill(~chosen, 0.0).requires_grad_(), grad


def through(made: MoEFlexTokenDispatcher, x, chosen, probs, experts: torch.Tensor) -> torch.Tensor:
    """An MoE layer as Megatron-core's has it, with experts of our own."""
    rows, weights = made.dispatch_preprocess(x, chosen, probs)
    rows, weights = made.token_dispatch(rows, weights)
    rows, counts, weights = made.dispatch_postprocess(rows, weights)
    outputs, begin = [], 0
    for matrix, count in zip(experts, counts.tolist()):
        part = slice(begin, begin + count)
        outputs.append((torch.tanh(rows[part] @ matrix) * weights[part, None]).to(rows.dtype))
        begin += count
    assert begin == len(rows)
    out = made.combine_preprocess(torch.cat(outputs))
    return made.combine_postprocess(made.token_combine(out))


def alone(x, probs, experts: torch.Tensor, copies: int) -> torch.Tensor:
    """copies: ranks of tensor parallelism, each of which has the same experts here."""
    out = torch.zeros_like(x)
    for number, matrix in enumerate(experts):
        out = out + copies * torch.tanh(x @ matrix) * probs[:, number, None, None].to(x.dtype)
    return out


def check(made: MoEFlexTokenDispatcher, tp: int, dtype, dropped: bool = False) -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    experts = EXPERTS_OF_RANK * (ranks // tp)
    mine = slice(rank // tp * EXPERTS_OF_RANK, (rank // tp + 1) * EXPERTS_OF_RANK)
    own = matrices(experts, dtype)[mine].clone().requires_grad_()
    x, chosen, probs, grad = inputs(rank, experts, dtype, dropped)
    out = through(made, x, chosen, probs, own)
    out.backward(grad)

    whole = matrices(experts, dtype).requires_grad_()
    found = [(out, probs.grad * chosen, x.grad)]
    for other in range(ranks):
        other_x, _, other_probs, other_grad = inputs(other, experts, dtype, dropped)
        want = alone(other_x, other_probs, whole, tp)
        want.backward(other_grad)
        if other == rank:
            found.append((want, other_probs.grad * chosen, other_x.grad))
    pairs = [*zip(*found), (own.grad, whole.grad[mine] / tp)]
    for got, want in pairs:
        scale = float(want.detach().abs().max())
        assert got.dtype == want.dtype and scale > 0
        assert float((got - want).detach().abs().max()) <= WITHIN[dtype] * scale


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_forward_and_backward(calls, dtype):
    made = dispatcher(1)
    for step in range(1, 4):
        check(made, 1, dtype)
        assert calls == {"dispatch": 2 * step, "combine": 2 * step}


def test_dropped_tokens(calls):
    """With a capacity, selections are missing, and some tokens go nowhere."""
    check(dispatcher(1, moe_expert_capacity_factor=1.0), 1, torch.float32, dropped=True)
    assert calls == {"dispatch": 2, "combine": 2}


def test_beside_tensor_parallelism(calls):
    """Each token goes to all ranks that have a part of its experts."""
    if dist.get_world_size() < 4:
        pytest.skip("needs four ranks")
    check(dispatcher(2), 2, torch.float32)
    assert calls == {"dispatch": 2, "combine": 2}
