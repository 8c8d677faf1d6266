# SPDX-License-Identifier: BSD-3-Clause
"""The ranks that work together, and their buffers: one MoE shape each, its shared memory, and dispatch."""

from __future__ import annotations

import enum
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional, Sequence

from . import _ext
from .boot import Allgather, exchange_of
from .dtypes import Dtype
from .library import default_timeout
from .params import BufferInfo, BufferOptions, Counters, Loads, OpCounters, RankWaits, Waits
from .serve import ServeCall, serve, step_end
from .weights import Weights, WeightsOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Peer(NamedTuple):
    """What is known of a rank. mapped: reached by loads and stores; else by ``transport``."""

    node: int
    mapped: bool
    transport: str


class OutReason(enum.IntEnum):
    """``xep_out_reason_t``: why a rank is out, as this rank knows it."""

    DIED = 1
    LATE = 2
    ASKED = 3


class Mask(NamedTuple):
    """A rank that is out. since_ns: when this rank gave it up, as time.monotonic_ns() counts."""

    rank: int
    reason: OutReason
    since_ns: int


class Group(_ext.Group):
    """Joins the ranks of a job. Collective, blocking; a context manager.

    comm: a torch.distributed process group of any backend, an mpi4py communicator, or anything with ``rank``, ``size``
        and ``allgather(bytes)``. Without it, and without allgather: PMIx (xep_run, prterun, mpirun, srun), or a group
        of one.
    allgather, rank, nranks: instead of comm; the function takes bytes and returns those of all ranks, in rank order.
        It is called on a thread of its own, while the group is made; then the group has connections.
    timeout: seconds of each wait of a group call; None: XEP_TIMEOUT.

    An error of the allgather on one rank is an error on every rank: that rank gets its own exception, the others
    ``BootError``, or ``TimeoutError`` where that rank could not tell them.
    """

    def __init__(
        self,
        comm: Any = None,
        *,
        allgather: Optional[Allgather] = None,
        rank: Optional[int] = None,
        nranks: Optional[int] = None,
        timeout: Optional[float] = None,
    ) -> None:
        self._aborted = False
        self._parts: list[Buffer | Weights] = []
        self.origins: Optional[list[int]] = None  # of shrink(): the ranks of the other group
        seconds = default_timeout() if timeout is None else (timeout if timeout < 1e9 else None)
        exchange = exchange_of(comm, allgather, rank, nranks, seconds)
        if exchange is None:
            self._create(None, 0, 0, timeout)
            return
        try:
            self._create(exchange, exchange.rank, exchange.nranks, timeout)
        except Exception as made:
            if exchange.error is not None:  # what the caller's allgather raised goes before what the library made of it
                raise exchange.error from made
            raise

    def peer(self, rank: int) -> Peer:
        """What is known of a rank. Local."""
        return Peer(*self._peer(rank))

    def buffer(self, experts: int, topk: int, hidden: int, tokens: int, **options: Unpack[BufferOptions]) -> Buffer:
        """A buffer for one shape on this group; see Buffer. Collective, blocking."""
        return Buffer(self, experts, topk, hidden, tokens, **options)

    def weights(
        self, experts: int, shape: int | Sequence[int], dtype: Any = "bfloat16", **options: Unpack[WeightsOptions]
    ) -> Weights:
        """Memory for the weights of all experts, which every rank can read; see Weights. Collective, blocking."""
        return Weights(self, experts, shape, dtype, **options)

    def mask_query(self) -> list[Mask]:
        """The ranks that are out, ascending, as far as this rank knows by now: a barrier makes all know it. Local."""
        return [Mask(rank, OutReason(reason), since) for rank, reason, since in self._mask_query()]

    def shrink(self, *, timeout: Optional[float] = None, least: int = 1) -> Group:
        """A group of the ranks of this one that are left, in the same order; its ``origins`` are their ranks here.
        Collective over these, blocking; no launcher and no allgather takes part. Ranks that have died are left out,
        those that are masked, and those that do not call this.

        timeout: seconds to wait for a rank that is not known to be gone; None: as the group's.
        least: with fewer ranks PeerError on all of them, so that of a network that was cut one part goes on at most.

        This group is aborted by it. Rows that were received stay readable until its buffers and it are closed, which
        waits for nobody; new buffers are made on the new group. PeerError, too, on a rank that the others have left
        out.
        """
        group = self._new()
        try:
            group.origins = self._shrink(group, timeout, least)
        except ValueError:  # refused: nothing has begun
            raise
        except Exception:
            self._aborted = True
            raise
        self._aborted = True
        return group

    @classmethod
    def _new(cls) -> Group:
        """One that is not open yet."""
        group = cls.__new__(cls)
        group._aborted, group._parts, group.origins = False, [], None
        return group

    def grow(
        self,
        path: Optional[str | os.PathLike[str]] = None,
        *,
        joiners: int = 1,
        publish: Optional[Callable[[Optional[bytes]], Any]] = None,
        timeout: Optional[float] = None,
        anywhere: bool = False,
    ) -> Group:
        """A group of all ranks of this one, which keep their numbers, and of so many processes that call
        ``Group.join()``, behind them. Collective, blocking. Rank 0's arguments count.

        path: of the address file, by which joiners find rank 0; it is made for this user alone and removed again.
            Or "pmix:NAME": a name that the launcher keeps meanwhile (xep_run, mpirun, prterun); None: "pmix:xep".
        publish: instead of path: a function that makes the bytes of an address known; called with None when they are
            not valid any more.
        timeout: seconds until the joiners are here; None: as the group's. anywhere: they may be on other hosts also
            where all ranks are on one.

        After an error all ranks have this group as it was, and may call it again: TimeoutError, where fewer have come;
        PeerError, where one has died. Else both groups can be used, and follow() makes buffers on the new one.
        """
        group = self._new()
        self._grow(group, path, publish, joiners, timeout, anywhere)
        return group

    @classmethod
    def join(
        cls,
        path: Optional[str | os.PathLike[str]] = None,
        *,
        lookup: Optional[Callable[[], Optional[bytes]]] = None,
        timeout: Optional[float] = None,
    ) -> Group:
        """Makes this process a rank of a group whose ranks call grow(), now or before the timeout. It may come from
        anywhere: no launcher takes part, unless path is a name. Blocking.

        path: of the address file, or "pmix:NAME"; None: "pmix:xep". lookup: instead of it: a function that returns
        what publish was given, or None, if that is not there yet. timeout: seconds until the group is there, and of
        its waits; None: XEP_TIMEOUT.
        """
        group = cls._new()
        group._join(path, lookup, timeout)
        return group

    def follow(self, buffer: Optional[Buffer] = None) -> Buffer:
        """A buffer on this group with the parameters of one of the group that this one came of by grow() or shrink();
        None on ranks that have none, as they are new. Collective, blocking; the other buffer stays.
        """
        return Buffer._of(self, buffer)

    def abort(self) -> None:
        """Ends the group for all ranks: their waits and later calls raise AbortedError, which names this rank.
        close() then waits for nobody. Local.
        """
        self._aborted = True
        self._abort()

    def close(self) -> None:
        """Closes what buffers and weights are left, and leaves. Collective, blocking; after abort(), and in a fork of
        the process that made the group, local. Again: a no-op.

        BufferError while arrays of received rows, or of weights, are alive. After abort() what they look at stays
        mapped until the process ends.
        """
        if not self._open:
            return
        if self._inherited or (self._aborted and any([part.arrays_left() for part in self._parts])):
            self.leave()
            return
        for part in list(self._parts):
            part.close()
        self._destroy()

    def leave(self) -> None:
        """Instead of close(): nothing is freed, what is mapped stays mapped until the process ends. Local."""
        self._leave()
        for part in self._parts:
            part._leave()

    def __repr__(self) -> str:
        return f"<xep.Group: rank {self.rank} of {self.nranks}, {self.boot}{'' if self._open else ', closed'}>"

    def __enter__(self) -> Group:
        return self

    def __exit__(self, kind: Any, _error: Any, _traceback: Any) -> None:
        if kind is not None:
            self.abort()  # the others may be anywhere: leave without waiting for them
        self.close()

    def __del__(self) -> None:
        if self._open and not self._inherited:
            warnings.warn(
                "xep.Group was not closed: that is collective, so it is not done here", ResourceWarning, source=self
            )


def _wake_torch() -> None:
    """A device that a program has chosen by torch is current for the driver only once torch has done something with
    it."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.synchronize()


class Buffer(_ext.Buffer):
    """One MoE shape. Collective, blocking; a context manager. Every rank passes the same values, but threads,
    multiprocessors and timeout.

    experts: E of the whole group. topk: most selections of a token. hidden: most elements of a row. tokens: most tokens
    a rank dispatches at once. mode: None: XEP_MODE, else "normal"; "ll": rows by expert. dtype: widest element
    dispatched. combine_dtype: widest combined: bfloat16, float16, float32. scales: most 4-byte scales of a token, in
    mode normal those of a cast, too.
    recv_rows: most rows a rank receives at once, 0: the worst case, or with pieces, and where there is no memory for
    the worst case, what an even load brings and a quarter more. pieces: host memory: dispatches may come in pieces of
    so many rows (dispatch(pieces=True), Handle.pieces()). slots: handles that live at once. threads: of the host, that
    copy and reduce, 0: XEP_THREADS. timeout: seconds for each operation, None: XEP_TIMEOUT. memory: "cuda": rows, and
    all arrays of operations, are in memory of the CUDA device that is current in this thread; multiprocessors: that
    copy and reduce there, 0: 16.
    on_failure: "fail": a rank that dies or does not answer in time breaks the buffer; "mask": it is out, and the others
    go on (Group.mask_query(), Received.out, missing of a combine; UnsupportedError where the mode has no masks).
    send_memory: the buffer has memory for rows that peers read in place (send_memory(), dispatch(in_place=True)).
    path: how rows reach ranks of other nodes: "flat": once to each rank, "nodes": once to each node, "auto": XEP_PATH,
    else what takes less time. pass_rows: with "nodes" the rows that a rank has room for while they pass through it; in
    mode "ll" with either path those that ranks of other nodes send it, until it has copied them; 0: as many as the
    library finds right.
    sum_by_selection: mode normal: a combine adds the ranks of a token in the order of its last selection of each, by
    nodes those of a node, which are rounded, and then nodes; else in ascending order.
    owners: the rank of each of the E experts, any number of them on each rank; None: blocks (expert_range()).
    Received.experts has the numbers of this rank's.
    replicas: (expert, rank): ranks that serve an expert besides its owner. balance: how dispatch(balance=True) chooses
    among them: "least-loaded"; "even": the busiest rank gets as little as can be, and without replicas any rank serves
    any expert, so that none gets more than its share (loads()); or a function of a PlanCall, the same on all ranks. It
    returns how many rows each instance gets, or what an EPLB library makes, (phy2log, log2phy, logcnt): then the rows
    of an expert are divided among its copies (placement() says which replicas these are). dispatch() raises what the
    function raises, and MismatchError on the other ranks; on all, if plans differ.
    served: host memory: ranks without tokens may serve(), and ranks that work say where steps end (step_end()).

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
        group._parts.append(self)

    @classmethod
    def _of(cls, group: Group, old: Optional[Buffer]) -> Buffer:
        """Group.follow()."""
        if old is not None and not isinstance(old, Buffer):
            raise TypeError(f"buffer: expected a Buffer or None, got {old!r}")
        _wake_torch()
        made = cls.__new__(cls)
        made._follow(old, group)
        made.dtype, made.combine_dtype = Dtype(made._dtype), Dtype(made._combine_dtype)
        group._parts.append(made)
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

    def counters(self) -> Counters:
        """What its operations have done, since it was made. Local; any thread, at any time. Prometheus gets the same
        numbers from ``xep_info --metrics PID``."""
        return Counters(*(OpCounters(*self._counters(kind)) for kind in range(3)))

    def loads(self) -> Loads:
        """What balance was worth: selections of the busiest rank, before and after, of all balanced dispatches."""
        return Loads(*self._loads())

    def serve(
        self, function: Callable[[ServeCall], Any], *, timeout: Optional[float] = None, torch: bool = False
    ) -> None:
        """xep.serve() of this buffer alone."""
        serve([self], function, timeout=timeout, torch=torch)

    def step_end(self, *, last: bool = False) -> None:
        """xep.step_end() of this buffer alone."""
        step_end([self], last=last)

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
        if self in self.group._parts:
            self.group._parts.remove(self)
        self._destroy()

    def __repr__(self) -> str:
        if self._buffer is None:
            return "<xep.Buffer: closed>"
        return (
            f"<xep.Buffer: {self.experts} experts, topk {self.topk}, hidden {self.hidden}, {self.tokens} tokens, "
            f"{self.dtype.name}, combine {self.combine_dtype.name}, {self.slots} slots, of {self.group!r}>"
        )

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, kind: Any, _error: Any, _traceback: Any) -> None:
        if kind is None:
            self.close()
        else:  # the group closes it, as that is collective, and the others may be anywhere: they need not wait
            self.abort()
