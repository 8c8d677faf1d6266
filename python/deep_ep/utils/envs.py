# SPDX-License-Identifier: BSD-3-Clause
"""Process groups of CPU ranks, and what DeepEP asks of the machine."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist


def init_dist(local_rank: int, num_local_ranks: int) -> tuple[int, int, dist.ProcessGroup]:
    """(rank, size, group) over gloo. Under torchrun its variables are used and the arguments are not; else MASTER_ADDR,
    MASTER_PORT, and WORLD_SIZE and RANK as number of nodes and of this node."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        dist.init_process_group("gloo")
    else:
        address, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), os.environ.get("MASTER_PORT", "8361")
        nodes, node = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
        dist.init_process_group(
            "gloo",
            init_method=f"tcp://{address}:{port}",
            world_size=nodes * num_local_ranks,
            rank=node * num_local_ranks + local_rank,
        )
    size = dist.get_world_size()
    return dist.get_rank(), size, dist.new_group(list(range(size)))


def check_nvlink_connections(group: Any) -> None:
    """DeepEP refuses GPUs that cannot reach one another here. Host memory can: there is nothing to refuse."""
