# SPDX-License-Identifier: BSD-3-Clause
"""A mixture-of-experts layer with gradients: the backward of dispatch is combine, that of combine a cached dispatch.

    xep_run -n 4 python python/examples/moe_torch.py
    torchrun --nproc-per-node 4 python/examples/moe_torch.py

Outputs and every gradient are checked against one process that has every expert and every token; then steps are timed.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any, Optional

import torch

import deep_ep

TOKENS, HIDDEN, EXPERTS_OF_RANK, TOPK = 48, 64, 2, 2
STEPS = 20


class Dispatch(torch.autograd.Function):
    """x [T, H], weights [T, K] -> their rows at the ranks of the experts."""

    @staticmethod
    def forward(
        ctx: Any, buffer: deep_ep.Buffer, x: torch.Tensor, topk_idx: torch.Tensor, weights: torch.Tensor
    ) -> tuple:
        experts = EXPERTS_OF_RANK * buffer.group_size
        per_rank, per_node, per_expert, in_rank, _ = buffer.get_dispatch_layout(topk_idx, experts)
        recv_x, recv_idx, recv_weights, _, handle, _ = buffer.dispatch(
            x,
            topk_idx=topk_idx,
            topk_weights=weights,
            num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=per_node,
            is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert,
        )
        ctx.buffer, ctx.handle = buffer, handle
        ctx.mark_non_differentiable(recv_idx)
        ctx.set_materialize_grads(True)
        return recv_x, recv_idx, recv_weights, Route(handle)

    @staticmethod
    def backward(ctx: Any, grad_x: torch.Tensor, _grad_idx: Any, grad_weights: torch.Tensor, _route: Any) -> tuple:
        x, weights, _ = ctx.buffer.combine(grad_x.contiguous(), ctx.handle, topk_weights=grad_weights.contiguous())
        return None, x, None, weights


class Route:
    """Carries the handle from dispatch to combine past autograd."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle


class Combine(torch.autograd.Function):
    """Rows at the ranks of the experts -> their sums [T, H] where the tokens came from."""

    @staticmethod
    def forward(ctx: Any, buffer: deep_ep.Buffer, y: torch.Tensor, route: Route) -> torch.Tensor:
        ctx.buffer, ctx.route = buffer, route
        return buffer.combine(y.contiguous(), route.handle)[0]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        rows = ctx.buffer.dispatch(grad.contiguous(), handle=ctx.route.handle)[0]
        return None, rows, None


def expert_sum(x: torch.Tensor, idx: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    """Each row by those of experts [E', H, H] that idx [N, K] names, weighted."""
    out = torch.zeros_like(x)
    for number, matrix in enumerate(experts):
        rows, columns = (idx == number).nonzero(as_tuple=True)
        out = out.index_add(0, rows, weights[rows, columns, None] * torch.tanh(x[rows] @ matrix))
    return out


def moe(
    buffer: deep_ep.Buffer, x: torch.Tensor, topk_idx: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor
) -> torch.Tensor:
    rows, idx, row_weights, route = Dispatch.apply(buffer, x, topk_idx, weights)
    return Combine.apply(buffer, expert_sum(rows, idx, row_weights, experts), route)


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


def step(buffer: deep_ep.Buffer) -> tuple[torch.Tensor, ...]:
    """Forward and backward of this rank's tokens: the output, the gradients of x, weights and its experts."""
    rank, ranks = buffer.rank, buffer.group_size
    mine = slice(rank * EXPERTS_OF_RANK, (rank + 1) * EXPERTS_OF_RANK)
    x, topk_idx, weights, grad = inputs(rank, ranks)
    experts = all_experts(ranks)[mine].clone().requires_grad_()
    x.requires_grad_(), weights.requires_grad_()
    out = moe(buffer, x, topk_idx, weights, experts)
    (out * grad).sum().backward()
    return out, x.grad, weights.grad, experts.grad


def difference(buffer: deep_ep.Buffer) -> float:
    """Largest difference of anything from the one process."""
    rank, ranks = buffer.rank, buffer.group_size
    mine = slice(rank * EXPERTS_OF_RANK, (rank + 1) * EXPERTS_OF_RANK)
    outs, grads_x, grads_weights, grads_experts = alone(ranks)
    alone_here = outs[rank], grads_x[rank], grads_weights[rank], grads_experts[mine]
    return max(float((a - b).detach().abs().max()) for a, b in zip(step(buffer), alone_here))


def milliseconds(buffer: deep_ep.Buffer) -> float:
    """The median step."""
    times = []
    for _ in range(STEPS):
        begin = time.perf_counter()
        step(buffer)
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
    buffer = deep_ep.Buffer(group, explicitly_destroy=True)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // buffer.group_size))  # the ranks share the processors
    rank, worst = buffer.rank, difference(buffer)
    print(f"rank {rank}: largest difference from one process {worst:.2e}", flush=True)
    median = milliseconds(buffer)
    if rank == 0:
        print(
            f"a step forward and backward on {buffer.group_size} ranks: {median:.1f} ms, median of {STEPS}", flush=True
        )
    buffer.destroy()
    if group is not None:
        torch.distributed.destroy_process_group()
    if worst > 1e-4:
        raise SystemExit("the layer or its gradients are wrong")


if __name__ == "__main__":
    main()
