# SPDX-License-Identifier: BSD-3-Clause
"""DeepEP's Python interface on host memory: the same calls, keywords and results, with CPU tensors, over xep.

What has no meaning without a GPU does the nearest true thing, and its docstring says what that is.
"""

from .buffer import Buffer
from .config import Config, topk_idx_t
from .event import EventHandle, EventOverlap

__all__ = ["Buffer", "Config", "EventHandle", "EventOverlap", "topk_idx_t"]
