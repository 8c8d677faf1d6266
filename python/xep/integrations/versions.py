# SPDX-License-Identifier: BSD-3-Clause
"""Which versions of a framework an integration knows."""

from __future__ import annotations

import os
import warnings

UNTESTED = "XEP_UNTESTED"


def require(package: str, version: str, known: tuple[str, ...]) -> None:
    """ImportError, unless version is one of known or a patch of one of them; with XEP_UNTESTED=1 a warning instead."""
    public = version.split("+")[0]
    if any(public == one or public.startswith(f"{one}.") for one in known):
        return
    sentence = f"{package}: version {version} is not known to this integration (known: {', '.join(known)}"
    if os.environ.get(UNTESTED, "0") not in ("0", ""):
        warnings.warn(f"{sentence})", RuntimeWarning, stacklevel=3)
        return
    raise ImportError(f"{sentence}; {UNTESTED}=1 tries it all the same)")
