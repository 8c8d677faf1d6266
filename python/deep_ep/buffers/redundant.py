# SPDX-License-Identifier: BSD-3-Clause
"""Copies of experts on other ranks of a node: their weights go there by a dispatch, whose experts are the slots for
copies, and their gradients come back by its combine.

The bytes of an expert are cut into pieces, which are rows of the dispatch, and some rows go at a time, so that memory
is bounded. How often is known to every rank from the mapping.
"""

from __future__ import annotations

import struct
import threading
from typing import Any, Iterator, NamedTuple, Optional, Sequence, Union

import torch

import xep

from ..arguments import ANYWHERE, FLOAT, INT32, WrongUse, WrongValue, check
from ..utils.comm import Nodes
from .base import ROW, as_bytes, lies_in

_WIDEST = 1 << 16  # bytes of a row at most
_ROWS = 32  # of a rank at a time
_MOST_TENSORS = 16

Tensors = Union[torch.Tensor, Sequence[torch.Tensor]]


class Routing(NamedTuple):
    """experts: those of this rank that have copies; slots [len(experts), K]: rank * S + slot of each copy, or -1; most:
    experts with copies of any one rank."""

    experts: list[int]
    slots: torch.Tensor
    most: int


class Rows(NamedTuple):
    """Some rows at a time: of which experts, which pieces, where they go, and the number of the first."""

    experts: torch.Tensor
    pieces: torch.Tensor
    slots: torch.Tensor
    first: int


class RedundantExperts:
    """storage: where the tensors of copies lie, uint8. Collective over all nodes to make, as is the end; the calls are
    collective over a node."""

    def __init__(self, group: xep.Group, nodes: Nodes, storage: torch.Tensor) -> None:
        self._own_group = nodes.count > 1
        self._group = _group_of_node(group, nodes) if self._own_group else group
        self._storage = storage
        self._buffers: dict[tuple[int, str], xep.Buffer] = {}

    def close(self) -> None:
        if self._own_group:
            self._group.close()

    def prefetch(self, redundant: Tensors, own: Tensors, mapping: torch.Tensor) -> None:
        """own [L, ...] -> the slots redundant [S, ...] of other ranks."""
        pairs = self._pairs(redundant, own, mapping)
        routing = self._routing(mapping, pairs[0][1].shape[0])
        for there, here in pairs:
            source, target = (as_bytes(one).view(one.shape[0], -1) for one in (here, there))
            buffer = self._buffer(mapping.shape[1], here.device)
            for begin, pieces, width in _parts(source.shape[1], _WIDEST):
                part, slots = (one[:, begin:].unfold(1, width, width)[:, :pieces] for one in (source, target))
                for rows in _some_rows(routing, pieces, here.device):
                    with buffer.dispatch(part[rows.experts, rows.pieces], rows.slots) as handle:
                        for received, slot, piece in _copies(handle, rows.first, pieces):
                            slots[slot, piece] = handle.recv.x[received]

    def reduce(self, redundant: torch.Tensor, own: torch.Tensor, mapping: torch.Tensor) -> None:
        """own [L, h] += the slots redundant [S, h] of other ranks, ranks ascending; slots of a rank, ascending, are
        summed before."""
        for name, grads in (("redundant_expert_grads", redundant), ("expert_grads", own)):
            check(name, grads, ANYWHERE, FLOAT, -1, -1)
        [(there, here)] = self._pairs(redundant, own, mapping)
        routing = self._routing(mapping, here.shape[0])
        buffer = self._buffer(mapping.shape[1], here.device)
        for begin, pieces, width in _parts(here.shape[1], _WIDEST // 4):
            total, slots = (one[:, begin:].unfold(1, width, width)[:, :pieces] for one in (here, there))
            for rows in _some_rows(routing, pieces, here.device):
                empty = torch.zeros((len(rows.experts), 1), dtype=torch.uint8, device=here.device)
                with buffer.dispatch(empty, rows.slots) as handle:
                    sums = torch.zeros((handle.rows, width), dtype=torch.float32, device=here.device)
                    for received, slot, piece in _copies(handle, rows.first, pieces):
                        sums[received] += slots[slot, piece]
                    mine = total[rows.experts, rows.pieces]
                    total[rows.experts, rows.pieces] = handle.combine(sums, bias=mine)

    # ---- what is given ----

    def _pairs(self, redundant: Tensors, own: Tensors, mapping: torch.Tensor) -> list[tuple[Any, Any]]:
        many = [[one] if isinstance(one, torch.Tensor) else list(one) for one in (redundant, own)]
        if len(many[0]) != len(many[1]) or not 1 <= len(many[0]) <= _MOST_TENSORS:
            raise WrongValue(
                f"expected as many redundant tensors as own ones, 1 to {_MOST_TENSORS}, got {len(many[0])} and "
                f"{len(many[1])}"
            )
        pairs = list(zip(*many))
        where = pairs[0][1].get_device() + 1
        check("redundancy_mapping", mapping, where, INT32, self._group.nranks, -1)
        for there, here in pairs:
            self._check(there, here, mapping.shape[1], pairs[0][1].shape[0])
        return pairs

    def _check(self, there: torch.Tensor, here: torch.Tensor, slots: int, local: int) -> None:
        if not there.is_contiguous() or not here.is_contiguous():
            raise WrongValue("expected contiguous tensors of experts, got strided ones")
        if there.shape[:1] != (slots,) or here.shape[:1] != (local,):
            raise WrongValue(
                f"expected redundant tensors [{slots}, ...] and own ones [{local}, ...], got {list(there.shape)} and "
                f"{list(here.shape)}"
            )
        if there.nbytes // slots != here.nbytes // local or here.nbytes // local % ROW or here.nbytes == 0:
            raise WrongValue(
                f"expected as many bytes of an expert here and there, a multiple of {ROW}, got {here.nbytes // local} "
                f"and {there.nbytes // slots}"
            )
        if not lies_in(there, self._storage):
            raise WrongValue("expected redundant tensors in the buffer's memory for them, got one elsewhere")

    def _routing(self, mapping: torch.Tensor, local: int) -> Routing:
        """From the mapping [R, S], the same on all ranks."""
        copies: dict[int, list[int]] = {}
        for rank, ids in enumerate(mapping.tolist()):
            for slot, expert in enumerate(ids):
                if not -1 <= expert < self._group.nranks * local or expert // local == rank:
                    raise WrongValue(
                        f"redundancy_mapping: expected -1 or an expert of another rank, 0 to "
                        f"{self._group.nranks * local - 1}, got {expert} at rank {rank}, slot {slot}"
                    )
                if expert >= 0:
                    copies.setdefault(expert, []).append(rank * len(ids) + slot)
        first = self._group.rank * local
        own = [expert for expert in range(first, first + local) if expert in copies]
        width = max(map(len, copies.values()), default=1)
        slots = [copies[expert] + [-1] * (width - len(copies[expert])) for expert in own]
        counts = [0] * self._group.nranks
        for expert in copies:
            counts[expert // local] += 1
        idx = torch.tensor(slots, dtype=torch.int64, device="cpu").view(len(own), width)
        return Routing([expert - first for expert in own], idx, max(counts))

    def _buffer(self, slots: int, device: torch.device) -> xep.Buffer:
        experts, memory = self._group.nranks * slots, "cuda" if device.type == "cuda" else "host"
        found = self._buffers.get((experts, memory))
        if found is None:
            options: dict[str, Any] = dict(dtype=torch.float32, combine_dtype=torch.float32, slots=1, memory=memory)
            found = self._group.buffer(experts, experts, _WIDEST // 4, _ROWS, mode="normal", **options)
            self._buffers[experts, memory] = found
        return found


def _parts(count: int, width: int) -> Iterator[tuple[int, int, int]]:
    """(first element, pieces, elements of a piece) of an expert: full ones, and the rest."""
    full = count // width
    if full > 0:
        yield 0, full, width
    if count % width:
        yield full * width, 1, count % width


def _some_rows(routing: Routing, pieces: int, device: torch.device) -> Iterator[Rows]:
    """As often on every rank."""
    experts = torch.tensor(routing.experts, dtype=torch.int64, device=device)
    numbers = torch.arange(len(routing.experts) * pieces, device=device)
    slots = routing.slots.to(device)
    for first in range(0, routing.most * pieces, _ROWS):
        some = numbers[first : first + _ROWS]
        which = some // pieces
        yield Rows(experts[which], some % pieces, slots[which], first)


def _copies(handle: xep.Handle, first: int, pieces: int) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """(received rows, the slots that they are for, which pieces), until every slot was named; slots ascending."""
    idx = handle.recv.topk_idx.to(torch.int64)
    piece = (first + handle.recv.src_token.to(torch.int64)) % pieces
    for k in range(idx.shape[1]):
        received = (idx[:, k] >= 0).nonzero().flatten()
        yield received, idx[received, k], piece[received]


# ---- the group of a node ----


def _group_of_node(group: xep.Group, nodes: Nodes) -> xep.Group:
    """Collective over the whole group: each node's ranks find one another by its allgather."""
    mine = nodes.members[nodes.node_of[group.rank]]
    lock = threading.Lock()  # xep.Group gathers on a thread of its own, and may have stopped waiting for it

    def gather(data: Optional[bytes]) -> list[Optional[bytes]]:
        """None: this rank has its group, and helps the others to theirs."""
        length = struct.pack("<q", -1 if data is None else len(data))
        with lock:
            lengths = [struct.unpack("<q", one)[0] for one in group.allgather(length)]
            if max(lengths) < 0:
                return [None] * group.nranks
            parts = group.allgather((data or b"").ljust(max(lengths), b"\0"))
        return [None if size < 0 else part[:size] for size, part in zip(lengths, parts)]

    def allgather(data: bytes) -> list[bytes]:
        parts = gather(data)
        found = [parts[rank] for rank in mine]
        if None in found:
            raise WrongUse("a rank of this node has no group of it")
        return [part for part in found if part is not None]

    try:
        return xep.Group(allgather=allgather, rank=mine.index(group.rank), nranks=len(mine))
    finally:
        while any(part is not None for part in gather(None)):
            pass
