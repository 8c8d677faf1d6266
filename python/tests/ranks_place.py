# SPDX-License-Identifier: BSD-3-Clause
"""Rows read in place, from Python: the memory for them, their addresses, and the dense array."""

from __future__ import annotations

import ctypes

import numpy as np
import oracle
import pytest

import xep

EXPERTS, TOPK, HIDDEN, TOKENS = 12, 3, 40, 50


def tokens_of(rank: int) -> int:
    """Differs; rank 1 has none, rank 2 a single one."""
    return [TOKENS, 0, 1, 37][rank % 4]


@pytest.fixture
def sent(group):
    return [oracle.inputs(9, rank, tokens_of(rank), TOPK, EXPERTS, HIDDEN) for rank in range(group.nranks)]


@pytest.fixture
def buffer(group):
    with group.buffer(
        EXPERTS, TOPK, HIDDEN, TOKENS, dtype="float32", combine_dtype="float32", threads=2, send_memory=True
    ) as made:
        yield made


def rows_at(received: xep.Received) -> np.ndarray:
    """What lies at the addresses."""
    size = received.hidden * 4
    rows = [ctypes.string_at(int(at), size) for at in received.row_addresses[: received.rows]]
    return np.frombuffer(b"".join(rows), np.float32).reshape(-1, received.hidden)


def send(buffer, mine, times: float = 1, torch: bool = False):
    rows = buffer.send_memory(torch=torch)
    assert tuple(rows.shape) == (TOKENS, HIDDEN)
    rows = rows[: len(mine.x)]
    if torch:
        import torch as module

        rows[:] = module.from_numpy(mine.x * np.float32(times))
        return buffer.dispatch(rows, module.from_numpy(mine.topk_idx), in_place=True)
    rows[:] = mine.x * np.float32(times)
    return buffer.dispatch(rows, mine.topk_idx, in_place=True)


@pytest.mark.parametrize("torch", [False, True])
def test_rows_stay_where_they_are(group, buffer, sent, torch):
    if torch:
        pytest.importorskip("torch", reason="torch is not installed")
    mine, want = sent[group.rank], oracle.received(sent, group.rank, EXPERTS)
    for step in range(1, 6):
        with send(buffer, mine, step, torch) as handle:
            received = handle.numpy()
            assert received.x is None and handle.recv.x is None
            assert received.row_addresses.dtype == np.int64
            np.testing.assert_array_equal(rows_at(received), np.float32(step) * want.x)
            dense = handle.gather()
            assert isinstance(dense, np.ndarray) != torch
            np.testing.assert_array_equal(np.asarray(dense), np.float32(step) * want.x)
            out = handle.combine(dense)
            copies = oracle.copies(mine, EXPERTS, group.nranks)[:, None]
            np.testing.assert_array_equal(np.asarray(out), np.float32(step) * mine.x * copies)
            del received


def test_own_rows_are_not_moved(group, buffer, sent):
    rows = buffer.send_memory()
    begin, stride = rows.ctypes.data, rows.strides[0]
    mine = sent[group.rank]
    rows[: len(mine.x)] = mine.x
    with buffer.dispatch(rows[: len(mine.x)], mine.topk_idx, in_place=True) as handle:
        received = handle.recv
        own = slice(int(received.src_begin[group.rank]), int(received.src_begin[group.rank + 1]))
        at = begin + stride * received.src_token[own].astype(np.int64)
        np.testing.assert_array_equal(received.row_addresses[own], at)
        del received
    del rows


def test_rows_from_elsewhere_and_copied_ones(group, buffer, sent):
    mine, want = sent[group.rank], oracle.received(sent, group.rank, EXPERTS)
    with buffer.dispatch(mine.x, mine.topk_idx, in_place=True, capacity=len(want.x) + 9) as handle:
        assert not handle.recv.row_addresses[len(want.x) :].any()
        np.testing.assert_array_equal(rows_at(handle.recv), want.x)
    with buffer.dispatch(mine.x, mine.topk_idx) as handle:
        assert handle.recv.row_addresses is None
        wide = np.full((handle.rows, HIDDEN + 3), -1, np.float32)
        out = wide[:, :HIDDEN]
        assert handle.gather(out) is out
        np.testing.assert_array_equal(out, want.x)
        assert (wide[:, HIDDEN:] == -1).all()


def test_addresses_keep_the_rows(group, buffer, sent):
    """An array of addresses that is alive keeps the sources from getting that memory again."""
    mine, want = sent[group.rank], oracle.received(sent, group.rank, EXPERTS)
    handle = send(buffer, mine)
    kept = handle.recv.row_addresses
    handle.release()
    for step in range(2, 6):
        send(buffer, mine, step).release()
    rows = [ctypes.string_at(int(at), HIDDEN * 4) for at in kept]
    np.testing.assert_array_equal(np.frombuffer(b"".join(rows), np.float32).reshape(-1, HIDDEN), want.x)
    group.barrier()
    del kept


def test_wrong_arguments(group, buffer, sent):
    mine = sent[group.rank]
    with pytest.raises(ValueError, match="dtype: expected one of at most the buffer's 4 bytes, got one of 8"):
        buffer.send_memory("int64")
    assert buffer.send_memory("bfloat16").shape == (TOKENS, HIDDEN)
    with buffer.dispatch(mine.x, mine.topk_idx, in_place=True) as handle:
        with pytest.raises(ValueError, match="out: "):
            handle.gather(np.empty((handle.rows + 1, HIDDEN), np.float32))
        with pytest.raises((TypeError, ValueError), match="out: "):
            handle.gather(np.empty((handle.rows, HIDDEN), np.float16))
    with pytest.raises(ValueError, match="the handle was released"):
        handle.gather()
    rows = buffer.send_memory()
    with pytest.raises(BufferError):
        buffer.close()
    del rows


def test_a_buffer_without(group, sent):
    mine = sent[group.rank]
    with group.buffer(EXPERTS, TOPK, HIDDEN, TOKENS, dtype="float32", combine_dtype="float32") as made:
        with pytest.raises(xep.UnsupportedError, match="XEP_BUFFER_SEND_MEMORY"):
            made.send_memory()
        with pytest.raises(xep.UnsupportedError, match="XEP_BUFFER_SEND_MEMORY"):
            made.dispatch(mine.x, mine.topk_idx, in_place=True)


@pytest.mark.parametrize("quant", [xep.Quant.NONE, xep.Quant.E4M3])
@pytest.mark.parametrize("arrangement", [None, xep.Rows.BY_EXPERT_PADDED])
def test_rows_by_expert(group, sent, quant, arrangement):
    """Each row is what a dispatch that copies brings; where none came there is no address."""
    mine = sent[group.rank]
    how = dict(quant=quant, arrangement=arrangement)
    with group.buffer(EXPERTS, TOPK, HIDDEN, TOKENS, mode="ll", dtype="float32", slots=3, send_memory=True) as made:
        rows = made.send_memory()[: len(mine.x)]
        rows[:] = mine.x
        with (
            made.dispatch(mine.x, mine.topk_idx, **how) as copied,
            made.dispatch(rows, mine.topk_idx, in_place=True, **how) as handle,
        ):
            want, got = copied.recv, handle.recv
            assert got.x is None and want.row_addresses is None
            dense, x = np.asarray(handle.gather()), np.asarray(want.x).reshape(-1, HIDDEN)
            size = HIDDEN * x.itemsize
            came = np.zeros(len(got.row_addresses), bool)
            for begin, count in zip(got.expert_begin, got.expert_count):
                for row in range(int(begin), int(begin + count)):
                    bytes_there = ctypes.string_at(int(got.row_addresses[row]), size)
                    assert bytes_there == x[row].tobytes() == dense[row].tobytes()
                    came[row] = True
            assert ((got.row_addresses != 0) == came).all()
            del want, got, x
        del rows
