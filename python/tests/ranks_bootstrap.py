# SPDX-License-Identifier: BSD-3-Clause
"""Ways to find the other ranks: PMIx, callbacks, communicators, process groups; and what their errors become."""

from __future__ import annotations

import os
import tempfile
import threading

import conftest
import numpy as np
import pytest

import xep


@pytest.fixture
def base():
    """A group that has what a bootstrap needs, over which others are made."""
    with xep.Group(conftest.communicator(), timeout=30) as made:
        yield made


def exchange_rows(group: xep.Group) -> None:
    """Every rank sends a row to each rank."""
    nranks = group.nranks
    with group.buffer(nranks, nranks, 8, 1, dtype="int32", combine_dtype="float32") as buffer:
        x = np.full((1, 8), group.rank, np.int32)
        with buffer.dispatch(x, np.arange(nranks, dtype=np.int64).reshape(1, -1)) as handle:
            assert handle.recv.x[:, 0].tolist() == list(range(nranks))


def test_environment():
    """Without arguments: PMIx under its launchers."""
    if "PMIX_RANK" not in os.environ:
        pytest.skip("no PMIx here")
    with xep.Group() as group:
        assert group.boot == "pmix"
        exchange_rows(group)


def test_allgather(base):
    with xep.Group(allgather=base.allgather, rank=base.rank, nranks=base.nranks) as group:
        assert (group.boot, group.rank, group.nranks) == ("callback", base.rank, base.nranks)
        exchange_rows(group)


def test_communicator(base):
    class Communicator:
        rank, size = base.rank, base.nranks
        allgather = staticmethod(base.allgather)

    with xep.Group(Communicator()) as group:
        exchange_rows(group)


def test_process_group():
    dist = pytest.importorskip("torch").distributed
    made_here = not dist.is_initialized() and "TORCHELASTIC_RUN_ID" not in os.environ
    if made_here:
        pytest.skip("only under torchrun")
    conftest.communicator()
    with xep.Group(dist.group.WORLD) as group:
        assert group.boot == "callback"
        exchange_rows(group)


def test_process_group_without_torchrun(base):
    dist = pytest.importorskip("torch").distributed
    if "TORCHELASTIC_RUN_ID" in os.environ:
        pytest.skip("torchrun has made it")
    met = f"{tempfile.gettempdir()}/xep-gloo-{conftest.job()}"
    dist.init_process_group("gloo", init_method=f"file://{met}", rank=base.rank, world_size=base.nranks)
    try:
        half = [dist.new_group([rank]) for rank in range(base.nranks)][base.rank]
        with xep.Group(dist.group.WORLD) as group, xep.Group(half) as alone:
            exchange_rows(group)
            assert (alone.rank, alone.nranks) == (0, 1)
            exchange_rows(alone)
        base.barrier()
    finally:
        dist.destroy_process_group()


def test_one_error_is_everyones(base):
    """Once, at one rank, before it has sent anything: the others hear of it at once."""
    calls = []

    def allgather(data: bytes) -> list[bytes]:
        calls.append(len(data))
        if base.rank == base.nranks - 1 and len(calls) == 1:
            raise LookupError("no phone book")
        return base.allgather(data)

    with pytest.raises((LookupError, xep.BootError)) as caught:
        xep.Group(allgather=allgather, rank=base.rank, nranks=base.nranks, timeout=20)
    if base.rank == base.nranks - 1:
        assert isinstance(caught.value, LookupError) and isinstance(caught.value.__cause__, xep.XepError)
    else:
        assert f"allgather of rank {base.nranks - 1} raised LookupError: no phone book" in str(caught.value)
    base.barrier()


def test_only_while_the_group_is_made(base):
    """Then it has connections of its own: an allgather that does not work any more harms nobody."""
    over = threading.Event()

    def allgather(data: bytes) -> list[bytes]:
        if over.is_set():
            raise LookupError("no phone book")
        return base.allgather(data)

    with xep.Group(allgather=allgather, rank=base.rank, nranks=base.nranks, timeout=20) as group:
        over.set()
        exchange_rows(group)
        assert group.allgather(bytes([base.rank])) == [bytes([rank]) for rank in range(base.nranks)]


def test_persistent_error_is_a_timeout_elsewhere(base):
    """A rank that cannot even say so: the others' deadline ends their wait."""
    if base.nranks == 1:
        pytest.skip("needs several ranks")
    helpers, over = [], threading.Event()

    def allgather(data: bytes) -> list[bytes]:
        if base.rank == 0:
            raise LookupError("no phone book")
        helpers.append(threading.current_thread())
        over.wait(30)  # as one that waits for rank 0
        raise OSError("nobody came")

    with pytest.raises(LookupError if base.rank == 0 else TimeoutError) as caught:
        xep.Group(allgather=allgather, rank=base.rank, nranks=base.nranks, timeout=0.5)
    assert all(helper.is_alive() for helper in helpers), "nobody has waited for it"
    over.set()
    if base.rank != 0:
        assert f"the allgather of rank {base.rank} did not return within 0.5 s" in str(caught.value)
    for helper in helpers:
        helper.join()
    base.barrier()


@pytest.mark.parametrize(
    "reply, text",
    [
        (lambda parts: parts[:-1], "allgather: expected .* replies, one from each rank"),
        (lambda parts: [part[:-1] for part in parts], "allgather: expected .* bytes from rank 0"),
        (lambda parts: None, "object of type 'NoneType' has no len"),
    ],
)
def test_wrong_replies(base, reply, text):
    with pytest.raises((ValueError, TypeError), match=text):
        xep.Group(allgather=lambda data: reply(base.allgather(data)), rank=base.rank, nranks=base.nranks)
    base.barrier()


def test_wrong_order(base):
    if base.nranks == 1:
        pytest.skip("needs several ranks")
    with pytest.raises(xep.XepError):
        xep.Group(allgather=lambda data: base.allgather(data)[::-1], rank=base.rank, nranks=base.nranks)
    base.barrier()


def test_interrupt_is_not_swallowed(base):
    def allgather(data: bytes) -> list[bytes]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        xep.Group(allgather=allgather, rank=base.rank, nranks=base.nranks)
    base.barrier()


def test_the_interpreter_runs_while_ranks_wait(base):
    """The GIL is free in a wait: another thread counts while rank 0 is late."""
    if base.nranks == 1:
        pytest.skip("needs several ranks")
    with base.buffer(4, 1, 8, 1) as buffer, conftest.Bystander(base.rank, base.nranks) as bystander:
        x, idx = np.zeros((1, 8), np.uint16), np.zeros((1, 1), np.int64)
        bystander.beside(lambda: buffer.dispatch(x, idx)).release()
