# SPDX-License-Identifier: BSD-3-Clause
"""What DeepEP asks of a process group beside its buffers: nodes, a barrier, the stream that communicates."""

from __future__ import annotations

import weakref
from typing import Any, Optional

import xep

from .compat import path_is_free
from .nodes import Nodes
from .utils.event import CommStream

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
