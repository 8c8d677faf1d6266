# SPDX-License-Identifier: BSD-3-Clause
"""Buffer as DeepEP has it from V2 on: what differs from V1's is the order of arguments."""

from __future__ import annotations

from typing import Any, Optional

import torch

from ..buffer import Buffer as V1Buffer
from ..compat import Config
from ..utils.event import EventOverlap


class Buffer(V1Buffer):
    """See V1's; there is no use_fabric, and internode_dispatch has no num_worst_tokens."""

    def __init__(
        self,
        group: Any = None,
        num_nvl_bytes: int = 0,
        num_rdma_bytes: int = 0,
        low_latency_mode: bool = False,
        num_qps_per_rank: int = 24,
        allow_nvlink_for_low_latency_mode: bool = True,
        allow_mnnvl: bool = False,
        explicitly_destroy: bool = False,
        enable_shrink: bool = False,
        comm: Any = None,
        **options: Any,
    ) -> None:
        links = (num_qps_per_rank, allow_nvlink_for_low_latency_mode, allow_mnnvl, options.pop("use_fabric", False))
        ends = (explicitly_destroy, enable_shrink, comm)
        super().__init__(group, num_nvl_bytes, num_rdma_bytes, low_latency_mode, *links, *ends, **options)

    def internode_dispatch(  # type: ignore[override]
        self,
        x: Any,
        handle: Optional[tuple] = None,
        num_tokens_per_rank: Optional[torch.Tensor] = None,
        num_tokens_per_rdma_rank: Optional[torch.Tensor] = None,
        is_token_in_rank: Optional[torch.Tensor] = None,
        num_tokens_per_expert: Optional[torch.Tensor] = None,
        topk_idx: Optional[torch.Tensor] = None,
        topk_weights: Optional[torch.Tensor] = None,
        expert_alignment: int = 1,
        config: Optional[Config] = None,
        previous_event: Optional[EventOverlap] = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple:
        layout = (num_tokens_per_rank, num_tokens_per_rdma_rank, is_token_in_rank, num_tokens_per_expert)
        how: Any = (expert_alignment, 0, config, previous_event, async_finish, allocate_on_comm_stream)
        return self.dispatch(x, handle, *layout, topk_idx, topk_weights, *how)
