# SPDX-License-Identifier: BSD-3-Clause
"""Programs in processes of their own."""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import socket
import subprocess
import sys
import textwrap
from typing import Optional

import xep

SLOW = int(os.environ.get("XEP_TEST_SLOW", "1"))  # times longer than usual a program may take

DISPATCH = """
    import numpy as np, xep
    with xep.Group() as group, group.buffer(4, 2, 64, 8, dtype="float32", combine_dtype="float32") as buffer:
        x = np.ones((8, 64), np.float32)
        with buffer.dispatch(x, np.zeros((8, 1), np.int64)) as handle:
            assert (handle.combine(handle.recv.x) == x).all()
"""


def run(
    program: str, *launcher: str, python: str = sys.executable, **variables: Optional[str]
) -> subprocess.CompletedProcess:
    """It must succeed. variables: of the environment; None: not set."""
    changed = {"PYTHONPATH": ":".join(sys.path), "XEP_LIBRARY": xep.library_info().library_path, **variables}
    environment = {name: value for name, value in {**os.environ, **changed}.items() if value is not None}
    command = [*launcher, python, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90 * SLOW)
    assert done.returncode == 0, done.stderr + done.stdout
    return done


def free_ports(count: int) -> int:
    """The first of so many in a row. They are none that the kernel hands out by itself: such a one may be somebody's
    by the time that a program, seconds later, listens."""
    handed_out = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(100):
        first = random.randrange(10000, handed_out - count)
        with contextlib.ExitStack() as probes, contextlib.suppress(OSError):
            for port in range(first, first + count):
                probes.enter_context(socket.socket()).bind(("", port))
            return first
    raise OSError(f"there are no {count} free ports in a row")
