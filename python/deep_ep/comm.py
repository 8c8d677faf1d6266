# SPDX-License-Identifier: BSD-3-Clause
"""Process groups: which ranks are a node, pools of their shared memory, which tokens pass a rank; and what DeepEP asks
of a group beside its buffers: a barrier, the stream that communicates."""

from __future__ import annotations

import struct
import weakref
from typing import Any, Literal, NamedTuple, Optional

import numpy
import torch

import xep

from .arguments import HOST, Agreement
from .compat import path_is_free
from .streams import DeviceQueue
from .utils.event import CommStream

# ---- nodes ----


class Nodes:
    """members: ranks of each node, ascending. node_of, place_of: of each rank. width: ranks of the largest node.
    everyone: [M, width] the members, -1 where a node has fewer."""

    def __init__(self, group: xep.Group) -> None:
        """Collective where there are several."""
        self.count = group.nnodes
        self.node_of = [0] * group.nranks
        if self.count > 1:
            self.node_of = [struct.unpack("<I", one)[0] for one in group.allgather(struct.pack("<I", group.node))]
        self.members = [[r for r, node in enumerate(self.node_of) if node == n] for n in range(self.count)]
        self.place_of = [self.members[node].index(rank) for rank, node in enumerate(self.node_of)]
        self.width = max(len(members) for members in self.members)
        padded = [members + [-1] * (self.width - len(members)) for members in self.members]
        self.everyone = torch.tensor(padded, device=HOST)  # [M, width] ranks of each node; -1: none
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


# ---- pools of shared memory ----


class Joined(NamedTuple):
    """What the pools of a Buffer have in common. ways: how rows of mode normal reach other nodes, and their sums come
    back."""

    group: xep.Group
    agreement: Agreement
    slots: int
    timeout: Optional[float]
    on_failure: Literal["fail", "mask"]
    ways: dict[str, Any]


class Pool:
    """Buffers of one kind.

    queue: of the CUDA device where tensors are; None: host memory. They are used on the current stream, which is that
    of the operation, and comes after what reads slots that were given back.
    """

    kind: str
    last: Optional[xep.Buffer] = None  # of the last dispatch or combine
    threads = 0

    def __init__(self, joined: Joined, queue: Optional[DeviceQueue] = None) -> None:
        self._joined, self._group, self._agreement = joined, joined.group, joined.agreement
        self.queue, self.on = queue, HOST if queue is None else queue.device
        self.where = 0 if queue is None else queue.index + 1  # for is_plain()

    def buffers(self) -> list[xep.Buffer]:
        raise NotImplementedError

    def forget(self) -> None:
        """What is in flight is waited for, or of no more interest; handles keep what their tensors are made of."""

    def reset(self) -> None:
        """Collective."""
        for buffer in self.buffers():
            buffer.reset()


# ---- what passes a rank ----


_HEADER = 8  # bytes: how many tokens
_ALIGNMENT = 64


class Told:
    """What all ranks have told this one of a dispatch."""

    def __init__(self, rows: numpy.ndarray, width: int) -> None:
        """rows [R, bytes] as they came; width: ranks of this node."""
        self._rows, self._width = rows, width

    def tokens(self, rank: int) -> int:
        """Of that rank."""
        return int(self._rows[rank, :_HEADER].view(numpy.int64)[0])

    def places(self, rank: int) -> torch.Tensor:
        """[T of that rank, P] bool: whether a token goes to the rank of this node with that place."""
        tokens, each = self.tokens(rank), _bytes_of(self._width)
        bits = self._rows[rank, _HEADER : _HEADER + tokens * each].reshape(tokens, each)
        return torch.from_numpy(numpy.unpackbits(bits, axis=1, count=self._width, bitorder="little")).view(torch.bool)


class Passing(Pool):
    """Of a Buffer on several nodes. A rank sends each node one row, for all ranks there: how many tokens it has, and a
    bit for each token and rank of that node."""

    kind = "passing"

    def __init__(self, joined: Joined, nodes: Nodes) -> None:
        super().__init__(joined)
        self._nodes, self._width = nodes, len(nodes.members[joined.group.node])
        self._tokens = 0
        self._buffer: Optional[xep.Buffer] = None

    def buffers(self) -> list[xep.Buffer]:
        return [] if self._buffer is None else [self._buffer]

    def exchange(self, in_rank: torch.Tensor, room: int) -> Told:
        """in_rank: [T, R] bool. room: tokens of a rank at most, the same everywhere. Collective, blocking."""
        buffer = self._buffer_for(room)
        sent = torch.from_numpy(self._rows_of(in_rank.cpu().numpy()))
        with buffer.dispatch(sent, self._nodes.everyone) as handle:
            return Told(handle.recv.x.numpy().copy(), self._width)

    def _bytes(self) -> int:
        most = _HEADER + self._tokens * _bytes_of(self._nodes.width)
        return -(-most // _ALIGNMENT) * _ALIGNMENT

    def _buffer_for(self, room: int) -> xep.Buffer:
        if self._buffer is None or room > self._tokens:
            replaced, self._buffer = self._buffer, None
            if replaced is not None:
                replaced.close()
            self._tokens, nranks = room, self._group.nranks
            self._buffer = self._group.buffer(
                nranks, self._nodes.width, self._bytes(), self._nodes.count, mode="ll", dtype=torch.uint8, slots=1,
                timeout=self._joined.timeout,
            )  # fmt: skip
        return self._buffer

    def _rows_of(self, in_rank: numpy.ndarray) -> numpy.ndarray:
        """[M, bytes]"""
        rows = numpy.zeros((self._nodes.count, self._bytes()), dtype=numpy.uint8)
        rows[:, :_HEADER].view(numpy.int64)[:] = len(in_rank)
        for row, members in zip(rows, self._nodes.members):
            bits = numpy.packbits(in_rank[:, members], axis=1, bitorder="little").reshape(-1)
            row[_HEADER : _HEADER + len(bits)] = bits
        return rows


def _bytes_of(places: int) -> int:
    """Of the bits of a token."""
    return -(-places // 8)


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
