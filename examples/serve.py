# SPDX-License-Identifier: BSD-3-Clause
"""Serving in miniature: prefill by normal mode, decode by the low-latency calls with two batches that overlap.

    xep_run -n 4 python examples/serve.py

While the tokens of one batch are on their way, the attention of the other is computed. The result of both phases is
checked against one process that has every expert.
"""

from __future__ import annotations

import torch

import deep_ep
from deep_ep.utils import calc_diff

PROMPT, BATCH, HIDDEN, TOPK, STEPS = 96, 8, 256, 2, 4
EXPERTS_OF_RANK = 2


def expert(number: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Experts scale: enough to see who answered. number: [N] or an int."""
    factor = 0.5 + 0.25 * torch.as_tensor(number, dtype=torch.float32)
    return (x.float() * factor.reshape(-1, *([1] * (x.dim() - 1)))).bfloat16()


def attention(x: torch.Tensor) -> torch.Tensor:
    return (x.float() / (1e-6 + x.float().square().mean(1, keepdim=True).sqrt())).bfloat16()


def route(x: torch.Tensor, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    gate = torch.randn((HIDDEN, experts), generator=torch.Generator().manual_seed(7))
    weights, topk_idx = (x.float() @ gate).softmax(1).topk(TOPK, dim=1)
    return topk_idx, weights / weights.sum(1, keepdim=True)


def moe_alone(x: torch.Tensor, experts: int) -> torch.Tensor:
    topk_idx, weights = route(x, experts)
    return sum(weights[:, k : k + 1] * expert(topk_idx[:, k], x).float() for k in range(TOPK)).bfloat16()


def prefill(buffer: deep_ep.Buffer, x: torch.Tensor) -> torch.Tensor:
    """A row once to each rank; that rank weighs and sums its experts' answers."""
    experts = EXPERTS_OF_RANK * buffer.group_size
    topk_idx, weights = route(x, experts)
    per_rank, per_node, per_expert, in_rank, _ = buffer.get_dispatch_layout(topk_idx, experts)
    rows, idx, row_weights, _, handle, _ = buffer.dispatch(
        x,
        topk_idx=topk_idx,
        topk_weights=weights,
        num_tokens_per_rank=per_rank,
        num_tokens_per_rdma_rank=per_node,
        is_token_in_rank=in_rank,
        num_tokens_per_expert=per_expert,
    )
    answers = torch.zeros(rows.shape)
    for local in range(EXPERTS_OF_RANK):
        at, k = (idx == local).nonzero(as_tuple=True)
        answers.index_add_(
            0, at, row_weights[at, k, None] * expert(buffer.rank * EXPERTS_OF_RANK + local, rows[at]).float()
        )
    combined, _, event = buffer.combine(answers.bfloat16(), handle, async_finish=True)
    event.current_stream_wait()
    return combined


def run_experts(buffer: deep_ep.Buffer, rows: torch.Tensor, counts: torch.Tensor, answers: torch.Tensor) -> None:
    for local, count in enumerate(counts.tolist()):
        answers[local, :count] = expert(buffer.rank * EXPERTS_OF_RANK + local, rows[local, :count])


def decode_step(buffer: deep_ep.Buffer, batches: list[torch.Tensor]) -> list[torch.Tensor]:
    """Both batches through attention and experts: each phase of one is between the call and the hook of the other."""
    experts = EXPERTS_OF_RANK * buffer.group_size
    sent: list = []
    for x in batches:
        hidden = attention(x)  # of the second batch: while the first one's rows are on their way
        topk_idx, weights = route(hidden, experts)
        sent.append((topk_idx, weights, buffer.low_latency_dispatch(
            hidden, topk_idx, BATCH, experts, use_fp8=False, return_recv_hook=True
        )))  # fmt: skip
    combining: list = []
    for topk_idx, weights, (rows, counts, handle, _, hook) in sent:
        hook()
        answers = buffer.get_next_low_latency_combine_buffer(handle)  # no copy on the way back
        run_experts(buffer, rows, counts, answers)
        combining.append(
            buffer.low_latency_combine(answers, topk_idx, weights, handle, zero_copy=True, return_recv_hook=True)
        )
    results = []
    for combined, _, hook in combining:
        hook()
        results.append(combined)
    return results


def main() -> None:
    buffer = deep_ep.Buffer(low_latency_mode=True, explicitly_destroy=True, num_slots=5)
    experts = EXPERTS_OF_RANK * buffer.group_size
    generator = torch.Generator().manual_seed(buffer.rank)
    prompt = torch.randn((PROMPT, HIDDEN), generator=generator).bfloat16()
    worst = calc_diff(prefill(buffer, prompt), moe_alone(prompt, experts))
    batches = [torch.randn((BATCH, HIDDEN), generator=generator).bfloat16() for _ in range(2)]
    for _ in range(STEPS):
        wanted = [moe_alone(attention(x), experts) for x in batches]
        batches = decode_step(buffer, batches)
        worst = max([worst, *(calc_diff(a, b) for a, b in zip(batches, wanted))])
    print(
        f"rank {buffer.rank}: prefill of {PROMPT} tokens, {STEPS} steps of two batches; largest difference {worst:.1e}",
        flush=True,
    )
    buffer.destroy()
    if worst > 1e-4:
        raise SystemExit("the results are wrong")


if __name__ == "__main__":
    main()
