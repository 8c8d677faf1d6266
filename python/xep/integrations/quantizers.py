# SPDX-License-Identifier: BSD-3-Clause
"""Casts of rows in host memory for frameworks whose own quantizers are for devices: to the bit xep's (xep_quant_t)."""

from __future__ import annotations

import torch

_HALVES = (0.25, 1.25, 2.5, 5.0)  # between two numbers of e2m1: of a tie the even one, the lower one here
_OTHERS = (0.75, 1.75, 3.5)  # and here the upper one


def _groups(x: torch.Tensor, channels: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[T, H] -> [T, G, channels] in float32, the largest magnitude of each group, NaN where one is no number."""
    if x.shape[1] % (4 * channels) != 0:
        raise ValueError(f"hidden_states: expected a multiple of {4 * channels} channels, got {x.shape[1]}")
    groups = x.to(torch.float32).unflatten(1, (-1, channels))
    amax = groups.abs().amax(2)
    return groups, amax.masked_fill(~amax.isfinite(), float("nan"))


def nvfp4(x: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """[T, H] -> bytes of two e2m1 [T, H / 2], e4m3 scales [T, H / 16]: x is near q * scale of its group * scale."""
    inverse = torch.tensor(1.0) / torch.tensor(scale, dtype=torch.float32)
    groups, amax = _groups(x, 16)
    scales = (amax * torch.tensor(1.0 / 6.0) * inverse).clamp(max=448).to(torch.float8_e4m3fn)
    known = scales.to(torch.float32)
    q = groups * torch.where(known == 0, 0, inverse / known).unsqueeze(2)
    magnitude = q.abs()
    above = [magnitude > half for half in _HALVES] + [magnitude >= half for half in _OTHERS]
    codes = torch.stack(above).sum(0).to(torch.uint8) | q.signbit().to(torch.uint8) << 3
    pairs = codes.masked_fill(amax.isnan().unsqueeze(2), 0).flatten(1)
    return pairs[:, ::2] | pairs[:, 1::2] << 4, scales


def mxfp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[T, H] -> e4m3 [T, H], bytes of E8M0 [T, H / 32]."""
    groups, amax = _groups(x, 32)
    bits = amax.view(torch.int32)  # an exponent more where the fraction is above that of 448
    exponent = ((bits + (0x7FFFFF - 0x600000) >> 23) - 8).clamp(min=0)
    factor = ((254 - exponent) << 23).view(torch.float32)
    q = (groups * factor.unsqueeze(2)).masked_fill(amax.isnan().unsqueeze(2), 0)
    return q.to(torch.float8_e4m3fn).flatten(1), exponent.masked_fill(amax.isnan(), 255).to(torch.uint8)
