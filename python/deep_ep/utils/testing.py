# SPDX-License-Identifier: BSD-3-Clause
"""Timing."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from typing import Any, Callable, ContextManager, Iterator, Optional, Sequence, Union

import torch

_CACHE_BYTES = 256 << 20  # that flush the cache of a CUDA device
_CALL = "deep_ep.bench_kineto"


def flush_l2_cache(enabled: bool = True) -> None:
    """Puts other bytes into the caches: those of the CUDA device, where the default device is one, else twice what the
    last-level cache of this processor holds."""
    if enabled:
        cuda = torch.get_default_device().type == "cuda"
        size = _CACHE_BYTES if cuda else min(_CACHE_BYTES, 2 * _last_level_bytes())
        torch.empty(size // 4, dtype=torch.int32).zero_()


def _last_level_bytes() -> int:
    for level in ("SC_LEVEL4_CACHE_SIZE", "SC_LEVEL3_CACHE_SIZE", "SC_LEVEL2_CACHE_SIZE"):
        with contextlib.suppress(ValueError, OSError):
            size = os.sysconf(level)
            if size > 0:
                return size
    return 32 << 20


def bench(
    fn: Callable[[], Any],
    num_warmups: int = 30,
    num_tests: int = 30,
    post_fn: Optional[Callable[[], Any]] = None,
    flush_l2: bool = True,
) -> tuple[float, float, float]:
    """(mean, least, most) seconds of fn, without the first; post_fn runs after each, untimed, and flush_l2_cache()
    before each. Of a program that uses a CUDA device until that has done what fn enqueued."""
    times = []
    for call in range(num_warmups + num_tests):
        flush_l2_cache(flush_l2 and call >= num_warmups)
        _settle()
        begin = time.perf_counter()
        fn()
        _settle()
        elapsed = time.perf_counter() - begin
        if post_fn is not None:
            post_fn()
        if call >= num_warmups:
            times.append(elapsed)
    times = times[1:] or times
    return sum(times) / len(times), min(times), max(times)


def _settle() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def bench_kineto(
    fn: Callable[[], Any],
    kernel_names: Union[str, tuple[str, ...]],
    num_tests: int = 30,
    suppress_kineto_output: bool = False,
    trace_path: Optional[str] = None,
    flush_l2: bool = True,
    barrier_comm_profiling: bool = False,
    num_kernels_per_period: int = 1,
    barrier: Optional[Callable[[], Any]] = None,
) -> Any:
    """Mean seconds of each kernel that fn runs: of the events of torch's profiler whose names contain kernel_names, on
    the processor and on a CUDA device. What DeepEP's kernels do is not kernels of their own here: of a name without an
    event it is the time of fn.

    barrier_comm_profiling: barrier() before each call, without it that of torch.distributed. num_kernels_per_period:
    how many events of a name there are in each call; of more than one the means are a list, in their order.
    trace_path: of a Chrome trace. EP_USE_NVIDIA_TOOLS=1: nothing is measured, and all is 1.
    """
    names = (kernel_names,) if isinstance(kernel_names, str) else kernel_names
    if int(os.environ.get("EP_USE_NVIDIA_TOOLS", "0")):
        return 1 if isinstance(kernel_names, str) else (1,) * len(names)
    fn()
    _settle()
    apart = barrier_comm_profiling and not int(os.environ.get("EP_DISABLE_BARRIER_PROFILING", "0"))
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_initialized():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    quiet: ContextManager[Any] = suppress_stdout_stderr() if suppress_kineto_output else contextlib.nullcontext()
    with quiet, torch.profiler.profile(activities=activities) as profiler:
        for _ in range(num_tests):
            flush_l2_cache(flush_l2)
            if apart:
                (barrier or torch.distributed.barrier)()
            with torch.profiler.record_function(_CALL):
                fn()
            _settle()
    if trace_path is not None:
        profiler.export_chrome_trace(trace_path)
    found = [_means(profiler, name, num_kernels_per_period) for name in names]
    return found[0] if isinstance(kernel_names, str) else found


def _means(profiler: Any, name: str, period: int) -> Union[float, list[float]]:
    events = sorted((event.time_range.start, _seconds(event)) for event in profiler.events() if name in event.name)
    if not events:
        times = [_seconds(event) for event in profiler.events() if event.name == _CALL]
        return sum(times) / len(times)
    times = [seconds for _, seconds in events]
    if period == 1:
        return sum(times) / len(times)
    if len(times) % period:
        raise ValueError(f"num_kernels_per_period: expected a divisor of {len(times)}, the events of {name}")
    return [sum(times[i::period]) * period / len(times) for i in range(period)]


def _seconds(event: Any) -> float:
    return float(event.time_range.elapsed_us() or 1) / 1e6


@contextlib.contextmanager
def suppress_stdout_stderr() -> Iterator[None]:
    """Nothing of this process is written to its first two files."""
    kept: Sequence[int] = [os.dup(1), os.dup(2)]
    sys.stdout.flush()
    sys.stderr.flush()
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, file in enumerate(kept, 1):
            os.dup2(file, number)
            os.close(file)


def parse_num_bytes(text: str) -> int:
    """Bytes, as "64M" or "512k" or "1.5 GiB" say them: k, m, g and t are powers of 1024."""
    match = re.fullmatch(r"\s*([0-9.]+)\s*([kmgt])?(?:i?b)?\s*", text, re.IGNORECASE)
    try:
        number = float(match[1]) if match else 0.0
    except ValueError:
        number = 0.0
    found = int(number * 1024 ** (" kmgt".index(match[2].lower()) if match and match[2] else 0))
    if found <= 0:
        raise ValueError(f"bytes: expected a number above 0, such as 1048576, 512K or 64M, got {text!r}")
    return found
