# SPDX-License-Identifier: BSD-3-Clause
"""What programs import from DeepEP's extension module; V1's is called deep_ep_cpp."""

from .buffer import Buffer
from .compat import Config, topk_idx_t
from .compat import low_latency_size_hint as get_low_latency_rdma_size_hint
from .utils.event import EventHandle

is_sm90_compiled = Buffer.is_sm90_compiled

__all__ = ["Config", "EventHandle", "get_low_latency_rdma_size_hint", "is_sm90_compiled", "topk_idx_t"]
