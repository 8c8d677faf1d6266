# SPDX-License-Identifier: BSD-3-Clause
"""One dispatch: its frozen routing and the rows it brought; combine goes back along it."""

from __future__ import annotations

import weakref
from types import ModuleType
from typing import TYPE_CHECKING, Any, Mapping, Optional, Sequence, Union

from . import _structs
from ._hot import HandleBase
from ._lib import last_error, lib, milliseconds
from .arrays import adapter_of, matrix, torch_arrays, vector
from . import _numpy_arrays
from .dtypes import SIZES, Dtype, Rows, need_dtype
from .errors import Status, XepError, error_of
from .received import Received, shape_of
from .request import Request

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .buffer import Buffer, SlotMemory
    from .options import CombineOptions

_COMBINED = (Dtype.BF16, Dtype.FP16, Dtype.FP32)
_FP32 = (Dtype.FP32,)
_LOGFMT = 1
_xep_handle_recv, _xep_combine, _xep_handle_combine_input = lib.xep_handle_recv, lib.xep_combine, lib.xep_handle_combine_input

Combined = Union[Any, tuple]


class Handle(HandleBase):
    """A dispatch. Its slot is in use until release(), or the end of the ``with`` block, and until no array of its
    rows is alive any more, whichever is later: an array never loses its memory.
    """

    __slots__ = ()

    def __init__(
        self, buffer: "Buffer", memory: "SlotMemory", tokens: int, topk: int, hidden: int, adapter: ModuleType, native: Any
    ) -> None:
        super().__init__()
        self._buffer = buffer
        self._memory: Optional["SlotMemory"] = memory
        self.tokens: int = tokens  # T of the dispatch
        self.topk: int = topk
        self.hidden: int = hidden
        self.nranks: int = buffer.group.nranks
        self._adapter = adapter
        self._native = native

    # ---- received rows ----

    @property
    def recv(self) -> Received:
        """The received rows, as arrays of the kind that was dispatched (numpy or torch)."""
        return self._receive(self._adapter)

    def numpy(self) -> Received:
        """The received rows as numpy arrays; bfloat16 as uint16, 8-bit floats as uint8."""
        return self._receive(_numpy_arrays)

    def torch(self) -> Received:
        """The received rows as CPU tensors."""
        return self._receive(torch_arrays())

    @property
    def slot(self) -> int:
        """Names the slot: handles of a buffer that have the same have their rows at the same place, one after the other."""
        return self._alive().handle

    @property
    def rows(self) -> int:
        """Rows received."""
        return self._counted().rows

    def _receive(self, adapter: ModuleType) -> Received:
        if self._memory is None:
            self._alive()
        known = self._received.get(adapter)
        found = known() if known is not None else None
        if found is None:
            struct = self._counted()
            native = self._native if adapter is self._adapter else adapter.native(Dtype(struct.dtype))
            found = Received(self, struct, adapter, native)
            # weak, for it holds this handle: a cycle would keep the slot until the next garbage collection
            self._received[adapter] = weakref.ref(found)
        return found

    def _counted(self) -> _structs.Recv:
        """What was received, once it is counted."""
        struct = self._struct
        if struct is None:
            memory = self._memory or self._alive()
            address = _xep_handle_recv(memory.handle)
            if not address:
                raise error_of(Status.ERR_INVALID, last_error())
            struct = self._struct = _structs.Recv.from_address(address)
        return struct

    def _alive(self) -> "SlotMemory":
        if self._memory is None:
            raise ValueError("the handle was released, or its buffer closed or reset")
        return self._memory

    def _place(self, address: int) -> tuple["SlotMemory", int]:
        """Memory that keeps the slot, and where in it the address is."""
        return self._memory or self._alive(), address - self._buffer._base

    # ---- combine ----

    def combine_input(self, dtype: Any = None) -> Any:
        """[rows, H] of the buffer's combine type: expert outputs written here need no copy; then combine() without x.

        Waits until peers have read what an earlier combine left there. Ask again before writing again.
        """
        buffer, adapter = self._buffer, self._adapter
        dtype = buffer.combine_dtype if dtype is None else need_dtype("dtype", dtype)
        memory = self._memory or self._alive()
        address = _xep_handle_combine_input(memory.handle, buffer._stride_pointer)
        if not address:
            raise error_of(Status.ERR_INVALID, last_error())
        struct = self._struct or self._counted()
        shape, strides = shape_of(struct, self.hidden, buffer._outputs[3], SIZES[dtype])
        if len(shape) == 2:
            shape = (struct.rows, self.hidden)
        return adapter.view(memory, address - buffer._base, shape, strides, adapter.native(dtype))

    def combine(self, x: Any = None, *, out: Any = None, **options: Unpack[CombineOptions]) -> Combined:
        """Brings rows back to their tokens and sums them: [T, H], or ([T, H], [T, K]) with topk_weights. Collective, blocking.

        x: [rows, H] expert outputs in the order received, bfloat16, float16 or float32; None: what was written
            to combine_input(). Rows beyond rows, up to capacity, are allowed and not read.
        topk_weights: [rows, K] float32, sent back and summed into out_weights.
        weights: mode ll: [T, K] float32 of this rank's own tokens, applied in the sum.
        bias: one or two [T, H] of x's type, added first.
        out, out_weights: [T, H] of x's type and [T, K] float32 to write to; None: allocated.
        dtype: what the bits of a numpy array without a type of its own are.
        logfmt: mode ll: 10-bit rows to ranks that are not mapped; lossy.
        wait_ns: [R] int64, to which the nanoseconds are added that this rank waited for each rank, as Buffer.waits() has it.
        after: a request to begin after. timeout: seconds; None: the buffer's.
        """
        return self._combine(False, x, out, options)[0]

    def combine_async(self, x: Any = None, *, out: Any = None, **options: Unpack[CombineOptions]) -> Request[Combined]:
        """As combine(), but returns once it is begun; wait() has the result. Arrays must not be touched before."""
        return self._combine(True, x, out, options)[1]

    def _combine(self, begin_only: bool, x: Any, out: Any, options: Mapping[str, Any]) -> tuple[Any, Any]:
        buffer = self._buffer
        memory = self._memory or self._alive()
        buffer._begin()
        form = out_weights = None
        if x is None and not options:
            if out is None:
                out = self._adapter.empty((self.tokens, self.hidden), self._adapter.native(buffer.combine_dtype))
            adapter = adapter_of("out", out)
            form = adapter.form(out), adapter.writable(out), self.tokens, self.hidden
        if form is not None and form == buffer._combine_form:
            buffer._combine_struct.out = adapter.address(out)
        else:
            buffer._combine_form = None
            out, out_weights = self._fill(buffer, x, out, dict(options))
            buffer._combine_form = form
        result = out if out_weights is None else (out, out_weights)
        request = buffer._request_pointer if begin_only else None
        status = _xep_combine(memory.handle, buffer._combine_args_address, request)
        if status < 0:
            raise error_of(status, last_error())
        return result, buffer._combine_in_flight(buffer._outputs[1], result, self, (x, options)) if begin_only else None

    def _fill(self, buffer: "Buffer", x: Any, out: Any, options: dict[str, Any]) -> Combined:
        """The struct of a combine, from arguments that are checked here; out and out_weights."""
        args = buffer._combine_args()
        dtype = options.pop("dtype", None)
        code = need_dtype("dtype", dtype) if dtype is not None else None
        adapter = self._adapter
        if x is not None:
            adapter = adapter_of("x", x)
            args.x, args.x_stride, code, width = self._combine_x(x, code)
        else:
            code, width = code or buffer.combine_dtype, self.hidden
        args.dtype, args.hidden = code, width
        if out is None:
            out = adapter.empty((self.tokens, width), adapter.native(code) if x is None else adapter.native_of(x))
        args.out, args.out_stride = self._own("out", out, width, code)
        return out, self._put_options(args, adapter, width, code, **options) if options else None

    def _put_options(
        self,
        args: _structs.CombineArgs,
        adapter: ModuleType,
        width: int,
        code: Dtype,
        *,
        topk_weights: Any = None,
        weights: Any = None,
        bias: Any = None,
        out_weights: Any = None,
        logfmt: bool = False,
        wait_ns: Any = None,
        after: Optional[Request] = None,
        timeout: Optional[float] = None,
    ) -> Any:
        """out_weights, made where topk_weights are sent."""
        args.flags = _LOGFMT if logfmt else 0
        args.timeout_ms = milliseconds(timeout)
        if after is not None:
            args.after = after._pointer()
        if wait_ns is not None:
            args.wait_ns = vector("wait_ns", wait_ns, self.nranks, (Dtype.INT64,))
        if bias is not None:
            self._put_bias(args, bias, width, code)
        if weights is not None:
            args.weights, args.weights_stride, _, _ = matrix("weights", weights, self.tokens, self.topk, _FP32)
        if topk_weights is None and out_weights is None:
            return None
        return self._put_weights(args, adapter, topk_weights, out_weights)

    def _combine_x(self, x: Any, code: Optional[Dtype]) -> tuple[int, int, Dtype, int]:
        recv = self._counted()
        padded = recv.arrangement == Rows.BY_EXPERT_PADDED
        if padded and len(x.shape) == 3:
            x = _flat(x)
        address, stride, code, shape = matrix("x", x, None, None, _COMBINED, code)
        if not (recv.capacity if padded else recv.rows) <= shape[0] <= recv.capacity:
            kind = adapter_of("x", x).describe(x)
            raise ValueError(f"x: expected [{recv.rows}, H], the rows received, got {kind}")
        return address, stride, code, shape[1]

    def _own(self, name: str, array: Any, width: int, code: Dtype) -> tuple[int, int]:
        address, stride, _, _ = matrix(name, array, self.tokens, width, (code,), code)
        if not adapter_of(name, array).writable(array):
            raise ValueError(f"{name}: expected an array that may be written, it is read-only")
        return address, stride

    def _put_bias(self, args: _structs.CombineArgs, bias: Any, width: int, code: Dtype) -> None:
        rows = bias if isinstance(bias, (tuple, list)) else (bias,)
        if len(rows) > 2:
            raise ValueError(f"bias: expected at most 2, got {len(rows)}")
        for i, array in enumerate(rows):
            address, stride, _, _ = matrix(f"bias[{i}]", array, self.tokens, width, (code,), code)
            args.bias[i] = address
            args.bias_stride[i] = stride

    def _put_weights(self, args: _structs.CombineArgs, adapter: ModuleType, sent: Any, out: Any) -> Any:
        if sent is None:
            raise ValueError("topk_weights: expected an array, as out_weights is given")
        recv = self._counted()
        address, stride, _, shape = matrix("topk_weights", sent, None, self.topk, _FP32)
        if not recv.rows <= shape[0] <= max(recv.capacity, recv.rows):
            raise ValueError(f"topk_weights: expected [{recv.rows}, {self.topk}], got {adapter.describe(sent)}")
        args.topk_weights, args.topk_weights_stride = address, stride
        if out is None:
            out = adapter.empty((self.tokens, self.topk), adapter.native(Dtype.FP32))
        args.out_weights, args.out_weights_stride = self._own("out_weights", out, self.topk, Dtype.FP32)
        return out

    # ---- end ----

    def release(self) -> None:
        """Gives the slot back, at the latest when the last array of its rows is gone. Local; again: a no-op."""
        self._forget()
        self._buffer._slots.drain()

    def _fail(self, error: XepError, rows: int) -> None:
        """The dispatch ended with an error."""
        self._buffer._explain(error, rows)
        self._forget()

    def _forget(self) -> None:
        if self._shown is not None:
            self._shown._forget()
        if self._received:
            for reference in self._received.values():
                received = reference()
                if received is not None:
                    received._forget()
            self._received.clear()
        self._struct = None
        self._memory = None

    def __enter__(self) -> "Handle":
        return self

    def __exit__(self, *_exception: Any) -> None:
        self.release()


def _flat(x: Any) -> Any:
    """[L, N, H] as [L * N, H], never copied."""
    strides: Sequence[int] = x.strides if hasattr(x, "strides") else x.stride()
    if x.shape[0] > 1 and x.shape[1] > 0 and strides[0] != strides[1] * x.shape[1]:
        raise ValueError(f"x: expected experts one after the other, got strides {tuple(strides)} of shape {tuple(x.shape)}")
    if hasattr(x, "as_strided"):
        return x.as_strided((x.shape[0] * x.shape[1], x.shape[2]), strides[1:])
    flat = x.view()
    flat.shape = (x.shape[0] * x.shape[1], x.shape[2])
    return flat
