# SPDX-License-Identifier: BSD-3-Clause
"""DeepEP's Python interface over xep: the same calls, keywords and results, with CPU tensors and with CUDA tensors.

What has no meaning without a GPU does the nearest true thing, and its docstring says what that is. __version__ is that
of the DeepEP whose interface this is, and behind the + that of xep.
"""

import xep

from .buffer import Buffer
from .config import Config, topk_idx_t
from .elastic import ElasticBuffer
from .elastic_handle import EPHandle
from .utils.event import EventHandle, EventOverlap

__version__ = f"2.1.0+xep{xep.version()}"
__all__ = [
    "Buffer", "Config", "EPHandle", "ElasticBuffer", "EventHandle", "EventOverlap", "__version__", "topk_idx_t",
]  # fmt: skip
