# SPDX-License-Identifier: BSD-3-Clause
"""Test files test_*.py run in one process; ranks_*.py on the ranks of a launcher, each test on all of them together."""

from __future__ import annotations

import functools
import importlib
import os
import pathlib
import shutil
import sys
import tempfile
import threading
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))  # after what PYTHONPATH says

import cuda_memory  # noqa: E402
import meeting  # noqa: E402

import xep  # noqa: E402


def launched() -> bool:
    return "PMIX_RANK" in os.environ or "TORCHELASTIC_RUN_ID" in os.environ


def job() -> str:
    """Names what all ranks of this run share, and no others do. (Ranks of several runs may have one parent.)"""
    run = os.environ.get("PMIX_NAMESPACE") or os.environ.get("TORCHELASTIC_RUN_ID")
    return f"{run}-{os.getppid()}"


def pytest_ignore_collect(collection_path: pathlib.Path) -> bool | None:
    """Ranks of a launcher do the tests of ranks, a process of its own the others."""
    name = collection_path.name
    if name.startswith("ranks_") and not launched():
        return True
    if name.startswith("test_") and launched():
        return True
    return None


@functools.cache
def communicator():
    """How the ranks of this run find one another, without PMIx, of which bootstrap is tested apart: once for all
    tests."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        return dist.group.WORLD
    with xep.Group() as group:
        return meeting.Meeting(f"xep-tests-{os.environ['PMIX_NAMESPACE']}", group.rank, group.nranks)


def meet() -> None:
    """A barrier in which no rank makes progress with what xep has in flight."""
    if isinstance(communicator(), meeting.Meeting):
        communicator().allgather(b"")
    else:
        communicator().barrier().wait()


def all_say(so: bool) -> bool:
    """Whether it is so on every rank."""
    if isinstance(communicator(), meeting.Meeting):
        return all(part == b"1" for part in communicator().allgather(b"1" if so else b"0"))
    told = [False] * communicator().size()
    importlib.import_module("torch.distributed").all_gather_object(told, so)
    return all(told)


def until_clear(attempt) -> None:
    """A machine under load keeps ranks away, and they are blamed with reason. So attempt(delay), which returns what is
    not as it should be where one rank is late by delay, is made again with a rank that is later, until load is nothing
    beside it; what is wrong with the library is wrong every time."""
    for delay in (0.04, 0.12, 0.36, 1.08, 3.24):
        wrong = attempt(delay)
        if all_say(wrong is None):
            return
    assert wrong is None, wrong


class Bystander:
    """A thread beside each rank's calls. Rank 0 comes late to them: when the threads of all others have run while
    their ranks were waiting in the call, or after 20 seconds; then those that have not run say so."""

    ENOUGH = 5

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.turn, self.ran, self.inside, self.over = 0, 0, False, False
        self.folder = pathlib.Path(tempfile.gettempdir(), f"xep-bystander-{job()}")
        self.folder.mkdir(exist_ok=True)
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        while not self.over:
            time.sleep(0.001)
            self.ran += self.inside
            if self.ran == self.ENOUGH:
                (self.folder / f"{self.turn}.{self.rank}").touch()

    def __enter__(self) -> Bystander:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over = True
        self.thread.join()
        meet()
        if self.rank == 0:
            shutil.rmtree(self.folder)
        meet()

    def beside(self, call):
        """What the call returns."""
        self.turn += 1
        if self.rank == 0:
            end = time.monotonic() + 20
            while len(list(self.folder.glob(f"{self.turn}.*"))) < self.size - 1 and time.monotonic() < end:
                time.sleep(0.002)
            return call()
        self.ran, self.inside = 0, True
        result = call()
        self.inside = False
        assert self.ran >= self.ENOUGH, "no other thread has run while this rank waited"
        return result


def pytest_unconfigure() -> None:
    if communicator.cache_info().currsize and isinstance(communicator(), meeting.Meeting):
        communicator().close()


@pytest.fixture
def group():
    """A group of its own for each test, so that one that fails leaves no ranks out of step behind."""
    with xep.Group(communicator(), timeout=30) as made:
        yield made


@pytest.fixture(autouse=True)
def runtime_has_no_error():
    """Whatever a test has tried, errors too: the next one who asks the CUDA runtime is told of none."""
    yield
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
        assert cuda_memory.runtime_error() == 0, "an error of CUDA was left behind"


@pytest.fixture
def driver(group):
    """Of the rank's CUDA device, or the stand-in for one."""
    found = cuda_memory.driver_of(group.rank)
    if found is None:
        pytest.skip("there is no CUDA device")
    return found


@pytest.fixture
def buffer_of():
    """deep_ep.Buffer over all ranks, with a group of its own, destroyed at the end."""
    deep_ep = pytest.importorskip("deep_ep", reason="torch is not installed")
    made = []

    def make(**options):
        options.setdefault("explicitly_destroy", True)
        made.append(deep_ep.Buffer(communicator(), timeout=30, **options))
        return made[-1]

    yield make
    for buffer in made:
        if buffer.is_available() and buffer.explicitly_destroy:
            buffer.destroy()


@pytest.fixture
def elastic():
    """ElasticBuffers over all ranks, destroyed at the end. What torch.empty gives is NaN or the largest integer: by a
    call that does not import torch's compiler, as use_deterministic_algorithms() does."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    deep_ep, most = importlib.import_module("deep_ep"), importlib.import_module("elastic_world").MOST
    made = []

    def make(**options):
        options = dict(dict(num_max_tokens_per_rank=most, explicitly_destroy=True, timeout=30), **options)
        made.append(deep_ep.ElasticBuffer(communicator(), **options))
        return made[-1]

    torch.set_deterministic_debug_mode("error")
    assert torch.utils.deterministic.fill_uninitialized_memory and bool(torch.empty(9).isnan().all())
    yield make
    torch.set_deterministic_debug_mode("default")
    for buffer in made:
        buffer.destroy()


@pytest.fixture(params=["numpy", "torch", "tensors by Python"])
def kind(request, monkeypatch):
    """Of arrays; the last: tensors as of a torch without DLPack's exchange interface."""
    if request.param == "numpy":
        yield request.param
        return
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if request.param != "torch":
        monkeypatch.delattr(torch.Tensor, "__dlpack_c_exchange_api__", raising=False)
    xep.arrays.meet_torch()
    yield request.param
    monkeypatch.undo()
    xep.arrays.meet_torch()


def as_kind(kind: str, array):
    """The array as it is, strides and all, or as a tensor."""
    if kind == "numpy" or array is None:
        return array
    import torch

    return torch.from_numpy(array)
