# SPDX-License-Identifier: BSD-3-Clause
"""What every rank counts, told to every rank: by a buffer of its own, where a dispatch has no indices to count."""

from __future__ import annotations

from typing import Any

import torch

import xep

from ._check import HOST, memory_of


def exchange_counts(buffer: xep.Buffer, counts: torch.Tensor) -> torch.Tensor:
    """[R, E] int32: what every rank gives. A dispatch of one token, to every rank. Collective, blocking."""
    nranks = buffer.group.nranks
    everyone = torch.arange(nranks, dtype=torch.int64, device=counts.device).unsqueeze(0)
    with buffer.dispatch(counts.to(torch.int32).reshape(1, -1), everyone) as handle:
        return handle.recv.x.clone()


def counts_buffer(group: xep.Group, experts: int, on: torch.device = HOST) -> xep.Buffer:
    """For exchange_counts. Collective, blocking."""
    options: dict[str, Any] = dict(dtype=torch.int32, slots=1, memory=memory_of(on))
    return group.buffer(group.nranks, group.nranks, experts, 1, mode="normal", **options)
