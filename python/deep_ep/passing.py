# SPDX-License-Identifier: BSD-3-Clause
"""What passes a rank: on several nodes a token goes to one rank of a node, DeepEP says, which passes it on to the ranks
of that node that get it. Handles tell of it, whichever way rows take here; so all ranks tell one another."""

from __future__ import annotations

from typing import Optional

import numpy
import torch

import xep

from .nodes import Nodes

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
