# SPDX-License-Identifier: BSD-3-Clause
"""A rank of vLLM's data parallelism, a fork of test_vllm.py: its engine is in its own process. It generates what it is
asked for, round after round, all ranks together."""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import time
from typing import Any

MODEL = dict(
    vocab_size=211, hidden_size=64, intermediate_size=96, moe_intermediate_size=32, num_hidden_layers=2, head_dim=32,
    num_attention_heads=4, num_key_value_heads=2, num_experts_per_tok=2, norm_topk_prob=True,
    max_position_embeddings=256, initializer_range=0.2, eos_token_id=None, bos_token_id=None, tie_word_embeddings=False,
)  # fmt: skip


def make_models(folder: str, experts: int) -> None:
    """One of each kind, in a folder of its name."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    for kind, name in (("qwen3_moe", "num_experts"), ("mixtral", "num_local_experts")):
        torch.manual_seed(5)
        config = AutoConfig.for_model(kind, **MODEL, **{name: experts})
        AutoModelForCausalLM.from_config(config).save_pretrained(f"{folder}/{kind}")


def register() -> None:
    """A plugin of vLLM, loaded after that of xep: see vllm_trouble.py. Where XEP_TEST_UPSTREAM names a folder, vLLM is
    as if its files there had been installed. Tensor parallelism goes by gloo: shared memory of vLLM's would stay when a
    rank ends, under the name that the next run's has."""
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
    from vllm.platforms import current_platform

    CpuCommunicator._all_group_ranks_share_shm_group_name = lambda self: False
    upstream = os.environ.get("XEP_TEST_UPSTREAM")
    if upstream:
        use_upstream(pathlib.Path(upstream))
    if "xep" in current_platform.get_device_communicator_cls():
        type(current_platform).get_device_communicator_cls = classmethod(lambda cls: "vllm_trouble.Communicator")


UPSTREAM = (
    ("vllm.distributed.device_communicators.cpu_communicator", "CpuCommunicator", ("all_gatherv", "reduce_scatterv")),
    ("vllm.model_executor.layers.fused_moe.experts.cpu_moe", "CPUUnquantizedExperts", ("apply",)),
)


def use_upstream(folder: pathlib.Path) -> None:
    """What others have imported already gets the new methods."""
    for name, kind, methods in UPSTREAM:
        module, file = importlib.import_module(name), folder / f"{name.replace('.', '/')}.py"
        changed = dict(vars(module))
        exec(compile(file.read_text(), str(file), "exec"), changed)
        for method in methods:
            setattr(getattr(module, kind), method, vars(changed[kind])[method])


def write(file: pathlib.Path, text: str) -> None:
    """All of it, or nothing yet."""
    new = file.with_name(f"{file.name}.new")
    new.write_text(text)
    new.rename(file)


def wait_for_all(file: pathlib.Path, number: int, ranks: int, in_time: float) -> None:
    """Until all have answered a round: rank 0 has the store of their process groups."""
    end = time.monotonic() + in_time
    while not all(file.with_suffix(f".{number}.{rank}").exists() for rank in range(ranks)):
        if time.monotonic() > end:
            raise TimeoutError(f"round {number}: not all ranks have answered")
        time.sleep(0.05)


def generate(llm: Any, prompts: list, new: int) -> list:
    """A rank without prompts takes part in the others' steps."""
    if not prompts:
        while llm.llm_engine.has_unfinished_requests():
            llm.llm_engine.step()
        return []
    from vllm import SamplingParams

    options = SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True, detokenize=False)
    done = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], options, use_tqdm=False)
    return [list(answer.outputs[0].token_ids) for answer in done]


def place(rank: int, ranks: int, tensor: int, port: int, ports: int) -> dict:
    """Sets environment variables, as a launcher does, and returns vLLM's options. Each rank of a tensor-parallel group
    has an engine of its own, too, as under torchrun. The first ports, from port on, are for all; those that a rank's
    engine looks for follow, for each rank its own."""
    os.environ["VLLM_PORT"] = str(port + ports * (1 + rank))
    if tensor == 1:
        os.environ.update(VLLM_DP_RANK=str(rank), VLLM_DP_SIZE=str(ranks), VLLM_DP_MASTER_PORT=str(port))
        return dict(distributed_executor_backend="uni")
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    return dict(
        distributed_executor_backend="external_launcher",
        tensor_parallel_size=tensor,
        data_parallel_size=ranks // tensor,
    )


def be_rank(file: pathlib.Path, rank: int) -> None:
    """file: JSON, as test_vllm.py writes it; answers to round 2 go to FILE.2.RANK."""
    job = json.loads(file.read_text())
    ranks, tensor = job["ranks"], job["tensor"]
    options = {**place(rank, ranks, tensor, job["port"], job["ports"]), **job["options"]}
    from vllm import LLM

    llm = LLM(
        model=job["model"],
        dtype="float32",
        skip_tokenizer_init=True,
        enforce_eager=not job["compiled"],
        max_model_len=128,
        max_num_batched_tokens=192,
        max_num_seqs=8,
        enable_expert_parallel=ranks > 1,
        enable_prefix_caching=False,
        **options,
    )
    for number, round in enumerate(job["rounds"]):
        write(file.with_suffix(f".trouble.{rank}"), round["trouble"][rank])
        answers = generate(llm, round["prompts"][rank // tensor], round["new"])
        write(file.with_suffix(f".{number}.{rank}"), json.dumps(answers))
    wait_for_all(file, number, ranks, job["in_time"])
    llm.llm_engine.engine_core.shutdown()
