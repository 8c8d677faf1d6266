# SPDX-License-Identifier: BSD-3-Clause
"""The program's own spans in the trace of XEP_TRACE, beside those of the library."""

from __future__ import annotations

import contextlib

from . import _ext


class span(contextlib.ContextDecorator):
    """What is done inside is a span of the trace, on the track of its thread; without a trace nothing is.

        with xep.span("experts"):
            y = experts(handle.recv.x)

    It may decorate a function, too. 31 bytes of the name are kept.
    """

    __slots__ = ("name", "_begin")

    def __init__(self, name: str):
        if not isinstance(name, str) or "\0" in name:
            raise TypeError(f"invalid name of a span: {name!r} (a str without null characters)")
        self.name = name
        self._begin = 0

    def _recreate_cm(self) -> span:
        return span(self.name)

    def __enter__(self) -> span:
        self._begin = _ext.trace_begin()
        return self

    def __exit__(self, *raised: object) -> None:
        _ext.trace_end(self.name, self._begin)
