# SPDX-License-Identifier: BSD-3-Clause
"""What programs import beside the buffer: casts, comparisons, timing, process groups of CPU ranks."""

from __future__ import annotations

import os
import time
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist

from .event import EventHandle, EventOverlap

__all__ = [
    "EventHandle", "EventOverlap", "bench", "calc_diff", "create_grouped_scores", "hash_tensor", "init_dist",
    "inplace_unique", "per_token_cast_back", "per_token_cast_to_fp8",
]  # fmt: skip

_E4M3_MAX = 448.0
_GROUP = 128  # channels that share a scale


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


def calc_diff(x: torch.Tensor, y: torch.Tensor) -> float:
    """1 - the cosine of x + 1 and y + 1, in float64; 0 when equal."""
    a, b = x.double() + 1, y.double() + 1
    denominator = (a * a + b * b).sum()
    return float(1 - 2 * (a * b).sum() / denominator) if a.numel() else 0.0


def hash_tensor(t: torch.Tensor) -> int:
    """The sum of the bits as int32, independent of order; rows of an odd number of bytes are padded by 0."""
    data = t.contiguous().view(torch.uint8).reshape(-1)
    if data.numel() % 4:
        data = torch.nn.functional.pad(data, (0, 4 - data.numel() % 4))
    return int(data.view(torch.int32).sum(dtype=torch.int64)) & 0x7FFFFFFFFFFFFFFF


def per_token_cast_to_fp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[T, H] -> e4m3 [T, H] and float32 scales [T, ceil(H / 128)]: x is near e4m3 * scale."""
    if x.dim() != 2:
        raise ValueError(f"x: expected [T, H], got shape {tuple(x.shape)}")
    tokens, hidden = x.shape
    groups = -(-hidden // _GROUP)
    padded = torch.nn.functional.pad(x.float(), (0, groups * _GROUP - hidden)).view(tokens, groups, _GROUP)
    amax = padded.abs().amax(dim=2).clamp(1e-4)
    cast = (padded * (_E4M3_MAX / amax).unsqueeze(2)).to(torch.float8_e4m3fn)
    return cast.view(tokens, groups * _GROUP)[:, :hidden].contiguous(), amax / _E4M3_MAX


def per_token_cast_back(x_fp8: torch.Tensor, x_scales: torch.Tensor) -> torch.Tensor:
    """e4m3 [..., H] and scales [..., S], float32 or int32 with four exponent bytes each, -> bfloat16 [..., H]. Scales
    of another shape are taken in order, as by DeepEP's tests, that view packed ones as [-1, H / 128]."""
    hidden = x_fp8.shape[-1]
    if x_fp8.numel() == 0:
        return x_fp8.to(torch.bfloat16)
    if x_scales.dtype == torch.int32:
        x_scales = (x_scales.reshape(-1).contiguous().view(torch.uint8).to(torch.int32) << 23).view(torch.float32)
    scales = x_scales.float().reshape(*x_fp8.shape[:-1], -1).repeat_interleave(_GROUP, dim=-1)[..., :hidden]
    return (x_fp8.float() * scales).to(torch.bfloat16)


def inplace_unique(x: torch.Tensor, num_slots: int) -> None:
    """Each row of x [T, K] becomes its distinct values of 0 .. num_slots-1, the most frequent first, then -1."""
    if x.dim() != 2:
        raise ValueError(f"x: expected [T, K], got shape {tuple(x.shape)}")
    valid = x >= 0
    counts = torch.zeros((x.size(0), num_slots), dtype=torch.int32)
    counts.scatter_add_(1, x.clamp(min=0).long(), valid.to(torch.int32))
    ordered, slots = torch.sort(counts, dim=-1, descending=True, stable=True)
    width = min(num_slots, x.size(1))
    x.fill_(-1)
    x[:, :width] = torch.where(ordered > 0, slots, -1)[:, :width].to(x.dtype)


def create_grouped_scores(scores: torch.Tensor, group_idx: torch.Tensor, num_groups: int) -> torch.Tensor:
    """scores [T, E] with 0 in all but the groups (E / num_groups experts each) that group_idx [T, G] names."""
    tokens, experts = scores.shape
    mask = torch.zeros((tokens, num_groups), dtype=torch.bool).scatter_(1, group_idx, True)
    return scores * mask.repeat_interleave(experts // num_groups, dim=1)


def bench(
    fn: Callable[[], Any], num_warmups: int = 50, num_tests: int = 50, post_fn: Optional[Callable[[], Any]] = None
) -> tuple[float, float, float]:
    """(mean, least, most) seconds of fn, without the first; post_fn runs after each, untimed."""
    times = []
    for turn in range(num_warmups + num_tests):
        begin = time.perf_counter()
        fn()
        elapsed = time.perf_counter() - begin
        if post_fn is not None:
            post_fn()
        if turn >= num_warmups:
            times.append(elapsed)
    times = times[1:] or times
    return sum(times) / len(times), min(times), max(times)
