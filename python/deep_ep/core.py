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
import warnings
from typing import Any, Callable, NamedTuple, Optional

import numpy
import torch

import xep

from .arguments import HOST, KNOWN, Agreement, WrongUse, WrongValue, carried, integer, place_of
from .compat import Runtime
from .handles import Dispatched, Sent, layout_of
from .streams import HERE, DeviceOrdering, DeviceQueue, HostOrdering, Ordering, Slot, is_capturing
from .utils.comm import Nodes, close_in_time
from .utils.event import CommStream, request_of
from .utils.math import ceil_div


class Pool:
    """Buffers of one kind.

    queue: of the CUDA device where tensors are; None: host memory. They are used on the current stream, which is that
    of the operation, and comes after what reads slots that were given back.
    """

    kind: str
    buffers: Callable[[], list[xep.Buffer]]
    last: Optional[xep.Buffer] = None  # of the last dispatch or combine
    multiprocessors = 0  # of a device, of memory that is made from now on

    def __init__(self, pools: Pools, queue: Optional[DeviceQueue]) -> None:
        self._group, self._agreement, self._threads = pools.group, pools.agreement, pools.threads
        self._options = pools.options[self.kind]
        self.queue, self.on = queue, HOST if queue is None else queue.device
        self.where = 0 if queue is None else queue.index + 1
        self.here: Ordering = HERE if queue is None else DeviceOrdering(queue)  # of calls that wait for nothing else

    def _make(self, *shape: int, **options: Any) -> xep.Buffer:
        """Collective."""
        workers: dict[str, Any] = dict(threads=self._threads(self._group))
        if self.queue is not None:
            workers = dict(memory="cuda", multiprocessors=self.multiprocessors)
        return self._group.buffer(*shape, mode=self.kind, **{**self._options, **workers, **options})

    def forget(self) -> None:
        """What is in flight ends with the buffers; other handles keep what their tensors are made of."""
        for buffer in self.buffers():
            buffer.park_done()

    def reset(self) -> None:
        """Collective."""
        for buffer in self.buffers():
            buffer.reset()


_WORD = 4  # bytes: buffers are of float32, which rows of any type go into, and are summed in
_MARGIN = 5 / 4  # more room than was needed, so that growing ends soon


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

    @property
    def nscales(self) -> int:
        return 0 if self.scales is None else self.scales.shape[1]

    def alike(self) -> dict[str, int]:
        """What every rank must dispatch alike."""
        return {
            "num_experts": self.experts,
            "hidden (channels of x)": self.x.shape[1],
            "bytes of an element of x": self.x.element_size(),
            "topk (columns of topk_idx)": self.topk_idx.shape[1],
            "scales of a token": self.nscales,
            "tokens that no rank has more of, where nobody waits for counts": self.most,
        }


class NormalPool(Pool):
    """For each number of experts the buffer in use; and those that were replaced while what they have received was
    looked at."""

    kind = "normal"

    def __init__(self, pools: Pools, queue: Optional[DeviceQueue]) -> None:
        super().__init__(pools, queue)
        slots = self._options["slots"]
        self._slots = max(3, slots + 1)
        self._handles = max(2, slots - 2)  # that keep their slots
        self.views = self._slots - self._handles  # slots in use, with which what is received may be views
        self.used: dict[int, xep.Buffer] = {}  # by experts
        self._replaced: list[xep.Buffer] = []

    def buffers(self) -> list[xep.Buffer]:
        return [*self.used.values(), *self._replaced]

    def _captures(self) -> bool:
        """Whether calls are kept for a CUDA graph."""
        return self.on != HOST and is_capturing()

    def most_of(self, most: int) -> int:
        """Of a Job with rows to receive that are known, of whose tokens no rank has more than most."""
        return 0 if self.on == HOST or self._group.nnodes > 1 else most

    def dispatch(self, wait: bool, shape: tuple[int, int, int], given: tuple, **options: Any) -> Sent:
        """shape: tokens, channels of x, selections. given: the Job. options: of xep.Buffer.dispatch(). Collective;
        blocks until every rank has told how many rows it sends, with wait until the rows are here. Where nobody waits
        for counts, for nothing, once there is memory."""
        (tokens, hidden, topk), (experts, x, topk_idx, topk_weights, scales, worst, most) = shape, given
        if x.dtype not in KNOWN:
            x = carried(x)
            hidden, given = x.shape[1], (experts, x, *given[2:])
        if scales is not None or worst > 0:
            options.update(scales=scales, capacity=worst, counts_there=most > 0)
        while True:
            buffer = self.used.get(experts)
            fits = buffer is not None and (
                hidden * x.itemsize <= buffer.hidden * _WORD
                and topk <= buffer.topk
                and (scales is None or scales.shape[1] <= buffer.scales)
                and (tokens if tokens > most else most) <= buffer.tokens
                and worst <= buffer.recv_rows
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
                    self._call_for_room(buffer, Job(*given))
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
        x, back = carried(x), handle.xep
        if (
            back is None
            or back._memory is None
            or x.shape[1] * x.itemsize > back.buffer.hidden * _WORD
            or (scales is not None and scales.shape[1] > back.buffer.scales)
        ):
            return self._dispatch_anew(handle, ordering.wait, x, scales, ordering.after)
        self.last = back.buffer
        options = dict(scales=scales, capacity=handle.worst, counts_there=handle.most > 0, after=ordering.after)
        return self._send(back.buffer, ordering.wait, x, None, None, dict(options, cached=back))

    def combine(
        self, handle: Any, width: int, x: torch.Tensor, topk_weights: Any, biases: tuple, ordering: Ordering,
        columns: Optional[slice] = None,
    ) -> tuple[torch.Tensor, Optional[torch.Tensor], Optional[xep.Request]]:  # fmt: skip
        """(sums, those of the weights or None, the request unless waited for). columns: x is by expert, of which
        these selections are summed. Collective."""
        if handle._arrives is not None:
            handle._arrives.wait()
        back, row = handle.xep, width * x.itemsize
        if back is None or back._memory is None or row > back.buffer.hidden * _WORD:
            used = self.used.get(handle.experts)
            least = 1 if used is not None and row <= used.hidden * _WORD else row
            nothing = torch.zeros((handle.num_tokens, least), dtype=torch.uint8, device=self.on)
            back = self._dispatch_anew(handle, True, nothing, None, None)[0]
        self.last = back.buffer
        back.settle()  # of one handle one combine is in flight
        options: dict[str, Any] = {} if topk_weights is None else {"topk_weights": topk_weights}
        if biases or ordering.after is not None:
            options.update(bias=biases or None, after=ordering.after)
        if columns is not None:
            x, options["slots"] = handle.fold(x, columns)
        if self.queue is not None:
            options.update(ordering.results(("out", (handle.num_tokens, width), x.dtype)))
            if topk_weights is not None:
                options.update(ordering.results(("out_weights", (handle.num_tokens, handle.topk), torch.float32)))
        request = None if ordering.wait else back.combine_async(x, **options)
        result = back.combine(x, **options) if request is None else request.result
        return (*(result if topk_weights is not None else (result, None)), request)

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
        job = Job(handle.experts, x, handle.routing(), None, scales, handle.worst, handle.most)
        sent = self.dispatch(wait, (*x.shape, job.topk_idx.shape[1]), job, after=after)
        handle.xep, handle._arrives, handle._slot = sent
        return sent

    def _stop_others(self, job: Job) -> None:
        """There is no buffer for so many experts. Ranks that dispatch to another number may have one: those in the
        last that was made are told as if its room did not do, so that all come to _agree() and find out there."""
        if self.used and not job.most and job.topk_idx.shape[1] > 0:
            with contextlib.suppress(xep.CapacityError):
                self._call_for_room(list(self.used.values())[-1], job)

    def _call_for_room(self, buffer: xep.Buffer, job: Job) -> None:
        """Always CapacityError, here and on every rank that dispatches meanwhile; or MismatchError there and here. By
        two tokens to this rank, as wide as those of the job, or as there is room for: where all ranks need more room,
        all do so alike."""
        dtype, width, weights, scales = job.x.dtype, job.x.shape[1], job.topk_weights, job.scales
        if width * dtype.itemsize > buffer.hidden * _WORD:
            dtype, width = torch.float32, buffer.hidden
        if scales is not None:
            scales = scales.new_zeros((2, min(job.nscales, buffer.scales))) if buffer.scales else None
        topk_idx = job.topk_idx.new_full((2, min(job.topk_idx.shape[1], buffer.topk)), -1)
        topk_idx[:, 0] = xep.expert_range(buffer.experts, self._group.nranks, self._group.rank)[0]
        handle = buffer.dispatch(
            job.x.new_zeros((2, width), dtype=dtype),
            topk_idx,
            None if weights is None else weights.new_zeros(topk_idx.shape),
            scales=scales,
            capacity=1,
        )
        handle.release()
        raise AssertionError("two rows were received where one has room")

    def _replace(self, job: Job) -> None:
        """A buffer in which this dispatch fits on every rank, with no less room than there was. Collective: every rank
        comes here at the same dispatch."""
        nranks, least = self._group.nranks, max(2, job.x.element_size()) * job.x.shape[1]  # what 1 byte stands for
        old = self.used.get(job.experts)
        if old is not None:
            old.park()
        tokens, rows, worst = self._agree(job)
        hidden, topk = ceil_div(least, _WORD), min(job.experts, max(job.topk_idx.shape[1], nranks))
        scales, tokens, rows = job.nscales, max(2, int(tokens * _MARGIN), job.most), max(2, int(rows * _MARGIN))
        if old is not None:
            hidden, topk, scales = max(hidden, old.hidden), max(topk, old.topk), max(scales, old.scales)
            tokens, rows = max(tokens, old.tokens), max(rows, old.recv_rows)
        if job.experts in self.used:  # it was not closed: what was received is looked at somewhere
            self._replaced.append(self.used.pop(job.experts))
        options: dict[str, Any] = dict(scales=scales, recv_rows=max(worst, min(rows, nranks * tokens)))
        options.update(dtype=torch.float32, combine_dtype=torch.float32, slots=self._slots)
        self.used[job.experts] = self._make(job.experts, topk, hidden, tokens, **options)
        self.used[job.experts].limit_handles(self._handles)

    def _agree(self, job: Job) -> tuple[int, int, int]:
        """Tokens, rows received, and rows asked for: no rank has more."""
        self._agreement.meet("dispatch")
        nranks, buffers, mine = self._group.nranks, self.buffers(), job.alike()
        words = [*mine.values(), job.x.shape[0], job.worst]
        words += layout_of(job.topk_idx, job.experts, nranks).tokens_per_rank.tolist()
        words += [buffer.slots_held() > 0 for buffer in buffers]
        gathered = self._group.allgather(numpy.array(words, dtype=numpy.int64).tobytes())
        told = numpy.frombuffer(b"".join(gathered), dtype=numpy.int64).reshape(nranks, -1)
        ends = numpy.cumsum([len(mine), 1, 1, nranks])
        alike, tokens, worst, to_ranks, busy = numpy.split(told, ends, axis=1)
        for i, rank in numpy.argwhere(alike.T != alike[:1].T):
            text = f"ranks disagree on {list(mine)[i]}: {alike[0, i]} on rank 0, {alike[rank, i]} on rank {rank}"
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
                self.used = {experts: used for experts, used in self.used.items() if used is not buffer}
                self._replaced = [other for other in self._replaced if other is not buffer]
                buffer.close()
        return int(tokens.max()), int(rows.max()), int(worst.max())


class Pools(dict[tuple[type[Pool], int], Any]):
    """Of a Buffer: by kind, and where tensors are. Each is made when it is first asked for.

    threads: of the host, that copy and reduce. options: of xep.Buffer(), by kind.
    """

    queue: Optional[DeviceQueue] = None  # of the CUDA device, where tensors are of one
    closed = False

    def __init__(self, group: xep.Group, threads: Callable[[xep.Group], int], **options: Any) -> None:
        super().__init__()
        self.group, self.agreement, self.threads = group, Agreement(group), threads
        self.options: dict[str, dict[str, Any]] = {kind: dict(options) for kind in ("normal", "ll")}

    def __missing__(self, key: tuple[type[Pool], int]) -> Any:
        if self.closed:
            raise WrongUse("the Buffer was destroyed")
        kind, where = key
        found = self[key] = kind(self, self.queue_of(place_of(where)) if where else None)
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


def processors(group: xep.Group) -> int:
    """This rank's share of the machine's."""
    return len(os.sched_getaffinity(0)) * group.nnodes // group.nranks


class Core:
    """Collective to make. Derived classes add their calls, and pools of their own."""

    _threads: int = 0
    _destroyed: bool = True
    explicitly_destroy: bool

    def _join(self, group: Any, num_slots: int, timeout: Optional[float], explicitly_destroy: bool) -> None:
        integer("num_slots", num_slots, 1)
        self.group = group
        self.explicitly_destroy = explicitly_destroy
        self._xep = xep.Group(group, timeout=timeout)
        self._nodes = Nodes(self._xep)
        self._pools = Pools(self._xep, self._threads_of, slots=num_slots, timeout=timeout)
        self._agreement = self._pools.agreement
        self._destroyed = False

    @property
    def runtime(self) -> Optional[Runtime]:
        """None once the Buffer is destroyed."""
        return None if self._destroyed else Runtime(self)

    def _usable(self) -> None:
        if self._destroyed:
            raise WrongUse("the Buffer was destroyed")

    @classmethod
    def _threads_of(cls, group: xep.Group) -> int:
        """Of a rank: 0 leaves it to XEP_THREADS."""
        return max(1, min(cls._threads, processors(group))) if cls._threads else 0

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
        last = [None, *(pool.last for pool in self._pools.ordered() if pool.kind == kind)][-1]
        if last is None:
            self._agreement.refuse(why)
            return
        with contextlib.suppress(xep.XepError, TypeError, ValueError, RuntimeError):
            last.dispatch(None, None)

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
        self._destroyed = True
        pools, self._pools.closed = self._pools.ordered(), True
        self._pools.clear()
        if self._xep._inherited:
            self._xep.leave()
            return
        try:
            is_alone = self._goes_without()
            if not is_alone:  # behind it, what all ranks have begun has come, and the rest never will
                self._agreement.meet("destroy", counts=False)
            for pool in pools:
                pool.forget()
            held = sum(buffer.arrays_left() for pool in pools for buffer in pool.buffers())
            told = [bytes([held > 0])]
            if not is_alone:
                told = self._xep.allgather(told[0])
        except xep.XepError as error:
            warnings.warn(f"deep_ep: the memory of a Buffer stays mapped: {error.reason}", ResourceWarning)
            self._xep.leave()
            return
        if held:
            text = f"received tensors of {held} dispatches outlive their Buffer: its memory stays mapped"
            warnings.warn(text, ResourceWarning)
        if b"\1" in told:
            self._xep.leave()
        else:
            self._xep.close()

    def __del__(self) -> None:
        if self._destroyed or sys.is_finalizing():
            return
        if self.explicitly_destroy and not self._xep._inherited:
            warnings.warn(
                "deep_ep.Buffer: destroy() was not called, its memory stays mapped", ResourceWarning, source=self
            )
            self._xep.leave()
            return
        close_in_time(self._close, self._xep)
