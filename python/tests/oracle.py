# SPDX-License-Identifier: BSD-3-Clause
"""What every rank sends, as a function of seed and rank, and what must come of it, by plain loops: nothing of the
library."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass
class Inputs:
    x: np.ndarray  # [T, H] float32, small integers: exact in every type and sum
    topk_idx: np.ndarray  # [T, K] int64
    topk_weights: np.ndarray  # [T, K] float32, multiples of 1/64


def inputs(seed: int, rank: int, tokens: int, topk: int, experts: int, hidden: int, masked: float = 0.1) -> Inputs:
    rng = np.random.default_rng([seed, rank])
    chosen = np.argsort(rng.random((tokens, experts)), axis=1)[:, :topk]
    idx = np.where(rng.random((tokens, topk)) < masked, -1, chosen).astype(np.int64)
    x = rng.integers(-8, 9, (tokens, hidden)).astype(np.float32)
    weights = (rng.integers(1, 65, (tokens, topk)) / 64).astype(np.float32)
    return Inputs(x, idx.reshape(tokens, topk), weights.reshape(tokens, topk))


def owner_of(expert: int, experts: int, nranks: int) -> tuple[int, int]:
    """Rank and local number of an expert: blocks, the first E % R ranks own one more."""
    each, more = divmod(experts, nranks)
    wide = more * (each + 1)
    if expert < wide:
        return expert // (each + 1), expert % (each + 1)
    return more + (expert - wide) // each, (expert - wide) % each


def ranks_of(topk_idx: np.ndarray, token: int, experts: int, nranks: int) -> list[int]:
    return sorted({owner_of(e, experts, nranks)[0] for e in topk_idx[token].tolist() if e >= 0})


@dataclass
class Expected:
    sources: list[tuple[int, int]]  # (rank, token) of each row
    x: np.ndarray
    topk_idx: np.ndarray
    topk_weights: np.ndarray
    experts: list[int]  # selections of each local expert


def received(all_inputs: list[Inputs], rank: int, experts: int) -> Expected:
    """What rank receives in normal mode."""
    nranks = len(all_inputs)
    sources, indices, weights = [], [], []
    local = sum(owner_of(e, experts, nranks)[0] == rank for e in range(experts))
    counts = [0] * local
    for source, sent in enumerate(all_inputs):
        for token in range(len(sent.x)):
            if rank not in ranks_of(sent.topk_idx, token, experts, nranks):
                continue
            owners = [owner_of(e, experts, nranks) if e >= 0 else (-1, -1) for e in sent.topk_idx[token].tolist()]
            here = [number if owner == rank else -1 for owner, number in owners]
            sources.append((source, token))
            indices.append(here)
            weights.append([w if h >= 0 else 0.0 for w, h in zip(sent.topk_weights[token].tolist(), here)])
            for number in here:
                if number >= 0:
                    counts[number] += 1
    topk = all_inputs[0].topk_idx.shape[1]
    hidden = all_inputs[0].x.shape[1]
    x = np.array([all_inputs[s].x[t] for s, t in sources], np.float32).reshape(-1, hidden)
    return Expected(
        sources,
        x,
        np.array(indices, np.int64).reshape(-1, topk),
        np.array(weights, np.float32).reshape(-1, topk),
        counts,
    )


def copies(sent: Inputs, experts: int, nranks: int) -> np.ndarray:
    """[T] ranks each token goes to."""
    return np.array([len(ranks_of(sent.topk_idx, t, experts, nranks)) for t in range(len(sent.x))], np.float32)
