# SPDX-License-Identifier: BSD-3-Clause
"""What the process is bound to: versions, configuration, modes, the log."""

from __future__ import annotations

import dataclasses
import re
from typing import NamedTuple, Optional

from . import _ext
from ._ext import set_log as set_log
from ._ext import version as version


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


def default_timeout() -> Optional[float]:
    """Seconds of XEP_TIMEOUT; None: no deadline."""
    text = next((v.value for v in config() if v.name == "XEP_TIMEOUT"), "inf")
    match = re.fullmatch(r"(\d+)(ms|s|m|)", text.strip(), re.IGNORECASE)
    if match is None:
        return None
    return int(match[1]) * {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0}[match[2].lower()]
