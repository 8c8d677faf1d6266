# SPDX-License-Identifier: BSD-3-Clause
"""What DeepEP has beside its buffers: tuning values, size hints, and calls that have nothing to do here."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

import xep

from .arguments import WrongType, WrongValue
from .utils.math import align

# ---- tuning values and hints ----


topk_idx_t = torch.int64

ALIGNMENT = 128  # bytes, of buffer sizes
_MOST_TOPK = _MOST_SCALES = 128  # that the hints make room for
_SOURCE_META = 8  # bytes


class Config:
    """Chunks and ring capacities in tokens, with DeepEP's rules of validity.

    There are no rings here: rows go straight to their final place. ``num_sms`` decides the channels (num_sms / 2) of
    the matrices in a handle; the other values are kept, and used by the size hints.
    """

    def __init__(
        self,
        num_sms: int = 20,
        num_max_nvl_chunked_send_tokens: int = 6,
        num_max_nvl_chunked_recv_tokens: int = 256,
        num_max_rdma_chunked_send_tokens: int = 6,
        num_max_rdma_chunked_recv_tokens: int = 256,
    ) -> None:
        for name, value in list(locals().items())[1:]:
            if not isinstance(value, int):
                raise WrongType(f"{name}: expected an integer, got {value!r}")
        nvl_send, nvl_recv = num_max_nvl_chunked_send_tokens, num_max_nvl_chunked_recv_tokens
        rdma_send, rdma_recv = num_max_rdma_chunked_send_tokens, num_max_rdma_chunked_recv_tokens
        _expect(num_sms >= 0, f"num_sms: expected 0 or more, got {num_sms}")
        _expect(0 < nvl_send < nvl_recv, f"nvl chunks: expected 0 < send < recv, got send {nvl_send}, recv {nvl_recv}")
        _expect(
            rdma_send > 0 and rdma_recv > 0, f"rdma chunks: expected above 0, got send {rdma_send}, recv {rdma_recv}"
        )
        rdma_recv = align(rdma_recv, rdma_send)
        _expect(
            rdma_send < rdma_recv and rdma_send <= rdma_recv // 2,
            f"rdma chunks: expected send of at most half of recv, got send {rdma_send}, recv {rdma_recv}",
        )
        self.num_sms = num_sms
        self.num_max_nvl_chunked_send_tokens = nvl_send
        self.num_max_nvl_chunked_recv_tokens = nvl_recv
        self.num_max_rdma_chunked_send_tokens = rdma_send
        self.num_max_rdma_chunked_recv_tokens = rdma_recv

    def _token_bytes(self, hidden_bytes: int) -> int:
        return hidden_bytes + _SOURCE_META + _MOST_TOPK * topk_idx_t.itemsize + _MOST_TOPK * 4 + _MOST_SCALES * 4

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """DeepEP's hint, in bytes. Here memory is sized by what is dispatched, whatever was hinted."""
        _expect(
            hidden_bytes >= 0 and num_ranks > 0,
            f"expected hidden_bytes, num_ranks of 0, 1 or more, got {hidden_bytes}, {num_ranks}",
        )
        local, nodes, channels = min(num_ranks, node_ranks()), nodes_of(num_ranks), self.num_sms // 2
        size = channels * local * (2 * nodes + 3) * 4
        size += channels * local * self.num_max_nvl_chunked_recv_tokens * self._token_bytes(hidden_bytes)
        return align(size, ALIGNMENT)

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """DeepEP's hint, in bytes; 0 on one node. Here memory is sized by what is dispatched, whatever was hinted."""
        _expect(
            hidden_bytes >= 0 and num_ranks > 0,
            f"expected hidden_bytes, num_ranks of 0, 1 or more, got {hidden_bytes}, {num_ranks}",
        )
        nodes, channels = nodes_of(num_ranks), self.num_sms // 2
        if nodes == 1:
            return 0
        size = channels * nodes * (node_ranks() * 2 + 2) * 2 * 4
        size += channels * nodes * self.num_max_rdma_chunked_recv_tokens * 2 * (self._token_bytes(hidden_bytes) + 16)
        return align(size, ALIGNMENT)

    def __repr__(self) -> str:
        return f"Config{tuple(vars(self).values())}"


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise WrongValue(message)


def node_ranks() -> int:
    """Ranks of a node, for hints, which are asked for before there is a group: XEP_NODE_RANKS, else DeepEP's 8."""
    return next((int(v.value) for v in xep.config() if v.name == "XEP_NODE_RANKS"), 0) or 8


def path_is_free() -> bool:
    """Whether rows may go once to each node: XEP_PATH says nothing else."""
    return not any(v.name == "XEP_PATH" and v.value == "flat" for v in xep.config())


def nodes_of(num_ranks: int) -> int:
    return -(-num_ranks // node_ranks())


def check_config(value: Any) -> None:
    """What a call is given as config."""
    if value is not None and not isinstance(value, Config):
        raise WrongType(f"config: expected a Config, got {type(value).__name__}")
    if value is not None and value.num_sms % 2:
        raise WrongValue(f"config: expected an even num_sms, got {value.num_sms}")


# ranks: (nvl_send, nvl_recv, rdma_send, rdma_recv)
_DISPATCH = {
    2: (24, 256, 6, 128), 4: (6, 256, 6, 128), 8: (6, 256, 6, 128), 16: (36, 288, 20, 128), 24: (32, 288, 8, 128),
    32: (32, 288, 8, 128), 48: (32, 288, 8, 128), 64: (32, 288, 8, 128),
    96: (20, 480, 12, 128), 128: (20, 560, 12, 128),
    144: (32, 720, 12, 128), 160: (28, 720, 12, 128),
}  # fmt: skip
_COMBINE = {
    2: (10, 256, 6, 128), 4: (9, 256, 6, 128), 8: (4, 256, 6, 128), 16: (4, 288, 12, 128), 24: (1, 288, 8, 128),
    32: (1, 288, 8, 128), 48: (1, 288, 8, 128), 64: (1, 288, 8, 128), 96: (1, 480, 8, 128), 128: (1, 560, 8, 128),
    144: (2, 720, 8, 128), 160: (2, 720, 8, 128),
}  # fmt: skip


def _nearest(table: dict, num_ranks: int) -> tuple:
    _expect(num_ranks > 0, f"num_ranks: expected 1 or more, got {num_ranks}")
    return table[min((n for n in table if n >= num_ranks), default=max(table))]


def dispatch_config(num_sms: int, num_ranks: int) -> Config:
    """DeepEP's table; between its rows that of the next larger number of ranks."""
    return Config(num_sms, *_nearest(_DISPATCH, num_ranks))


def combine_config(num_sms: int, num_ranks: int) -> Config:
    """DeepEP's table; between its rows that of the next larger number of ranks."""
    return Config(num_sms, *_nearest(_COMBINE, num_ranks))


def low_latency_size_hint(num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int) -> int:
    """DeepEP's hint for its double buffer, in bytes."""
    tokens, scales = num_max_dispatch_tokens_per_rank, hidden // 128
    _expect(
        min(tokens, hidden, num_ranks, num_experts) > 0,
        f"expected sizes above 0, got {tokens}, {hidden}, {num_ranks}, {num_experts}",
    )
    dispatch_message = 16 + max(2 * hidden, hidden + 4 * scales)
    combine_message = 4 * scales + 2 * hidden
    send = max(tokens * dispatch_message, num_experts * tokens * combine_message)
    recv = num_experts * tokens * max(dispatch_message, combine_message)
    total = 2 * align(4 * num_experts, ALIGNMENT) + 2 * send + 2 * recv
    return (total + ALIGNMENT) // ALIGNMENT * ALIGNMENT


# ---- what is not here ----


def _absent(name: str, what: str) -> Any:
    def call(*_arguments: Any, **_options: Any) -> NoReturn:
        raise NotImplementedError(f"{name}: {what} is not available on CPU")

    call.__name__ = name
    call.__doc__ = "Not available."
    return staticmethod(call)


_ABSENT = {
    "the remote table of engram": ("engram_write", "engram_fetch", "get_engram_storage_size_hint"),
    "pipeline send and receive": ("pp_set_config", "pp_send", "pp_recv", "get_pp_buffer_size_hint"),
    "all-gather in sessions": (
        "agrs_set_config", "agrs_get_inplace_tensor", "agrs_new_session", "create_agrs_session",
        "destroy_agrs_session", "all_gather", "get_agrs_num_max_session_bytes", "get_agrs_buffer_size_hint",
    ),
}  # fmt: skip


class Absent:
    """Each raises NotImplementedError."""


for _what, _names in _ABSENT.items():
    for _name in _names:
        setattr(Absent, _name, _absent(_name, _what))
