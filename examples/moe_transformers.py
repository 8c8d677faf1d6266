# SPDX-License-Identifier: BSD-3-Clause
"""A Qwen3-MoE model over the ranks, by xep and by the implementation that transformers has built in, side by side.

    torchrun --nproc-per-node 2 examples/moe_transformers.py

Its weights are random. Logits and the gradients of a training step are compared, with each other and with one process;
then rows, bytes and times of a step.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from typing import Any, Iterator

import torch
import torch.distributed as dist
import transformers
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.distributed import DistributedConfig

import xep.integrations.transformers as integration

TOLERANCE = 1e-5
SEEDS, GAP = 20, 1e-5  # of router logits, in which implementations differ by rounding: about 1e-7


class Traffic(TorchDispatchMode):
    """Counts what the built-in implementation sends: forward and backward, the rows of other ranks alone."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.bytes = 0, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "all_to_all_single" in str(function) and args[0].dim() == 2:
            rows, parts = args[0], args[2]
            sent = sum(parts) - parts[dist.get_rank()]
            self.rows += sent
            self.bytes += sent * rows.shape[1] * rows.element_size()
        return function(*args, **(kwargs or {}))


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=128, help="of each rank (default: %(default)s)")
    parser.add_argument("--hidden", type=int, default=256, help="(default: %(default)s)")
    parser.add_argument("--layers", type=int, default=4, help="(default: %(default)s)")
    parser.add_argument("--experts", type=int, default=16, help="(default: %(default)s)")
    parser.add_argument("--topk", type=int, default=8, help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, default=5, help="that are timed (default: %(default)s)")
    return parser.parse_args()


def configuration(chosen: argparse.Namespace) -> transformers.Qwen3MoeConfig:
    return transformers.Qwen3MoeConfig(
        vocab_size=512,
        hidden_size=chosen.hidden,
        intermediate_size=2 * chosen.hidden,
        moe_intermediate_size=chosen.hidden // 2,
        num_hidden_layers=chosen.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=chosen.hidden // 4,
        num_experts=chosen.experts,
        num_experts_per_tok=chosen.topk,
        initializer_range=0.1,
    )


def draw_batches(whole: Any, chosen: argparse.Namespace) -> list[torch.Tensor]:
    """Tokens of each rank, drawn until no token has a tie between the last expert that it takes and the first that it
    does not: rounding alone would decide there, and implementations would rightly differ. Else those with the widest
    gap."""
    widest, batches = -1.0, []
    for seed in range(SEEDS):
        generator = torch.Generator().manual_seed(seed)
        drawn = [torch.randint(0, 512, (1, chosen.tokens), generator=generator) for _ in range(dist.get_world_size())]
        gap = min(narrowest(layer, chosen.topk) for batch in drawn for layer in router_logits(whole, batch))
        if gap > widest:
            widest, batches = gap, drawn
        if gap > GAP:
            break
    dist.broadcast_object_list(found := [batches])
    return found[0]


def router_logits(whole: Any, batch: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        return whole(batch, output_router_logits=True).router_logits


def narrowest(logits: torch.Tensor, topk: int) -> float:
    """Of all tokens, [T, E]: the smallest step from the expert at topk to the next one; no next one: infinite."""
    best = logits.sort(dim=-1, descending=True).values
    return float((best[:, topk - 1] - best[:, topk]).min()) if topk < best.shape[1] else float("inf")


def shared_models(whole: Any) -> Iterator[Any]:
    """The model over the ranks, by either implementation."""
    ranks = dist.get_world_size()
    with tempfile.TemporaryDirectory() as folder:
        path = [folder]
        dist.broadcast_object_list(path)
        if dist.get_rank() == 0:
            whole.save_pretrained(path[0])
        dist.barrier()
        for name in ("xep", "all_to_all"):
            spread = DistributedConfig(fsdp_size=ranks, ep_size=ranks, ep_implementation=name)
            yield transformers.AutoModelForCausalLM.from_pretrained(path[0], distributed_config=spread)
        dist.barrier()


def loss(logits: torch.Tensor) -> torch.Tensor:
    return logits.log_softmax(-1)[..., 3].mean() + logits.tanh().square().mean()


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.detach() - expected.detach()).abs().max() / expected.detach().abs().max().clamp(min=1e-30))


def compare(model: Any, whole: Any, batches: list[torch.Tensor]) -> tuple[float, float]:
    """Largest relative difference of logits and of gradients from those of one process."""
    model.zero_grad(), whole.zero_grad()
    found = model(batches[dist.get_rank()]).logits
    loss(found).backward()
    every = [whole(batch).logits for batch in batches]
    torch.stack([loss(logits) for logits in every]).mean().backward()
    expected = {name: parameter.grad for name, parameter in whole.named_parameters()}
    worst = 0.0
    for name, parameter in model.named_parameters():
        grad = parameter.grad.full_tensor() if isinstance(parameter.grad, DTensor) else parameter.grad
        worst = max(worst, difference(grad, expected[name]))
    return difference(found, every[dist.get_rank()]), worst


def step(model: Any, batch: torch.Tensor) -> float:
    """Milliseconds of forward and backward."""
    model.zero_grad()
    dist.barrier()
    begin = time.perf_counter()
    loss(model(batch).logits).backward()
    return 1e3 * (time.perf_counter() - begin)


def total(*numbers: float) -> list[float]:
    sums = torch.tensor(numbers, dtype=torch.float64)
    dist.all_reduce(sums)
    return sums.tolist()


def main() -> None:
    chosen = options()
    transformers.utils.logging.disable_progress_bar()
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    whole = transformers.AutoModelForCausalLM.from_config(configuration(chosen))
    batches = draw_batches(whole, chosen)
    batch = batches[dist.get_rank()]
    by_xep, built_in = shared_models(whole)
    lines = []
    for name, model in (("xep", by_xep), ("all_to_all", built_in)):
        logits, gradients = compare(model, whole, batches)
        before = integration.counts()
        with Traffic() as traffic:
            step(model, batch)
        now = integration.counts()
        rows = traffic.rows + now.rows_sent - before.rows_sent
        sent = traffic.bytes + now.bytes_sent - before.bytes_sent
        lines.append([name, *total(rows, sent), logits, gradients])
    times: list[list[float]] = [[], []]
    for _ in range(chosen.steps):  # in turns, so that what else the machine does meets both
        for model, taken in zip((by_xep, built_in), times):
            taken.append(step(model, batch))
    if dist.get_rank() == 0:
        print(f"{'':12}{'rows sent':>12}{'MB sent':>10}{'ms a step':>12}{'logits':>12}{'gradients':>12}")
        for line, taken in zip(lines, times):
            name, rows, sent, logits, gradients = line
            median = statistics.median(taken)
            print(f"{name:12}{rows:12.0f}{sent / 1e6:10.2f}{median:12.1f}{logits:12.1e}{gradients:12.1e}", flush=True)
    integration.close()
    dist.destroy_process_group()
    if max(lines[0][3:]) > TOLERANCE or lines[0][1] == 0:
        raise SystemExit("the model by xep is not that of one process")


if __name__ == "__main__":
    main()
