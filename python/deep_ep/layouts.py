# SPDX-License-Identifier: BSD-3-Clause
"""Layouts, where topk_idx is: of CPU tensors by the library, of others by torch, which waits for nothing."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

import xep


class Layout(NamedTuple):
    """Tokens for each rank [R] int32, selections of each expert [E] int32, whether a token goes to a rank [T, R]."""

    per_rank: torch.Tensor
    per_expert: torch.Tensor
    in_rank: torch.Tensor


def layout_there(topk_idx: torch.Tensor, experts: int, nranks: int) -> Layout:
    """By few operations of torch. An index that is neither an expert nor -1 counts for nobody: the dispatch refuses it,
    as to raise here the host would have to wait for the device."""
    device = topk_idx.device
    one, owner_of = _constants(experts, nranks, device)
    chosen = topk_idx.to(torch.int64).clamp(-1, experts) + 1  # 0, experts + 1: none
    per_expert = torch.zeros(experts + 2, dtype=torch.int32, device=device)
    per_expert.scatter_add_(0, chosen.flatten(), one.expand(chosen.numel()))
    in_rank = torch.zeros((chosen.shape[0], nranks + 1), dtype=torch.bool, device=device)
    in_rank = in_rank.scatter_(1, owner_of[chosen], True)[:, :nranks].contiguous()
    return Layout(in_rank.sum(0, dtype=torch.int32), per_expert[1:-1], in_rank)


@functools.lru_cache
def _constants(experts: int, nranks: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """One; and of each expert, with what is none before and behind them, the rank, or nranks."""
    owners = torch.full((experts + 2,), nranks)
    owners[1:-1] = torch.arange(experts) // (experts // nranks)
    return torch.ones((), dtype=torch.int32).to(device), owners.to(device)


def tokens_per_rank(topk_idx: torch.Tensor, experts: int, nranks: int) -> list[int]:
    if topk_idx.is_cpu:
        return xep.layout(topk_idx, experts, nranks).tokens_per_rank.tolist()
    return layout_there(topk_idx, experts, nranks).per_rank.tolist()
