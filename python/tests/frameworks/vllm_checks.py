# SPDX-License-Identifier: BSD-3-Clause
"""Checks of the plugin for which no engine is started: test_vllm.py has each in a process of its own."""

from __future__ import annotations

import logging
import os
import types

import pytest
import vllm
from vllm.platforms import current_platform

import xep.integrations.vllm as integration


def what_is_refused() -> None:
    from xep.integrations.vllm_all2all import _refusal

    def refusal(lora=None, **changed):
        parallel = dict(data_parallel_size=2, pipeline_parallel_size=1, enable_eplb=False, enable_dbo=False,
                        expert_placement_strategy="linear")  # fmt: skip
        parallel.update(changed)
        return _refusal(
            types.SimpleNamespace(
                parallel_config=types.SimpleNamespace(**parallel), lora_config=lora, use_v2_model_runner=False
            )
        )

    assert refusal() is None
    for name, value in (
        ("pipeline_parallel_size", 2), ("enable_dbo", True),
    ):  # fmt: skip
        assert name in refusal(**{name: value}) and str(value) in refusal(**{name: value})
    assert "enable_lora" in refusal(lora=object())
    eplb = dict(enable_eplb=True, eplb_config=types.SimpleNamespace(use_async=True))
    assert "eplb_config.use_async: expected False, got True" in refusal(**eplb)
    eplb["eplb_config"].use_async = False
    assert refusal(**eplb) is None
    in_turn = dict(eplb, expert_placement_strategy="round_robin")
    assert "expert_placement_strategy: expected linear beside EPLB, got round_robin" in refusal(**in_turn)
    assert refusal(expert_placement_strategy="round_robin") is None
    assert "data_parallel_size: expected 2 or more beside EPLB, got 1" in refusal(**eplb, data_parallel_size=1)


def who_serves() -> None:
    """Engines whose part in a step of the others is each layer's experts, once."""
    from xep.integrations.vllm_serve import can_serve

    def serves(multimodal=False, speculative=None, **changed):
        parallel = dict(data_parallel_size=2, tensor_parallel_size=1, pipeline_parallel_size=1,
                        prefill_context_parallel_size=1, enable_eplb=False, **changed)  # fmt: skip
        return can_serve(
            types.SimpleNamespace(
                parallel_config=types.SimpleNamespace(**parallel), speculative_config=speculative,
                use_v2_model_runner=False, model_config=types.SimpleNamespace(is_multimodal_model=multimodal),
            )
        )  # fmt: skip

    assert serves() and not serves(multimodal=True) and not serves(speculative=object())


def uneven_collectives(folder: str, rank: int, ranks: int) -> None:
    """Rank r has r + 1 rows; the control is vLLM's own communicator."""
    import torch
    import torch.distributed as dist
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

    from xep.integrations.vllm_all2all import XepCommunicator

    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    own, ours = (kind(dist.group.WORLD, device_group=dist.group.WORLD) for kind in (CpuCommunicator, XepCommunicator))
    sizes = [each + 1 for each in range(ranks)]
    parts = [torch.arange(size * 4, dtype=torch.float32).reshape(size, 4) + 100 * r for r, size in enumerate(sizes)]
    ids = [part[:, :1].to(torch.int32) for part in parts]
    with pytest.raises(NotImplementedError):
        own.all_gatherv(parts[rank], 0, sizes)
    found = ours.all_gatherv([parts[rank], ids[rank]], 0, sizes)
    assert torch.equal(found[0], torch.cat(parts)) and torch.equal(found[1], torch.cat(ids))
    with pytest.raises(NotImplementedError):
        own.reduce_scatterv(found[0], 0, sizes)
    everything = torch.cat(parts)
    assert torch.equal(ours.reduce_scatterv(everything, 0, sizes), parts[rank] * ranks)
    assert torch.equal(everything, torch.cat(parts))
    same = ours.reduce_scatterv(torch.full((2 * ranks, 3), rank + 1.0), 0)
    assert torch.equal(same, torch.full((2, 3), float(sum(sizes))))
    dist.barrier()


def scales_of_cast_rows(folder: str, rank: int, ranks: int) -> None:
    """NVFP4 as vLLM has it: two channels to a byte, and a scale of a byte for each 16; MXFP8: e4m3, one for each 32. In
    both modes each row comes with what belongs to it, and outputs of the model's type go back."""
    import contextlib

    import torch
    import torch.distributed as dist

    import xep
    from xep.integrations import vllm_all2all

    experts, topk, hidden, tokens = 2 * ranks, 2, 96, 5 + rank
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    manager = vllm_all2all.XepAll2All.__new__(vllm_all2all.XepAll2All)
    manager._group, manager._alarm = xep.Group(dist.group.WORLD), contextlib.nullcontext()
    manager._buffers, manager._way, manager._elsewhere, manager._experts = {}, None, None, experts
    manager._used, manager._served, manager._owners = [], None, None
    manager._tokens, manager._hidden, manager._outputs = 64, hidden, torch.bfloat16
    ids = (torch.arange(tokens * topk).reshape(tokens, topk) + rank) % experts
    weights = torch.ones(tokens, topk)
    for most in (8, 64):
        vllm_all2all._most_tokens = lambda: most
        for cast, columns, scales in ((torch.uint8, hidden // 2, hidden // 16), (torch.float8_e4m3fn, hidden, 3)):
            mark = torch.arange(tokens).unsqueeze(1) + 16 * rank
            x = mark.expand(tokens, columns).to(torch.uint8).contiguous().view(cast)
            beside = [mark.expand(tokens, scales).to(torch.uint8).view(torch.float8_e8m0fnu), mark.to(torch.float32)]
            rows, row_weights, local, extras = manager.dispatch(x, weights, ids, extra_tensors=beside)
            assert rows.dtype == cast and extras[0].dtype == torch.float8_e8m0fnu and extras[1].dtype == torch.float32
            sent = rows.view(torch.uint8)
            assert len(rows) > 0 and torch.equal(sent[:, :1].expand(-1, scales), extras[0].view(torch.uint8))
            assert torch.equal(sent[:, :1].to(torch.float32), extras[1])
            y = sent[:, :1].to(torch.bfloat16).expand(-1, hidden).contiguous()
            out = manager.combine(y)
            assert torch.equal(out, (topk * mark).to(torch.bfloat16).expand(tokens, hidden)), out
    manager._group.close()


def versions_and_the_switch() -> None:
    """An unknown version turns it off, with a warning; it is an error where it was asked for."""
    own = current_platform.get_device_communicator_cls()
    said = []
    logging.getLogger("vllm.plugins.xep").addFilter(lambda record: said.append(record.getMessage()) or False)
    known, vllm.__version__ = vllm.__version__, "0.99.0"
    integration.register()
    assert current_platform.get_device_communicator_cls() == own and "0.99.0" in said[0], said
    os.environ["XEP_VLLM"] = "1"
    with pytest.raises(ImportError, match="vllm: version 0.99.0 is not known"):
        integration.register()
    vllm.__version__ = known
    os.environ["XEP_VLLM"] = "0"
    integration.register()
    assert current_platform.get_device_communicator_cls() == own
    del os.environ["XEP_VLLM"]
    integration.register()
    assert "xep" in current_platform.get_device_communicator_cls()
