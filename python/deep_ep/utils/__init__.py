# SPDX-License-Identifier: BSD-3-Clause
"""What programs import beside the buffers: events, casts, comparisons, timing, process groups of CPU ranks."""

from .envs import check_nvlink_connections, init_dist
from .event import EventHandle, EventOverlap
from .math import (
    align,
    calc_diff,
    create_grouped_scores,
    hash_tensor,
    inplace_unique,
    per_token_cast_back,
    per_token_cast_to_fp8,
)
from .testing import bench

__all__ = [
    "EventHandle", "EventOverlap", "align", "bench", "calc_diff", "check_nvlink_connections", "create_grouped_scores",
    "hash_tensor", "init_dist", "inplace_unique", "per_token_cast_back", "per_token_cast_to_fp8",
]  # fmt: skip
