# SPDX-License-Identifier: BSD-3-Clause
"""V2.5's BucketBuffer: all_gather, reduce_scatter and all_reduce of tensors in one storage.

Each is xep's dispatch of rows to every rank, or the combine of one: rows of rank s are received as [s], which is the
layout of a gathered tensor, and of the shards of one that is to be scattered. Rows are of one width, some at a time, so
that memory is bounded.
"""

from __future__ import annotations

import math
from typing import Any, Iterator, Optional, Sequence, Union

import torch

import xep

from ..arguments import WrongType, WrongUse, WrongValue
from ..streams import DeviceOrdering, DeviceQueue, HostOrdering
from ..utils.comm import Nodes, close_in_time
from ..utils.event import EventOverlap
from ..utils.math import align
from .base import ALLOCATION, ROW, BufferAllocator, BufferBase, as_bytes, lies_in, storage_of

_WIDTH = 1 << 14  # bytes of a row
_ROWS = 64  # of a rank at a time
_STEP = 64  # bytes, of what a session allocates
_MOST_GROUPS, _MOST_TENSORS = 8, 64

Tensors = Union[torch.Tensor, Sequence[torch.Tensor]]


class Context:
    """One group of a BucketBuffer. Collective to make."""

    def __init__(self, group: Any) -> None:
        self.group = xep.Group(group)
        self.rank, self.ranks = self.group.rank, self.group.nranks
        nodes = Nodes(self.group)
        self._domains = nodes.count, nodes.width
        self._buffers: dict[str, xep.Buffer] = {}

    def get_physical_domain_size(self) -> tuple[int, int]:
        """(nodes, ranks of the largest node)."""
        return self._domains

    def get_logical_domain_size(self) -> tuple[int, int]:
        """(1, ranks)."""
        return 1, self.ranks

    def gather(self, source: torch.Tensor, place: torch.Tensor) -> None:
        """Bytes [n] of each rank to place [R, n]."""
        for begin, rows, width in _parts(source.numel(), _WIDTH):
            end = begin + rows * width
            with self._dispatch(source[begin:end].view(rows, width)) as handle:
                place[:, begin:end] = handle.recv.x.reshape(self.ranks, rows * width)

    def reduce(self, shards: torch.Tensor, scale: float, rounded: bool) -> None:
        """shards [R, n] float32: row rank becomes the sum over all ranks, ascending, times scale. rounded: what other
        ranks send is rounded to bfloat16."""
        for begin, rows, width in _parts(shards.shape[1], _WIDTH // 4):
            part = shards[:, begin : begin + rows * width]
            sent = part.bfloat16().float() if rounded else part.clone()
            if rounded:
                sent[self.rank] = part[self.rank]
            empty = torch.zeros((rows, 1), dtype=torch.uint8, device=shards.device)
            with self._dispatch(empty) as handle:
                total = handle.combine(sent.view(self.ranks * rows, width)).view(-1)
            part[self.rank] = total if scale == 1 else total * scale

    def _dispatch(self, x: torch.Tensor) -> xep.Handle:
        """To every rank."""
        everyone = torch.arange(self.ranks, device=x.device).expand(x.shape[0], self.ranks).contiguous()
        return self._buffer(x.device).dispatch(x, everyone)

    def _buffer(self, device: torch.device) -> xep.Buffer:
        memory = "cuda" if device.type == "cuda" else "host"
        if memory not in self._buffers:
            options: dict[str, Any] = dict(dtype=torch.float32, combine_dtype=torch.float32, slots=1, memory=memory)
            shape = (self.ranks, self.ranks, _WIDTH // 4, _ROWS)  # flat: sums in the order of ranks on any nodes
            self._buffers[memory] = self.group.buffer(*shape, mode="normal", path="flat", **options)
        return self._buffers[memory]


def _parts(count: int, width: int) -> Iterator[tuple[int, int, int]]:
    """(first element, rows, elements of a row), all rows full but the last one, which comes alone."""
    full = count // width
    for row in range(0, full, _ROWS):
        yield row * width, min(_ROWS, full - row), width
    if count % width:
        yield full * width, 1, count % width


class BucketBuffer(BufferBase):
    """Storage that one or several groups share for collectives. Collective to make, for all of them.

    group: a process group, or up to 8, each at the same place on all of its ranks: then every call says which.
    allocation_plan_or_num_bytes: alike on all ranks. storage: uint8 [num_bytes], on torch's default device.
    sl_idx, num_gpu_timeout_secs: UCX_IB_SL and XEP_TIMEOUT here.
    explicitly_destroy: destroy() will be called, collective; else the destructor does it.

    A call is done when it returns, and has then waited for the other ranks; its event is reached, and the first wait
    for it returns the results: a tensor for a tensor, a list for several (64 at most), which are views of storage. On a
    CUDA device it is on the buffer's stream, behind the current one, and the event is of that.
    """

    def __init__(
        self,
        group: Any,
        allocation_plan_or_num_bytes: Union[BufferAllocator, int],
        sl_idx: Optional[int] = None,
        num_gpu_timeout_secs: float = 100,
        explicitly_destroy: bool = False,
    ) -> None:
        self.runtime: Any = None
        self.groups = list(group) if isinstance(group, (tuple, list)) else [group]
        if not 1 <= len(self.groups) <= _MOST_GROUPS:
            raise WrongValue(f"group: expected 1 to {_MOST_GROUPS}, got {len(self.groups)}")
        self.storage = storage_of("allocation_plan_or_num_bytes", allocation_plan_or_num_bytes, ALLOCATION)
        self.num_bytes = self.storage.nbytes
        self.explicitly_destroy = explicitly_destroy
        self.contexts = [Context(one) for one in self.groups]
        self.nccl_comm_handles: list[Any] = []
        self._session: Optional[BucketSession] = None
        self._queue = None if self.storage.is_cpu else DeviceQueue(self.storage.device)
        self.runtime = self.contexts[0]

    # ---- which ----

    def get_context_idx(self, group: Any = None) -> int:
        """The place of a group; None: that of the only one."""
        if group is None and len(self.groups) > 1:
            raise WrongValue(f"group: expected one of the {len(self.groups)} of this buffer, got None")
        found = [i for i, one in enumerate(self.groups) if group is None or one is group]
        if not found:
            raise WrongValue("group: expected one of this buffer, got another one")
        return found[0]

    def _context(self, group: Any) -> Context:
        if self.runtime is None:
            raise WrongUse("the BucketBuffer was destroyed")
        place = self.get_context_idx(group)
        if self._session is not None:
            self._session._keep_to(place)
        return self.contexts[place]

    def get_theoretical_num_sms(self, op: str, group: Any = None) -> int:
        """0 of all_gather, which needs none, else 4: threads are XEP_THREADS."""
        self.get_context_idx(group)
        if op not in ("all_gather", "reduce_scatter", "all_reduce"):
            raise NotImplementedError(f"op: expected all_gather, reduce_scatter or all_reduce, got {op}")
        return 0 if op == "all_gather" else 4

    # ---- collectives ----

    def all_gather(
        self, srcs: Tensors, dsts: Optional[Tensors] = None, group: Any = None, num_sms: Optional[int] = None
    ) -> EventOverlap:
        """Every rank's src to all ranks, in rank order: [R * numel].

        srcs: of any type. Without dsts each is shard r of R that lie in storage, r the rank; with dsts any. dsts: in
            storage, of R times the bytes; in a session, where srcs may lie anywhere, too, not only there: then the wait
            copies.
        """
        context = self._context(group)
        if num_sms:
            raise WrongValue(f"num_sms: expected None or 0, got {num_sms}")
        sources, packed = _listed("srcs", srcs)
        targets = _listed("dsts", dsts)[0] if dsts is not None else [None] * len(sources)
        if len(targets) != len(sources):
            raise WrongValue(f"dsts: expected {len(sources)}, as many as srcs, got {len(targets)}")
        places = [self._place_of(src, dst, context) for src, dst in zip(sources, targets)]
        with self._ordering() as ordering:
            for src, place in zip(sources, places):
                context.gather(as_bytes(src.contiguous()), place.view(context.ranks, -1))
            event = ordering.end(None, *sources)
        results = [
            place.view(src.dtype) if dst is None else dst.view(-1) if self._session is None else dst
            for src, dst, place in zip(sources, targets, places)
        ]
        pairs = [(dst, place) for dst, place in zip(targets, places) if dst is not None and not _same(dst, place)]
        return _done(event, results, packed, 0, pairs)

    def reduce_scatter(
        self,
        srcs: Tensors,
        comm_precision: str = "fp32",
        scale: float = 1.0,
        group: Any = None,
        num_sms: Optional[int] = None,
    ) -> EventOverlap:
        """The sums over all ranks of srcs, of which this rank gets its shard, in place: [numel / R], times scale.

        srcs: float32, in storage (in a session anywhere: copied there), of a multiple of 32 R bytes. Summed in fp32,
            ranks ascending, the same on any nodes. comm_precision: "bf16": what other ranks send is rounded to
            bfloat16 before, to nearest even. Other shards of srcs stay as they are.
        """
        if comm_precision not in ("fp32", "bf16"):
            raise WrongValue(f"comm_precision: expected fp32 or bf16, got {comm_precision}")
        context = self._context(group)
        sources, packed = self._sources(srcs, context)
        with self._ordering() as ordering:
            shards = self._shards(sources, context)
            for one in shards:
                context.reduce(one, scale, comm_precision == "bf16")
            event = ordering.end(None, *sources)
        return _done(event, [one[context.rank] for one in shards], packed, self._sms("reduce_scatter", group, num_sms))

    def all_reduce(
        self, srcs: Tensors, scale: float = 1.0, group: Any = None, num_sms: Optional[int] = None
    ) -> EventOverlap:
        """The sums over all ranks of srcs, in place, times scale, the same bits on all ranks; see reduce_scatter."""
        context = self._context(group)
        sources, packed = self._sources(srcs, context)
        with self._ordering() as ordering:
            shards = self._shards(sources, context)
            for one in shards:
                context.reduce(one, scale, False)
                context.gather(as_bytes(one[context.rank]), as_bytes(one).view(context.ranks, -1))
            event = ordering.end(None, *sources)
        return _done(event, [one.view(-1) for one in shards], packed, self._sms("all_reduce", group, num_sms))

    def barrier(
        self, wait_comm_stream: bool = True, with_cpu_sync: bool = False, sequential: bool = True, group: Any = None
    ) -> None:
        """Waits until all ranks of the group are here. Collective."""
        self._context(group).group.barrier()

    def session(self) -> BucketSession:
        """``with buffer.session() as session:`` the collectives take tensors outside storage."""
        return BucketSession(self)

    # ---- tensors in storage ----

    def _ordering(self) -> Union[HostOrdering, DeviceOrdering]:
        return HostOrdering(None, True) if self._queue is None else self._queue.ordering(None, True, False)

    def _sms(self, op: str, group: Any, num_sms: Optional[int]) -> int:
        if num_sms is not None and num_sms <= 0:
            raise WrongValue(f"num_sms: expected None or more than 0, got {num_sms}")
        return self.get_theoretical_num_sms(op, group) if num_sms is None else num_sms

    def _place_of(self, src: torch.Tensor, dst: Optional[torch.Tensor], context: Context) -> torch.Tensor:
        """Bytes of storage for R shards."""
        room, offset = context.ranks * src.nbytes, src.data_ptr() - self.storage.data_ptr() - context.rank * src.nbytes
        inside, session = lies_in(src, self.storage), self._session
        if dst is not None and (dst.dtype != src.dtype or not dst.is_contiguous() or dst.nbytes != room):
            raise WrongValue(f"dsts: expected a contiguous tensor {src.dtype} of {room} bytes, got {_told(dst)}")
        if not src.is_contiguous() and (inside or session is None):
            raise WrongValue(f"srcs: expected a contiguous tensor, got {_told(src)}")
        if dst is not None and lies_in(dst, self.storage):
            begin = dst.data_ptr() - self.storage.data_ptr()
            if inside and begin != offset and begin < offset + (context.rank + 1) * src.nbytes and (
                offset + context.rank * src.nbytes < begin + room
            ):  # fmt: skip
                raise WrongValue(f"srcs: expected shard {context.rank} of dsts, or what lies apart, got an overlap")
            return self.storage[begin : begin + room]
        if session is not None and not inside:
            return session._take(room)
        if dst is not None and session is None:
            raise WrongValue(f"dsts: expected tensors in storage without a session, got {_told(dst)}")
        if not inside or offset < 0 or offset + room > self.num_bytes:
            raise WrongValue(
                f"srcs: expected shard {context.rank} of {context.ranks} that lie in storage (or dsts, or a session), "
                f"got {_told(src)}"
            )
        return self.storage[offset : offset + room]

    def _sources(self, srcs: Tensors, context: Context) -> tuple[list[torch.Tensor], bool]:
        """That can be reduced."""
        sources, packed = _listed("srcs", srcs)
        for src in sources:
            if src.dtype != torch.float32 or src.nbytes % (ROW * context.ranks):
                raise WrongValue(
                    f"srcs: expected float32 of a multiple of {ROW * context.ranks} bytes ({ROW} for each of "
                    f"{context.ranks} ranks), got {_told(src)}"
                )
            if lies_in(src, self.storage) and not (src.is_contiguous() and src.data_ptr() % ROW == 0):
                raise WrongValue(f"srcs: expected a contiguous tensor at a multiple of {ROW} bytes, got {_told(src)}")
            if not lies_in(src, self.storage) and self._session is None:
                raise WrongValue(f"srcs: expected tensors in storage, or a session, got {_told(src)}")
        return sources, packed

    def _shards(self, sources: list[torch.Tensor], context: Context) -> list[torch.Tensor]:
        """Of each [R, n], in storage."""
        return [self._kept(src).view(context.ranks, -1) for src in sources]

    def _kept(self, src: torch.Tensor) -> torch.Tensor:
        if self._session is None or lies_in(src, self.storage):
            return src
        place = self._session._take(src.nbytes).view(src.dtype)
        place.view(src.shape).copy_(src)
        return place

    # ---- the end ----

    def destroy(self) -> None:
        """Frees all, if that was not done. Collective over the groups; only with explicitly_destroy."""
        if not self.explicitly_destroy:
            raise WrongUse("destroy: expected a BucketBuffer made with explicitly_destroy=True")
        if self.runtime is not None:
            self._close()

    def _close(self) -> None:
        self.runtime = None
        for context in self.contexts:
            context.group.close()

    def __del__(self) -> None:
        if getattr(self, "runtime", None) is None or self.explicitly_destroy:
            return
        close_in_time(self._close, *(context.group for context in self.contexts))


class BucketSession:
    """While it is entered, its buffer's collectives take tensors outside storage, all of one group. What lies in
    storage may be overwritten from its begin on."""

    def __init__(self, buffer: BucketBuffer) -> None:
        self._buffer = buffer
        self._taken = 0
        self._place: Optional[int] = None

    def allocate(self, shapes: Any, dtype: torch.dtype = torch.float32, group: Any = None) -> Any:
        """A tensor in storage, or, of several shapes, a tuple; not initialised. RuntimeError where there is no room."""
        self._keep_to(self._buffer.get_context_idx(group))
        if len(shapes) == 0 or isinstance(shapes[0], int):
            return self._take(math.prod(shapes) * dtype.itemsize).view(dtype).view(tuple(shapes))
        return tuple(self._take(math.prod(one) * dtype.itemsize).view(dtype).view(tuple(one)) for one in shapes)

    def _take(self, nbytes: int) -> torch.Tensor:
        begin, end = self._taken, self._taken + align(nbytes, _STEP)
        if end > self._buffer.num_bytes:
            raise RuntimeError(
                f"session: expected room for {nbytes} bytes, got {self._buffer.num_bytes - begin} of "
                f"{self._buffer.num_bytes}"
            )
        self._taken = end
        return self._buffer.storage[begin : begin + nbytes]

    def _keep_to(self, place: int) -> None:
        if self._place not in (None, place):
            raise WrongValue("group: expected the one of this session's other calls")
        self._place = place

    def __enter__(self) -> BucketSession:
        if self._buffer._session is not None:
            raise WrongUse("session: expected one at a time of a BucketBuffer")
        self._buffer._session, self._taken, self._place = self, 0, None
        return self

    def __exit__(self, *_exception: Any) -> None:
        self._buffer._session = None


def _listed(name: str, tensors: Tensors) -> tuple[list[torch.Tensor], bool]:
    """And whether it was one tensor."""
    packed = isinstance(tensors, torch.Tensor)
    many = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    if not 1 <= len(many) <= _MOST_TENSORS:
        raise WrongValue(f"{name}: expected 1 to {_MOST_TENSORS} tensors, got {len(many)}")
    for one in many:
        if not isinstance(one, torch.Tensor) or one.numel() == 0:
            raise WrongType(f"{name}: expected tensors with elements, got {_told(one)}")
    return many, packed


def _told(one: Any) -> str:
    if not isinstance(one, torch.Tensor):
        return type(one).__name__
    return f"{str(one.dtype)[6:]} of shape {list(one.shape)}, strides {one.stride()}, on {one.device}"


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.data_ptr() == other.data_ptr()


def _done(
    event: EventOverlap, results: list[Any], packed: bool, num_sms: int, pairs: Sequence[tuple[Any, torch.Tensor]] = ()
) -> EventOverlap:
    """event, which hands over the results. pairs: (tensor, bytes) that the wait copies."""

    def hand_over() -> Any:
        for tensor, source in pairs:
            tensor.copy_(source.view(tensor.dtype).view(tensor.shape))
        return results[0] if packed else results

    event.register_hook_after_wait(hand_over)
    event.num_sms = num_sms  # type: ignore[attr-defined]
    return event
