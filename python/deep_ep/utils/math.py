# SPDX-License-Identifier: BSD-3-Clause
"""Casts, comparisons, and the arithmetic of routings."""

from __future__ import annotations

import functools
import operator
from typing import Any, Iterable, Iterator

import torch

_E4M3_MAX = 448.0
_GROUP = 128  # channels that share a scale


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
    counts = torch.zeros((x.size(0), num_slots), dtype=torch.int32, device=x.device)
    counts.scatter_add_(1, x.clamp(min=0).long(), valid.to(torch.int32))
    ordered, slots = torch.sort(counts, dim=-1, descending=True, stable=True)
    width = min(num_slots, x.size(1))
    x.fill_(-1)
    x[:, :width] = torch.where(ordered > 0, slots, -1)[:, :width].to(x.dtype)


def create_grouped_scores(scores: torch.Tensor, group_idx: torch.Tensor, num_groups: int) -> torch.Tensor:
    """scores [T, E] with 0 in all but the groups (E / num_groups experts each) that group_idx [T, G] names."""
    tokens, experts = scores.shape
    mask = torch.zeros((tokens, num_groups), dtype=torch.bool, device=scores.device).scatter_(1, group_idx, True)
    return scores * mask.repeat_interleave(experts // num_groups, dim=1)


def safe_div(a: float, b: float) -> float:
    """a / b, and 0 for 0 / 0."""
    return 0 if a == 0 and b == 0 else a / b


def ceil_div(x: int, y: int) -> int:
    return -(-x // y)


def align(x: int, y: int) -> int:
    """The least multiple of y that is not below x."""
    return ceil_div(x, y) * y


def _flat(tensors: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Tensors in tuples and lists of any depth; None is left out."""
    for one in tensors:
        if isinstance(one, (tuple, list)):
            yield from _flat(one)
        elif one is not None:
            yield one


def hash_tensors(*tensors: Any) -> int:
    """The exclusive or of each tensor's hash; tuples and lists of tensors, too, and None."""
    return functools.reduce(operator.xor, (hash_tensor(one) for one in _flat(tensors)), 0)


def count_bytes(*tensors: Any) -> int:
    """Of all elements; tuples and lists of tensors, too, and None."""
    return sum(one.numel() * one.element_size() for one in _flat(tensors))
