# SPDX-License-Identifier: BSD-3-Clause
"""Arguments: what is wrong with them, in one sentence; rows and sums as dispatch and combine take them; and what makes
functions calls of a Buffer: also, that what one rank refuses alone all ranks refuse.

The errors are what Python would have, and what DeepEP raises: asserts of its Python part, RuntimeError of the rest.
Programs catch either.
"""

from __future__ import annotations

import functools
import operator
import struct
import types
from typing import Any, Callable, Optional, Sequence, TypeVar, Union

import torch

import xep
from xep._ext import is_plain as is_plain
from xep.dtypes import need_dtype

# ---- checks ----


class Wrong(Exception):
    """What was refused here, before xep has seen it."""

    counted = False  # by counted()


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
    is_tensor = isinstance(value, torch.Tensor)
    here = is_tensor and (value.is_cpu or value.is_cuda if on is None else value.device == on)
    typed = here and (dtypes is None or value.dtype in dtypes)
    fits = typed and len(value.shape) == len(shape)
    if fits:
        for want, extent in zip(shape, value.shape):
            fits = fits and (want is None or want == extent)
    if fits and (not contiguous or value.is_contiguous()):
        return value
    if fits:
        strides = f"strides {value.stride()} of shape {list(value.shape)}"
        raise WrongValue(f"{name}: expected a contiguous tensor, got {strides}")
    kinds = " or ".join(str(dtype)[6:] for dtype in dtypes) + " " if dtypes else ""
    there = "CPU or CUDA" if on is None else "CPU" if on == HOST else str(on)
    extents = ", ".join("any" if extent is None else str(extent) for extent in shape)
    got = type(value).__name__
    if is_tensor:
        got = f"{str(value.dtype)[6:]} of shape {list(value.shape)} on {value.device}"
    wrong = WrongValue if typed else WrongType
    raise wrong(f"{name}: expected a {there} tensor {kinds}[{extents}], got {got}")


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


def version_of(tensor: torch.Tensor) -> int:
    """Counts changes in place; -1 where nobody counts."""
    return -1 if tensor.is_inference() else tensor._version


def calls_of(*classes: type) -> None:
    """What the interpreter says of a call's arguments names the call, and not the class that happens to have it; and
    torch.compile leaves a call out of its graphs, with all that it calls, as it does those of a pybind module."""
    for one in classes:
        for found in vars(one).values():
            function = getattr(found, "__func__", found)
            leave_to_python(function)
            while isinstance(function, types.FunctionType):
                if function.__name__ != "__init__":  # of which class it is says only that
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


# ---- rows and sums ----


INDEX = (torch.int64, torch.int32)
FLOAT = (torch.float32,)
COMBINED = (torch.bfloat16, torch.float16, torch.float32)
_SCALE = (torch.float32, torch.int32)
KNOWN = frozenset((
    torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint8, torch.int32,
))  # fmt: skip
IS_KNOWN, IS_INDEX, IS_FLOAT, IS_COMBINED, IS_BFLOAT16, IS_INT32 = (
    sum(1 << need_dtype("", dtype) for dtype in dtypes)
    for dtypes in (KNOWN, INDEX, FLOAT, COMBINED, COMBINED[:1], INDEX[1:])
)  # for is_plain()
SENT_AS = {1: torch.uint8, 2: torch.bfloat16, 4: torch.int32, 8: torch.int32, 16: torch.int32}

Rows = Union[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]


def rows_of(x: Rows, on: Place = HOST) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
    """Rows [T, H] of any element type, and scales [T, S] of any strides, or None."""
    if not isinstance(x, tuple):
        return tensor("x", x, None, (None, None), on=on), None
    if len(x) != 2:
        raise WrongValue(f"x: expected (rows, scales), got {len(x)} tensors")
    rows = tensor("x[0]", x[0], None, (None, None), on=on)
    if rows.element_size() != 1:
        raise WrongType(f"x[0]: expected elements of 1 byte beside scales, got {rows.dtype}")
    return rows, tensor("x[1]", x[1], _SCALE, (rows.shape[0], None), contiguous=False, on=rows.device)


def carried(x: torch.Tensor) -> torch.Tensor:
    """x, of an element type that xep knows: rows go as bytes."""
    return x if x.dtype in KNOWN else x.view(SENT_AS[x.element_size()])


def check_sum(x: torch.Tensor, rows: int, capacity: int, on: Place = HOST) -> None:
    """x as combine takes it."""
    tensor("x", x, COMBINED, (None, None), on=on)
    if not rows <= x.shape[0] <= capacity:
        raise WrongValue(f"x: expected the {capacity} rows received, got {list(x.shape)}")


def check_tokens(handle: Any, x: torch.Tensor) -> None:
    """x as a dispatch along the routing of handle takes it."""
    if x.shape[0] != handle.num_tokens:
        raise WrongValue(
            f"x: expected the {handle.num_tokens} tokens of the dispatch that made handle, got {x.shape[0]}"
        )


def biases_of(handle: Any, x: torch.Tensor, bias: Any) -> tuple[torch.Tensor, ...]:
    """None, one, or two [T, H] of x's type."""
    if bias is not None and not isinstance(bias, (torch.Tensor, tuple, list)):
        raise WrongType(f"bias: expected a tensor or two, got {type(bias).__name__}")
    biases = (bias,) if isinstance(bias, torch.Tensor) else tuple(bias or ())
    if len(biases) > 2:
        raise WrongValue(f"bias: expected at most 2 tensors, got {len(biases)}")
    for i, one in enumerate(biases):
        if one is not None:  # either of two, as DeepEP has it
            tensor(f"bias[{i}]", one, (x.dtype,), (handle.num_tokens, x.shape[1]), on=x.device)
    return tuple(one for one in biases if one is not None)


# ---- calls that one rank refuses alone ----


Call = TypeVar("Call", bound=Callable[..., Any])


class Agreement:
    """Of a Buffer: what all its ranks call together, where no buffer of xep has counted it."""

    _WORD = struct.Struct("<I32s220s")  # how many calls were refused, the call, why

    def __init__(self, group: xep.Group) -> None:
        self._group = group
        self._refused, self._most, self._why = 0, 0, ""

    def refuse(self, why: str) -> None:
        self._refused, self._why = self._refused + 1, why

    def meet(self, call: str, counts: bool = True) -> None:
        """MismatchError on all ranks where some are in another call, or, if that counts, have refused more of them. The
        others then refuse as many. Collective."""
        if counts and self._refused < self._most:
            self.refuse(self._why)
            raise xep.MismatchError(xep.Status.ERR_MISMATCH, f"this {call} is refused on this rank, too: {self._why}")
        sent = self._WORD.pack(self._refused, call.encode(), self._why.encode()[:220])
        words = [self._WORD.unpack(one) for one in self._group.allgather(sent)]
        told = [(count, *(text.rstrip(b"\0").decode(errors="replace") for text in texts)) for count, *texts in words]
        most = max(count for count, _, _ in told)
        odd = next(rank for rank, word in enumerate(told) if word[0] == most)
        more, why = most - min(count for count, _, _ in told), told[odd][2]
        refused = f"{more} of those before it failed on rank {odd} alone ({why})" if more else ""
        for rank, (_, theirs, _) in enumerate(told):
            if theirs != call:
                text = f"rank {rank} is in {theirs}, this rank in {call} (all ranks call the same, in the same order)"
                raise xep.MismatchError(xep.Status.ERR_MISMATCH, f"{text}{refused and '; '}{refused}")
        if more and counts:
            self._most = most
            self._why = refused if self._refused < most else self._why
            raise xep.MismatchError(xep.Status.ERR_MISMATCH, f"this {call} is refused on all ranks: {refused}")


def counted(kind: str) -> Callable[[Call], Call]:
    """A collective call of a Buffer, by buffers of that kind: what is refused here counts as if xep had refused it."""

    def wrap(call: Call) -> Call:
        @functools.wraps(call)
        def made(self: Any, *arguments: Any, **options: Any) -> Any:
            try:
                return call(self, *arguments, **options)
            except Wrong as wrong:
                if not wrong.counted:  # in another call, of which this one is made
                    wrong.counted = True
                    self._refused(kind, str(wrong))
                raise

        return made  # type: ignore[return-value]

    return wrap
