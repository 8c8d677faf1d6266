# SPDX-License-Identifier: BSD-3-Clause
"""Expert parallelism on host memory, and on CUDA devices: the C library xep, from Python.

    import numpy as np, xep                                # the program alone, or xep_run -n 4 python PROGRAM

    rng = np.random.default_rng()
    x = rng.random((64, 256), np.float32)
    topk_idx = np.argsort(rng.random((64, 8)), axis=1)[:, :2].copy()
    topk_weights = rng.random((64, 2), np.float32)
    with xep.Group() as group, group.buffer(experts=8, topk=2, hidden=256, tokens=64, dtype="float32",
                                            combine_dtype="float32") as buffer:
        with buffer.dispatch(x, topk_idx, topk_weights) as handle:
            y = handle.combine_input()                 # the peers read results from here
            np.multiply(handle.recv.x, 2.0, out=y)     # received rows: a view, no copy
            del y
            out = handle.combine()

Arrays are numpy arrays or CPU tensors; what is received is of the kind that was sent. With memory="cuda" they are CUDA
tensors, or arrays of whatever has __cuda_array_interface__; what is received is then tensors, or DeviceArrays. Letters
in shapes: T tokens of this rank, K top-k, E experts of the group, H hidden elements, R ranks, L experts of this rank.

All calls of the library are in the compiled module ``_ext``.
"""

from __future__ import annotations

import importlib
from typing import Any

from . import _load as _load  # before all that needs the library
from ._ext import DeviceArray, Handle, Received, Request
from .dtypes import Dtype, Quant, Rows, from_bfloat16, to_bfloat16
from .errors import (
    AbortedError,
    BootError,
    BrokenError,
    BusyError,
    CapacityError,
    DeadlineError,
    FunctionError,
    InvalidError,
    MismatchError,
    NoMemoryError,
    PeerError,
    Status,
    UnsupportedError,
    XepError,
)
from .group import Buffer, Group, Mask, OutReason, Peer
from .layout import Layout, expert_range, layout
from .library import (
    LibraryInfo,
    Mode,
    ModeInfo,
    Variable,
    config,
    library_info,
    mode_query,
    modes,
    set_log,
    span,
    use_logging,
    version,
)  # fmt: skip
from .params import BufferInfo, BufferSize, Counters, Loads, OpCounters, RankWaits, Waits, buffer_size
from .paths import get_deep_ep, get_include, get_pkgconfig
from .plan import PlanCall, placement
from .serve import ServeCall, serve, step_end
from .weights import Weights

__version__ = version()


def __getattr__(name: str) -> Any:
    """xep.nn, for which torch is imported."""
    if name != "nn":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(".nn", __name__)


__all__ = [
    "AbortedError", "BootError", "BrokenError", "Buffer", "BufferInfo", "BufferSize", "BusyError", "CapacityError",
    "Counters", "DeadlineError", "DeviceArray", "Dtype", "FunctionError", "Group", "Handle", "InvalidError", "Layout",
    "LibraryInfo", "Loads", "Mask", "MismatchError", "Mode", "ModeInfo", "NoMemoryError", "OpCounters", "OutReason",
    "Peer", "PeerError", "PlanCall", "Quant", "RankWaits", "Received", "Request", "Rows", "ServeCall", "Status",
    "UnsupportedError", "Variable", "Waits", "Weights", "XepError", "buffer_size", "config", "expert_range",
    "from_bfloat16", "get_deep_ep", "get_include", "get_pkgconfig", "layout", "library_info", "mode_query", "modes",
    "placement", "serve", "set_log", "span", "step_end", "to_bfloat16", "use_logging", "version",
]  # fmt: skip
