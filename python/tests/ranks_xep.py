# SPDX-License-Identifier: BSD-3-Clause
"""Package xep on ranks, with numpy alone: normal mode against the oracle, errors that every rank gets, views."""

from __future__ import annotations

import functools
import gc
import os
import select
import subprocess
import time
from typing import Optional

import numpy as np
import oracle
import pytest
from conftest import communicator, meet, until_clear

import xep

EXPERTS, TOPK, HIDDEN = 12, 3, 40


def tokens_of(rank: int) -> int:
    """Differs; rank 1 has none."""
    return 0 if rank == 1 else 30 + 7 * rank


@pytest.fixture
def sent(group):
    return [oracle.inputs(5, rank, tokens_of(rank), TOPK, EXPERTS, HIDDEN) for rank in range(group.nranks)]


@pytest.fixture
def buffer(group):
    most = max(tokens_of(rank) for rank in range(group.nranks))
    with group.buffer(EXPERTS, TOPK, HIDDEN, most, dtype="float32", combine_dtype="float32", scales=4, slots=2) as made:
        yield made


def need_several(group: xep.Group) -> None:
    if group.nranks == 1:
        pytest.skip("a rank of its own agrees with itself and never waits")


def check_rows(received: xep.Received, want: oracle.Expected) -> None:
    rows = len(want.sources)
    assert received.rows == rows
    np.testing.assert_array_equal(received.x[:rows], want.x)
    np.testing.assert_array_equal(received.topk_idx[:rows], want.topk_idx)
    np.testing.assert_array_equal(received.topk_weights[:rows], want.topk_weights)
    np.testing.assert_array_equal(received.src_token[:rows], [token for _, token in want.sources])
    ends = [sum(source <= rank for source, _ in want.sources) for rank in range(len(received.src_begin) - 1)]
    np.testing.assert_array_equal(received.src_begin, [0, *ends])


@pytest.mark.parametrize("index_type", [np.int64, np.int32])
def test_dispatch_and_combine(group, buffer, sent, index_type):
    mine = sent[group.rank]
    with buffer.dispatch(mine.x, mine.topk_idx.astype(index_type), mine.topk_weights, expert_alignment=4) as handle:
        want = oracle.received(sent, group.rank, EXPERTS)
        check_rows(handle.recv, want)
        assert handle.recv.topk_idx.dtype == index_type
        np.testing.assert_array_equal(handle.recv.expert_rows, [-(-n // 4) * 4 for n in want.experts])
        out, weights = handle.combine(handle.recv.x, topk_weights=handle.recv.topk_weights, bias=(mine.x, mine.x))
        copies = oracle.copies(mine, EXPERTS, group.nranks)[:, None]
        np.testing.assert_array_equal(out, mine.x * (copies + 2))
        np.testing.assert_array_equal(weights, np.where(mine.topk_idx >= 0, mine.topk_weights, 0))


def test_zero_copy(group, buffer, sent):
    mine = sent[group.rank]
    with buffer.dispatch(mine.x, mine.topk_idx) as handle:
        assert handle.recv.topk_weights is None
        y = handle.combine_input()
        assert y.shape == (handle.rows, HIDDEN)
        np.multiply(handle.recv.x, 3, out=y)
        out = np.full_like(mine.x, np.nan)
        assert handle.combine(out=out) is out
        np.testing.assert_array_equal(out, mine.x * 3 * oracle.copies(mine, EXPERTS, group.nranks)[:, None])
        assert np.shares_memory(y, handle.combine_input())
        assert handle.combine(y, out=out) is out, "its own memory, given back"
        del y


def test_cached(group, buffer, sent):
    mine = sent[group.rank]
    with buffer.dispatch(mine.x, mine.topk_idx, mine.topk_weights) as handle:
        with buffer.dispatch(mine.x * 2, cached=handle) as again:
            np.testing.assert_array_equal(again.recv.x, handle.recv.x * 2)
        with pytest.raises(ValueError, match="topk_idx, topk_weights: expected None with cached"):
            buffer.dispatch(mine.x, mine.topk_idx, cached=handle)
        with pytest.raises(ValueError, match=f"x: expected the {len(mine.x)} tokens"):
            buffer.dispatch(np.zeros((len(mine.x) + 1, HIDDEN), np.float32), cached=handle)


def test_rows_of_strides_and_scales(group, buffer, sent):
    mine = sent[group.rank]
    wide = np.zeros((len(mine.x), HIDDEN + 8), np.float32)
    wide[:, :HIDDEN] = mine.x
    scales = np.arange(4 * len(mine.x), dtype=np.int32).reshape(4, -1).T + 1000 * group.rank
    with buffer.dispatch(wide[:, :HIDDEN], mine.topk_idx, scales=scales) as handle:
        want = oracle.received(sent, group.rank, EXPERTS)
        np.testing.assert_array_equal(handle.recv.x, want.x)
        counts = [tokens_of(rank) for rank in range(group.nranks)]
        found = [[1000 * s + k * counts[s] + t for k in range(4)] for s, t in want.sources]
        np.testing.assert_array_equal(handle.recv.scales, np.array(found, np.int32).reshape(-1, 4))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "e4m3", "uint8"])
def test_element_types(group, buffer, sent, dtype):
    mine = sent[group.rank]
    bits = {1: np.uint8, 2: np.uint16, 4: np.float32}[xep.dtypes.SIZES[xep.dtypes.dtype_of(dtype)]]
    x = mine.x.astype(np.float16) if dtype == "float16" else (mine.x + 8).astype(bits)
    all_x = [(s.x.astype(np.float16) if dtype == "float16" else (s.x + 8).astype(bits)) for s in sent]
    with buffer.dispatch(x, mine.topk_idx, dtype=dtype) as handle:
        assert handle.recv.dtype == xep.dtypes.dtype_of(dtype) and handle.recv.x.dtype == x.dtype
        want = oracle.received(sent, group.rank, EXPERTS)
        rows = [all_x[s][t] for s, t in want.sources]
        np.testing.assert_array_equal(handle.recv.x, np.array(rows, x.dtype).reshape(-1, HIDDEN))


def test_ml_dtypes(group, sent):
    """What comes from other ranks is of the types that were sent."""
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    mine = sent[group.rank]
    with group.buffer(EXPERTS, TOPK, HIDDEN, max(len(s.x) for s in sent)) as buffer:
        with buffer.dispatch(mine.x.astype(bfloat16), mine.topk_idx) as handle:
            y = handle.combine_input()
            y[:] = handle.recv.x
            out = handle.combine()
            assert handle.recv.x.dtype == y.dtype == out.dtype == bfloat16
            del y
        copies = oracle.copies(mine, EXPERTS, group.nranks)[:, None]
        np.testing.assert_array_equal(out, (mine.x.astype(bfloat16).astype(np.float32) * copies).astype(bfloat16))


def test_fixed_capacity(group, buffer, sent):
    mine = sent[group.rank]
    room = buffer.info().recv_rows
    with buffer.dispatch(mine.x, mine.topk_idx, mine.topk_weights, capacity=room) as handle:
        check_rows(handle.recv, oracle.received(sent, group.rank, EXPERTS))
        assert handle.recv.x.shape == (room, HIDDEN)
        assert (handle.recv.topk_idx[handle.rows :] == -1).all()
        out = handle.combine(np.ascontiguousarray(handle.recv.x))
        np.testing.assert_array_equal(out, mine.x * oracle.copies(mine, EXPERTS, group.nranks)[:, None])


def test_overflow_on_every_rank(group, buffer, sent):
    mine = sent[group.rank]
    rows = len(oracle.received(sent, group.rank, EXPERTS).sources)
    for begin in (buffer.dispatch, lambda *a, **o: buffer.dispatch_async(*a, **o).wait()):
        with pytest.raises(xep.CapacityError) as caught:
            begin(mine.x, mine.topk_idx, capacity=1 if group.rank == 0 else 0)
        assert caught.value.rows == rows and caught.value.status == xep.Status.ERR_OVERFLOW
    with buffer.dispatch(mine.x, mine.topk_idx) as handle:
        assert handle.rows == rows, "nothing was lost"


def test_mismatch_on_every_rank(group, buffer, sent):
    need_several(group)
    x = sent[group.rank].x
    hidden = HIDDEN - 8 if group.rank == 0 else HIDDEN
    with pytest.raises(xep.MismatchError, match="disagree on hidden"):
        buffer.dispatch(np.ascontiguousarray(x[:, :hidden]), sent[group.rank].topk_idx)


def test_mismatch_at_create(group):
    need_several(group)
    with pytest.raises(xep.MismatchError, match="disagree on experts"):
        group.buffer(EXPERTS + (group.rank == 0), TOPK, HIDDEN, 8)


def test_requests(group, buffer, sent):
    mine = sent[group.rank]
    request = buffer.dispatch_async(mine.x, mine.topk_idx, mine.topk_weights)
    handle = request.wait()
    assert request.done() and request.wait() is handle and handle is request.result
    y = np.ascontiguousarray(handle.recv.x)
    first = handle.combine_async(y)
    while not first.done():
        pass
    second = buffer.dispatch_async(first.result, mine.topk_idx, after=first)
    third = second.wait()
    copies = oracle.copies(mine, EXPERTS, group.nranks)[:, None]
    np.testing.assert_array_equal(first.result, mine.x * copies)
    back = third.combine(third.recv.x)
    np.testing.assert_array_equal(back, mine.x * copies * copies)


def test_counts_before_rows(group, buffer, sent):
    """Rank 0 has told what it sends and sends nothing yet: counts and places are known, and the request is not done."""
    need_several(group)
    mine, want = sent[group.rank], oracle.received(sent, group.rank, EXPERTS)
    if group.rank != 0:
        meet()
    request = buffer.dispatch_async(mine.x, mine.topk_idx, mine.topk_weights)
    if group.rank != 0:
        with pytest.raises(xep.InvalidError, match="in flight"):
            request.result.recv
        early = request.wait_counts().recv
        assert not request.done() and early.rows == len(want.sources)
        np.testing.assert_array_equal(early.expert_rows, want.experts)
        x = early.x
        meet()
        assert request.wait().recv is early and x is early.x
        del x
    else:
        meet()
        meet()
    check_rows(request.wait().recv, want)
    assert request.wait_counts() is request.result


def test_after_a_request_in_flight(group, buffer, sent):
    """The second begins when the first is done: it sends what the first has written."""
    mine = sent[group.rank]
    with buffer.dispatch(mine.x, mine.topk_idx) as handle:
        y = np.ascontiguousarray(handle.recv.x)
        first = handle.combine_async(y)
        with buffer.dispatch_async(first.result, mine.topk_idx, after=first).wait() as second:
            want = oracle.received(sent, group.rank, EXPERTS)
            copies = [oracle.copies(s, EXPERTS, group.nranks) for s in sent]
            scale = np.array([copies[s][t] for s, t in want.sources], np.float32)[:, None]
            np.testing.assert_array_equal(second.recv.x, want.x * scale)


def test_forgotten_requests(group, buffer, sent):
    """Nobody waits, nobody keeps an array: the buffer does."""
    mine = sent[group.rank]
    for step in range(9):
        handle = buffer.dispatch_async(mine.x + step, mine.topk_idx.copy()).wait()
        handle.combine_async(np.ascontiguousarray(handle.recv.x))
        del handle
    gc.collect()
    with buffer.dispatch(mine.x, mine.topk_idx) as handle:
        check = oracle.received(sent, group.rank, EXPERTS)
        np.testing.assert_array_equal(handle.recv.x, check.x)


def test_slots_follow_arrays(group, buffer, sent):
    mine = sent[group.rank]
    first = buffer.dispatch(mine.x, mine.topk_idx)
    view = first.recv.x[1:] if first.rows else np.zeros((0, HIDDEN), np.float32)
    kept = view.copy()
    first.release()
    second = buffer.dispatch(mine.x * 2, mine.topk_idx)
    if len(kept):
        with pytest.raises(xep.BusyError, match="only for arrays of rows that are still alive"):
            buffer.dispatch(mine.x * 3, mine.topk_idx)
    group.barrier()
    np.testing.assert_array_equal(view, kept)
    del view
    third = buffer.dispatch(mine.x * 3, mine.topk_idx)
    np.testing.assert_array_equal(third.recv.x, second.recv.x / 2 * 3)


def test_waits(group, buffer, sent):
    """What operations say they waited adds up to what the buffer says; the rank that is late is the one."""
    mine, late = sent[group.rank], group.nranks - 1
    zeros = functools.partial(np.zeros, group.nranks, np.int64)
    counted, summed = ({kind: zeros() for kind in ("dispatch", "combine")} for _ in range(2))
    operations = 0

    def late_by(delay: float) -> Optional[dict]:
        nonlocal operations
        waited = {kind: zeros() for kind in counted}
        for step in range(6):
            wait_ns = {kind: zeros() for kind in counted}
            meet()
            time.sleep(delay if group.rank == late else 0)
            handle = buffer.dispatch_async(mine.x, mine.topk_idx, wait_ns=wait_ns["dispatch"]).wait()
            with handle:
                x = handle.recv.x.copy()
                meet()
                time.sleep(delay if group.rank == late else 0)
                handle.combine(x, wait_ns=wait_ns["combine"])
            operations += 1
            for kind in counted:
                counted[kind] += wait_ns[kind] > 0
                waited[kind] += wait_ns[kind]
        for kind in counted:
            summed[kind] += waited[kind]
            if group.rank != late and 3 * np.delete(waited[kind], late).max() >= waited[kind][late]:
                return waited
        return None

    until_clear(late_by)
    for kind in counted:
        waits = getattr(buffer.waits(), kind)
        assert waits.operations == operations and waits.sum_ns.dtype == np.int64
        np.testing.assert_array_equal(waits.count, counted[kind])
        np.testing.assert_array_equal(waits.sum_ns, summed[kind])
        assert (waits.max_ns <= waits.sum_ns).all() and (waits.max_ns * waits.count >= waits.sum_ns).all()


def test_counters_are_what_was_done(group, buffer, sent):
    mine = sent[group.rank]
    before = buffer.counters()
    with buffer.dispatch(mine.x, mine.topk_idx) as handle:
        x = handle.recv.x.copy()
        handle.combine(x)
    after = buffer.counters()
    for new, old in zip(after[:2], before[:2]):
        assert new.operations == old.operations + 1 and new.errors == new.peer_errors == new.ranks_out == 0
        assert new.rows == old.rows + len(x) and new.bytes == old.bytes + x.nbytes
        assert old.wait_ns <= new.wait_ns < new.age_ns and old.age_ns < new.age_ns
    assert after.next.operations == 0


def test_layout_agrees_with_dispatch(group, buffer, sent):
    mine = sent[group.rank]
    found = xep.layout(mine.topk_idx, EXPERTS, group.nranks)
    with buffer.dispatch(mine.x, mine.topk_idx) as handle:
        np.testing.assert_array_equal(handle.recv.rank_rows[group.rank], found.tokens_per_rank)
    for token in range(len(mine.x)):
        ranks = oracle.ranks_of(mine.topk_idx, token, EXPERTS, group.nranks)
        assert found.token_in_rank[token].nonzero()[0].tolist() == ranks


def test_reset_after_a_timeout(group, buffer, sent):
    mine = sent[group.rank]
    need_several(group)
    if group.rank != 0:  # rank 0 does not come
        with pytest.raises(xep.DeadlineError):
            buffer.dispatch(mine.x, mine.topk_idx, timeout=0.3)
        with pytest.raises(xep.BrokenError):
            buffer.dispatch(mine.x, mine.topk_idx)
    buffer.reset()
    with buffer.dispatch(mine.x, mine.topk_idx) as handle:
        assert handle.rows == len(oracle.received(sent, group.rank, EXPERTS).sources)


def test_outputs_that_nobody_gave(group):
    idx = np.arange(EXPERTS).reshape(4, TOPK)
    x = np.ones((4, HIDDEN), np.float32)
    with group.buffer(EXPERTS, TOPK, HIDDEN, 4, dtype="float32", combine_dtype="float32") as buffer:
        with buffer.dispatch(x, idx) as handle:
            with pytest.raises(xep.InvalidError, match=f"no outputs for the {handle.rows} rows"):
                handle.combine()
            y = handle.combine_input()
            y[:] = handle.recv.x
            with pytest.raises(xep.InvalidError, match="invalid out: 0x.* is memory of a buffer"):
                handle.combine(out=y[:4])
            copies = len(oracle.ranks_of(idx, 0, EXPERTS, group.nranks))
            np.testing.assert_array_equal(handle.combine()[0], x[0] * copies)
            del y


def test_outputs_in_another_buffer(group, buffer, sent):
    mine = sent[group.rank]
    idx = np.arange(EXPERTS).reshape(4, TOPK)
    with group.buffer(EXPERTS, TOPK, HIDDEN, 4) as other:
        with other.dispatch(np.zeros((4, HIDDEN), np.uint16), idx) as taken:
            waits = taken.combine_input()[0].view(np.int64)[: group.nranks]
            with pytest.raises(xep.InvalidError, match="invalid wait_ns: 0x.* is memory of a buffer"):
                buffer.dispatch(mine.x, mine.topk_idx, wait_ns=waits)
            with buffer.dispatch(mine.x, mine.topk_idx) as handle:
                with pytest.raises(xep.InvalidError, match="invalid wait_ns: 0x.* is memory of a buffer"):
                    handle.combine(handle.recv.x, wait_ns=waits)
            del waits


def test_an_exception_on_one_rank(group):
    """The others do not wait for it until their deadline: in their operation, then in the end of the buffer."""
    need_several(group)
    last = group.nranks - 1
    begin = time.monotonic()
    error = RuntimeError if group.rank == last else xep.BrokenError
    with pytest.raises(error, match="here" if group.rank == last else f"given up by rank {last} "):
        with group.buffer(EXPERTS, TOPK, HIDDEN, 4) as buffer:
            if group.rank == last:
                raise RuntimeError("here")
            buffer.dispatch(np.zeros((4, HIDDEN), np.uint16), np.zeros((4, TOPK), np.int64))
    buffer.close()
    assert time.monotonic() - begin < 25  # the deadline is 30 seconds


def test_handles_end_with_reset(group, buffer, sent):
    mine = sent[group.rank]
    handle = buffer.dispatch(mine.x, mine.topk_idx)
    buffer.reset()
    with pytest.raises(ValueError, match="released, or its buffer closed or reset"):
        handle.recv
    assert buffer.info().free_slots == 2
    handle.release()
    other = buffer.dispatch(mine.x, mine.topk_idx)
    assert buffer.info().free_slots == 1, "the old handle does not take the slot of the new one away"
    other.release()


def test_requests_end_with_reset(group, buffer, sent):
    """And are free again: more of them than the buffer has, four for each slot."""
    mine = sent[group.rank]
    need_several(group)
    for _ in range(4 * buffer.slots + 1):
        request = buffer.dispatch_async(mine.x, mine.topk_idx) if group.rank == 0 else None  # the others do not come
        buffer.reset()
        if request is not None:
            with pytest.raises(xep.AbortedError, match="the buffer was reset"):
                request.wait()
    assert buffer.info().free_slots == buffer.slots


def test_abort(group):
    buffer = group.buffer(EXPERTS, TOPK, HIDDEN, 8)
    meet()  # a rank that is still in a barrier of the group would hear of the abort there
    group.abort()
    with pytest.raises(xep.AbortedError):
        buffer.dispatch(np.zeros((0, HIDDEN), np.uint16), np.zeros((0, TOPK), np.int64))


def test_group_calls(group):
    assert group.allgather(bytes([group.rank] * 5)) == [bytes([rank] * 5) for rank in range(group.nranks)]
    group.barrier()
    peer = group.peer((group.rank + 1) % group.nranks)
    assert peer.transport and 0 <= peer.node < group.nnodes
    assert group.peer(group.rank).transport == "self"
    with pytest.raises(xep.UnsupportedError, match="the group has no descriptor to poll: XEP_PROGRESS is call"):
        group.event_fd()


def test_experts_of_a_closed_buffer(group):
    first, count = xep.expert_range(EXPERTS, group.nranks, group.rank)
    with group.buffer(EXPERTS, TOPK, HIDDEN, 4, dtype="float32") as buffer:
        handle = buffer.dispatch(np.zeros((0, HIDDEN), np.float32), np.zeros((0, TOPK), np.int64))
        received = handle.recv
        handle.release()
        assert received.experts == tuple(range(first, first + count))
    with pytest.raises(ValueError, match="the buffer is closed"):
        assert received.experts


def test_a_gather_that_is_called_again(group):
    """The last rank is stopped in one of many rounds: what those before it brought is still there."""
    need_several(group)
    size, is_last = (48 << 20) // group.nranks, group.rank == group.nranks - 1
    with xep.Group(communicator(), timeout=30 if is_last else 3) as hasty:
        meet()
        pid = os.getpid()
        stop = f"sleep 0.03; kill -STOP {pid}; sleep 4; kill -CONT {pid}"
        with subprocess.Popen(["sh", "-c", stop if is_last else "true"]):
            for _ in range(60):
                try:
                    parts = hasty.allgather(bytes([1 + group.rank]) * size)
                    break
                except xep.DeadlineError:
                    continue
        assert parts == [bytes([1 + rank]) * size for rank in range(group.nranks)]
        meet()


def test_event_loop(sent, monkeypatch):
    monkeypatch.setenv("XEP_PROGRESS", "thread")
    with xep.Group(communicator()) as group, group.buffer(EXPERTS, TOPK, HIDDEN, 200, dtype="float32") as buffer:
        fd, mine = group.event_fd(), sent[group.rank]
        request = buffer.dispatch_async(mine.x, mine.topk_idx)
        while not request.done():
            assert select.select([fd], [], [], 60)[0], "the request is not done, and no event came"
            os.read(fd, 8)
        assert request.wait().recv.rows == len(oracle.received(sent, group.rank, EXPERTS).sources)
        request.result.release()


@pytest.mark.parametrize("quant", [xep.Quant.NONE, xep.Quant.E4M3, xep.Quant.UE8M0])
def test_rows_by_expert(group, quant):
    """Mode ll, compact: casts and weights, against numbers worked out here."""
    tokens, hidden = 16, 256
    sent = [oracle.inputs(3, rank, tokens, TOPK, EXPERTS, hidden) for rank in range(group.nranks)]
    mine = sent[group.rank]
    with group.buffer(EXPERTS, TOPK, hidden, tokens, mode="ll", slots=1) as buffer:
        stats = np.zeros(buffer.local_experts, np.int32)
        x = xep.to_bfloat16(mine.x)
        with buffer.dispatch(
            x, mine.topk_idx, mine.topk_weights, quant=quant, expert_alignment=4, expert_stats=stats
        ) as handle:
            received = handle.recv
            np.testing.assert_array_equal(stats, received.expert_count)
            rows = received.x
            for local in range(received.local_experts):
                expert = received.first_expert + local
                row = int(received.expert_begin[local])
                assert row % 4 == 0
                for source, other in enumerate(sent):
                    for token in np.nonzero((other.topk_idx == expert).any(1))[0]:
                        assert received.src_token[row] == token and received.topk_idx[row, 0] == local
                        if quant == xep.Quant.NONE:
                            np.testing.assert_array_equal(xep.from_bfloat16(rows[row]), other.x[token])
                        row += 1
                assert row == received.expert_begin[local] + received.expert_count[local]
            assert received.quant == quant
            if quant == xep.Quant.NONE:
                out = handle.combine(rows)
                total = (mine.topk_weights * (mine.topk_idx >= 0)).sum(1, keepdims=True)
                np.testing.assert_allclose(xep.from_bfloat16(out), mine.x * total, rtol=2**-8)
            elif quant == xep.Quant.E4M3:
                assert received.scales.shape == (received.capacity, 2) and received.scales.dtype == np.float32
            else:
                assert received.scales.shape == (received.capacity, 1) and received.scales.dtype == np.int32
            del rows, received


def test_two_buffers_in_turn(group, sent):
    mine = sent[group.rank]
    most = max(tokens_of(rank) for rank in range(group.nranks))
    options = dict(dtype="float32", combine_dtype="float32")
    with (
        group.buffer(EXPERTS, TOPK, HIDDEN, most, **options) as a,
        group.buffer(EXPERTS, TOPK, HIDDEN, most, **options) as b,
    ):
        for _ in range(3):
            with a.dispatch(mine.x, mine.topk_idx) as one, b.dispatch(mine.x * 2, mine.topk_idx) as two:
                np.testing.assert_array_equal(one.recv.x * 2, two.recv.x)
                with pytest.raises(ValueError, match="cached: expected a handle of this buffer, got one of another"):
                    b.dispatch(mine.x, cached=one)
