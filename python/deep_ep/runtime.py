# SPDX-License-Identifier: BSD-3-Clause
"""What programs ask of DeepEP's inner object, buffer.runtime: mostly of ranks and nodes."""

from __future__ import annotations

import weakref
from typing import Any, Optional, Protocol

import xep

from ._check import WrongUse
from .nodes import Nodes
from .ordering import DeviceQueue

_AS_BUFFER = frozenset((
    "barrier", "clean_low_latency_buffer", "destroy", "get_comm_stream", "get_local_buffer_tensor",
    "get_logical_domain_size", "get_physical_domain_size", "get_next_low_latency_combine_buffer",
    "low_latency_clean_mask_buffer", "low_latency_query_mask_buffer", "low_latency_update_mask_buffer",
))  # fmt: skip


class Owner(Protocol):
    """What is asked of the Buffer."""

    _destroyed: bool
    _nodes: Nodes
    _queue: Optional[DeviceQueue]
    _xep: xep.Group


class Runtime:
    """Ranks of a node are what DeepEP calls NVLink ranks, nodes are its RDMA ranks. Calls that the Buffer has too, with
    the same arguments, are the Buffer's."""

    def __init__(self, buffer: Owner) -> None:
        self._buffer = weakref.ref(buffer)

    def is_available(self) -> bool:
        buffer = self._buffer()
        return buffer is not None and not buffer._destroyed

    def is_internode_available(self) -> bool:
        """Whether there are other nodes to be reached."""
        return self.is_available() and self.get_num_rdma_ranks() > 1

    def get_num_rdma_ranks(self) -> int:
        """Nodes: the ranks of one map one another's memory."""
        return self._alive()._nodes.count

    def get_rdma_rank(self) -> int:
        """This rank's node."""
        buffer = self._alive()
        return buffer._nodes.node_of[buffer._xep.rank]

    def get_root_rdma_rank(self, global_root: bool) -> int:
        """This rank's place on its node; 0 unless global."""
        buffer = self._alive()
        return buffer._nodes.place_of[buffer._xep.rank] if global_root else 0

    def get_local_device_id(self) -> int:
        """The CUDA device that the Buffer is on; else 0, the host."""
        queue = self._alive()._queue
        return 0 if queue is None else queue.device.index

    def __getattr__(self, name: str) -> Any:
        if name not in _AS_BUFFER:
            raise AttributeError(
                f"buffer.runtime: there is no {name} on CPU "
                "(there are calls that tell of ranks, and some of the Buffer's)"
            )
        return getattr(self._alive(), name)

    def _alive(self) -> Owner:
        buffer = self._buffer()
        if buffer is None:
            raise WrongUse("the Buffer is gone")
        return buffer
