# SPDX-License-Identifier: BSD-3-Clause
"""What V2.5's buffers have in common; plans of tensors that are to lie in one; calls as other versions have them."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Sequence, Union

import torch

from ..arguments import WrongUse, WrongValue, integer, leave_to_python
from ..utils.math import align

ALLOCATION = 2 << 20  # bytes, of which sizes and offsets of tensors are multiples
ROW = 32  # bytes, of which what is reduced or copied between ranks is a multiple


class BufferBase:
    """explicitly_destroy: destroy() is allowed, and needed. runtime: None once it is destroyed."""

    explicitly_destroy: bool
    runtime: Any
    num_bytes: Any

    @property
    def main_context(self) -> Any:
        return self.runtime

    def print_memory_usage(self) -> None:
        print(f"{type(self).__name__}: {self.num_bytes} bytes", flush=True)

    def destroy(self) -> None:
        raise NotImplementedError


class BufferAllocator:
    """A plan: tensors that are to lie in a buffer's storage, one behind the other. Every rank plans the same.
    allocate() gives tensors of device meta, which the buffer that is made with the plan gives their memory.

    alignment: of their offsets. num_bytes: of all by now. allocations: (tensor, offset).
    """

    alignment = ALLOCATION

    def __init__(self) -> None:
        self.num_bytes = 0
        self.allocations: list[tuple[torch.Tensor, int]] = []
        self.materialized = False

    def allocate(self, shape: Union[int, Sequence[int]], dtype: torch.dtype) -> torch.Tensor:
        self._still_planned()
        tensor = torch.empty(shape, dtype=dtype, device="meta")
        self.allocations.append((tensor, self.num_bytes))
        self.num_bytes = align(self.num_bytes + tensor.nbytes, self.alignment)
        return tensor

    def materialize(self, storage: torch.Tensor) -> None:
        """The tensors that allocate() gave become views of storage [num_bytes] uint8. The buffer calls it."""
        self._still_planned()
        if storage.dtype != torch.uint8 or storage.numel() != self.num_bytes or not storage.is_contiguous():
            raise WrongValue(
                f"storage: expected a contiguous tensor uint8 [{self.num_bytes}], got {storage.dtype} of shape "
                f"{list(storage.shape)}"
            )
        self.materialized = True
        for tensor, offset in self.allocations:
            view = storage[offset : offset + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            torch.utils.swap_tensors(tensor, view)

    def _still_planned(self) -> None:
        if self.materialized:
            raise WrongUse("BufferAllocator: its tensors have their memory already (a plan serves one buffer)")


def storage_of(name: str, plan: Union[BufferAllocator, int], least: int) -> torch.Tensor:
    """uint8 [bytes], for a plan or of so many bytes, on torch's default device; the plan's tensors are views of it."""
    if isinstance(plan, BufferAllocator):
        plan._still_planned()
    count = plan.num_bytes if isinstance(plan, BufferAllocator) else integer(name, plan, least)
    if count < least or count % ALLOCATION:
        raise WrongValue(f"{name}: expected a multiple of {ALLOCATION} bytes, {least} or more, got {count}")
    storage = torch.empty(count, dtype=torch.uint8)
    if isinstance(plan, BufferAllocator):
        plan.materialize(storage)
    return storage


def lies_in(tensor: torch.Tensor, storage: torch.Tensor) -> bool:
    begin, end = storage.data_ptr(), storage.data_ptr() + storage.nbytes
    return storage.device == tensor.device and begin <= tensor.data_ptr() and tensor.data_ptr() + tensor.nbytes <= end


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)


# ---- sizes ----


def get_num_allocation_alignment() -> int:
    """Bytes of which sizes of buffers are multiples."""
    return ALLOCATION


def get_num_rdma_alignment() -> int:
    """Bytes of which a session's tensors are multiples."""
    return 64


def get_num_tma_alignment() -> int:
    """Bytes of which what ranks copy and reduce is a multiple."""
    return ROW


# ---- calls of other versions ----


def without(call: Any, name: str) -> Any:
    """call of another version of DeepEP, which has no argument of that name: those behind it stand one place
    earlier."""
    parameters = inspect.signature(call).parameters
    place, default = list(parameters).index(name), parameters[name].default

    @functools.wraps(call)
    def made(*given: Any, **options: Any) -> Any:
        if name in options:
            raise TypeError(f"{call.__name__}() got an unexpected keyword argument {name!r}")
        if len(given) > place:
            given = (*given[:place], default, *given[place:])
        return call(*given, **options)

    made.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [one for one in parameters.values() if one.name != name]
    )
    leave_to_python(made)
    return made
