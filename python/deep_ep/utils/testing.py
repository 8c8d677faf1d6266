# SPDX-License-Identifier: BSD-3-Clause
"""Timing."""

from __future__ import annotations

import time
from typing import Any, Callable, Optional


def bench(
    fn: Callable[[], Any], num_warmups: int = 50, num_tests: int = 50, post_fn: Optional[Callable[[], Any]] = None
) -> tuple[float, float, float]:
    """(mean, least, most) seconds of fn, without the first; post_fn runs after each, untimed."""
    times = []
    for call in range(num_warmups + num_tests):
        begin = time.perf_counter()
        fn()
        elapsed = time.perf_counter() - begin
        if post_fn is not None:
            post_fn()
        if call >= num_warmups:
            times.append(elapsed)
    times = times[1:] or times
    return sum(times) / len(times), min(times), max(times)
