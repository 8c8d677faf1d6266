# SPDX-License-Identifier: BSD-3-Clause
"""Finds the library, and the compiled module _ext, which loads it; its symbols stay local (RTLD_LOCAL)."""

from __future__ import annotations

import importlib
import os
import pathlib
import sys
from typing import Optional


def _bundled() -> Optional[pathlib.Path]:
    """The library that came with this package (a wheel of contrib/build-wheel), or None."""
    library = pathlib.Path(__file__).resolve().parent / "_bundle" / "lib" / "libxep.so.1"
    return library if library.exists() else None


def _build_tree() -> Optional[pathlib.Path]:
    """The library of the build tree this package lies in, or None."""
    for folder in pathlib.Path(__file__).resolve().parents:
        library = folder / ".libs" / "libxep.so"
        if library.exists():
            return library
    return None


def _remedy(error: str, chosen: Optional[str]) -> str:
    if any(f"{library}.so" in error for library in ("libucp", "libucs", "libuct", "libnuma")):
        return "on Debian and Ubuntu: apt-get install libucx0; a wheel made by contrib/build-wheel brings UCX along"
    if chosen:
        return "XEP_LIBRARY names it"
    return "install xep, or set XEP_LIBRARY to the path of libxep.so.1; a wheel made by contrib/build-wheel has one"


def load() -> None:
    """Of a library that is named by its path, in a build tree, the module is found beside it."""
    chosen = os.environ.get("XEP_LIBRARY")
    path = chosen or str(_bundled() or _build_tree() or "libxep.so.1")
    if os.sep in path:
        built = pathlib.Path(path).resolve().parent.parent / "python" / "xep"
        package = sys.modules[__package__]
        if built.is_dir() and str(built) not in package.__path__:
            package.__path__.append(str(built))
    try:
        _ext = importlib.import_module("._ext", __package__)
    except ImportError as error:
        raise ImportError(
            f"xep: the compiled module xep._ext cannot be imported: {error} (it is built by `pip install` of the "
            "folder python, or by `make` in xep's build tree; either needs a C compiler, Python's headers, numpy and "
            "setuptools)"
        ) from None
    try:
        _ext.load(path)
    except ImportError as error:
        raise ImportError(f"xep: {error} ({_remedy(str(error), chosen)})") from None


load()
