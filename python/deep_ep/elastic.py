# SPDX-License-Identifier: BSD-3-Clause
"""DeepEP's ElasticBuffer."""

from __future__ import annotations

from typing import Any, Optional

import torch

from ._check import WrongValue, calls_of, integer
from .absent import Absent
from .config import nodes_of, path_is_free
from .elastic_calls import MULTIPROCESSORS, ElasticCalls
from .utils.event import EventHandle
from .utils.math import align

_UNIT = 2 << 20  # bytes, of which sizes are multiples
_PART = 32  # bytes, of which the parts of a token are
_MOST_TOPK = 32
_CHANNEL_TOKENS = 1280
_SECONDS = 300  # num_cpu_timeout_secs, if nothing else is said


class ElasticBuffer(ElasticCalls, Absent):
    """Dispatch and combine of MoE tokens, of CPU tensors or those of a CUDA device, without layouts of the program's;
    collective to make.

    group: a torch.distributed process group of any backend, an mpi4py communicator; None: PMIx (xep_run, prterun,
        mpirun, srun), or a group of one.
    num_bytes: a multiple of 2 MiB, or None: the hint for num_max_tokens_per_rank tokens of hidden channels, num_topk
        and use_fp8_dispatch. It limits nothing: shared memory is made at the first dispatch, for its shape, and grows
        by agreement of the ranks.
    num_max_tokens_per_rank: what dispatch takes if it is not told.
    allow_hybrid_mode: where nodes are blocks of as many ranks each, more than one, rows go once to each node, and sums
        come back from it: the logical domain is (nodes, ranks of one) then, else (1, ranks), with rows that go straight
        to their rank. XEP_PATH=flat is as False.
    allow_multiple_reduction: combine may round on the way; else a token is rounded once. See combine.
    num_cpu_timeout_secs: of each wait; 300: XEP_TIMEOUT.
    explicitly_destroy: destroy() will be called; else the destructor does it, where no received tensor is alive.
    deterministic, prefer_overlap_with_compute, sl_idx, num_allocated_qps, num_gpu_timeout_secs:
        choices among ways of a GPU. Rows always arrive in the same order.
    num_slots: how many dispatches have their memory at once; see Buffer.
    """

    def __init__(
        self,
        group: Any = None,
        num_bytes: Optional[int] = None,
        num_cpu_bytes: int = 0,
        num_max_tokens_per_rank: int = 0,
        hidden: int = 0,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        deterministic: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
        prefer_overlap_with_compute: bool = True,
        sl_idx: int = 3,
        num_allocated_qps: int = 0,
        num_cpu_timeout_secs: float = _SECONDS,
        num_gpu_timeout_secs: float = 100,
        explicitly_destroy: bool = False,
        *,
        num_slots: int = 4,
        timeout: Optional[float] = None,
    ) -> None:
        for name, size in (("num_bytes", num_bytes or 0), ("num_cpu_bytes", num_cpu_bytes)):
            if integer(name, size, 0) % _UNIT:
                raise WrongValue(f"{name}: expected a multiple of {_UNIT} bytes, got {size}")
        self.num_max_tokens_per_rank = integer("num_max_tokens_per_rank", num_max_tokens_per_rank, 0)
        self.allow_hybrid_mode, self.allow_multiple_reduction = allow_hybrid_mode, allow_multiple_reduction
        self.prefer_overlap_with_compute, self.deterministic = prefer_overlap_with_compute, deterministic
        self.num_allocated_qps = integer("num_allocated_qps", num_allocated_qps, 0) or (
            129 if allow_hybrid_mode else 17
        )
        if timeout is None and num_cpu_timeout_secs != _SECONDS:
            timeout = float(num_cpu_timeout_secs)
        self._join(group, num_slots, timeout, explicitly_destroy)
        self.rank_idx, self.num_ranks = self._xep.rank, self._xep.nranks
        self._is_hybrid = allow_hybrid_mode and self._nodes.are_even() and path_is_free()
        self._pool.ways["path"] = "nodes" if self._is_hybrid else "flat"
        self._pool.ways["node_sums"] = "dtype" if allow_multiple_reduction else "fp32"
        self.num_scaleout_ranks, self.num_scaleup_ranks = self.get_logical_domain_size()
        self.scaleout_rank_idx, self.scaleup_rank_idx = divmod(self.rank_idx, self.num_scaleup_ranks)
        self.num_rdma_ranks, self.num_nvlink_ranks = self.get_physical_domain_size()
        self.num_bytes = num_bytes
        if num_bytes is None:
            shape = (num_max_tokens_per_rank, hidden, num_topk, use_fp8_dispatch)
            self.num_bytes = _size_hint(
                self.num_ranks, self._nodes.count, *shape, allow_hybrid_mode, allow_multiple_reduction
            )

    def destroy(self) -> None:
        """Frees all, if that was not done. Collective; only with explicitly_destroy. The memory of tensors that are
        alive on some rank stays mapped until the process ends, with a ResourceWarning."""
        if self.runtime is not None or not self.explicitly_destroy:
            super().destroy()

    @staticmethod
    def get_buffer_size_hint(
        group: Any,
        num_max_tokens_per_rank: int,
        hidden: int,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
    ) -> int:
        """DeepEP's hint, in bytes; nodes are those of XEP_NODE_RANKS, else of 8 ranks. Here memory is sized by what is
        dispatched, whatever was hinted."""
        ranks = group.size() if callable(group.size) else group.size
        shape = (num_max_tokens_per_rank, hidden, num_topk, use_fp8_dispatch)
        return _size_hint(ranks, nodes_of(ranks), *shape, allow_hybrid_mode, allow_multiple_reduction)

    @staticmethod
    def capture() -> EventHandle:
        """An event for what is enqueued on the current stream by now. On a CPU what was called has been done."""
        return EventHandle()

    def barrier(self, use_comm_stream: bool = True, with_cpu_sync: bool = False, sequential: bool = True) -> None:
        """Waits until all ranks are here. Collective."""
        self._usable()
        self._xep.barrier()

    def get_physical_domain_size(self) -> tuple[int, int]:
        """(nodes, ranks of the largest node)."""
        return self._nodes.count, self._nodes.width

    def get_logical_domain_size(self) -> tuple[int, int]:
        """(nodes, ranks of one) where rows go once to each node, and (1, ranks) where they go straight to their rank."""
        return self.get_physical_domain_size() if self._is_hybrid else (1, self._xep.nranks)

    def get_theoretical_num_sms(
        self,
        num_experts: int,
        num_topk: int,
        num_scaleout_topk: int = 0,
        rdma_gbs: float = 0,
        nvlink_gbs: float = 0,
        sm_read_gbs: float = 200,
        sm_write_gbs: float = 50,
    ) -> int:
        """This rank's share of the machine's processors, as an even number from 4 on, as DeepEP has it. In a program
        that uses a CUDA device: multiprocessors that fill its links."""
        self._check_experts(num_experts)
        if torch.cuda.is_initialized():
            return MULTIPROCESSORS
        return self._default_sms

    def get_theoretical_num_qps(self, num_sms: int) -> int:
        """DeepEP's number, up to num_allocated_qps; there are no queue pairs here."""
        wanted = 16 * num_sms + 1 if self.allow_hybrid_mode else min(num_sms, 9)
        return min(wanted, self.num_allocated_qps)


calls_of(ElasticCalls, Absent)


def _size_hint(
    ranks: int, nodes: int, tokens: int, hidden: int, topk: int, fp8: bool, hybrid: bool, multiple: bool
) -> int:
    """DeepEP's: the larger of what dispatch and combine need."""
    topk = topk or _MOST_TOPK
    words = align(4 * -(-hidden // 128), _PART) if fp8 else 0
    sent = align(hidden if fp8 else 2 * hidden, _PART) + words + align(8 * topk + 4 * (1 + topk), _PART)
    back = align(2 * hidden, _PART) + align(8 * topk, _PART)
    if hybrid and nodes > 1:
        each, ring = ranks // nodes, nodes * (tokens + _CHANNEL_TOKENS)
        there = sent * (ranks * tokens + tokens + ring)
        up, out = (min(each, topk), min(nodes, topk)) if multiple else (topk, topk)
        home = back * (up * nodes * tokens + out * tokens + ring * (1 if multiple else topk))
    else:
        apart = nodes > 1
        there = sent * (ranks * tokens + (tokens if apart else 0))
        home = back * (min(ranks, topk) if multiple else topk) * tokens
        home += back * ranks * tokens * (1 if multiple else topk) if apart else 0
    return align(max(there, home), _UNIT)
