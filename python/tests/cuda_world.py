# SPDX-License-Identifier: BSD-3-Clause
"""Package xep on rows in device memory: what every rank dispatches, known to every rank, and the buffers for it."""

from __future__ import annotations

import cuda_memory
import oracle

EXPERTS, TOPK, HIDDEN, TOKENS = 12, 3, 40, 50
FLOATS = dict(dtype="float32", combine_dtype="float32")


def tokens_of(rank: int) -> int:
    """Differs; rank 1 has none."""
    return 0 if rank == 1 else 30 + 7 * (rank % 3)


def inputs_of(nranks: int) -> list:
    return [oracle.inputs(5, rank, tokens_of(rank), TOPK, EXPERTS, HIDDEN) for rank in range(nranks)]


def normal_buffer(group):
    return group.buffer(EXPERTS, TOPK, HIDDEN, TOKENS, scales=4, memory="cuda", **FLOATS)


def ll_buffer(group):
    return group.buffer(EXPERTS, TOPK, 256, TOKENS, mode="ll", memory="cuda")


def put(driver, *arrays):
    return [cuda_memory.Array(driver, array) for array in arrays]
