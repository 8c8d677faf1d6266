# SPDX-License-Identifier: BSD-3-Clause
"""Plans of balance that a function of the caller's makes, as an EPLB library does: Buffer(balance=function)."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional

import numpy as np


class PlanCall(NamedTuple):
    """What a function is given in each balanced dispatch: the same on all ranks, numpy arrays of its own.

    counts: [R, E] int64, the selections that each rank has of each expert. begin: [E + 1], first instance of each
    expert; rank: [instances], where each is: the owner, then replicas by rank. out: [R] bool, ranks that are out.
    """

    counts: Any
    begin: Any
    rank: Any
    out: Any


class Plan:
    """What the compiled module calls in place of the function."""

    def __init__(self, function: Callable[[PlanCall], Any]) -> None:
        self._function = function
        self._raised: Optional[BaseException] = None

    def make(
        self, experts: int, nranks: int, counts: Any, begin: Any, rank: Any, rows: Any, out: Optional[Any]
    ) -> bool:
        call = PlanCall(
            np.frombuffer(counts, np.uint32).reshape(nranks, experts).astype(np.int64),
            np.frombuffer(begin, np.uint32).astype(np.int64),
            np.frombuffer(rank, np.uint32).astype(np.int64),
            np.zeros(nranks, bool) if out is None else np.frombuffer(out, np.uint8) != 0,
        )
        self._raised = None
        try:
            made = self._function(call)
            by_maps = isinstance(made, tuple)
            np.frombuffer(rows, np.uint64)[:] = _rows_of_maps(call, *made) if by_maps else _rows(call, made)
        except BaseException as error:  # dispatch() raises it
            self._raised = error
        return self._raised is None

    def take_raised(self) -> Optional[BaseException]:
        raised, self._raised = self._raised, None
        return raised


def _rows(call: PlanCall, made: Any) -> Any:
    rows = np.asarray(made)
    if rows.shape != call.rank.shape or rows.dtype.kind not in "iu" or (rows < 0).any():
        raise ValueError(
            f"balance: expected {len(call.rank)} numbers of rows, one for each instance, or a tuple "
            f"(phy2log, log2phy, logcnt), got {rows.dtype} {list(rows.shape)}"
        )
    return rows


def _map_of(name: str, array: Any, ndim: int) -> Any:
    """One layer's: EPLB libraries put the layers before."""
    found = np.asarray(array)
    if found.ndim == ndim + 1 and len(found) == 1:
        found = found[0]
    if found.ndim != ndim or found.dtype.kind not in "iu":
        raise ValueError(f"{name}: expected one layer's, {ndim}-d integers, got {found.dtype} {list(found.shape)}")
    return found


def _rank_of_copies(phy2log: Any, nranks: int) -> Any:
    """[P]: copies lie in blocks of P / R."""
    if len(phy2log) % nranks != 0:
        raise ValueError(f"phy2log: expected a multiple of {nranks} ranks, got {len(phy2log)} copies")
    return np.arange(len(phy2log)) // (len(phy2log) // nranks)


def _instances(call: PlanCall) -> Any:
    """[E, R]: number of the instance of an expert on a rank; -1: there is none."""
    nranks, experts = call.counts.shape
    found = np.full((experts, nranks), -1)
    found[np.repeat(np.arange(experts), np.diff(call.begin)), call.rank] = np.arange(len(call.rank))
    return found


def _check_copies(expert_of: Any, copies: Any, is_copy: Any) -> None:
    wrong = is_copy & ((copies < 0) | (copies >= len(expert_of)))
    wrong |= is_copy & (expert_of[np.where(wrong, 0, copies)] != np.arange(len(copies))[:, None])
    for e, i in np.argwhere(wrong):
        raise ValueError(f"log2phy[{e}, {i}]: expected a copy of expert {e} in phy2log, got {copies[e, i]}")


def _rows_of_maps(call: PlanCall, phy2log: Any, log2phy: Any, logcnt: Any) -> Any:
    """Rows of an expert are divided evenly among its copies; those on ranks that are out get none if there are others.

    phy2log: [P] expert of each copy. log2phy: [E, any] copies of each expert. logcnt: [E] how many these are.
    """
    nranks, experts = call.counts.shape
    expert_of = _map_of("phy2log", phy2log, 1)
    copies, count = _map_of("log2phy", log2phy, 2), _map_of("logcnt", logcnt, 1)
    if len(copies) != experts or len(count) != experts:
        raise ValueError(f"log2phy, logcnt: expected those of {experts} experts, got {len(copies)}, {len(count)}")
    is_copy = np.arange(copies.shape[1]) < count[:, None]
    _check_copies(expert_of, copies, is_copy)
    rank = _rank_of_copies(expert_of, nranks)[np.where(is_copy, copies, 0)]
    is_in = is_copy & ~call.out[rank]
    used = np.where(is_in.any(1)[:, None], is_in, is_copy)
    instance = _instances(call)[np.arange(experts)[:, None], rank]
    for e, i in np.argwhere(used & (instance < 0)):
        raise ValueError(
            f"log2phy[{e}, {i}]: expected one where expert {e} is, got one of rank {rank[e, i]} (replicas)"
        )
    total, among = call.counts.sum(0)[:, None], used.sum(1)[:, None].clip(1)
    share = total // among + (used.cumsum(1) <= total % among)
    rows = np.zeros(len(call.rank), np.int64)
    np.add.at(rows, instance[used], share[used])
    return rows


def placement(phy2log: Any, nranks: int) -> tuple[list[int], list[tuple[int, int]]]:
    """owners and replicas of a Buffer with the copies of an EPLB library: phy2log [P], in blocks of P / nranks. The
    first copy's rank owns an expert; several copies on one rank are one instance."""
    expert_of = _map_of("phy2log", phy2log, 1)
    owners: dict[int, int] = {}
    replicas: dict[tuple[int, int], None] = {}
    for expert, rank in zip(expert_of.tolist(), _rank_of_copies(expert_of, nranks).tolist()):
        if owners.setdefault(expert, rank) != rank:
            replicas[expert, rank] = None
    if sorted(owners) != list(range(len(owners))):
        raise ValueError(f"phy2log: expected a copy of each expert up to {max(owners)}")
    return [owners[e] for e in range(len(owners))], list(replicas)
