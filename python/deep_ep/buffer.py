# SPDX-License-Identifier: BSD-3-Clause
"""DeepEP's Buffer on CPU ranks."""

from __future__ import annotations

import sys
import threading
import warnings
import weakref
from typing import Any, Optional

import torch

import xep

from . import _check
from .config import ALIGNMENT, NODE_RANKS, Config, combine_config, dispatch_config, low_latency_size_hint
from .event import CommStream, EventHandle, EventOverlap
from .low_latency import LowLatency
from .low_latency_calls import LowLatencyCalls
from .normal import NormalCalls
from .pool import NormalPool


class Runtime:
    """What programs ask of DeepEP's inner object."""

    def __init__(self, buffer: "Buffer") -> None:
        self._buffer = weakref.ref(buffer)

    def is_available(self) -> bool:
        buffer = self._buffer()
        return buffer is not None and not buffer._destroyed

    def get_num_rdma_ranks(self) -> int:
        """Nodes of 8 ranks."""
        return -(-self._alive().group_size // NODE_RANKS)

    def get_rdma_rank(self) -> int:
        return self._alive().rank // NODE_RANKS

    def get_root_rdma_rank(self, global_root: bool) -> int:
        return self._alive().rank % NODE_RANKS if global_root else 0

    def get_local_device_id(self) -> int:
        """There is one device, the host."""
        return 0

    def _alive(self) -> "Buffer":
        buffer = self._buffer()
        if buffer is None:
            raise RuntimeError("the Buffer is gone")
        return buffer


_CLOSE_SECONDS = 5.0  # for which a destructor waits for the other ranks


class Buffer(NormalCalls, LowLatencyCalls):
    """Dispatch and combine of MoE tokens among CPU ranks; collective to make.

    group: a torch.distributed process group of any backend. comm: an mpi4py communicator, used when group is None.
        Neither: PMIx (xep_run, prterun, mpirun, srun), or a group of one.
    num_nvl_bytes, num_rdma_bytes: multiples of 128, and what get_local_buffer_tensor has room for. They limit
        nothing: shared memory is made at the first dispatch, for its shape, and grows by agreement of the ranks.
    low_latency_mode: allows the low-latency calls.
    num_qps_per_rank, allow_nvlink_for_low_latency_mode, allow_mnnvl, use_fabric: choices among GPU links; UCX chooses
        here.
    explicitly_destroy: destroy() will be called; else the destructor does it, where no received tensor is alive.
    num_slots: how many dispatches have their memory at once, for each shape and mode; memory grows with it. A program
        that keeps the handles of many layers for its backward pass is quickest with as many, and two more.

    Received tensors are views of shared memory, or copies where views that the program keeps have taken all but two
    slots. Handles may be kept, as many as one likes. Of normal mode, the num_slots - 2 that were used last have their
    slots; the first use of an older one is preceded by a dispatch of nearly empty rows, or is itself not cached. Low
    latency: an older handle that was combined, or has two successors (DeepEP's rule for results), gives its slot to
    the next dispatch when there is no other; using it then is an error.
    """

    def __init__(
        self,
        group: Any = None,
        num_nvl_bytes: int = 0,
        num_rdma_bytes: int = 0,
        low_latency_mode: bool = False,
        num_qps_per_rank: int = 24,
        allow_nvlink_for_low_latency_mode: bool = True,
        allow_mnnvl: bool = False,
        use_fabric: bool = False,
        explicitly_destroy: bool = False,
        enable_shrink: bool = False,
        comm: Any = None,
        *,
        num_slots: int = 4,
        timeout: Optional[float] = None,
    ) -> None:
        self._destroyed = True
        if enable_shrink:
            raise NotImplementedError("enable_shrink: masking of ranks is not available on CPU yet")
        for name, size in (("num_nvl_bytes", num_nvl_bytes), ("num_rdma_bytes", num_rdma_bytes)):
            if not isinstance(size, int) or size < 0 or size % ALIGNMENT:
                raise ValueError(f"{name}: expected a multiple of {ALIGNMENT} bytes, got {size!r}")
        _check.integer("num_slots", num_slots, 1)
        self._xep = xep.Group(group if group is not None else comm, timeout=timeout)
        self.group = group
        self.rank, self.group_size = self._xep.rank, self._xep.nranks
        self.num_nvl_bytes, self.num_rdma_bytes = num_nvl_bytes, num_rdma_bytes
        self.low_latency_mode = low_latency_mode
        self.explicitly_destroy, self.enable_shrink = explicitly_destroy, enable_shrink
        self.runtime = Runtime(self)
        self._pool = NormalPool(self._xep, num_slots, timeout)
        self._low_latency = LowLatency(self._xep, num_slots, timeout)
        self._counts = {}
        self._last_layout = ()
        self._scratch: dict[bool, torch.Tensor] = {}
        self._destroyed = False

    # ---- of the class ----

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """Of Config objects made from now on. Threads are what SMs are here: a rank of a buffer made from now on copies
        and reduces with as many, but no more than its share of this machine's processors."""
        if _check.integer("new_num_sms", new_num_sms, 0) % 2:
            raise ValueError(f"new_num_sms: expected an even number, got {new_num_sms}")
        Buffer.num_sms = new_num_sms
        Buffer._threads = new_num_sms

    @staticmethod
    def is_sm90_compiled() -> bool:
        """False: there are no GPU kernels."""
        return False

    @staticmethod
    def capture() -> EventOverlap:
        """An event for what was called until now. On a CPU that has been done."""
        return EventOverlap(EventHandle())

    @staticmethod
    def get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
    ) -> int:
        """DeepEP's hint, in bytes. xep.buffer_size(mode="ll", ...) is what is used here."""
        return low_latency_size_hint(num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts)

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        return dispatch_config(Buffer.num_sms, num_ranks)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        return combine_config(Buffer.num_sms, num_ranks)

    # ---- life ----

    def is_available(self) -> bool:
        return not self._destroyed

    def destroy(self) -> None:
        """Frees all. Collective; only with explicitly_destroy. The memory of tensors that are alive on some rank stays
        mapped until the process ends, with a ResourceWarning."""
        if not self.explicitly_destroy:
            raise RuntimeError("destroy: expected a Buffer made with explicitly_destroy=True")
        self._usable()
        self._close()

    def abort(self) -> None:
        """Gives up on the other ranks: calls that wait for them, on any thread, end with xep.AbortedError, and so do
        later ones; what is freed is freed without them. Not a call of DeepEP's. Local."""
        self._xep.abort()

    def reset(self) -> None:
        """Makes usable what an error (a deadline, a peer that failed) left broken, in both modes. Handles end, and what
        was received with them is undefined. Not a call of DeepEP's. Collective."""
        self._usable()
        self._low_latency.reset()
        self._pool.reset()
        for buffer in self._counts.values():
            buffer.reset()

    def _close(self) -> None:
        self._destroyed = True
        if self._xep._inherited:
            self._xep.leave()
            return
        self._scratch.clear()
        self._pool.forget()
        self._low_latency.forget()
        buffers = self._pool.buffers() + self._low_latency.buffers() + list(self._counts.values())
        held = [buffer.arrays_left() for buffer in buffers]
        try:
            everywhere = self._xep.allgather(bytes(min(count, 255) for count in held) + b"\0")
        except xep.XepError as error:
            warnings.warn(f"deep_ep.Buffer: its memory stays mapped: {error.reason}", ResourceWarning)
            self._xep.leave()
            return
        if all(not any(counts) for counts in everywhere):
            self._xep.close()
            return
        if any(held):
            warnings.warn(
                f"received tensors of {sum(held)} dispatches outlive their Buffer: its memory stays mapped",
                ResourceWarning,
            )
        self._xep.leave()

    def __del__(self) -> None:
        if getattr(self, "_destroyed", True) or sys.is_finalizing():
            return
        if self.explicitly_destroy and not self._xep._inherited:
            warnings.warn(
                "deep_ep.Buffer: destroy() was not called, its memory stays mapped", ResourceWarning, source=self
            )
            self._xep.leave()
        else:
            self._close_in_time()

    def _close_in_time(self) -> None:
        """A destructor may hold nobody up, least of all an exception on its way: the other ranks may be anywhere."""
        closer = threading.Thread(target=self._close, name="xep-close", daemon=True)
        closer.start()
        closer.join(_CLOSE_SECONDS)
        if closer.is_alive():
            self._xep.abort()
            closer.join()

    def get_comm_stream(self) -> CommStream:
        """Stands for the stream that communicates: ``with`` and waiting work, and do nothing."""
        self._usable()
        return CommStream()

    def get_local_buffer_tensor(
        self, dtype: torch.dtype, size: Optional[torch.Size] = None, offset: int = 0, use_rdma_buffer: bool = False
    ) -> torch.Tensor:
        """A view of num_nvl_bytes (num_rdma_bytes) of this rank, from byte offset on: all that is left, or size.

        The memory is the program's own. What is shared with other ranks, signals and rows in flight, is not handed out
        here; xep.Buffer.memory() shows it.
        """
        self._usable()
        if not isinstance(dtype, torch.dtype):
            raise TypeError(f"dtype: expected a torch.dtype, got {dtype!r}")
        room = self.num_rdma_bytes if use_rdma_buffer else self.num_nvl_bytes
        if offset < 0 or offset % dtype.itemsize or offset > room:
            raise ValueError(f"offset: expected a multiple of {dtype.itemsize} bytes up to {room}, got {offset}")
        if use_rdma_buffer not in self._scratch:
            self._scratch[use_rdma_buffer] = torch.zeros(room, dtype=torch.uint8)
        count = (room - offset) // dtype.itemsize
        wanted = count if size is None else torch.Size(size).numel()
        if wanted > count:
            raise ValueError(f"size: expected at most {count} elements of {dtype} behind offset {offset}, got {size}")
        flat = self._scratch[use_rdma_buffer][offset : offset + wanted * dtype.itemsize].view(dtype)
        return flat if size is None else flat.view(size)
