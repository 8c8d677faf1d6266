# SPDX-License-Identifier: BSD-3-Clause
"""SGLang's plug-ins, hooks, dispatchers and native experts over xep, on CPU. The oracle is the same experts in one
process, without a dispatcher. No engine is started: SGLang's needs devices, or kernels that its package lacks."""

from __future__ import annotations

import types

import entry_points
import pytest
import torchvision_stand_in
from conftest import communicator

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("sglang", reason="sglang is not installed")
torchvision_stand_in.install()
import sglang.srt.layers.moe.fused_moe_triton.layer as layers  # noqa: E402
import torch.distributed as dist  # noqa: E402
from sglang.srt import plugins  # noqa: E402
from sglang.srt.layers.moe.fused_moe_native import fused_moe_forward_native  # noqa: E402
from sglang.srt.layers.moe.moe_runner.base import MoeRunnerConfig  # noqa: E402
from sglang.srt.layers.moe.token_dispatcher.standard import (  # noqa: E402
    StandardCombineInput,
    StandardDispatchOutput,
)
from sglang.srt.layers.moe.topk import StandardTopKOutput  # noqa: E402
from sglang.srt.layers.moe.utils import FlashinferA2ADispatchType, MoeA2ABackend  # noqa: E402
from sglang.srt.runtime_context import get_flags, get_parallel  # noqa: E402

import xep  # noqa: E402
import xep.integrations.sglang as integration  # noqa: E402
from xep.integrations import quantizers  # noqa: E402

HIDDEN, INNER, TOPK, EXPERTS_OF_RANK = 16, 8, 3, 2


@pytest.fixture(scope="module", autouse=True)
def loaded(tmp_path_factory):
    """As SGLang finds it where xep is installed: by its entry point."""
    communicator()
    folder = entry_points.install(tmp_path_factory.mktemp("installed"), plugins.GENERAL_PLUGINS_GROUP)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("SGLANG_PLUGINS", "xep")
        plugins.load_plugins()
        yield


@pytest.fixture
def customized():
    group = types.SimpleNamespace(cpu_group=dist.group.WORLD)
    with get_flags().moe.override(a2a_backend=MoeA2ABackend.CUSTOMIZED), get_parallel().override(moe_ep_group=group):
        yield


def config(**changed) -> MoeRunnerConfig:
    experts = EXPERTS_OF_RANK * dist.get_world_size()
    usual = dict(num_experts=experts, num_local_experts=EXPERTS_OF_RANK, top_k=TOPK, num_fused_shared_experts=0)
    return MoeRunnerConfig(**{**usual, "hidden_size": HIDDEN, **changed})


def make_experts() -> tuple:
    """Of all ranks, and of this one."""
    generator = torch.Generator().manual_seed(3)
    experts = EXPERTS_OF_RANK * dist.get_world_size()
    w13 = torch.randn((experts, 2 * INNER, HIDDEN), generator=generator) / 4
    w2 = torch.randn((experts, HIDDEN, INNER), generator=generator) / 4
    mine = slice(EXPERTS_OF_RANK * dist.get_rank(), EXPERTS_OF_RANK * (dist.get_rank() + 1))
    return tuple(
        types.SimpleNamespace(w13_weight=w13[some], w2_weight=w2[some], moe_runner_config=config())
        for some in (slice(None), mine)
    )


def make_tokens(step: int) -> tuple:
    generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
    count = [7, 0, 9, 1][(dist.get_rank() + step) % 4]
    scores = torch.rand((count, EXPERTS_OF_RANK * dist.get_world_size()), generator=generator)
    top = scores.topk(TOPK, 1)
    x = torch.randn((count, HIDDEN), generator=generator)
    return x, StandardTopKOutput(top.values, top.indices.to(torch.int32), scores)


@pytest.mark.parametrize("roll", [False, True], ids=["right", "control"])
def test_a_layer(customized, roll):
    """The control: rows that are not those of their tokens."""
    everybody, mine = make_experts()
    dispatcher = layers.create_moe_dispatcher(config(), None)
    assert type(dispatcher).__name__ == "XepDispatcher"
    for step in range(3):
        x, top = make_tokens(step)
        expected = fused_moe_forward_native(everybody, StandardDispatchOutput(x, None, top)).hidden_states
        made = fused_moe_forward_native(mine, dispatcher.dispatch(x, top))
        if roll:
            made = made._replace(hidden_states=made.hidden_states.roll(1, 0))
        found = dispatcher.combine(made)
        assert torch.allclose(found, expected, atol=1e-5) is not roll or len(x) == 0


def dispatchers():
    from xep.integrations import sglang_dispatcher

    return sglang_dispatcher


def dequantized(x: torch.Tensor, scales: torch.Tensor, scale: float) -> torch.Tensor:
    """NVFP4, or MXFP8 with scale 0, as float32."""
    if scale == 0:
        factors = 2.0 ** (scales.float() - 127)
        return (x.float().unflatten(1, (-1, 32)) * factors.unsqueeze(2)).flatten(1)
    numbers = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    codes = torch.stack([x & 15, x >> 4], 2).flatten(1).long()
    values = numbers[codes & 7] * torch.where(codes > 7, -1.0, 1.0)
    factors = scales.view(torch.float8_e4m3fn).float() * scale
    return (values.unflatten(1, (-1, 16)) * factors.unsqueeze(2)).flatten(1)


@pytest.mark.parametrize("roll", [0, 1], ids=["right", "control"])
@pytest.mark.parametrize("kind, scale", [("nvfp4", 0.01), ("mxfp8", 0.0), ("bf16", 0.0)])
def test_cast_rows(customized, monkeypatch, kind, scale, roll):
    """Rows and their scales reach the runner, and what it makes of them comes back. The control: scales of others."""
    monkeypatch.setattr(dispatchers(), "get_flashinfer_a2a_dispatch_type", lambda: FlashinferA2ADispatchType(kind))
    dispatcher = layers.create_moe_dispatcher(config(hidden_size=128), None)
    dispatcher.set_quant_config({"input_global_scale": 1 / scale} if scale else {"use_mxfp8": True})
    _, top = make_tokens(1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    x = torch.randn((len(top.topk_ids), 128), generator=generator).to(torch.bfloat16) * torch.arange(1, 129)
    got = dispatcher.dispatch(x, top)
    rows = got.hidden_states
    if kind != "bf16":
        scales = got.hidden_states_scale.roll(roll, 0)
        assert (rows.dtype, rows.shape[1]) == ((torch.uint8, 64) if scale else (torch.float8_e4m3fn, 128))
        rows = dequantized(rows, scales, scale).to(torch.bfloat16)
    else:
        assert got.hidden_states_scale is None
    back = dispatcher.combine(StandardCombineInput(rows))
    ranks = (top.topk_ids.unsqueeze(2) // EXPERTS_OF_RANK == torch.arange(dist.get_world_size())).any(1).sum(1)
    off = (back.float() / ranks.unsqueeze(1) - x.float()).norm() / x.float().norm()
    limit = {"nvfp4": 0.12, "mxfp8": 0.04, "bf16": 0.01}[kind]
    assert len(x) == 0 or (off < limit) is not (roll == 1 and kind != "bf16" and len(rows) > 1)


@pytest.mark.parametrize("kind", ["nvfp4", "mxfp8"])
def test_quantizers_are_xep_s(customized, kind):
    """To the bit, over all bf16 but those of which numbers are compared as numbers."""
    x = torch.arange(-32768, 32768).to(torch.int16).view(torch.bfloat16).reshape(-1, 256)
    q, scales = quantizers.nvfp4(x, 0.37) if kind == "nvfp4" else quantizers.mxfp8(x)
    with xep.Group(dist.group.WORLD) as group:
        buffer = group.buffer(dist.get_world_size(), 1, 256, len(x), mode="ll", dtype="bf16")
        idx = torch.full((len(x), 1), group.rank)
        with buffer.dispatch(x, idx, quant=kind, **({"quant_scale": 0.37} if kind == "nvfp4" else {})) as handle:
            made, words = handle.recv.x[: len(x)].clone(), handle.recv.scales[: len(x)].clone()
    assert torch.equal(words.view(torch.uint8)[:, : scales.shape[1]], scales.view(torch.uint8))
    assert torch.equal(made.view(torch.uint8), q.view(torch.uint8))


def test_other_backends_are_left_alone():
    with get_flags().moe.override(a2a_backend=MoeA2ABackend.ASCEND_TP), pytest.raises(NotImplementedError, match="a2a"):
        layers.create_moe_dispatcher(config(), None)


def test_what_is_refused(customized):
    with pytest.raises(NotImplementedError, match="num_fused_shared_experts: expected 0, got 1"):
        layers.create_moe_dispatcher(config(num_fused_shared_experts=1), None)


def test_an_unknown_version_turns_it_off(monkeypatch, caplog):
    import sglang

    monkeypatch.setattr(sglang, "__version__", "0.9.9")
    integration.register()
    assert "xep: off: sglang: version 0.9.9 is not known" in caplog.text
    monkeypatch.setenv("XEP_SGLANG", "1")
    with pytest.raises(ImportError, match="sglang: version 0.9.9"):
        integration.register()
