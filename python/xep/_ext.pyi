# SPDX-License-Identifier: BSD-3-Clause
"""The compiled module, for type checkers; its own docstrings say what each is."""

from typing import Any, Callable, Generic, Iterator, Optional, Sequence, TypedDict, TypeVar

import numpy as np
from typing_extensions import Unpack

from .dtypes import Dtype, Quant, Rows

Result = TypeVar("Result")
Combined = Any  # an array, or two with topk_weights

def load(path: str) -> None: ...
def version() -> str: ...
def library_info() -> tuple[str, str, str, str, str, str, str, str]: ...
def config() -> list[tuple[str, str, str, str]]: ...
def modes() -> list[tuple[str, str, str, Optional[str]]]: ...
def set_log(fn: Optional[Callable[[int, str], Any]]) -> None: ...
def trace_begin() -> int: ...
def trace_end(name: str, begin: int) -> None: ...
def use_ml_dtypes(bfloat16: np.dtype, float8_e4m3fn: np.dtype, float8_e5m2: np.dtype) -> None: ...
def use_torch(tensor: type, empty: Any, cpu: Any, natives: tuple, exchange: Any) -> None: ...
def expert_range(experts: int, nranks: int, rank: int) -> tuple[int, int]: ...
def layout(
    topk_idx: Any, experts: int, nranks: int, ranks_per_node: int, owners: Optional[Sequence[int]]
) -> tuple[Any, Any, Any, Any]: ...
def expert_slots(topk_idx: Any, counts: list[int], alignment: int, slots: Any) -> None: ...
def expert_spread(to: Any, source: Any, slots: Any, counts: list[int], alignment: int, each: bool) -> None: ...
def expert_sum(to: Any, source: Any, slots: Any) -> None: ...
def expert_gather(to: Any, source: Any, slots: Any) -> None: ...
def buffer_size(
    nranks: int, experts: int, topk: int, hidden: int, tokens: int, **options: Any
) -> tuple[int, int, int, int]: ...

class DispatchOptions(TypedDict, total=False):
    scales: Any
    cached: Optional[Handle]
    capacity: int
    expert_alignment: int
    dtype: Any
    quant: Quant | str
    quant_scale: float
    arrangement: Rows | str | None
    scales_by_column: bool
    send_weights: bool
    in_place: bool
    counts_there: bool
    expert_stats: Any
    wait_ns: Any
    after: Optional[Request]
    timeout: Optional[float]
    stream: Any
    pieces: bool

class CombineOptions(TypedDict, total=False):
    out: Any
    topk_weights: Any
    weights: Any
    bias: Any
    out_weights: Any
    dtype: Any
    logfmt: bool
    wait_ns: Any
    missing: Any
    after: Optional[Request]
    timeout: Optional[float]
    stream: Any

class NextOptions(TypedDict, total=False):
    topk_weights: Any
    dtype: Any
    outputs: bool
    wait_ns: Any
    timeout: Optional[float]

class SlotMemory: ...

class DeviceArray:
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Dtype
    device: int
    nbytes: int
    __cuda_array_interface__: dict[str, Any]
    def __len__(self) -> int: ...
    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Optional[bool] = None
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

class Group:
    rank: int
    nranks: int
    node: int
    nnodes: int
    boot: str
    _open: bool
    _inherited: bool
    def barrier(self) -> None: ...
    def allgather(self, data: bytes) -> list[bytes]: ...
    def _create(
        self, allgather: Optional[Callable[[bytes], Optional[bytes]]], rank: int, nranks: int, timeout: Optional[float]
    ) -> None: ...
    def _peer(self, rank: int) -> tuple[int, bool, str]: ...
    def mask_set(self, rank: int) -> None: ...
    def _mask_query(self) -> list[tuple[int, int, int]]: ...
    def _shrink(self, group: Group, timeout: Optional[float], least: int) -> list[int]: ...
    def _grow(
        self, group: Group, path: Any, publish: Optional[Callable[[Optional[bytes]], Any]], newcomers: int,
        timeout: Optional[float], anywhere: bool,
    ) -> None: ...  # fmt: skip
    def _join(
        self, path: Any, lookup: Optional[Callable[[], Optional[bytes]]], timeout: Optional[float]
    ) -> None: ...
    def _abort(self) -> None: ...
    def _leave(self) -> None: ...
    def _destroy(self) -> None: ...

class Buffer:
    experts: int
    topk: int
    hidden: int
    tokens: int
    scales: int
    slots: int
    local_experts: int
    _dtype: int
    _combine_dtype: int
    _base: int
    _bytes: int
    _buffer: Optional[int]
    def dispatch(
        self, x: Any, topk_idx: Any = None, topk_weights: Any = None, **options: Unpack[DispatchOptions]
    ) -> Handle: ...
    def dispatch_async(
        self, x: Any, topk_idx: Any = None, topk_weights: Any = None, **options: Unpack[DispatchOptions]
    ) -> Request[Handle]: ...
    def layout(
        self,
        topk_idx: Any,
        tokens_per_rank: Any = None,
        tokens_per_expert: Any = None,
        token_in_rank: Any = None,
        *,
        tokens_per_node: Any = None,
        ranks_per_node: int = 0,
        stream: Any = None,
    ) -> None: ...
    def reset(self) -> None: ...
    def memory(self) -> SlotMemory: ...
    def send_memory(self, dtype: Any = None, torch: bool = False) -> Any: ...
    def slots_held(self) -> int: ...
    def slots_viewed(self) -> int: ...
    def arrays_alive(self) -> int: ...
    def arrays_left(self) -> int: ...
    def _create(self, group: Group, experts: int, topk: int, hidden: int, tokens: int, **options: Any) -> None: ...
    def _follow(self, old: Optional[Buffer], group: Group) -> None: ...
    def _query(self) -> tuple[str, int, int, int, int, int, int, int, int]: ...
    def _waits(self, kind: int) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]: ...
    def _abort(self) -> None: ...
    def _leave(self) -> None: ...
    def _destroy(self) -> None: ...

class Handle:
    buffer: Any
    tokens: int
    topk: int
    hidden: int
    nranks: int
    recv: Received
    rows: int
    slot: int
    _memory: Optional[SlotMemory]
    def numpy(self) -> Received: ...
    def torch(self) -> Received: ...
    def combine(self, x: Any = None, **options: Unpack[CombineOptions]) -> Combined: ...
    def combine_async(self, x: Any = None, **options: Unpack[CombineOptions]) -> Request[Combined]: ...
    def combine_input(self, dtype: Any = None) -> Any: ...
    def next(self, x: Any = None, **options: Unpack[NextOptions]) -> Handle: ...
    def next_async(self, x: Any = None, **options: Unpack[NextOptions]) -> Request[Handle]: ...
    def give(self, x: Any, topk_weights: Any = None, dtype: Any = None) -> None: ...
    def pieces(self, *, outputs: bool = True, timeout: Optional[float] = None) -> Iterator[Received]: ...
    def gather(self, out: Any = None) -> Any: ...
    def release(self) -> None: ...
    def __enter__(self) -> Handle: ...
    def __exit__(self, *exception: object) -> None: ...

class Received:
    rows: int
    capacity: int
    hidden: int
    topk: int
    first_expert: int
    local_experts: int
    experts: tuple[int, ...]
    arrangement: Rows
    dtype: Dtype
    quant: Quant
    x: Any
    topk_idx: Any
    topk_weights: Any
    scales: Any
    src_token: Any
    row_addresses: Any
    src_begin: Any
    rank_rows: Any
    expert_rows: Any
    expert_begin: Any
    expert_count: Any
    pair_begin: Any
    pair_count: Any
    out: Any
    pieces: int
    piece: int
    all_rows: int
    first_row: int
    _handle: Handle
    def list_expert_rows(self) -> list[int]: ...

class Request(Generic[Result]):
    buffer: Any
    result: Result
    def done(self) -> bool: ...
    def wait(self) -> Result: ...
    def wait_counts(self) -> Result: ...
