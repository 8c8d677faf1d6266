# SPDX-License-Identifier: BSD-3-Clause
"""Normal mode of deep_ep: what every rank dispatches, known to every rank."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import deep_ep

TOKENS, HIDDEN, TOPK = 48, 256, 4


@dataclass
class World:
    """What every rank dispatches."""

    buffer: deep_ep.Buffer
    experts: int
    topk_idx: list  # of each rank [T, K]
    weights: list  # of each rank [T, K]

    @property
    def rank(self) -> int:
        return self.buffer.rank

    @property
    def size(self) -> int:
        return self.buffer.group_size

    def owners(self, rank: int) -> torch.Tensor:
        """[T, K] rank of each selection, or -1."""
        return torch.where(self.topk_idx[rank] >= 0, self.topk_idx[rank] // (self.experts // self.size), -1)

    def in_rank(self, rank: int) -> torch.Tensor:
        owners = self.owners(rank)
        return torch.stack([(owners == other).any(1) for other in range(self.size)], dim=1)

    def sources(self) -> list[tuple[int, int]]:
        """(rank, token) of each row this rank gets."""
        return [
            (rank, t)
            for rank in range(self.size)
            for t in self.in_rank(rank)[:, self.rank].nonzero().flatten().tolist()
        ]


def make_world(buffer: deep_ep.Buffer, seed: int = 0, tokens: int = TOKENS, ragged: bool = True) -> World:
    experts = 4 * buffer.group_size
    indices, weights = [], []
    for rank in range(buffer.group_size):
        generator = torch.Generator().manual_seed(1000 * seed + rank)
        count = tokens - 5 * rank if ragged else tokens
        scores = torch.rand((count, experts), generator=generator)
        chosen = torch.topk(scores, TOPK, dim=1, sorted=False).indices
        chosen[torch.rand(chosen.shape, generator=generator) < 0.1] = -1
        indices.append(chosen)
        weights.append(torch.rand((count, TOPK), generator=generator))
    return World(buffer, experts, indices, weights)


def rows_of(kind: str, rank: int, tokens: int) -> torch.Tensor:
    """bfloat16 [T, H] of a rank."""
    if kind == "rank":
        return torch.full((tokens, HIDDEN), float(rank), dtype=torch.bfloat16)
    return torch.randn((tokens, HIDDEN), generator=torch.Generator().manual_seed(77 + rank)).bfloat16()


def layout_arguments(layout: tuple) -> dict:
    per_rank, per_node, per_expert, in_rank, _ = layout
    return dict(
        num_tokens_per_rank=per_rank,
        num_tokens_per_rdma_rank=per_node,
        is_token_in_rank=in_rank,
        num_tokens_per_expert=per_expert,
    )


def prepared(world: World) -> tuple:
    """Rows of this rank on its CUDA device, and what a dispatch of them is given besides."""
    idx = world.topk_idx[world.rank].cuda()
    layout = world.buffer.get_dispatch_layout(idx, world.experts)
    x = rows_of("random", world.rank, len(idx)).cuda()
    weights = world.weights[world.rank].cuda()
    return x, dict(layout_arguments(layout), topk_idx=idx, topk_weights=weights)
