# SPDX-License-Identifier: BSD-3-Clause
"""Events: what an operation in flight can be waited for by."""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

import torch

import xep
from xep import _ext

from ..arguments import WrongType, calls_of


class EventHandle:
    """The end of an operation. One that is made by itself is for what was enqueued on the current stream of the CUDA
    device; on a CPU it is reached at once, as what was called has been done.

    wait: how it is waited for, where that takes more than the request.
    """

    def __init__(self, request: Optional[xep.Request] = None, wait: Optional[Callable[[], Any]] = None) -> None:
        self.request = request
        self.has_more = wait is not None
        self.of_stream: Optional[_ext.Event] = None
        self._wait = wait if wait is not None or request is None else request.wait
        if self._wait is None and torch.cuda.is_initialized():  # a program of CPU tensors alone never does that
            device = torch._C._cuda_getDevice()
            self.of_stream = _ext.Event(device, torch._C._cuda_getCurrentRawStream(device))

    def current_stream_wait(self) -> None:
        """Blocks until the operation is done; raises its error. On a device the current stream waits, and nobody
        else."""
        if self._wait is not None:
            self._wait()
        elif self.of_stream is not None:
            self.of_stream.wait(torch._C._cuda_getCurrentRawStream(torch._C._cuda_getDevice()))

    wait = current_stream_wait

    def synchronize(self) -> None:
        """Blocks until the operation is done, wherever it is."""
        if self._wait is not None:
            self._wait()
        elif self.of_stream is not None:
            self.of_stream.synchronize()


class EventOverlap:
    """An event, or none, that can be waited for by name or at the end of a ``with`` block.

    extra_tensors are kept alive as long as this object.
    """

    hook_after_wait: Optional[Callable[[], Any]] = None
    _lets_go = False  # at the end of the next block

    def __init__(self, event: Optional[EventHandle] = None, extra_tensors: Optional[Sequence[Any]] = None) -> None:
        self.event = event
        self.extra_tensors = extra_tensors

    def current_stream_wait(self, release_handle: bool = False) -> Any:
        """Blocks until the operation is done; on a device the current stream waits. There must be an event;
        release_handle: there is none afterwards, and what it kept alive is let go. Returns what the hook returned,
        where one was registered."""
        assert self.event is not None, (
            "there is no event: the operation was not asked to be asynchronous "
            "(async_finish, async_with_compute_stream), or its event was released"
        )
        self.event.current_stream_wait()
        hook, self.hook_after_wait = self.hook_after_wait, None
        result = hook() if hook is not None else None
        if release_handle:
            self.event = None
        return result

    def wait(self) -> Any:
        """current_stream_wait()."""
        return self.current_stream_wait()

    def register_hook_after_wait(self, hook_after_wait: Callable[[], Any]) -> None:
        """hook_after_wait is called once, behind the next wait."""
        assert self.hook_after_wait is None, "there is a hook already: expected one for each wait"
        self.hook_after_wait = hook_after_wait

    def __call__(self, release_handle: bool = False) -> "EventOverlap":
        """``with event(release_handle=True):`` releases the event at the end of the block."""
        self._lets_go = release_handle
        return self

    def __enter__(self) -> "EventOverlap":
        """Computation that overlaps with the operation goes into the block; the block ends when both have."""
        return self

    def __exit__(self, _kind: Any, _error: Any, _traceback: Any) -> None:
        lets_go, self._lets_go = self._lets_go, False
        if self.event is not None:
            self.current_stream_wait(lets_go)


def event_of(previous: Any, name: str = "previous_event") -> Optional[EventHandle]:
    """Of an EventHandle, or what has one: there need be none in it."""
    event = getattr(previous, "event", previous)
    if event is not None and not isinstance(event, EventHandle):
        raise WrongType(f"{name}: expected an EventHandle or EventOverlap, got {type(previous).__name__}")
    return event


def request_of(previous_event: Any) -> Optional[xep.Request]:
    """What an operation of CPU tensors is to begin after; None when that is done."""
    event = event_of(previous_event)
    if event is None:
        return None
    if event.has_more or event.of_stream is not None:
        event.synchronize()
        return None
    request = event.request
    return None if request is None or request.done() else request


class CommStream:
    """Stands for the stream that communicates: here operations are waited for one by one, so it only has to be
    there."""

    def __enter__(self) -> "CommStream":
        return self

    def __exit__(self, *_exception: Any) -> None:
        pass

    def wait(self, event: Optional[Any] = None) -> None:
        """Waits for an EventHandle or EventOverlap."""
        if event is not None:
            event.current_stream_wait()

    wait_event = wait

    def wait_stream(self, _stream: Any) -> None:
        """What was called before on any stream has been done."""

    def synchronize(self) -> None:
        """Nothing is queued here."""

    def record_event(self, event: Optional[EventHandle] = None) -> EventHandle:
        return event if event is not None else EventHandle()


calls_of(EventHandle, EventOverlap, CommStream)
