# SPDX-License-Identifier: BSD-3-Clause
"""What dispatch returns to come back by; who gets what; and rows by expert: a received row is copied to a place for
each of its experts here, and their results are summed to one row again before they go back. So the wire carries a row
once for each rank.

Slots are few. A handle that has given its own back (xep.Handle.park()) still knows its routing, and gets one again when
it is used: by a dispatch, which is collective.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, Optional

import torch

import xep
from xep import _ext

from .arguments import BOOL, HOST, INT32, SENT_AS, UINT8, WrongType, WrongUse, WrongValue, calls_of, check, version_of
from .streams import Slot, is_capturing
from .utils.comm import Nodes
from .utils.math import align


def layout_of(topk_idx: torch.Tensor, experts: int, nranks: int, ranks_per_node: int = 0) -> xep.Layout:
    """xep.layout(), where topk_idx is. That of a device is copied to the host, which waits for it and counts; an index
    that is neither an expert nor -1 counts for nobody, as with the kernel of a buffer: the dispatch refuses it."""
    if topk_idx.is_cpu:
        return xep.layout(topk_idx, experts, nranks, ranks_per_node)
    known = torch.where((topk_idx >= 0) & (topk_idx < experts), topk_idx, -1)
    found = xep.layout(known.cpu(), experts, nranks, ranks_per_node)
    return xep.Layout(*(None if one is None else one.to(topk_idx.device) for one in found))


def spread_there(to: torch.Tensor, source: torch.Tensor, slots: torch.Tensor, zero: bool, each: bool) -> None:
    """As _ext.expert_spread(), on a CUDA device, where a row of no selection is a copy of row 0 unless zero."""
    behind = torch.where(slots < 0, len(to), slots).reshape(-1).to(torch.int64)  # what is none is behind the last
    sources = torch.arange(len(behind), device=slots.device) // (1 if each else max(1, slots.shape[1]))
    rows = torch.full((len(to) + 1,), -1, dtype=torch.int64, device=slots.device).scatter_(0, behind, sources)[:-1]
    if source.numel():
        to.copy_((source.reshape(-1, 1) if each else source).index_select(0, rows.clamp(min=0)))
    if zero:
        to.masked_fill_((rows < 0).unsqueeze(1), 0)


ALL = slice(None)  # selections

# A dispatch whose rows are counted; they are here when the request, where there is one, is done. The slot: of a CUDA
# device.
Sent = tuple[xep.Handle, Optional[xep.Request], Optional[Slot]]


class Dispatched:
    """owner: the group of the Buffer. xep: its handle, which may be parked; None: of what a program has put together.
    rows: those received; capacity: those of the received arrays. worst: rows asked for, or 0. most: as of a Job; where
    it is not 0 the counts are on the device, and rows is the capacity."""

    experts = worst = most = 0
    xep: Any = None
    _slot: Optional[Slot] = None  # of a CUDA device
    _arrives: Any = None  # a request, or an event of a stream, which lets the current one wait

    owner: xep.Group
    on: torch.device
    num_tokens: int
    topk: int
    rows: int
    capacity: int
    routing: Callable[[], torch.Tensor]  # [T, topk] by which the same rows go to the same ranks once more

    def arrives(self, event: Any) -> None:
        """On a stream: what its rows are here with. In a CUDA graph the order of its nodes says so."""
        if not is_capturing():
            self._arrives = event

    def arrived(self) -> None:
        """Waits until the rows are here, or lets the current stream wait for them; raises the dispatch's error."""
        if self._arrives is not None:
            self._arrives.wait()

    def look_again(self) -> None:
        """The current stream reads the slot."""
        if self._slot is not None:
            self._slot.look_again()

    def known(self) -> Any:
        """What the library has counted: arrays as of xep.Received, views of the slot while there is one."""
        self.look_again()
        return self.xep.parked or self.xep.recv

    @functools.cached_property
    def rank_rows(self) -> torch.Tensor:
        """[R, R]: rows that went from rank i to rank j. In host memory, or counted on the device."""
        if self.most:
            self.arrived()
        return self.known().rank_rows.clone()

    def came_from(self) -> torch.Tensor:
        """[R]: rows that came from each rank."""
        return self.rank_rows[:, self.owner.rank]


def routing_of(in_rank: torch.Tensor, experts: int, topk: int) -> torch.Tensor:
    """[T, K] int64: of each rank that in_rank [T, R] names the first expert. No token goes to more than K ranks."""
    nranks = in_rank.shape[1]
    firsts = torch.where(in_rank, torch.arange(0, experts, experts // nranks, device=in_rank.device), -1)
    if topk == nranks:
        return firsts
    first_k = firsts.sort(dim=1, descending=True).values[:, :topk]
    return torch.nn.functional.pad(first_k, (0, topk - first_k.shape[1]), value=-1).contiguous()


class HandleTuple(tuple):
    """core: what combine and a cached dispatch work with; its ``items`` are made when one is looked at. The tuple
    itself is empty: torch.compile guards the items that are there, and these it passes on unseen.

    What is made of this tuple (by +, a slice, pickle, deepcopy) is a plain one: its items are all that is known of it.
    In a tree of arguments it is one leaf, which stays whole.
    """

    core: Any

    @staticmethod
    def over(core: Any) -> "HandleTuple":
        made: HandleTuple = tuple.__new__(HandleTuple)
        made.core = core
        return made

    def __new__(cls, items: Any = ()) -> Any:
        """As of a tuple."""
        return tuple(items)

    def __bool__(self) -> bool:
        return True

    def __radd__(self, other: Any) -> tuple:
        return other + self.core.items if isinstance(other, tuple) else NotImplemented

    def __reduce__(self) -> Any:
        return tuple, (self.core.items,)

    def __copy__(self) -> "HandleTuple":
        return self


def _of_items(name: str) -> Callable[..., Any]:
    def call(self: HandleTuple, *given: Any) -> Any:
        plain = (one.core.items if isinstance(one, HandleTuple) else one for one in given)
        return getattr(self.core.items, name)(*plain)

    call.__name__ = name
    return call


for _name in (
    "__len__", "__iter__", "__getitem__", "__add__", "__mul__", "__rmul__", "__eq__", "__ne__", "__hash__",
    "__contains__", "__repr__", "index", "count",
):  # fmt: skip
    setattr(HandleTuple, _name, _of_items(_name))


calls_of(HandleTuple)


class NormalHandle(Dispatched):
    """Of a normal dispatch; R ranks, M nodes, P places on the largest of them.

    On one node, 6 tensors: rank_prefix_matrix [R, R], channel_prefix_matrix [R, 1], recv_channel_prefix_matrix [R,
    1], recv_src_idx [N], is_token_in_rank [T, R], send_head [T, R].

    On several, 10 tensors: is_token_in_rank [T, R], rdma_channel_prefix_matrix [M, 1], gbl_channel_prefix_matrix [R,
    1], recv_rdma_channel_prefix_matrix [M, 1], recv_rdma_rank_prefix_sum [M], recv_gbl_channel_prefix_matrix [R, 1],
    recv_gbl_rank_prefix_sum [R], recv_src_meta [N, 8] bytes, send_rdma_head [T, M], send_nvl_head [passed tokens, P].

    There are no channels, rings and forwarders here: all is as with one channel (num_sms 2), heads are positions among
    its tokens. As rows are received by the rank that they are for, what passes a rank (recv_rdma_*, recv_src_meta,
    send_nvl_head) are the rows that it receives.
    """

    def __init__(self, owner: xep.Group, nodes: Nodes, in_rank: torch.Tensor, on: torch.device, *numbers: int) -> None:
        """in_rank: is_token_in_rank. numbers: of tokens, experts, selections, rows, rows of the received arrays."""
        self.owner, self._nodes, self.in_rank, self.on = owner, nodes, in_rank, on
        self.num_tokens, self.experts, self.topk, self.rows, self.capacity = numbers

    def routing(self) -> torch.Tensor:
        return routing_of(self.in_rank, self.experts, self.topk)

    @functools.cached_property
    def items(self) -> tuple[torch.Tensor, ...]:
        return tuple(make(self).to(self.in_rank.device) for make in _items_of(self._nodes).values())

    def _src_idx(self) -> torch.Tensor:
        self.arrived()
        found, rows = self.known().src_token.clone(), self.came_from().sum() if self.most else self.rows
        return found.masked_fill_(torch.arange(len(found), device=found.device) >= rows, -1)

    def _of_nodes(self) -> torch.Tensor:
        """[M]: rows that came from each node."""
        return torch.stack([self.came_from()[members].sum(dim=0) for members in self._nodes.members])

    def _source_meta(self) -> torch.Tensor:
        """int32 source node, int32 the bit of this rank's place; those from 31 on have none."""
        meta = torch.full((self.capacity, 2), -1, dtype=torch.int32, device=HOST)
        counts, place = self.came_from().cpu(), self._nodes.place_of[self.owner.rank]
        nodes = torch.tensor(self._nodes.node_of, dtype=torch.int32, device=HOST).repeat_interleave(counts)
        meta[: len(nodes), 0] = nodes
        meta[: len(nodes), 1] = 1 << place if place < 31 else 0
        return meta.view(torch.uint8)

    def _forward_heads(self) -> torch.Tensor:
        """[rows received, P]: position among those of the same rank; -1 of other places."""
        counts = self.came_from().cpu()
        heads = torch.full((int(counts.sum()), self._nodes.width), -1, dtype=torch.int32, device=HOST)
        positions = [torch.arange(count, dtype=torch.int32, device=HOST) for count in counts.tolist()]
        heads[:, self._nodes.place_of[self.owner.rank]] = torch.cat(positions)
        return heads


def _heads(counted: torch.Tensor) -> torch.Tensor:
    """counted [T, N] bool -> [T, N] int32: position among those before it, or -1."""
    return torch.where(counted, torch.cumsum(counted, dim=0) - 1, -1).to(torch.int32)


def _column(counts: torch.Tensor) -> torch.Tensor:
    """[N] -> [N, 1] int32: of the one channel."""
    return counts.to(torch.int32).unsqueeze(1)


def _prefix_sum(counts: torch.Tensor) -> torch.Tensor:
    return torch.cumsum(counts, 0).to(torch.int32)


_Items = dict[str, Callable[[NormalHandle], torch.Tensor]]  # in the order of the tuple

_INTRANODE: _Items = {
    "rank_prefix_matrix": lambda h: _prefix_sum(h.rank_rows),
    "channel_prefix_matrix": lambda h: _column(h.in_rank.sum(dim=0)),
    "recv_channel_prefix_matrix": lambda h: _column(h.in_rank.new_zeros(h.owner.nranks)),
    "recv_src_idx": NormalHandle._src_idx,
    "is_token_in_rank": lambda h: h.in_rank,
    "send_head": lambda h: _heads(h.in_rank),
}
_INTERNODE: _Items = {
    "is_token_in_rank": lambda h: h.in_rank,
    "rdma_channel_prefix_matrix": lambda h: _column(h._nodes.reached(h.in_rank).sum(dim=0)),
    "gbl_channel_prefix_matrix": lambda h: _column(h.in_rank.sum(dim=0)),
    "recv_rdma_channel_prefix_matrix": lambda h: _column(h._of_nodes()),
    "recv_rdma_rank_prefix_sum": lambda h: _prefix_sum(h._of_nodes()),
    "recv_gbl_channel_prefix_matrix": lambda h: _column(h.came_from().cumsum(0) - h.came_from()),
    "recv_gbl_rank_prefix_sum": lambda h: _prefix_sum(h.came_from()),
    "recv_src_meta": NormalHandle._source_meta,
    "send_rdma_head": lambda h: _heads(h._nodes.reached(h.in_rank)),
    "send_nvl_head": NormalHandle._forward_heads,
}


def _items_of(nodes: Nodes) -> _Items:
    return _INTRANODE if nodes.count == 1 else _INTERNODE


def adopt(handle: Any, owner: xep.Group, nodes: Nodes, experts: int, topk: int, where: int) -> NormalHandle:
    """A handle without a slot, of a plain tuple of the tensors of one. experts, topk: to route by."""
    if not isinstance(handle, tuple) or isinstance(handle, HandleTuple):
        got = type(getattr(handle, "core", handle)).__name__
        raise WrongType(f"handle: expected what dispatch returned, got {got}")
    names, nranks = list(_items_of(nodes)), owner.nranks
    if len(handle) != len(names):
        raise WrongValue(f"handle: expected the {len(names)} tensors that dispatch returned, got {len(handle)} items")

    def item(name: str, dtypes: int, *extents: int) -> torch.Tensor:
        found = handle[names.index(name)]
        check(f"handle: {name}", found, where, dtypes, *extents)
        return found

    in_rank = item("is_token_in_rank", BOOL, -1, nranks)
    if nodes.count == 1:
        until = item("rank_prefix_matrix", INT32, nranks, nranks)[:, owner.rank]
        received = item("recv_src_idx", INT32, -1)
    else:
        until, received = item("recv_gbl_rank_prefix_sum", INT32, nranks), item("recv_src_meta", UINT8, -1, 8)
    rows, capacity = int(until[-1]), len(received)
    made = NormalHandle(owner, nodes, in_rank, in_rank.device, in_rank.shape[0], experts, topk, rows, capacity)
    made.worst = capacity if capacity > rows else 0
    return made


class EPHandle:
    """Of a dispatch; T tokens of this rank, N received rows, L experts of this rank, R ranks.

    do_expand, num_experts, expert_alignment, num_max_tokens_per_rank: as they were given. num_sms: those used.
    topk_idx [T, K]: what was dispatched; AssertionError where it is the program's tensor, and was written since.
    num_recv_tokens, num_expanded_tokens: rows received, and rows by expert, gaps included; without CPU sync as many as
    there is room for. num_recv_tokens_per_expert_list: aligned; empty without CPU sync.

    These are made when they are looked at:
    psum_num_recv_tokens_per_scaleup_rank [R]: rows of ranks 0 .. r; of several logical domains [ranks of one]: rows of
    these places in all of them. psum_num_recv_tokens_per_expert [L]: where expert e's rows end, after do_expand without
    its gap. num_unaligned_recv_tokens_per_expert [L].
    recv_src_metadata [N, 2 + K] int32: source rank * num_max_tokens_per_rank + token; place among the rows from that
    rank, times K, plus the first k with an expert here; of each k the expanded row, or -1.
    dst_buffer_slot_idx, token_metadata_at_forward, channel_linked_list, cached_recv_src_metadata_before_sort: None, as
    what DeepEP has there is for its kernels alone.

    A program may construct one, of the attributes of another: with topk_idx and what stands before it, its routing is
    known, and the first use costs a dispatch of nearly empty rows. All ranks do so alike.
    """

    _made: Any = None  # Routed, by a dispatch
    _topk_idx: torch.Tensor
    _version: int
    cached_recv_src_metadata_before_sort = dst_buffer_slot_idx = None
    token_metadata_at_forward = channel_linked_list = None

    def __init__(
        self, do_expand: bool, num_experts: int, expert_alignment: int, num_max_tokens_per_rank: int, num_sms: int,
        topk_idx: torch.Tensor, num_recv_tokens: Any, num_expanded_tokens: Any, num_recv_tokens_per_expert_list: Any,
        psum_num_recv_tokens_per_scaleup_rank: Any, psum_num_recv_tokens_per_expert: Any,
        num_unaligned_recv_tokens_per_expert: Any, recv_src_metadata: Any, dst_buffer_slot_idx: Any,
        token_metadata_at_forward: Any = None, channel_linked_list: Any = None,
    ) -> None:  # fmt: skip
        items = {name: value for name, value in locals().items() if name not in ("self", "topk_idx")}
        self.__dict__.update(items, _topk_idx=topk_idx, _version=version_of(topk_idx))

    @classmethod
    def _of(cls, made: Routed) -> EPHandle:
        handle = cls.__new__(cls)
        handle._made, handle._topk_idx, handle._version = made, made.topk_idx, made.version
        return handle

    @property
    def topk_idx(self) -> torch.Tensor:
        if version_of(self._topk_idx) != self._version:
            raise WrongUse("topk_idx: it was written after the dispatch (the handle has the tensor itself, no copy)")
        return self._topk_idx

    def __getattr__(self, name: str) -> Any:
        if name not in _SHOWN or self._made is None:
            raise AttributeError(f"EPHandle: there is no {name}")
        return getattr(self._made, name)

    def __dir__(self) -> list[str]:
        return sorted(_SHOWN)


_SHOWN = frozenset((*inspect.signature(EPHandle).parameters, "cached_recv_src_metadata_before_sort"))


class Routed(Dispatched):
    """Of ElasticBuffer's: what its EPHandle shows, and rows by expert."""

    _by_kernel = False  # slots

    def __init__(
        self, owner: xep.Group, sent: Sent, topk_idx: torch.Tensor, num_experts: int, expert_alignment: int,
        worst: int, most: int, shown: tuple[int, int, bool, int],
    ) -> None:  # fmt: skip
        """shown: num_max_tokens_per_rank, num_sms, do_expand, and ranks of one of several logical domains, or 0."""
        self.xep, self._arrives, self._slot = sent
        received = sent[0].recv
        self.owner, self.experts, self.expert_alignment = owner, num_experts, expert_alignment
        self.num_tokens, self.topk = topk_idx.shape
        self.rows, self.capacity = received.rows, received.capacity
        self.num_max_tokens_per_rank, self.num_sms, self.do_expand, self._scaleup_ranks = shown
        self.topk_idx, self.on = topk_idx, topk_idx.device
        self.version = -1 if topk_idx.is_inference() else topk_idx._version
        self._counts = [] if most else received.list_expert_rows()
        self._counts_there = received.expert_rows.clone() if most else None
        aligned = self._counts if expert_alignment == 1 else [align(n, expert_alignment) for n in self._counts]
        self.num_recv_tokens_per_expert_list, self.num_expanded_tokens = aligned, sum(aligned)
        if worst:
            local = num_experts // owner.nranks
            room = worst * min(self.topk, local) + (expert_alignment - 1) * local
            self.num_recv_tokens_per_expert_list, self.num_expanded_tokens = [], align(room, expert_alignment)
            self.worst, self.most = worst, most

    # ---- what it goes back by ----

    def routing(self) -> torch.Tensor:
        return self.topk_idx

    @functools.cached_property
    def _sources(self) -> torch.Tensor:
        """[N]: token of each row on its source rank."""
        self.arrived()
        return self.known().src_token[: self.rows].clone()

    @functools.cached_property
    def recv_topk_idx(self) -> torch.Tensor:
        """[N, K]: local expert, or -1. Nobody else's: the program gets copies."""
        self.arrived()
        return self.known().topk_idx[: self.rows].clone()

    def expand(self, sent: xep.Handle, arrays: dict[str, torch.Tensor], zero: bool) -> bool:
        """Fills arrays, named as those of xep.Handle.expand(), by its kernels, of a dispatch with this routing; False:
        the library has none for these rows, which are on the host or were staged there."""
        local = self.experts // self.owner.nranks
        if self.on.type != "cuda" or self.num_expanded_tokens == 0 or self.capacity == 0:
            return False
        self.arrived()
        self.look_again()
        slots = torch.empty((self.capacity, self.topk), dtype=torch.int32, device=self.on)
        begin, count = torch.empty((2, local), dtype=torch.int64, device=self.on)
        try:
            sent.expand(slots, begin, count, expert_alignment=self.expert_alignment, zero=zero, **arrays)
        except xep.UnsupportedError:
            return False
        self.__dict__["slots"], self._by_kernel = slots, True
        return True

    @functools.cached_property
    def slots(self) -> torch.Tensor:
        """[N, K] of each received row and k the row by expert, or -1: by expert, then received row, ascending; each
        expert begins at a multiple of the alignment. On a device int32, and of all rows that there is room for where
        the library has found them."""
        counts = self._counts or self.num_unaligned_recv_tokens_per_expert.tolist()
        slots, _, _ = _ext.expert_expand(self.recv_topk_idx.cpu(), counts, self.expert_alignment, None, None, False)
        return slots if self.on == HOST else slots.to(self.on, torch.int32)

    def spread(self, to: torch.Tensor, source: torch.Tensor, zero: bool = False, each: bool = False) -> None:
        """source [N, ..] of each received row; each: [N, K] of each selection, one of each row by expert in to. zero:
        the rows that alignment leaves unused become 0."""
        bits = SENT_AS[source.element_size()]
        to, source = (to.unsqueeze(1) if each else to).view(bits), source.view(bits)
        if self.on == HOST:
            _ext.expert_spread(to, source, self.slots, self._counts, self.expert_alignment if zero else 0, each)
        else:
            spread_there(to, source, self.slots[: self.rows], zero, each)

    def fold(self, x: torch.Tensor, columns: slice) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
        """[N, H]: of each received row the sum of its rows by expert, of these columns of slots, in fp32, k ascending,
        rounded to their type; and None. Or, where a combine sums them itself, x and its slots: by the library's
        kernels, and so while the handle has its slot. Sums of rows that were staged are made on the host."""
        if self.on == HOST:
            return _ext.expert_sum(x, self.slots if columns is ALL else self.slots[:, columns]), None
        if not self._by_kernel or x.shape[0] == 0:
            sums = _ext.expert_sum(x.cpu(), self.slots[: self.rows, columns].to(HOST, torch.int64))
            return sums.to(x.device), None
        if columns is ALL:
            return x, self.slots
        some = torch.full_like(self.slots, -1)
        some[:, columns] = self.slots[:, columns]
        return x, some

    def fold_selections(self, x: torch.Tensor) -> torch.Tensor:
        """[N, K] of one of each row by expert; 0 where the expert is another rank's."""
        if self.on != HOST:
            return torch.nn.functional.pad(x, (0, 1))[self.slots[: self.rows]]  # of -1 the last one
        found = torch.empty(self.slots.shape, dtype=torch.float32, device=HOST)
        _ext.expert_gather(found, x.unsqueeze(1), self.slots)
        return found

    def tensors(self) -> list[torch.Tensor]:
        """Made on the stream of a call, and looked at on others."""
        return [one for one in self.__dict__.values() if isinstance(one, torch.Tensor) and one.is_cuda]

    # ---- what programs look at ----

    num_experts = property(lambda self: self.experts)
    num_recv_tokens = property(lambda self: self.capacity)

    @functools.cached_property
    def psum_num_recv_tokens_per_scaleup_rank(self) -> torch.Tensor:
        rows = self.came_from()
        if self._scaleup_ranks > 0:
            rows = rows.view(-1, self._scaleup_ranks).sum(dim=0)
        return rows.cumsum(0).to(self.on, torch.int32)

    @functools.cached_property
    def num_unaligned_recv_tokens_per_expert(self) -> torch.Tensor:
        if self._counts_there is not None:
            return self._counts_there.to(torch.int32)
        return torch.tensor(self._counts, dtype=torch.int32, device=self.on)

    @functools.cached_property
    def psum_num_recv_tokens_per_expert(self) -> torch.Tensor:
        counts = self.num_unaligned_recv_tokens_per_expert
        aligned = (counts + (self.expert_alignment - 1)) // self.expert_alignment * self.expert_alignment
        ends = aligned.cumsum(0).to(torch.int32)
        return ends - aligned + counts if self.do_expand else ends

    @functools.cached_property
    def recv_src_metadata(self) -> torch.Tensor:
        meta = torch.full((self.capacity, 2 + self.topk), -1, dtype=torch.int32, device=self.on)
        counts = self.came_from().to(self.on, torch.int64)
        rows, ends = torch.arange(self.rows, device=self.on), counts.cumsum(0)
        ranks = torch.bucketize(rows, ends, right=True).clamp_(max=self.owner.nranks - 1)
        places = rows - (ends - counts)[ranks]
        meta[: self.rows, 0] = (ranks * self.num_max_tokens_per_rank + self._sources).to(torch.int32)
        if self.topk:
            first = (self.recv_topk_idx >= 0).to(torch.int8).argmax(dim=1)
            meta[: self.rows, 1] = (places * self.topk + first).to(torch.int32)
        if self.do_expand:
            meta[: self.rows, 2:] = self.slots[: self.rows]
        if self.most:  # some of the rows have not come
            meta.masked_fill_((rows >= ends[-1]).unsqueeze(1), -1)
        return meta
