# SPDX-License-Identifier: BSD-3-Clause
"""What programs import from DeepEP's extension module."""

from deep_ep.buffer import Buffer
from deep_ep.config import Config, topk_idx_t
from deep_ep.config import low_latency_size_hint as get_low_latency_rdma_size_hint
from deep_ep.utils.event import EventHandle

is_sm90_compiled = Buffer.is_sm90_compiled

__all__ = ["Config", "EventHandle", "get_low_latency_rdma_size_hint", "is_sm90_compiled", "topk_idx_t"]
