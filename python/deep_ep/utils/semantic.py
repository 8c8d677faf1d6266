# SPDX-License-Identifier: BSD-3-Clause
"""Defaults, and caches of methods."""

from __future__ import annotations

import functools
import weakref
from typing import Any, Callable, Optional, TypeVar

Value = TypeVar("Value")


def value_or(value: Optional[Value], default: Value) -> Value:
    """value, where it is not None."""
    return default if value is None else value


def weak_lru(maxsize: Optional[int] = 128, typed: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """functools.lru_cache for methods: a cache for each object, which goes when the object does."""

    def decorate(method: Callable[..., Any]) -> Callable[..., Any]:
        caches: weakref.WeakKeyDictionary[Any, Callable[..., Any]] = weakref.WeakKeyDictionary()

        @functools.wraps(method)
        def call(self: Any, *arguments: Any, **options: Any) -> Any:
            cached = caches.get(self)
            if cached is None:
                here = weakref.ref(self)
                cached = caches[self] = functools.lru_cache(maxsize, typed)(lambda *a, **o: method(here(), *a, **o))
            return cached(*arguments, **options)

        return call

    return decorate
