# SPDX-License-Identifier: BSD-3-Clause
"""Rows that come in pieces, from Python: each piece against the oracle's rows, what comes back, what is refused."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import oracle
import pytest
from conftest import as_kind

import xep

EXPERTS, TOPK, HIDDEN, MOST = 12, 3, 40, 50


def tokens_of(rank: int) -> int:
    """Differs; rank 1 has none, rank 2 a single one."""
    return [MOST, 0, 1, 37][rank % 4]


def inputs_of(group, seed: int = 11):
    return [oracle.inputs(seed, rank, tokens_of(rank), TOPK, EXPERTS, HIDDEN) for rank in range(group.nranks)]


@pytest.fixture
def sent(group):
    return inputs_of(group)


@pytest.fixture
def buffer_with(group):
    """A buffer whose slots have room for so many rows."""
    made = []

    def make(room: int, **options):
        options = dict(dict(dtype="float32", combine_dtype="float32", scales=2, threads=2), **options)
        made.append(group.buffer(EXPERTS, TOPK, HIDDEN, MOST, pieces=True, recv_rows=room, **options))
        return made[-1]

    yield make
    gc.collect()
    for buffer in made:
        buffer.close()


def rows_of(sent) -> list[int]:
    return [len(oracle.received(sent, rank, EXPERTS).sources) for rank in range(len(sent))]


def pieces_of(sent, room: int) -> int:
    """As many as the rank with the most rows needs."""
    return max(1, *(-(-rows // room) for rows in rows_of(sent)))


def sums_of(sent, rank: int, nranks: int):
    """[T, 1]: what comes back for 1, where each rank multiplies what it gets by its number and one."""
    mine = sent[rank]
    sums = [sum(r + 1 for r in oracle.ranks_of(mine.topk_idx, t, EXPERTS, nranks)) for t in range(len(mine.x))]
    return np.array(sums, np.float32).reshape(-1, 1)


def scales_of(sent):
    return [np.arange(2 * len(one.x), dtype=np.int32).reshape(-1, 2) + 1000 * r for r, one in enumerate(sent)]


def check_piece(piece, want: oracle.Expected, scales, room: int, number: int, nranks: int) -> None:
    part = slice(number * room, (number + 1) * room)
    sources = want.sources[part]
    assert (piece.piece, piece.all_rows, piece.rows) == (number, len(want.sources), len(sources))
    assert piece.first_row == min(number * room, piece.all_rows) and piece.x.shape == (len(sources), HIDDEN)
    np.testing.assert_array_equal(piece.x, want.x[part])
    np.testing.assert_array_equal(piece.topk_idx, want.topk_idx[part])
    np.testing.assert_array_equal(piece.topk_weights, want.topk_weights[part])
    np.testing.assert_array_equal(piece.src_token, [token for _, token in sources])
    np.testing.assert_array_equal(piece.src_begin, [sum(s < r for s, _ in sources) for r in range(nranks + 1)])
    counts = [int((want.topk_idx[part] == expert).sum()) for expert in range(piece.local_experts)]
    assert piece.list_expert_rows() == counts and list(piece.expert_rows) == counts
    np.testing.assert_array_equal(piece.scales, np.array([scales[s][t] for s, t in sources], np.int32).reshape(-1, 2))


@pytest.mark.parametrize("room", [1, 7, 64, 200])
def test_dispatch_in_pieces(group, buffer_with, sent, kind, room):
    """Twice, into two slots; outputs are written in place, or given."""
    rank, nranks = group.rank, group.nranks
    mine, want, scales = sent[rank], oracle.received(sent, rank, EXPERTS), scales_of(sent)
    total, sums = pieces_of(sent, room), sums_of(sent, rank, nranks)
    buffer = buffer_with(room)
    for times in (1, 2):
        want_x = oracle.Expected(want.sources, want.x * np.float32(times), *list(vars(want).values())[2:])
        arrays = [as_kind(kind, a) for a in (mine.x * np.float32(times), mine.topk_idx, mine.topk_weights)]
        with buffer.dispatch(*arrays, scales=as_kind(kind, scales[rank]), pieces=True) as handle:
            seen = 0
            for piece in handle.pieces():
                assert piece is handle.recv and piece.pieces == total and handle.rows == piece.rows
                assert isinstance(piece.x, np.ndarray) == (kind == "numpy")
                check_piece(handle.numpy(), want_x, scales, room, seen, nranks)
                if (seen + times) % 2:
                    y = handle.combine_input()
                    y[:] = piece.x * (rank + 1)
                    del y
                    handle.give(handle.combine_input(), piece.topk_weights)
                else:
                    handle.give(piece.x * (rank + 1), piece.topk_weights)
                seen += 1
            assert seen == piece.pieces
            out = as_kind(kind, np.full_like(mine.x, np.nan))
            result, weights = handle.combine(out=out)
            assert result is out
            np.testing.assert_array_equal(out, times * mine.x * sums)
            np.testing.assert_array_equal(weights, np.where(mine.topk_idx >= 0, mine.topk_weights, 0))
            del piece


def test_dispatch_of_nothing_in_pieces(group, buffer_with):
    buffer = buffer_with(1)
    x, idx = np.zeros((0, HIDDEN), np.float32), np.zeros((0, TOPK), np.int64)
    with buffer.dispatch(x, idx, pieces=True) as handle:
        assert [piece.rows for piece in handle.pieces()] == [0]
        assert handle.combine().shape == (0, HIDDEN)


def test_dispatch_in_pieces_is_one_where_all_fits(group, buffer_with, sent):
    """The loop is right for every dispatch, and the default room holds an even load."""
    mine = sent[group.rank]
    buffer = buffer_with(0)
    assert buffer.info().pieces and buffer.info().recv_rows <= group.nranks * MOST
    for options in ({}, {"pieces": True}):
        if buffer.info().recv_rows < max(rows_of(sent)) and not options:
            continue
        with buffer.dispatch(mine.x, mine.topk_idx, **options) as handle:
            for piece in handle.pieces():
                handle.give(np.asarray(piece.x) * np.float32(group.rank + 1))
            np.testing.assert_array_equal(handle.combine(), mine.x * sums_of(sent, group.rank, group.nranks))
            del piece


def test_next_without_a_loop(group, buffer_with, sent):
    """Begun and waited for, of arrays that nobody keeps; then with the same routing, without a combine."""
    rank, mine, want = group.rank, sent[group.rank], oracle.received(sent, group.rank, EXPERTS)
    buffer = buffer_with(9)
    first = buffer.dispatch_async(mine.x.copy(), mine.topk_idx, pieces=True).wait()
    waits = np.zeros(group.nranks, np.int64)
    while first.recv.piece + 1 < first.recv.pieces:
        if first.recv.piece % 2:
            request = first.next_async(first.recv.x * np.float32(rank + 1), wait_ns=waits)
            gc.collect()
            assert request.wait() is first
        else:
            assert first.next(first.recv.x * np.float32(rank + 1), timeout=20) is first
    out = first.combine(first.recv.x * np.float32(rank + 1))
    np.testing.assert_array_equal(out, mine.x * sums_of(sent, rank, group.nranks))
    with buffer.dispatch(mine.x * 2, cached=first, pieces=True) as again:
        first.release()
        rows = [np.array(piece.x) for piece in again.pieces(outputs=False)]
        np.testing.assert_array_equal(np.concatenate(rows), want.x * 2)
        if again.recv.pieces > 1:
            with pytest.raises(xep.InvalidError, match="earlier pieces had no outputs"):
                again.combine(again.recv.x)


def test_two_handles_in_turn(group, buffer_with, sent):
    """Each has a slot of its own."""
    mine, want = sent[group.rank], oracle.received(sent, group.rank, EXPERTS)
    buffer = buffer_with(16)
    with (
        buffer.dispatch(mine.x, mine.topk_idx, pieces=True) as one,
        buffer.dispatch(mine.x * 3, mine.topk_idx, pieces=True) as two,
    ):
        found = [(a.x.copy(), b.x.copy()) for a, b in zip(one.pieces(outputs=False), two.pieces(outputs=False))]
        np.testing.assert_array_equal(np.concatenate([a for a, _ in found]), want.x)
        np.testing.assert_array_equal(np.concatenate([b for _, b in found]), want.x * 3)


def test_inputs_are_kept_until_the_last_piece(group, buffer_with, sent):
    mine = sent[group.rank]
    buffer = buffer_with(8)
    x = mine.x.copy()
    kept = weakref.ref(x)
    for begin in (buffer.dispatch, lambda *a, **o: buffer.dispatch_async(*a, **o).wait()):
        x = mine.x.copy()
        kept = weakref.ref(x)
        handle = begin(x, mine.topk_idx, pieces=True)
        del x
        for piece in handle.pieces(outputs=False):
            gc.collect()
            assert (kept() is None) == (piece.piece + 1 == piece.pieces)
        del piece
        handle.release()
    x = mine.x.copy()
    kept = weakref.ref(x)
    handle = buffer.dispatch(x, mine.topk_idx, pieces=True)
    del x
    handle.release()
    gc.collect()
    assert kept() is None, "a handle that was released before its end"


def several(group) -> None:
    if group.nranks == 1:
        pytest.skip("needs more than one rank")


def test_what_is_refused(group, buffer_with, sent):
    """On all ranks alike, and nothing is lost by it."""
    several(group)
    rank, mine = group.rank, sent[group.rank]
    buffer = buffer_with(5)
    total = pieces_of(sent, 5)
    assert total >= 4
    with buffer.dispatch(mine.x, mine.topk_idx, pieces=True) as handle:
        with pytest.raises(xep.InvalidError, match=rf"it shows piece 1 of {total} \(combine the last one\)"):
            handle.combine(handle.recv.x)
        for wrong, text in (
            (dict(x=np.ones((handle.rows + 1, HIDDEN), np.float32)), r"x: expected \[\d+, H\], the rows received"),
            (dict(x=3), "x: expected a numpy array"),
            (dict(outputs=False, topk_weights=mine.topk_weights), "topk_weights: expected None with outputs=False"),
            (dict(timeout=-1), "timeout: "),
            (dict(no_such=1), "no_such"),
        ):
            with pytest.raises((TypeError, ValueError), match=text):
                handle.next(**wrong)
        with pytest.raises((TypeError, ValueError), match="x: expected"):
            handle.give(None)
        with pytest.raises(ValueError, match="timeout: expected None with outputs=False"):
            handle.pieces(outputs=False, timeout=3)
        first, second = handle.pieces(), handle.pieces()
        piece = next(first)
        assert next(second) is piece
        x = piece.x
        handle.give(x * np.float32(rank + 1))
        assert next(second) is handle.recv and handle.recv.piece == 1
        with pytest.raises(ValueError, match=r"shows piece 2, the last iteration gave 1 \(one loop at a time"):
            next(first)
        assert piece.piece == 0, "its numbers stay"
        for name in ("x", "topk_idx", "src_begin", "expert_rows"):
            with pytest.raises(ValueError, match="these rows are gone: piece 1 was followed by the next one"):
                getattr(piece, name)
        with pytest.raises(ValueError, match="these rows are gone"):
            piece.list_expert_rows()
        with pytest.raises(xep.InvalidError, match="args must not be NULL"):
            handle.next(outputs=False)
        with pytest.raises(xep.InvalidError, match=r"invalid dtype: fp16 \(fp32, as with the first piece"):
            handle.next(handle.recv.x.astype(np.float16))
        while handle.recv.piece + 1 < total:
            handle.next(handle.recv.x * np.float32(rank + 1))
        with pytest.raises(xep.InvalidError, match=f"it shows the last of {total} pieces"):
            handle.next(handle.recv.x)
        out = handle.combine(handle.recv.x * np.float32(rank + 1))
        np.testing.assert_array_equal(out, mine.x * sums_of(sent, rank, group.nranks))
        with pytest.raises(xep.InvalidError, match="it was combined"):
            handle.combine(handle.recv.x)
        del x
    with pytest.raises(ValueError, match="the handle was released"):
        handle.next()
    with pytest.raises(ValueError, match="the handle was released"):
        next(handle.pieces())


def test_what_does_not_go_together(group, buffer_with, sent):
    mine = sent[group.rank]
    with group.buffer(EXPERTS, TOPK, HIDDEN, MOST, dtype="float32", combine_dtype="float32") as whole:
        with pytest.raises(xep.UnsupportedError, match="XEP_BUFFER_PIECES"):
            whole.dispatch(mine.x, mine.topk_idx, pieces=True)
        with whole.dispatch(mine.x, mine.topk_idx) as handle:
            assert (handle.recv.pieces, handle.recv.piece, handle.recv.first_row) == (1, 0, 0)
            with pytest.raises(xep.InvalidError, match="it shows the last of 1 piece"):
                handle.next(handle.recv.x)
    buffer = buffer_with(4)
    with pytest.raises(xep.InvalidError, match="invalid capacity: 9"):
        buffer.dispatch(mine.x, mine.topk_idx, pieces=True, capacity=9)
    if max(rows_of(sent)) > 4:
        with pytest.raises(xep.CapacityError, match="XEP_DISPATCH_PIECES") as caught:
            buffer.dispatch(mine.x, mine.topk_idx)
        assert caught.value.rows == rows_of(sent)[group.rank]
    with pytest.raises(xep.UnsupportedError):
        group.buffer(EXPERTS, TOPK, HIDDEN, MOST, on_failure="mask", pieces=True)
    hint = xep.buffer_size(64, EXPERTS, TOPK, HIDDEN, MOST, pieces=True)
    assert hint.recv_rows < xep.buffer_size(64, EXPERTS, TOPK, HIDDEN, MOST).recv_rows


@pytest.mark.parametrize("room", [3, 40])
def test_pieces_by_expert(group, buffer_with, sent, room):
    """A row for each selection; all pieces together have each of them once, and sums are those of one piece."""
    rank, mine = group.rank, sent[group.rank]
    kinds = dict(mode="ll", dtype="float32", combine_dtype="float32")
    with group.buffer(EXPERTS, TOPK, HIDDEN, MOST, **kinds) as one:
        with one.dispatch(mine.x, mine.topk_idx, mine.topk_weights) as handle:
            rows, want_x = handle.rows, np.array(handle.recv.x[: handle.rows])
            want = np.array(handle.combine(handle.recv.x * (rank + 1)))
    with buffer_with(room, **kinds).dispatch(mine.x, mine.topk_idx, mine.topk_weights, pieces=True) as handle:
        seen = []
        for piece in handle.pieces():
            assert (piece.first_row, piece.all_rows, sum(piece.expert_count)) == (len(seen), rows, piece.rows)
            seen += list(np.array(piece.x))
            handle.give(piece.x * (rank + 1))
        assert rows <= room * piece.pieces
        np.testing.assert_array_equal(np.array(seen).reshape(want_x.shape), want_x)
        np.testing.assert_array_equal(handle.combine(), want)
        del piece


def test_outputs_said_and_given(group, buffer_with, sent):
    """next(outputs=True) takes what give() was told, as next() does."""
    mine = sent[group.rank]
    with buffer_with(6).dispatch(mine.x, mine.topk_idx, pieces=True) as handle:
        for left in reversed(range(handle.recv.pieces)):
            handle.give(np.asarray(handle.recv.x) * np.float32(group.rank + 1))
            if left:
                handle.next(outputs=True)
        np.testing.assert_array_equal(handle.combine(), mine.x * sums_of(sent, group.rank, group.nranks))


def test_pieces_that_one_rank_alone_refuses(group, buffer_with, sent):
    """The others are told with their next calls; then all go on with the same piece."""
    several(group)
    rank, mine, want = group.rank, sent[group.rank], oracle.received(sent, group.rank, EXPERTS)
    odd, last = group.nranks - 1, group.rank == group.nranks - 1
    buffer = buffer_with(6)
    handle = buffer.dispatch(mine.x, mine.topk_idx, pieces=True)
    if last:
        with pytest.raises((TypeError, ValueError)):
            handle.next(np.zeros(3, np.float32))
    for _ in range(1 if last else 2):
        with pytest.raises(xep.MismatchError, match=f"failed on rank {odd} alone"):
            handle.next(handle.recv.x)
    np.testing.assert_array_equal(handle.recv.x, want.x[:6])
    for piece in handle.pieces():
        handle.give(piece.x * np.float32(rank + 1))
    np.testing.assert_array_equal(handle.combine(), mine.x * sums_of(sent, rank, group.nranks))
    del piece
    handle.release()


def test_ranks_that_disagree(group, buffer_with, sent):
    several(group)
    mine = sent[group.rank]
    buffer = buffer_with(6)
    with pytest.raises(xep.MismatchError, match="disagree on piece, from 1"):
        buffer.dispatch(mine.x, mine.topk_idx, pieces=group.rank > 0)
    handle = buffer.dispatch(mine.x, mine.topk_idx, pieces=True)
    handle.combine_input()
    with pytest.raises(xep.MismatchError, match="disagree on whether a piece has outputs"):
        handle.next(outputs=group.rank > 0)
    handle.release()


def test_a_consumer_that_stops_asking(group, buffer_with, sent):
    """Rank 0 asks for no second piece: the others name it."""
    several(group)
    mine = sent[group.rank]
    buffer = buffer_with(6)
    handle = buffer.dispatch(mine.x, mine.topk_idx, pieces=True)
    if group.rank != 0:
        with pytest.raises(xep.DeadlineError, match="rank 0"):
            handle.next(handle.recv.x, timeout=4)
        with pytest.raises(xep.BrokenError):
            handle.next()
    buffer.reset()
    with pytest.raises(ValueError, match="the handle was released, or its buffer closed or reset"):
        next(handle.pieces())
    with buffer.dispatch(mine.x, mine.topk_idx, pieces=True) as again:
        assert sum(piece.rows for piece in again.pieces(outputs=False)) == rows_of(sent)[group.rank]
