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
from typing import TYPE_CHECKING, Any, Optional

from . import _numpy_arrays, _structs
from ._lib import lib
from .dtypes import NUMPY


def _import() -> Any:
    """The compiled module, beside this one or in the build tree of the library, where that is named by its path."""
    if os.sep in lib._name:
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

if TYPE_CHECKING or _fast is None:
    from ._plain import BufferBase, HandleBase, ReceivedBase, SlotMemory, Slots
else:
    BufferBase, HandleBase, ReceivedBase = _fast.BufferBase, _fast.HandleBase, _fast.ReceivedBase
    SlotMemory, Slots = _fast.SlotMemory, _fast.Slots


def quicken(*classes: type) -> None:
    """Buffer, Handle, Received: replaces those of their methods and properties that the compiled module can do. It calls what it
    replaces for all that is not like an earlier call."""
    if _fast is None:
        return
    _fast.use_classes(*classes)
    for owner in classes:
        for name, found in list(vars(owner).items()):
            slow: Any = found.fget if isinstance(found, property) else found
            quick = _fast.quick(f"{owner.__name__}.{name}", slow)
            if quick is not None:
                setattr(owner, name, functools.update_wrapper(quick, slow))


def use_torch(adapter: Any, tensor_type: type, exchange: Any) -> None:
    """The module that knows tensors, their type, and the capsule of DLPack's exchange interface."""
    if _fast is not None:
        _fast.use_torch(adapter, tensor_type, exchange)


__all__ = ["BufferBase", "HandleBase", "ReceivedBase", "SlotMemory", "Slots", "quicken", "use_torch", "why_plain"]
