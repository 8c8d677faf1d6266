# SPDX-License-Identifier: BSD-3-Clause
"""FlashInfer's expert-parallel layer over xep: FlashInfer's own code but for the kernel of the experts, which on CPU it
lacks. The oracle is a loop over experts in one process."""

from __future__ import annotations

import dataclasses

import pytest
from conftest import communicator

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("flashinfer", reason="flashinfer-python is not installed")
import torch.distributed as dist  # noqa: E402
from flashinfer.fused_moe.api import QuantFormat  # noqa: E402
from flashinfer.moe_ep import (  # noqa: E402
    BootstrapConfig,
    EpAlgorithm,
    EpLayout,
    FleetParams,
    MoEEpLayer,
    MoEEpTensors,
    MoEWeightPack,
    SplitConfig,
)
from flashinfer.moe_ep.core.comm import (  # noqa: E402
    MoEEpCommParams,
    available_communication_backends,
    create_communication,
)
from flashinfer.moe_ep.core.kernel.base import SplitKernelBackend  # noqa: E402
from flashinfer.moe_ep.core.kernel.registry import register_split_kernel  # noqa: E402

import xep.integrations.flashinfer  # noqa: E402, F401

HIDDEN, INNER, TOPK, MOST, EXPERTS_OF_RANK = 16, 8, 3, 9, 2


def experts_sum(x, idx, weights, w13, w2):
    """[N, H], [N, K] experts of w13 and w2 or -1, [N, K] -> [N, H], in float64."""
    out = torch.zeros(x.shape, dtype=torch.float64)
    for row, k in (idx >= 0).nonzero().tolist():
        gate, up = (w13[idx[row, k]].double() @ x[row].double()).chunk(2)
        out[row] += weights[row, k].double() * (w2[idx[row, k]].double() @ (torch.nn.functional.silu(gate) * up))
    return out


@dataclasses.dataclass
class Config:
    """roll: what experts return is that of the row before."""

    roll: bool = False
    kernel_name: str = "xep_test"


@register_split_kernel("xep_test")
class Kernel(SplitKernelBackend):
    @classmethod
    def kernel_name(cls):
        return "xep_test"

    def compute(self, ctx):
        x, pack = ctx.expert_tensors.reshape(ctx.num_tokens, -1), self._transformed_weights
        out = experts_sum(x, ctx.recv_topk_idx, ctx.recv_topk_weights, pack.w13, pack.w2).to(x.dtype)
        return out.roll(1, 0) if self._config.roll else out


def bootstrap() -> BootstrapConfig:
    communicator()
    return BootstrapConfig(world_size=dist.get_world_size(), rank=dist.get_rank(), auto_bootstrap=False)


def weights(experts: int) -> tuple:
    generator = torch.Generator().manual_seed(3)
    return (
        torch.randn((experts, 2 * INNER, HIDDEN), generator=generator) / 4,
        torch.randn((experts, HIDDEN, INNER), generator=generator) / 4,
    )


def tokens(rank: int, experts: int, step: int) -> MoEEpTensors:
    generator = torch.Generator().manual_seed(10 * step + rank)
    count = [7, 0, MOST, 1][(rank + step) % 4]
    x = torch.randn((count, HIDDEN), generator=generator)
    idx = torch.rand((count, experts), generator=generator).topk(TOPK, 1).indices
    return MoEEpTensors(x, idx, torch.rand(idx.shape, generator=generator))


def make_layer(experts: int, **config):
    start = bootstrap()
    w13, w2 = (all_of_them.chunk(start.world_size)[start.rank] for all_of_them in weights(experts))
    params = FleetParams(experts, MOST, HIDDEN, 4, EpAlgorithm.LOW_LATENCY, EpLayout.RANK_MAJOR)
    return MoEEpLayer(start, params, MoEWeightPack(w13, w2), backend=SplitConfig(comm="xep", kernel=Config(**config)))


@pytest.mark.parametrize("roll", [False, True], ids=["right", "control"])
def test_layer(roll):
    """The control: rows that are not those of their tokens."""
    start = bootstrap()
    experts = EXPERTS_OF_RANK * start.world_size
    layer = make_layer(experts, roll=roll)
    for step in range(3):
        t = tokens(start.rank, experts, step)
        found = layer(t)
        expected = experts_sum(t.hidden_states, t.topk_ids, t.topk_weights, *weights(experts))
        right = torch.allclose(found.double(), expected, atol=1e-5)
        assert right is not roll or len(found) == 0
    layer.destroy()


def make_communication(**changed):
    start = bootstrap()
    params = dict(num_experts=EXPERTS_OF_RANK * start.world_size, top_k=2, max_tokens_per_rank=4, hidden_size=HIDDEN)
    return create_communication(start, MoEEpCommParams(**{**params, **changed}), "xep"), start


def test_contract():
    """Rows for the most tokens of this step; ids of all experts; rows without a token; loads of all ranks."""
    communication, start = make_communication(invalid_expert_id=-7)
    assert "xep" in available_communication_backends()
    mine = EXPERTS_OF_RANK * start.rank
    other = EXPERTS_OF_RANK * ((start.rank + 1) % start.world_size)
    x = torch.full((2, HIDDEN), start.rank + 1.0, dtype=torch.bfloat16)
    idx = torch.tensor([[mine, mine + 1], [other, mine]], dtype=torch.int32)
    got = communication.dispatch(
        x, idx, torch.ones((2, 2)), max_tokens_per_rank=3, eplb_local_stats=torch.tensor([start.rank])
    )
    assert got.tokens_per_rank == 3 and got.hidden_states.shape == (3 * start.world_size, HIDDEN)
    assert got.topk_ids.dtype == torch.int32 and got.topk_ids[3:].eq(-7).all()
    ids = got.topk_ids[:3]
    assert sorted(ids[ids >= 0].tolist()) == [mine, mine, mine, mine + 1]
    assert got.eplb_gathered_stats.flatten().tolist() == list(range(start.world_size))
    with pytest.raises(RuntimeError, match="expected combine first"):
        communication.dispatch(x, idx)


# values and scales of a token of 256 channels, by FlashInfer's names
FORMATS = {
    "FP8PerTensor": ((torch.float8_e4m3fn, 256), None),
    "DeepSeekFp8": ((torch.float8_e4m3fn, 256), (torch.float32, 2)),
    "MXFP8": ((torch.float8_e4m3fn, 256), (torch.uint8, 8)),
    "NVFP4": ((torch.uint8, 128), (torch.float8_e4m3fn, 16)),
    "MXFP4": ((torch.uint8, 128), (torch.uint8, 8)),
}


def quantized(rank: int, kind, tokens: int = 4):
    """Bytes that only this token has, as the kind of a tensor."""
    dtype, width = kind
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(1, 120, (tokens, width * dtype.itemsize), generator=generator, dtype=torch.uint8).view(dtype)


@pytest.mark.parametrize("roll", [0, 1], ids=["right", "control"])
@pytest.mark.parametrize("name", FORMATS)
def test_rows_of_quantizers(name, roll):
    """Values and scales arrive together, bit for bit. The control: scales that are those of other tokens."""
    values, scales = FORMATS[name]
    communication, start = make_communication(hidden_size=256, dispatch_format=QuantFormat[name])
    ranks = range(start.world_size)
    idx = torch.tensor([[t % start.world_size * EXPERTS_OF_RANK, start.rank * EXPERTS_OF_RANK + 1] for t in range(4)])
    got = communication.dispatch(
        quantized(start.rank, values),
        idx,
        torch.ones((4, 2)),
        hidden_states_scale=None if scales is None else quantized(start.rank, scales).roll(roll, 0),
    )
    mine = [(r, t) for r in ranks for t in range(4) if start.rank in (r, t % start.world_size)]
    for kind, found in ((values, got.hidden_states), (scales, got.hidden_states_scale)):
        if kind is None:
            assert found is None
            continue
        assert found.dtype == kind[0] and found.shape == (4 * start.world_size, kind[1])
        sent = torch.stack([quantized(r, kind)[t].view(torch.uint8) for r, t in mine])
        assert torch.equal(found[: len(mine)].view(torch.uint8), sent) is not (roll == 1 and kind is scales)
    out = communication.combine(torch.ones((4 * start.world_size, 256), dtype=torch.bfloat16))
    owners = [len({t % start.world_size, start.rank}) for t in range(4)]
    assert out[:, 0].tolist() == owners
    communication.destroy()


def test_what_is_refused():
    communication, _ = make_communication()
    x, idx = torch.ones((1, HIDDEN), dtype=torch.bfloat16), torch.zeros((1, 2), dtype=torch.int64)
    with pytest.raises(ValueError, match="hidden_states_scale: expected scales of each token, at most 0 bytes"):
        communication.dispatch(x, idx, hidden_states_scale=torch.ones((1, 1)))
    with pytest.raises(NotImplementedError, match="dtype: expected bfloat16"):
        make_communication(dtype=torch.float64)
