# SPDX-License-Identifier: BSD-3-Clause
"""One rank of vLLM's data parallelism: generates what it is asked for, and waits until all ranks have.

python vllm_rank.py FILE RANK     # FILE: JSON, as test_vllm.py writes it; answers go to FILE.RANK
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time

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


def prepare(rank: int, ranks: int, port: int) -> None:
    """Before vLLM is imported."""
    os.environ.update(
        VLLM_DP_RANK=str(rank), VLLM_DP_SIZE=str(ranks), VLLM_DP_MASTER_IP="127.0.0.1", VLLM_DP_MASTER_PORT=str(port),
        VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_CPU_KVCACHE_SPACE="1", VLLM_NO_USAGE_STATS="1", OMP_NUM_THREADS="1",
        VLLM_LOGGING_LEVEL=os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"), HF_HUB_OFFLINE="1",
    )  # fmt: skip


def wait_for_all(file: pathlib.Path, ranks: int) -> None:
    """Engines make steps together: one that ends takes the others' with it."""
    end = time.monotonic() + 240
    while time.monotonic() < end and not all(file.with_suffix(f".{rank}").exists() for rank in range(ranks)):
        time.sleep(0.1)


def main() -> None:
    file, rank = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    job = json.loads(file.read_text())
    ranks, prompts = len(job["prompts"]), job["prompts"][rank]
    prepare(rank, ranks, job["port"])
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=job["model"],
        dtype=job["dtype"],
        skip_tokenizer_init=True,
        enforce_eager=not job["compiled"],
        max_model_len=128,
        max_num_batched_tokens=192,
        max_num_seqs=8,
        enable_expert_parallel=ranks > 1,
        enable_prefix_caching=False,
        **job.get("options", {}),
    )
    options = SamplingParams(temperature=0.0, max_tokens=job["new"], ignore_eos=True, detokenize=False)
    begin = time.perf_counter()
    if not prompts:  # without a coordinator nobody wakes an engine that was asked nothing: a token, then steps of none
        options.max_tokens = 1
    asked = [{"prompt_token_ids": prompt} for prompt in prompts or [[0]]]
    done = llm.generate(asked, options, use_tqdm=False)
    answers = [list(answer.outputs[0].token_ids) for answer in done] if prompts else []
    seconds = time.perf_counter() - begin
    answer = file.with_suffix(f".{rank}")
    new = answer.with_name(f"{answer.name}.new")
    new.write_text(json.dumps({"tokens": answers, "seconds": seconds}))
    new.rename(answer)
    wait_for_all(file, ranks)
    llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main()
