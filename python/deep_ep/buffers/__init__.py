# SPDX-License-Identifier: BSD-3-Clause
"""What HEAD has in this folder: V2's buffers by other names, and V2.5's, which are imported when one is asked for."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .base import BufferAllocator as BufferAllocator
    from .base import BufferBase as BufferBase
    from .base import get_num_allocation_alignment as get_num_allocation_alignment
    from .base import get_num_rdma_alignment as get_num_rdma_alignment
    from .base import get_num_tma_alignment as get_num_tma_alignment
    from .bucket import BucketBuffer as BucketBuffer
    from .bucket import BucketSession as BucketSession
    from .ep import EngramBuffer as EngramBuffer
    from .ep import EPBuffer as EPBuffer
    from .ep import PPBuffer as PPBuffer

MODULES = {
    "BucketBuffer": "bucket", "BucketSession": "bucket", "BufferAllocator": "base", "BufferBase": "base",
    "EPBuffer": "ep", "EngramBuffer": "ep", "PPBuffer": "ep", "get_num_allocation_alignment": "base",
    "get_num_rdma_alignment": "base", "get_num_tma_alignment": "base",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{MODULES[name]}", __name__), name)
