# SPDX-License-Identifier: BSD-3-Clause
"""What dispatch returns to come back by: a sequence of DeepEP's tensors, made when they are looked at.

combine and a cached dispatch use the xep.Handle inside, while it has a slot; the tensors are for programs that read
them.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any, Callable, Optional

import torch

import xep

from .config import NODE_RANKS
from .seats import Seat, Sent


def channel_begins(tokens: int, channels: int) -> torch.Tensor:
    """[C + 1]: channel c has tokens begin[c] .. begin[c+1]-1."""
    share = -(-tokens // channels) if tokens else 0
    return torch.clamp(torch.arange(channels + 1) * share, max=tokens)


def prefix_of(counted: torch.Tensor, begins: torch.Tensor) -> torch.Tensor:
    """counted [T, N] bool -> [N, C] int32: how many of the tokens of channels 0 .. c."""
    total = torch.zeros((counted.shape[0] + 1, counted.shape[1]), dtype=torch.int32)
    torch.cumsum(counted, dim=0, dtype=torch.int32, out=total[1:])
    return total[begins[1:]].t().contiguous()


def heads_of(counted: torch.Tensor, begins: torch.Tensor) -> torch.Tensor:
    """counted [T, N] bool -> [T, N] int32: position among those of its channel, or -1."""
    before = torch.cumsum(counted, dim=0, dtype=torch.int32) - counted.to(torch.int32)
    channel = torch.bucketize(torch.arange(counted.shape[0]), begins[1:], right=True)
    start = before[begins[:-1].clamp(max=max(counted.shape[0] - 1, 0))] if counted.shape[0] else before
    return torch.where(counted, before - start[channel], -1).to(torch.int32) if counted.shape[0] else before


def routing_of(in_rank: torch.Tensor, experts: int, topk: int) -> torch.Tensor:
    """[T, K] int64: of each rank that in_rank [T, R] names the first expert. No token goes to more than K ranks."""
    nranks = in_rank.shape[1]
    firsts = torch.where(in_rank, torch.arange(0, experts, experts // nranks), -1)
    if topk == nranks:
        return firsts
    first_k = firsts.sort(dim=1, descending=True).values[:, :topk]
    return torch.nn.functional.pad(first_k, (0, topk - first_k.shape[1]), value=-1).contiguous()


class NormalHandle(Sequence):
    """Of a normal dispatch; R ranks, C channels (num_sms / 2), M nodes of 8 ranks.

    Up to 8 ranks, 6 tensors: rank_prefix_matrix [R, R], channel_prefix_matrix [R, C], recv_channel_prefix_matrix [R,
    C], recv_src_idx [N], is_token_in_rank [T, R], send_head [T, R].

    More ranks, 10 tensors: is_token_in_rank [T, R], rdma_channel_prefix_matrix [M, C], gbl_channel_prefix_matrix [R,
    C], recv_rdma_channel_prefix_matrix [M, C], recv_rdma_rank_prefix_sum [M], recv_gbl_channel_prefix_matrix [R, C],
    recv_gbl_rank_prefix_sum [R], recv_src_meta [N, 8] bytes, send_rdma_head [T, M], send_nvl_head [rows over rails, 8].

    There are no channels, rings and forwarders here: the channel matrices say how the tokens would be split; those of a
    receiver take the sender to have as many tokens as this rank; those of a forwarder count what it keeps for itself.
    """

    def __init__(
        self,
        owner: Any,
        sent: Sent,
        received: xep.Received,
        seat: Seat,
        experts: int,
        worst: int,
        is_token_in_rank: torch.Tensor,
        channels: int,
    ) -> None:
        made = sent.handle
        self.owner = owner  # the group of the Buffer
        self.experts, self.worst = experts, worst
        self.in_rank = is_token_in_rank
        self.num_tokens, self.topk, self.nranks = made.tokens, made.topk, made.nranks
        self.rows, self.capacity = received.rows, received.capacity
        self._channels, self._rank = channels, owner.rank
        self._made: dict[str, torch.Tensor] = {}
        self._kept_rank_rows: Optional[torch.Tensor] = None
        self._names = INTRANODE if made.nranks <= NODE_RANKS else INTERNODE
        self.sit(sent, seat)

    # ---- its slot ----

    def sit(self, sent: Sent, seat: Seat) -> None:
        self.xep: Any = sent.handle  # None without a slot
        self._arrives = sent.request
        self.is_gone = False
        self.seat: Optional[Seat] = seat
        seat.hold(self)

    def park(self) -> None:
        """Gives the slot back; keeps what the tensors are made of."""
        with contextlib.suppress(xep.XepError):  # a dispatch that failed has no rows: arrived() says so
            self._rank_rows()
            self._get("recv_src_idx")
        self.xep = self.seat = None

    def drop(self) -> None:
        """Its rows are gone, and what is not known of it by now will never be."""
        self.xep = self.seat = self._arrives = None
        self.is_gone = True

    def arrived(self) -> None:
        """Waits until the rows are here; raises the dispatch's error."""
        if self._arrives is not None:
            self._arrives.wait()

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self._get(name) for name in self._names[index])
        return self._get(self._names[index])

    def _get(self, name: str) -> torch.Tensor:
        made = self._made.get(name)
        if made is None:
            make: Callable[[NormalHandle], torch.Tensor] = _MAKERS[name]
            made = self._made[name] = make(self)
        return made

    # ---- of the sender ----

    @functools.cached_property
    def _begins(self) -> torch.Tensor:
        return channel_begins(self.num_tokens, self._channels)

    def _in_node(self) -> torch.Tensor:
        """[T, M] bool."""
        tokens, nranks = self.in_rank.shape
        nodes = -(-nranks // NODE_RANKS)
        padded = torch.nn.functional.pad(self.in_rank, (0, nodes * NODE_RANKS - nranks))
        return padded.view(tokens, nodes, NODE_RANKS).any(dim=2)

    # ---- of the receiver ----

    def _rank_rows(self) -> torch.Tensor:
        """[R, R]: rows that went from rank i to rank j."""
        if self._kept_rank_rows is None:
            self._kept_rank_rows = self.xep.recv.rank_rows
        return self._kept_rank_rows

    def _src_idx(self) -> torch.Tensor:
        self.arrived()
        found = self.xep.recv.src_token.clone()
        found[self.rows :] = -1
        return found

    def _from(self) -> torch.Tensor:
        """[R]: rows that came from each rank."""
        return self._rank_rows()[:, self._rank]

    def _received_channels(self) -> torch.Tensor:
        """[R, C]: first row of channel c of source r, counted from the first of r."""
        src = self._get("recv_src_idx")
        found = torch.empty((self.nranks, self._channels), dtype=torch.int32)
        begin = 0
        for rank, count in enumerate(self._from().tolist()):
            found[rank] = torch.searchsorted(src[begin : begin + count].to(torch.int64), self._begins[:-1]).to(
                torch.int32
            )
            begin += count
        return found

    def _rail(self) -> torch.Tensor:
        """Ranks of this rank's place in other nodes, and itself."""
        return torch.arange(self._rank % NODE_RANKS, self.nranks, NODE_RANKS)

    def _rail_channels(self) -> torch.Tensor:
        first = self._received_channels()[self._rail()]
        ends = torch.cat([first[:, 1:], self._from()[self._rail()].unsqueeze(1).to(torch.int32)], dim=1)
        return ends.contiguous()

    def _global_channels(self) -> torch.Tensor:
        begins = torch.cumsum(self._from(), 0) - self._from()
        return (self._received_channels() + begins.unsqueeze(1)).to(torch.int32)

    def _source_meta(self) -> torch.Tensor:
        """int32 source node, int32 bits of the ranks of this node that got the token: here only this rank's is
        known."""
        sources = torch.repeat_interleave(torch.arange(self.nranks), self._from().to(torch.int64))
        bit = 1 << (self._rank % NODE_RANKS)
        meta = torch.stack([sources // NODE_RANKS, torch.full_like(sources, bit)], dim=1).to(torch.int32)
        return meta.view(torch.uint8)

    def _forward_head(self) -> torch.Tensor:
        count = int(self._from()[self._rail()].sum())
        heads = torch.full((count, NODE_RANKS), -1, dtype=torch.int32)
        heads[:, self._rank % NODE_RANKS] = torch.arange(count, dtype=torch.int32)
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
    "rdma_channel_prefix_matrix": lambda h: prefix_of(h._in_node(), h._begins),
    "recv_rdma_channel_prefix_matrix": lambda h: h._rail_channels(),
    "recv_rdma_rank_prefix_sum": lambda h: _prefix_sum(h._from()[h._rail()]),
    "recv_gbl_channel_prefix_matrix": lambda h: h._global_channels(),
    "recv_gbl_rank_prefix_sum": lambda h: _prefix_sum(h._from()),
    "recv_src_meta": lambda h: h._source_meta(),
    "send_rdma_head": lambda h: heads_of(h._in_node(), h._begins),
    "send_nvl_head": lambda h: h._forward_head(),
}


def normal_handle(handle: Any) -> Optional[NormalHandle]:
    """handle, if dispatch made it."""
    if handle is not None and not isinstance(handle, NormalHandle):
        raise TypeError(f"handle: expected what dispatch returned, got {type(handle).__name__}")
    return handle
