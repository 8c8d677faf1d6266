# SPDX-License-Identifier: BSD-3-Clause
"""Calls that one rank refuses alone: its next one must not pair with the call that the other ranks are in.

xep counts the calls that it refuses, and ranks whose counts differ are told so. What is refused here has not reached
xep: it counts for the buffer of the last such call, which the others most likely use now.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, Optional, TypeVar

import xep

from ._check import Wrong

Call = TypeVar("Call", bound=Callable[..., Any])


def count_refused(buffer: Optional[xep.Buffer]) -> None:
    """As if xep had refused it. None: no rank has begun anything there."""
    if buffer is not None:
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
                    count_refused(getattr(self, last)())
                raise

        return made  # type: ignore[return-value]

    return wrap
