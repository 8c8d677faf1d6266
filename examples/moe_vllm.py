# SPDX-License-Identifier: BSD-3-Clause
"""Tokens a second of vLLM on the cores of this machine: of one engine, then of two that share the experts over xep.

    python examples/moe_vllm.py

The model is a Qwen3-MoE with random weights in float32. Both ways answer the same prompts on the same cores, and the
tokens are compared.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import importlib.util
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from typing import Any, NamedTuple

VOCABULARY = 512
ALIKE = 0.9  # of all sequences: kernels that sum in another order decide a near tie of two tokens otherwise


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2, help="engines that share the experts")
    parser.add_argument("--prompts", type=int, default=16, help="of all engines together")
    parser.add_argument("--length", type=int, default=64, help="of a prompt, in tokens")
    parser.add_argument("--new", type=int, default=32, help="tokens for each prompt")
    parser.add_argument("--hidden", type=int, default=512, help="elements of a token, a multiple of 64")
    parser.add_argument("--layers", type=int, default=4, help="of the model")
    parser.add_argument("--experts", type=int, default=16, help="of a layer")
    parser.add_argument("--topk", type=int, default=4, help="experts of a token")
    parser.add_argument("--repeat", type=int, default=3, help="how often each is timed: the fastest counts")
    parser.add_argument("--compile", action="store_true", help="the model, as vLLM does unless told otherwise")
    parser.add_argument("--limit", type=float, default=600, help="seconds for all of it, then everything is ended")
    chosen = parser.parse_args()
    for name in ("prompts", "length", "new", "layers", "repeat"):
        if getattr(chosen, name) < 1:
            parser.error(f"--{name}: expected 1 or more, got {getattr(chosen, name)}")
    if not 1 < chosen.ranks <= chosen.experts:
        parser.error(f"--ranks: expected 2 to the number of experts, {chosen.experts}, got {chosen.ranks}")
    if not 1 <= chosen.topk <= chosen.experts:
        parser.error(f"--topk: expected 1 to the number of experts, {chosen.experts}, got {chosen.topk}")
    if chosen.hidden < 64 or chosen.hidden % 64:
        parser.error(f"--hidden: expected a multiple of 64, got {chosen.hidden}")
    return chosen


def make_model(chosen: argparse.Namespace, folder: str) -> None:
    import torch
    import transformers

    torch.manual_seed(1)
    transformers.AutoModelForCausalLM.from_config(
        transformers.Qwen3MoeConfig(
            vocab_size=VOCABULARY,
            hidden_size=chosen.hidden,
            intermediate_size=2 * chosen.hidden,
            moe_intermediate_size=chosen.hidden // 2,
            num_hidden_layers=chosen.layers,
            num_attention_heads=chosen.hidden // 32,
            num_key_value_heads=chosen.hidden // 64,
            head_dim=32,
            num_experts=chosen.experts,
            num_experts_per_tok=chosen.topk,
            norm_topk_prob=True,
            initializer_range=0.1,
            tie_word_embeddings=False,
            eos_token_id=None,
            bos_token_id=None,
        )
    ).save_pretrained(folder)


class Answers(NamedTuple):
    tokens: list  # of each prompt
    threads: int  # of each engine
    reading: float  # seconds until each prompt has one token
    all_of_it: float  # seconds until each prompt has all of them


def engines(chosen: argparse.Namespace, folder: str, ranks: int) -> Any:
    """vLLM's server without its HTTP: it starts the engines, and a coordinator where there are several."""
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    return AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=folder,
            dtype="float32",
            skip_tokenizer_init=True,
            enforce_eager=not chosen.compile,
            data_parallel_size=ranks,
            enable_expert_parallel=ranks > 1,
            enable_prefix_caching=False,
            disable_log_stats=True,
            use_tqdm_on_load=False,
            max_model_len=chosen.length + chosen.new,
            max_num_batched_tokens=max(512, chosen.length + chosen.new),
            max_num_seqs=chosen.prompts,
        )
    )


async def ask(engine: Any, prompts: list, ranks: int, new: int) -> tuple[list, float]:
    """The tokens of all prompts, and the seconds that took; the engines have the prompts in turn."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    async def one(number: int) -> list:
        sampling = SamplingParams(
            temperature=0.0, max_tokens=new, ignore_eos=True, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY
        )
        asked = {"prompt_token_ids": prompts[number]}
        rank = {"data_parallel_rank": number % ranks} if ranks > 1 else {}
        async for answer in engine.generate(asked, sampling, f"{new} tokens, prompt {number}", **rank):
            pass
        return list(answer.outputs[0].token_ids)

    begin = time.perf_counter()
    tokens = await asyncio.gather(*map(one, range(len(prompts))))
    return tokens, time.perf_counter() - begin


async def answer(chosen: argparse.Namespace, folder: str, ranks: int) -> Answers:
    threads = max(1, len(os.sched_getaffinity(0)) // ranks)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    engine = engines(chosen, folder, ranks)
    try:
        numbers = random.Random(7)
        prompts = [[numbers.randrange(VOCABULARY) for _ in range(chosen.length)] for _ in range(chosen.prompts)]
        tokens, _ = await ask(engine, prompts, ranks, chosen.new)  # and warms up
        reading = min([(await ask(engine, prompts, ranks, 1))[1] for _ in range(chosen.repeat)])
        all_of_it = min([(await ask(engine, prompts, ranks, chosen.new))[1] for _ in range(chosen.repeat)])
        return Answers(tokens, threads, reading, all_of_it)
    finally:
        engine.shutdown()


def line(name: str, chosen: argparse.Namespace, found: Answers) -> str:
    read, new = chosen.prompts * chosen.length / found.reading, chosen.prompts * chosen.new / found.all_of_it
    return f"{name:24}{found.threads:>10}{read:18.0f}{new:15.0f}"


def compare(chosen: argparse.Namespace) -> None:
    """In a session of its own, with all that vLLM starts. Ends this process: an interpreter that tidies up ends before
    vLLM's engines do, which they complain of."""
    os.setsid()
    os.environ.update(
        VLLM_CPU_OMP_THREADS_BIND="nobind",  # engines would take the same cores
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_LOGGING_LEVEL=os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
        VLLM_NO_USAGE_STATS="1",
        HF_HUB_OFFLINE="1",
        TORCH_CPP_LOG_LEVEL="ERROR",
        PYTHONWARNINGS="ignore",
        XEP_VLLM="1",
    )
    with tempfile.TemporaryDirectory() as folder:
        make_model(chosen, folder)
        one, several = (asyncio.run(answer(chosen, folder, ranks)) for ranks in (1, chosen.ranks))
    print(f"{'':24}{'threads':>10}{'prompt tokens/s':>18}{'new tokens/s':>15}")
    print(line("one engine", chosen, one))
    print(line(f"{chosen.ranks} engines, over xep", chosen, several))
    same = sum(found == expected for found, expected in zip(several.tokens, one.tokens))
    print(f"sequences with the same tokens: {same} of {chosen.prompts}", flush=True)
    if same < ALIKE * chosen.prompts:
        print("the tokens of several engines are not those of one", file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def check_installed() -> None:
    if importlib.util.find_spec("vllm") is None:
        raise SystemExit("vLLM is not installed (pip install './python[vllm]'; docs/howto/frameworks.md says more)")
    plugins = importlib.metadata.entry_points().select(group="vllm.general_plugins", name="xep")
    if not list(plugins):
        raise SystemExit("xep is not installed where vLLM looks for plugins (pip install ./python)")


def main() -> None:
    chosen = options()
    check_installed()
    process = multiprocessing.get_context("spawn").Process(target=compare, args=(chosen,))
    process.start()
    try:
        process.join(chosen.limit)
        if process.exitcode is None:
            raise SystemExit(f"not done after {chosen.limit:g} seconds (--limit)")
        if process.exitcode != 0:
            raise SystemExit(1)
    finally:
        end(process)


def end(process: Any) -> None:
    """And what vLLM has started, should anything of it be left."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:  # nothing is left, or it is not in a session of its own yet
        process.kill()
    process.join()


if __name__ == "__main__":
    main()
