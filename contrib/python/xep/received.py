# SPDX-License-Identifier: BSD-3-Clause
"""What a dispatch brought, as arrays over the buffer's own memory."""

from __future__ import annotations

import ctypes
from types import ModuleType
from typing import TYPE_CHECKING, Any, Optional

from . import _structs
from ._hot import ReceivedBase
from .dtypes import SIZES, Dtype, Quant, Rows

if TYPE_CHECKING:
    from .handle import Handle


_PADDED = int(Rows.BY_EXPERT_PADDED)


def shape_of(recv: _structs.Recv, columns: int, stride: int, step: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Extents, and bytes between elements, of received rows."""
    capacity, experts = recv.capacity, recv.local_experts
    if recv.arrangement != _PADDED or experts == 0:
        return (capacity, columns), (stride, step)
    rows = capacity // experts
    return (experts, rows, columns), (rows * stride, stride, step)


class Received(ReceivedBase):
    """Received rows: N = ``capacity`` rows, of which ``rows`` came; K top-k, H hidden, S scales, L experts of this rank.

    x, topk_idx, topk_weights, scales and src_token are views: no copy. Each keeps its memory from being used again
    for as long as it lives. The counts are copies.
    """

    __slots__ = ()

    def __init__(self, handle: "Handle", recv: _structs.Recv, adapter: ModuleType, native: Any) -> None:
        super().__init__()
        self._handle = handle
        self._recv = recv
        self._adapter = adapter
        self._native = native  # of the dispatched rows

    @property
    def rows(self) -> int:
        return self._recv.rows

    @property
    def capacity(self) -> int:
        return self._recv.capacity

    @property
    def hidden(self) -> int:
        return self._recv.hidden

    @property
    def topk(self) -> int:
        return self._recv.topk

    @property
    def first_expert(self) -> int:
        return self._recv.first_expert

    @property
    def local_experts(self) -> int:
        return self._recv.local_experts

    @property
    def arrangement(self) -> Rows:
        return Rows(self._recv.arrangement)

    @property
    def dtype(self) -> Dtype:
        """Element type of x."""
        return Dtype(self._recv.dtype)

    @property
    def quant(self) -> Quant:
        return Quant(self._recv.quant)

    # ---- views ----

    @property
    def x(self) -> Any:
        """[N, H]; rows by expert, padded: [L, N / L, H]."""
        found = self._cache.get("x")
        if found is None:
            recv = self._recv
            native = self._native if recv.quant == 0 else self._adapter.native(Dtype(recv.dtype))
            found = self._rows("x", recv.x, recv.x_stride, recv.hidden, SIZES[recv.dtype], native)
        return found

    @property
    def topk_idx(self) -> Any:
        """[N, K] int64 or int32, as dispatched: local expert 0 .. L-1, or -1: not here. Rows from ``rows`` on are all -1."""
        found = self._cache.get("topk_idx")
        if found is None:
            recv = self._recv
            native = self._adapter.native(Dtype(recv.topk_idx_dtype))
            size = SIZES[recv.topk_idx_dtype]
            found = self._rows("topk_idx", recv.topk_idx, recv.topk * size, recv.topk, size, native)
        return found

    @property
    def topk_weights(self) -> Optional[Any]:
        """[N, K] float32, 0 where topk_idx is -1; None when none were sent."""
        recv = self._recv
        if not recv.topk_weights:
            return None
        found = self._cache.get("topk_weights")
        if found is None:
            native = self._adapter.native(Dtype.FP32)
            found = self._rows("topk_weights", recv.topk_weights, recv.topk * 4, recv.topk, 4, native)
        return found

    @property
    def scales(self) -> Optional[Any]:
        """[N, S] float32 or int32, as dispatched or cast; padded: [L, N / L, S]; None when there are none."""
        recv = self._recv
        if not recv.scales:
            return None
        found = self._cache.get("scales")
        if found is None:
            native = self._adapter.native(Dtype(recv.scales_dtype))
            shape, strides = shape_of(recv, recv.nscales, recv.scales_token_stride, recv.scales_stride)
            if len(shape) == 3:
                strides = (shape[1] * recv.nscales * 4, *strides[1:])
            found = self._cache["scales"] = self._view(recv.scales, shape, strides, native)
        return found

    @property
    def src_token(self) -> Any:
        """[N] int32: token index on its source rank."""
        found = self._cache.get("src_token")
        if found is None:
            native = self._adapter.native(Dtype.INT32)
            found = self._cache["src_token"] = self._view(self._recv.src_token, (self.capacity,), (4,), native)
        return found

    def _rows(self, name: str, address: int, stride: int, columns: int, size: int, native: Any) -> Any:
        shape, strides = shape_of(self._recv, columns, stride, size)
        found = self._cache[name] = self._view(address, shape, strides, native)
        return found

    def _view(self, address: int, shape: tuple, strides: tuple, native: Any) -> Any:
        handle = self._handle
        memory = handle._memory or handle._alive()
        return self._adapter.view(memory, address - handle._buffer._base, shape, strides, native)

    # ---- counts ----

    @property
    def src_begin(self) -> Optional[Any]:
        """[R + 1] int64: rows src_begin[r] .. src_begin[r+1]-1 came from rank r; None by expert."""
        return self._copy("src_begin", (self._handle.nranks + 1,), Dtype.INT64)

    @property
    def rank_rows(self) -> Optional[Any]:
        """[R, R] int32: rows that went from rank i to rank j; None by expert."""
        return self._copy("rank_rows", (self._handle.nranks, self._handle.nranks), Dtype.INT32)

    @property
    def expert_rows(self) -> Any:
        """[L] int64: selections of each local expert, rounded up to expert_alignment."""
        return self._copy("expert_rows", (self.local_experts,), Dtype.INT64)

    @property
    def expert_begin(self) -> Optional[Any]:
        """[L] int64: first row of each local expert; None by rank."""
        return self._copy("expert_begin", (self.local_experts,), Dtype.INT64)

    @property
    def expert_count(self) -> Optional[Any]:
        """[L] int64: rows of each local expert; None by rank."""
        return self._copy("expert_count", (self.local_experts,), Dtype.INT64)

    @property
    def pair_begin(self) -> Optional[Any]:
        """[L, R] int32: first row of an expert that came from a rank; None by rank."""
        return self._copy("pair_begin", (self.local_experts, self._handle.nranks), Dtype.INT32)

    @property
    def pair_count(self) -> Optional[Any]:
        """[L, R] int32: how many rows of an expert came from a rank; None by rank."""
        return self._copy("pair_count", (self.local_experts, self._handle.nranks), Dtype.INT32)

    def _copy(self, name: str, shape: tuple[int, ...], dtype: Dtype) -> Optional[Any]:
        address = getattr(self._recv, name)
        if not address and 0 not in shape:
            return None
        found = self._cache.get(name)
        if found is None:
            self._handle._alive()
            count = SIZES[dtype]
            for extent in shape:
                count *= extent
            data = ctypes.string_at(address, count) if count else b""
            found = self._cache[name] = self._adapter.from_bytes(data, shape, dtype)
        return found
