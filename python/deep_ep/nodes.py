# SPDX-License-Identifier: BSD-3-Clause
"""Which ranks of a group are a node, and what ranks tell one another beside rows: which calls each has refused, counts,
and which tokens pass them.
"""

from __future__ import annotations

import contextlib
import functools
import struct
from typing import Any, Callable, Optional, TypeVar

import numpy
import torch

import xep

from .arguments import HOST, Wrong

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


# ---- calls that one rank refuses alone ----


Call = TypeVar("Call", bound=Callable[..., Any])


class Agreement:
    """Of a Buffer: what all its ranks call together, where no buffer of xep has counted it."""

    _WORD = struct.Struct("<I32s220s")  # how many calls were refused, the call, why

    def __init__(self, group: xep.Group) -> None:
        self._group = group
        self._refused, self._most, self._why = 0, 0, ""

    def refuse(self, why: str) -> None:
        self._refused, self._why = self._refused + 1, why

    def meet(self, call: str, counts: bool = True) -> None:
        """MismatchError on all ranks where some are in another call, or, if that counts, have refused more of them. The
        others then refuse as many. Collective."""
        if counts and self._refused < self._most:
            self.refuse(self._why)
            raise xep.MismatchError(xep.Status.ERR_MISMATCH, f"this {call} is refused on this rank, too: {self._why}")
        sent = self._WORD.pack(self._refused, call.encode(), self._why.encode()[:220])
        words = [self._WORD.unpack(one) for one in self._group.allgather(sent)]
        told = [(count, *(text.rstrip(b"\0").decode(errors="replace") for text in texts)) for count, *texts in words]
        most = max(count for count, _, _ in told)
        odd = next(rank for rank, word in enumerate(told) if word[0] == most)
        more, why = most - min(count for count, _, _ in told), told[odd][2]
        refused = f"{more} of those before it failed on rank {odd} alone ({why})" if more else ""
        for rank, (_, theirs, _) in enumerate(told):
            if theirs != call:
                text = f"rank {rank} is in {theirs}, this rank in {call} (all ranks call the same, in the same order)"
                raise xep.MismatchError(xep.Status.ERR_MISMATCH, f"{text}{refused and '; '}{refused}")
        if more and counts:
            self._most = most
            self._why = refused if self._refused < most else self._why
            raise xep.MismatchError(xep.Status.ERR_MISMATCH, f"this {call} is refused on all ranks: {refused}")


def count_refused(buffer: Optional[xep.Buffer], agreement: Agreement, why: str) -> None:
    """As if xep had refused it."""
    if buffer is None:
        agreement.refuse(why)
    else:
        with contextlib.suppress(xep.XepError, TypeError, ValueError, RuntimeError):
            buffer.dispatch(None, None)


def counted(last: str) -> Callable[[Call], Call]:
    """A collective call; the method of that name tells the buffer of the last one."""

    def wrap(call: Call) -> Call:
        @functools.wraps(call)
        def made(self: Any, *arguments: Any, **options: Any) -> Any:
            try:
                return call(self, *arguments, **options)
            except Wrong as wrong:
                if not wrong.counted:  # in another call, of which this one is made
                    wrong.counted = True
                    count_refused(getattr(self, last)(), self._agreement, str(wrong))
                raise

        return made  # type: ignore[return-value]

    return wrap


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


class Passing:
    """Of a Buffer on several nodes. A rank sends each node one row, for all ranks there: how many tokens it has, and a
    bit for each token and rank of that node."""

    def __init__(self, group: xep.Group, nodes: Nodes, timeout: Optional[float]) -> None:
        self._group, self._nodes, self._timeout = group, nodes, timeout
        self._width = len(nodes.members[group.node])
        self._tokens = 0
        self.buffer: Optional[xep.Buffer] = None

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
        if self.buffer is None or room > self._tokens:
            replaced, self.buffer = self.buffer, None
            if replaced is not None:
                replaced.close()
            self._tokens, nranks = room, self._group.nranks
            self.buffer = self._group.buffer(
                nranks, self._nodes.width, self._bytes(), self._nodes.count, mode="ll", dtype=torch.uint8, slots=1,
                timeout=self._timeout,
            )  # fmt: skip
        return self.buffer

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
