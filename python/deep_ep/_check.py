# SPDX-License-Identifier: BSD-3-Clause
"""Arguments: what is wrong with them, in one sentence.

The errors are what Python would have, and what DeepEP raises: asserts of its Python part, RuntimeError of the rest.
Programs catch either.
"""

from __future__ import annotations

import operator
import types
from typing import Any, Optional, Sequence

import torch


class Wrong(Exception):
    """What was refused here, before xep has seen it."""

    counted = False  # pace.py


class WrongValue(Wrong, ValueError, AssertionError, RuntimeError):
    """An argument has a value that it may not have."""


class WrongType(Wrong, TypeError, AssertionError, RuntimeError):
    """An argument is of a type that it may not be of."""


class WrongUse(Wrong, RuntimeError, AssertionError):
    """A call that is not allowed now."""


HOST = torch.device("cpu")
Place = Optional[torch.device]  # where a tensor must be; None: host memory or a CUDA device


def memory_of(on: torch.device) -> str:
    """As xep names it."""
    return "host" if on == HOST else "cuda"


def tensor(
    name: str,
    value: Any,
    dtypes: Optional[Sequence[torch.dtype]],
    shape: Sequence[Optional[int]],
    contiguous: bool = True,
    on: Place = HOST,
) -> torch.Tensor:
    """value, if it is a tensor there, of one of dtypes (None: any) and of shape (None: any extent)."""
    if isinstance(value, torch.Tensor) and is_there(value, on) and (dtypes is None or value.dtype in dtypes):
        if has_shape(value, shape) and (not contiguous or value.is_contiguous()):
            return value
    raise refusal(name, value, dtypes, shape, on)


def is_there(value: torch.Tensor, on: Place) -> bool:
    return value.is_cpu or value.is_cuda if on is None else value.device == on


def has_shape(value: torch.Tensor, shape: Sequence[Optional[int]]) -> bool:
    have = value.shape
    if have == shape:
        return True
    if len(have) != len(shape):
        return False
    for want, extent in zip(shape, have):
        if want is not None and want != extent:
            return False
    return True


def refusal(
    name: str, value: Any, dtypes: Optional[Sequence[torch.dtype]], shape: Sequence[Optional[int]], on: Place = HOST
) -> Exception:
    if not isinstance(value, torch.Tensor):
        return WrongType(f"{name}: expected {expected(dtypes, shape, on)}, got {type(value).__name__}")
    got = f"{str(value.dtype)[6:]} of shape {list(value.shape)} on {value.device}"
    if not is_there(value, on) or (dtypes is not None and value.dtype not in dtypes):
        return WrongType(f"{name}: expected {expected(dtypes, shape, on)}, got {got}")
    if not has_shape(value, shape):
        return WrongValue(f"{name}: expected {expected(dtypes, shape, on)}, got {got}")
    return WrongValue(
        f"{name}: expected a contiguous tensor, got strides {value.stride()} of shape {list(value.shape)}"
    )


def expected(dtypes: Optional[Sequence[torch.dtype]], shape: Sequence[Optional[int]], on: Place = HOST) -> str:
    kinds = " or ".join(str(dtype)[6:] for dtype in dtypes) + " " if dtypes else ""
    there = "CPU or CUDA" if on is None else "CPU" if on == HOST else str(on)
    return f"a {there} tensor {kinds}[{', '.join('any' if extent is None else str(extent) for extent in shape)}]"


def integer(name: str, value: Any, least: int) -> int:
    """value, or the integer that it stands for."""
    try:
        number = operator.index(value)
    except TypeError:
        raise WrongType(f"{name}: expected an integer, got {value!r}") from None
    if number < least:
        raise WrongValue(f"{name}: expected {least} or more, got {value!r}")
    return number


def streams(previous_event: Any, async_finish: bool, allocate_on_comm_stream: bool) -> None:
    """DeepEP's rule: allocating on the stream that communicates needs both others."""
    if allocate_on_comm_stream and (previous_event is None or not async_finish):
        raise WrongValue("allocate_on_comm_stream: expected previous_event and async_finish with it")


def calls_of(*classes: type) -> None:
    """What the interpreter says of a call's arguments names the call, and not the class that happens to have it; and
    torch.compile leaves a call out of its graphs, with all that it calls, as it does those of a pybind module."""
    for one in classes:
        for found in vars(one).values():
            function = getattr(found, "__func__", found)
            leave_to_python(function)
            while isinstance(function, types.FunctionType):
                function.__qualname__ = function.__name__
                function = getattr(function, "__wrapped__", None)


def leave_to_python(function: Any) -> None:
    """What torch.compiler.disable() does, but with no call more at each call, and without torch._dynamo, which takes
    seconds to import. Frames that it calls are left alone by torch from 2.7 on."""
    if isinstance(function, types.FunctionType):
        function._torchdynamo_disable = True  # type: ignore[attr-defined]
        if hasattr(_frames, "set_code_exec_strategy"):
            skip = _frames._FrameAction.SKIP
            _frames.set_code_exec_strategy(function.__code__, _frames._FrameExecStrategy(skip, skip))


_frames: Any = torch._C._dynamo.eval_frame


def one_of(name: str, value: bool, other: str, other_value: bool) -> None:
    if value and other_value:
        raise WrongValue(f"{name}, {other}: expected at most one of them")
