# SPDX-License-Identifier: BSD-3-Clause
"""Who gets what: local, pure."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from . import _structs
from ._lib import check, lib
from .arrays import adapter_of, matrix
from .dtypes import Dtype

_INDEX = (Dtype.INT64, Dtype.INT32)


class Layout(NamedTuple):
    """Arrays of the kind of topk_idx; M nodes."""

    tokens_per_rank: Any  # [R] int32: distinct tokens that go to each rank
    tokens_per_node: Any  # [M] int32: distinct tokens that go to each node
    tokens_per_expert: Any  # [E] int32: selections, duplicates of a row counted
    token_in_rank: Any  # [T, R] uint8: 1 where the token goes


def expert_range(experts: int, nranks: int, rank: int) -> tuple[int, int]:
    """First expert of a rank, and how many it has: blocks in rank order, the first E % R ranks own one more."""
    if experts < 1 or nranks < 1 or not 0 <= rank < nranks:
        raise ValueError(f"expert_range: expected experts and nranks above 0, rank below nranks, got {experts}, {nranks}, {rank}")
    first, count = ctypes.c_uint32(), ctypes.c_uint32()
    lib.xep_expert_range(experts, nranks, rank, first, count)
    return first.value, count.value


def layout(topk_idx: Any, experts: int, nranks: int, ranks_per_node: int = 0) -> Layout:
    """topk_idx: [T, K] int64 or int32: expert, or -1. ranks_per_node 0: one node."""
    adapter = adapter_of("topk_idx", topk_idx)
    address, stride, code, (tokens, topk) = matrix("topk_idx", topk_idx, None, None, _INDEX)
    nodes = 1 if ranks_per_node == 0 else -(-nranks // ranks_per_node)
    int32, uint8 = adapter.native(Dtype.INT32), adapter.native(Dtype.U8)
    found = Layout(
        adapter.empty((nranks,), int32),
        adapter.empty((nodes,), int32),
        adapter.empty((experts,), int32),
        adapter.empty((tokens, nranks), uint8),
    )
    args = _structs.LayoutArgs(
        tokens=tokens, topk=topk, experts=experts, nranks=nranks, ranks_per_node=ranks_per_node, topk_idx=address,
        topk_idx_stride=stride, topk_idx_dtype=code,
    )  # fmt: skip
    out = _structs.Layout()
    for name, array in zip(Layout._fields, found):
        setattr(out, name, adapter.address(array))
    check(lib.xep_layout(args, out))
    return found
