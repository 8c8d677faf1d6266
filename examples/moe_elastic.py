# SPDX-License-Identifier: BSD-3-Clause
"""The layer of moe_torch.py by ElasticBuffer: rows arrive by expert, so that each expert's are one slice.

    xep_run -n 4 python examples/moe_elastic.py
    torchrun --nproc-per-node 4 examples/moe_elastic.py

Outputs and every gradient are checked against one process that has every expert and every token.
"""

from __future__ import annotations

from typing import Any

import moe_torch
import torch

import deep_ep


class Route:
    """Carries the handle from dispatch to combine past autograd."""

    handle: deep_ep.EPHandle


class Dispatch(torch.autograd.Function):
    """x [T, H], weights [T, K] -> a row and a weight for each selection, by expert."""

    @staticmethod
    def forward(ctx: Any, buffer: Any, x: torch.Tensor, idx: torch.Tensor, weights: torch.Tensor, route: Route) -> Any:
        experts = moe_torch.EXPERTS_OF_RANK * buffer.num_ranks
        rows, _, row_weights, route.handle, _ = buffer.dispatch(
            x, topk_idx=idx, topk_weights=weights, num_experts=experts, do_expand=True
        )
        ctx.buffer, ctx.handle = buffer, route.handle
        return rows, row_weights

    @staticmethod
    def backward(ctx: Any, grad_rows: torch.Tensor, grad_weights: torch.Tensor) -> tuple:
        x, weights, _ = ctx.buffer.combine(grad_rows.contiguous(), ctx.handle, topk_weights=grad_weights.contiguous())
        return None, x, None, weights, None


class Combine(torch.autograd.Function):
    """What the experts made of the rows -> their sums [T, H] where the tokens came from."""

    @staticmethod
    def forward(ctx: Any, buffer: Any, rows: torch.Tensor, handle: deep_ep.EPHandle) -> torch.Tensor:
        ctx.buffer, ctx.handle = buffer, handle
        return buffer.combine(rows.contiguous(), handle)[0]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        rows = ctx.buffer.dispatch(grad.contiguous(), handle=ctx.handle, do_expand=True)[0]
        return None, rows, None


def moe(
    buffer: deep_ep.ElasticBuffer, x: torch.Tensor, idx: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor
) -> torch.Tensor:
    route = Route()
    rows, row_weights = Dispatch.apply(buffer, x, idx, weights, route)
    slices = rows.split(route.handle.num_recv_tokens_per_expert_list)
    answers = torch.cat([torch.tanh(one @ matrix) for one, matrix in zip(slices, experts)])
    return Combine.apply(buffer, row_weights[:, None] * answers, route.handle)


def difference(buffer: deep_ep.ElasticBuffer) -> float:
    """Largest difference of anything from the one process."""
    rank, ranks = buffer.rank_idx, buffer.num_ranks
    mine = slice(rank * moe_torch.EXPERTS_OF_RANK, (rank + 1) * moe_torch.EXPERTS_OF_RANK)
    x, idx, weights, grad = moe_torch.inputs(rank, ranks)
    experts = moe_torch.all_experts(ranks)[mine].clone().requires_grad_()
    x.requires_grad_(), weights.requires_grad_()
    out = moe(buffer, x, idx, weights, experts)
    (out * grad).sum().backward()
    outs, grads_x, grads_weights, grads_experts = moe_torch.alone(ranks)
    pairs = (
        (out, outs[rank]),
        (x.grad, grads_x[rank]),
        (weights.grad, grads_weights[rank]),
        (experts.grad, grads_experts[mine]),
    )
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def main() -> None:
    group = moe_torch.process_group()
    buffer = deep_ep.ElasticBuffer(group, num_max_tokens_per_rank=moe_torch.TOKENS, explicitly_destroy=True)
    rank, worst = buffer.rank_idx, difference(buffer)
    print(f"rank {rank}: largest difference from one process {worst:.2e}", flush=True)
    buffer.destroy()
    if group is not None:
        torch.distributed.destroy_process_group()
    if not worst < 1e-4:
        raise SystemExit("the layer or its gradients are wrong")


if __name__ == "__main__":
    main()
