# SPDX-License-Identifier: BSD-3-Clause
"""One rank of vLLM's data parallelism: generates what it is asked for, round after round, all ranks together.

python vllm_rank.py FILE RANK     # FILE: JSON, as test_vllm.py writes it; answers to round 2 go to FILE.2.RANK
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time
from typing import Any

MODEL = dict(
    vocab_size=211, hidden_size=64, intermediate_size=96, moe_intermediate_size=32, num_hidden_layers=2, head_dim=32,
    num_attention_heads=4, num_key_value_heads=2, num_experts=6, num_experts_per_tok=2, norm_topk_prob=True,
    max_position_embeddings=256, initializer_range=0.2, eos_token_id=None, bos_token_id=None, tie_word_embeddings=False,
)  # fmt: skip


def make_model(path: str, experts: int) -> None:
    import torch
    from transformers import AutoModelForCausalLM, Qwen3MoeConfig

    torch.manual_seed(5)
    AutoModelForCausalLM.from_config(Qwen3MoeConfig(**dict(MODEL, num_experts=experts))).save_pretrained(path)


def register() -> None:
    """A plugin of vLLM, loaded after that of xep: see vllm_trouble.py."""
    from vllm.platforms import current_platform

    if "xep" in current_platform.get_device_communicator_cls():
        type(current_platform).get_device_communicator_cls = classmethod(lambda cls: "vllm_trouble.Communicator")


def prepare(rank: int, ranks: int, port: int) -> None:
    """Before vLLM is imported."""
    os.environ.update(
        VLLM_DP_RANK=str(rank), VLLM_DP_SIZE=str(ranks), VLLM_DP_MASTER_IP="127.0.0.1", VLLM_DP_MASTER_PORT=str(port),
        VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_CPU_KVCACHE_SPACE="1", VLLM_NO_USAGE_STATS="1", OMP_NUM_THREADS="1",
        VLLM_LOGGING_LEVEL=os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"), HF_HUB_OFFLINE="1",
    )  # fmt: skip


def write(file: pathlib.Path, text: str) -> None:
    """All of it, or nothing yet."""
    new = file.with_name(f"{file.name}.new")
    new.write_text(text)
    new.rename(file)


def wait_for_all(file: pathlib.Path, number: int, ranks: int, in_time: float) -> None:
    """Until all have answered a round. Engines make steps together: one that ends takes the others' with it."""
    end = time.monotonic() + in_time
    while not all(file.with_suffix(f".{number}.{rank}").exists() for rank in range(ranks)):
        if time.monotonic() > end:
            raise TimeoutError(f"round {number}: not all ranks have answered")
        time.sleep(0.05)


def generate(llm: Any, prompts: list, new: int) -> list:
    """Without a coordinator nobody wakes an engine that was asked nothing: a token, then steps of none."""
    from vllm import SamplingParams

    options = SamplingParams(temperature=0.0, max_tokens=new if prompts else 1, ignore_eos=True, detokenize=False)
    asked = [{"prompt_token_ids": prompt} for prompt in prompts or [[0]]]
    done = llm.generate(asked, options, use_tqdm=False)
    return [list(answer.outputs[0].token_ids) for answer in done] if prompts else []


def main() -> None:
    file, rank = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    job = json.loads(file.read_text())
    ranks = job["ranks"]
    prepare(rank, ranks, job["port"])
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
    )
    for number, round in enumerate(job["rounds"]):
        write(file.with_suffix(f".trouble.{rank}"), round["trouble"][rank])
        answers = generate(llm, round["prompts"][rank], job["new"])
        write(file.with_suffix(f".{number}.{rank}"), json.dumps(answers))
        wait_for_all(file, number, ranks, job["in_time"])
    llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main()
