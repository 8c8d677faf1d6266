# SPDX-License-Identifier: BSD-3-Clause
"""What a dispatch is told by afterwards: DeepEP's EPHandle, with its attributes, and as programs construct it."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch

from .arguments import WrongUse

_MADE = frozenset((
    "num_recv_tokens", "num_expanded_tokens", "num_recv_tokens_per_expert_list",
    "psum_num_recv_tokens_per_scaleup_rank", "psum_num_recv_tokens_per_expert", "num_unaligned_recv_tokens_per_expert",
    "recv_src_metadata", "dst_buffer_slot_idx", "token_metadata_at_forward", "channel_linked_list",
))  # fmt: skip


class EPHandle:
    """Of a dispatch; T tokens of this rank, N received rows, L experts of this rank, R ranks.

    topk_idx [T, K]: the tensor that was dispatched; AssertionError where it was written since. num_sms: those used.
    num_recv_tokens, num_expanded_tokens: rows received, and rows by expert, gaps included; without CPU sync as many as
    there is room for. num_recv_tokens_per_expert_list: aligned; empty without CPU sync.
    psum_num_recv_tokens_per_scaleup_rank [R]: rows of ranks 0 .. r. psum_num_recv_tokens_per_expert [L]: where expert
    e's rows end, after do_expand without its gap. num_unaligned_recv_tokens_per_expert [L].
    recv_src_metadata [N, 2 + K] int32: source rank * num_max_tokens_per_rank + token; a number of xep's; of each k the
    expanded row, or -1. What is behind it is xep's own.

    A program may construct one, of the attributes of another: with topk_idx and what stands before it, its routing is
    known, and the first use costs a dispatch of nearly empty rows. All ranks do so alike.
    """

    _made: Any = None  # by a dispatch of ElasticBuffer's
    cached_recv_src_metadata_before_sort: Optional[torch.Tensor] = None

    def __init__(
        self,
        do_expand: bool,
        num_experts: int,
        expert_alignment: int,
        num_max_tokens_per_rank: int,
        num_sms: int,
        topk_idx: torch.Tensor,
        num_recv_tokens: int,
        num_expanded_tokens: int,
        num_recv_tokens_per_expert_list: list[int],
        psum_num_recv_tokens_per_scaleup_rank: torch.Tensor,
        psum_num_recv_tokens_per_expert: torch.Tensor,
        num_unaligned_recv_tokens_per_expert: torch.Tensor,
        recv_src_metadata: torch.Tensor,
        dst_buffer_slot_idx: torch.Tensor,
        token_metadata_at_forward: Optional[torch.Tensor] = None,
        channel_linked_list: Optional[torch.Tensor] = None,
    ) -> None:
        given = dict(locals())
        del given["self"]
        for name, value in given.items():
            setattr(self, name, value)

    @classmethod
    def _of(cls, made: Any, topk_idx: torch.Tensor) -> EPHandle:
        handle = cls.__new__(cls)
        handle._made, handle.topk_idx = made, topk_idx
        for name in ("do_expand", "num_experts", "expert_alignment", "num_max_tokens_per_rank", "num_sms"):
            setattr(handle, name, getattr(made, name))
        return handle

    def __getattr__(self, name: str) -> Any:
        """What is made when it is looked at."""
        if name not in _MADE or self._made is None:
            raise AttributeError(f"EPHandle: there is no {name}")
        value = self.__dict__[name] = getattr(self._made, name)
        return value

    @property
    def topk_idx(self) -> torch.Tensor:
        if self._version is not None and self._topk_idx._version != self._version:
            raise WrongUse("topk_idx: it was written after the dispatch (the handle has the tensor itself, no copy)")
        return self._topk_idx

    @topk_idx.setter
    def topk_idx(self, topk_idx: torch.Tensor) -> None:
        self._topk_idx = topk_idx
        self._version = None if topk_idx.is_inference() else topk_idx._version

    def _dispatched(self, dispatch: Callable[..., tuple]) -> Any:
        """The ElasticBuffer's handle. dispatch: ElasticBuffer's, by which one that a program has constructed gets its
        own. Collective then."""
        topk_idx = self.topk_idx
        if self._made is None:
            x = torch.zeros((topk_idx.shape[0], 1), dtype=torch.uint8, device=topk_idx.device)
            options = dict(num_experts=self.num_experts, num_max_tokens_per_rank=self.num_max_tokens_per_rank)
            options.update(expert_alignment=self.expert_alignment, do_expand=self.do_expand, num_sms=self.num_sms)
            options.update(do_cpu_sync=bool(self.num_recv_tokens_per_expert_list))
            self._made = dispatch(x, topk_idx, **options)[3]
        return self._made
