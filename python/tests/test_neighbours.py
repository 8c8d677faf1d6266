# SPDX-License-Identifier: BSD-3-Clause
"""xep in a process with other libraries: its symbols stay local, and theirs do not reach it."""

from __future__ import annotations

import os
import pathlib
import shutil
import textwrap

import pytest
from programs import DISPATCH, run

import xep


def test_symbols_are_local():
    run(
        """
        import ctypes, xep
        for name in ("xep_dispatch", "xep_plugin", "ucp_init"):
            assert not hasattr(ctypes.CDLL(None), name), name
        """
    )


def copy_of_ucx(folder: pathlib.Path) -> pathlib.Path:
    """The same library under another name: another instance, with state of its own, as a wheel would bring."""
    copied = folder / "libucp-other.so"
    shutil.copy(pathlib.Path(xep.library_info().ucx_path).resolve(), copied)
    return copied


def newer_ucx() -> pathlib.Path:
    """Only as the first: after another libucp the loader gives it the libucs that is there already, which lacks what it
    needs."""
    folder = os.environ.get("XEP_TEST_UCX_LIB")
    if not folder:
        pytest.skip("XEP_TEST_UCX_LIB does not name a second UCX")
    return pathlib.Path(folder) / "libucp.so.0"


@pytest.mark.parametrize("order", ["copy first", "newer first", "xep first"])
def test_beside_another_libucp(tmp_path, order):
    other = newer_ucx() if order == "newer first" else copy_of_ucx(tmp_path)
    load = f"ctypes.CDLL({str(other)!r}).ucp_get_version_string.restype"
    steps = [f"import ctypes; {load}", textwrap.dedent(DISPATCH).strip()]
    program = "\n".join(steps[::-1] + [steps[1].split("\n", 1)[1]] if order == "xep first" else steps)
    # which of the two it is bound to is the loader's choice, by soname: xep works with either, and says which
    mine = run(program + "\nprint(xep.library_info().ucx_path)").stdout.split()[-1]
    assert pathlib.Path(mine).resolve() in (other.resolve(), pathlib.Path(xep.library_info().ucx_path).resolve())


@pytest.mark.parametrize("order", ["import torch{0}", "{0}\nimport torch"])
def test_beside_torch(order):
    pytest.importorskip("torch")
    run(order.format(textwrap.dedent(DISPATCH)) + "\nassert torch.ones(3).sum() == 3")


def mpirun() -> list[str]:
    path = shutil.which("mpirun")
    if path is None:
        pytest.skip("no mpirun")
    return [path, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2"]


def test_mpi4py_communicators():
    """Two ways to the same ranks: the communicator, and what mpirun gives PMIx."""
    pytest.importorskip("mpi4py")
    run(
        """
        from mpi4py import MPI
        import numpy as np, xep
        world = MPI.COMM_WORLD
        for options in (dict(comm=world), dict()):
            with xep.Group(**options) as group:
                assert (group.rank, group.nranks) == (world.rank, world.size) == (world.rank, 2)
                assert group.boot == ("callback" if options else "pmix")
                with group.buffer(2, 2, 8, 1, dtype="int32", combine_dtype="float32") as buffer:
                    x = np.full((1, 8), group.rank, np.int32)
                    with buffer.dispatch(x, np.array([[0, 1]])) as handle:
                        assert handle.recv.x[:, 0].tolist() == [0, 1]
        half = world.Split(world.rank)
        with xep.Group(half) as group:
            assert group.nranks == 1
        """,
        *mpirun(),
        OMPI_MCA_btl_vader_single_copy_mechanism="none",
    )
