# SPDX-License-Identifier: BSD-3-Clause
"""Arguments: what is wrong with them, in one sentence; rows and sums as dispatch and combine take them; and what makes
functions calls of a Buffer: also, that what one rank refuses alone all ranks refuse.

The errors are what Python would have, and what DeepEP raises: asserts of its Python part, RuntimeError of the rest.
Programs catch either.
"""

from __future__ import annotations

import functools
import operator
import types
from typing import Any, Callable, TypeVar, Union

import torch

import xep
from xep import _ext
from xep.dtypes import dtype_of

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
ANYWHERE = -1  # in host memory, which is 0, or on CUDA device n, which is n + 1

# sets of element types: a bit for each of those that xep has, one for bool, and the lowest for all others
_BOOL = 1 << 20
ANY = 2 * _BOOL - 1


@functools.lru_cache
def _bit(dtype: torch.dtype) -> int:
    return _BOOL if dtype == torch.bool else 1 << (dtype_of(dtype) or 0)


_NAMED = (torch.bfloat16, torch.float16, torch.float32, torch.int64, torch.int32, torch.uint8, torch.bool)
BFLOAT16, _FLOAT16, FLOAT, INT64, INT32, UINT8, BOOL = map(_bit, _NAMED)
INDEX, COMBINED, _SCALE = INT64 | INT32, BFLOAT16 | _FLOAT16 | FLOAT, FLOAT | INT32


def place_of(where: int) -> torch.device:
    return HOST if where == 0 else torch.device("cuda", where - 1)


def _look(contiguous: bool, name: str, value: Any, where: int, dtypes: int, *extents: int) -> tuple:
    """What the checks below ask of a tensor that is not so at first sight."""
    is_tensor = isinstance(value, torch.Tensor)
    there = value.get_device() + 1 if is_tensor and value.is_cuda else 0 if is_tensor and value.is_cpu else -2
    typed = there >= 0 and where in (ANYWHERE, there) and _bit(value.dtype) & dtypes
    fits = typed and len(value.shape) == len(extents)
    if fits and all(want in (-1, extent) for want, extent in zip(extents, value.shape)):
        if not contiguous or value.is_contiguous():
            return (there, *value.shape)
        strides = f"strides {value.stride()} of shape {list(value.shape)}"
        raise WrongValue(f"{name}: expected a contiguous tensor, got {strides}")
    kinds = " or ".join(str(dtype)[6:] for dtype in _NAMED if _bit(dtype) & dtypes and dtypes != ANY)
    expected = "CPU or CUDA" if where == ANYWHERE else "CPU" if where == 0 else str(place_of(where))
    shape = ", ".join("any" if extent == -1 else str(extent) for extent in extents)
    got = type(value).__name__
    if is_tensor:
        got = f"{str(value.dtype)[6:]} of shape {list(value.shape)} on {value.device}"
    wrong = WrongValue if typed else WrongType
    raise wrong(f"{name}: expected a {expected} tensor {kinds}{kinds and ' '}[{shape}], got {got}")


# check(name, value, where, dtypes, *extents): (where, *extents) of a contiguous tensor that is there, of one of these
# element types and of these extents, -1: any; or of one of any strides. Python is called only for what is not so at
# first sight.
check, check_strided = (
    functools.partial(_ext.check_tensor, functools.partial(_look, contiguous)) for contiguous in (True, False)
)


def integer(name: str, value: Any, least: int) -> int:
    """value, or the integer that it stands for."""
    try:
        number = operator.index(value)
    except TypeError:
        raise WrongType(f"{name}: expected an integer, got {value!r}") from None
    if number < least:
        raise WrongValue(f"{name}: expected {least} or more, got {value!r}")
    return number


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


KNOWN = frozenset((
    torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint8, torch.int32,
))  # fmt: skip
SENT_AS = {1: torch.uint8, 2: torch.bfloat16, 4: torch.int32, 8: torch.int32, 16: torch.int32}

Rows = Union[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]


def scaled(x: tuple) -> Rows:
    """(rows [T, H] of 1 byte, scales [T, S] of any strides)."""
    if len(x) != 2:
        raise WrongValue(f"x: expected (rows, scales), got {len(x)} tensors")
    where, tokens, _ = check("x[0]", x[0], ANYWHERE, ANY, -1, -1)
    if x[0].element_size() != 1:
        raise WrongType(f"x[0]: expected elements of 1 byte beside scales, got {x[0].dtype}")
    check_strided("x[1]", x[1], where, _SCALE, tokens, -1)
    return x


def carried(x: torch.Tensor) -> torch.Tensor:
    """x, of an element type that xep knows: rows go as bytes."""
    return x if x.dtype in KNOWN else x.view(SENT_AS[x.element_size()])


def check_tokens(handle: Any, x: torch.Tensor) -> None:
    """x as a dispatch along the routing of handle takes it."""
    if x.shape[0] != handle.num_tokens:
        raise WrongValue(
            f"x: expected the {handle.num_tokens} tokens of the dispatch that made handle, got {x.shape[0]}"
        )


def biases_of(handle: Any, x: torch.Tensor, where: int, bias: Any) -> tuple[torch.Tensor, ...]:
    """None, one, or two [T, H] of x's type."""
    if bias is not None and not isinstance(bias, (torch.Tensor, tuple, list)):
        raise WrongType(f"bias: expected a tensor or two, got {type(bias).__name__}")
    biases = (bias,) if isinstance(bias, torch.Tensor) else tuple(bias or ())
    if len(biases) > 2:
        raise WrongValue(f"bias: expected at most 2 tensors, got {len(biases)}")
    for i, one in enumerate(biases):
        if one is not None:  # either of two, as DeepEP has it
            check(f"bias[{i}]", one, where, _bit(x.dtype), handle.num_tokens, x.shape[1])
    return tuple(one for one in biases if one is not None)


# ---- calls that one rank refuses alone ----


Call = TypeVar("Call", bound=Callable[..., Any])


class Agreement:
    """Of a Buffer: what all its ranks call together, where no buffer of xep has counted it."""

    _BYTES = 256  # of each rank's: how many calls were refused, the call, why

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
        mine = f"{self._refused}\0{call}\0{self._why}".encode()[: self._BYTES].ljust(self._BYTES, b"\0")
        told = [one.decode(errors="replace").split("\0") for one in self._group.allgather(mine)]
        numbers = [int(one[0]) for one in told]
        most = max(numbers)
        more, odd = most - min(numbers), numbers.index(most)
        refused = f"{more} of those before it failed on rank {odd} alone ({told[odd][2]})" if more else ""
        for rank, (_, theirs, *_) in enumerate(told):
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
