# SPDX-License-Identifier: BSD-3-Clause
"""The parameters of a buffer, the memory it takes, and what it reports: counters of its operations, and how long this
rank has waited for each other one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Literal, NamedTuple, Optional, Sequence, TypedDict, Union

import numpy as np

from . import _ext
from .plan import PlanCall

if TYPE_CHECKING:
    from typing_extensions import Unpack


class BufferSize(NamedTuple):
    """bytes: what a rank shares with its peers, at most; recv_rows: rows a slot holds; node_bytes: what it shares where
    all ranks are on one node; device_bytes: memory of its CUDA device."""

    bytes: int
    recv_rows: int
    node_bytes: int
    device_bytes: int


class BufferInfo(NamedTuple):
    """``xep_buffer_info_t``. device: number of the CUDA device that has the rows; -1: host memory. path: "flat" or
    "nodes"; pass_rows: with "nodes" the room for rows in passing; pieces: dispatches may come in pieces, asked for or
    for lack of memory for the worst case. threads: of the host; multiprocessors: of the device, 0: host memory, or
    staged."""

    mode: str
    bytes: int
    recv_rows: int
    slots: int
    free_slots: int
    threads: int
    mapped_peers: int
    operations: int
    device: int
    path: str
    pass_rows: int
    pieces: bool
    multiprocessors: int


class Loads(NamedTuple):
    """``xep_loads_t``, of balanced dispatches: most_after * nranks / selections is the imbalance, max / mean."""

    dispatches: int
    selections: int
    most_before: int
    most_after: int


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


class BufferOptions(TypedDict, total=False):
    """Keywords of Buffer and buffer_size(), for type checkers and editors."""

    mode: Optional[str]
    dtype: Any
    combine_dtype: Any
    scales: int
    recv_rows: int
    slots: int
    threads: int
    multiprocessors: int
    timeout: Optional[float]
    memory: str
    on_failure: Literal["fail", "mask"]
    send_memory: bool
    path: Literal["auto", "flat", "nodes"]
    pass_rows: int
    pieces: bool
    owners: Optional[Sequence[int]]
    replicas: Sequence[tuple[int, int]]
    balance: Union[Literal["none", "least-loaded", "even"], Callable[[PlanCall], Any]]
    sum_by_selection: bool
    served: bool


def buffer_size(
    nranks: int, experts: int, topk: int, hidden: int, tokens: int, **options: Unpack[BufferOptions]
) -> BufferSize:
    """The size hint: what a Buffer of these parameters takes on each of nranks ranks. Local."""
    return BufferSize(*_ext.buffer_size(nranks, experts, topk, hidden, tokens, **options))
