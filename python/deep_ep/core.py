# SPDX-License-Identifier: BSD-3-Clause
"""What all buffers of DeepEP's are here: a group with pools of shared memory, and their end."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from typing import Any, Optional

import torch

import xep

from .arguments import HOST, WrongUse, WrongValue, integer
from .compat import Runtime
from .nodes import Agreement, Nodes
from .pool import NormalPool
from .streams import DeviceQueue, HostOrdering, Ordering
from .utils.event import CommStream, request_of

_CLOSE_SECONDS = 5.0  # for which a destructor waits for the other ranks


class Core:
    """Collective to make. Derived classes add their calls, and pools of their own."""

    _threads: int = 0
    _destroyed: bool = True
    runtime: Optional[Runtime]
    explicitly_destroy: bool
    _queue: Optional[DeviceQueue] = None  # of the CUDA device, where tensors are of one
    _device_pool: Optional[NormalPool] = None

    def _join(self, group: Any, num_slots: int, timeout: Optional[float], explicitly_destroy: bool) -> None:
        integer("num_slots", num_slots, 1)
        self.group = group
        self.explicitly_destroy = explicitly_destroy
        self._xep = xep.Group(group, timeout=timeout)
        self._nodes = Nodes(self._xep)
        self._num_slots, self._timeout = num_slots, timeout
        self._agreement = Agreement(self._xep)
        self._pool = NormalPool(self._xep, self._agreement, num_slots, timeout)
        self.runtime = Runtime(self)
        self._destroyed = False

    def _usable(self) -> None:
        if self._destroyed:
            raise WrongUse("the Buffer was destroyed")

    def _threads_here(self) -> int:
        """Of a rank: 0 leaves it to XEP_THREADS."""
        return max(1, min(self._threads, self._processors())) if self._threads else 0

    def _processors(self) -> int:
        """This rank's share of the machine's."""
        return len(os.sched_getaffinity(0)) * self._xep.nnodes // self._xep.nranks

    def _check_experts(self, num_experts: Any) -> None:
        if not isinstance(num_experts, int) or num_experts <= 0 or num_experts % self._xep.nranks:
            raise WrongValue(f"num_experts: expected a multiple of the {self._xep.nranks} ranks, got {num_experts!r}")

    def _wait(self, previous_event: Any) -> None:
        request = request_of(previous_event)
        if request is not None:
            request.wait()

    def _after(self, previous_event: Any) -> Optional[xep.Request]:
        """What an operation is to begin after, where xep can see to that: what another Buffer does is waited for."""
        request = request_of(previous_event)
        if request is not None and request.buffer.group is not self._xep:
            request.wait()
            return None
        return request

    # ---- tensors of a CUDA device ----

    def _queue_of(self, device: torch.device) -> DeviceQueue:
        """A Buffer has one device, that of the first tensors."""
        if self._queue is None:
            self._queue = DeviceQueue(device)
        if self._queue.device != device:
            raise WrongValue(f"x: expected a tensor of {self._queue.device}, which this Buffer is on, got {device}")
        return self._queue

    def _pool_on(self, device: torch.device) -> NormalPool:
        if device == HOST:
            return self._pool
        if self._device_pool is None:
            free_slots = self._queue_of(device).free_slots
            self._device_pool = NormalPool(
                self._xep, self._agreement, self._num_slots, self._timeout, device, free_slots
            )
            self._device_pool.ways = self._pool.ways
        return self._device_pool

    def _pools(self) -> list[NormalPool]:
        return [self._pool] if self._device_pool is None else [self._pool, self._device_pool]

    def _last_normal(self) -> Optional[xep.Buffer]:
        """Of the last dispatch or combine; tensors are on a device where any were."""
        return None if self._destroyed else self._pools()[-1].last

    def _ordering(self, device: torch.device, previous_event: Any, asynchronous: bool, on_comm: bool) -> Ordering:
        """An operation of tensors that are there."""
        if device == HOST:
            return HostOrdering(self._after(previous_event), asynchronous)
        return self._queue_of(device).ordering(previous_event, asynchronous, on_comm)

    def get_comm_stream(self) -> Any:
        """The stream on which operations of tensors of the current CUDA device are; else what stands for it: ``with``
        and waiting work, and do nothing."""
        self._usable()
        if self._queue is None and torch.cuda.is_initialized():
            self._queue_of(torch.device("cuda", torch.cuda.current_device()))
        return CommStream() if self._queue is None else self._queue.comm

    # ---- the end ----

    def _shared(self) -> list[xep.Buffer]:
        """All of them, in the order in which every rank has them."""
        return [buffer for pool in self._pools() for buffer in pool.buffers()]

    def _forget(self) -> None:
        """What is in flight is waited for, or of no more interest; handles keep what they are made of."""
        for pool in self._pools():
            pool.forget()

    def _goes_without(self) -> bool:
        """Whether ranks are masked: then the others do not ask one another any more. Collective where it may be so."""
        return False

    def destroy(self) -> None:
        """Frees all. Collective; only with explicitly_destroy. The memory of tensors that are alive on some rank stays
        mapped until the process ends, with a ResourceWarning."""
        if not self.explicitly_destroy:
            raise WrongUse("destroy: expected a Buffer made with explicitly_destroy=True")
        self._usable()
        self._close()

    def abort(self) -> None:
        """Ends the group for all ranks: calls that wait, on any thread of any rank, end with xep.AbortedError, and so
        do later ones; what is freed is freed without the others. Not a call of DeepEP's. Local."""
        self._xep.abort()

    def reset(self) -> None:
        """Makes usable what an error (a deadline, a peer that failed) left broken. Handles end, and what was received
        with them is undefined. Not a call of DeepEP's. Collective."""
        self._usable()
        for pool in self._pools():
            pool.reset()

    def _close(self) -> None:
        self._destroyed, self.runtime = True, None
        if self._xep._inherited:
            self._xep.leave()
            return
        self._forget()
        held = [buffer.arrays_left() for buffer in self._shared()]
        mine = bytes(min(count, 255) for count in held) + b"\0"
        try:
            everywhere = [mine]
            if not self._goes_without():
                self._agreement.meet("destroy", counts=False)
                everywhere = self._xep.allgather(mine)
        except xep.XepError as error:
            warnings.warn(f"deep_ep: the memory of a Buffer stays mapped: {error.reason}", ResourceWarning)
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
        if self._destroyed or sys.is_finalizing():
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
