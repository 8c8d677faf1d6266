# SPDX-License-Identifier: BSD-3-Clause
"""Attention on some ranks and experts on others, in numpy, checked bit for bit against one process.

xep_run -n 4 python examples/attention_numpy.py      # attention on 2 ranks, experts on 2
xep_run -n 8 python examples/attention_numpy.py 3    # on 3 and 5

An attention rank owns no expert, and an expert rank never has tokens, so each reserves only what it needs. Two
micro-batches are in flight: while the experts work on one, attention works on the other.
"""

from __future__ import annotations

import sys

import numpy as np

import xep

TOKENS, HIDDEN, EXPERTS, TOPK, LAYERS, BATCHES = 48, 64, 11, 3, 4, 2


def run_expert(layer: int, expert: int, x: np.ndarray) -> np.ndarray:
    """Each element by itself: sums of a matrix product may depend on how many rows it has."""
    scale, shift = np.random.default_rng([1, layer, expert]).standard_normal((2, HIDDEN), dtype=np.float32)
    return np.maximum(x * scale, shift)


def route(layer: int, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The top-k experts of each token [T, K], and a weight for each."""
    scores = np.stack([np.sin(x[:, 1 + layer] * (e + 1)) for e in range(EXPERTS)], axis=1)
    chosen = np.argsort(-scores, axis=1, kind="stable")[:, :TOPK]
    return np.ascontiguousarray(chosen), np.abs(np.take_along_axis(scores, chosen, 1))


def attend(x: np.ndarray) -> np.ndarray:
    """What stands for attention: a token looks at the one before it."""
    return (x + np.roll(x, 1, axis=0)) * np.float32(0.5)


def start(rank: int, batch: int) -> np.ndarray:
    return np.random.default_rng([2, rank, batch]).standard_normal((TOKENS, HIDDEN), dtype=np.float32)


def weighted_sum(layer: int, experts, x: np.ndarray, local: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """What one rank makes of its rows: its experts in their order."""
    y = np.zeros_like(x)
    for number, expert in enumerate(experts):
        rows, columns = np.nonzero(local == number)
        y[rows] += weights[rows, columns, None] * run_expert(layer, expert, x[rows])
    return y


def run(buffer: xep.Buffer, attention: bool) -> list[np.ndarray]:
    """All ranks make the same calls in the same order; who has no tokens, or no experts, has empty arrays."""
    none = np.empty((0, HIDDEN), np.float32), np.empty((0, TOPK), np.int64), np.empty((0, TOPK), np.float32)
    x = [start(buffer.group.rank, batch) for batch in range(BATCHES)]

    def send(layer: int, batch: int):
        if attention:
            x[batch] = attend(x[batch])
        return buffer.dispatch_async(*((x[batch], *route(layer, x[batch])) if attention else none))

    sent = [send(0, batch) for batch in range(BATCHES)]
    for layer in range(LAYERS):
        for batch in range(BATCHES):
            with sent[batch].wait() as handle:
                received = handle.recv
                y = weighted_sum(layer, received.experts, received.x, received.topk_idx, received.topk_weights)
                out = handle.combine(y)
            if attention:
                x[batch] = x[batch] + out
            if layer + 1 < LAYERS:
                sent[batch] = send(layer + 1, batch)
    return x


def run_alone(rank: int, batch: int, owners: list[int], nranks: int) -> np.ndarray:
    """The same by one process. The sums of the ranks are added by rank, as mode normal does it."""
    x = start(rank, batch)
    for layer in range(LAYERS):
        x = attend(x)
        chosen, weights = route(layer, x)
        out = np.zeros_like(x)
        for owner in range(nranks):
            experts = [e for e in range(EXPERTS) if owners[e] == owner]
            local = np.full(chosen.shape, -1)
            for number, expert in enumerate(experts):
                local[chosen == expert] = number
            out += weighted_sum(layer, experts, x, local, weights)
        x = x + out
    return x


def main() -> None:
    with xep.Group() as group:
        first = int(sys.argv[1]) if len(sys.argv) > 1 else group.nranks // 2  # of the ranks with experts
        if len(sys.argv) > 1 and not 1 <= first < group.nranks:
            raise SystemExit(f"ranks with attention: expected 1 to {group.nranks - 1}, got {first}")
        owners = [first + e % (group.nranks - first) for e in range(EXPERTS)]
        attention = group.rank < first or first == 0
        tokens = TOKENS if attention else 0
        types = {"dtype": "float32", "combine_dtype": "float32"}
        with group.buffer(EXPERTS, TOPK, HIDDEN, tokens, mode="normal", owners=owners, **types) as buffer:
            x = run(buffer, attention)
        wrong = attention and any(
            not np.array_equal(x[batch], run_alone(group.rank, batch, owners, group.nranks)) for batch in range(BATCHES)
        )
        total = sum(int(part) for part in group.allgather(str(int(wrong)).encode()))
        if group.rank == 0:
            print(f"attention on {first} ranks, experts on {group.nranks - first}: {total} of {first} differ")
        if total:
            raise SystemExit("the result is not that of one process")


if __name__ == "__main__":
    main()
