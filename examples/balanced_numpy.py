# SPDX-License-Identifier: BSD-3-Clause
"""A layer whose load is even whatever the routing, in numpy: any rank computes for any expert, with the weights that
its owner has. Checked against the sum made by hand.

xep_run -n 4 python examples/balanced_numpy.py
"""

from __future__ import annotations

import numpy as np

import xep

EXPERTS, TOPK, HIDDEN, TOKENS = 16, 2, 32, 64


def weights_of(expert: int) -> np.ndarray:
    """Whole numbers, so that sums are exact."""
    return np.random.default_rng(expert).integers(-2, 3, (HIDDEN, HIDDEN)).astype(np.float32)


def main() -> None:
    with xep.Group() as group:
        random = np.random.default_rng([1, group.rank])
        x = random.integers(-2, 3, (TOKENS, HIDDEN)).astype(np.float32)
        idx = np.sort(random.zipf(1.5, (TOKENS, TOPK)) % EXPERTS, axis=1)  # some experts are popular
        idx[idx[:, 0] == idx[:, 1], 1] = -1
        ones = np.ones(idx.shape, np.float32)
        options = dict(mode="ll", dtype="float32", combine_dtype="float32", balance="even")
        with (
            group.weights(EXPERTS, (HIDDEN, HIDDEN), "float32") as weights,
            group.buffer(EXPERTS, TOPK, HIDDEN, TOKENS, **options) as buffer,
        ):
            for expert in weights.local:
                weights.fill(expert, weights_of(expert))
            group.barrier()  # the weights are there
            with buffer.dispatch(x, idx, ones, balance=True) as handle:
                received = handle.recv
                outputs = handle.combine_input()
                for expert, begin, count in zip(received.experts, received.expert_begin, received.expert_count):
                    if count > 0:
                        rows = slice(begin, begin + count)
                        np.matmul(received.x[rows], weights.of(expert), out=outputs[rows])
                del outputs
                found = handle.combine()
            loads = buffer.loads()
            group.barrier()  # all have read them
        expected = np.zeros_like(x)
        for token, experts in enumerate(idx):
            for expert in experts[experts >= 0]:
                expected[token] += x[token] @ weights_of(int(expert))
        np.testing.assert_array_equal(found, expected)
        if group.rank == 0:
            mean = loads.selections / group.nranks
            print(f"busiest rank: {loads.most_before / mean:.2f} of the mean without balance, ", end="")
            print(f"{loads.most_after / mean:.2f} with it")


if __name__ == "__main__":
    main()
