# SPDX-License-Identifier: BSD-3-Clause
"""What dispatch and combine must give, by torch.distributed and plain sums, for tests: no call of xep is in here."""

from __future__ import annotations

import math
from typing import Optional, Union

import torch
import torch.distributed as dist

from .envs import get_global_seed

Rows = Union[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]

_PRIME = 131071


def dispatch(
    x: Rows, topk_idx: torch.Tensor, topk_weights: torch.Tensor, num_max_tokens_per_rank: int, num_experts: int
) -> tuple[Rows, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Collective, over the default group: (recv_x or (recv_x, scales), recv_topk_idx [N, K] local or -1,
    recv_topk_weights [N, K] as they were sent, recv_src_token_idx [N]: source rank * num_max_tokens_per_rank + token,
    ascending, rows from each rank [R] int32)."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    local = num_experts // ranks
    owners = torch.where(topk_idx >= 0, topk_idx // local, -1)
    sent = [(owners == other).any(dim=1).nonzero().flatten() for other in range(ranks)]
    tokens = torch.cat(sent)
    counts = torch.tensor([len(one) for one in sent], dtype=torch.int64)
    there = torch.empty_like(counts)
    dist.all_to_all_single(there, counts)

    def pass_on(rows: torch.Tensor) -> torch.Tensor:
        return _all_to_all(rows[tokens].contiguous(), counts.tolist(), there.tolist())

    recv_x: Rows = (pass_on(x[0]), pass_on(x[1])) if isinstance(x, tuple) else pass_on(x)
    idx = pass_on(topk_idx) - rank * local
    idx.masked_fill_((idx < 0) | (idx >= local), -1)
    here = torch.arange(topk_idx.shape[0], dtype=topk_idx.dtype) + rank * num_max_tokens_per_rank
    sources = pass_on(here.unsqueeze(1)).flatten().to(torch.int32)
    return recv_x, idx, pass_on(topk_weights), sources, there.to(torch.int32)


def _all_to_all(rows: torch.Tensor, sent: list[int], there: list[int]) -> torch.Tensor:
    """As bytes, which every backend takes."""
    found = torch.empty((sum(there), *rows.shape[1:]), dtype=rows.dtype)
    dist.all_to_all_single(found.view(torch.uint8), rows.view(torch.uint8), there, sent)
    return found


def generate_pre_combine_data(
    src_token_global_idx: torch.Tensor, num_max_tokens_per_rank: int, num_topk: int, hidden: int
) -> torch.Tensor:
    """[N, K, H] bfloat16: what the expert of selection k makes of a token, known to every rank from the token's number:
    sin((n * 131071 mod M + 1) / M * (h + 1) + sin(seed)), n = number * K + k, M = R * num_max_tokens_per_rank * K."""
    most = dist.get_world_size() * num_max_tokens_per_rank * num_topk
    numbers = src_token_global_idx.to(torch.int64).unsqueeze(1) * num_topk + torch.arange(num_topk)
    phases = ((numbers * _PRIME % most).float() + 1) / most
    channels = torch.arange(1, hidden + 1, dtype=torch.float32)
    return torch.sin(phases.unsqueeze(-1) * channels + math.sin(float(get_global_seed()))).to(torch.bfloat16)


def ordered_accumulate(data: torch.Tensor) -> torch.Tensor:
    """[N, K, H] -> [N, H]: summed in float32, k ascending, and rounded once."""
    total = torch.zeros_like(data[:, 0], dtype=torch.float32)
    for k in range(data.shape[1]):
        total += data[:, k].float()
    return total.to(data.dtype)


def combine(
    y: torch.Tensor,
    topk_idx: torch.Tensor,
    num_scaleout_ranks: int,
    num_scaleup_ranks: int,
    num_experts: int,
    bias: Union[torch.Tensor, tuple[Optional[torch.Tensor], ...], None],
    reduce_in_local: bool,
    reduce_in_scaleup: bool,
) -> torch.Tensor:
    """y [T, K, H]: what the expert of each selection made of this rank's tokens -> the sums [T, H]: biases, then
    selections, k ascending. In float32, rounded at the end. reduce_in_local: instead of selections ranks, in the order
    of the token's last selection of each, of each its selections, k ascending, rounded; reduce_in_scaleup: instead of
    these nodes, likewise.
    """
    local = num_experts // (num_scaleout_ranks * num_scaleup_ranks)
    owners = torch.where(topk_idx >= 0, topk_idx // local, -1)
    total = torch.zeros_like(y[:, 0], dtype=torch.float32)
    for one in (bias,) if isinstance(bias, torch.Tensor) else bias or ():
        if one is not None:
            total += one.float()
    nodes = torch.where(owners >= 0, owners // num_scaleup_ranks, -1)

    def at_last(groups: torch.Tensor, k: int) -> torch.Tensor:
        """[T, 1]: whether column k is the last one of its group."""
        again = (groups[:, k + 1 :] == groups[:, k : k + 1]).any(dim=1)
        return ((groups[:, k] >= 0) & ~again).unsqueeze(1)

    def of_rank(k: int) -> torch.Tensor:
        """What the rank of column k has for each token."""
        part = torch.zeros_like(total)
        for other in range(k + 1):
            part += torch.where((owners[:, other] == owners[:, k]).unsqueeze(1), y[:, other].float(), 0.0)
        return part.to(y.dtype).float()

    parts = [torch.where((owners[:, k] >= 0).unsqueeze(1), y[:, k].float(), 0.0) for k in range(y.shape[1])]
    if reduce_in_local:
        parts = [torch.where(at_last(owners, k), of_rank(k), 0.0) for k in range(y.shape[1])]
    for k, part in enumerate(parts):
        if reduce_in_scaleup:
            of_node = torch.zeros_like(total)
            for other in range(k + 1):
                of_node += torch.where((nodes[:, other] == nodes[:, k]).unsqueeze(1), parts[other], 0.0)
            part = torch.where(at_last(nodes, k), of_node.to(y.dtype).float(), 0.0)
        total += part
    return total.to(y.dtype)
