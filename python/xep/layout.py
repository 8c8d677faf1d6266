# SPDX-License-Identifier: BSD-3-Clause
"""Who gets what: local, pure."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Sequence

from . import _ext


class Layout(NamedTuple):
    """Arrays of the kind of topk_idx; M nodes."""

    tokens_per_rank: Any  # [R] int32: distinct tokens that go to each rank
    tokens_per_node: Any  # [M] int32: distinct tokens that go to each node
    tokens_per_expert: Any  # [E] int32: selections, duplicates of a row counted
    token_in_rank: Any  # [T, R] uint8: 1 where the token goes


def expert_range(experts: int, nranks: int, rank: int) -> tuple[int, int]:
    """First expert of a rank, and how many it has: blocks in rank order, the first E % R ranks own one more."""
    if experts < 1 or nranks < 1 or not 0 <= rank < nranks:
        raise ValueError(
            f"expert_range: expected experts and nranks above 0, rank below nranks, got {experts}, {nranks}, {rank}"
        )
    return _ext.expert_range(experts, nranks, rank)


def layout(
    topk_idx: Any, experts: int, nranks: int, ranks_per_node: int = 0, *, owners: Optional[Sequence[int]] = None
) -> Layout:
    """topk_idx: [T, K] int64 or int32: expert, or -1. ranks_per_node 0: one node. owners: as in Buffer."""
    return Layout(*_ext.layout(topk_idx, experts, nranks, ranks_per_node, owners))
