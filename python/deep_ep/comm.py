# SPDX-License-Identifier: BSD-3-Clause
"""What DeepEP asks of a process group beside its buffers: nodes, a barrier, the stream that communicates."""

from __future__ import annotations

import weakref
from typing import Any, Optional

import xep

from .nodes import Nodes
from .utils.event import CommStream

_sizes: weakref.WeakKeyDictionary[Any, tuple[int, int]] = weakref.WeakKeyDictionary()


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
    _sizes.clear()


def get_physical_domain_size(group_or_buffer: Any) -> tuple[int, int]:
    """(nodes, ranks of the largest node). Of a process group collective at the first call, of a buffer local."""
    asked = getattr(group_or_buffer, "get_physical_domain_size", None)
    if asked is not None:
        return asked()
    found = _sizes.get(group_or_buffer)
    if found is None:
        with xep.Group(group_or_buffer) as group:
            nodes = Nodes(group)
            found = nodes.count, nodes.width
        _sizes[group_or_buffer] = found
    return found


def get_logical_domain_size(group_or_buffer: Any, allow_hybrid_mode: Optional[bool] = None) -> tuple[int, int]:
    """(1, ranks): what ElasticBuffer and EPBuffer do with rows is the same on any nodes, whatever allow_hybrid_mode
    says."""
    asked = getattr(group_or_buffer, "get_logical_domain_size", None)
    if asked is not None:
        return asked()
    size = group_or_buffer.size
    return 1, size() if callable(size) else size


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
