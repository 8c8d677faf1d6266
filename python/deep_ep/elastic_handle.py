# SPDX-License-Identifier: BSD-3-Clause
"""What ElasticBuffer.dispatch returns to come back by."""

from __future__ import annotations

import functools
from typing import Optional, Union

import torch

import xep

from . import ep_handle
from .dispatched import Dispatched
from .expand import DevicePlaces, Places, PlacesThere, aligned_counts
from .utils.math import align


class EPHandle(Dispatched, ep_handle.EPHandle):
    """Of a dispatch; R ranks, L experts of this rank, N received rows (without CPU sync: as many as there is room for).

    do_expand, num_experts, expert_alignment, num_max_tokens_per_rank, num_sms: as they were given. topk_idx [T, K].
    num_recv_tokens, num_expanded_tokens: rows received, and rows of them by expert, gaps included.
    num_recv_tokens_per_expert_list: aligned; empty without CPU sync.

    These are made when they are looked at:
    psum_num_recv_tokens_per_scaleup_rank [R]: rows of ranks 0 .. r. psum_num_recv_tokens_per_expert [L]: where expert
    e's rows end, after do_expand without its gap. num_unaligned_recv_tokens_per_expert [L].
    recv_src_metadata [N, 2 + K] int32: source rank * num_max_tokens_per_rank + token; place among the rows from that
    rank, times K, plus the first k with an expert here; of each k the expanded row, or -1.
    dst_buffer_slot_idx [T, K]: place among the rows that go from here to that rank; -1: no expert, or one before it is
    of the same rank.

    token_metadata_at_forward, channel_linked_list: None: rows are not forwarded here.
    """

    token_metadata_at_forward: Optional[torch.Tensor] = None
    channel_linked_list: Optional[torch.Tensor] = None

    def __init__(
        self,
        owner: xep.Group,
        received: xep.Received,
        topk_idx: torch.Tensor,
        num_experts: int,
        expert_alignment: int,
        num_max_tokens_per_rank: int,
        num_sms: int,
        do_expand: bool,
        worst: int,
        most: int,
    ) -> None:
        tokens, topk = topk_idx.shape
        self.owner, self.experts, self.worst, self.most = owner, num_experts, worst, most
        self.num_tokens, self.topk, self.rows, self.capacity = tokens, topk, received.rows, received.capacity
        self.do_expand, self.num_experts, self.expert_alignment = do_expand, num_experts, expert_alignment
        self.num_max_tokens_per_rank, self.num_sms, self.topk_idx = num_max_tokens_per_rank, num_sms, topk_idx
        self.on = topk_idx.device
        self._counts = [] if most else received.list_expert_rows()
        self._counts_there = received.expert_rows.clone() if most else None
        aligned = self._counts if expert_alignment == 1 else [align(n, expert_alignment) for n in self._counts]
        self.num_recv_tokens = received.capacity
        self.num_recv_tokens_per_expert_list = [] if worst else aligned
        self.num_expanded_tokens = sum(aligned)
        if worst:
            local = num_experts // owner.nranks
            most = worst * min(topk_idx.shape[1], local) + (expert_alignment - 1) * local
            self.num_expanded_tokens = align(most, expert_alignment)

    # ---- what it goes back by ----

    def routing(self) -> torch.Tensor:
        return self.topk_idx

    def keep(self) -> None:
        self._rank_rows, self._sources, self.recv_topk_idx  # noqa: B018  they are made now

    @functools.cached_property
    def _rank_rows(self) -> torch.Tensor:
        """[R]: rows that came from each rank. In host memory, or counted on the device."""
        if self.most:
            self.arrived()
            self.look_again()
        return self.xep.recv.rank_rows[:, self.owner.rank].to(torch.int64)

    @functools.cached_property
    def _sources(self) -> torch.Tensor:
        """[N]: token of each row on its source rank."""
        self.arrived()
        self.look_again()
        return self.xep.recv.src_token[: self.rows].clone()

    @functools.cached_property
    def recv_topk_idx(self) -> torch.Tensor:
        """[N, K]: local expert, or -1. Nobody else's: the program gets copies."""
        self.arrived()
        self.look_again()
        return self.xep.recv.topk_idx[: self.rows].clone()

    @functools.cached_property
    def places(self) -> Union[Places, DevicePlaces, PlacesThere]:
        if self._counts_there is not None:
            counts, alignment = self._counts_there, self.expert_alignment
            return PlacesThere(self.recv_topk_idx, counts, alignment, self.num_expanded_tokens)
        make = Places if self.recv_topk_idx.is_cpu else DevicePlaces
        return make(self.recv_topk_idx, self._counts, self.expert_alignment)

    def tensors(self) -> list[torch.Tensor]:
        """Made on the stream of a call, and looked at on others."""
        places = self.__dict__.get("places")
        made = [*self.__dict__.values(), None if places is None else places.slots]
        return [one for one in made if isinstance(one, torch.Tensor) and one.is_cuda]

    # ---- what programs look at ----

    @functools.cached_property
    def psum_num_recv_tokens_per_scaleup_rank(self) -> torch.Tensor:
        return self._rank_rows.cumsum(0).to(self.on, torch.int32)

    @functools.cached_property
    def num_unaligned_recv_tokens_per_expert(self) -> torch.Tensor:
        if self._counts_there is not None:
            return self._counts_there.to(torch.int32)
        return torch.tensor(self._counts, dtype=torch.int32, device=self.on)

    @functools.cached_property
    def psum_num_recv_tokens_per_expert(self) -> torch.Tensor:
        counts = self.num_unaligned_recv_tokens_per_expert
        aligned = aligned_counts(counts, self.expert_alignment)
        ends = aligned.cumsum(0).to(torch.int32)
        return ends - aligned + counts if self.do_expand else ends

    @functools.cached_property
    def recv_src_metadata(self) -> torch.Tensor:
        meta = torch.full((self.capacity, 2 + self.topk), -1, dtype=torch.int32, device=self.on)
        counts = self._rank_rows.to(self.on)
        rows, ends = torch.arange(self.rows, device=self.on), counts.cumsum(0)
        ranks = torch.bucketize(rows, ends, right=True).clamp_(max=self.owner.nranks - 1)
        places = rows - (ends - counts)[ranks]
        meta[: self.rows, 0] = (ranks * self.num_max_tokens_per_rank + self._sources).to(torch.int32)
        if self.topk:
            first = (self.recv_topk_idx >= 0).to(torch.int8).argmax(dim=1)
            meta[: self.rows, 1] = (places * self.topk + first).to(torch.int32)
        if self.do_expand:
            meta[: self.rows, 2:] = self.places.slots
        if self.most:  # some of the rows have not come
            meta.masked_fill_((rows >= ends[-1]).unsqueeze(1), -1)
        return meta

    @functools.cached_property
    def dst_buffer_slot_idx(self) -> torch.Tensor:
        """-1 for what is masked."""
        found = torch.full(self.topk_idx.shape, -1, dtype=torch.int32, device=self.on)
        owners = torch.where(self.topk_idx >= 0, self.topk_idx // (self.num_experts // self.owner.nranks), -1)
        for rank in range(self.owner.nranks):
            there = owners == rank
            first = there & (there.cumsum(dim=1) == 1)
            tokens, k = first.nonzero(as_tuple=True)
            found[tokens, k] = torch.arange(len(tokens), dtype=torch.int32, device=self.on)
        return found
