# SPDX-License-Identifier: BSD-3-Clause
"""What a tensor is besides its memory: a sign that is not applied, a gradient."""

from __future__ import annotations

import threading

import pytest
from programs import run

import xep

torch = pytest.importorskip("torch")
T, K, E, H = 6, 1, 4, 128


@pytest.fixture(params=["xep", "deep_ep"])
def send(request):
    """A function of rows, and of what is made of the rows received before they return: rows and sums."""
    index, weights = torch.zeros((T, K), dtype=torch.int64), torch.ones((T, K))
    if request.param == "xep":
        with xep.Group() as group, group.buffer(E, K, H, T) as buffer:

            def by_xep(x, answer=torch.clone, **options):
                with buffer.dispatch(x, index, weights) as handle:
                    rows = handle.recv.x.clone()
                    return rows, handle.combine(answer(rows), **options)

            yield by_xep
        return
    deep_ep = pytest.importorskip("deep_ep")
    buffer = deep_ep.Buffer(explicitly_destroy=True)

    def by_deep_ep(x, answer=torch.clone):
        layout = buffer.get_dispatch_layout(index, E)
        rows, *_, handle, _ = buffer.dispatch(x, None, layout[0], layout[1], layout[3], layout[2], index, weights)
        rows = rows.clone()
        return rows, buffer.combine(answer(rows), handle)[0]

    yield by_deep_ep
    buffer.destroy()


def test_a_sign_that_is_not_applied_is_refused(send):
    """Views of conj().imag: their memory alone has the other sign."""
    x = torch.arange(T * H).remainder(99).reshape(T, H).bfloat16()
    negative = torch._neg_view(x)
    assert negative.is_neg() and torch.equal(negative, -x)
    with pytest.raises(ValueError, match=r"x: expected .* without the negative bit, got one with it .resolve_neg"):
        send(negative)
    with pytest.raises(ValueError, match="x: expected .* without the negative bit"):
        send(x, torch._neg_view)
    rows, sums = send(negative.resolve_neg())
    assert torch.equal(rows, -x) and torch.equal(sums, -x)


def test_a_sign_is_seen_where_another_tensor_was(send):
    """An object at the address of one that was sent without a sign, and is gone."""
    x = torch.ones((T, H)).bfloat16()
    sent = x[:]
    send(sent)
    place = id(sent)
    del sent
    negatives = [torch._neg_view(x) for _ in range(1000)]
    (negative,) = (one for one in negatives if id(one) == place)
    with pytest.raises(ValueError, match="x: expected .* without the negative bit"):
        send(negative)


def test_plain_tensors(send):
    """What deep_ep asks of each tensor, at once; of what is not plain it asks Python."""
    from xep import Dtype
    from xep._ext import check_tensor

    def check(*given):
        return check_tensor(lambda *asked: ("asked", *asked[1:]), "x", *given)

    send(torch.ones((T, H)).bfloat16())  # torch is known from then on
    x, any_type = torch.zeros((4, 6)), (1 << 12) - 2
    for right in ((0, 1 << Dtype.FP32, 4, 6), (0, any_type, -1, -1), (-1, any_type, 4, -1)):
        assert check(x, *right) == (0, 4, 6)
    assert check(x[:1, :5], 0, any_type, 1, 5) == (0, 1, 5)
    assert check(x[:0], 0, any_type, 0, 6) == (0, 0, 6) and check(x[0], 0, any_type, 6) == (0, 6)
    for no in (x.t(), x[:, :5], x[::2], x.to("meta"), x.numpy(), x.to_sparse(), None, torch.nn.Parameter(x)):
        assert check(no, 0, any_type, -1, -1)[0] == "asked" and check(no, -1, any_type, -1, -1)[0] == "asked"
    assert check(x, 1, any_type, -1, -1) == ("asked", x, 1, any_type, -1, -1), "it is on no device"
    for wrong in ((1 << Dtype.BF16, -1, -1), (any_type, 3, -1), (any_type, -1)):
        assert check(x, 0, *wrong)[0] == "asked"
    for wrong in ((), (x,), (x, 0), (x, 0, 1), (x, 0, None, 1), (x, None, any_type, 1), (x, 0, any_type, None, 1)):
        with pytest.raises(TypeError):
            check(*wrong)


def test_an_output_with_a_sign_is_refused():
    x = torch.ones((T, H))
    with xep.Group() as group, group.buffer(E, K, H, T, dtype="float32", combine_dtype="float32") as buffer:
        with buffer.dispatch(x, torch.zeros((T, K), dtype=torch.int64)) as handle:
            with pytest.raises(ValueError, match="out: expected .* without the negative bit"):
                handle.combine(x, out=torch._neg_view(torch.zeros_like(x)))


def test_what_is_made_is_in_host_memory(send):
    """Wherever a program wants its own new tensors: DeepEP's init_dist() sets cuda as the default."""
    x = torch.ones((T, H)).bfloat16()
    torch.set_default_device("meta")
    try:
        rows, sums = send(x)
        with xep.Group() as group, group.buffer(E, K, H, T) as buffer:
            with buffer.dispatch(x, torch.zeros((T, K), dtype=torch.int64, device="cpu")) as handle:
                assert handle.recv.expert_rows.device == handle.combine(handle.recv.x).device == x.device
                assert handle.recv.src_begin.tolist() == [0, T]
            with buffer.dispatch(x[:0], torch.zeros((0, K), dtype=torch.int64, device="cpu")) as handle:
                assert handle.recv.x.device == x.device
    finally:
        torch.set_default_device(None)
    assert torch.equal(rows, x) and torch.equal(sums, x)


def test_an_allgather_has_the_device_of_its_caller(monkeypatch):
    """It runs on a thread of its own, and each thread has a current device: NCCL gathers by that."""
    dist = pytest.importorskip("torch.distributed")
    thread, found = threading.local(), []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: getattr(thread, "device", 0))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: setattr(thread, "device", device))
    monkeypatch.setattr(dist, "get_world_size", lambda group: 1)
    monkeypatch.setattr(dist, "get_rank", lambda group: 0)

    def gather(replies, message, group):
        found.append(torch.cuda.current_device())
        replies[0] = message

    monkeypatch.setattr(dist, "all_gather_object", gather)
    monkeypatch.setattr(xep.boot, "_is_process_group", lambda comm: True)
    torch.cuda.set_device(3)
    exchange = xep.boot.exchange_of(object(), None, None, None, 30)
    assert exchange(b"hello") == b"hello" and found == [3]


GRADIENTS = """
import warnings
import torch, xep
caught = []
warnings.showwarning = lambda message, *rest, **more: caught.append(str(message))
warnings.simplefilter("always")
index = torch.zeros((6, 1), dtype=torch.int64)
def send(x):
    with buffer.dispatch(x, index) as handle:
        handle.combine(x)
with xep.Group() as group, group.buffer(4, 2, 32, 6, dtype="float32", combine_dtype="float32") as buffer:
    x = torch.ones((6, 32), requires_grad=True)
    with torch.no_grad():
        send(x)
    send(x.detach())
    assert caught == [], caught
    send(torch.nn.Parameter(x.detach()))
    send(x)
(text,) = caught
assert text.startswith("x requires grad") and "xep.nn has dispatch" in text, text
"""


def test_rows_that_require_grad_are_warned_of_once():
    run(GRADIENTS)
