# SPDX-License-Identifier: BSD-3-Clause
"""What the process is bound to: versions, configuration, modes, the log, the trace."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
from typing import NamedTuple, Optional, Union

from . import _ext
from ._ext import set_log as set_log
from ._ext import version as version
from .dtypes import Dtype, Quant, Rows


@dataclasses.dataclass(frozen=True)
class LibraryInfo:
    """``xep_library_info_t``; paths are files, pmix_path says why when there is no PMIx."""

    version: str
    build: str
    library_path: str
    ucx_version: str
    ucx_path: str
    pmix_version: str
    pmix_path: str
    simd: str


class Variable(NamedTuple):
    """One configuration variable: its value in force and its default, as text."""

    name: str
    value: str
    default: str
    help: str


class Mode(NamedTuple):
    """A plugin file that was found. reason: None when it loads, else why it was refused."""

    name: str
    path: str
    brief: str
    reason: Optional[str]


def library_info() -> LibraryInfo:
    """Versions and files of xep, UCX and PMIx in this process."""
    return LibraryInfo(*_ext.library_info())


def config() -> list[Variable]:
    """Every configuration variable."""
    return [Variable(*texts) for texts in _ext.config()]


def modes() -> list[Mode]:
    """Every plugin file found, also those refused."""
    return [Mode(*texts) for texts in _ext.modes()]


class ModeInfo(NamedTuple):
    """``xep_mode_info_t``: what a mode can. features: names of FEATURES; arrangements, casts of a dispatch and of a
    combine; types that a dispatch moves, that it casts from, that a combine sums."""

    features: frozenset[str]
    casts: frozenset[Quant]
    combine_casts: frozenset[Quant]
    arrangements: frozenset[Rows]
    dtypes: frozenset[Dtype]
    cast_dtypes: frozenset[Dtype]
    combine_dtypes: frozenset[Dtype]


# XEP_CAN_*, by bit
FEATURES = ("mask", "pieces", "in_place", "nodes", "owners", "expand", "capture", "weigh", "return_weights",
            "sum_at_owner", "scales_by_column", "expert_stats", "payloads")  # fmt: skip


def mode_query(mode: Optional[str] = None, memory: str = "host") -> ModeInfo:
    """What a mode can where rows are in that memory ("host", "cuda"); what else is asked for is UnsupportedError.
    Local, needs no group and no device."""
    features, casts, combine_casts, arrangements, *dtypes = _ext.mode_query(mode, memory)
    return ModeInfo(
        frozenset(name for bit, name in enumerate(FEATURES) if features >> bit & 1),
        frozenset(quant for quant in Quant if casts >> quant & 1),
        frozenset(quant for quant in Quant if combine_casts >> quant & 1),
        frozenset(rows for rows in Rows if arrangements >> rows & 1),
        *(frozenset(dtype for dtype in Dtype if types >> dtype & 1) for types in dtypes),
    )


def use_logging(logger: Union[str, logging.Logger] = "xep") -> None:
    """The library's messages go to a logger of Python's logging from now on, those that XEP_LOG lets through."""
    levels = (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)
    log = logging.getLogger(logger) if isinstance(logger, str) else logger
    set_log(lambda level, message: log.log(levels[level], "%s", message))


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


def default_timeout() -> Optional[float]:
    """Seconds of XEP_TIMEOUT; None: no deadline."""
    text = next((v.value for v in config() if v.name == "XEP_TIMEOUT"), "inf")
    match = re.fullmatch(r"(\d+)(ms|s|m|)", text.strip(), re.IGNORECASE)
    if match is None:
        return None
    return int(match[1]) * {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0}[match[2].lower()]
