# SPDX-License-Identifier: BSD-3-Clause
"""Process groups: which ranks are a node, which tokens go where; and what DeepEP asks of a group beside its buffers: a
barrier, the stream that communicates."""

from __future__ import annotations

import contextlib
import struct
import weakref
from typing import Any, Optional

import numpy
import torch

import xep

from ..compat import path_is_free
from .event import CommStream
from .math import ceil_div

# ---- nodes ----


class Nodes:
    """members: ranks of each node, ascending. node_of, place_of: of each rank. width: ranks of the largest node."""

    _untold = False  # a deadline has ended tell()

    def __init__(self, group: xep.Group) -> None:
        """Collective where there are several."""
        self.count = group.nnodes
        self.node_of = [0] * group.nranks
        if self.count > 1:
            self.node_of = [struct.unpack("<I", one)[0] for one in group.allgather(struct.pack("<I", group.node))]
        self.members = [[r for r, node in enumerate(self.node_of) if node == n] for n in range(self.count)]
        self.place_of = [self.members[node].index(rank) for rank, node in enumerate(self.node_of)]
        self.width = max(len(members) for members in self.members)
        blocks = [rank // self.width for rank in range(group.nranks)]
        self.per_block = self.width if self.node_of == blocks else 0  # ranks of a node, where nodes are blocks of ranks

    def are_even(self) -> bool:
        """Several blocks of as many ranks each, more than one."""
        return self.count > 1 and self.width > 1 and self.per_block * self.count == len(self.node_of)

    def reached(self, in_rank: torch.Tensor) -> torch.Tensor:
        """in_rank [T, R] bool -> [T, M] bool: whether a token goes to a rank of the node."""
        return torch.stack([in_rank[:, members].any(dim=1) for members in self.members], dim=1)

    def upstreams(self, rank: int) -> list[list[int]]:
        """Of each node the ranks whose tokens for the node of this one pass it: those with its place, modulo the size
        of its node. Of its own node it is itself."""
        own, place = self.node_of[rank], self.place_of[rank]
        size = len(self.members[own])
        return [
            [rank] if node == own else [source for p, source in enumerate(members) if p % size == place]
            for node, members in enumerate(self.members)
        ]

    def tell(self, group: xep.Group, in_rank: torch.Tensor, room: int) -> list[numpy.ndarray]:
        """in_rank [T, R] bool of each rank, as bits for places(). room: tokens of a rank at most, the same everywhere.
        Collective, blocking."""
        bits = numpy.packbits(in_rank.cpu().numpy(), axis=1, bitorder="little").tobytes()
        if self._untold:
            raise xep.BrokenError(xep.Status.ERR_BROKEN, "the Buffer needs reset() after a dispatch that failed")
        count, width = struct.Struct("<q"), ceil_div(group.nranks, 8)
        first, last = self._bytes_of(group.node)
        told, mine = [], (count.pack(len(in_rank)) + bits).ljust(count.size + room * width, b"\0")
        try:
            rows = group.allgather(mine)
        except xep.DeadlineError:
            self._untold = True
            raise
        for row in rows:
            of_tokens = numpy.frombuffer(row, numpy.uint8, count.unpack_from(row)[0] * width, count.size)
            told.append(of_tokens.reshape(-1, width)[:, first : last + 1].copy())
        return told

    def settle(self, group: xep.Group) -> None:
        """Another allgather gives up for good the one that a deadline has ended. A rank that never came to that one
        hears of it here, and calls once more. Collective, blocking."""
        while True:
            with contextlib.suppress(xep.MismatchError):
                group.allgather(b"\0")
                break
        self._untold = False

    def _bytes_of(self, node: int) -> tuple[int, int]:
        """The first and the last of those with the bits of its ranks."""
        return self.members[node][0] // 8, self.members[node][-1] // 8

    def places(self, node: int, told: numpy.ndarray) -> torch.Tensor:
        """[T, P] bool: whether a token goes to the rank of this node with that place."""
        first, _ = self._bytes_of(node)
        bits = numpy.unpackbits(told, axis=1, bitorder="little")
        return torch.from_numpy(bits[:, [rank - 8 * first for rank in self.members[node]]]).view(torch.bool)


# ---- what programs ask ----


_known: weakref.WeakKeyDictionary[Any, Nodes] = weakref.WeakKeyDictionary()


class NCCLCommHandle:
    """In DeepEP a communicator of NCCL. There is none here: its address is 0."""

    def __init__(self, nccl_comm: int = 0, managed: bool = False) -> None:
        self.nccl_comm, self.managed = nccl_comm, managed

    def get(self) -> int:
        return self.nccl_comm


def get_nccl_comm_handle(group: Any, force_new_comm: bool = False) -> NCCLCommHandle:
    """See NCCLCommHandle. Local."""
    return NCCLCommHandle()


def destroy_all_managed_nccl_comm() -> None:
    """Forgets what was found out about groups."""
    _known.clear()


def get_physical_domain_size(group_or_buffer: Any) -> tuple[int, int]:
    """(nodes, ranks of the largest node). Of a process group collective at the first call, of a buffer local."""
    asked = getattr(group_or_buffer, "get_physical_domain_size", None)
    if asked is not None:
        return asked()
    nodes = _nodes_of(group_or_buffer)
    return nodes.count, nodes.width


def _nodes_of(group: Any) -> Nodes:
    found = _known.get(group)
    if found is None:
        with xep.Group(group) as joined:
            found = _known[group] = Nodes(joined)
    return found


def get_logical_domain_size(group_or_buffer: Any, allow_hybrid_mode: Optional[bool] = None) -> tuple[int, int]:
    """(nodes, ranks of one) where a buffer with allow_hybrid_mode (None: True) sends rows once to each node, else (1,
    ranks); of a buffer by its own mode. Of a process group collective at the first call."""
    asked = getattr(group_or_buffer, "get_logical_domain_size", None)
    if asked is not None:
        return asked()
    nodes = _nodes_of(group_or_buffer)
    hybrid = allow_hybrid_mode is not False and nodes.are_even() and path_is_free()
    return (nodes.count, nodes.width) if hybrid else (1, len(nodes.node_of))


def barrier(
    buffer: Any,
    wait_comm_stream: bool = True,
    with_cpu_sync: bool = False,
    sequential: bool = True,
    context_idx: Optional[int] = None,
) -> None:
    """buffer.barrier(). Collective."""
    group = {} if context_idx is None or not hasattr(buffer, "groups") else {"group": buffer.groups[context_idx]}
    buffer.barrier(wait_comm_stream, with_cpu_sync, sequential, **group)


def get_comm_stream(buffer: Any = None) -> Any:
    """The buffer's; without one what stands for it."""
    return CommStream() if buffer is None else buffer.get_comm_stream()
