# SPDX-License-Identifier: BSD-3-Clause
"""A mixture-of-experts layer in numpy on all ranks of a job, checked against one process that has every expert.

xep_run -n 4 python examples/moe_numpy.py
"""

from __future__ import annotations

import numpy as np

import xep

TOKENS, HIDDEN, INNER, EXPERTS, TOPK = 64, 128, 256, 8, 2


def expert_weights(expert: int) -> tuple[np.ndarray, np.ndarray]:
    """Any rank can make any expert's: what makes checking easy."""
    rng = np.random.default_rng([1, expert])
    up = rng.standard_normal((HIDDEN, INNER), dtype=np.float32) / HIDDEN**0.5
    return up, rng.standard_normal((INNER, HIDDEN), dtype=np.float32) / INNER**0.5


def run_expert(expert: int, x: np.ndarray) -> np.ndarray:
    up, down = expert_weights(expert)
    return np.maximum(x @ up, 0) @ down


def route(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The gate: top-k experts of each token [T, K], and their weights, which sum to 1."""
    gate = np.random.default_rng(2).standard_normal((HIDDEN, EXPERTS), dtype=np.float32)
    scores = x @ gate
    topk_idx = np.argsort(-scores, axis=1, kind="stable")[:, :TOPK]
    chosen = np.exp(np.take_along_axis(scores, topk_idx, 1) - scores.max(1, keepdims=True))
    return np.ascontiguousarray(topk_idx), chosen / chosen.sum(1, keepdims=True)


def moe(buffer: xep.Buffer, x: np.ndarray) -> np.ndarray:
    """Sends tokens to their experts, runs this rank's, brings the weighted sums back."""
    with buffer.dispatch(x, *route(x)) as handle:
        received = handle.recv
        y = handle.combine_input()  # the peers read the results from here
        y[:] = 0
        for local in range(received.local_experts):
            rows, columns = np.nonzero(received.topk_idx == local)
            weights = received.topk_weights[rows, columns, None]
            y[rows] += weights * run_expert(received.first_expert + local, received.x[rows])
        del y
        return handle.combine()


def moe_alone(x: np.ndarray) -> np.ndarray:
    topk_idx, weights = route(x)
    out = np.zeros_like(x)
    for expert in range(EXPERTS):
        rows, columns = np.nonzero(topk_idx == expert)
        out[rows] += weights[rows, columns, None] * run_expert(expert, x[rows])
    return out


def main() -> None:
    with (
        xep.Group() as group,
        group.buffer(EXPERTS, TOPK, HIDDEN, TOKENS, dtype="float32", combine_dtype="float32") as buffer,
    ):
        x = np.random.default_rng([3, group.rank]).standard_normal((TOKENS, HIDDEN), dtype=np.float32)
        difference = float(np.abs(moe(buffer, x) - moe_alone(x)).max())
        worst = max(float(part) for part in group.allgather(f"{difference:24.16f}".encode()))
        if group.rank == 0:
            print(f"{group.nranks} ranks: largest difference from one process {worst:.2e}")
        if worst > 1e-4:
            raise SystemExit("the layer is wrong")


if __name__ == "__main__":
    main()
