# SPDX-License-Identifier: BSD-3-Clause
"""What programs import beside the buffers: events, casts, comparisons, timing, process groups of CPU ranks, routings,
references."""

from . import gate, refs, semantic
from .envs import check_nvlink_connections, dist_print, init_dist, init_seed
from .event import EventHandle, EventOverlap
from .math import (
    align,
    calc_diff,
    ceil_div,
    count_bytes,
    create_grouped_scores,
    hash_tensor,
    hash_tensors,
    inplace_unique,
    per_token_cast_back,
    per_token_cast_to_fp8,
    safe_div,
)
from .testing import bench, bench_kineto

__all__ = [
    "EventHandle", "EventOverlap", "align", "bench", "bench_kineto", "calc_diff", "ceil_div",
    "check_nvlink_connections", "count_bytes", "create_grouped_scores", "dist_print", "gate", "hash_tensor",
    "hash_tensors", "init_dist", "init_seed", "inplace_unique", "per_token_cast_back", "per_token_cast_to_fp8", "refs",
    "safe_div", "semantic",
]  # fmt: skip
