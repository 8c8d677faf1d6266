# SPDX-License-Identifier: BSD-3-Clause
"""Where a wheel has what other programs need: headers, pkg-config's file, the package deep_ep."""

from __future__ import annotations

import pathlib
import subprocess
from types import ModuleType

_PACKAGE = pathlib.Path(__file__).resolve().parent


def _found(name: str, *folders: pathlib.Path, variable: str = "") -> str:
    """The first folder that exists, else the one that pkg-config tells of an installed xep."""
    for folder in folders:
        if folder.is_dir():
            return str(folder)
    if variable:
        command = ["pkg-config", f"--variable={variable}", "xep"]
        try:
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            pass
    raise FileNotFoundError(f"xep: no {name} beside {_PACKAGE} (a wheel of contrib/build-wheel has them)")


def get_include() -> str:
    """The folder to give to a C compiler by -I: it has ``xep/xep.h``."""
    return _found("headers", _PACKAGE / "_bundle" / "include", variable="includedir")


def get_pkgconfig() -> str:
    """The folder with ``xep.pc``, for PKG_CONFIG_PATH. Programs linked by it need the folder ``lib`` of the wheel in
    their run path (``pkg-config --variable=libdir xep``)."""
    return _found("xep.pc", _PACKAGE / "_bundle" / "lib" / "pkgconfig", variable="pcfiledir")


def get_deep_ep() -> str:
    """The folder with xep's package ``deep_ep``, for PYTHONPATH where another DeepEP is installed, too."""
    places = (_PACKAGE.parent / "xep_deep_ep", _PACKAGE.parent)
    return _found("package deep_ep", *(place for place in places if (place / "deep_ep").is_dir()))


def own_deep_ep() -> ModuleType:
    """The module deep_ep, for what is built on it: ImportError where the one that is found is not xep's."""
    import deep_ep

    folder, place = get_deep_ep(), str(deep_ep.__file__)
    if pathlib.Path(place).resolve().parent != pathlib.Path(folder, "deep_ep").resolve():
        raise ImportError(f"xep: deep_ep is another package here: {place} (for xep's, set PYTHONPATH={folder})")
    return deep_ep
