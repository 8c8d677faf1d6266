# SPDX-License-Identifier: BSD-3-Clause
"""How the tokens of vLLM's experts travel through xep; loaded by vLLM's workers, after vllm.py said so.

A step in which some rank has many tokens (prefill) goes by mode normal: a token once to each rank, which then has a row
of it for each of its experts, and sums what they make of it. With few tokens everywhere (decode) it goes by mode ll: a
row for each selection, in the order of experts, weighed where the token came from; the experts write their outputs to
where the other ranks read them. In both the kernel sees each row with one expert of this rank, and so multiplies none
in vain. All ranks know how many tokens each of them has, and choose alike.

Beside tensor parallelism the ranks of a tensor-parallel group hold the same tokens. Models that vLLM runs with sequence
parallelism cut them into as many parts, and dispatch one each. In others each rank dispatches all of them, but to the
experts of the ranks in its own place of their groups only: vLLM sums what comes back over the group.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from typing import Any, Callable, NamedTuple, Optional

import torch
from vllm.config import get_current_vllm_config_or_none
from vllm.distributed.device_communicators.base_device_communicator import All2AllManagerBase
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.fused_moe import expert_map_manager
from vllm.model_executor.layers.fused_moe.runner import moe_runner
from vllm.utils.import_utils import resolve_obj_by_qualname

import xep

from . import vllm_eplb, vllm_serve
from .alarm import Alarm, tell_all

_FEW = 32  # tokens of a rank up to which a step goes by mode ll
_SLOTS = 3  # a dispatch, the arrays of the last one that vLLM has not dropped yet, and one to spare
_TYPES = (torch.float32, torch.bfloat16, torch.float16)
_CAST = (torch.float8_e4m3fn, torch.float8_e5m2, torch.uint8, torch.int8)  # with scales in extra_tensors
_STEPS = ("execute_model", "execute_dummy_batch")  # of vLLM's worker: in these, ranks wait for one another
_numbers = itertools.count()


def _refusal(config: Any) -> Optional[str]:
    """What of a configuration does not work over xep, in one sentence."""
    parallel = config.parallel_config
    found = [
        (parallel.pipeline_parallel_size > 1, "pipeline_parallel_size", parallel.pipeline_parallel_size, "1"),
        (parallel.enable_eplb and parallel.data_parallel_size == 1, "data_parallel_size", 1, "2 or more beside EPLB"),
        (parallel.enable_eplb and parallel.eplb_config.use_async, "eplb_config.use_async", True, "False"),
        (parallel.enable_dbo, "enable_dbo", True, "False"),
        (parallel.enable_eplb and config.use_v2_model_runner, "VLLM_USE_V2_MODEL_RUNNER", 1, "0 beside EPLB"),
        (config.lora_config is not None, "enable_lora", True, "False"),
        (
            parallel.enable_eplb and parallel.expert_placement_strategy != "linear",
            "expert_placement_strategy",
            parallel.expert_placement_strategy,
            "linear beside EPLB",
        ),
    ]
    for wrong, name, value, allowed in found:
        if wrong:
            return f"expert parallelism by xep: {name}: expected {allowed}, got {value}"
    return None


class XepCommunicator(CpuCommunicator):
    """vLLM's own, but for what experts need."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        config = get_current_vllm_config_or_none()
        if not self.is_ep_communicator or config is None:
            return
        if not self.use_all2all and not config.parallel_config.enable_eplb:
            return
        refused = _refusal(config)
        if refused is not None:
            raise ValueError(refused)
        _keep_experts_opaque()
        _place_as_asked()
        if config.parallel_config.enable_eplb:
            vllm_eplb.prepare()
        worker = resolve_obj_by_qualname(config.parallel_config.worker_cls)
        self.all2all_manager = XepAll2All(self.cpu_group, config)
        vllm_serve.end_steps(worker)
        if vllm_serve.can_serve(config):
            vllm_serve.replace_dummy_batches(worker)
        _tell_of_errors(worker)

    def all_gatherv(self, input_: Any, dim: int = 0, sizes: Optional[list[int]] = None) -> Any:
        """Rows of all ranks, of which rank r has sizes[r]; of each tensor of a list."""
        if isinstance(input_, list):
            return [self.all_gatherv(tensor, dim, sizes) for tensor in input_]
        if dim != 0:
            raise NotImplementedError(f"all_gatherv: expected dim 0, got {dim}")
        if sizes is None:
            return self.all_gather(input_, 0)
        most = max(sizes)
        padded = input_.new_zeros((most, *input_.shape[1:]))
        padded[: input_.shape[0]] = input_
        parts = self.all_gather(padded, 0).split(most)
        return torch.cat([part[:size] for part, size in zip(parts, sizes)])

    def reduce_scatterv(self, input_: torch.Tensor, dim: int = -1, sizes: Optional[list[int]] = None) -> torch.Tensor:
        """This rank's rows of the sum over ranks: sizes[rank] of them, or as many as every other rank."""
        if dim not in (0, -input_.dim()):
            raise NotImplementedError(f"reduce_scatterv: expected dim 0, got {dim}")
        sizes = sizes or [input_.shape[0] // self.world_size] * self.world_size
        sums = self.all_reduce(input_.clone(memory_format=torch.contiguous_format))
        return sums.split(sizes)[self.rank_in_group]

    def allocate_combine_input(
        self, shape: tuple[Any, ...], dtype: torch.dtype, device: torch.device, is_sequence_parallel: bool = False
    ) -> Optional[torch.Tensor]:
        if self.all2all_manager is None:
            return super().allocate_combine_input(shape, dtype, device, is_sequence_parallel)
        return self.all2all_manager.allocate_combine_input(shape, dtype, device, is_sequence_parallel)

    def destroy(self) -> None:
        super().destroy()
        if isinstance(self.all2all_manager, XepAll2All):
            self.all2all_manager.destroy()


class _Way(NamedTuple):
    """Of the dispatch whose combine comes next. row: of each row that the kernel sees, that received (mode normal).
    weights: that combine applies (mode ll)."""

    handle: xep.Handle
    row: Optional[torch.Tensor]
    weights: Optional[torch.Tensor]


class _Key(NamedTuple):
    """What the operations of a buffer have in common. words: of 4 bytes, of payloads."""

    dtype: torch.dtype
    hidden: int
    topk: int
    few: bool
    words: int


class XepAll2All(All2AllManagerBase):
    """One for the ranks of expert parallelism. Collective to make."""

    def __init__(self, cpu_group: Any, config: Any) -> None:
        super().__init__(cpu_group)
        self._tokens = config.scheduler_config.max_num_batched_tokens

        self._group: Optional[xep.Group] = None
        self._alarm = Alarm(cpu_group, f"vllm/{next(_numbers)}", self._give_up)
        with self._alarm:
            self._group = xep.Group(cpu_group)
        self._buffers: dict[_Key, xep.Buffer] = {}
        self._way: Optional[_Way] = None
        self._used: list[xep.Buffer] = []  # in this step
        self._served: Optional[xep.ServeCall] = None  # a dispatch of others, whose rows an expert layer is given
        self._sums: Any = None  # of those rows
        redundant = config.parallel_config.eplb_config.num_redundant_experts
        self._experts = config.model_config.get_num_experts() + redundant
        self._hidden, self._outputs = config.model_config.get_hidden_size(), config.model_config.dtype
        self._owners: Optional[list[int]] = None  # blocks, also of EPLB, whose physical experts are numbered by rank
        if config.parallel_config.expert_placement_strategy == "round_robin":
            self._owners = [expert % self.world_size for expert in range(self._experts)]
        self._elsewhere = self._experts_of_other_places()

    # ---- what vLLM calls ----

    def dispatch(
        self,
        hidden_states: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        is_sequence_parallel: bool = False,
        extra_tensors: Optional[list[torch.Tensor]] = None,
    ) -> tuple[torch.Tensor, ...]:
        """[T, H], [T, K], [T, K] -> rows [N, H], their weights [N, 1], their local experts [N, 1].

        extra_tensors: what belongs to each token, as the scales of rows that vLLM has cast to MXFP8 or NVFP4: each
        [T, ...]; then a list of what belongs to each row comes last.
        """
        with self._watched():
            self._check(hidden_states, extra_tensors)
            beside = tuple(_as_rows(extra) for extra in extra_tensors or ())
            x, idx = hidden_states.contiguous(), topk_ids.to(torch.int64).contiguous()
            if self._elsewhere is not None and not is_sequence_parallel:
                idx = idx.masked_fill(self._elsewhere[idx], -1)
            weights = topk_weights.to(torch.float32).contiguous()
            few = _most_tokens() <= _FEW
            if self._served is not None:
                handle = self._served.handle
            elif few:
                buffer = self._buffer_of(x, idx.shape[1], few, beside)
                handle = buffer.dispatch(x, idx, arrangement=xep.Rows.BY_EXPERT_COMPACT, payloads=beside)
            else:
                handle = self._buffer_of(x, idx.shape[1], few, beside).dispatch(x, idx, weights, payloads=beside)
            rows, row_weights, local, extras = self._by_ll(handle, weights) if few else self._by_normal(handle)
        if len(rows) == 0:  # the kernel wants one
            rows, row_weights, local = x.new_zeros((1, x.shape[1])), weights.new_zeros((1, 1)), idx.new_zeros((1, 1))
            extras = [extra.new_zeros((1, extra.shape[1])) for extra in beside]
        found = rows, row_weights.to(topk_weights.dtype), local.to(topk_ids.dtype)
        if extra_tensors is None:
            return found
        return *found, [
            extra.contiguous().view(given.dtype).unflatten(1, given.shape[1:])
            for extra, given in zip(extras, extra_tensors)
        ]

    def allocate_combine_input(
        self, shape: tuple[Any, ...], dtype: torch.dtype, _device: torch.device, _is_sequence_parallel: bool = False
    ) -> Optional[torch.Tensor]:
        """Where the kernel's outputs need no copy, or None."""
        way = self._way
        if way is None or way.weights is None or way.handle.rows == 0 or tuple(shape)[0] != way.handle.rows:
            return None
        with self._watched():
            return way.handle.combine_input(dtype)

    def combine(self, hidden_states: torch.Tensor, is_sequence_parallel: bool = False) -> torch.Tensor:
        """The kernel's rows [N, H] -> [T, H]."""
        way, self._way = self._way, None
        if way is None:
            raise RuntimeError("combine: expected a dispatch before it")
        handle = way.handle
        y = hidden_states[: 0 if way.row is None and handle.rows == 0 else None]
        with self._watched():
            if way.row is not None:
                y = _sums(y[: len(way.row)], way.row, handle.rows)
            elif handle.rows > 0 and y.data_ptr() == handle.combine_input(y.dtype).data_ptr():
                y = None
            if self._served is not None:
                self._sums = y
                return hidden_states.new_zeros((1, hidden_states.shape[1]))
            options = {} if way.weights is None else {"weights": way.weights}
            with handle:
                return handle.combine(y, **options)

    def end_step(self) -> None:
        """The model has run on tokens of this rank. Local."""
        if self._used:
            xep.step_end(self._used)
            self._used = []

    def serve_step(self, layers: list[Any], run: Callable[[Any], None]) -> None:
        """Runs this rank's experts in a step of the others. run: runs a layer on a token that nobody asked for; the
        ranks of a step in which nothing can be served yet, as its buffer is to be made, all dispatch."""
        most = _most_tokens()
        buffers = [buffer for key, buffer in self._buffers.items() if key.few == (most <= _FEW)]
        if most == 0:  # nobody has tokens
            return
        if len(buffers) != 1:
            for layer in layers:
                run(layer)
            self.end_step()
            return

        def experts(call: xep.ServeCall) -> Any:
            layer = call.dispatch % len(layers)
            if layer + 1 == len(layers):
                call.buffer.serve_stop()
            self._served = call
            try:
                run(layers[layer])
                return self._sums
            finally:
                self._served = self._sums = None

        with self._alarm:
            xep.serve(buffers, experts, torch=True)

    def dispatch_router_logits(self, *_arguments: Any, **_options: Any) -> Any:
        raise NotImplementedError(
            "expert parallelism by xep: experts that choose for themselves, inside of their kernel, are not supported"
        )

    def destroy(self) -> None:
        """Local: what the other ranks do is not waited for."""
        self._give_up()
        if self._group is not None:
            self._group.close()

    # ---- the two ways ----

    def _by_normal(self, handle: xep.Handle) -> tuple[Any, ...]:
        recv = handle.recv
        row, k = (recv.topk_idx >= 0).nonzero(as_tuple=True)
        self._way = _Way(handle, row, None)
        extras = [extra[row] for extra in recv.payloads]
        return recv.x[row], recv.topk_weights[row, k].unsqueeze(1), recv.topk_idx[row, k].unsqueeze(1), extras

    def _by_ll(self, handle: xep.Handle, weights: torch.Tensor) -> tuple[Any, ...]:
        recv = handle.recv
        self._way = _Way(handle, None, weights)
        counts = torch.as_tensor(recv.expert_count, dtype=torch.int64)
        local = torch.repeat_interleave(torch.arange(len(counts)), counts).unsqueeze(1)
        return recv.x, torch.ones(local.shape), local, list(recv.payloads)

    # ---- of its life ----

    def _experts_of_other_places(self) -> Optional[torch.Tensor]:
        """Of each expert, whether its rank has another place in its tensor-parallel group than this one; None where
        such a group is one rank."""
        size, place = self.tp_group.world_size, self.tp_group.rank_in_group
        if size == 1:
            return None
        blocks = [xep.expert_range(self._experts, self.world_size, rank)[1] for rank in range(self.world_size)]
        owners = self._owners or [rank for rank, count in enumerate(blocks) for _ in range(count)]
        return torch.tensor([rank % size != place for rank in owners])

    def _watched(self) -> Any:
        """The alarm, but within serve_step(), which has entered it."""
        return self._alarm if self._served is None else contextlib.nullcontext()

    def _check(self, x: torch.Tensor, extra_tensors: Optional[list[Any]]) -> None:
        if x.dtype not in _TYPES + _CAST or len(extra_tensors or ()) > 8:
            raise NotImplementedError(f"expert parallelism by xep: tokens of {x.dtype} are not supported")

    def _buffer_of(self, x: torch.Tensor, topk: int, few: bool, beside: tuple[Any, ...]) -> xep.Buffer:
        """Collective, when the first step of this kind is made."""
        # each payload is aligned to an element, of 8 bytes at most
        words = sum((extra.shape[1] * extra.element_size() + 15) // 8 * 2 for extra in beside)
        is_cast = x.dtype in _CAST
        key = _Key(x.dtype, x.shape[1], topk, few, words)
        if key not in self._buffers:
            assert self._group is not None
            self._buffers[key] = self._group.buffer(
                self._experts,
                topk,
                self._hidden if is_cast else x.shape[1],
                _FEW if few else self._tokens,
                mode="ll" if few else "normal",
                dtype=x.dtype,
                combine_dtype=self._outputs if is_cast else x.dtype,
                scales=words,
                slots=_SLOTS,
                owners=self._owners,
                served=True,
            )
        buffer = self._buffers[key]
        if buffer not in self._used:
            self._used.append(buffer)
        return buffer

    def _give_up(self) -> None:
        if self._group is not None:
            self._group.abort()


def _as_rows(extra: torch.Tensor) -> torch.Tensor:
    """[T, S]; bytes where an element is one, as xep has no name for each of these types."""
    rows = extra.flatten(1).contiguous()
    return rows.view(torch.uint8) if rows.element_size() == 1 else rows


def _most_tokens() -> int:
    """That any rank dispatches in this step."""
    metadata = get_forward_context().dp_metadata
    if metadata is None:
        return _FEW + 1
    sizes = metadata.local_sizes  # within a layer
    return max(metadata.num_tokens_across_dp_cpu.tolist() if sizes is None else sizes)


def _sums(y: torch.Tensor, row: torch.Tensor, rows: int) -> torch.Tensor:
    """Of each received row what its experts made of it, in float32."""
    sums = torch.zeros((rows, y.shape[1]), dtype=torch.float32)
    return sums.index_add_(0, row, y.to(torch.float32)).to(y.dtype)


@functools.cache
def _keep_experts_opaque() -> None:
    """A compiled model calls its experts by vLLM's operator, as on other platforms: what they do here is not to be
    traced."""
    original = moe_runner.MoERunner._select_forward

    def select_forward(self: Any) -> Any:
        if not self.moe_config.moe_parallel_config.use_all2all_kernels:
            return original(self)
        operators = torch.ops.vllm
        return operators.moe_forward if self._shared_experts is None else operators.moe_forward_shared

    moe_runner.MoERunner._select_forward = select_forward


@functools.cache
def _place_as_asked() -> None:
    """vLLM deals experts out in turn (round_robin) for some of its own ways and models only, and else does what it was
    not asked for. Here a map says who has which."""
    expert_map_manager.determine_expert_placement_strategy = lambda expert_placement_strategy, **_: (
        expert_placement_strategy
    )
    expert_map_manager.ExpertMapManager._determine_placement_strategy = lambda _self, requested: requested


@functools.cache
def _tell_of_errors(worker: type) -> None:
    """An exception in a step, be it in the experts or elsewhere in the model, is caught by vLLM, which ends its engine
    and with it this process: the other ranks hear why before."""

    def telling(step: Any) -> Any:
        @functools.wraps(step)
        def call(self: Any, *arguments: Any, **options: Any) -> Any:
            try:
                return step(self, *arguments, **options)
            except Exception as error:
                tell_all(error)
                raise

        return call

    for name in _STEPS:
        setattr(worker, name, telling(getattr(worker, name)))
