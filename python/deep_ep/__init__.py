# SPDX-License-Identifier: BSD-3-Clause
"""DeepEP's Python interface over xep: the same calls, keywords and results, with CPU tensors and with CUDA tensors.

What has no meaning without a GPU does the nearest true thing, and its docstring says what that is. All three versions
of DeepEP are here: Buffer (V1), ElasticBuffer (V2), EPBuffer and BucketBuffer (V2.5). __version__ is that of the DeepEP
whose interface this is, and behind the + that of xep: 2.1.0, and 2.5.0 once a program has taken a name that came with
V2.5 (`from deep_ep import EPBuffer`). DEEP_EP_VERSION=1, 2 or 2.5 decides it instead, and with it the order of
arguments: from 2 on Buffer is that of deep_ep.buffers.legacy.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import xep

from . import buffers
from .buffer import Buffer as Buffer
from .comm import destroy_all_managed_nccl_comm, get_logical_domain_size, get_physical_domain_size
from .compat import Config, topk_idx_t
from .elastic import ElasticBuffer
from .handles import EPHandle
from .utils.event import EventHandle, EventOverlap

if TYPE_CHECKING:
    from .buffers import (  # noqa: I001
        BucketBuffer, BucketSession, BufferAllocator, BufferBase, EngramBuffer, EPBuffer, PPBuffer,
        get_num_allocation_alignment, get_num_rdma_alignment, get_num_tma_alignment,
    )  # fmt: skip

_VERSIONS = {"1": "1.2.1", "2": "2.1.0", "2.5": "2.5.0"}
_chosen = os.environ.get("DEEP_EP_VERSION")
if _chosen is not None and _chosen not in _VERSIONS:
    raise ImportError(f"DEEP_EP_VERSION: expected 1, 2 or 2.5, got {_chosen}")
__version__ = f"{_VERSIONS[_chosen or '2']}+xep{xep.version()}"
if _chosen in ("2", "2.5"):
    from .buffers.legacy import Buffer as Buffer  # type: ignore[assignment]  # noqa: F811


def __getattr__(name: str) -> Any:
    """Names of V2.5."""
    global __version__
    if name not in buffers.MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _chosen is None:
        __version__ = f"{_VERSIONS['2.5']}+xep{xep.version()}"
    found = globals()[name] = getattr(buffers, name)
    return found


__all__ = [
    "BucketBuffer", "BucketSession", "Buffer", "BufferAllocator", "BufferBase", "Config", "EPBuffer", "EPHandle",
    "ElasticBuffer", "EngramBuffer", "EventHandle", "EventOverlap", "PPBuffer", "__version__",
    "destroy_all_managed_nccl_comm", "get_logical_domain_size", "get_num_allocation_alignment",
    "get_num_rdma_alignment", "get_num_tma_alignment", "get_physical_domain_size", "topk_idx_t",
]  # fmt: skip
