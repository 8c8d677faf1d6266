# SPDX-License-Identifier: BSD-3-Clause
"""One operation each: what it begins after, where its results are allocated, and what is to be waited for in the end.

Operations of CPU tensors are xep's requests. Those of tensors of a CUDA device are in the order of streams: on the
program's, where it waits for them anyway; else, as DeepEP's, on one that a Buffer has, which waits for the program's,
or for previous_event alone, and at the end of which there is an event.

Received tensors are slots of a buffer, of which torch's allocator knows nothing. So when the last tensor of a slot has
gone an event is recorded, on the stream that was current in the call that received it and on the current one; an
operation on another stream waits for it, before peers may write there again. That is what the allocator does with
memory of its own. A handle that is kept has the slot still: there the next operation on another stream finds out, or
the slot's going back.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from typing import Any, Callable, Optional, Union

import torch

import xep
from xep import _ext

from .arguments import leave_to_python
from .utils.event import EventHandle, EventOverlap, event_of


class Ending:
    """Done once: by a hook, an event, or the call itself. end: puts results where the library did not, on this stream
    of a CUDA device."""

    hooked = False  # it is left to a hook

    def __init__(
        self, request: Optional[xep.Request], end: Optional[Callable[[], None]] = None, stream: Any = None
    ) -> None:
        self.request, self._end, self.stream = request, end, stream

    def wait(self) -> None:
        if self.request is None:
            return
        self.request.wait()
        self.request, end, self._end = None, self._end, None  # which may have what has this
        if end is not None:
            with torch.cuda.stream(self.stream) if self.stream is not None else contextlib.nullcontext():
                end()

    def hook(self) -> Callable[[], None]:
        self.hooked = True
        return self.wait


leave_to_python(Ending.wait)  # a hook


def is_capturing() -> bool:
    """Whether calls on the current stream are kept for a CUDA graph."""
    return torch._C._cuda_isCurrentStreamCapturing()


class OnStream:
    """Inside, this stream is current."""

    def __init__(self, stream: Any) -> None:
        self._ids = (stream.stream_id, stream.device_index, stream.device_type)

    def __enter__(self) -> None:
        self._device = torch._C._cuda_getDevice()
        self._before = torch._C._cuda_getCurrentStream(self._ids[1])
        self._set(*self._ids)

    def __exit__(self, *_exception: Any) -> None:
        self._set(*self._before)  # its device is current then, too
        if self._device != self._ids[1]:
            torch._C._cuda_setDevice(self._device)

    @staticmethod
    def _set(stream: int, device: int, kind: int) -> None:
        torch._C._cuda_setStream(stream_id=stream, device_index=device, device_type=kind)


class HostOrdering(_ext.Context):
    """An operation of CPU tensors: a context that does nothing."""

    stream = None

    def __init__(self, after: Optional[xep.Request], asynchronous: bool) -> None:
        self.after, self.wait = after, not asynchronous
        self.quiet = self.wait  # nobody is to be told of its end

    copy = staticmethod(torch.clone)

    def end(self, left: Union[xep.Request, Ending, None], *_tensors: Any) -> EventOverlap:
        """left: None where all has been done."""
        if self.wait:
            return EventOverlap()
        return EventOverlap(EventHandle(left.request, left.wait) if isinstance(left, Ending) else EventHandle(left))


HERE = HostOrdering(None, False)  # where it is done when the call returns


class Slot:
    """Received rows. Once no tensor of them is alive, the next operation has to come after all that reads them."""

    def __init__(self, queue: "DeviceQueue", handle: xep.Handle) -> None:
        self._queue, self._received_on = queue, queue.receiver
        self._handle, self._memory = weakref.ref(handle), weakref.ref(handle._memory, self._free)
        self._readers: Optional[list[_ext.Event]] = None  # None: it may still be read
        queue.slots.add(self)

    def is_viewed(self) -> bool:
        """A tensor of the slot refers to its memory, as the handle does, while it has the slot."""
        handle, memory = self._handle(), self._memory()
        held = handle is not None and handle._memory is not None
        return memory is not None and sys.getrefcount(memory) > 2 + held  # here it is two more

    def look(self, stream: int) -> None:
        if self._readers is None and not self.is_viewed():
            self._readers = self._queue.mark(self._received_on, stream)

    def look_again(self) -> None:
        """After a tensor of it was had once more."""
        self._readers = None

    def _free(self, _memory: Any) -> None:
        """What has read the slot is before the readers, or else before now: the stream of the last operation needs no
        further event for that."""
        if sys.is_finalizing():
            return
        queue = self._queue
        queue.slots.discard(self)
        current = torch._C._cuda_getCurrentRawStream(queue.index)
        if self._readers is None and self._received_on == current == queue.last:
            queue.done.record(current)  # nearly always, and so by no further call of Python
        elif self._readers is None and not is_capturing():
            self._readers = queue.mark(self._received_on, queue.last)
            if queue.last in (self._received_on, current):
                queue.done.record(queue.last)
        queue.freed.extend(self._readers or ())


class DeviceQueue:
    """What a Buffer has of a CUDA device: a stream of its own, for what is not to be in the order of the program's; and
    what its next operation has to wait for. Its operations come one after the other, whichever streams they are on. As
    long as they are all on one stream of the program's, the order of that is enough, and only its event is recorded."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.index = device, device.index
        self.comm = torch.cuda.Stream(device, priority=-1)
        self.alone: Optional[int] = None  # the stream of the program's that all operations were on; None: several
        self.done: Any = None  # an event behind the last operation, and behind what has read slots on its stream
        self.slots: set[Slot] = set()
        self.freed: list[_ext.Event] = []
        self.streams: set[int] = set()  # of the program's, that operations were on
        self.last: Optional[int] = None  # stream of the last operation
        self.receiver = 0  # the program's stream, for which the present operation receives
        self._current: tuple[tuple, Any] = ((), None)  # the one that was, and its object

    def current(self) -> Any:
        """torch's object of the current stream, which is made only where that was another one the last time."""
        ids = torch._C._cuda_getCurrentStream(self.index)
        if ids != self._current[0]:
            stream = torch.cuda.Stream(stream_id=ids[0], device_index=ids[1], device_type=ids[2])
            self._current = ids, stream
        return self._current[1]

    def ordering(self, previous_event: Any, asynchronous: bool, on_comm: bool) -> "DeviceOrdering":
        if previous_event is None and not (asynchronous or on_comm):
            return DeviceOrdering(self)
        return CommOrdering(self, previous_event, asynchronous, on_comm)

    def begin(self, stream: int) -> None:
        """The stream comes after the last operation. Outside of graphs, which are ordered by whoever launches them."""
        if self.last not in (None, stream) and not is_capturing():
            self.alone = None
            self.done.wait(stream)

    def end(self, stream: int) -> None:
        if self.done is None and not is_capturing():
            self.alone = stream if stream in self.streams else None
            self.last, self.done = stream, _ext.Event(self.index, stream)
        elif self.done is not None and self.done.record(stream):
            self.last = stream

    def mark(self, received_on: int, stream: Optional[int]) -> list[_ext.Event]:
        """Events behind what is on a stream and on the current one; but for the stream of the last operation, or of one
        that begins, as all later ones come after that."""
        current = torch._C._cuda_getCurrentRawStream(self.index)
        return [_ext.Event(self.index, each) for each in {received_on, current} - {stream}]

    def look(self, stream: int) -> None:
        """Marks what has read slots that nobody looks at any more, although a handle has them. stream: of the operation
        that begins."""
        if self.slots and not is_capturing():
            for slot in list(self.slots):
                slot.look(stream)

    def free_slots(self) -> None:
        """The current stream comes after all that reads slots which were given back."""
        while self.freed and not is_capturing():
            self.freed.pop().wait(torch._C._cuda_getCurrentRawStream(self.index))

    def order(self, waiter: Any, other: Any) -> None:
        """waiter comes after what is on the other stream by now."""
        _ext.stream_wait(self.index, waiter.cuda_stream, other.cuda_stream)


class DeviceOrdering:
    """An operation of tensors of a CUDA device, on the program's stream, whichever is current then: what is enqueued
    comes before it, and what will be behind it. wait: for counts; False: its second part is left to a hook."""

    after: Optional[xep.Request] = None
    stream: Any = None  # of what is left to a hook
    quiet = False

    def __init__(self, queue: DeviceQueue, wait: bool = True) -> None:
        self._queue, self.wait = queue, wait

    def __enter__(self) -> "DeviceOrdering":
        queue = self._queue
        queue.receiver = stream = torch._C._cuda_getCurrentRawStream(queue.index)
        if stream != queue.alone:
            queue.streams.add(stream)
            queue.look(stream)
            queue.begin(stream)
        self.quiet = self.wait and len(queue.streams) == 1
        if not self.wait:
            self.stream = queue.current()
        return self

    def __exit__(self, *_error: Any) -> None:
        """DeviceQueue.end(), nearly always without calling it."""
        queue = self._queue
        if queue.done is None:
            queue.end(queue.receiver)
        elif queue.done.record(queue.receiver):
            queue.last = queue.receiver

    def results(self, *shapes: tuple[str, tuple, torch.dtype]) -> dict[str, torch.Tensor]:
        """Of each name, shape and type a tensor to write to."""
        return {name: torch.empty(shape, dtype=dtype, device=self._queue.device) for name, shape, dtype in shapes}

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.results(("copy", tuple(tensor.shape), tensor.dtype))["copy"].copy_(tensor)

    def end(self, _request: Any, *tensors: Optional[torch.Tensor]) -> EventOverlap:
        """tensors: all that was given and is returned; they may be of another stream, where there are several."""
        if len(self._queue.streams) > 1:
            for tensor in tensors:
                if tensor is not None:
                    tensor.record_stream(self._queue.current())
        return EventOverlap()


class CommOrdering(DeviceOrdering):
    """One on the stream of the Buffer, which is current inside; DeepEP's rules:

    It begins after previous_event, or after all that is enqueued. asynchronous: its end is an event, and tensors are
    recorded on both streams; else the current stream waits for it. Results are allocated as for the current stream;
    on_comm: as for that of the Buffer.
    """

    def __init__(self, queue: DeviceQueue, previous_event: Any, asynchronous: bool, on_comm: bool) -> None:
        super().__init__(queue)
        self._previous, self._asynchronous, self._on_comm = event_of(previous_event), asynchronous, on_comm
        self._inside = OnStream(queue.comm)

    def __enter__(self) -> "CommOrdering":
        queue = self._queue
        self._compute = queue.current()
        queue.receiver = self._compute.cuda_stream
        queue.look(queue.comm.cuda_stream)
        if self._previous is None:
            queue.order(queue.comm, self._compute)
        self._inside.__enter__()
        queue.begin(queue.comm.cuda_stream)
        if self._previous is not None:
            self._previous.current_stream_wait()
        return self

    def __exit__(self, kind: Any = None, *_error: Any) -> None:
        self._queue.end(self._queue.comm.cuda_stream)
        self._inside.__exit__()
        if kind is not None:
            self._queue.order(self._compute, self._queue.comm)  # for what was enqueued until then

    def results(self, *shapes: tuple[str, tuple, torch.dtype]) -> dict[str, torch.Tensor]:
        with contextlib.nullcontext() if self._on_comm else OnStream(self._compute):
            return super().results(*shapes)

    def end(self, _request: Any, *tensors: Optional[torch.Tensor]) -> EventOverlap:
        comm, compute = self._queue.comm, self._compute
        for tensor in tensors:
            if tensor is not None:
                tensor.record_stream(compute)
                if self._asynchronous:
                    tensor.record_stream(comm)
        if self._asynchronous:
            return EventOverlap(EventHandle())  # of the current stream, which is comm
        self._queue.order(compute, comm)
        return EventOverlap()


Ordering = Union[HostOrdering, DeviceOrdering]
