# SPDX-License-Identifier: BSD-3-Clause
"""What all buffers of DeepEP's are here: a group with pools of shared memory, and their end. The pools are of
buffers of mode normal for shapes that are not known before they are dispatched.

DeepEP is given bytes, xep a shape; a rank's tokens and received rows are known to no other rank beforehand. So a buffer
is made by agreement at the first dispatch, and replaced by a larger one when a rank has more than fits: the library
tells every rank so (CapacityError), having moved nothing. A rank whose own tokens do not fit says so by a
dispatch that cannot be received: two tokens to itself, with room for one.

Two or more slots of a buffer are for the handles that were used last (xep.Buffer.limit_handles()), the other ones for
received tensors that are views. Once those are taken, received tensors are copies. So there is always a slot for the
next dispatch.

Where nobody waits for counts (on a CUDA device, with rows to receive that are known beforehand) nobody could be told of
a rank that needs more room. So all ranks say of how many tokens none has more, alike, and there is room for as many:
each finds out alone, and as the others do, when that was not so before, and memory is made anew.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import warnings
from typing import Any, Callable, Literal, NamedTuple, Optional

import numpy
import torch

import xep
from xep.dtypes import SIZES
from xep.params import BufferOptions

from .arguments import HOST, Agreement, WrongUse, WrongValue, carried, integer, memory_of, place_of
from .compat import Runtime
from .handles import ALL, Dispatched, Places, Sent, layout_of
from .streams import HERE, DeviceOrdering, DeviceQueue, HostOrdering, Ordering, Slot, is_capturing
from .utils.comm import Nodes
from .utils.event import CommStream, request_of
from .utils.math import ceil_div

# ---- pools of shared memory ----


class Joined(NamedTuple):
    """What the pools of a Buffer have in common. ways: how rows of mode normal reach other nodes, and their sums come
    back."""

    group: xep.Group
    agreement: Agreement
    slots: int
    timeout: Optional[float]
    on_failure: Literal["fail", "mask"]
    ways: dict[str, Any]


class Pool:
    """Buffers of one kind.

    queue: of the CUDA device where tensors are; None: host memory. They are used on the current stream, which is that
    of the operation, and comes after what reads slots that were given back.
    """

    kind: str
    last: Optional[xep.Buffer] = None  # of the last dispatch or combine
    threads = 0

    def __init__(self, joined: Joined, queue: Optional[DeviceQueue]) -> None:
        self._joined, self._group, self._agreement = joined, joined.group, joined.agreement
        self.queue, self.on = queue, HOST if queue is None else queue.device
        self.where = 0 if queue is None else queue.index + 1
        self.here: Ordering = HERE if queue is None else DeviceOrdering(queue)  # of calls that wait for nothing else

    def buffers(self) -> list[xep.Buffer]:
        raise NotImplementedError

    def _options(self) -> BufferOptions:
        """Of all buffers here. threads: of DeepEP's one number, what copies and reduces."""
        workers: BufferOptions = {"threads": self.threads} if self.on == HOST else {"multiprocessors": self.threads}
        return {**workers, "memory": memory_of(self.on), "timeout": self._joined.timeout}

    def forget(self) -> None:
        """What is in flight ends with the buffers; other handles keep what their tensors are made of."""
        raise NotImplementedError

    def reset(self) -> None:
        """Collective."""
        for buffer in self.buffers():
            buffer.reset()


# ---- of mode normal ----

_WIDEST = {1: torch.bfloat16, 2: torch.bfloat16, 4: torch.float32}  # by bytes of an element: what can be summed
_MARGIN = 5 / 4  # more room than was needed, so that growing ends soon


ALIKE = (
    "num_experts",
    "hidden (channels of x)",
    "bytes of an element of x",
    "topk (columns of topk_idx)",
    "scales of a token",
    "tokens that no rank has more of, where nobody waits for counts",
)


class Job(NamedTuple):
    """A dispatch that memory is made for. worst: rows of the received arrays, or 0. most: tokens that no rank has more
    of, where nobody waits for counts; 0: they are waited for."""

    experts: int
    x: torch.Tensor
    topk_idx: torch.Tensor
    topk_weights: Optional[torch.Tensor]
    scales: Optional[torch.Tensor]
    worst: int
    most: int
    after: Optional[xep.Request]

    @property
    def nscales(self) -> int:
        return 0 if self.scales is None else self.scales.shape[1]

    def alike(self) -> tuple[int, ...]:
        """What every rank must dispatch alike, as ALIKE says."""
        columns = self.topk_idx.shape[1]
        return self.experts, self.x.shape[1], self.x.element_size(), columns, self.nscales, self.most


class Room(NamedTuple):
    """What a buffer has room for. All of it is the same on every rank."""

    elem_bytes: int
    hidden: int
    topk: int
    scales: int
    tokens: int
    recv_rows: int

    def clip(self, job: Job) -> Job:
        """Two tokens, as wide as those of the job, or as there is room for: where all ranks need more room, all clip
        alike."""
        on = job.x.device
        x = torch.zeros((2, job.x.shape[1]), dtype=job.x.dtype, device=on)
        if x.shape[1] * x.itemsize > self.elem_bytes * self.hidden:
            x = torch.zeros((2, self.hidden), dtype=_WIDEST[self.elem_bytes], device=on)
        topk = min(job.topk_idx.shape[1], self.topk)
        topk_idx = torch.full((2, topk), -1, dtype=job.topk_idx.dtype, device=on)
        weights = None if job.topk_weights is None else torch.zeros((2, topk), dtype=torch.float32, device=on)
        scales = None
        if job.scales is not None and self.scales > 0:
            scales = torch.zeros((2, min(job.nscales, self.scales)), dtype=job.scales.dtype, device=on)
        return job._replace(x=x, topk_idx=topk_idx, topk_weights=weights, scales=scales)


class NormalPool(Pool):
    """For each number of experts the buffer in use; and those that were replaced while what they have received was
    looked at."""

    kind = "normal"

    def __init__(self, joined: Joined, queue: Optional[DeviceQueue]) -> None:
        super().__init__(joined, queue)
        self._slots = max(3, joined.slots + 1)
        self._handles = max(2, joined.slots - 2)  # that keep their slots
        self.views = self._slots - self._handles  # slots in use, with which what is received may be views
        self.used: dict[int, tuple[xep.Buffer, Room]] = {}
        self._replaced: list[xep.Buffer] = []

    def buffers(self) -> list[xep.Buffer]:
        return [buffer for buffer, _ in self.used.values()] + self._replaced

    def forget(self) -> None:
        for buffer in self.buffers():
            buffer.park_done()

    def _captures(self) -> bool:
        """Whether calls are kept for a CUDA graph."""
        return self.on != HOST and is_capturing()

    def most_of(self, most: int) -> int:
        """Of a Job with rows to receive that are known, of whose tokens no rank has more than most."""
        return 0 if self.on == HOST or self._group.nnodes > 1 else most

    def dispatch(
        self,
        wait: bool,
        experts: int,
        shape: tuple[int, int, int],
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        topk_weights: Optional[torch.Tensor],
        most: int = 0,
        scales: Optional[torch.Tensor] = None,
        capacity: int = 0,
        after: Optional[xep.Request] = None,
        **options: Any,
    ) -> Sent:
        """shape: tokens, channels of x, selections. most: as of a Job; the others are those of xep.Buffer.dispatch().
        Collective; blocks until every rank has told how many rows it sends, with wait until the rows are here. Where
        nobody waits for counts, for nothing, once there is memory."""
        tokens, hidden, topk = shape
        given = (experts, x, topk_idx, topk_weights, scales, capacity, most, after)
        if scales is not None or capacity > 0 or after is not None:
            options.update(scales=scales, capacity=capacity, counts_there=most > 0, after=after)
        while True:
            buffer, room = self.used.get(experts, (None, None))
            fits = buffer is not None and (
                hidden * x.itemsize <= room.elem_bytes * room.hidden
                and topk <= room.topk
                and (scales is None or scales.shape[1] <= room.scales)
                and (tokens if tokens > most else most) <= room.tokens
                and capacity <= room.recv_rows
            )
            if self.queue is not None and is_capturing():
                self._check_capture(most, fits)
            if buffer is None:
                self._stop_others(Job(*given))
            if buffer is None or (most and not fits):
                self._replace(Job(*given))
                continue
            self.last = buffer
            try:
                if not fits:
                    self._call_for_room(buffer, room.clip(Job(*given)))
                if self.queue is None and wait:
                    return buffer.dispatch(x, topk_idx, topk_weights, **options), None, None
                return self._send(buffer, wait, x, topk_idx, topk_weights, options)
            except xep.CapacityError:
                self._replace(Job(*given))

    def shown(self, received: xep.Received, request: Any = None, copy: Callable[..., Any] = torch.clone) -> list[Any]:
        """Rows, scales, topk_idx and topk_weights: views of the slot; or copies, made when request is done, where views
        that are held would stop the next dispatch, and of rows that lie apart (of other than a multiple of 64
        bytes)."""
        viewed = received._handle.buffer.slots_held() <= self.views
        arrays = [received.x, received.scales, received.topk_idx, received.topk_weights]
        if viewed and arrays[0].is_contiguous():
            return arrays
        if request is not None:
            request.wait()
        for i, one in enumerate(arrays):
            if one is not None and (i == 0 or not viewed):
                arrays[i] = copy(one)
        return arrays

    def again(self, handle: Dispatched, x: torch.Tensor, scales: Optional[torch.Tensor], ordering: Ordering) -> Sent:
        """A dispatch along the routing of handle. Collective."""
        handle.arrived()
        x, nscales = carried(x), 0 if scales is None else scales.shape[1]
        if not handle.has_slot() or not _sends(handle.xep.buffer, x.shape[1] * x.itemsize, nscales):
            return self._dispatch_anew(handle, ordering.wait, x, scales, ordering.after)
        self.last = handle.xep.buffer
        options = dict(scales=scales, capacity=handle.worst, counts_there=handle.most > 0, after=ordering.after)
        return self._send(self.last, ordering.wait, x, None, None, dict(options, cached=handle.xep))

    def combine(
        self,
        handle: Dispatched,
        width: int,
        x: torch.Tensor,
        topk_weights: Any,
        biases: tuple,
        ordering: Ordering,
        places: Optional[Places] = None,
        columns: slice = ALL,
    ) -> tuple[torch.Tensor, Optional[torch.Tensor], Optional[xep.Request]]:
        """(sums, those of the weights or None, the request unless waited for). places: x is by expert, of which these
        columns are summed. Collective."""
        if handle._arrives is not None:
            handle._arrives.wait()
        back, row = handle.xep, width * x.itemsize
        if back is None or back._memory is None or row > back.buffer.hidden * SIZES[back.buffer._combine_dtype]:
            self._dispatch_nothing(handle, row)
            back = handle.xep
        self.last = back.buffer
        back.settle()  # of one handle one combine is in flight
        options: dict[str, Any] = {} if topk_weights is None else {"topk_weights": topk_weights}
        if biases or ordering.after is not None:
            options.update(bias=biases or None, after=ordering.after)
        if places is not None:
            x, options["slots"] = places.to_combine(x, columns)
        if self.queue is not None:
            options.update(ordering.results(("out", (handle.num_tokens, width), x.dtype)))
            if topk_weights is not None:
                options.update(ordering.results(("out_weights", (handle.num_tokens, handle.topk), torch.float32)))
        request = None if ordering.wait else back.combine_async(x, **options)
        result = back.combine(x, **options) if request is None else request.result
        return (*(result if topk_weights is not None else (result, None)), request)

    def _dispatch_nothing(self, handle: Dispatched, row: int) -> None:
        """So that rows of so many bytes can be combined by handle. Collective, blocking."""
        used = self.used.get(handle.experts)
        width = 1 if used is not None and row <= used[1].elem_bytes * used[1].hidden else row
        x = torch.zeros((handle.num_tokens, width), dtype=torch.uint8, device=self.on)
        self._dispatch_anew(handle, True, x, None, None)

    def _send(
        self, buffer: xep.Buffer, wait: bool, x: Any, topk_idx: Any, topk_weights: Any, options: dict[str, Any]
    ) -> Sent:
        """What is captured into a CUDA graph writes into its slot whenever that is launched: its handle is not asked
        for it. Nor is another one's taken then, as what is kept of it would be copied late."""
        stays, queue = self._captures(), self.queue
        if stays:
            buffer._stay(True)
        try:
            if queue is not None:  # what reads a slot that is given back now is waited for, too
                buffer._make_room(options.get("cached"))
                queue.free_slots()
            request: Optional[xep.Request[xep.Handle]] = None
            if wait:
                handle = buffer.dispatch(x, topk_idx, topk_weights, **options)
            else:
                request = buffer.dispatch_async(x, topk_idx, topk_weights, **options)
                request.wait_counts()
                handle = request.result
            return handle, request, None if queue is None else Slot(queue, handle)
        finally:
            if stays:
                buffer._stay(False)

    def _check_capture(self, most: int, fits: bool) -> None:
        if self._group.nnodes > 1:
            return  # the library says why not
        if not most:
            raise WrongValue("num_worst_tokens: expected more than 0 (or do_cpu_sync=False) in a CUDA graph, got 0")
        if not fits:
            raise WrongValue("x: expected what a dispatch before the CUDA graph has made memory for, got more")

    def _dispatch_anew(
        self, handle: Dispatched, wait: bool, x: torch.Tensor, scales: Optional[torch.Tensor], after: Any
    ) -> Sent:
        """For a slot with such room. Collective."""
        if self._captures():
            raise WrongValue("handle: expected one of the last dispatches in a CUDA graph, got one without a slot")
        if handle.xep is not None:
            handle.xep.park()
        routing = handle.routing()
        shape, given = (*x.shape, routing.shape[1]), (handle.most, scales, handle.worst, after)
        sent = self.dispatch(wait, handle.experts, shape, x, routing, None, *given)
        handle.xep, handle._arrives, handle._slot = sent
        return sent

    def _stop_others(self, job: Job) -> None:
        """There is no buffer for so many experts. Ranks that dispatch to another number may have one: those in the
        last that was made are told as if its room did not do, so that all come to _agree() and find out there."""
        if self.used and not job.most and job.topk_idx.shape[1] > 0:
            experts, (buffer, room) = list(self.used.items())[-1]
            with contextlib.suppress(xep.CapacityError):
                self._call_for_room(buffer, room.clip(job._replace(experts=experts, after=None)))

    def _call_for_room(self, buffer: xep.Buffer, two: Job) -> None:
        """Always CapacityError, here and on every rank that dispatches meanwhile; or MismatchError there and here."""
        two.topk_idx[:, 0] = xep.expert_range(two.experts, self._group.nranks, self._group.rank)[0]
        handle = buffer.dispatch(two.x, two.topk_idx, two.topk_weights, scales=two.scales, capacity=1, after=two.after)
        handle.release()
        raise AssertionError("two rows were received where one has room")

    # ---- agreement ----

    def _replace(self, job: Job) -> tuple[xep.Buffer, Room]:
        """A buffer in which this dispatch fits on every rank. Collective: every rank comes here at the same
        dispatch."""
        old = self.used.get(job.experts)
        if old:
            old[0].park()
        room = self._agree(job, old[1] if old else None)
        if job.experts in self.used:  # it was not closed: what was received is looked at somewhere
            self._replaced.append(self.used.pop(job.experts)[0])
        buffer = self._group.buffer(
            job.experts,
            room.topk,
            room.hidden,
            room.tokens,
            mode="normal",
            dtype=_WIDEST[room.elem_bytes],
            combine_dtype=_WIDEST[room.elem_bytes],
            scales=room.scales,
            recv_rows=room.recv_rows,
            slots=self._slots,
            **self._options(),
            **self._joined.ways,
        )
        buffer.limit_handles(self._handles)
        self.used[job.experts] = (buffer, room)
        return buffer, room

    def _agree(self, job: Job, old: Optional[Room]) -> Room:
        self._agreement.meet("dispatch")
        nranks, buffers = self._group.nranks, self.buffers()
        words = [*job.alike(), job.x.shape[0], job.worst]
        words += layout_of(job.topk_idx, job.experts, nranks).tokens_per_rank.tolist()
        words += [buffer.slots_held() > 0 for buffer in buffers]
        gathered = self._group.allgather(numpy.array(words, dtype=numpy.int64).tobytes())
        told = numpy.frombuffer(b"".join(gathered), dtype=numpy.int64).reshape(nranks, -1)
        ends = numpy.cumsum([len(ALIKE), 1, 1, nranks])
        alike, tokens, worst, to_ranks, busy = numpy.split(told, ends, axis=1)
        for i, rank in numpy.argwhere(alike.T != alike[:1].T):
            text = f"ranks disagree on {ALIKE[i]}: {alike[0, i]} on rank 0, {alike[rank, i]} on rank {rank}"
            raise xep.MismatchError(xep.Status.ERR_MISMATCH, text)
        columns = job.topk_idx.shape[1]
        if columns > job.experts:
            raise WrongValue(f"topk_idx: expected at most {job.experts} columns, the experts, got {columns}")
        rows = to_ranks.sum(axis=0)
        for rank in numpy.flatnonzero((worst[:, 0] > 0) & (worst[:, 0] < rows)):
            text = f"num_worst_tokens: rank {rank} gets {rows[rank]} rows and has room for {worst[rank, 0]}"
            raise xep.CapacityError(xep.Status.ERR_OVERFLOW, text)
        for buffer, held in zip(buffers, busy.T):
            if not held.any():  # no rank has a handle or an array of it: the same on every rank, in the same order
                self.used = {experts: used for experts, used in self.used.items() if used[0] is not buffer}
                self._replaced = [other for other in self._replaced if other is not buffer]
                buffer.close()
        return self._room(job, old, int(tokens.max()), int(rows.max()), int(worst.max()))

    def _room(self, job: Job, old: Optional[Room], tokens: int, rows: int, worst: int) -> Room:
        """No less than there was."""
        each, nranks = _WIDEST[job.x.element_size()].itemsize, self._group.nranks
        old = old or Room(each, 0, 0, 0, 0, 0)
        elem = max(old.elem_bytes, each)
        hidden = max(ceil_div(old.elem_bytes * old.hidden, elem), ceil_div(each * job.x.shape[1], elem))
        topk = max(old.topk, min(job.experts, max(job.topk_idx.shape[1], nranks)))
        tokens = max(2, int(tokens * _MARGIN), job.most, old.tokens)
        rows = max(2, int(rows * _MARGIN), worst, old.recv_rows)
        rows = max(worst, min(rows, nranks * tokens))
        return Room(elem, hidden, topk, max(old.scales, job.nscales), tokens, rows)


def _sends(buffer: xep.Buffer, row_bytes: int, scales: int) -> bool:
    """Whether the buffer has room for such rows."""
    return row_bytes <= buffer.hidden * SIZES[buffer.dtype] and scales <= buffer.scales


# ---- a buffer ----


_CLOSE_SECONDS = 5.0  # for which a destructor waits for the other ranks


class Pools(dict[tuple[type[Pool], int], Any]):
    """Of a Buffer: by kind, and where tensors are. Each is made when it is first asked for."""

    queue: Optional[DeviceQueue] = None  # of the CUDA device, where tensors are of one
    closed = False

    def __init__(self, joined: Joined) -> None:
        super().__init__()
        self._joined = joined

    def __missing__(self, key: tuple[type[Pool], int]) -> Any:
        if self.closed:
            raise WrongUse("the Buffer was destroyed")
        kind, where = key
        found = self[key] = kind(self._joined, self.queue_of(place_of(where)) if where else None)
        return found

    def queue_of(self, device: torch.device) -> DeviceQueue:
        """A Buffer has one device, that of the first tensors."""
        if self.queue is None:
            self.queue = DeviceQueue(device)
        if self.queue.device != device:
            raise WrongValue(f"x: expected a tensor of {self.queue.device}, which this Buffer is on, got {device}")
        return self.queue

    def ordered(self) -> list[Pool]:
        """As every rank has them."""
        return [self[key] for key in sorted(self, key=lambda key: (key[0].kind, key[1]))]


class Core:
    """Collective to make. Derived classes add their calls, and pools of their own."""

    _threads: int = 0
    _destroyed: bool = True
    runtime: Optional[Runtime]
    explicitly_destroy: bool
    enable_shrink = False

    def _join(self, group: Any, num_slots: int, timeout: Optional[float], explicitly_destroy: bool) -> None:
        integer("num_slots", num_slots, 1)
        self.group = group
        self.explicitly_destroy = explicitly_destroy
        self._xep = xep.Group(group, timeout=timeout)
        self._nodes = Nodes(self._xep)
        self._agreement = Agreement(self._xep)
        on_failure: Literal["fail", "mask"] = "mask" if self.enable_shrink else "fail"
        self._joined = Joined(self._xep, self._agreement, num_slots, timeout, on_failure, {})
        self._pools = Pools(self._joined)
        self._pool: NormalPool = self._pools[NormalPool, 0]
        self.runtime = Runtime(self)
        self._destroyed = False

    def _usable(self) -> None:
        if self._destroyed:
            raise WrongUse("the Buffer was destroyed")

    def _threads_here(self) -> int:
        """Of a rank: 0 leaves it to XEP_THREADS."""
        return max(1, min(self._threads, self._processors())) if self._threads else 0

    def _processors(self) -> int:
        """This rank's share of the machine's."""
        return len(os.sched_getaffinity(0)) * self._xep.nnodes // self._xep.nranks

    def _check_experts(self, num_experts: Any) -> None:
        if not isinstance(num_experts, int) or num_experts <= 0 or num_experts % self._xep.nranks:
            raise WrongValue(f"num_experts: expected a multiple of the {self._xep.nranks} ranks, got {num_experts!r}")

    def _check_own(self, found: Dispatched, pool: Pool) -> None:
        """Whether a dispatch of this Buffer made it, of tensors that are there, and it can be gone back by."""
        if found.owner is not self._xep:
            raise WrongValue("handle: expected one of this Buffer, got one of another")
        if found.xep is not None and found.xep._memory is None and found.xep.parked is None:  # its rows are gone
            found.arrived()  # which says so, if it failed
            raise WrongValue("handle: its dispatch ended when the Buffer was reset")
        if found.on is not pool.on and found.on != pool.on:
            raise WrongValue(f"x: expected a tensor of {found.on}, as what was dispatched, got {pool.on}")

    def _refused(self, kind: str, why: str) -> None:
        """A call, by buffers of that kind; tensors are on a device where any were."""
        last = [pool.last for pool in self._pools.ordered() if pool.kind == kind][-1:]
        if self._destroyed or last in ([], [None]):
            self._agreement.refuse(why)
        else:
            with contextlib.suppress(xep.XepError, TypeError, ValueError, RuntimeError):
                last[0].dispatch(None, None)

    def _ordering(self, pool: Pool, previous_event: Any, asynchronous: bool, on_comm: bool) -> Ordering:
        """An operation that waits for something, or is waited for."""
        if pool.queue is not None:
            return pool.queue.ordering(previous_event, asynchronous, on_comm)
        after = request_of(previous_event)
        if after is not None and after.buffer.group is not self._xep:  # xep can see to what its own group does
            after.wait()
            after = None
        return HostOrdering(after, asynchronous)

    def get_comm_stream(self) -> Any:
        """The stream of asynchronous operations of tensors of the current CUDA device; else what stands for it:
        ``with`` and waiting work, and do nothing."""
        self._usable()
        if self._pools.queue is None and torch.cuda.is_initialized():
            self._pools.queue_of(torch.device("cuda", torch.cuda.current_device()))
        return CommStream() if self._pools.queue is None else self._pools.queue.comm

    # ---- the end ----

    def _forget(self, pools: list[Pool]) -> None:
        for pool in pools:
            pool.forget()

    def _goes_without(self) -> bool:
        """Whether ranks are masked: then the others do not ask one another any more. Collective where it may be so."""
        return False

    def destroy(self) -> None:
        """Frees all. Collective; only with explicitly_destroy. The memory of tensors that are alive on some rank stays
        mapped until the process ends, with a ResourceWarning."""
        if not self.explicitly_destroy:
            raise WrongUse("destroy: expected a Buffer made with explicitly_destroy=True")
        self._usable()
        self._close()

    def abort(self) -> None:
        """Ends the group for all ranks: calls that wait, on any thread of any rank, end with xep.AbortedError, and so
        do later ones; what is freed is freed without the others. Not a call of DeepEP's. Local."""
        self._xep.abort()

    def reset(self) -> None:
        """Makes usable what an error (a deadline, a peer that failed) left broken. Handles end, and what was received
        with them is undefined. Not a call of DeepEP's. Collective."""
        self._usable()
        for pool in self._pools.ordered():
            pool.reset()

    def _close(self) -> None:
        self._destroyed, self.runtime = True, None
        pools, self._pools.closed = self._pools.ordered(), True
        self._pools.clear()
        if self._xep._inherited:
            self._xep.leave()
            return
        try:
            is_alone = self._goes_without()
            if not is_alone:  # behind it, what all ranks have begun has come, and the rest never will
                self._agreement.meet("destroy", counts=False)
            self._forget(pools)
            held = [buffer.arrays_left() for pool in pools for buffer in pool.buffers()]
            mine = bytes(min(count, 255) for count in held) + b"\0"
            everywhere = [mine] if is_alone else self._xep.allgather(mine)
        except xep.XepError as error:
            warnings.warn(f"deep_ep: the memory of a Buffer stays mapped: {error.reason}", ResourceWarning)
            self._xep.leave()
            return
        if all(not any(counts) for counts in everywhere):
            self._xep.close()
            return
        if any(held):
            warnings.warn(
                f"received tensors of {sum(held)} dispatches outlive their Buffer: its memory stays mapped",
                ResourceWarning,
            )
        self._xep.leave()

    def __del__(self) -> None:
        if self._destroyed or sys.is_finalizing():
            return
        if self.explicitly_destroy and not self._xep._inherited:
            warnings.warn(
                "deep_ep.Buffer: destroy() was not called, its memory stays mapped", ResourceWarning, source=self
            )
            self._xep.leave()
            return
        # A destructor may hold nobody up, least of all an exception on its way: the other ranks may be anywhere.
        closer = threading.Thread(target=self._close, name="xep-close", daemon=True)
        closer.start()
        closer.join(_CLOSE_SECONDS)
        if closer.is_alive():
            self._xep.abort()
            closer.join()
