# SPDX-License-Identifier: BSD-3-Clause
"""A mixture-of-experts layer with gradients, by xep.nn: the backward of dispatch is combine, that of combine a cached
dispatch.

    xep_run -n 4 python examples/moe_torch.py
    torchrun --nproc-per-node 4 examples/moe_torch.py

Outputs and every gradient are checked against one process that has every expert and every token; then steps are timed.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any, Optional

import torch

import xep.nn

TOKENS, HIDDEN, EXPERTS_OF_RANK, TOPK = 48, 64, 2, 2
STEPS = 20


def expert_sum(x: torch.Tensor, idx: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    """Each row by those of experts [E', H, H] that idx [N, K] names, weighted."""
    out = torch.zeros_like(x)
    for number, matrix in enumerate(experts):
        rows, columns = (idx == number).nonzero(as_tuple=True)
        out = out.index_add(0, rows, weights[rows, columns, None] * torch.tanh(x[rows] @ matrix))
    return out


class Experts(torch.nn.Module):
    """This rank's, [E', H, H]."""

    def __init__(self, matrices: torch.Tensor) -> None:
        super().__init__()
        self.matrices = torch.nn.Parameter(matrices)

    def forward(self, rows: torch.Tensor, idx: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return expert_sum(rows, idx, weights, self.matrices)


def inputs(rank: int, ranks: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of a rank: x, topk_idx, weights, and the gradient that comes back."""
    generator = torch.Generator().manual_seed(rank)
    scores = torch.rand((TOKENS, EXPERTS_OF_RANK * ranks), generator=generator)
    weights, topk_idx = scores.topk(TOPK, dim=1)
    x, grad = (torch.randn((TOKENS, HIDDEN), generator=generator) for _ in range(2))
    return x, topk_idx, weights.contiguous(), grad


def all_experts(ranks: int) -> torch.Tensor:
    return (
        torch.randn((EXPERTS_OF_RANK * ranks, HIDDEN, HIDDEN), generator=torch.Generator().manual_seed(99))
        / HIDDEN**0.5
    )


def alone(ranks: int) -> tuple[list, list, list, torch.Tensor]:
    """Outputs, gradients of x and of weights for each rank, gradients of all experts: in one process."""
    experts = all_experts(ranks).requires_grad_()
    outs, grads_x, grads_weights = [], [], []
    total = torch.zeros(())
    leaves = []
    for rank in range(ranks):
        x, topk_idx, weights, grad = inputs(rank, ranks)
        leaves.append((x.requires_grad_(), weights.requires_grad_()))
        outs.append(expert_sum(x, topk_idx, weights, experts))
        total = total + (outs[-1] * grad).sum()
    total.backward()
    grads_x, grads_weights = [x.grad for x, _ in leaves], [weights.grad for _, weights in leaves]
    return outs, grads_x, grads_weights, experts.grad


def step(exchange: xep.nn.Exchange) -> tuple[torch.Tensor, ...]:
    """Forward and backward of this rank's tokens: the output, the gradients of x, weights and its experts."""
    rank, ranks = exchange.rank, exchange.ranks
    mine = slice(rank * EXPERTS_OF_RANK, (rank + 1) * EXPERTS_OF_RANK)
    x, topk_idx, weights, grad = inputs(rank, ranks)
    experts = Experts(all_experts(ranks)[mine].clone())
    x.requires_grad_(), weights.requires_grad_()
    out = xep.nn.ExpertParallel(experts, exchange, EXPERTS_OF_RANK * ranks)(x, topk_idx, weights)
    (out * grad).sum().backward()
    return out, x.grad, weights.grad, experts.matrices.grad


def difference(exchange: xep.nn.Exchange) -> float:
    """Largest difference of anything from the one process."""
    rank, ranks = exchange.rank, exchange.ranks
    mine = slice(rank * EXPERTS_OF_RANK, (rank + 1) * EXPERTS_OF_RANK)
    outs, grads_x, grads_weights, grads_experts = alone(ranks)
    alone_here = outs[rank], grads_x[rank], grads_weights[rank], grads_experts[mine]
    return max(float((a - b).detach().abs().max()) for a, b in zip(step(exchange), alone_here))


def milliseconds(exchange: xep.nn.Exchange) -> float:
    """The median step."""
    times = []
    for _ in range(STEPS):
        begin = time.perf_counter()
        step(exchange)
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times)


def process_group() -> Optional[Any]:
    """Under torchrun gloo's; else none: PMIx."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    torch.distributed.init_process_group("gloo")
    return torch.distributed.group.WORLD


def main() -> None:
    group = process_group()
    exchange = xep.nn.Exchange(group)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // exchange.ranks))  # the ranks share the processors
    rank, worst = exchange.rank, difference(exchange)
    print(f"rank {rank}: largest difference from one process {worst:.2e}", flush=True)
    median = milliseconds(exchange)
    if rank == 0:
        print(f"a step forward and backward on {exchange.ranks} ranks: {median:.1f} ms, median of {STEPS}", flush=True)
    exchange.close()
    if group is not None:
        torch.distributed.destroy_process_group()
    if worst > 1e-4:
        raise SystemExit("the layer or its gradients are wrong")


if __name__ == "__main__":
    main()
