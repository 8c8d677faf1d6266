# SPDX-License-Identifier: BSD-3-Clause
"""Calls that are like earlier ones, and calls that are nearly so: the compiled module repeats what Python has checked, and
must notice whatever differs. Each form of a call comes several times, with other values in other arrays."""

from __future__ import annotations

import gc
import os
import threading
import time

import numpy as np
import oracle
import pytest
import xep
from conftest import meet
from xep import _hot

EXPERTS, TOPK, HIDDEN, TOKENS, SCALES = 6, 3, 16, 9, 4
KINDS = ["numpy", "torch"]


@pytest.fixture
def buffer(group):
    with group.buffer(EXPERTS, TOPK, HIDDEN, TOKENS, dtype="float32", combine_dtype="float32", scales=SCALES, slots=3) as made:
        yield made


@pytest.fixture(params=KINDS)
def kind(request):
    if request.param == "torch":
        pytest.importorskip("torch", reason="torch is not installed")
    return request.param


def as_kind(kind: str, array):
    """The array as it is, strides and all, or as a tensor."""
    if kind == "numpy" or array is None:
        return array
    import torch

    return torch.from_numpy(array)


def strided(rng, array: np.ndarray) -> np.ndarray:
    """The same rows: dense, or in a wider array."""
    if rng.random() < 0.5:
        return array.copy()
    wide = np.full((array.shape[0], array.shape[1] + 8), -77, array.dtype)
    wide[:, : array.shape[1]] = array
    return wide[:, : array.shape[1]]


def tokens_of(turn: int, rank: int) -> int:
    return [0, 1, 1, 2, 5, TOKENS][np.random.default_rng([turn, rank, 7]).integers(6)]


def scales_of(turn: int, rank: int, tokens: int) -> np.ndarray:
    return (np.arange(tokens * SCALES, dtype=np.float32) + 1000 * rank + turn).reshape(tokens, SCALES)


class Form:
    """What one form of a call has in common: for all ranks, and for this one."""

    def __init__(self, number: int, rank: int) -> None:
        rng = np.random.default_rng([number, 1])
        self.topk = int(rng.choice([1, TOPK]))
        self.index = rng.choice([np.int64, np.int32])
        self.weighted, self.scaled, self.answered = rng.random(3) < [0.7, 0.4, 0.5]
        self.rng = np.random.default_rng([number, 2, rank])
        self.by_column, self.zero_copy, self.given, self.given_weights = self.rng.random(4) < 0.5
        self.biases = int(self.rng.integers(3))
        self.alignment = int(self.rng.choice([1, 4]))
        self.capacity = int(self.rng.choice([0, 500]))


def send(buffer, form, kind, turn, sent):
    mine = sent[buffer.group.rank]
    options = {}
    if form.scaled:
        scales = scales_of(turn, buffer.group.rank, len(mine.x))
        options["scales"] = as_kind(kind, np.asfortranarray(scales) if form.by_column else scales)
    if form.alignment != 1:
        options["expert_alignment"] = form.alignment
    if form.capacity:
        options["capacity"] = min(form.capacity, buffer.info().recv_rows)
    weights = strided(form.rng, mine.topk_weights) if form.weighted else None
    arrays = strided(form.rng, mine.x), strided(form.rng, mine.topk_idx.astype(form.index)), weights
    return buffer.dispatch(*[as_kind(kind, array) for array in arrays], **options)


def check_rows(buffer, handle, form, turn, sent) -> None:
    want = oracle.received(sent, buffer.group.rank, EXPERTS)
    recv, rows = handle.recv, len(want.sources)
    assert recv.rows == rows and handle.tokens == len(sent[buffer.group.rank].x) and handle.topk == form.topk
    np.testing.assert_array_equal(recv.x[:rows], want.x)
    np.testing.assert_array_equal(recv.topk_idx[:rows], want.topk_idx)
    np.testing.assert_array_equal(recv.src_token[:rows], [token for _, token in want.sources])
    assert np.asarray(recv.topk_idx).dtype == form.index
    if form.weighted:
        np.testing.assert_array_equal(recv.topk_weights[:rows], want.topk_weights)
    else:
        assert recv.topk_weights is None
    if form.scaled:
        found = [scales_of(turn, source, len(sent[source].x))[token] for source, token in want.sources]
        np.testing.assert_array_equal(recv.scales[:rows], np.array(found, np.float32).reshape(-1, SCALES))
    np.testing.assert_array_equal(recv.expert_rows, [-(-n // form.alignment) * form.alignment for n in want.experts])


def answer(buffer, handle, form, kind, sent):
    """Combine of twice what was received."""
    mine, recv = sent[buffer.group.rank], handle.recv
    options, x = {}, None
    if form.zero_copy:
        np.multiply(recv.x[: recv.rows], 2, out=np.asarray(handle.combine_input()))
    else:
        x = as_kind(kind, strided(form.rng, np.asarray(recv.x) * np.float32(2)))
    if form.weighted and form.answered:
        options["topk_weights"] = recv.topk_weights
        if form.given_weights:
            options["out_weights"] = as_kind(kind, np.full((handle.tokens, form.topk), -9, np.float32))
    if form.biases:
        bias = as_kind(kind, strided(form.rng, mine.x))
        options["bias"] = bias if form.biases == 1 else (bias, bias)
    if form.given:
        options["out"] = as_kind(kind, strided(form.rng, np.full_like(mine.x, -9)))
    result = handle.combine(x, **options)
    out, weights = result if "topk_weights" in options else (result, None)
    assert "out" not in options or out is options["out"]
    assert "out_weights" not in options or weights is options["out_weights"]
    copies = oracle.copies(mine, EXPERTS, buffer.group.nranks)[:, None]
    np.testing.assert_array_equal(out, mine.x * (2 * copies + form.biases))
    if weights is not None:
        np.testing.assert_array_equal(weights, np.where(mine.topk_idx >= 0, mine.topk_weights, 0))


def inputs_of(group, form, turn):
    return [
        oracle.inputs(turn, rank, tokens_of(turn, rank), form.topk, EXPERTS, HIDDEN, masked=0.3) for rank in range(group.nranks)
    ]


def test_forms_again_and_again(group, buffer, kind):
    turn = 0
    for number in np.random.default_rng(3).integers(24, size=60).tolist():
        form = Form(number, group.rank)
        for _ in range(3):
            sent = inputs_of(group, form, turn)
            with send(buffer, form, kind, turn, sent) as handle:
                check_rows(buffer, handle, form, turn, sent)
                answer(buffer, handle, form, kind, sent)
            turn += 1
    gc.collect()
    assert buffer.slots_held() == 0


@pytest.fixture
def slow_calls(monkeypatch):
    """The names of calls that Python carried out."""
    calls = []
    for owner, name in ((xep.Buffer, "_dispatch"), (xep.Handle, "_combine"), (xep.Handle, "_receive")):
        original = getattr(owner, name)

        def counted(self, *arguments, original=original, name=name):
            calls.append(name)
            return original(self, *arguments)

        monkeypatch.setattr(owner, name, counted)
    return calls


def step(buffer, arrays, **options):
    with buffer.dispatch(*arrays, **options) as handle:
        handle.combine_input()[:] = handle.recv.x
        return handle.combine()


def arrays_of(kind, tokens, index=np.int64, topk=TOPK, dtype=np.float32):
    idx = ((np.arange(tokens)[:, None] + 2 * np.arange(topk)) % EXPERTS).astype(index)  # 4 tokens reach every expert
    arrays = np.ones((tokens, HIDDEN), dtype), idx, np.ones((tokens, topk), np.float32)
    return [as_kind(kind, array) for array in arrays]


def test_what_is_like_the_last_call_is_not_checked_again(buffer, kind, slow_calls):
    """And any number of tokens is like any other."""
    if _hot._fast is None:
        pytest.skip(f"there is no compiled module: {_hot.why_plain}")
    if kind == "torch" and not hasattr(__import__("torch").Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("this torch has no exchange interface")
    step(buffer, arrays_of(kind, 4))
    step(buffer, arrays_of(kind, 4), expert_alignment=1000, timeout=20.5)
    del slow_calls[:]
    for tokens in (4, 1, 9):
        step(buffer, arrays_of(kind, tokens))
        step(buffer, arrays_of(kind, tokens), expert_alignment=int("1000"), timeout=float("20.5"))
    assert slow_calls == []
    step(buffer, arrays_of(kind, 4, np.int32))
    assert slow_calls == ["_dispatch", "_receive"]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x, idx, w: (x[:, :-1], idx[:-1], w),
        lambda x, idx, w: (x, idx[:-1], w),
        lambda x, idx, w: (x, idx, w[:, :-1]),
        lambda x, idx, w: (x, idx, w[:-1]),
        lambda x, idx, w: (x[:, ::2], idx, w),
        lambda x, idx, w: (x, w, w),
        lambda x, idx, w: (x, idx, idx),
        lambda x, idx, w: (x, idx, w, w),
        lambda x, idx, w: (x, None, w),
        lambda x, idx, w: (x.T, idx, w),
        lambda x, idx, w: (x[0], idx, w),
        lambda x, idx, w: ([1.0], idx, w),
    ],
)
def test_what_is_wrong_is_said_after_a_like_call_too(buffer, kind, wrong):
    right = arrays_of(kind, 4)
    step(buffer, right)
    step(buffer, right)
    with pytest.raises((TypeError, ValueError, xep.InvalidError)):
        buffer.dispatch(*wrong(*right))
    with buffer.dispatch(*right) as handle:
        out = as_kind(kind, np.empty((4, HIDDEN), np.float32))
        handle.combine(out=out)
        for bad in (out[:-1], out[:, :-1], out[:, ::2], right[1], None if kind == "torch" else read_only(out)):
            if bad is not None:
                with pytest.raises((TypeError, ValueError)):
                    handle.combine(out=bad)
        handle.combine(out=out)
    with pytest.raises(ValueError, match="the handle was released"):
        handle.combine(out=out)
    assert buffer.slots_held() == 0


def test_rows_and_widths_differ(group, buffer, kind):
    """Of handles that are combined by the same words."""
    narrow = [as_kind(kind, np.ones((4, HIDDEN // 2), np.float32)), *arrays_of(kind, 4)[1:]]
    wide = arrays_of(kind, 4)
    for arrays in (wide, wide, narrow, narrow, wide, narrow):
        assert step(buffer, arrays).shape == arrays[0].shape
    with buffer.dispatch(*wide, capacity=buffer.info().recv_rows) as roomy, buffer.dispatch(*wide) as exact:
        many, few = as_kind(kind, np.ones((roomy.recv.capacity, HIDDEN), np.float32)), exact.recv.x
        for _ in range(2):
            roomy.combine(many)
            exact.combine(few)
        if len(few) < len(many):
            with pytest.raises(ValueError, match="x: expected"):
                exact.combine(many)
        with pytest.raises(ValueError, match="x: expected"):
            exact.combine(few[:-1])
        with pytest.raises(ValueError, match="x: expected the 4 tokens of the cached dispatch, got 3"):
            for tokens in (4, 4, 3):
                buffer.dispatch(arrays_of(kind, tokens)[0], cached=exact).release()
        del few
        many = None


def test_what_is_received_does_not_hold_the_slot(buffer, kind):
    """But the arrays do."""
    for _ in range(3):
        handle = buffer.dispatch(*arrays_of(kind, 4))
        recv = handle.recv
        rows = recv.rows
        assert len(recv.x) == rows and recv.x is recv.x
        handle.release()
        assert buffer.slots_held() == 0 and recv.rows == rows
        with pytest.raises(ValueError, match="the handle was released"):
            recv.x


def read_only(array):
    view = array.view()
    view.flags.writeable = False
    return view


def test_too_many_handles(buffer, kind):
    arrays = arrays_of(kind, 4)
    held = [buffer.dispatch(*arrays) for _ in range(3)]
    with pytest.raises(xep.BusyError):
        buffer.dispatch(*arrays)
    rows = held[0].recv.x
    held[0].release()
    with pytest.raises(xep.BusyError, match="1 only for arrays of rows that are still alive"):
        buffer.dispatch(*arrays)
    assert (np.asarray(rows) == 1).all() and buffer.arrays_alive() == 1
    del rows
    buffer.dispatch(*arrays).release()
    for handle in held:
        handle.release()
    assert buffer.slots_held() == 0


def test_rows_that_do_not_fit(group, kind):
    with group.buffer(EXPERTS, TOPK, HIDDEN, TOKENS, dtype="float32", recv_rows=4 * group.nranks) as buffer:
        few, many = arrays_of(kind, 4), arrays_of(kind, TOKENS)
        for arrays in (few, few, many, few, many):
            everywhere = as_kind(kind, np.zeros_like(np.asarray(arrays[1])))
            if arrays is few:
                buffer.dispatch(arrays[0], everywhere).release()
                continue
            with pytest.raises(xep.CapacityError) as caught:
                buffer.dispatch(arrays[0], everywhere)
            assert caught.value.rows == (TOKENS * group.nranks if group.rank == 0 else 0)
            request = buffer.dispatch_async(arrays[0], everywhere)
            with pytest.raises(xep.CapacityError) as caught:
                request.wait()
            assert caught.value.rows == (TOKENS * group.nranks if group.rank == 0 else 0)
        del request
        assert buffer.slots_held() == 0


def test_asynchronous_and_cached(group, buffer, kind):
    for turn in range(6):
        x, idx, weights = arrays_of(kind, 2 + turn % 3)
        request = buffer.dispatch_async(x + turn, idx, weights)  # nothing else holds its tokens
        handle = request.wait()
        assert (np.asarray(handle.recv.x) == 1 + turn).all() and handle.recv is handle.recv
        again = buffer.dispatch(x + 2 * turn, cached=handle)
        assert (np.asarray(again.recv.x) == 1 + 2 * turn).all()
        out = handle.combine_async(again.recv.x).wait()
        sent = oracle.Inputs(np.asarray(x), np.asarray(idx), np.asarray(weights))
        copies = oracle.copies(sent, EXPERTS, group.nranks)[:, None]
        assert (np.asarray(out) == (1 + 2 * turn) * copies).all()
        handle.release()
        with pytest.raises(ValueError, match="the handle was released"):
            buffer.dispatch(x, cached=handle)
        again.release()
    with pytest.raises(AttributeError):
        again.recv = None
    assert buffer.slots_held() == 0


def test_arrays_outlive_handle_and_thread(group, buffer, kind):
    """The last reference may go on any thread."""
    arrays = arrays_of(kind, 5)
    for _ in range(4):
        handle = buffer.dispatch(*arrays)
        held = [handle.recv.x, handle.recv.topk_idx, handle.recv.topk_weights, handle.recv.src_token]
        handle.release()
        del handle
        assert buffer.slots_held() == 1
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
        assert buffer.slots_held() == 0


def test_other_threads_run_while_ranks_wait(group, buffer, kind):
    """In a call that is like the last one, too."""
    if group.nranks == 1:
        pytest.skip("a rank of its own never waits")
    arrays = arrays_of(kind, 4)
    step(buffer, arrays)
    step(buffer, arrays)
    counted, stop = [0], threading.Event()

    def count() -> None:
        while not stop.wait(0.001):
            counted[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    late = group.rank == 0
    meet()
    time.sleep(0.3 * late)
    before = counted[0]
    handle = buffer.dispatch(*arrays)
    in_dispatch, before = counted[0] - before, counted[0]
    handle.combine_input()[:] = handle.recv.x
    meet()
    time.sleep(0.3 * late)
    before = counted[0]
    handle.combine()
    in_combine = counted[0] - before
    handle.release()
    stop.set()
    thread.join()
    assert late or (in_dispatch > 5 and in_combine > 5)


def test_a_rank_that_does_not_come(group, buffer, kind):
    """Its absence is an error that names it, and what was taken for the call is given back."""
    if group.nranks == 1:
        pytest.skip("a rank of its own never waits")
    arrays = arrays_of(kind, 4)
    step(buffer, arrays, timeout=20.0)
    step(buffer, arrays, timeout=20.0)
    with buffer.dispatch(*arrays, timeout=20.0) as handle:
        for _ in range(2):
            meet()
            handle.combine(timeout=2.0)
        meet()
        if group.rank != 0:
            with pytest.raises(xep.DeadlineError, match="rank 0"):
                handle.combine(timeout=2.0)
    if group.rank != 0:
        with pytest.raises(xep.BrokenError):
            buffer.dispatch(*arrays, timeout=20.0)
    meet()
    buffer.reset()
    assert buffer.slots_held() == 0
    step(buffer, arrays, timeout=20.0)


def test_after_reset_and_close(group, kind):
    buffer = group.buffer(EXPERTS, TOPK, HIDDEN, TOKENS, dtype="float32", combine_dtype="float32")
    arrays = arrays_of(kind, 4)
    step(buffer, arrays)
    step(buffer, arrays)
    handle = buffer.dispatch(*arrays)
    buffer.reset()
    with pytest.raises(ValueError, match="the handle was released, or its buffer closed or reset"):
        handle.combine()
    with pytest.raises(ValueError, match="the handle was released, or its buffer closed or reset"):
        handle.recv
    step(buffer, arrays)
    buffer.close()
    with pytest.raises(ValueError, match="the buffer is closed"):
        buffer.dispatch(*arrays)


def test_methods_look_like_methods():
    assert xep.Buffer.dispatch.__doc__.startswith("Sends every token") and xep.Buffer.dispatch.__name__ == "dispatch"
    import inspect

    assert list(inspect.signature(xep.Buffer.dispatch).parameters)[:3] == ["self", "x", "topk_idx"]
    assert "received rows" in xep.Handle.recv.__doc__
    with pytest.raises(TypeError):
        xep.Buffer.dispatch()


def test_which_is_in_use():
    """A run of the tests says which it wants."""
    wanted = os.environ.get("XEP_PYTHON")
    assert wanted in (None, "", "plain" if _hot._fast is None else "compiled")
    assert _hot._fast is None or _hot._fast.__file__.startswith(os.environ.get("XEP_TEST_MODULE", ""))
