# SPDX-License-Identifier: BSD-3-Clause
"""DeepEP's Buffer on CPU ranks."""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
import weakref
from typing import Any, Callable, Optional, Sequence, Union

import torch
import xep

from . import _check
from .config import ALIGNMENT, NODE_RANKS, Config, combine_config, dispatch_config, low_latency_size_hint
from .event import CommStream, EventHandle, EventOverlap, request_of
from .handle import NormalHandle, normal_handle, routing_of
from .low_latency import GROUP, Casting, Ending, LowLatency, LowLatencyHandle, Shape, combine
from .pool import Job, NormalPool, counts_buffer, exchange_counts
from .seats import Sent

_INDEX = (torch.int64, torch.int32)
_FLOAT = (torch.float32,)
_COMBINED = (torch.bfloat16, torch.float16, torch.float32)
_SCALE = (torch.float32, torch.int32)

Rows = Union[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]


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


class Buffer:
    """Dispatch and combine of MoE tokens among CPU ranks; collective to make.

    group: a torch.distributed process group of any backend. comm: an mpi4py communicator, used when group is None. Neither:
        PMIx (xep_run, prterun, mpirun, srun), or a group of one.
    num_nvl_bytes, num_rdma_bytes: multiples of 128, and what get_local_buffer_tensor has room for. They limit
        nothing: shared memory is made at the first dispatch, for its shape, and grows by agreement of the ranks.
    low_latency_mode: allows the low-latency calls.
    num_qps_per_rank, allow_nvlink_for_low_latency_mode, allow_mnnvl, use_fabric: choices among GPU links; UCX chooses here.
    explicitly_destroy: destroy() will be called; else the destructor does it, where no received tensor is alive.
    num_slots: how many dispatches have their memory at once, for each shape and mode; memory grows with it. A program that keeps
        the handles of many layers for its backward pass is quickest with as many, and two more.

    Received tensors are views of shared memory, or copies where views that the program keeps have taken all but two slots.
    Handles may be kept, as many as one likes. Of normal mode, the num_slots - 2 that were used last have their slots; the
    first use of an older one is preceded by a dispatch of nearly empty rows, or is itself not cached. Low latency: an older
    handle that was combined, or has two successors (DeepEP's rule for results), gives its slot to the next dispatch when
    there is no other; using it then is an error.
    """

    num_sms: int = 20
    _threads: int = 0

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
        self._counts: dict[int, xep.Buffer] = {}
        self._last_layout: tuple = ()
        self._scratch: dict[bool, torch.Tensor] = {}
        self._destroyed = False

    # ---- of the class ----

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """Of Config objects made from now on. Threads are what SMs are here: a rank of a buffer made from now on copies and
        reduces with as many, but no more than its share of this machine's processors."""
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

    def _close(self) -> None:
        self._destroyed = True
        self._scratch.clear()
        self._low_latency.forget()
        buffers = self._pool.buffers() + self._low_latency.buffers() + list(self._counts.values())
        held = [buffer.arrays_left() for buffer in buffers]
        everywhere = self._xep.allgather(bytes(min(count, 255) for count in held) + b"\0")
        if all(not any(counts) for counts in everywhere):
            self._xep.close()
            return
        if any(held):
            warnings.warn(f"received tensors of {sum(held)} dispatches outlive their Buffer: its memory stays mapped", ResourceWarning)
        self._xep.leave()

    def __del__(self) -> None:
        if getattr(self, "_destroyed", True) or sys.is_finalizing():
            return
        if self.explicitly_destroy:
            warnings.warn("deep_ep.Buffer: destroy() was not called, its memory stays mapped", ResourceWarning, source=self)
            self._xep.leave()
        else:
            self._close()

    def _usable(self) -> None:
        if self._destroyed:
            raise RuntimeError("the Buffer was destroyed")

    def _threads_here(self) -> int:
        """Of a rank: 0 leaves it to XEP_THREADS."""
        if Buffer._threads == 0:
            return 0
        share = len(os.sched_getaffinity(0)) * self._xep.nnodes // self.group_size
        return max(1, min(Buffer._threads, share))

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

    # ---- normal mode ----

    def get_dispatch_layout(
        self,
        topk_idx: torch.Tensor,
        num_experts: int,
        previous_event: Optional[EventOverlap] = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[torch.Tensor, Optional[torch.Tensor], torch.Tensor, torch.Tensor, EventOverlap]:
        """topk_idx: [T, K] int64 or int32: expert, or -1. Local.

        Returns num_tokens_per_rank [R] int32, num_tokens_per_rdma_rank [M] int32 (None up to 8 ranks), num_tokens_per_expert
        [E] int32, is_token_in_rank [T, R] bool, event.
        """
        self._usable()
        _check.streams(previous_event, async_finish, allocate_on_comm_stream)
        _check.tensor("topk_idx", topk_idx, _INDEX, (None, None))
        self._check_experts(num_experts)
        self._wait(previous_event)
        found = xep.layout(topk_idx, num_experts, self.group_size, NODE_RANKS)
        in_rank = found.token_in_rank.view(torch.bool)
        self._last_layout = (weakref.ref(in_rank), _version(in_rank), weakref.ref(topk_idx), _version(topk_idx))
        nodes = found.tokens_per_node if self.group_size > NODE_RANKS else None
        return found.tokens_per_rank, nodes, found.tokens_per_expert, in_rank, _done(async_finish)

    def dispatch(
        self,
        x: Rows,
        handle: Optional[NormalHandle] = None,
        num_tokens_per_rank: Optional[torch.Tensor] = None,
        num_tokens_per_rdma_rank: Optional[torch.Tensor] = None,
        is_token_in_rank: Optional[torch.Tensor] = None,
        num_tokens_per_expert: Optional[torch.Tensor] = None,
        topk_idx: Optional[torch.Tensor] = None,
        topk_weights: Optional[torch.Tensor] = None,
        expert_alignment: int = 1,
        num_worst_tokens: int = 0,
        config: Optional[Config] = None,
        previous_event: Optional[EventOverlap] = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Rows, Optional[torch.Tensor], Optional[torch.Tensor], Optional[list[int]], Optional[NormalHandle], EventOverlap]:
        """Sends every token once to each rank that has one of its experts. Collective.

        x: [T, H] rows of any element type, or (rows of 1 byte [T, H], scales [T, S] float32 or int32 of any strides).
        handle: of an earlier dispatch, whose routing is used again: no other argument of routing then.
        num_tokens_per_rank, num_tokens_per_rdma_rank, is_token_in_rank, num_tokens_per_expert: of get_dispatch_layout.
        topk_idx [T, K], topk_weights [T, K] float32: both or neither. Without them no top-k is received.
        num_worst_tokens: rows of the received tensors, at least what is received (R * T is enough); topk_idx of the rows
            that were not received is -1. 0: exactly the rows received.
        async_finish: returns when the received rows are counted on every rank, with handle at once (DeepEP's call waits for
            counts too, but not with num_worst_tokens); the event is reached when they are here. Until then x and what is
            received must not be touched. combine, and a dispatch with handle, wait for it themselves.

        Returns (recv_x or (recv_x, recv_scales), recv_topk_idx, recv_topk_weights, num_recv_tokens_per_expert_list,
        handle, event); with handle (recv_x, None, None, None, None, event). Rows in the order of source rank, then token.
        """
        self._usable()
        _check.streams(previous_event, async_finish, allocate_on_comm_stream)
        _check.config(config)
        x, scales = self._rows_of(x)
        after = self._after(previous_event)
        if handle is not None:
            if topk_idx is not None or topk_weights is not None:
                raise ValueError("topk_idx, topk_weights: expected None with handle, which has the routing")
            return self._dispatch_again(self._own(handle), x, scales, after, async_finish)
        tokens = x.shape[0]
        per_expert, in_rank = self._layout_of(tokens, num_tokens_per_rank, is_token_in_rank, num_tokens_per_expert)
        routed = self._route(in_rank, per_expert.numel(), topk_idx, topk_weights)
        num_worst_tokens = _check.integer("num_worst_tokens", num_worst_tokens, 0)
        if num_worst_tokens > 0 and topk_idx is None:
            raise ValueError(f"num_worst_tokens: expected 0, or more with topk_idx, got {num_worst_tokens}")
        expert_alignment = _check.integer("expert_alignment", expert_alignment, 1)
        self._pool.threads = self._threads_here()
        experts, with_topk = per_expert.numel(), topk_idx is not None
        job = Job(experts, _carried(x), routed, topk_weights, scales, expert_alignment, num_worst_tokens, after)
        sent = self._pool.dispatch(job, wait=not async_finish)
        seat = self._pool.seats(experts).add(sent)
        received = sent.handle.recv
        num_sms = Buffer.num_sms if config is None else config.num_sms
        made = NormalHandle(self._xep, sent, received, seat, experts, num_worst_tokens, in_rank, max(1, num_sms // 2))
        counts = [] if num_worst_tokens else self._expert_counts(received, per_expert, expert_alignment, with_topk)
        rows, indices, weights, event = self._give(sent, received, x.dtype, scales is not None, with_topk)
        return rows, indices, weights, counts, made, event

    def _dispatch_again(
        self, handle: NormalHandle, x: torch.Tensor, scales: Optional[torch.Tensor], after: Optional[xep.Request], async_finish: bool
    ) -> tuple:
        if x.shape[0] != handle.num_tokens:
            raise ValueError(f"x: expected the {handle.num_tokens} tokens of the dispatch that made handle, got {x.shape[0]}")
        handle.arrived()
        sent = self._pool.again(handle, _carried(x), scales, after, wait=not async_finish)
        rows, _, _, event = self._give(sent, sent.handle.recv, x.dtype, scales is not None, False)
        return rows, None, None, None, None, event

    def combine(
        self,
        x: torch.Tensor,
        handle: NormalHandle,
        topk_weights: Optional[torch.Tensor] = None,
        bias: Union[torch.Tensor, Sequence[torch.Tensor], None] = None,
        config: Optional[Config] = None,
        previous_event: Optional[EventOverlap] = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[torch.Tensor, Optional[torch.Tensor], EventOverlap]:
        """Sums one row of each rank a token was sent to, unweighted, in fp32 with one rounding: [T, H]. Collective.

        x: [N, H] in the order received, bfloat16 (float16 and float32 too, where the dispatched rows are as wide).
        topk_weights: [N, K] float32, summed to [T, K]. bias: one or two [T, H] of x's type, added first.
        async_finish: the event is reached when the result is here; x, bias and the result must not be touched before.

        Returns (combined_x [T, H], combined_topk_weights [T, K] or None, event).
        """
        self._usable()
        _check.streams(previous_event, async_finish, allocate_on_comm_stream)
        _check.config(config)
        found = self._own(handle)
        options = self._combine_options(found, x, topk_weights, bias)
        after = self._after(previous_event)
        if after is not None:
            options["after"] = after
        found.arrived()
        back = self._pool.seated(found, x.shape[1], x.dtype)
        assert found.seat is not None
        found.seat.settle()  # of one handle one combine is in flight
        request: Optional[xep.Request] = None
        if async_finish:
            request = back.combine_async(x, **options)
            found.seat.begun(request)
        result = back.combine(x, **options) if request is None else request.result
        combined, weights = result if isinstance(result, tuple) else (result, None)
        return combined, weights, EventOverlap() if request is None else EventOverlap(EventHandle(request))

    def _combine_options(self, handle: NormalHandle, x: torch.Tensor, topk_weights: Any, bias: Any) -> dict[str, Any]:
        _check.tensor("x", x, _COMBINED, (None, None))
        if not handle.rows <= x.shape[0] <= handle.capacity:
            raise ValueError(f"x: expected the {handle.capacity} rows received, got {list(x.shape)}")
        options: dict[str, Any] = {}
        if topk_weights is not None:
            options["topk_weights"] = _check.tensor("topk_weights", topk_weights, _FLOAT, (x.shape[0], handle.topk))
        if bias is not None and not isinstance(bias, (torch.Tensor, tuple, list)):
            raise TypeError(f"bias: expected a tensor or two, got {type(bias).__name__}")
        biases = (bias,) if isinstance(bias, torch.Tensor) else tuple(bias or ())
        if len(biases) > 2:
            raise ValueError(f"bias: expected at most 2 tensors, got {len(biases)}")
        for i, one in enumerate(biases):
            _check.tensor(f"bias[{i}]", one, (x.dtype,), (handle.num_tokens, x.shape[1]))
        if biases:
            options["bias"] = biases
        return options

    # ---- low latency ----

    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int) -> None:
        """Nothing has to be cleaned here: signals carry numbers that are never used again. What it does do is to make
        usable again what an error left broken; earlier handles end. Collective."""
        self._usable()
        if not self.low_latency_mode:
            raise RuntimeError("clean_low_latency_buffer: expected a Buffer made with low_latency_mode=True")
        self._low_latency.reset()

    def low_latency_dispatch(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        cumulative_local_expert_recv_stats: Optional[torch.Tensor] = None,
        dispatch_wait_recv_cost_stats: Optional[torch.Tensor] = None,
        use_fp8: bool = True,
        round_scale: bool = False,
        use_ue8m0: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
    ) -> tuple[Rows, torch.Tensor, LowLatencyHandle, EventOverlap, Optional[Callable[[], None]]]:
        """A row for each selection, packed for each local expert, cast to e4m3 unless use_fp8 is False. Collective.

        x: [T, H] bfloat16, H a multiple of 128; T up to num_max_dispatch_tokens_per_rank, Tmax, which with H, K and
            num_experts is the same on every rank. topk_idx: [T, K]: expert, or -1.
        cumulative_local_expert_recv_stats: [L] int32, to which the rows received are added.
        dispatch_wait_recv_cost_stats: [R] int64: to each source's are added the nanoseconds for which this rank waited for its
            rows, from the begin of receiving (that of the hook, or of the event's wait) until they were there.
        round_scale, use_ue8m0: scales as powers of two; four exponent bytes to an int32.
        return_recv_hook: nothing is received before hook() is called. async_finish: likewise before event.

        Returns (recv_x [L, R * Tmax, H], or (recv_x, scales [L, R * Tmax, H / 128] float32 or [.., H / 512] int32, stored by
        column), recv_count [L] int32, handle, event, hook). Rows from recv_count on are undefined. Rows of an expert
        are in the order of source rank, then token.
        """
        self._usable()
        if not self.low_latency_mode:
            raise RuntimeError("low_latency_dispatch: expected a Buffer made with low_latency_mode=True")
        _check.one_of("async_finish", async_finish, "return_recv_hook", return_recv_hook)
        _check.tensor("x", x, (torch.bfloat16,), (None, None))
        _check.tensor("topk_idx", topk_idx, _INDEX, (x.shape[0], None))
        self._check_experts(num_experts)
        most = _check.integer("num_max_dispatch_tokens_per_rank", num_max_dispatch_tokens_per_rank, 1)
        shape = Shape(most, x.shape[1], num_experts, topk_idx.shape[1])
        if shape.hidden % GROUP:
            raise ValueError(f"x: expected a multiple of {GROUP} channels, got {shape.hidden}")
        if x.shape[0] > shape.tokens:
            raise ValueError(f"x: expected at most num_max_dispatch_tokens_per_rank, {shape.tokens}, tokens, got {x.shape[0]}")
        for name, stats, dtype, length in (
            ("cumulative_local_expert_recv_stats", cumulative_local_expert_recv_stats, torch.int32, num_experts // self.group_size),
            ("dispatch_wait_recv_cost_stats", dispatch_wait_recv_cost_stats, torch.int64, self.group_size),
        ):
            if stats is not None:
                _check.tensor(name, stats, (dtype,), (length,))
        self._low_latency.threads = self._threads_here()
        casting = Casting.of(shape.hidden, use_fp8, round_scale, use_ue8m0)
        wait = not async_finish and not return_recv_hook
        rows, scales, counts, handle, ending = self._low_latency.dispatch(
            x, topk_idx, shape, casting, cumulative_local_expert_recv_stats, dispatch_wait_recv_cost_stats, wait
        )
        event, hook = _left_to(ending, return_recv_hook)
        return (rows, scales) if use_fp8 else rows, counts, handle, event, hook

    def low_latency_combine(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        topk_weights: torch.Tensor,
        handle: LowLatencyHandle,
        use_logfmt: bool = False,
        zero_copy: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        out: Optional[torch.Tensor] = None,
        combine_wait_recv_cost_stats: Optional[torch.Tensor] = None,
    ) -> tuple[torch.Tensor, EventOverlap, Optional[Callable[[], None]]]:
        """The weighted sum of each token's rows in fp32, k ascending, one rounding: [T, H] bfloat16. Collective.

        x: [L, R * Tmax, H] bfloat16, in the places of the rows received; with zero_copy what
            get_next_low_latency_combine_buffer(handle) gave, into which the rows were written.
        topk_idx: [T, K] as dispatched; a -1 leaves the selection out. topk_weights: [T, K] float32.
        use_logfmt: 10 bits for a value on the way to ranks that are reached over a network; lossy.
        out: [T, H] bfloat16 to write to. combine_wait_recv_cost_stats: [R] int64, as in low_latency_dispatch, for
            the outputs of each rank's experts, and before them for that rank to have read those of the last combine.

        Returns (combined_x, event, hook).
        """
        self._usable()
        _check.one_of("async_finish", async_finish, "return_recv_hook", return_recv_hook)
        _check.one_of("use_logfmt", use_logfmt, "zero_copy", zero_copy)
        found = self._own_low_latency(handle)
        shape, tokens = found.shape, found.num_tokens
        rows = (shape.experts // self.group_size, self.group_size * shape.tokens, shape.hidden)
        _check.tensor("x", x, (torch.bfloat16,), rows, contiguous=not zero_copy)
        _check.tensor("topk_idx", topk_idx, _INDEX, (tokens, shape.topk))
        _check.tensor("topk_weights", topk_weights, _FLOAT, (tokens, shape.topk))
        if out is not None:
            _check.tensor("out", out, (torch.bfloat16,), (tokens, shape.hidden))
        if combine_wait_recv_cost_stats is not None:
            _check.tensor("combine_wait_recv_cost_stats", combine_wait_recv_cost_stats, (torch.int64,), (self.group_size,))
        sent = None if zero_copy else x
        wait = not async_finish and not return_recv_hook
        combined, ending = combine(found, sent, topk_idx, topk_weights, out, use_logfmt, combine_wait_recv_cost_stats, wait)
        event, hook = _left_to(ending, return_recv_hook)
        return combined, event, hook

    def get_next_low_latency_combine_buffer(self, handle: LowLatencyHandle) -> torch.Tensor:
        """[L, R * Tmax, H] bfloat16: where the rows of the next combine of this handle need no copy. Waits until the
        others have read what an earlier combine left there."""
        self._usable()
        return self._own_low_latency(handle).ready().combine_input()

    def _own_low_latency(self, handle: Any) -> LowLatencyHandle:
        if not isinstance(handle, LowLatencyHandle):
            raise TypeError(f"handle: expected what low_latency_dispatch returned, got {type(handle).__name__}")
        if handle.owner is not self._xep:
            raise ValueError("handle: expected one of this Buffer, got one of another")
        return handle

    # ---- masks ----

    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """Not available."""
        raise NotImplementedError("low_latency_update_mask_buffer: masking of ranks is not available on CPU yet")

    def low_latency_query_mask_buffer(self, mask_status: torch.Tensor) -> None:
        """Not available."""
        raise NotImplementedError("low_latency_query_mask_buffer: masking of ranks is not available on CPU yet")

    def low_latency_clean_mask_buffer(self) -> None:
        """Not available."""
        raise NotImplementedError("low_latency_clean_mask_buffer: masking of ranks is not available on CPU yet")

    # ---- arguments ----

    def _check_experts(self, num_experts: int) -> None:
        if not isinstance(num_experts, int) or num_experts <= 0 or num_experts % self.group_size:
            raise ValueError(f"num_experts: expected a multiple of the {self.group_size} ranks, got {num_experts!r}")

    def _own(self, handle: Any) -> NormalHandle:
        """handle, if a dispatch of this Buffer made it."""
        found = normal_handle(handle)
        if found is None or found.owner is not self._xep:
            raise ValueError("handle: expected one of this Buffer, got " + ("None" if found is None else "one of another"))
        return found

    def _rows_of(self, x: Rows) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
        if not isinstance(x, tuple):
            return _check.tensor("x", x, None, (None, None)), None
        if len(x) != 2:
            raise ValueError(f"x: expected (rows, scales), got {len(x)} tensors")
        rows = _check.tensor("x[0]", x[0], None, (None, None))
        if rows.element_size() != 1:
            raise TypeError(f"x[0]: expected elements of 1 byte beside scales, got {rows.dtype}")
        return rows, _check.tensor("x[1]", x[1], _SCALE, (rows.shape[0], None), contiguous=False)

    def _layout_of(self, tokens: int, per_rank: Any, in_rank: Any, per_expert: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """(num_tokens_per_expert, is_token_in_rank) of a layout that is whole."""
        _check.tensor("num_tokens_per_rank", per_rank, (torch.int32,), (self.group_size,))
        _check.tensor("is_token_in_rank", in_rank, (torch.bool,), (tokens, self.group_size))
        _check.tensor("num_tokens_per_expert", per_expert, (torch.int32,), (None,))
        self._check_experts(per_expert.numel())
        return per_expert, in_rank

    def _route(
        self, in_rank: torch.Tensor, experts: int, topk_idx: Optional[torch.Tensor], topk_weights: Optional[torch.Tensor]
    ) -> torch.Tensor:
        """What xep routes by: topk_idx, without the tokens that is_token_in_rank leaves out; or one column for each rank."""
        if (topk_idx is None) != (topk_weights is None):
            raise ValueError("topk_idx, topk_weights: expected both or neither")
        if topk_idx is None:
            return routing_of(in_rank, experts, self.group_size)
        topk_idx = _check.tensor("topk_idx", topk_idx, _INDEX, (in_rank.shape[0], None))
        _check.tensor("topk_weights", topk_weights, _FLOAT, tuple(topk_idx.shape))
        if self._is_layout_of(in_rank, topk_idx):
            return topk_idx
        own = xep.layout(topk_idx, experts, self.group_size).token_in_rank.view(torch.bool)
        if torch.equal(own, in_rank):
            return topk_idx
        if bool((in_rank & ~own).any()):
            token, rank = (in_rank & ~own).nonzero()[0].tolist()
            raise ValueError(f"is_token_in_rank: token {token} goes to rank {rank}, of which topk_idx names no expert")
        owners = topk_idx.clamp(min=0).to(torch.int64) // (experts // self.group_size)
        return torch.where(in_rank.gather(1, owners), topk_idx, -1)

    def _is_layout_of(self, in_rank: torch.Tensor, topk_idx: torch.Tensor) -> bool:
        """Whether get_dispatch_layout just made in_rank from topk_idx, and both are as they were: spares comparing them."""
        if not self._last_layout:
            return False
        rank_ref, rank_version, idx_ref, idx_version = self._last_layout
        same = rank_ref() is in_rank and idx_ref() is topk_idx
        return same and -1 < rank_version == _version(in_rank) and -1 < idx_version == _version(topk_idx)

    # ---- results ----

    def _wait(self, previous_event: Optional[EventOverlap]) -> None:
        request = request_of(previous_event)
        if request is not None:
            request.wait()

    def _after(self, previous_event: Optional[EventOverlap]) -> Optional[xep.Request]:
        """What an operation is to begin after, where xep can see to that: what another Buffer does is waited for."""
        request = request_of(previous_event)
        if request is not None and request._buffer.group is not self._xep:
            request.wait()
            return None
        return request

    def _expert_counts(self, received: xep.Received, per_expert: torch.Tensor, alignment: int, routed: bool) -> list[int]:
        if routed:
            counted = received._recv
            return (ctypes.c_int64 * counted.local_experts).from_address(counted.expert_rows)[:]
        experts = per_expert.numel()
        if experts not in self._counts:
            self._counts[experts] = counts_buffer(self._xep, experts)
        totals = exchange_counts(self._counts[experts], per_expert).sum(0)
        first, count = xep.expert_range(experts, self.group_size, self.rank)
        return [-(-total // alignment) * alignment for total in totals[first : first + count].tolist()]

    def _give(self, sent: Sent, received: xep.Received, dtype: torch.dtype, with_scales: bool, with_topk: bool) -> tuple:
        """Received tensors, and the event: views of the slot, or copies, made when the rows are here: where views that are held
        would otherwise stop the next dispatch, and of rows that lie apart (those of other than a multiple of 64 bytes)."""
        rows: Any = received.x
        copied = not self._pool.may_view(sent.handle._buffer)
        apart = not rows.is_contiguous()
        if sent.request is not None and (copied or apart):
            sent.request.wait()
        give: Callable = torch.clone if copied else _view
        rows = rows.contiguous() if apart else give(rows)
        if rows.dtype != dtype:
            rows = rows.view(dtype)
        if with_scales:
            rows = (rows, give(received.scales))
        event = EventOverlap() if sent.request is None else EventOverlap(EventHandle(sent.request))
        if not with_topk:
            return rows, None, None, event
        return rows, give(received.topk_idx), give(received.topk_weights), event


def _view(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


_KNOWN = frozenset((
    torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint8, torch.int32,
    torch.int64,
))  # fmt: skip
_SENT_AS = {1: torch.uint8, 2: torch.bfloat16, 4: torch.int32, 8: torch.int64, 16: torch.float64}


def _carried(x: torch.Tensor) -> torch.Tensor:
    """x, of an element type that xep knows: rows go as bytes."""
    return x if x.dtype in _KNOWN else x.view(_SENT_AS[x.element_size()])


def _version(tensor: torch.Tensor) -> int:
    """Counts changes in place; -1 where nobody counts."""
    return -1 if tensor.is_inference() else tensor._version


def _done(async_finish: bool) -> EventOverlap:
    return EventOverlap(EventHandle()) if async_finish else EventOverlap()


def _left_to(ending: Optional[Ending], hooked: bool) -> tuple[EventOverlap, Optional[Callable[[], None]]]:
    """The event and the hook of a low-latency call."""
    if ending is None:
        return EventOverlap(), None
    if not hooked:
        return EventOverlap(EventHandle(ending.request, ending.wait)), None
    ending.hooked = True
    return EventOverlap(), ending.wait
