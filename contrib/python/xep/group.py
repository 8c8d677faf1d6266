# SPDX-License-Identifier: BSD-3-Clause
"""The ranks that work together."""

from __future__ import annotations

import ctypes
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from . import _structs
from ._lib import check, lib, milliseconds
from .boot import Allgather, exchange_of
from .buffer import Buffer
from .library import default_timeout

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .options import BufferOptions


class Peer(NamedTuple):
    """What is known of a rank. mapped: reached by loads and stores; else by ``transport``."""

    node: int
    mapped: bool
    transport: str


class Group:
    """Joins the ranks of a job. Collective, blocking; a context manager.

    comm: a torch.distributed process group of any backend, an mpi4py communicator, or anything with ``rank``, ``size`` and
        ``allgather(bytes)``. Without it, and without allgather: PMIx (xep_run, prterun, mpirun, srun), or a group of one.
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
        self._group: Optional[int] = None
        self._aborted = False
        self._buffers: list[Buffer] = []
        params = _structs.GroupParams(timeout_ms=milliseconds(timeout))
        seconds = default_timeout() if timeout is None else (timeout if timeout < 1e9 else None)
        self._exchange = exchange_of(comm, allgather, rank, nranks, seconds)
        if self._exchange is not None:
            params.allgather = self._exchange.callback
            params.rank, params.nranks = self._exchange.place
        group = ctypes.c_void_p()
        self._made(lib.xep_group_create(params, group))
        self._group = group.value
        info = _structs.GroupInfo()
        check(lib.xep_group_query(self._group, info))
        self.rank: int = info.rank
        self.nranks: int = info.nranks
        self.node: int = info.node
        self.nnodes: int = info.nnodes
        self.boot: str = info.boot.decode()

    def _made(self, status: int) -> None:
        """check(), but what the caller's allgather raised goes before what the library made of it."""
        if self._exchange is None or self._exchange.error is None:
            check(status)
            return
        error, self._exchange.error = self._exchange.error, None
        try:
            check(status)
        except Exception as made:
            raise error from made
        raise error

    def _pointer(self) -> int:
        if self._group is None:
            raise ValueError("the group is closed")
        return self._group

    def barrier(self) -> None:
        """Returns when every rank has called it. Collective, blocking."""
        check(lib.xep_group_barrier(self._pointer()))

    def allgather(self, data: bytes) -> list[bytes]:
        """The bytes of every rank, the same number from each, over the group's connections. Collective, blocking."""
        received = ctypes.create_string_buffer(max(1, len(data) * self.nranks))
        check(lib.xep_group_allgather(self._pointer(), bytes(data), received, len(data)))
        return [received.raw[i * len(data) : (i + 1) * len(data)] for i in range(self.nranks)]

    def peer(self, rank: int) -> Peer:
        """What is known of a rank. Local."""
        if not 0 <= rank < self.nranks:
            raise ValueError(f"rank: expected 0 to {self.nranks - 1}, got {rank}")
        info = _structs.PeerInfo()
        check(lib.xep_group_peer(self._pointer(), rank, info))
        return Peer(info.node, bool(info.mapped), info.transport.decode())

    def buffer(self, experts: int, topk: int, hidden: int, tokens: int, **options: Unpack[BufferOptions]) -> Buffer:
        """A buffer for one shape on this group; see Buffer. Collective, blocking."""
        return Buffer(self, experts, topk, hidden, tokens, **options)

    def abort(self) -> None:
        """Gives up: later calls raise AbortedError, close() waits for nobody. Local."""
        if self._group is not None:
            self._aborted = True
            lib.xep_group_abort(self._group)

    def close(self) -> None:
        """Closes what buffers are left, and leaves. Collective, blocking; after abort() local. Again: a no-op.

        BufferError while arrays of received rows are alive. After abort() what they look at stays mapped until
        the process ends.
        """
        if self._group is None:
            return
        if self._aborted:
            if any([buffer.arrays_left() for buffer in self._buffers]):
                self.leave()
                return
        for buffer in list(self._buffers):
            buffer.close()
        group, self._group = self._group, None
        lib.xep_group_destroy(group)

    def leave(self) -> None:
        """Instead of close(): nothing is freed, what is mapped stays mapped until the process ends. Local."""
        self._group = None
        for buffer in self._buffers:
            buffer._buffer = None

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, kind: Any, _error: Any, _traceback: Any) -> None:
        if kind is not None:
            self.abort()  # the others may be anywhere: leave without waiting for them
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_group", None) is not None:
            warnings.warn("xep.Group was not closed: that is collective, so it is not done here", ResourceWarning, source=self)
