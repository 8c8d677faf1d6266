# SPDX-License-Identifier: BSD-3-Clause
"""Events: what an operation in flight can be waited for by."""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

import xep


class EventHandle:
    """The end of an operation. One that is made by itself is reached at once: on a CPU, what was called has been
    done."""

    def __init__(self, request: Optional[xep.Request] = None, wait: Optional[Callable[[], Any]] = None) -> None:
        self.request = request
        self._wait = wait if wait is not None or request is None else request.wait

    def current_stream_wait(self) -> None:
        """Blocks until the operation is done; raises its error."""
        if self._wait is not None:
            self._wait()


class EventOverlap:
    """An event, or none, that can be waited for by name or at the end of a ``with`` block.

    extra_tensors are kept alive as long as this object.
    """

    def __init__(self, event: Optional[EventHandle] = None, extra_tensors: Optional[Sequence[Any]] = None) -> None:
        self.event = event
        self.extra_tensors = extra_tensors

    def current_stream_wait(self) -> None:
        """Blocks until the operation is done. There must be an event."""
        assert self.event is not None, (
            "there is no event: the operation was not asked to be asynchronous (async_finish)"
        )
        self.event.current_stream_wait()

    def __enter__(self) -> "EventOverlap":
        """Computation that overlaps with the operation goes into the block; the block ends when both have."""
        return self

    def __exit__(self, _kind: Any, _error: Any, _traceback: Any) -> None:
        if self.event is not None:
            self.event.current_stream_wait()


def request_of(previous_event: Optional[EventOverlap]) -> Optional[xep.Request]:
    """What an operation is to begin after; None when that is done."""
    if previous_event is None:
        return None
    if not isinstance(previous_event, EventOverlap):
        raise TypeError(f"previous_event: expected an EventOverlap, got {type(previous_event).__name__}")
    request = previous_event.event.request if previous_event.event is not None else None
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
