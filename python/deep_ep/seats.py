# SPDX-License-Identifier: BSD-3-Clause
"""Which handles of normal mode keep their slots: those that were used last.

A program may keep as many handles as it likes, slots are few. A handle that has given its slot back still knows its
routing, and gets a slot again when it is used: by a dispatch, which is collective. So every rank must know of a handle
whether it has one, and that is decided by nothing but the order of the calls, which is the same everywhere; not by what
a rank has dropped.

A dispatch that was captured into a CUDA graph writes into its slot whenever the graph is launched. So its handle, while
the program has that, is not asked for the slot.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Callable, NamedTuple, Optional, Protocol

import xep


class Sent(NamedTuple):
    """A dispatch whose rows are counted; they are here when request, where there is one, is done."""

    handle: xep.Handle
    request: Optional[xep.Request]


class Sitter(Protocol):
    """What holds a slot: a dispatch's handle."""

    def park(self) -> None: ...

    def drop(self) -> None: ...


class Seat:
    """A dispatch that may hold a slot: for its handle, while the program has that, and for what is in flight."""

    request: Optional[xep.Request] = None  # the last one begun
    handle: Callable[[], Optional[Sitter]] = staticmethod(lambda: None)

    def __init__(self, made: xep.Handle) -> None:
        self.made = weakref.ref(made)

    def begun(self, request: xep.Request) -> None:
        """After settle()."""
        self.request = request

    def finish(self, sent: Sent) -> Sent:
        """Waits for the rows of what was just begun; raises its error."""
        if sent.request is not None:
            sent.request.wait()
            self.request = None
        return Sent(sent.handle, None)

    def settle(self) -> None:
        """Waits for what is in flight; an error of it is told by its own event."""
        if self.request is not None:
            with contextlib.suppress(xep.XepError):
                self.request.wait()
            self.request = None

    def leave(self) -> None:
        self.settle()
        handle = self.handle()
        if handle is not None:
            handle.park()
        made = self.made()  # an event that is kept has it too
        if made is not None:
            made.release()

    def drop(self) -> None:
        handle = self.handle()
        if handle is not None:
            handle.drop()


class Seats:
    """The last dispatches, that used last at the end."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken: list[Seat] = []
        self._captured: weakref.WeakSet[Seat] = weakref.WeakSet()

    def make_room(self) -> None:
        """For one more."""
        while len(self.taken) >= self.most:
            seat = self.taken.pop(0)
            if seat.request is not None or seat.handle() is not None or seat.made() is not None:
                seat.leave()

    def leave(self) -> None:
        for seat in self._all():
            seat.leave()

    def drop(self) -> None:
        """What was dispatched is gone: nothing is waited for."""
        for seat in self._all():
            seat.drop()

    def add(self, sent: Sent, captured: bool) -> Seat:
        seat = Seat(sent.handle)
        seat.request = sent.request
        if captured:
            self._captured.add(seat)
        else:
            self.taken.append(seat)
        return seat

    def use(self, seat: Seat) -> None:
        if seat not in self._captured:
            self.taken.remove(seat)
            self.taken.append(seat)

    def remove(self, seat: Seat) -> None:
        if seat in self._captured:
            self._captured.remove(seat)
        else:
            self.taken.remove(seat)

    def _all(self) -> list[Seat]:
        """Of none of which is known any more that it holds a slot."""
        every = self.taken + list(self._captured)
        self.taken, self._captured = [], weakref.WeakSet()
        return every
