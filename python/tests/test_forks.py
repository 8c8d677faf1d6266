# SPDX-License-Identifier: BSD-3-Clause
"""A child that was forked off while its parent has a buffer, as workers of data loaders are."""

from __future__ import annotations

from programs import run

FORKS = """
    import os, sys, numpy as np, xep
    x, idx = np.ones((3, 64), np.float32), np.zeros((3, 1), np.int64)
    with xep.Group() as group, group.buffer(4, 1, 64, 3, dtype="float32", combine_dtype="float32") as buffer:
        handle = buffer.dispatch(x, idx)
        child = os.fork()
        if child == 0:
            try:
                buffer.dispatch(2 * x, idx)
            except RuntimeError as error:
                sys.exit(0 if "forked off" in str(error) and {through} else 1)  # through both with statements
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert (handle.combine(handle.recv.x) == x).all()
        handle.release()
        with buffer.dispatch(x, idx) as again:
            assert (again.recv.x == 1).all()
"""


def test_a_child_has_an_error_and_ends_as_programs_do():
    """Its interpreter is taken down, destructors and all, and its parent goes on and closes what it has."""
    run(FORKS.format(through="True"), "xep_run", "-n", "2")


def test_a_child_of_a_rank_alone():
    run(FORKS.format(through="repr(handle) and repr(buffer)"))
