# SPDX-License-Identifier: BSD-3-Clause
"""One MoE shape on a group: its shared memory, and dispatch."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Optional, TypedDict

from . import _ext
from .dtypes import Dtype
from .waits import RankWaits, Waits

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .group import Group


class BufferSize(NamedTuple):
    """bytes: what a rank shares with its peers, at most; recv_rows: rows a slot holds; node_bytes: what it shares where
    all ranks are on one node; device_bytes: memory of its CUDA device."""

    bytes: int
    recv_rows: int
    node_bytes: int
    device_bytes: int


class BufferInfo(NamedTuple):
    """``xep_buffer_info_t``. device: number of the CUDA device that has the rows; -1: host memory. path: "flat" or
    "nodes"; pass_rows: with "nodes" the room for rows in passing; node_sums: with "nodes" "dtype" or "fp32",
    else None; pieces: dispatches may come in pieces, asked for or for lack of memory for the worst case."""

    mode: str
    bytes: int
    recv_rows: int
    slots: int
    free_slots: int
    threads: int
    mapped_peers: int
    operations: int
    device: int
    path: str
    pass_rows: int
    node_sums: Optional[str]
    pieces: bool


class BufferOptions(TypedDict, total=False):
    """Keywords of Buffer and buffer_size(), for type checkers and editors."""

    mode: Optional[str]
    dtype: Any
    combine_dtype: Any
    scales: int
    recv_rows: int
    slots: int
    threads: int
    timeout: Optional[float]
    memory: str
    on_failure: Literal["fail", "mask"]
    send_memory: bool
    path: Literal["auto", "flat", "nodes"]
    pass_rows: int
    node_sums: Literal["default", "dtype", "fp32"]
    pieces: bool


def buffer_size(
    nranks: int, experts: int, topk: int, hidden: int, tokens: int, **options: Unpack[BufferOptions]
) -> BufferSize:
    """The size hint: what a Buffer of these parameters takes on each of nranks ranks. Local."""
    return BufferSize(*_ext.buffer_size(nranks, experts, topk, hidden, tokens, **options))


def _wake_torch() -> None:
    """A device that a program has chosen by torch is current for the driver only once torch has done something with
    it."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.synchronize()


class Buffer(_ext.Buffer):
    """One MoE shape. Collective, blocking; a context manager. Every rank passes the same values, but threads and
    timeout.

    experts: E of the whole group. topk: most selections of a token. hidden: most elements of a row. tokens: most tokens
    a rank dispatches at once. mode: None: XEP_MODE, else "normal"; "ll": rows by expert. dtype: widest element
    dispatched. combine_dtype: widest combined: bfloat16, float16, float32. scales: most 4-byte scales of a token.
    recv_rows: most rows a rank receives at once, 0: the worst case, or with pieces, and where there is no memory for
    the worst case, what an even load brings and a quarter more. pieces: host memory: dispatches may come in pieces of
    so many rows (dispatch(pieces=True), Handle.pieces()). slots: handles that live at once. threads: that copy and
    reduce, 0: XEP_THREADS. timeout: seconds for each operation, None: XEP_TIMEOUT. memory: "cuda": rows, and all arrays
    of operations, are in memory of the CUDA device that is current in this thread; threads are then multiprocessors,
    0: 16.
    on_failure: "fail": a rank
    that dies or does not answer in time breaks the buffer; "mask": it is out, and the others go on (Group.mask_query(),
    Received.out, missing of a combine; UnsupportedError where the library has no masks yet).
    send_memory: the buffer has memory for rows that peers read in place (send_memory(), dispatch(in_place=True)).
    path: how rows reach ranks of other nodes: "flat": once to each rank, "nodes": once to each node, "auto": XEP_PATH,
    else what takes less time. pass_rows: with "nodes" the rows that a rank has room for while they pass through it; in
    mode "ll" with either path those that ranks of other nodes send it, until it has copied them; 0: as many as the
    library finds right.
    node_sums: likewise how the sum of another node's rows for a token travels: "dtype": rounded to the type of the
    rows, "fp32": as it is, "default": XEP_NODE_SUMS, else "dtype".

    One thread at a time; the GIL is released while it waits.
    """

    group: Group

    def __init__(
        self, group: Group, experts: int, topk: int, hidden: int, tokens: int, **options: Unpack[BufferOptions]
    ) -> None:
        if options.get("memory") == "cuda":
            _wake_torch()
        self._create(group, experts, topk, hidden, tokens, **options)
        self.dtype, self.combine_dtype = Dtype(self._dtype), Dtype(self._combine_dtype)
        group._buffers.append(self)

    @classmethod
    def _of(cls, group: Group, old: Optional[Buffer]) -> Buffer:
        """Group.follow()."""
        if old is not None and not isinstance(old, Buffer):
            raise TypeError(f"buffer: expected a Buffer or None, got {old!r}")
        _wake_torch()
        made = cls.__new__(cls)
        made._follow(old, group)
        made.dtype, made.combine_dtype = Dtype(made._dtype), Dtype(made._combine_dtype)
        group._buffers.append(made)
        return made

    def info(self) -> BufferInfo:
        """What the library knows of it now."""
        return BufferInfo(*self._query())

    def waits(self) -> Waits:
        """For whom this rank has waited, since the buffer was made: the rank that all others wait for holds them up.

        Time counts in which a blocking call, or a wait() for a request, looked for what a rank sends and it was not
        there; not what lies between an operation's begin and its wait, and not tests. Local; any thread, also while
        another waits.
        """
        return Waits(RankWaits(*self._waits(0)), RankWaits(*self._waits(1)))

    def abort(self) -> None:
        """Gives the buffer up on this rank, until reset(): what is in flight raises BrokenError, as later calls do.
        So do the operations of other ranks, within milliseconds, and name this rank; their close() waits for it for
        2 s at most. Local. Of one that is closed: a no-op.
        """
        if self._buffer is not None and not self.group._inherited:
            self._abort()

    def close(self) -> None:
        """Frees the buffer; its handles end. Collective, blocking; again: a no-op. In a fork of the process that made
        it local: nothing is freed.

        BufferError, and nothing freed, while arrays of received rows are alive: drop them first.
        """
        if self._buffer is None:
            return
        if self.group._inherited:
            self._leave()
            return
        alive = self.arrays_left()
        if alive:
            raise BufferError(f"arrays of the rows of {alive} dispatches are alive: drop or copy them before close()")
        if self in self.group._buffers:
            self.group._buffers.remove(self)
        self._destroy()

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, kind: Any, _error: Any, _traceback: Any) -> None:
        if kind is None:
            self.close()
        else:  # the group closes it, as that is collective, and the others may be anywhere: they need not wait
            self.abort()
