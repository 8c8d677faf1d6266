# SPDX-License-Identifier: BSD-3-Clause
"""Finds and loads libxep.so.0, once; symbols stay local to it (RTLD_LOCAL)."""

from __future__ import annotations

import ctypes
import math
import os
import pathlib
from typing import Optional

from ._structs import PROTOTYPES
from .errors import error_of


def _build_tree() -> Optional[pathlib.Path]:
    """The library of the build tree this package lies in, or None."""
    for folder in pathlib.Path(__file__).resolve().parents:
        library = folder / ".libs" / "libxep.so"
        if library.exists():
            return library
    return None


def _open() -> ctypes.CDLL:
    chosen = os.environ.get("XEP_LIBRARY")
    path = chosen or str(_build_tree() or "libxep.so.0")
    try:
        library = ctypes.CDLL(path, mode=ctypes.RTLD_LOCAL)
    except OSError as error:
        hint = "XEP_LIBRARY names it" if chosen else "install xep, or set XEP_LIBRARY to the path of libxep.so.0"
        raise ImportError(f"xep: {path} cannot be loaded: {error} ({hint})") from None
    for name, (result, arguments) in PROTOTYPES.items():
        function = getattr(library, name, None)
        if function is None:
            raise ImportError(f"xep: {path} has no {name}: it is not libxep, or an older one (XEP_LIBRARY names another)")
        function.restype = result
        function.argtypes = arguments
    return library


lib = _open()


def last_error() -> str:
    """The reason of this thread's last error; '' when there was none."""
    return (lib.xep_last_error() or b"").decode(errors="replace")


def check(status: int) -> int:
    """Raises the exception of a negative status, else returns it. Call it before any other call into the library."""
    if status < 0:
        raise error_of(status, last_error())
    return status


def milliseconds(seconds: Optional[float]) -> int:
    """A timeout as the library wants it. None: the default; infinity: no deadline."""
    if seconds is None:
        return 0
    if math.isnan(seconds) or seconds <= 0:
        raise ValueError(f"timeout: expected seconds above 0, math.inf or None, got {seconds}")
    if math.isinf(seconds):
        return -1
    return max(1, min(round(seconds * 1000), 2**31 - 1))
