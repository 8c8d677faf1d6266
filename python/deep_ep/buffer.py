# SPDX-License-Identifier: BSD-3-Clause
"""DeepEP's Buffer."""

from __future__ import annotations

from typing import Any, Optional

import torch

import xep

from ._check import WrongType, WrongValue, integer, named_as_called
from .config import ALIGNMENT, Config, combine_config, dispatch_config, low_latency_size_hint
from .core import Core
from .low_latency import LowLatency
from .low_latency_calls import LowLatencyCalls
from .normal import NormalCalls
from .passing import Passing
from .utils.event import EventHandle, EventOverlap


class Buffer(NormalCalls, LowLatencyCalls):
    """Dispatch and combine of MoE tokens, of CPU tensors or those of a CUDA device; collective to make.

    group: a torch.distributed process group of any backend. comm: an mpi4py communicator, used when group is None.
        Neither: PMIx (xep_run, prterun, mpirun, srun), or a group of one.
    num_nvl_bytes, num_rdma_bytes: multiples of 128, and what get_local_buffer_tensor has room for. They limit
        nothing: shared memory is made at the first dispatch, for its shape, and grows by agreement of the ranks.
    low_latency_mode: allows the low-latency calls.
    num_qps_per_rank, allow_nvlink_for_low_latency_mode, allow_mnnvl, use_fabric: choices among GPU links; UCX chooses
        here.
    enable_shrink: of low-latency mode, for CPU tensors: a rank that dies, or does not answer within timeout, is masked,
        and the others go on without it. They agree on who is. Shared memory is made by all ranks together, so none may
        be missing by then: it is made here if num_rdma_bytes is what get_low_latency_rdma_size_hint returned last, else
        by the first dispatch of each shape. UnsupportedError where not all ranks map one another.
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
        if enable_shrink and not low_latency_mode:
            raise WrongValue("enable_shrink: expected False without low_latency_mode, which alone has masks")
        for name, size in (("num_nvl_bytes", num_nvl_bytes), ("num_rdma_bytes", num_rdma_bytes)):
            if not isinstance(size, int) or size < 0 or size % ALIGNMENT:
                raise WrongValue(f"{name}: expected a multiple of {ALIGNMENT} bytes, got {size!r}")
        self._counts = {}
        self._last_layout = ()
        self._scratch: dict[bool, torch.Tensor] = {}
        self.num_nvl_bytes, self.num_rdma_bytes = num_nvl_bytes, num_rdma_bytes
        self.low_latency_mode, self.enable_shrink = low_latency_mode, enable_shrink
        self._join(group if group is not None else comm, num_slots, timeout, explicitly_destroy)
        self._passing = Passing(self._xep, self._nodes, timeout) if self._nodes.count > 1 else None
        self._low_latency = LowLatency(self._xep, num_slots, timeout, "mask" if enable_shrink else "fail")
        self.rank, self.group_size = self._xep.rank, self._xep.nranks
        if enable_shrink:
            try:
                self._make_hinted(num_rdma_bytes)
            except xep.XepError:
                self._close()
                raise

    # ---- of the class ----

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """Of Config objects made from now on: multiprocessors of a CUDA device. Threads are what SMs are for CPU
        tensors: a rank of a buffer made from now on copies and reduces with as many, but no more than its share of this
        machine's processors."""
        if integer("new_num_sms", new_num_sms, 0) % 2:
            raise WrongValue(f"new_num_sms: expected an even number, got {new_num_sms}")
        Buffer.num_sms = new_num_sms
        Buffer._threads = new_num_sms

    @staticmethod
    def is_sm90_compiled() -> bool:
        """True: rows of 8 bits are cast and carried, which is what programs want to know."""
        return True

    @staticmethod
    def capture() -> EventOverlap:
        """An event for what is enqueued on the current stream by now. On a CPU what was called has been done."""
        return EventOverlap(EventHandle())

    @staticmethod
    def get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
    ) -> int:
        """DeepEP's hint, in bytes. xep.buffer_size(mode="ll", ...) is what is used here. A Buffer made with it and
        enable_shrink has its memory for this shape from the begin on."""
        shape = (num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts)
        hint = low_latency_size_hint(*shape)
        LowLatencyCalls.hinted[hint] = shape
        return hint

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        return dispatch_config(Buffer.num_sms, num_ranks)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        return combine_config(Buffer.num_sms, num_ranks)

    @staticmethod
    def _unpack_bias(bias: Any) -> tuple[Any, Any]:
        """None, a tensor, or a tuple of two, as two."""
        if isinstance(bias, tuple) and len(bias) != 2:
            raise WrongValue(f"bias: expected two, got {len(bias)}")
        return bias if isinstance(bias, tuple) else (bias, None)

    # ---- life ----

    def is_available(self) -> bool:
        return not self._destroyed

    def _shared(self) -> list[xep.Buffer]:
        low_latency = [buffer for one in self._low_latencies() for buffer in one.buffers()]
        return super()._shared() + low_latency + self._beside()

    def _beside(self) -> list[xep.Buffer]:
        """Those of what ranks tell one another beside rows."""
        told = self._passing.buffer if self._passing is not None else None
        return [*self._counts.values(), *([told] if told is not None else [])]

    def _forget(self) -> None:
        self._scratch.clear()
        super()._forget()
        for low_latency in self._low_latencies():
            low_latency.forget()

    def reset(self) -> None:
        """Makes usable what an error (a deadline, a peer that failed) left broken, in both modes. Handles end, and what
        was received with them is undefined. Not a call of DeepEP's. Collective."""
        super().reset()
        for low_latency in self._low_latencies():
            low_latency.reset()
        for buffer in self._beside():
            buffer.reset()

    def get_local_buffer_tensor(
        self, dtype: torch.dtype, size: Optional[torch.Size] = None, offset: int = 0, use_rdma_buffer: bool = False
    ) -> torch.Tensor:
        """A view of num_nvl_bytes (num_rdma_bytes) of this rank, from byte offset on: all that is left, or size.

        The memory is the program's own. What is shared with other ranks, signals and rows in flight, is not handed out
        here; xep.Buffer.memory() shows it.
        """
        self._usable()
        if not isinstance(dtype, torch.dtype):
            raise WrongType(f"dtype: expected a torch.dtype, got {dtype!r}")
        room = self.num_rdma_bytes if use_rdma_buffer else self.num_nvl_bytes
        if offset < 0 or offset % dtype.itemsize or offset > room:
            raise WrongValue(f"offset: expected a multiple of {dtype.itemsize} bytes up to {room}, got {offset}")
        if use_rdma_buffer not in self._scratch:
            self._scratch[use_rdma_buffer] = torch.zeros(room, dtype=torch.uint8)
        count = (room - offset) // dtype.itemsize
        wanted = count if size is None else torch.Size(size).numel()
        if wanted > count:
            raise WrongValue(f"size: expected at most {count} elements of {dtype} behind offset {offset}, got {size}")
        flat = self._scratch[use_rdma_buffer][offset : offset + wanted * dtype.itemsize].view(dtype)
        return flat if size is None else flat.view(size)


named_as_called(Core, NormalCalls, LowLatencyCalls)
