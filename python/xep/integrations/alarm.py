# SPDX-License-Identifier: BSD-3-Clause
"""One rank's error becomes every rank's, with its reason, while they wait for that rank.

A rank that fails writes why into the store of its process group, once: the first reason stays. A rank that has been in
an operation for longer than PATIENCE looks there, on a thread of its own, four times a second; what it finds ends the
operation. So nobody has to wait for a deadline, and an operation that is quick costs two assignments and a lock.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import weakref
from typing import Any, Callable, Iterator, Optional

import torch.distributed as dist

import xep

PATIENCE = 1.0  # seconds in an operation before the store is asked
LOOK_EVERY = 0.25
LINGER = 5.0  # for which a process that ends waits for the others to hear why: the store may end with it

# what happens to a rank because another one failed
_CONSEQUENCES = (xep.AbortedError, xep.DeadlineError, xep.PeerError, xep.BootError, xep.BrokenError, TimeoutError)


class RankError(RuntimeError):
    """Some rank failed; the sentence says which, and why."""


class Alarm:
    """Of one process group; entered around each operation in which ranks wait for one another.

    name: the same on every rank and used once. give_up: ends what this rank is waiting in, from any thread.
    """

    def __init__(self, group: Any, name: str, give_up: Callable[[], None]) -> None:
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self.reason: Optional[str] = None
        self._told = False
        self._store = dist.PrefixStore(f"xep/{name}", group.get_group_store().clone())
        self._give_up = give_up
        self._pid = os.getpid()
        self._since: Optional[float] = None
        self._looking = threading.Lock()
        self._watched = False
        _alarms.add(self)
        _watch_for_the_end()

    # ---- an operation ----

    def __enter__(self) -> "Alarm":
        if self.reason is not None:
            raise RankError(self.reason)
        if not self._watched:
            self._watched = True
            threading.Thread(target=_watch, args=(weakref.ref(self),), name="xep-alarm", daemon=True).start()
        self._since = time.monotonic()
        return self

    def __exit__(self, _kind: Any, error: Any, _traceback: Any) -> None:
        if self._is_a_fork():
            return
        with self._looking:  # the thread is not in the store when this rank goes on, to its end perhaps
            self._since = None
        if error is None:
            return
        if isinstance(error, _CONSEQUENCES):
            self.look()
            if self.reason is not None:
                raise RankError(self.reason) from error
        self.tell(error)

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Around what runs on this rank alone while the others wait for it."""
        try:
            yield
        except BaseException as error:
            self.tell(error)
            raise

    # ---- reasons ----

    def tell(self, error: BaseException) -> None:
        """Of this rank, to all others. Local; nothing more happens on this group."""
        if self.reason is not None or self._is_a_fork():
            return
        self.reason = f"rank {self.rank} failed: {type(error).__name__}: {error}"
        self._told = True
        try:
            self._store.compare_set("reason", "", self.reason)
        except RuntimeError:  # the store is gone, and with it whoever would have looked there
            pass
        self._give_up()

    def look(self) -> None:
        """Whether a rank has told."""
        try:
            if self.reason is None and self._store.check(["reason"]):
                self.reason = self._store.get("reason").decode(errors="replace")
                self._store.add("heard", 1)
                self._give_up()
        except RuntimeError:
            pass

    def linger(self, deadline: float) -> None:
        """Until all others have heard what this rank told, or time.monotonic() is past the deadline."""
        try:
            while self._told and time.monotonic() < deadline and self._store.add("heard", 0) < self.ranks - 1:
                time.sleep(LOOK_EVERY / 4)
        except RuntimeError:
            pass

    def look_if_long(self) -> None:
        """On the thread."""
        with self._looking:
            since = self._since
            if since is not None and time.monotonic() - since > PATIENCE:
                self.look()

    def _is_a_fork(self) -> bool:
        """A child of this rank is no rank: what happens to it is its own."""
        return os.getpid() != self._pid


def _watch(found: weakref.ref[Any]) -> None:
    """A daemon; it is in no call outside of Python unless this rank is in an operation."""
    while True:
        time.sleep(LOOK_EVERY)
        alarm = found()
        if alarm is None or alarm.reason is not None:
            return
        alarm.look_if_long()
        del alarm


_alarms: weakref.WeakSet[Any] = weakref.WeakSet()
_watching_for_the_end = False


def tell_all(error: BaseException) -> None:
    """Of what ends this process, to the ranks of all its groups. When it returns they have heard why, or LINGER is
    over."""
    alarms = [alarm for alarm in list(_alarms) if not alarm._is_a_fork()]
    for alarm in alarms:
        alarm.tell(error)
    deadline = time.monotonic() + LINGER
    for alarm in alarms:
        alarm.linger(deadline)


def _watch_for_the_end() -> None:
    """An exception that nobody catches, wherever it comes from, ends this process: the others hear why."""
    global _watching_for_the_end
    if _watching_for_the_end:
        return
    _watching_for_the_end = True
    before = sys.excepthook

    def hook(kind: Any, error: Any, traceback: Any) -> None:
        before(kind, error, traceback)
        tell_all(error)

    sys.excepthook = hook
