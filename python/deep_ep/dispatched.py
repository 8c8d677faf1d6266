# SPDX-License-Identifier: BSD-3-Clause
"""A normal dispatch, as what comes back by it needs it: its routing, its counts, and its slot while it has one."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any, Callable, Optional, Protocol

import torch

import xep

from .seats import Seat, Sent


class Arrival(Protocol):
    """A request, or an event of a stream, which lets the current one wait."""

    def wait(self) -> Any: ...


class Dispatched:
    """owner: the group of the Buffer. rows: those received; capacity: those of the received arrays. worst: rows asked
    for, or 0. most: as of a Job; where it is not 0 the counts are on the device, and rows is the capacity."""

    experts = worst = most = 0
    xep: Any = None  # the xep.Handle; None without a slot
    seat: Optional[Seat] = None
    is_gone = False
    look_again: Callable[[], None] = staticmethod(lambda: None)  # on a CUDA device: the current stream reads the slot
    _arrives: Optional[Arrival] = None

    owner: xep.Group
    num_tokens: int
    topk: int
    rows: int
    capacity: int

    def routing(self) -> torch.Tensor:
        """[T, topk] by which the same rows go to the same ranks once more."""
        raise NotImplementedError

    def keep(self) -> None:
        """Keeps of the slot what will be asked for without it."""

    def arrives(self, event: Any) -> None:
        """On a stream: what its rows are here with. In a CUDA graph the order of its nodes says so."""
        if not torch.cuda.is_current_stream_capturing():
            self._arrives = event

    def sit(self, sent: Sent, seat: Seat) -> None:
        self.xep = sent.handle
        self._arrives = sent.request
        self.seat = seat
        seat.handle = weakref.ref(self)

    def park(self) -> None:
        """Gives the slot back."""
        with contextlib.suppress(xep.XepError):  # a dispatch that failed has no rows: arrived() says so
            self.keep()
        self.xep = self.seat = None

    def drop(self) -> None:
        """Its rows are gone, and what is not known of it by now will never be."""
        self.xep = self.seat = self._arrives = None
        self.is_gone = True

    def arrived(self) -> None:
        """Waits until the rows are here, or lets the current stream wait for them; raises the dispatch's error."""
        if self._arrives is not None:
            self._arrives.wait()


def routing_of(in_rank: torch.Tensor, experts: int, topk: int) -> torch.Tensor:
    """[T, K] int64: of each rank that in_rank [T, R] names the first expert. No token goes to more than K ranks."""
    nranks = in_rank.shape[1]
    firsts = torch.where(in_rank, torch.arange(0, experts, experts // nranks, device=in_rank.device), -1)
    if topk == nranks:
        return firsts
    first_k = firsts.sort(dim=1, descending=True).values[:, :topk]
    return torch.nn.functional.pad(first_k, (0, topk - first_k.shape[1]), value=-1).contiguous()
