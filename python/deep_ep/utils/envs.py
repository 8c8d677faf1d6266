# SPDX-License-Identifier: BSD-3-Clause
"""Process groups of CPU ranks, seeds, and what DeepEP asks of the machine."""

from __future__ import annotations

import functools
import os
import pathlib
import random
import re
import time
from typing import Any, Optional

import torch
import torch.distributed as dist

from .comm import get_logical_domain_size as get_logical_domain_size
from .comm import get_physical_domain_size as get_physical_domain_size

_local_rank: Optional[int] = None
_local_seed = _global_seed = 0

_COPIED = 64 << 20  # bytes, by which memory is timed


def init_dist(local_rank: int, num_local_ranks: int, seed: int = 0) -> tuple[int, int, dist.ProcessGroup]:
    """(rank, size, group) over gloo. Under torchrun its variables are used and the arguments are not; else MASTER_ADDR,
    MASTER_PORT, and WORLD_SIZE and RANK as number of nodes and of this node. As in DeepEP bfloat16 is torch's default
    type afterwards; seed: see init_seed()."""
    global _local_rank
    _local_rank = local_rank
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
    torch.set_default_dtype(torch.bfloat16)
    init_seed(seed)
    size = dist.get_world_size()
    return dist.get_rank(), size, dist.new_group(list(range(size)))


def init_seed(global_seed: int) -> None:
    """Seeds torch and random with global_seed + rank."""
    global _local_seed, _global_seed
    _global_seed, _local_seed = global_seed, global_seed + dist.get_rank()
    torch.manual_seed(_local_seed)
    random.seed(_local_seed)


def get_local_seed() -> int:
    return _local_seed


def get_global_seed() -> int:
    return _global_seed


def dist_print(s: str = "", once_in_node: bool = False) -> None:
    """Prints s on every rank, or on the first rank of each node, and waits for all. Collective."""
    local = int(os.environ.get("LOCAL_RANK", dist.get_rank())) if _local_rank is None else _local_rank
    if not once_in_node or local == 0:
        print(s, flush=True)
    dist.barrier()


def check_nvlink_connections(group: Any) -> None:
    """DeepEP refuses GPUs that cannot reach one another here. Host memory can: there is nothing to refuse."""


def check_torch_deterministic() -> None:
    """DeepEP refuses torch.empty() that fills, beside its streams. Here results are written behind it."""


def check_fast_rdma_atomic_support(nic_name: str = "mlx5_0") -> bool:
    """False: xep sends no atomic operations."""
    return False


@functools.lru_cache(maxsize=None)
def get_nvlink_gbs(factor: float = 0.9) -> float:
    """GB/s of which ranks of a node reach one another's memory, times factor: here that of a copy in host memory by one
    thread, measured once."""
    source = torch.ones(_COPIED, dtype=torch.uint8, device="cpu")
    there = torch.empty_like(source)
    there.copy_(source)
    begin = time.perf_counter()
    there.copy_(source)
    return _COPIED / (time.perf_counter() - begin) / 1e9 * factor


@functools.lru_cache(maxsize=None)
def get_rdma_gbs(nic_name: str = "") -> float:
    """GB/s of the network device of that name, else of the fastest: of RDMA, else of Ethernet. 0 where Linux does not
    know."""
    rdma = pathlib.Path("/sys/class/infiniband").glob(f"{nic_name or '*'}/ports/*/rate")
    found = [float(text.split()[0]) / 8 for text in map(_read, rdma) if text]
    if not found:  # Mb/s
        speeds = map(_read, pathlib.Path("/sys/class/net").glob(f"{nic_name or '*'}/speed"))
        found = [float(text) / 8000 for text in speeds if re.fullmatch(r"[1-9]\d*", text)]
    return max(found, default=0.0)


def _read(file: pathlib.Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def get_sm_read_gbs() -> float:
    """DeepEP's figure for a multiprocessor."""
    return 180


def get_sm_write_gbs() -> float:
    """DeepEP's figure for a multiprocessor."""
    return 45
