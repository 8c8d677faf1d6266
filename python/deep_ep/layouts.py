# SPDX-License-Identifier: BSD-3-Clause
"""Layouts, where topk_idx is: of CPU tensors by the library, of others by torch, which waits for nothing."""

from __future__ import annotations

from typing import NamedTuple

import torch

import xep


class Layout(NamedTuple):
    """Tokens for each rank [R] int32, selections of each expert [E] int32, whether a token goes to a rank [T, R]."""

    per_rank: torch.Tensor
    per_expert: torch.Tensor
    in_rank: torch.Tensor


def layout_there(topk_idx: torch.Tensor, experts: int, nranks: int) -> Layout:
    """By operations of torch. What is no expert, and not -1, counts for nobody: it is the dispatch that refuses it, as
    to raise here the host would have to wait for the device."""
    wide = topk_idx.to(torch.int64)
    chosen = torch.where((wide >= 0) & (wide < experts), wide, experts)
    ones = torch.ones((), dtype=torch.int32, device=wide.device).expand(wide.numel())
    per_expert = torch.zeros(experts + 1, dtype=torch.int32, device=wide.device)
    per_expert.scatter_add_(0, chosen.flatten(), ones)
    owners = torch.div(chosen, experts // nranks, rounding_mode="floor")  # nranks: of what is no expert
    in_rank = torch.zeros((wide.shape[0], nranks + 1), dtype=torch.bool, device=wide.device)
    in_rank = in_rank.scatter_(1, owners, True)[:, :nranks].contiguous()
    return Layout(in_rank.sum(0, dtype=torch.int32), per_expert[:experts].clone(), in_rank)


def tokens_per_rank(topk_idx: torch.Tensor, experts: int, nranks: int) -> list[int]:
    if topk_idx.is_cpu:
        return xep.layout(topk_idx, experts, nranks).tokens_per_rank.tolist()
    return layout_there(topk_idx, experts, nranks).per_rank.tolist()
