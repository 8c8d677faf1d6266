# SPDX-License-Identifier: BSD-3-Clause
"""ElasticBuffer: what every rank dispatches, known to every rank, and what must come of it, by plain loops."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import deep_ep
from deep_ep.utils import per_token_cast_to_fp8

LOCAL, TOPK, MOST = 3, 3, 29  # experts of a rank, selections of a token, tokens of a rank at most
ROUTINGS = ("random", "masked", "one expert", "none", "some ranks have no tokens")


@dataclass
class World:
    buffer: deep_ep.ElasticBuffer
    topk_idx: list  # of each rank [T, K]
    weights: list  # of each rank [T, K]
    x: list  # of each rank [T, H] bfloat16

    @property
    def rank(self) -> int:
        return self.buffer.rank_idx

    @property
    def size(self) -> int:
        return self.buffer.num_ranks

    @property
    def experts(self) -> int:
        return LOCAL * self.size

    def mine(self) -> dict:
        """The arguments of this rank's dispatch."""
        return dict(
            x=self.x[self.rank], topk_idx=self.topk_idx[self.rank], topk_weights=self.weights[self.rank],
            num_experts=self.experts,
        )  # fmt: skip

    def here(self, rank: int, token: int, owner: int) -> list:
        """Local expert of each k, or -1, on a rank."""
        chosen = self.topk_idx[rank][token].tolist()
        return [e - owner * LOCAL if e >= 0 and e // LOCAL == owner else -1 for e in chosen]

    def sources(self) -> list:
        """(rank, token) of each row that this rank gets: rank, then token."""
        return [
            (rank, token)
            for rank in range(self.size)
            for token in range(len(self.x[rank]))
            if max(self.here(rank, token, self.rank)) >= 0
        ]

    def expanded(self, alignment: int) -> tuple[list, list, int]:
        """((rank, token, k) or None of each row, how many rows each expert has, rows) by expert."""
        rows: list = []
        counts = []
        for expert in range(LOCAL):
            found = [
                (rank, token, k)
                for rank, token in self.sources()
                for k, e in enumerate(self.here(rank, token, self.rank))
                if e == expert
            ]
            counts.append(len(found))
            rows += found + [None] * (-len(found) % alignment)
        return rows, counts, len(rows)


def make_world(buffer: deep_ep.ElasticBuffer, routing: str = "random", hidden: int = 72, seed: int = 0) -> World:
    indices, weights, rows = [], [], []
    experts = LOCAL * buffer.num_ranks
    for rank in range(buffer.num_ranks):
        generator = torch.Generator().manual_seed(1000 * seed + rank)
        tokens = MOST - 3 * rank % MOST
        if routing == "some ranks have no tokens" and rank % 2 == 0:
            tokens = 0
        chosen = torch.rand((tokens, experts), generator=generator).topk(TOPK, dim=1).indices
        if routing == "masked":
            chosen[torch.rand(chosen.shape, generator=generator) < 0.4] = -1
        if routing == "none":
            chosen[:] = -1
        if routing == "one expert":
            chosen[:] = -1
            chosen[:, 1] = experts - 1
        indices.append(chosen)
        weights.append(torch.randint(1, 64, chosen.shape, generator=generator) / 64)
        rows.append(torch.randn((tokens, hidden), generator=generator).bfloat16())
    return World(buffer, indices, weights, rows)


def settle(got: tuple, asynchronous: bool) -> tuple:
    """What a call gave, when it is done."""
    assert (got[-1].event is not None) == asynchronous
    if asynchronous:
        got[-1].current_stream_wait(release_handle=True)
    return got


def stacked(rows: list, like: torch.Tensor) -> torch.Tensor:
    return torch.stack(rows) if rows else torch.empty((0, *like.shape[1:]), dtype=like.dtype)


def answer(x: torch.Tensor, expert: int) -> torch.Tensor:
    """What expert (of all) makes of a row: different for each, rounded."""
    return (x.float() * (1 + expert / 8) + expert).bfloat16()


def answers(world: World, recv_x: torch.Tensor, expand: bool, alignment: int) -> torch.Tensor:
    """What this rank sends back: of each row, or the sum of a row's experts in fp32, rounded. Gaps are poisoned."""
    first = world.rank * LOCAL
    if expand:
        out = torch.full(recv_x.shape, float("nan"), dtype=torch.bfloat16)
        rows, _, _ = world.expanded(alignment)
        for row, source in enumerate(rows):
            if source is not None:
                rank, token, k = source
                out[row] = answer(recv_x[row], int(world.topk_idx[rank][token, k]))
        return out
    out = torch.empty(recv_x.shape, dtype=torch.bfloat16)
    for row, (rank, token) in enumerate(world.sources()):
        total = torch.zeros(recv_x.shape[1])
        for e in world.here(rank, token, world.rank):
            if e >= 0:
                total += answer(recv_x[row], first + e).float()
        out[row] = total.bfloat16()
    return out


def by_last(items) -> list:
    """Each once, in the order of their last occurrences."""
    return list(dict.fromkeys(reversed(list(items))))[::-1]


def sums(world: World, biases: tuple, rounded: bool, expand: bool = True) -> torch.Tensor:
    """What comes back to this rank: biases, then ranks by the last selection of each; of a rank its experts, k
    ascending, rounded; not rounded, with expand, all selections, k ascending. Of several nodes, rounded: nodes by their
    last selections, of each what its ranks have is summed before and rounded."""
    x = world.x[world.rank]
    out = torch.empty(x.shape, dtype=torch.bfloat16)
    nodes, width = world.buffer.get_logical_domain_size()
    width = width if nodes > 1 and rounded else 0
    for token in range(len(x)):
        total = torch.zeros(x.shape[1])
        for bias in biases:
            total = total + bias[token].float()
        if expand and not rounded:
            for e in world.topk_idx[world.rank][token].tolist():
                total = total + answer(x[token], e).float() if e >= 0 else total
            out[token] = total.bfloat16()
            continue
        owners = by_last(e // LOCAL for e in world.topk_idx[world.rank][token].tolist() if e >= 0)
        for node in by_last(owner // width for owner in owners) if width else [None]:
            inside = total if node is None else torch.zeros(x.shape[1])
            for owner in owners:
                if node is None or owner // width == node:
                    part = torch.zeros(x.shape[1])
                    for e in world.here(world.rank, token, owner):
                        if e >= 0:
                            part = part + answer(x[token], owner * LOCAL + e).float()
                    inside = inside + part.bfloat16().float()
            total = inside if node is None else total + inside.bfloat16().float()
        out[token] = total.bfloat16()
    return out


def check_received(world: World, got: tuple, expand: bool, alignment: int, sent: list, sync: bool = True) -> None:
    """Rows, indices, weights. sent: of each rank what went out, [T, ..]."""
    recv_x, recv_idx, recv_weights, handle, _ = got
    sources = world.sources()
    if expand:
        rows, counts, total = world.expanded(alignment)
        here = [row for row, source in enumerate(rows) if source is not None]
        wanted = [sent[r][t] for r, t, _ in filter(None, rows)]
        weights = [float(world.weights[r][t, k]) for r, t, k in filter(None, rows)]
        assert recv_idx is None and (len(recv_x) == total or not sync and len(recv_x) >= total)
        assert torch.equal(recv_x[here], stacked(wanted, recv_x))
        assert recv_weights.shape == recv_x.shape[:1] and recv_weights[here].tolist() == weights
        return
    count = len(sources)
    assert len(recv_x) == (count if sync else MOST * world.size)
    assert torch.equal(recv_x[:count], stacked([sent[r][t] for r, t in sources], recv_x))
    local = [world.here(r, t, world.rank) for r, t in sources]
    assert recv_idx[:count].tolist() == local and bool((recv_idx[count:] == -1).all())
    assert recv_weights[:count].tolist() == [
        [float(w) if e >= 0 else 0.0 for w, e in zip(world.weights[r][t], es)] for (r, t), es in zip(sources, local)
    ]


def scaled(world: World) -> list:
    """Of each rank (e4m3 [T, H], scales): scales by column, as a strided tensor."""
    return [(q, s.t().contiguous().t()) for q, s in (per_token_cast_to_fp8(x) for x in world.x)]
