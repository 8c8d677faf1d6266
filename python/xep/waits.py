# SPDX-License-Identifier: BSD-3-Clause
"""What a buffer has done so far, and for whom this rank has waited."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class RankWaits(NamedTuple):
    """Of the operations of one kind that have ended: how many there were; then, for each rank, [R] int64: in how many
    of them this rank waited for it, for how many nanoseconds all together, and in one operation at most."""

    operations: int
    count: np.ndarray  # type: ignore[assignment]  # hides the method of tuples
    sum_ns: np.ndarray
    max_ns: np.ndarray


class Waits(NamedTuple):
    """Of a buffer, since it was made."""

    dispatch: RankWaits
    combine: RankWaits


class OpCounters(NamedTuple):
    """``xep_counters_t``: of the operations of one kind that have ended. The last three are the whole buffer's."""

    operations: int
    errors: int
    peer_errors: int
    rows: int
    bytes: int
    waits: int
    wait_ns: int
    wire_bytes: int
    ranks_out: int
    age_ns: int


class Counters(NamedTuple):
    """Of a buffer, since it was made."""

    dispatch: OpCounters
    combine: OpCounters
    next: OpCounters
