# SPDX-License-Identifier: BSD-3-Clause
"""Which ranks of a group are a node, and which place on it each has: what DeepEP calls RDMA rank and NVLink rank."""

from __future__ import annotations

import struct

import torch

import xep


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
        self.everyone = torch.tensor(padded)  # [M, width] ranks of each node; -1: none
        blocks = [rank // self.width for rank in range(group.nranks)]
        self.per_block = self.width if self.node_of == blocks else 0  # ranks of a node, where nodes are blocks of ranks

    def are_even(self) -> bool:
        """Several blocks of as many ranks each, more than one."""
        return self.count > 1 and self.width > 1 and self.per_block * self.count == len(self.node_of)

    def reached(self, in_rank: torch.Tensor) -> torch.Tensor:
        """in_rank [T, R] bool -> [T, M] bool: whether a token goes to a rank of the node."""
        return torch.stack([in_rank[:, members].any(dim=1) for members in self.members], dim=1)

    def feeders(self, rank: int) -> list[list[int]]:
        """Of each node the ranks whose tokens for the node of this one pass it: those with its place, modulo the size
        of its node. Of its own node it is itself."""
        own, place = self.node_of[rank], self.place_of[rank]
        size = len(self.members[own])
        return [
            [rank] if node == own else [source for p, source in enumerate(members) if p % size == place]
            for node, members in enumerate(self.members)
        ]
