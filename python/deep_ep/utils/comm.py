# SPDX-License-Identifier: BSD-3-Clause
"""Process groups: which ranks are a node, which tokens go where; and what DeepEP asks of a group beside its buffers: a
barrier, the stream that communicates."""

from __future__ import annotations

import struct
import threading
import weakref
from typing import Any, Callable, Optional

import torch

import xep

from .event import CommStream

__all__ = [
    "NCCLCommHandle", "barrier", "destroy_all_managed_nccl_comm", "get_comm_stream", "get_logical_domain_size",
    "get_nccl_comm_handle", "get_physical_domain_size",
]  # fmt: skip

# ---- nodes ----


class Nodes:
    """members: ranks of each node, ascending. node_of, place_of: of each rank. width: ranks of the largest node."""

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

    def logical(self, hybrid: bool) -> tuple[int, int]:
        """(nodes, ranks of one) where rows go once to each: if hybrid, nodes are several blocks of as many ranks each,
        more than one, and XEP_PATH says nothing else. (1, ranks) where rows go straight to their rank."""
        are_even = self.count > 1 and self.width > 1 and self.per_block * self.count == len(self.node_of)
        is_free = not any(v.name == "XEP_PATH" and v.value == "flat" for v in xep.config())
        return (self.count, self.width) if hybrid and are_even and is_free else (1, len(self.node_of))

    def reached(self, in_rank: torch.Tensor) -> torch.Tensor:
        """in_rank [T, R] bool -> [T, M] bool: whether a token goes to a rank of the node."""
        return torch.stack([in_rank[:, members].any(dim=1) for members in self.members], dim=1)


# ---- the end ----


_CLOSE_SECONDS = 5.0


def close_in_time(close: Callable[[], Any], *groups: xep.Group) -> None:
    """By a destructor, which may hold nobody up for longer, least of all an exception on its way: the other ranks may
    be anywhere."""
    closer = threading.Thread(target=close, name="xep-close", daemon=True)
    closer.start()
    closer.join(_CLOSE_SECONDS)
    if closer.is_alive():
        for group in groups:
            group.abort()
        closer.join()


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
    """Nodes.logical() with allow_hybrid_mode (None: True); of a buffer by its own mode. Of a process group collective
    at the first call."""
    asked = getattr(group_or_buffer, "get_logical_domain_size", None)
    if asked is not None:
        return asked()
    return _nodes_of(group_or_buffer).logical(allow_hybrid_mode is not False)


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
