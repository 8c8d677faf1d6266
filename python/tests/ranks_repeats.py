# SPDX-License-Identifier: BSD-3-Clause
"""Calls that are like earlier ones, and calls that are nearly so, with arrays of every kind."""

from __future__ import annotations

import os
import threading

import numpy as np
import oracle
import pytest
from conftest import Bystander, as_kind, meet

import xep

EXPERTS, TOPK, HIDDEN, TOKENS = 6, 3, 16, 9


@pytest.fixture
def buffer(group):
    with group.buffer(EXPERTS, TOPK, HIDDEN, TOKENS, dtype="float32", combine_dtype="float32", slots=3) as made:
        yield made


def step(buffer, arrays, **options):
    with buffer.dispatch(*arrays, **options) as handle:
        handle.combine_input()[:] = handle.recv.x
        return handle.combine()


def arrays_of(kind, tokens, index=np.int64, topk=TOPK, dtype=np.float32):
    idx = ((np.arange(tokens)[:, None] + 2 * np.arange(topk)) % EXPERTS).astype(index)  # 4 tokens reach every expert
    arrays = np.ones((tokens, HIDDEN), dtype), idx, np.ones((tokens, topk), np.float32)
    return [as_kind(kind, array) for array in arrays]


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
        handle.combine_input()
        handle.combine(out=out)
        for bad in (out[:-1], out[:, :-1], out[:, ::2], right[1], read_only(out) if kind == "numpy" else None):
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


def test_more_handles_than_slots(buffer, kind):
    """Those used last keep theirs, on every rank alike; of the others is known what was counted."""
    buffer.limit_handles(2)
    arrays, held = arrays_of(kind, 4), []
    held.append(buffer.dispatch(*arrays))
    known = [np.asarray(one).copy() for one in (held[0].recv.topk_idx, held[0].recv.src_token, held[0].recv.rank_rows)]
    held.append(buffer.dispatch(*arrays))
    held[0].combine(held[0].recv.x)
    held.append(buffer.dispatch(*arrays))
    assert [handle.parked is None for handle in held] == [True, False, True]
    request = held[0].combine_async(held[0].recv.x)  # in flight until it is parked
    held += [buffer.dispatch(held[2].recv.x[:0], arrays[1][:0]), buffer.dispatch(*arrays)]
    assert [handle.parked is None for handle in held] == [False, False, False, True, True] and request.done()
    assert all((np.asarray(one) == other).all() for one, other in zip(held[0].parked, known))
    assert held[0].parked.pair_begin is None and buffer.slots_held() == 2
    with pytest.raises(ValueError, match="the handle was released"):
        held[0].combine(held[0].parked.src_token)
    del held[3]  # counts as before: what a rank drops is known to no other
    held.append(buffer.dispatch(*arrays))
    assert held[3].parked is None and buffer.slots_held() == 2
    held[3].park()
    buffer.park()
    assert buffer.slots_held() == 0 and held[4].parked is not None
    for wrong in (0, 2):
        with pytest.raises(ValueError, match="most: expected 1 or more, once for each Buffer"):
            buffer.limit_handles(wrong)


def test_handles_parked_where_no_slot_is_free(buffer, kind):
    """The one used longest ago, and none before; of one that arrays look at the slot stays taken."""
    buffer.park_when_full()
    arrays = arrays_of(kind, 4)
    held = [buffer.dispatch(*arrays) for _ in range(buffer.slots)]
    held[0].combine(held[0].recv.x)
    assert [handle.parked for handle in held] == [None] * buffer.slots
    for parked in (1, 2):
        held.append(buffer.dispatch(*arrays))
        assert held[parked].parked is not None and buffer.slots_held() == buffer.slots
    held.pop().release()
    held.append(buffer.dispatch(*arrays))
    assert [handle.parked is None for handle in held] == [True, False, False, True, True]
    rows = [handle.recv.x for handle in held if handle.parked is None]
    with pytest.raises(xep.BusyError):
        buffer.dispatch(*arrays)
    assert all(handle.parked is not None for handle in held) and buffer.arrays_alive() == len(rows)
    del rows
    with pytest.raises(ValueError, match="most: expected 1 or more, once for each Buffer"):
        buffer.limit_handles(2)


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
    for number in range(6):
        x, idx, weights = arrays_of(kind, 2 + number % 3)
        request = buffer.dispatch_async(x + number, idx, weights)  # nothing else holds its tokens
        handle = request.wait()
        assert (np.asarray(handle.recv.x) == 1 + number).all() and handle.recv is handle.recv
        again = buffer.dispatch(x + 2 * number, cached=handle)
        assert (np.asarray(again.recv.x) == 1 + 2 * number).all()
        out = handle.combine_async(again.recv.x).wait()
        sent = oracle.Inputs(np.asarray(x), np.asarray(idx), np.asarray(weights))
        copies = oracle.copies(sent, EXPERTS, group.nranks)[:, None]
        assert (np.asarray(out) == (1 + 2 * number) * copies).all()
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
    with Bystander(group.rank, group.nranks) as bystander:
        handle = bystander.beside(lambda: buffer.dispatch(*arrays))
        handle.combine_input()[:] = handle.recv.x
        bystander.beside(handle.combine)
        handle.release()


def test_a_rank_that_does_not_come(group, buffer, kind):
    """Its absence is an error that names it, and what was taken for the call is given back."""
    if group.nranks == 1:
        pytest.skip("a rank of its own never waits")
    arrays = arrays_of(kind, 4)
    step(buffer, arrays, timeout=20.0)
    step(buffer, arrays, timeout=20.0)
    with buffer.dispatch(*arrays, timeout=20.0) as handle:
        handle.combine_input()
        for _ in range(2):
            meet()
            handle.combine(timeout=6.0)
        meet()
        if group.rank != 0:
            with pytest.raises(xep.DeadlineError, match="rank 0"):
                handle.combine(timeout=6.0)
    if group.rank != 0:
        with pytest.raises(xep.BrokenError):
            buffer.dispatch(*arrays, timeout=20.0)
    meet()
    buffer.reset()
    assert buffer.slots_held() == 0
    step(buffer, arrays, timeout=20.0)


class Releases:
    """A number of seconds; to ask for it releases the handle that the call is for."""

    def __init__(self, handle):
        self.handle = handle

    def __float__(self):
        self.handle.release()
        return 20.0


def test_released_while_arguments_are_read(buffer, kind):
    arrays = arrays_of(kind, 4)
    for call in ("combine", "combine_async"):
        handle = buffer.dispatch(*arrays)
        with pytest.raises(ValueError, match="the handle was released"):
            getattr(handle, call)(handle.recv.x, timeout=Releases(handle))
        assert buffer.slots_held() == 0
    handle = buffer.dispatch(*arrays)
    with pytest.raises(ValueError, match="the handle was released"):
        buffer.dispatch(arrays[0], cached=handle, timeout=Releases(handle))
    assert buffer.slots_held() == 0
    step(buffer, arrays)


def test_closed_while_arguments_are_read(group, kind):
    buffer = group.buffer(EXPERTS, TOPK, HIDDEN, TOKENS, dtype="float32", combine_dtype="float32")
    buffer.release = buffer.close
    with pytest.raises(ValueError, match="the buffer is closed"):
        buffer.dispatch(*arrays_of(kind, 4), timeout=Releases(buffer))


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


def test_which_module_is_in_use():
    """A run of the tests may say which it wants."""
    assert xep._ext.__file__.startswith(os.environ.get("XEP_TEST_MODULE", ""))
