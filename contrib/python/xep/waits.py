# SPDX-License-Identifier: BSD-3-Clause
"""For whom this rank has waited."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from . import _structs
from ._lib import check, lib


class RankWaits(NamedTuple):
    """Of the operations of one kind that have ended: how many there were; then, for each rank, [R] int64: in how many of them
    this rank waited for it, for how many nanoseconds all together, and in one operation at most."""

    operations: int
    count: np.ndarray  # type: ignore[assignment]  # hides the method of tuples
    sum_ns: np.ndarray
    max_ns: np.ndarray


class Waits(NamedTuple):
    """Of a buffer, since it was made."""

    dispatch: RankWaits
    combine: RankWaits


def read(buffer: int, nranks: int) -> Waits:
    """Of the buffer at this address."""
    return Waits(*(_read(buffer, kind, nranks) for kind in range(2)))


def _read(buffer: int, kind: int, nranks: int) -> RankWaits:
    operations = np.zeros(1, np.int64)
    arrays = [np.zeros(nranks, np.int64) for _ in range(3)]
    places = (array.ctypes.data for array in (operations, *arrays))
    struct = _structs.Waits(**dict(zip(("operations", "count", "sum_ns", "max_ns"), places)))
    check(lib.xep_buffer_waits(buffer, kind, struct))
    return RankWaits(int(operations[0]), *arrays)
