# SPDX-License-Identifier: BSD-3-Clause
"""What is used in every step: of the compiled module _fast where it was built, else of _plain, which does the same.

XEP_PYTHON=plain leaves the compiled module alone; XEP_PYTHON=compiled makes its absence an error.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import pathlib
import sys
from typing import Any, Callable, Optional

from . import _numpy_arrays, _plain, _structs
from ._lib import lib
from .dtypes import NUMPY


def _import() -> Any:
    """The compiled module, beside this one or in the build tree of the library."""
    built = pathlib.Path(lib._name).resolve().parent.parent / "contrib" / "python" / "xep"
    package = sys.modules[__package__]
    if built.is_dir() and str(built) not in package.__path__:
        package.__path__.append(str(built))
    fast = importlib.import_module("._fast", __package__)
    names = ("xep_dispatch", "xep_combine", "xep_handle_recv", "xep_handle_combine_input", "xep_handle_release", "xep_dtype_size")
    addresses = {name: ctypes.cast(getattr(lib, name), ctypes.c_void_p).value for name in names}
    sizes = tuple(ctypes.sizeof(kind) for kind in (_structs.DispatchArgs, _structs.CombineArgs, _structs.Recv))
    fast.use_library(addresses, NUMPY, _structs.Recv.from_address, sizes)
    fast.use_numpy(_numpy_arrays)
    return fast


def _choose() -> tuple[Any, Optional[str]]:
    choice = os.environ.get("XEP_PYTHON", "")
    if choice not in ("", "plain", "compiled"):
        raise ImportError(f"xep: XEP_PYTHON is {choice!r}: expected plain, compiled, or nothing")
    if choice == "plain":
        return None, "XEP_PYTHON is plain"
    try:
        return _import(), None
    except ImportError as error:
        if choice == "compiled":
            raise
        return None, str(error)


_fast, why_plain = _choose()

if _fast is not None:
    BufferBase, HandleBase, ReceivedBase = _fast.BufferBase, _fast.HandleBase, _fast.ReceivedBase
    SlotMemory, Slots = _fast.SlotMemory, _fast.Slots
    use_classes, use_torch = _fast.use_classes, _fast.use_torch

    def quick(name: str) -> Callable[[Any], Any]:
        return lambda function: functools.update_wrapper(_fast.quick(name, function), function)

    quick_property = quick
else:
    BufferBase, HandleBase, ReceivedBase = _plain.BufferBase, _plain.HandleBase, _plain.ReceivedBase
    SlotMemory, Slots = _plain.SlotMemory, _plain.Slots
    use_classes, use_torch = _plain.use_classes, _plain.use_torch
    quick, quick_property = _plain.quick, _plain.quick_property
