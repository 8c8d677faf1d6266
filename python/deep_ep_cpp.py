# SPDX-License-Identifier: BSD-3-Clause
"""What programs import from V1's extension module."""

from deep_ep._C import Config, EventHandle, get_low_latency_rdma_size_hint, is_sm90_compiled, topk_idx_t

__all__ = ["Config", "EventHandle", "get_low_latency_rdma_size_hint", "is_sm90_compiled", "topk_idx_t"]
