# SPDX-License-Identifier: BSD-3-Clause
"""DeepEP's Buffer (V1): layout, dispatch and combine of normal mode; those of low latency are in low_latency.py."""

from __future__ import annotations

import weakref
from typing import Any, Optional, Sequence, Union

import torch

import xep

from . import arguments
from .arguments import HOST, Rows, WrongType, WrongValue, calls_of, check, counted, integer
from .compat import ALIGNMENT, COMBINE, DISPATCH, Config, check_config, config_of, low_latency_size_hint
from .core import Core, NormalPool, Pool
from .handles import HandleTuple, NormalHandle, adopt, layout_of, routing_of
from .low_latency import LowLatency, LowLatencyCalls
from .streams import Ordering, is_capturing
from .utils.event import EventHandle, EventOverlap
from .utils.math import align


class Buffer(LowLatencyCalls):
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
    latency: the handle used longest ago gives its slot to a dispatch that finds no other; using it then is an error.
    """

    num_sms: int = 20
    _last_layout: list[tuple[Any, int]] = []

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
        self._scratch: dict[bool, torch.Tensor] = {}
        self.num_nvl_bytes, self.num_rdma_bytes = num_nvl_bytes, num_rdma_bytes
        self.low_latency_mode, self.enable_shrink = low_latency_mode, enable_shrink
        self._join(group if group is not None else comm, num_slots, timeout, explicitly_destroy)
        self._pools.options["ll"]["on_failure"] = "mask" if enable_shrink else "fail"
        self._low_latency: LowLatency = self._pools[LowLatency, 0]
        self.rank, self.group_size = self._xep.rank, self._xep.nranks
        if enable_shrink:
            try:
                self._make_hinted(num_rdma_bytes)
            except xep.XepError:
                self._close()
                raise

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
        return config_of(DISPATCH, Buffer.num_sms, num_ranks)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        return config_of(COMBINE, Buffer.num_sms, num_ranks)

    @staticmethod
    def _unpack_bias(bias: Any) -> tuple[Any, Any]:
        """None, a tensor, or a tuple of two, as two."""
        if isinstance(bias, tuple) and len(bias) != 2:
            raise WrongValue(f"bias: expected two, got {len(bias)}")
        return bias if isinstance(bias, tuple) else (bias, None)

    def is_available(self) -> bool:
        return not self._destroyed

    def _close(self) -> None:
        self._scratch.clear()
        super()._close()

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

    # ---- normal mode ----

    def get_dispatch_layout(
        self,
        topk_idx: torch.Tensor,
        num_experts: int,
        previous_event: Optional[EventOverlap] = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[torch.Tensor, Optional[torch.Tensor], torch.Tensor, torch.Tensor, EventOverlap]:
        """topk_idx: [T, K] int64 or int32: expert, or -1. Local. On a CUDA device nothing waits for it after the first
        dispatch to so many experts, and an index that is not an expert is counted nowhere.

        Returns num_tokens_per_rank [R] int32, num_tokens_per_rdma_rank [M] int32 (of each node; None on one node),
        num_tokens_per_expert [E] int32, is_token_in_rank [T, R] bool, event.
        """
        where, _, _ = check("topk_idx", topk_idx, arguments.ANYWHERE, arguments.INDEX, -1, -1)
        pool = self._pools[NormalPool, where]
        self._check_experts(num_experts)
        with self._waits(pool, previous_event, async_finish, allocate_on_comm_stream) as ordering:
            per_rank, per_expert, in_rank, per_node = self._layout(topk_idx, num_experts, pool, ordering)
            self._note_layout(per_rank, per_expert, in_rank, topk_idx)
            if per_node is None and self._nodes.count > 1:
                per_node = self._nodes.reached(in_rank).sum(dim=0, dtype=torch.int32)
            event = ordering.end(None, topk_idx, per_rank, per_node, per_expert, in_rank)
        return per_rank, per_node, per_expert, in_rank, event

    def _waits(self, pool: Pool, previous_event: Any, async_finish: bool, allocate_on_comm_stream: bool) -> Ordering:
        """By DeepEP's rule: allocating on the stream that communicates needs both others."""
        if allocate_on_comm_stream and (previous_event is None or not async_finish):
            raise WrongValue("allocate_on_comm_stream: expected previous_event and async_finish with it")
        return self._ordering(pool, previous_event, async_finish, allocate_on_comm_stream)

    def _layout(self, topk_idx: torch.Tensor, experts: int, pool: NormalPool, ordering: Ordering) -> tuple:
        """(per_rank, per_expert, in_rank, per_node or None). On a device by one kernel, once there is a buffer that has
        it, without waiting."""
        used = None if topk_idx.is_cpu else pool.used.get(experts)
        if used is None:
            if ordering.after is not None:
                ordering.after.wait()
            if not topk_idx.is_cpu and is_capturing():
                raise WrongValue(f"num_experts: expected a dispatch to {experts} experts before the CUDA graph")
            found = layout_of(topk_idx, experts, self.group_size, self._nodes.per_block)
            per_node = found.tokens_per_node if self._nodes.per_block and self._nodes.count > 1 else None
            return found.tokens_per_rank, found.tokens_per_expert, found.token_in_rank.view(torch.bool), per_node
        made = ordering.results(
            ("per_rank", (self.group_size,), torch.int32),
            ("per_expert", (experts,), torch.int32),
            ("in_rank", (topk_idx.shape[0], self.group_size), torch.uint8),
        )
        used.layout(topk_idx.contiguous(), *made.values())
        return made["per_rank"], made["per_expert"], made["in_rank"].view(torch.bool), None

    def _note_layout(self, *made_and_given: torch.Tensor) -> None:
        """What the next dispatch need not look at again, if it is given these as they are."""
        noted = [(weakref.ref(one), arguments.version_of(one)) for one in made_and_given]
        self._last_layout = noted if all(version >= 0 for _, version in noted) else []

    @counted("normal")
    def dispatch(
        self,
        x: Rows,
        handle: Optional[tuple] = None,
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
    ) -> tuple[
        Rows, Optional[torch.Tensor], Optional[torch.Tensor], Optional[list[int]], Optional[tuple], EventOverlap
    ]:
        """Sends every token once to each rank that has one of its experts. Collective.

        x: [T, H] rows of any element type, or (rows of 1 byte [T, H], scales [T, S] float32 or int32 of any strides).
        handle: of an earlier dispatch, whose routing is used again: no other argument of routing then. A plain tuple
            of its tensors will do, and costs a dispatch of nearly empty rows.
        num_tokens_per_rank, num_tokens_per_rdma_rank, is_token_in_rank, num_tokens_per_expert: of get_dispatch_layout.
        topk_idx [T, K], topk_weights [T, K] float32: both or neither. Without them no top-k is received.
        num_worst_tokens: rows of the received tensors, at least what is received (R * T is enough); topk_idx of the
            rows that were not received is -1. 0: exactly the rows received. On a CUDA device nothing waits for counts
            then: so all ranks give the same, and have at most as many tokens; the first call with so many makes memory,
            which all wait for. Too few are told by the next call (xep.XepError), and reset() mends that.
        async_finish: returns when the received rows are counted on every rank (of CPU tensors with num_worst_tokens,
            too, where DeepEP's call does not), with handle at once; the event is reached when they are here. Until then
            x and what is received must not be touched. combine, and a dispatch with handle, wait for it themselves.
        allocate_on_comm_stream: on a CUDA device copies of what was received are memory for the Buffer's stream.

        Returns (recv_x or (recv_x, recv_scales), recv_topk_idx, recv_topk_weights, num_recv_tokens_per_expert_list,
        handle, event); with handle (recv_x, None, None, None, None, event). Rows in the order of source rank, then
        token.
        """
        x, scales = arguments.scaled(x) if isinstance(x, tuple) else (x, None)
        where, tokens, hidden = check("x", x, arguments.ANYWHERE, arguments.ANY, -1, -1)
        pool = self._pools[NormalPool, where]
        if config is not None:
            check_config(config)
        ordering = pool.here
        if previous_event is not None or async_finish or allocate_on_comm_stream:
            ordering = self._waits(pool, previous_event, async_finish, allocate_on_comm_stream)
        with ordering:
            if handle is not None:
                if topk_idx is not None or topk_weights is not None:
                    raise WrongValue("topk_idx, topk_weights: expected None with handle, which has the routing")
                return self._dispatch_again(pool, x, scales, handle, ordering)
            layout = (num_tokens_per_rank, num_tokens_per_expert, is_token_in_rank)
            routed, topk = self._route(tokens, where, layout, topk_idx, topk_weights)
            experts = num_tokens_per_expert.numel()
            most, options = 0, {}
            if expert_alignment != 1:
                options["expert_alignment"] = expert_alignment = integer("expert_alignment", expert_alignment, 1)
            if num_worst_tokens != 0:
                most = pool.most_of(integer("num_worst_tokens", num_worst_tokens, 0))
                if topk_idx is None:
                    raise WrongValue(f"num_worst_tokens: expected 0, or more with topk_idx, got {num_worst_tokens}")
                if 0 < most < tokens:
                    raise WrongValue(f"x: expected at most num_worst_tokens, {most}, on a CUDA device, got {tokens}")
            if where:
                pool.multiprocessors = self.num_sms if config is None else config.num_sms
            if ordering.after is not None:
                options["after"] = ordering.after
            job = (experts, x, routed, topk_weights, scales, num_worst_tokens, most)
            sent = pool.dispatch(ordering.wait, (tokens, hidden, topk), job, **options)
            received = sent[0].recv
            shape = (tokens, experts, topk, received.rows, received.capacity)
            made = NormalHandle(self._xep, self._nodes, is_token_in_rank, pool.on, *shape)
            made.xep, made._arrives, made._slot = sent
            if num_worst_tokens:
                made.worst, made.most = num_worst_tokens, most
            counts: list[int] = []
            if not num_worst_tokens:
                counts = received.list_expert_rows()
                if topk_idx is None:
                    counts = self._count_rows(num_tokens_per_expert, expert_alignment)
            rows, row_scales, indices, weights = pool.shown(received, sent[1], ordering.copy)
            if rows.dtype != x.dtype:
                rows = rows.view(x.dtype)
            if topk_idx is None:
                indices = weights = None
            event = EventOverlap()
            if not ordering.quiet:
                given = (x, scales, is_token_in_rank, topk_idx, topk_weights)
                event = ordering.end(sent[1], *given, rows, row_scales, indices, weights)
                if where and event.event is not None:
                    made.arrives(event.event)
        return rows if scales is None else (rows, row_scales), indices, weights, counts, HandleTuple.over(made), event

    def _dispatch_again(
        self, pool: NormalPool, x: torch.Tensor, scales: Optional[torch.Tensor], handle: Any, ordering: Ordering
    ) -> tuple:
        """Along the routing of handle."""
        found = self._own(handle, 0, pool)
        arguments.check_tokens(found, x)
        back, request, _ = pool.again(found, x, scales, ordering)
        rows, row_scales, _, _ = pool.shown(back.recv, request, ordering.copy)
        rows = rows.view(x.dtype)
        event = ordering.end(request, x, scales, rows, row_scales)
        return rows if scales is None else (rows, row_scales), None, None, None, None, event

    internode_dispatch = dispatch  # which path rows take to other nodes is the library's choice

    @counted("normal")
    def combine(
        self,
        x: torch.Tensor,
        handle: tuple,
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
        where, rows, hidden = check("x", x, arguments.ANYWHERE, arguments.COMBINED, -1, -1)
        pool = self._pools[NormalPool, where]
        if config is not None:
            check_config(config)
        ordering = pool.here
        if previous_event is not None or async_finish or allocate_on_comm_stream:
            ordering = self._waits(pool, previous_event, async_finish, allocate_on_comm_stream)
        with ordering:
            found = self._own(handle, 0 if topk_weights is None else topk_weights.shape[-1], pool)
            if not found.rows <= rows <= found.capacity:
                raise WrongValue(f"x: expected the {found.capacity} rows received, got {[rows, hidden]}")
            if topk_weights is not None:
                check("topk_weights", topk_weights, where, arguments.FLOAT, rows, found.topk)
            biases = () if bias is None else arguments.biases_of(found, x, where, bias)
            combined, weights, request = pool.combine(found, hidden, x, topk_weights, biases, ordering)
            event = EventOverlap()
            if not ordering.quiet:
                event = ordering.end(request, x, topk_weights, *biases, combined, weights)
        return combined, weights, event

    internode_combine = combine

    # ---- arguments ----

    def _own(self, handle: Any, topk: int, pool: NormalPool) -> NormalHandle:
        """Of a handle of this Buffer. A plain tuple is routed anew, by experts of a buffer in use, with topk columns,
        0: as many as needed; both are the same on every rank."""
        if handle is None:
            raise WrongValue("handle: expected one of this Buffer, got None")
        found = getattr(handle, "core", None)
        if not isinstance(found, NormalHandle):
            topk = topk or self.group_size
            experts = next((n for n in pool.used if n >= topk), align(topk, self.group_size))
            found = adopt(handle, self._xep, self._nodes, experts, topk, pool.where)
        self._check_own(found, pool)
        return found

    def _route(self, tokens: int, where: int, layout: tuple, topk_idx: Any, topk_weights: Any) -> tuple[Any, int]:
        """Checks a layout, and gives what xep routes by, and its columns: topk_idx, without the tokens that
        is_token_in_rank leaves out; or one column for each rank."""
        per_rank, per_expert, in_rank = layout
        if (topk_idx is None) != (topk_weights is None):
            raise WrongValue("topk_idx, topk_weights: expected both or neither")
        if topk_idx is not None:
            _, _, topk = check("topk_idx", topk_idx, where, arguments.INDEX, tokens, -1)
            check("topk_weights", topk_weights, where, arguments.FLOAT, tokens, topk)
        for one, (noted, version) in zip((*layout, topk_idx), self._last_layout):
            if one is None or noted() is not one or one._version != version:
                break
        else:
            if self._last_layout:
                return topk_idx, topk
        check("num_tokens_per_rank", per_rank, where, arguments.INT32, self.group_size)
        check("is_token_in_rank", in_rank, where, arguments.BOOL, tokens, self.group_size)
        check("num_tokens_per_expert", per_expert, where, arguments.INT32, -1)
        experts = per_expert.numel()
        self._check_experts(experts)
        if topk_idx is None:
            return routing_of(in_rank, experts, self.group_size), self.group_size
        own = layout_of(topk_idx, experts, self.group_size).token_in_rank.view(torch.bool)
        if torch.equal(own, in_rank):
            return topk_idx, topk
        if bool((in_rank & ~own).any()):
            token, rank = (in_rank & ~own).nonzero()[0].tolist()
            raise WrongValue(f"is_token_in_rank: token {token} goes to rank {rank}, of which topk_idx names no expert")
        owners = topk_idx.clamp(min=0).to(torch.int64) // (experts // self.group_size)
        return torch.where(in_rank.gather(1, owners), topk_idx, -1), topk

    def _count_rows(self, per_expert: torch.Tensor, alignment: int) -> list[int]:
        """Of each expert here, where what was dispatched does not say so."""
        counts = per_expert.to(HOST, torch.int64)
        first, count = xep.expert_range(counts.numel(), self.group_size, self._xep.rank)
        everyone = self._xep.allgather(counts.numpy().tobytes())
        totals = torch.frombuffer(bytearray(b"".join(everyone)), dtype=torch.int64).view(self.group_size, -1).sum(dim=0)
        return [align(total, alignment) for total in totals[first : first + count].tolist()]


calls_of(Core, LowLatencyCalls, Buffer)
