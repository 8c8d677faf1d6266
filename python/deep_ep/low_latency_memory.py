# SPDX-License-Identifier: BSD-3-Clause
"""What low latency does in one way in host memory and in another on a CUDA device.

To look at a slot, to count, to copy, and to remember what was routed.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np
import torch

import xep
from xep import arrays

from ._check import HOST, WrongValue


class HostMemory:
    """Rows and counts in host memory."""

    name = "host"
    on = HOST

    def origin(self, buffer: xep.Buffer) -> int:
        """What the offsets of a slot are counted from."""
        return buffer._base

    def view(self, handle: xep.Handle, offset: int, shape: tuple, strides: tuple, dtype: torch.dtype) -> torch.Tensor:
        """A tensor over the slot, strides in bytes. It keeps the slot."""
        return arrays.view(handle._memory, offset, shape, strides, dtype)

    def counts(self, handle: xep.Handle) -> torch.Tensor:
        """[L] int32."""
        return torch.from_numpy(handle.numpy().expert_count.astype(np.int32))

    def copy_rows(self, to: torch.Tensor, source: torch.Tensor, counts: torch.Tensor) -> None:
        """The first ones of each expert."""
        for expert, count in enumerate(counts.tolist()):
            to[expert, :count] = source[expert, :count]

    def routing(self, topk_idx: torch.Tensor) -> "HostRouting":
        return HostRouting(topk_idx)


class DeviceMemory:
    """Rows and counts on a CUDA device: nothing here waits for it."""

    name = "cuda"

    def __init__(self, device: torch.device) -> None:
        self.on = device

    def origin(self, _buffer: xep.Buffer) -> int:
        return 0

    def view(self, handle: xep.Handle, offset: int, shape: tuple, strides: tuple, dtype: torch.dtype) -> torch.Tensor:
        steps = [stride // dtype.itemsize for stride in strides]
        count = 1 + sum((n - 1) * step for n, step in zip(shape, steps))
        there = torch.as_tensor(_Bytes(handle._memory, offset, count * dtype.itemsize), device=self.on)
        return there.view(dtype).as_strided(shape, steps)

    def counts(self, handle: xep.Handle) -> torch.Tensor:
        return handle.recv.expert_count.to(torch.int32)

    def copy_rows(self, to: torch.Tensor, source: torch.Tensor, _counts: torch.Tensor) -> None:
        """All, as how many there are the host does not know."""
        to.copy_(source)

    def routing(self, topk_idx: torch.Tensor) -> "DeviceRouting":
        return DeviceRouting(topk_idx)


class _Bytes:
    """Device memory as other packages have it. base: what keeps it."""

    def __init__(self, base: Any, address: int, count: int) -> None:
        self._base = base
        self.__cuda_array_interface__ = {
            "shape": (count,), "strides": None, "typestr": "|u1", "data": (address, False), "version": 2,
        }  # fmt: skip


# ---- what was routed: combine may leave selections out of it ----


class HostRouting:
    """A copy: the program may change its tensor."""

    def __init__(self, topk_idx: torch.Tensor) -> None:
        self.sent, self.version = weakref.ref(topk_idx), -1 if topk_idx.is_inference() else topk_idx._version
        self._bytes = ctypes.string_at(topk_idx.data_ptr(), topk_idx.numel() * topk_idx.itemsize)
        self._dtype, self._shape = topk_idx.dtype, topk_idx.shape

    def weights(self, topk_idx: torch.Tensor, topk_weights: torch.Tensor) -> torch.Tensor:
        """topk_weights, 0 where topk_idx is -1."""
        if topk_idx.dtype is self._dtype and bytes_of(topk_idx) == self._bytes:
            return topk_weights
        if not topk_idx.numel():
            return topk_weights
        sent = torch.frombuffer(bytearray(self._bytes), dtype=self._dtype).view(self._shape)
        changed = (topk_idx != sent) & (topk_idx >= 0)
        if bool(changed.any()):
            token, k = changed.nonzero()[0].tolist()
            raise WrongValue(
                f"topk_idx: expected what was dispatched (or -1), got expert {int(topk_idx[token, k])} for selection "
                f"{k} of token {token}, which was {int(sent[token, k])}"
            )
        return topk_weights.masked_fill(topk_idx < 0, 0.0)


class DeviceRouting:
    """The tensor itself, if nobody has changed it: what is in another one the host would have to wait for. So that it
    names the experts that were dispatched is not checked here."""

    def __init__(self, topk_idx: torch.Tensor) -> None:
        self._sent, self._version = weakref.ref(topk_idx), version_of(topk_idx)

    def weights(self, topk_idx: torch.Tensor, topk_weights: torch.Tensor) -> torch.Tensor:
        if self._sent() is topk_idx and -1 < self._version == version_of(topk_idx):
            return topk_weights
        return topk_weights.masked_fill(topk_idx < 0, 0.0)


def bytes_of(tensor: torch.Tensor) -> bytes:
    """Of a contiguous one: a copy, which is to be had for a tenth of what clone() takes."""
    return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.itemsize)


def version_of(tensor: torch.Tensor) -> int:
    """Counts changes in place; -1 where nobody counts."""
    return -1 if tensor.is_inference() else tensor._version
