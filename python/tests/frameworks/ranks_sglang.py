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
from sglang.srt.layers.moe.token_dispatcher.standard import StandardDispatchOutput  # noqa: E402
from sglang.srt.layers.moe.topk import StandardTopKOutput  # noqa: E402
from sglang.srt.layers.moe.utils import MoeA2ABackend  # noqa: E402
from sglang.srt.runtime_context import get_flags, get_parallel  # noqa: E402

import xep.integrations.sglang as integration  # noqa: E402

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
