# SPDX-License-Identifier: BSD-3-Clause
"""What dispatch returns to come back by: DeepEP's tensors, made when they are looked at."""

from __future__ import annotations

import functools
import itertools
from typing import Any, Callable, Optional

import torch

import xep

from ._check import HOST, WrongType, WrongValue, tensor
from .dispatched import Dispatched, routing_of
from .nodes import Nodes
from .passing import Told
from .tuples import HandleTuple


def channel_begins(tokens: int, channels: int, on: torch.device) -> torch.Tensor:
    """[C + 1]: channel c has tokens begin[c] .. begin[c+1]-1."""
    share = -(-tokens // channels) if tokens else 0
    return torch.clamp(torch.arange(channels + 1, device=on) * share, max=tokens)


def prefix_of(counted: torch.Tensor, begins: torch.Tensor) -> torch.Tensor:
    """counted [T, N] bool -> [N, C] int32: how many of the tokens of channels 0 .. c."""
    total = torch.zeros((counted.shape[0] + 1, counted.shape[1]), dtype=torch.int32, device=counted.device)
    torch.cumsum(counted, dim=0, dtype=torch.int32, out=total[1:])
    return total[begins[1:]].t().contiguous()


def heads_of(counted: torch.Tensor, begins: torch.Tensor) -> torch.Tensor:
    """counted [T, N] bool -> [T, N] int32: position among those of its channel, or -1."""
    before = torch.cumsum(counted, dim=0, dtype=torch.int32) - counted.to(torch.int32)
    channel = torch.bucketize(torch.arange(counted.shape[0], device=counted.device), begins[1:], right=True)
    start = before[begins[:-1].clamp(max=max(counted.shape[0] - 1, 0))] if counted.shape[0] else before
    return torch.where(counted, before - start[channel], -1).to(torch.int32) if counted.shape[0] else before


class NormalHandle(Dispatched):
    """Of a normal dispatch; R ranks, C channels (num_sms / 2), M nodes, P places on the largest of them.

    On one node, 6 tensors: rank_prefix_matrix [R, R], channel_prefix_matrix [R, C], recv_channel_prefix_matrix [R,
    C], recv_src_idx [N], is_token_in_rank [T, R], send_head [T, R].

    On several, 10 tensors: is_token_in_rank [T, R], rdma_channel_prefix_matrix [M, C], gbl_channel_prefix_matrix [R,
    C], recv_rdma_channel_prefix_matrix [M, C], recv_rdma_rank_prefix_sum [M], recv_gbl_channel_prefix_matrix [R, C],
    recv_gbl_rank_prefix_sum [R], recv_src_meta [N, 8] bytes, send_rdma_head [T, M], send_nvl_head [passed tokens, P].

    There are no channels and rings here: channel matrices say how tokens would be split, heads are positions in that
    order. On one node recv_channel_prefix_matrix takes the sender to have as many tokens as this rank.

    recv_rdma_*, recv_src_meta and send_nvl_head mean what they do in DeepEP, whichever path rows take: all ranks have
    told one another which tokens go where (passing.py). What passes a rank are the tokens that a rank of its node gets
    from those with its place on their nodes, modulo the size of its own; and its own tokens for its node. Rows of
    send_nvl_head are in the order source node, source rank, token.
    """

    told: Optional[Told] = None  # on several nodes, of a dispatch
    _kept_rank_rows: Optional[torch.Tensor] = None

    def __init__(
        self,
        owner: xep.Group,
        nodes: Nodes,
        is_token_in_rank: torch.Tensor,
        channels: int,
        experts: int,
        topk: int,
        rows: int,
        capacity: int,
    ) -> None:
        self.owner, self.experts, self.topk, self.rows, self.capacity = owner, experts, topk, rows, capacity
        self.in_rank, self.num_tokens = is_token_in_rank, is_token_in_rank.shape[0]
        self._nodes, self._channels = nodes, channels
        self._made: dict[str, torch.Tensor] = {}

    @property
    def _names(self) -> tuple[str, ...]:
        return INTRANODE if self._nodes.count == 1 else INTERNODE

    @property
    def _rank(self) -> int:
        return self.owner.rank

    def routing(self) -> torch.Tensor:
        return routing_of(self.in_rank, self.experts, self.topk)

    def keep(self) -> None:
        self._rank_rows()
        if "recv_src_idx" in self._names:
            self._get("recv_src_idx")

    def __len__(self) -> int:
        return len(self._names)

    def item(self, index: int) -> torch.Tensor:
        return self._get(self._names[index])

    def _get(self, name: str) -> torch.Tensor:
        made = self._made.get(name)
        if made is None:
            make: Callable[[NormalHandle], torch.Tensor] = _MAKERS[name]
            made = self._made[name] = make(self).to(self.in_rank.device)
        return made

    # ---- of the sender ----

    @functools.cached_property
    def _begins(self) -> torch.Tensor:
        return channel_begins(self.num_tokens, self._channels, self.in_rank.device)

    # ---- of the receiver: counted in host memory, or on the device ----

    def _rank_rows(self) -> torch.Tensor:
        """[R, R]: rows that went from rank i to rank j."""
        if self._kept_rank_rows is None and self.most:
            self.arrived()
            self._kept_rank_rows = self.xep.recv.rank_rows.clone()
            self.look_again()
        elif self._kept_rank_rows is None:
            self._kept_rank_rows = self.xep.recv.rank_rows
        return self._kept_rank_rows

    def _src_idx(self) -> torch.Tensor:
        self.arrived()
        found = self.xep.recv.src_token.clone()
        self.look_again()
        if self.most:
            return found.masked_fill_(torch.arange(self.rows, device=found.device) >= self._from().sum(), -1)
        found[self.rows :] = -1
        return found

    def _from(self) -> torch.Tensor:
        """[R]: rows that came from each rank."""
        return self._rank_rows()[:, self._rank]

    def _received_channels(self) -> torch.Tensor:
        """[R, C]: first row of channel c of source r, counted from the first of r."""
        src, firsts = self._get("recv_src_idx").cpu(), self._begins[:-1].cpu()
        found = torch.empty((self.owner.nranks, self._channels), dtype=torch.int32)
        begin = 0
        for rank, count in enumerate(self._from().tolist()):
            found[rank] = torch.searchsorted(src[begin : begin + count].to(torch.int64), firsts).to(torch.int32)
            begin += count
        return found

    # ---- of the receiver, on several nodes ----

    def _told_of(self, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        """[T of that rank, P] places of this node that its tokens go to; [C + 1] begins of its channels."""
        assert self.told is not None
        return self.told.places(rank), channel_begins(self.told.tokens(rank), self._channels, HOST)

    def _global_channels(self) -> torch.Tensor:
        """[R, C]: first row of channel c of source r."""
        place, begin, found = self._nodes.place_of[self._rank], 0, []
        for rank, count in enumerate(self._from().tolist()):
            places, begins = self._told_of(rank)
            here = places[:, place : place + 1]
            found.append(begin + torch.nn.functional.pad(prefix_of(here, begins)[0, :-1], (1, 0)))
            begin += count
        return torch.stack(found).to(torch.int32)

    def _passed_channels(self) -> torch.Tensor:
        """[M, C]: tokens of channels 0 .. c that passed this rank, of each source node."""
        found = torch.zeros((self._nodes.count, self._channels), dtype=torch.int32)
        for node, feeders in enumerate(self._nodes.feeders(self._rank)):
            for rank in feeders:
                places, begins = self._told_of(rank)
                found[node] += prefix_of(places.any(dim=1, keepdim=True), begins)[0]
        return found

    def _source_meta(self) -> torch.Tensor:
        """int32 source node, int32 bits of the places of this node that got the token; those from 32 on have none."""
        meta = torch.full((self.capacity, 2), -1, dtype=torch.int32)
        place, begin = self._nodes.place_of[self._rank], 0
        for rank, count in enumerate(self._from().tolist()):
            places, _ = self._told_of(rank)
            bits = places[places[:, place], :32].to(torch.int64) << torch.arange(min(places.shape[1], 32))
            meta[begin : begin + count, 0] = self._nodes.node_of[rank]
            meta[begin : begin + count, 1] = bits.sum(dim=1).to(torch.int32)
            begin += count
        return meta.view(torch.uint8)

    def _forward_heads(self) -> torch.Tensor:
        """[tokens that passed this rank, P]: position among those of the same channel for the same place, or -1."""
        passed, channels = [], []
        for rank in itertools.chain(*self._nodes.feeders(self._rank)):
            places, begins = self._told_of(rank)
            of_node = places.any(dim=1).nonzero().flatten()
            passed.append(torch.nn.functional.pad(places[of_node], (0, self._nodes.width - places.shape[1])))
            channels.append(torch.bucketize(of_node, begins[1:], right=True))
        places, channel = torch.cat(passed), torch.cat(channels)
        heads = torch.full(places.shape, -1, dtype=torch.int32)
        for c in range(self._channels):
            here = places[channel == c]
            heads[channel == c] = torch.where(here, torch.cumsum(here, dim=0, dtype=torch.int32) - 1, -1)
        return heads


def _prefix_sum(counts: torch.Tensor) -> torch.Tensor:
    return torch.cumsum(counts, 0).to(torch.int32)


INTRANODE = (
    "rank_prefix_matrix", "channel_prefix_matrix", "recv_channel_prefix_matrix", "recv_src_idx", "is_token_in_rank",
    "send_head",
)  # fmt: skip
INTERNODE = (
    "is_token_in_rank", "rdma_channel_prefix_matrix", "channel_prefix_matrix", "recv_rdma_channel_prefix_matrix",
    "recv_rdma_rank_prefix_sum", "recv_gbl_channel_prefix_matrix", "recv_gbl_rank_prefix_sum", "recv_src_meta",
    "send_rdma_head", "send_nvl_head",
)  # fmt: skip

_MAKERS: dict[str, Callable[[NormalHandle], torch.Tensor]] = {
    "rank_prefix_matrix": lambda h: _prefix_sum(h._rank_rows()),
    "channel_prefix_matrix": lambda h: prefix_of(h.in_rank, h._begins),
    "recv_channel_prefix_matrix": lambda h: h._received_channels(),
    "recv_src_idx": lambda h: h._src_idx(),
    "is_token_in_rank": lambda h: h.in_rank,
    "send_head": lambda h: heads_of(h.in_rank, h._begins),
    "rdma_channel_prefix_matrix": lambda h: prefix_of(h._nodes.reached(h.in_rank), h._begins),
    "recv_rdma_channel_prefix_matrix": lambda h: h._passed_channels(),
    "recv_rdma_rank_prefix_sum": lambda h: _prefix_sum(h._get("recv_rdma_channel_prefix_matrix")[:, -1]),
    "recv_gbl_channel_prefix_matrix": lambda h: h._global_channels(),
    "recv_gbl_rank_prefix_sum": lambda h: _prefix_sum(h._from()),
    "recv_src_meta": lambda h: h._source_meta(),
    "send_rdma_head": lambda h: heads_of(h._nodes.reached(h.in_rank), h._begins),
    "send_nvl_head": lambda h: h._forward_heads(),
}


def adopt(handle: Any, owner: xep.Group, nodes: Nodes, experts: int, topk: int, on: torch.device) -> NormalHandle:
    """A handle without a slot, of a plain tuple of the tensors of one. experts, topk: to route by."""
    if not isinstance(handle, tuple) or isinstance(handle, HandleTuple):
        got = type(getattr(handle, "core", handle)).__name__
        raise WrongType(f"handle: expected what dispatch returned, got {got}")
    names = INTRANODE if nodes.count == 1 else INTERNODE
    if len(handle) != len(names):
        raise WrongValue(f"handle: expected the {len(names)} tensors that dispatch returned, got {len(handle)} items")
    items = dict(zip(names, handle))
    in_rank = tensor("handle: is_token_in_rank", items["is_token_in_rank"], (torch.bool,), (None, owner.nranks), on=on)
    rows, capacity = _rows_of(items, owner, on)
    worst = capacity if capacity > rows else 0
    made = NormalHandle(owner, nodes, in_rank, 1, experts, topk, rows, capacity)
    made.worst = worst
    return made


def _rows_of(items: dict[str, Any], owner: xep.Group, on: torch.device) -> tuple[int, int]:
    """Rows received, and rows of the received tensors, as a plain tuple tells them."""
    if "rank_prefix_matrix" in items:
        shape = (owner.nranks, owner.nranks)
        found = tensor("handle: rank_prefix_matrix", items["rank_prefix_matrix"], (torch.int32,), shape, on=on)
        until = found[:, owner.rank]
        room = tensor("handle: recv_src_idx", items["recv_src_idx"], (torch.int32,), (None,), on=on)
    else:
        name = "recv_gbl_rank_prefix_sum"
        until = tensor(f"handle: {name}", items[name], (torch.int32,), (owner.nranks,), on=on)
        room = tensor("handle: recv_src_meta", items["recv_src_meta"], (torch.uint8,), (None, 8), on=on)
    return int(until[-1]), room.shape[0]
