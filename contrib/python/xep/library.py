# SPDX-License-Identifier: BSD-3-Clause
"""What the process is bound to: versions, configuration, modes, the log."""

from __future__ import annotations

import dataclasses
import re
from typing import Callable, NamedTuple, Optional

from . import _structs
from ._lib import check, lib


def _text(value: Optional[bytes]) -> str:
    return (value or b"").decode(errors="replace")


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


def version() -> str:
    """Of the library at run time."""
    return _text(lib.xep_version_string())


def library_info() -> LibraryInfo:
    """Versions and files of xep, UCX and PMIx in this process."""
    own = _structs.LibraryInfo()
    check(lib.xep_library_query(own))
    return LibraryInfo(**{f.name: _text(getattr(own, f.name)) for f in dataclasses.fields(LibraryInfo)})


def config() -> list[Variable]:
    """Every configuration variable."""
    found: list[Variable] = []

    def note(_arg, name, value, default, help_text):
        found.append(Variable(_text(name), _text(value), _text(default), _text(help_text)))
        return 0

    lib.xep_config_each(_structs.ConfigFn(note), None)
    return found


def modes() -> list[Mode]:
    """Every plugin file found, also those refused."""
    found: list[Mode] = []

    def note(_arg, name, path, brief, reason):
        found.append(Mode(_text(name), _text(path), _text(brief), None if reason is None else _text(reason)))
        return 0

    lib.xep_mode_each(_structs.ModeFn(note), None)
    return found


def default_timeout() -> Optional[float]:
    """Seconds of XEP_TIMEOUT; None: no deadline."""
    text = next((v.value for v in config() if v.name == "XEP_TIMEOUT"), "inf")
    match = re.fullmatch(r"(\d+)(ms|s|m|)", text.strip(), re.IGNORECASE)
    if match is None:
        return None
    return int(match[1]) * {"": 0.001, "ms": 0.001, "s": 1.0, "m": 60.0}[match[2].lower()]


# the library keeps the pointer: it must stay alive as long as the process
_log_callbacks: list = []


def set_log(fn: Optional[Callable[[int, str], None]]) -> None:
    """Sends log messages to fn(level, message), 0 error .. 3 debug; None: to stderr again. fn must not call xep."""
    if fn is None:
        lib.xep_log_set(_structs.LogFn(), None)
        return
    callback = _structs.LogFn(lambda _arg, level, message: fn(level, _text(message)))
    _log_callbacks.append(callback)
    lib.xep_log_set(callback, None)
