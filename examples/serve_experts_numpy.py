# SPDX-License-Identifier: BSD-3-Clause
"""Experts on the last rank alone, whose program is one call: the other ranks have tokens, and run a model of two
layers, which is compared with one process that has every expert.

xep_run -n 4 python examples/serve_experts_numpy.py
"""

from __future__ import annotations

import numpy as np

import xep

TOKENS, HIDDEN, EXPERTS, TOPK, LAYERS, STEPS = 16, 64, 8, 2, 2, 3


def run_expert(layer: int, expert: int, x: np.ndarray) -> np.ndarray:
    weights = np.random.default_rng([layer, expert]).standard_normal((HIDDEN, HIDDEN), dtype=np.float32)
    return np.maximum(x @ (weights / HIDDEN**0.5), 0)


def route(layer: int, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Top-k experts of each token [T, K], and their weights, which sum to 1."""
    scores = x @ np.random.default_rng([layer, 99]).standard_normal((HIDDEN, EXPERTS), dtype=np.float32)
    topk_idx = np.argsort(-scores, axis=1, kind="stable")[:, :TOPK]
    chosen = np.exp(np.take_along_axis(scores, topk_idx, 1) - scores.max(1, keepdims=True))
    return np.ascontiguousarray(topk_idx), chosen / chosen.sum(1, keepdims=True)


def serve_layer(call: xep.ServeCall) -> None:
    """The experts of a layer, for the rows of all ranks; combine applies the weights."""
    received = call.handle.recv
    y = call.handle.combine_input()  # the others read the results from here
    for local, expert in enumerate(received.experts):
        rows = slice(received.expert_begin[local], received.expert_begin[local] + received.expert_count[local])
        y[rows] = run_expert(call.dispatch, expert, received.x[rows])


def model(buffer: xep.Buffer, x: np.ndarray) -> np.ndarray:
    for layer in range(LAYERS):
        with buffer.dispatch(x, *route(layer, x)) as handle:
            x = x + handle.combine(handle.recv.x)  # this rank has no experts, and so no rows
    return x


def model_alone(x: np.ndarray) -> np.ndarray:
    for layer in range(LAYERS):
        topk_idx, weights = route(layer, x)
        out = np.zeros_like(x)
        for expert in range(EXPERTS):
            rows, columns = np.nonzero(topk_idx == expert)
            out[rows] += weights[rows, columns, None] * run_expert(layer, expert, x[rows])
        x = x + out
    return x


def main() -> None:
    worst = 0.0
    with xep.Group() as group:
        if group.nranks == 1:
            raise SystemExit("start two ranks or more: xep_run -n 4 python examples/serve_experts_numpy.py")
        shape = dict(mode="ll", dtype="float32", combine_dtype="float32", owners=[group.nranks - 1] * EXPERTS)
        with group.buffer(EXPERTS, TOPK, HIDDEN, TOKENS, served=True, **shape) as buffer:
            if group.rank == group.nranks - 1:
                buffer.serve(serve_layer)  # until the others have ended their last step
                return
            for step in range(STEPS):
                x = np.random.default_rng([3, group.rank, step]).standard_normal((TOKENS, HIDDEN), dtype=np.float32)
                worst = max(worst, float(np.abs(model(buffer, x) - model_alone(x)).max()))
                buffer.step_end(last=step + 1 == STEPS)
    print(f"rank {group.rank}: {STEPS} steps, largest difference from one process {worst:.2e}")
    if worst > 1e-4:
        raise SystemExit("the model is wrong")


if __name__ == "__main__":
    main()
