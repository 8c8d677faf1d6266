# SPDX-License-Identifier: BSD-3-Clause
"""How ranks find one another without PMIx: any allgather of bytes, guarded so that one rank's error is everyone's.

Each message begins with a byte: 0 before what the library sends, 1 before the reason why a rank has nothing. A rank
whose allgather raised calls it once more, to say so; where that does not get through, the others'
deadline ends their waiting, for the allgather runs on a thread of its own.
"""

from __future__ import annotations

import queue
import sys
import threading
from typing import Any, Callable, Optional, Sequence

from .errors import BootError, Status

Allgather = Callable[[bytes], Sequence[bytes]]

_DATA, _FAILED = b"\0", b"\1"
_LEAST_BYTES = 256  # of a message: room for a reason, and all messages of an exchange are equally long


class Exchange:
    """The caller's allgather, as the library calls it while a group is made."""

    def __init__(self, allgather: Allgather, rank: int, nranks: int, timeout: Optional[float], inline: bool) -> None:
        self.error: Optional[BaseException] = None
        self._allgather = allgather
        self.rank, self.nranks = rank, nranks
        self._timeout, self._inline = timeout, inline

    def __call__(self, message: bytes) -> Optional[bytes]:
        """What all ranks sent, or None with self.error set."""
        if self.error is not None:
            return None
        try:
            replies = self._exchange((_DATA + message).ljust(_LEAST_BYTES))
            return b"".join([reply[1 : 1 + len(message)] for reply in replies])
        except BaseException as error:  # noqa: B902  also KeyboardInterrupt: raised again behind the library
            self.error = error
            return None

    def _exchange(self, message: bytes) -> list[bytes]:
        try:
            replies = self._in_time(message)
        except TimeoutError:
            raise
        except BaseException as error:
            self._tell(error, len(message))
            raise
        return self._open(replies, len(message))

    def _tell(self, error: BaseException, nbytes: int) -> None:
        """The same number of bytes as the others send, so that any allgather takes them."""
        reason = f"{type(error).__name__}: {error}".encode(errors="replace")
        try:
            self._in_time((_FAILED + reason).ljust(nbytes)[:nbytes])
        except BaseException:  # noqa: B902  the first error is the one to report
            pass

    def _open(self, replies: Sequence[bytes], nbytes: int) -> list[bytes]:
        if len(replies) != self.nranks:
            raise ValueError(f"allgather: expected {self.nranks} replies, one from each rank, got {len(replies)}")
        opened = []
        for rank, reply in enumerate(replies):
            reply = bytes(reply)
            if reply[:1] == _FAILED:
                reason = reply[1:].rstrip().decode(errors="replace")
                raise BootError(Status.ERR_BOOT, f"the allgather of rank {rank} raised {reason}")
            if len(reply) != nbytes:
                raise ValueError(f"allgather: expected {nbytes} bytes from rank {rank}, got {len(reply)}")
            opened.append(reply)
        return opened

    def _in_time(self, message: bytes) -> Sequence[bytes]:
        """The allgather's replies, or TimeoutError. A thread left in it is a daemon: it holds nobody up."""
        if self._inline:
            return self._allgather(message)
        done: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def work() -> None:
            try:
                done.put((self._allgather(message), None))
            except BaseException as error:  # noqa: B902  raised on the waiting thread
                done.put((None, error))

        threading.Thread(target=work, name="xep-allgather", daemon=True).start()
        try:
            replies, error = done.get(timeout=self._timeout)
        except queue.Empty:
            raise TimeoutError(
                f"the allgather of rank {self.rank} did not return within {self._timeout:g} s: a rank failed or is "
                "not here"
            ) from None
        if error is not None:
            raise error
        return replies


def _torch_allgather(group: Any) -> tuple[Allgather, int, int]:
    import torch
    import torch.distributed as dist

    size = dist.get_world_size(group)
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None

    def allgather(message: bytes) -> list[bytes]:
        replies: list[Any] = [None] * size
        if device is not None:  # NCCL gathers by the current device, which on a new thread is the first one
            torch.cuda.set_device(device)
        dist.all_gather_object(replies, message, group=group)
        return replies

    return allgather, dist.get_rank(group), size


def _is_process_group(comm: Any) -> bool:
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and isinstance(comm, dist.ProcessGroup)


def _must_stay_on_thread(comm: Any) -> bool:
    """Whether an MPI that was initialised for fewer threads would be called by another one."""
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and isinstance(comm, mpi.Comm) and mpi.Query_thread() < mpi.THREAD_MULTIPLE


def exchange_of(
    comm: Any, allgather: Optional[Allgather], rank: Optional[int], nranks: Optional[int], timeout: Optional[float]
) -> Optional[Exchange]:
    """What to bootstrap over; None: PMIx, or a group of one. timeout None: no deadline."""
    if comm is not None and (allgather is not None or rank is not None or nranks is not None):
        raise TypeError("comm: it has an allgather, a rank and a size: give it or these, not both")
    if comm is None and allgather is None:
        if rank is not None or nranks is not None:
            raise TypeError("rank, nranks: expected None without an allgather: the launcher says both")
        return None
    inline = False
    if comm is not None and _is_process_group(comm):
        allgather, rank, nranks = _torch_allgather(comm)
    elif comm is not None:
        for attribute in ("rank", "size", "allgather"):
            if not hasattr(comm, attribute):
                raise TypeError(
                    "comm: expected a torch.distributed process group or a communicator with rank, size and "
                    f"allgather, got {type(comm).__name__} without {attribute}"
                )
        allgather, rank, nranks, inline = comm.allgather, comm.rank, comm.size, _must_stay_on_thread(comm)
    if not callable(allgather) or rank is None or nranks is None:
        raise TypeError(
            f"allgather, rank, nranks: expected a function and two integers, got {allgather!r}, {rank!r}, {nranks!r}"
        )
    if not 0 <= int(rank) < int(nranks):
        raise ValueError(f"rank: expected 0 to {int(nranks) - 1} (nranks - 1), got {rank}")
    return Exchange(allgather, int(rank), int(nranks), timeout, inline)
