# SPDX-License-Identifier: BSD-3-Clause
"""What is left to do when an operation has ended."""

from __future__ import annotations

import contextlib
from typing import Any, Optional

import torch

import xep

from ._check import leave_to_python


class Ending:
    """Done once: by a hook, an event, or the call itself."""

    hooked = False  # by a hook
    handle: Any = None  # that lasts until then
    stream: Any = None  # of a CUDA device, on which it is done

    def __init__(self, request: xep.Request) -> None:
        self.request: Optional[xep.Request] = request

    def wait(self) -> None:
        if self.request is None:
            return
        self.request.wait()
        self.request = None
        with torch.cuda.stream(self.stream) if self.stream is not None else contextlib.nullcontext():
            self.fill()
        self.handle = None

    def fill(self) -> None:
        """Results that are not where the library put them."""


leave_to_python(Ending.wait)  # a hook
