# SPDX-License-Identifier: BSD-3-Clause
"""The weights of all experts, each in the memory of its owner, for every rank to read."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Mapping, Optional, Sequence, TypedDict

import numpy as np

from . import _ext

if TYPE_CHECKING:
    from typing_extensions import Unpack


class WeightsOptions(TypedDict, total=False):
    """Keywords of Weights."""

    owners: Optional[Sequence[int]]
    copies: int
    gradients: int
    timeout: Optional[float]
    torch: bool


class Weights(_ext.Weights):
    """Memory for the weights of each rank's experts, shared, in huge pages if there are any. Collective, blocking; a
    context manager. Every rank passes the same values, but copies, timeout and torch.

    experts: E of the whole group. shape: of the weights of one expert, an integer or several; dtype: of an element.
    owners: the rank of each expert, as for a Buffer; None: blocks.
    copies: most copies of experts of ranks that are not mapped, 0: 2; the one that was asked for longest ago gives way.
    gradients: most experts for which a rank has gradients in one reduce(). timeout: seconds of each wait; None: as the
    group's. torch: arrays are tensors, else numpy's.

    One thread at a time; the GIL is released while it waits.
    """

    group: Any  # the Group

    def __init__(
        self, group: Any, experts: int, shape: int | Sequence[int], dtype: Any, **options: Unpack[WeightsOptions]
    ) -> None:
        self.experts, self.shape = experts, tuple(shape) if isinstance(shape, Sequence) else (shape,)
        self._torch = options.get("torch", False)
        known: dict[str, Any] = dict(owners=None, copies=0, gradients=0, timeout=None, torch=False)
        if unknown := options.keys() - known:
            raise TypeError(f"Weights: unexpected argument {min(unknown)!r}")
        self._create(group, experts, math.prod(self.shape), dtype, *{**known, **options}.values())
        owners = options.get("owners")
        if owners is None:
            first, count = _ext.expert_range(experts, group.nranks, group.rank)
            self.local = tuple(range(first, first + count))
        else:
            self.local = tuple(e for e, rank in enumerate(owners) if rank == group.rank)
        group._parts.append(self)

    def change(self, expert: int) -> Any:
        """The memory of an expert of this rank, zeros at first, to be written until publish(). Copies of others wait
        until then; ranks that map it read it as it is, so make a barrier before a second change. Local."""
        return self._change(expert).reshape(self.shape)

    def fill(self, expert: int, values: Any) -> None:
        """change(), values, which are of this shape or are broadcast to it, publish(). Local."""
        self.change(expert)[...] = values
        self.publish(expert)

    def of(self, expert: int) -> Any:
        """The weights of any expert, to be read only. Of this rank, or of one that is mapped: where they are, without a
        copy. Else a copy, which this rank keeps until ``copies`` others were asked for: fetched, if this rank does not
        have what the owner has published last. Waits for the owner, which has to make progress, then.

        InvalidError: they were never filled; DeadlineError: they are still being changed; PeerError: their rank has
        died. Each names rank and expert.
        """
        array = self._of(expert).reshape(self.shape)
        if isinstance(array, np.ndarray):
            array.flags.writeable = False
        return array

    def reduce(self, gradients: Mapping[int, Any], out: Any = None) -> Any:
        """Adds the gradients that ranks have for an expert to those of its owner, in float32, ranks ascending.
        Collective, blocking.

        gradients: by expert, of any owner, each of an expert's shape. out: float32, such arrays of this rank's experts,
        ascending, to which they are added; None: to zeros. Returns it, or None on a rank without experts.
        """
        experts = tuple(sorted(gradients))
        rows = tuple(_as_row(f"gradients[{e}]", gradients[e], self.shape, 1) for e in experts)
        if out is None and self.local:
            out = self._zeros((len(self.local), *self.shape))
        sums = None if out is None else _as_row("out", out, (len(self.local), *self.shape), len(self.local))
        if sums is not None and not _is_dense(out):
            raise ValueError("out: expected a contiguous array, got a strided one")
        self._reduce(experts, rows, sums)
        return out

    def _zeros(self, shape: tuple[int, ...]) -> Any:
        if not self._torch:
            return np.zeros(shape, np.float32)
        import torch

        return torch.zeros(shape, dtype=torch.float32, device="cpu")

    def close(self) -> None:
        """Frees them. Collective, blocking; again: a no-op. In a fork of the process that made them local: nothing is
        freed. BufferError, and nothing freed, while arrays of them are alive."""
        if not self._open:
            return
        if self.group._inherited:
            self._leave()
            return
        if self.arrays_left():
            raise BufferError(f"{self.arrays_left()} arrays of weights are alive: drop or copy them before close()")
        if self in self.group._parts:
            self.group._parts.remove(self)
        self._destroy()

    def __repr__(self) -> str:
        state = f"{self.experts} experts, {list(self.shape)} each" if self._open else "closed"
        return f"<xep.Weights: {state}>"

    def __enter__(self) -> Weights:
        return self

    def __exit__(self, kind: Any, _error: Any, _traceback: Any) -> None:
        if kind is None:  # else the group closes it, as that is collective, and the others may be anywhere
            self.close()


def _is_dense(array: Any) -> bool:
    return array.flags.c_contiguous if isinstance(array, np.ndarray) else array.is_contiguous()


def _as_row(name: str, array: Any, shape: tuple[int, ...], rows: int) -> Any:
    if tuple(array.shape) != shape:
        raise ValueError(f"{name}: expected an array of shape {shape}, got {tuple(array.shape)}")
    return array.reshape(rows, -1)
