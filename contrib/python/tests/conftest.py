# SPDX-License-Identifier: BSD-3-Clause
"""Test files test_*.py run in one process; ranks_*.py on the ranks of a launcher, each test on all of them together."""

from __future__ import annotations

import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import xep  # noqa: E402


def launched() -> bool:
    return "PMIX_RANK" in os.environ or "TORCHELASTIC_RUN_ID" in os.environ


def pytest_ignore_collect(collection_path: pathlib.Path) -> bool | None:
    """Ranks of a launcher do the tests of ranks, a process of its own the others."""
    name = collection_path.name
    if name.startswith("ranks_") and not launched():
        return True
    if name.startswith("test_") and launched():
        return True
    return None


def process_group():
    """Under torchrun that of gloo, else None: PMIx."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo")
    return dist.group.WORLD


@pytest.fixture
def group():
    """A group of its own for each test, so that one that fails leaves no ranks out of step behind."""
    with xep.Group(process_group(), timeout=30) as made:
        yield made


@pytest.fixture
def buffer_of(group):
    """deep_ep.Buffer over all ranks, destroyed at the end."""
    deep_ep = pytest.importorskip("deep_ep", reason="torch is not installed")
    made = []

    def make(**options):
        options.setdefault("explicitly_destroy", True)
        made.append(deep_ep.Buffer(process_group(), timeout=30, **options))
        return made[-1]

    yield make
    for buffer in made:
        if buffer.is_available() and buffer.explicitly_destroy:
            buffer.destroy()
