# SPDX-License-Identifier: BSD-3-Clause
"""Calls that one rank refuses alone: its next one must not pair with the call that the other ranks are in.

xep counts the calls that it refuses, and ranks whose counts differ are told so. What is refused here has not reached
xep: it counts for the buffer of the last such call, which the others most likely use now. Before there is one, ranks
tell one another: which call each is in, and how many it has refused.
"""

from __future__ import annotations

import contextlib
import functools
import struct
from typing import Any, Callable, Optional, TypeVar

import xep

from ._check import Wrong

Call = TypeVar("Call", bound=Callable[..., Any])


class Agreement:
    """Of a Buffer: what all its ranks call together, where no buffer of xep has counted it."""

    _WORD = struct.Struct("<I32s220s")  # how many calls were refused, the call, why

    def __init__(self, group: xep.Group) -> None:
        self._group = group
        self._refused, self._most, self._why = 0, 0, ""

    def refuse(self, why: str) -> None:
        self._refused, self._why = self._refused + 1, why

    def meet(self, call: str, counts: bool = True) -> None:
        """MismatchError on all ranks where some are in another call, or, if that counts, have refused more of them. The
        others then refuse as many. Collective."""
        if counts and self._refused < self._most:
            self.refuse(self._why)
            raise xep.MismatchError(xep.Status.ERR_MISMATCH, f"this {call} is refused on this rank, too: {self._why}")
        sent = self._WORD.pack(self._refused, call.encode(), self._why.encode()[:220])
        words = [self._WORD.unpack(one) for one in self._group.allgather(sent)]
        told = [(count, *(text.rstrip(b"\0").decode(errors="replace") for text in texts)) for count, *texts in words]
        most = max(count for count, _, _ in told)
        odd = next(rank for rank, word in enumerate(told) if word[0] == most)
        more, why = most - min(count for count, _, _ in told), told[odd][2]
        refused = f"{more} of those before it failed on rank {odd} alone ({why})" if more else ""
        for rank, (_, theirs, _) in enumerate(told):
            if theirs != call:
                text = f"rank {rank} is in {theirs}, this rank in {call} (all ranks call the same, in the same order)"
                raise xep.MismatchError(xep.Status.ERR_MISMATCH, f"{text}{refused and '; '}{refused}")
        if more and counts:
            self._most = most
            self._why = refused if self._refused < most else self._why
            raise xep.MismatchError(xep.Status.ERR_MISMATCH, f"this {call} is refused on all ranks: {refused}")


def count_refused(buffer: Optional[xep.Buffer], agreement: Agreement, why: str) -> None:
    """As if xep had refused it."""
    if buffer is None:
        agreement.refuse(why)
    else:
        with contextlib.suppress(xep.XepError, TypeError, ValueError, RuntimeError):
            buffer.dispatch(None, None)


def counted(last: str) -> Callable[[Call], Call]:
    """A collective call; the method of that name tells the buffer of the last one."""

    def wrap(call: Call) -> Call:
        @functools.wraps(call)
        def made(self: Any, *arguments: Any, **options: Any) -> Any:
            try:
                return call(self, *arguments, **options)
            except Wrong as wrong:
                if not wrong.counted:  # in another call, of which this one is made
                    wrong.counted = True
                    count_refused(getattr(self, last)(), self._agreement, str(wrong))
                raise

        return made  # type: ignore[return-value]

    return wrap
