# SPDX-License-Identifier: BSD-3-Clause
"""One MoE shape on a group: its shared memory, and dispatch."""

from __future__ import annotations

import ctypes
import weakref
from types import ModuleType
from typing import TYPE_CHECKING, Any, Callable, Mapping, NamedTuple, Optional

from . import _structs
from ._hot import BufferBase, SlotMemory, Slots, quicken
from ._lib import check, last_error, lib, milliseconds
from .arrays import adapter_of, matrix, strided, vector
from .dtypes import Dtype, Quant, Rows, need_dtype
from .errors import CapacityError, Status, XepError, error_of
from .handle import Handle
from .received import Received
from .request import Request
from .waits import Waits, read

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .group import Group
    from .options import BufferOptions, DispatchOptions

_ANY = tuple(Dtype)
_INDEX = (Dtype.INT64, Dtype.INT32)
_FP32 = (Dtype.FP32,)
_SCALE = (Dtype.FP32, Dtype.INT32)
_STATS = (Dtype.INT32,)
_WAITS = (Dtype.INT64,)
_BY_COLUMN, _SEND_WEIGHTS = 1, 2
_UNKNOWN = 2**64 - 1
_xep_dispatch = lib.xep_dispatch


class BufferSize(NamedTuple):
    """bytes: what a rank shares with its peers; recv_rows: rows a slot holds."""

    bytes: int
    recv_rows: int


class BufferInfo(NamedTuple):
    """``xep_buffer_info_t``."""

    mode: str
    bytes: int
    recv_rows: int
    slots: int
    free_slots: int
    threads: int
    mapped_peers: int
    operations: int


def _params(
    experts: int,
    topk: int,
    hidden: int,
    tokens: int,
    *,
    mode: Optional[str] = None,
    dtype: Any = Dtype.BF16,
    combine_dtype: Any = Dtype.BF16,
    scales: int = 0,
    recv_rows: int = 0,
    slots: int = 2,
    threads: int = 0,
    timeout: Optional[float] = None,
) -> _structs.BufferParams:
    params = _structs.BufferParams(
        mode=None if mode is None else mode.encode(),
        dtype=need_dtype("dtype", dtype),
        combine_dtype=need_dtype("combine_dtype", combine_dtype),
        timeout_ms=milliseconds(timeout),
    )
    numbers = dict(
        experts=experts, topk=topk, hidden=hidden, scales=scales, tokens=tokens, recv_rows=recv_rows, slots=slots, threads=threads
    )
    for name, value in numbers.items():
        bits = 63 if name in ("tokens", "recv_rows") else 32
        if not isinstance(value, int) or not 0 <= value < 2**bits:
            raise ValueError(f"{name}: expected an integer from 0 to 2^{bits} - 1, got {value!r}")
        setattr(params, name, value)
    return params


def buffer_size(nranks: int, experts: int, topk: int, hidden: int, tokens: int, **options: Unpack[BufferOptions]) -> BufferSize:
    """The size hint: what a Buffer of these parameters takes on each of nranks ranks. Local."""
    size = _structs.BufferSize()
    check(lib.xep_buffer_size(_params(experts, topk, hidden, tokens, **options), nranks, size))
    return BufferSize(size.bytes, size.recv_rows)


class Buffer(BufferBase):
    """One MoE shape. Collective, blocking; a context manager. Every rank passes the same values, but threads and timeout.

    experts: E of the whole group. topk: most selections of a token. hidden: most elements of a row. tokens: most tokens
    a rank dispatches at once. mode: None: XEP_MODE, else "normal"; "ll": rows by expert. dtype: widest element
    dispatched. combine_dtype: widest combined: bfloat16, float16, float32. scales: most 4-byte scales of a token.
    recv_rows: most rows a rank receives at once, 0: the worst case. slots: handles that live at once. threads: that copy
    and reduce, 0: XEP_THREADS. timeout: seconds for each operation, None: XEP_TIMEOUT.

    One thread at a time; the GIL is released while it waits.
    """

    def __init__(self, group: "Group", experts: int, topk: int, hidden: int, tokens: int, **options: Unpack[BufferOptions]) -> None:
        self._buffer: Optional[int] = None
        self.group = group
        params = _params(experts, topk, hidden, tokens, **options)
        buffer = ctypes.c_void_p()
        check(lib.xep_buffer_create(group._pointer(), params, buffer))
        self._buffer = buffer.value
        self.experts, self.topk, self.hidden, self.tokens = experts, topk, hidden, tokens
        self.scales: int = params.scales
        self.slots: int = params.slots
        self.dtype, self.combine_dtype = Dtype(params.dtype), Dtype(params.combine_dtype)
        group._buffers.append(self)
        self._map_memory()
        self._prepare()

    def _map_memory(self) -> None:
        base, size = ctypes.c_void_p(), ctypes.c_size_t()
        check(lib.xep_buffer_memory(self._buffer, base, size))
        self._base: int = base.value or 0
        self._bytes: int = size.value
        self._slots: Any = Slots(self._base, self._bytes)

    def _prepare(self) -> None:
        """What operations use again and again: a call fills structs that exist, and passes addresses that are known."""
        self._dispatch_struct = _structs.DispatchArgs()
        self._combine_struct = _structs.CombineArgs()
        self._dispatch_args_address = ctypes.addressof(self._dispatch_struct)
        self._combine_args_address = ctypes.addressof(self._combine_struct)
        self._dispatch_zero, self._combine_zero = bytes(self._dispatch_struct), bytes(self._combine_struct)
        # What the structs were last filled for, when that was arrays alone: of the same form again, only addresses are new.
        self._dispatch_form: Optional[tuple] = None
        self._combine_form: Optional[tuple] = None
        self._dispatch_shape: tuple = ()  # what Handle wants to know of the dispatch
        self._outputs = (ctypes.c_uint64 * 4)()  # handle, request, received rows, stride
        address = ctypes.addressof(self._outputs)
        self._handle_pointer, self._request_pointer, self._rows_pointer = address, address + 8, address + 16
        self._stride_pointer = address + 24
        self._pending: set[Request] = set()
        self._whole: Callable[[], Optional[SlotMemory]] = lambda: None
        self._speed_up(self._dispatch_args_address, self._combine_args_address, self.combine_dtype, self.group.nranks)

    def _pointer(self) -> int:
        if self._buffer is None:
            raise ValueError("the buffer is closed")
        return self._buffer

    def _combine_args(self) -> _structs.CombineArgs:
        ctypes.memmove(self._combine_args_address, self._combine_zero, len(self._combine_zero))
        return self._combine_struct

    # ---- slots ----

    def _begin(self) -> None:
        """Before every operation: what ended meanwhile is settled."""
        self._slots.drain()
        if self._pending:
            for request in list(self._pending):
                request.done()

    def slots_held(self) -> int:
        """Slots in use on this rank, by handles and by arrays of received rows."""
        self._slots.drain()
        return len(self._slots)

    def _end_handles(self) -> None:
        for handle in self._slots.owners():
            handle._forget()

    def arrays_alive(self) -> int:
        """How many dispatches have received rows that are still looked at, though their handles have ended; memory() is one."""
        return int(self._whole() is not None) + self._slots.orphans()

    def arrays_left(self) -> int:
        """Ends every handle; how many dispatches have received rows that are looked at nevertheless."""
        self._end_handles()
        return self.arrays_alive()

    def _let_go(self) -> None:
        """Handles end without the library: the memory stays, its contents do not."""
        self._end_handles()
        self._slots.forget()

    # ---- dispatch ----

    def dispatch(self, x: Any, topk_idx: Any = None, topk_weights: Any = None, **options: Unpack[DispatchOptions]) -> Handle:
        """Sends every token to the ranks of its experts, and returns when this rank's rows are here. Collective, blocking.

        x: [T, H] rows, numpy or CPU tensor, any element type; T may be 0 and differ between ranks.
        topk_idx: [T, K] int64 or int32: expert, or -1. topk_weights: [T, K] float32, or None.
        scales: [T, S] float32 or int32, any strides, moved untouched.
        cached: a handle whose routing is used again, instead of topk_idx and topk_weights; T as there.
        capacity: rows the received arrays have, whatever comes (num_worst_tokens); 0: the rows received.
        expert_alignment: received counts of experts are rounded up to a multiple.
        dtype: what the bits of a numpy array without a type of its own are: "e4m3", "bfloat16", ...
        quant: mode ll: Quant.E4M3, E4M3_POW2 or UE8M0: x is cast on its way.
        arrangement: Rows.BY_RANK, BY_EXPERT_COMPACT, BY_EXPERT_PADDED; None: the mode's own.
        scales_by_column, send_weights: mode ll: received scales by column; weights travel with the rows.
        expert_stats: mode ll: [L] int32, to which the rows received for each local expert are added.
        wait_ns: [R] int64, to which the nanoseconds are added that this rank waited for each rank, as waits() has it.
        after: a request to begin after. timeout: seconds; None: the buffer's.

        Errors: BusyError (no free slot), CapacityError (``rows`` says how many were sent here), MismatchError, ... : nothing
        was moved. DeadlineError, PeerError: the buffer needs reset().
        """
        return self._dispatch(False, x, topk_idx, topk_weights, options)[0]

    def dispatch_async(self, x: Any, topk_idx: Any = None, topk_weights: Any = None, **options: Unpack[DispatchOptions]) -> Request[Handle]:
        """As dispatch(), but returns once it is begun; wait() has the handle. Arrays must not be changed before."""
        return self._dispatch(True, x, topk_idx, topk_weights, options)[1]

    def _dispatch(self, begin_only: bool, x: Any, topk_idx: Any, topk_weights: Any, options: Mapping[str, Any]) -> tuple[Any, Any]:
        buffer = self._buffer or self._pointer()
        self._begin()
        adapter = adapter_of("x", x)
        form = None
        if type(x) is type(topk_idx) is type(topk_weights) and not options:
            form = adapter.form(x), adapter.form(topk_idx), adapter.form(topk_weights)
        if form is not None and form == self._dispatch_form:
            args, address_of = self._dispatch_struct, adapter.address
            args.x, args.topk_idx, args.topk_weights = address_of(x), address_of(topk_idx), address_of(topk_weights)
        else:
            self._dispatch_form = None
            self._dispatch_shape = self._fill(adapter, x, topk_idx, topk_weights, dict(options))
            self._dispatch_form = form if self._dispatch_struct.tokens else None
        return self._send(buffer, begin_only, (x, topk_idx, topk_weights, options))

    def _fill(self, adapter: ModuleType, x: Any, topk_idx: Any, topk_weights: Any, options: dict[str, Any]) -> tuple:
        """The struct of a dispatch, from arguments that are checked here; what Handle wants to know of them."""
        args = self._dispatch_struct
        ctypes.memmove(self._dispatch_args_address, self._dispatch_zero, len(self._dispatch_zero))
        dtype, cached = (options.pop("dtype", None), options.pop("cached", None)) if options else (None, None)
        code = need_dtype("dtype", dtype) if dtype is not None else None
        args.x, args.x_stride, code, shape = matrix("x", x, None, None, _ANY, code)
        tokens, hidden = shape
        args.tokens, args.hidden, args.dtype = tokens, hidden, code
        topk = self._put_routing(args, tokens, topk_idx, topk_weights, cached)
        if options:
            self._put_options(args, tokens, **options)
        return tokens, topk, hidden, adapter, adapter.native_of(x)

    def _put_options(
        self,
        args: _structs.DispatchArgs,
        tokens: int,
        *,
        scales: Any = None,
        capacity: int = 0,
        expert_alignment: int = 1,
        quant: Quant = Quant.NONE,
        arrangement: Optional[Rows] = None,
        scales_by_column: bool = False,
        send_weights: bool = False,
        expert_stats: Any = None,
        wait_ns: Any = None,
        after: Optional[Request] = None,
        timeout: Optional[float] = None,
    ) -> None:
        if scales is not None:
            self._put_scales(args, tokens, scales)
        args.capacity, args.expert_alignment = capacity, expert_alignment
        args.quant, args.arrangement = quant, arrangement or 0
        args.flags = (_BY_COLUMN if scales_by_column else 0) | (_SEND_WEIGHTS if send_weights else 0)
        if expert_stats is not None:
            args.expert_stats = vector("expert_stats", expert_stats, self.local_experts, _STATS)
        if wait_ns is not None:
            args.wait_ns = vector("wait_ns", wait_ns, self.group.nranks, _WAITS)
        if after is not None:
            args.after = after._pointer()
        if timeout is not None:
            args.timeout_ms = milliseconds(timeout)

    def _put_routing(self, args: _structs.DispatchArgs, tokens: int, topk_idx: Any, topk_weights: Any, cached: Optional[Handle]) -> int:
        if cached is not None:
            if topk_idx is not None or topk_weights is not None:
                raise ValueError("topk_idx, topk_weights: expected None with cached, which has the routing")
            if not isinstance(cached, Handle) or cached._buffer is not self:
                raise ValueError(f"cached: expected a handle of this buffer, got {'one of another' if isinstance(cached, Handle) else type(cached).__name__}")  # fmt: skip
            if tokens != cached.tokens:
                raise ValueError(f"x: expected the {cached.tokens} tokens of the cached dispatch, got {tokens}")
            args.cached = cached._alive().handle
            return cached.topk
        if topk_idx is None:
            raise TypeError("topk_idx: expected an array (or cached, a handle to route as before), got None")
        args.topk_idx, args.topk_idx_stride, args.topk_idx_dtype, shape = matrix("topk_idx", topk_idx, tokens, None, _INDEX)
        topk = args.topk = shape[1]
        if topk_weights is not None:
            args.topk_weights, args.topk_weights_stride, _, _ = matrix("topk_weights", topk_weights, tokens, topk, _FP32)
            if tokens == 0:
                args.topk_weights = self._handle_pointer  # no rows, but weights: the pointer says that they are sent
        return topk

    def _put_scales(self, args: _structs.DispatchArgs, tokens: int, scales: Any) -> None:
        address, row, column, code, count = strided("scales", scales, tokens, _SCALE)
        args.scales, args.scales_token_stride, args.scales_stride = address or self._handle_pointer, row, column
        args.scales_dtype, args.nscales = code, count

    def _send(self, buffer: int, begin_only: bool, arrays: tuple) -> tuple[Any, Any]:
        outputs = self._outputs
        outputs[2] = _UNKNOWN
        rows = ctypes.c_uint64(_UNKNOWN)  # of an operation that goes on when this one returns
        self._dispatch_struct.recv_rows_p = ctypes.addressof(rows) if begin_only else self._rows_pointer
        request = self._request_pointer if begin_only else None
        status = _xep_dispatch(buffer, self._dispatch_args_address, self._handle_pointer, request)
        if status < 0:
            self._refuse(status, outputs[2])
        handle = Handle(self, self._slots.hold(outputs[0]), *self._dispatch_shape)
        if not begin_only:
            return handle, None
        return handle, self._in_flight(outputs[1], handle, (handle, arrays), lambda error: handle._fail(error, rows.value))

    def _refuse(self, status: int, rows: int) -> None:
        """Raises the error of an operation that did not begin, or did not succeed."""
        raise self._explain(error_of(status, last_error()), rows)

    def _explain(self, error: XepError, rows: int) -> XepError:
        if isinstance(error, CapacityError) and rows != _UNKNOWN:
            error.rows = rows
        elif error.status == Status.ERR_BUSY and self.arrays_alive():
            return error_of(error.status, f"{error.reason}; {self.arrays_alive()} only for arrays of rows that are still alive")
        return error

    def _in_flight(self, address: int, result: Any, kept: tuple, failed: Callable[[XepError], None]) -> Request:
        request: Request = Request(self, address, result, kept, failed)
        self._pending.add(request)
        return request

    def _dispatch_in_flight(self, address: int, handle: Handle, _used: None, arrays: tuple) -> Request:
        """Of a dispatch that the compiled module has begun; it writes the number of rows into the handle."""
        return self._in_flight(address, handle, (handle, arrays), lambda error: handle._fail(error, handle._rows))

    def _combine_in_flight(self, address: int, result: Any, handle: Handle, arrays: tuple) -> Request:
        return self._in_flight(address, result, (handle, result, arrays), _nothing)

    # ---- the buffer itself ----

    @property
    def local_experts(self) -> int:
        """L of this rank."""
        from .layout import expert_range

        return expert_range(self.experts, self.group.nranks, self.group.rank)[1]

    def info(self) -> BufferInfo:
        """What the library knows of it now."""
        self._slots.drain()
        info = _structs.BufferInfo()
        check(lib.xep_buffer_query(self._pointer(), info))
        return BufferInfo(info.mode.decode(), info.bytes, info.recv_rows, info.slots, info.free_slots, info.threads,
                          info.mapped_peers, info.operations)  # fmt: skip

    def waits(self) -> Waits:
        """For whom this rank has waited, since the buffer was made: the rank that all others wait for holds them up.

        Time counts in which a blocking call, or a wait() for a request, looked for what a rank sends and it was not there; not
        what lies between an operation's begin and its wait, and not tests. Local; any thread, also while another waits.
        """
        return read(self._pointer(), self.group.nranks)

    def memory(self) -> SlotMemory:
        """This rank's shared memory, all of it, as an object with the buffer protocol. Keeps the buffer from being closed."""
        self._pointer()
        memory = self._whole()
        if memory is None:
            memory = self._slots.whole()
            self._whole = weakref.ref(memory)
        return memory

    def reset(self) -> None:
        """Makes the buffer usable again after BrokenError. All handles end; arrays of their rows keep memory, not meaning.
        Collective, blocking."""
        pointer = self._pointer()
        self._end_pending("the buffer was reset")
        self._let_go()
        check(lib.xep_buffer_reset(pointer))

    def _end_pending(self, reason: str) -> None:
        for request in list(self._pending):
            if not request.done():
                request._end(error_of(Status.ERR_ABORTED, reason))

    def close(self) -> None:
        """Frees the buffer; its handles end. Collective, blocking; again: a no-op.

        BufferError, and nothing freed, while arrays of received rows are alive: drop them first.
        """
        if self._buffer is None:
            return
        alive = self.arrays_left()
        if alive:
            raise BufferError(f"arrays of the rows of {alive} dispatches are alive: drop or copy them before close()")
        self._end_pending("the buffer was closed")
        self._slots.drain()
        self._let_go()
        pointer, self._buffer = self._buffer, None
        if self in self.group._buffers:
            self.group._buffers.remove(self)
        lib.xep_buffer_destroy(pointer)

    def __enter__(self) -> "Buffer":
        return self

    def __exit__(self, kind: Any, _error: Any, _traceback: Any) -> None:
        if kind is None:  # else the group closes it: closing is collective, and the others may be anywhere
            self.close()


def _nothing(_error: XepError) -> None:
    """What a combine that failed leaves behind."""


quicken(Buffer, Handle, Received)
