# SPDX-License-Identifier: BSD-3-Clause
"""Package xep on rows in device memory: the same rows and sums as in host memory, streams, counts, errors. Where there
is no device a stand-in for the driver serves (python/run-tests)."""

from __future__ import annotations

import ctypes

import cuda_memory
import numpy as np
import oracle
import pytest
from cuda_world import EXPERTS, FLOATS, HIDDEN, TOKENS, TOPK, inputs_of, ll_buffer, normal_buffer, put, tokens_of

import xep
from xep import _ext


@pytest.fixture
def sent(group):
    return inputs_of(group.nranks)


@pytest.fixture
def buffer(group, driver):
    with normal_buffer(group) as made:
        yield made


@pytest.fixture
def ll(group, driver):
    with ll_buffer(group) as made:
        yield made


# ---- rows and sums ----


@pytest.mark.parametrize("index_type", [np.int64, np.int32])
def test_dispatch_and_combine(group, driver, buffer, sent, index_type):
    """On a stream of the program's own, which alone is waited for."""
    mine, stream = sent[group.rank], driver.stream()
    x, idx, weights = put(driver, mine.x, mine.topk_idx.astype(index_type), mine.topk_weights)
    out, out_weights = put(driver, np.full_like(mine.x, np.nan), np.full_like(mine.topk_weights, np.nan))
    assert buffer.info().device == driver.device
    with buffer.dispatch(x, idx, weights, expert_alignment=4, stream=stream) as handle:
        recv, want = handle.recv, oracle.received(sent, group.rank, EXPERTS)
        assert recv.rows == handle.rows == len(want.sources) == len(recv.x)
        assert recv.x.device == driver.device and recv.x.dtype == xep.Dtype.FP32
        np.testing.assert_array_equal(driver.get(recv.x, stream), want.x)
        np.testing.assert_array_equal(driver.get(recv.topk_idx, stream), want.topk_idx)
        np.testing.assert_array_equal(driver.get(recv.topk_weights, stream), want.topk_weights)
        np.testing.assert_array_equal(driver.get(recv.src_token, stream), [token for _, token in want.sources])
        assert isinstance(recv.expert_rows, np.ndarray), "counts of normal are in host memory"
        np.testing.assert_array_equal(recv.expert_rows, [-(-n // 4) * 4 for n in want.experts])
        assert recv.list_expert_rows() == recv.expert_rows.tolist()
        again = handle.combine(
            recv.x, topk_weights=recv.topk_weights, bias=(x, x), out=out, out_weights=out_weights, stream=stream
        )
        assert again == (out, out_weights)
        copies = oracle.copies(mine, EXPERTS, group.nranks)[:, None]
        np.testing.assert_array_equal(driver.get(out, stream), mine.x * (copies + 2))
        np.testing.assert_array_equal(driver.get(out_weights, stream), mine.topk_weights * (mine.topk_idx >= 0))


def test_ranks_are_summed_by_selection(group, driver, sent):
    """What they give shows the order: 1 counts for nothing beside 2 to the power of 30."""
    mine, parts = sent[group.rank], [2.0**30, 1.0, -(2.0**30), 3.0]
    x, idx, out = put(driver, mine.x, mine.topk_idx, np.full_like(mine.x, np.nan))
    options = dict(memory="cuda", path="flat", sum_by_selection=True, **FLOATS)
    with group.buffer(EXPERTS, TOPK, HIDDEN, TOKENS, **options) as buffer, buffer.dispatch(x, idx) as handle:
        y = put(driver, np.full((handle.rows, HIDDEN), parts[group.rank % 4], np.float32))[0]
        handle.combine(y, out=out)
        owners = np.where(mine.topk_idx >= 0, mine.topk_idx // (EXPERTS // group.nranks), -1).tolist()
        order = [list(dict.fromkeys(rank for rank in reversed(chosen) if rank >= 0))[::-1] for chosen in owners]
        want = [sum((np.float32(parts[rank % 4]) for rank in ranks), np.float32(0)) for ranks in order]
        np.testing.assert_array_equal(driver.get(out), np.repeat(np.array(want, np.float32)[:, None], HIDDEN, 1))


@pytest.mark.parametrize("tokens, index_type", [(31, np.int64), (200, np.int32), (0, np.int64)])
def test_layout(group, driver, buffer, tokens, index_type):
    """Enqueued on a stream; the counts are those of host memory."""
    given = oracle.inputs(13, group.rank, tokens, TOPK, EXPERTS, 1).topk_idx.astype(index_type)
    want, stream, nranks = xep.layout(given, EXPERTS, group.nranks, 1), driver.stream(), group.nranks
    poison = np.full((max(tokens, EXPERTS, nranks), 8), 77, np.int32)
    idx, ranks, experts, nodes = put(driver, given, *(poison.reshape(-1)[:n].copy() for n in (nranks, EXPERTS, nranks)))
    in_rank = cuda_memory.Array(driver, np.full((tokens, nranks), 77, np.uint8))
    buffer.layout(idx, ranks, experts, in_rank, tokens_per_node=nodes, ranks_per_node=1, stream=stream)
    for found, counted in zip((ranks, nodes, experts, in_rank), want):
        np.testing.assert_array_equal(driver.get(found, stream), counted)
    buffer.layout(idx, token_in_rank=in_rank, stream=stream)
    with pytest.raises(TypeError, match="topk_idx"):
        buffer.layout(given)
    with pytest.raises(ValueError, match="tokens_per_rank"):
        buffer.layout(idx, experts)
    with group.buffer(EXPERTS, TOPK, HIDDEN, TOKENS) as host, pytest.raises(xep.InvalidError, match="host memory"):
        host.layout(given)


def test_zero_copy_cached_and_scales(group, driver, buffer, sent):
    mine = sent[group.rank]
    words = np.arange(8 * len(mine.x), dtype=np.int32).reshape(-1, 8) + 1000 * group.rank
    x, idx, scales, out = put(driver, mine.x, mine.topk_idx, words, np.full_like(mine.x, np.nan))
    want = oracle.received(sent, group.rank, EXPERTS)
    with buffer.dispatch(x, idx, scales=scales.columns(4)) as first:
        with buffer.dispatch_async(x, cached=first, scales=scales.columns(4)).wait() as handle:
            np.testing.assert_array_equal(driver.get(handle.recv.x), want.x)
            found = [[1000 * s + 8 * t + k for k in range(4)] for s, t in want.sources]
            np.testing.assert_array_equal(driver.get(handle.recv.scales), np.array(found, np.int32).reshape(-1, 4))
            y = handle.combine_input()
            assert y.shape == (handle.rows, HIDDEN) and y.device == driver.device
            if handle.rows:
                driver.put(y.__cuda_array_interface__["data"][0], rows_of(y, want.x * 3))
            assert handle.combine(out=out) is out
            sums = mine.x * 3 * oracle.copies(mine, EXPERTS, group.nranks)[:, None]
            np.testing.assert_array_equal(driver.get(out), sums)
            del y


def test_rows_by_expert(group, driver, buffer, sent):
    """A row for each selection, and back: into the input of the combine, which copies nothing."""
    mine, want, local = sent[group.rank], oracle.received(sent, group.rank, EXPERTS), EXPERTS // group.nranks
    x, idx, weights = put(driver, mine.x, mine.topk_idx, mine.topk_weights)
    if is_staged(buffer):
        with buffer.dispatch(x, idx) as handle, pytest.raises(xep.UnsupportedError, match="all ranks map one another"):
            handle.expand(*put(driver, np.zeros((handle.rows, TOPK), np.int32), *np.zeros((2, local), np.int64)))
        return
    slots, begin, room = np.full(want.topk_idx.shape, -1, np.int32), np.zeros(local, np.int64), 0
    for expert in range(local):
        begin[expert] = room
        rows, ks = np.nonzero(want.topk_idx == expert)
        slots[rows, ks] = room + np.arange(len(rows))
        room += -(-len(rows) // 4) * 4
    expanded, spread, here = np.zeros((room, HIDDEN), np.float32), np.zeros(room, np.float32), slots >= 0
    expanded[slots[here]], spread[slots[here]] = want.x[np.nonzero(here)[0]], want.topk_weights[here]
    out, back = put(driver, np.full_like(mine.x, np.nan), np.full(want.topk_weights.shape, np.nan, np.float32))
    there = put(driver, slots * 0, begin * 0, begin * 0, expanded * np.nan, spread * np.nan)
    with buffer.dispatch(x, idx, weights, will_expand=True) as handle:
        handle.expand(*there, expert_alignment=4, zero=True)
        counts = [int((want.topk_idx == expert).sum()) for expert in range(local)]
        for found, expected in zip(there, (slots, begin, np.array(counts), expanded, spread)):
            np.testing.assert_array_equal(driver.get(found), expected)
        y = handle.combine_input()
        handle.reduce(there[3], there[0], y, there[4], back)
        np.testing.assert_array_equal(driver.get(back), np.where(here, want.topk_weights, 0))
        assert handle.combine(out=out) is out
        chosen = (mine.topk_idx >= 0).sum(axis=1, dtype=np.float32)[:, None]
        np.testing.assert_array_equal(driver.get(out), mine.x * chosen)
        (again,) = put(driver, np.full_like(mine.x, np.nan))
        assert handle.combine(there[3], slots=there[0], out=again) is again
        np.testing.assert_array_equal(driver.get(again), mine.x * chosen)
        y = handle.combine_input()
        with pytest.raises(xep.InvalidError, match="slots without x"):
            handle.combine(slots=there[0], out=again)
        with pytest.raises(TypeError, match="slots"):
            handle.expand(there[1], there[1], there[2])
        del y


def is_staged(buffer):
    """Some ranks are not mapped: the mode is that of host memory."""
    return not buffer.info().mode.endswith("cuda")


def test_counts_stay_there(group, driver, buffer, sent):
    """Nothing is waited for: rows is the capacity, and the counts are arrays of the device; a cached dispatch, too."""
    mine, want, room = sent[group.rank], oracle.received(sent, group.rank, EXPERTS), TOKENS * group.nranks
    rows, sources = len(want.sources), [source for source, _ in want.sources]
    x, idx, out = put(driver, mine.x, mine.topk_idx, np.full_like(mine.x, np.nan))
    how = dict(capacity=room, counts_there=True, stream=driver.stream())
    if is_staged(buffer):
        with pytest.raises(xep.UnsupportedError, match="XEP_DISPATCH_COUNTS_THERE .not on"):
            buffer.dispatch(x, idx, **how)
        return
    with buffer.dispatch(x, idx, expert_alignment=4, **how) as first:
        with buffer.dispatch_async(x, cached=first, expert_alignment=4, **how).wait() as handle:
            for recv in (first.recv, handle.recv):
                assert recv.rows == recv.capacity == len(recv.x) == room
                begins = driver.get(recv.src_begin, how["stream"])
                np.testing.assert_array_equal(begins, np.searchsorted(sources, range(group.nranks + 1)))
                np.testing.assert_array_equal(driver.get(recv.expert_rows), [-(-n // 4) * 4 for n in want.experts])
                assert driver.get(recv.rank_rows).sum(0)[group.rank] == rows
                np.testing.assert_array_equal(driver.get(recv.x)[:rows], want.x)
                idx_there = driver.get(recv.topk_idx)
                np.testing.assert_array_equal(idx_there[:rows], want.topk_idx)
                assert (idx_there[rows:] == -1).all()
                with pytest.raises(TypeError, match="list_expert_rows: expected counts in host memory"):
                    recv.list_expert_rows()
            assert handle.combine(handle.recv.x, out=out, stream=how["stream"]) is out
            copies = oracle.copies(mine, EXPERTS, group.nranks)[:, None]
            np.testing.assert_array_equal(driver.get(out, how["stream"]), mine.x * copies)
            del recv
        with pytest.raises(xep.InvalidError, match="as the cached handle has"):
            buffer.dispatch(x, cached=first, capacity=room)
    with pytest.raises(xep.InvalidError, match="invalid capacity: 0"):
        buffer.dispatch(x, idx, counts_there=True)


def test_counts_there_with_too_little_room(group, driver, buffer, sent):
    """Told by a later call; after a reset all is well."""
    if is_staged(buffer):
        pytest.skip("rows are staged")
    x, idx = put(driver, sent[group.rank].x, sent[group.rank].topk_idx)
    buffer.dispatch(x, idx, capacity=1, counts_there=True).release()
    driver.wait()
    with pytest.raises(xep.XepError, match="it has room for 1") as told:
        buffer.dispatch(x, idx)
    assert told.value.status == xep.Status.ERR_PROTOCOL
    buffer.reset()
    buffer.dispatch(x, idx).release()


def test_counts_there_only_on_devices(group, driver, ll, sent):
    """Mode ll has them there in any case; in host memory they are nowhere else than there."""
    mine = oracle.inputs(9, group.rank, tokens_of(group.rank), TOPK, EXPERTS, 256)
    x, idx, weights = put(driver, xep.to_bfloat16(mine.x), mine.topk_idx, mine.topk_weights)
    with ll.dispatch(x, idx, weights, dtype="bfloat16", counts_there=not is_staged(ll)) as handle:
        assert handle.recv.expert_count.device == driver.device
    with group.buffer(EXPERTS, TOPK, HIDDEN, TOKENS, **FLOATS) as host:
        with pytest.raises(xep.UnsupportedError, match="XEP_DISPATCH_COUNTS_THERE .without XEP_MEMORY_CUDA"):
            host.dispatch(sent[group.rank].x, sent[group.rank].topk_idx, capacity=200, counts_there=True)


def rows_of(array, values):
    """values as they lie in the array, with what is between its rows."""
    stride = array.strides[0] // values.itemsize
    wide = np.zeros((len(values), stride), values.dtype)
    wide[:, : values.shape[1]] = values
    return wide.reshape(-1)[: (len(values) - 1) * stride + values.shape[1]]


@pytest.mark.parametrize("quant", [xep.Quant.NONE, xep.Quant.E4M3, xep.Quant.UE8M0])
def test_ll_as_in_host_memory(group, driver, ll, quant):
    """Both phases, rows by expert: every byte and every count as in host memory."""
    inputs = oracle.inputs(9, group.rank, tokens_of(group.rank), TOPK, EXPERTS, 256)
    bits, options = xep.to_bfloat16(inputs.x / 3), dict(quant=quant, dtype="bfloat16")
    x, idx, weights, out = put(driver, bits, inputs.topk_idx, inputs.topk_weights, np.zeros_like(bits))
    stats = cuda_memory.Array(driver, np.zeros(ll.local_experts, np.int32))
    with group.buffer(EXPERTS, TOPK, 256, TOKENS, mode="ll") as host:
        with host.dispatch(bits, inputs.topk_idx, inputs.topk_weights, **options) as there:
            request = ll.dispatch_async(x, idx, weights, expert_stats=stats, **options)
            with request.wait() as here:
                counts = driver.get(here.recv.expert_count)
                np.testing.assert_array_equal(counts, there.recv.expert_count)
                np.testing.assert_array_equal(driver.get(stats), counts)
                for name in ("expert_begin", "expert_rows", "pair_begin", "pair_count"):
                    np.testing.assert_array_equal(driver.get(getattr(here.recv, name)), getattr(there.recv, name))
                with pytest.raises(TypeError, match="list_expert_rows: expected counts in host memory"):
                    here.recv.list_expert_rows()
                rows = there.rows
                for name in ("x", "scales", "src_token", "topk_idx"):
                    if getattr(there.recv, name) is not None:
                        found = driver.get(getattr(here.recv, name))[:rows]
                        np.testing.assert_array_equal(found, getattr(there.recv, name)[:rows])
                y = there.combine_input()
                y[:] = xep.to_bfloat16(np.arange(y.size).reshape(y.shape) % 97 / 7)
                full = np.zeros((here.recv.capacity, 256), np.uint16)
                full[:rows] = y
                assert here.combine(cuda_memory.Array(driver, full), out=out, dtype="bfloat16") is out
                np.testing.assert_array_equal(driver.get(out), there.combine())
                del y


# ---- what is wrong ----


def test_wrong_memory(group, driver, buffer, sent):
    """Told before anything is sent, with the name of the argument."""
    mine = sent[0]
    x, idx, weights = put(driver, mine.x, mine.topk_idx, mine.topk_weights)
    there = f"expected an array in the memory of CUDA device {driver.device}, got"
    for name, args in {"x": (mine.x, idx), "topk_idx": (x, mine.topk_idx)}.items():
        with pytest.raises(TypeError, match=f"{name}: {there} .* array of shape"):
            buffer.dispatch(*args)
    with pytest.raises(TypeError, match=f"topk_weights: {there} float32 array"):
        buffer.dispatch(x, idx, mine.topk_weights)
    with pytest.raises(TypeError, match="topk_idx: expected INT32 or INT64 of shape .*, got float32 CUDA array"):
        buffer.dispatch(x, weights)
    with pytest.raises(TypeError, match="stream: expected a CUDA stream, or its address, got str"):
        buffer.dispatch(x, idx, stream="main")
    with group.buffer(EXPERTS, TOPK, HIDDEN, TOKENS, **FLOATS) as host:
        with pytest.raises(TypeError, match="x: expected an array in host memory, got float32 CUDA array of shape"):
            host.dispatch(x, idx)
        with pytest.raises(TypeError, match="topk_idx: expected an array in host memory"):
            xep.layout(idx, EXPERTS, group.nranks)
    with pytest.raises(ValueError, match='memory: expected "host" or "cuda", got \'gpu\''):
        group.buffer(EXPERTS, TOPK, HIDDEN, TOKENS, memory="gpu")


def test_order_of_streams(group, driver):
    """What one has to do is done when another, or the host, has waited for it."""
    size, streams = 32 << 20, [driver.stream() for _ in range(2)]
    address, found = driver.allocate(size), np.zeros(1, np.uint8)
    last = ctypes.c_uint64(address + size - 1)
    for value, wait in enumerate((
        lambda: _ext.stream_wait(driver.device, streams[1], streams[0]),
        lambda: _ext.Event(driver.device, streams[0]).wait(streams[1]),
        lambda: _ext.Event(driver.device, streams[0]).synchronize(),
    ), 1):  # fmt: skip
        first = ctypes.c_void_p(streams[0])
        driver._call("cuMemsetD8Async", ctypes.c_uint64(address), value, ctypes.c_size_t(size), first)
        wait()
        driver._call("cuMemcpyDtoHAsync_v2", ctypes.c_void_p(found.ctypes.data), last, ctypes.c_size_t(1),
                     ctypes.c_void_p(streams[1]))  # fmt: skip
        driver.wait(streams[1])
        assert found[0] == value
    driver.free(address)
    _ext.stream_wait(driver.device, streams[0], streams[0])
    assert _ext.Event(driver.device, streams[0]).record(streams[1])
    with pytest.raises(RuntimeError, match="device: expected a CUDA device, got 64"):
        _ext.Event(64, 0)
    with pytest.raises(TypeError, match="Event: expected a device and a stream by position"):
        _ext.Event(device=0, stream=0)


def test_wrong_output(group, driver, buffer):
    mine = oracle.inputs(5, group.rank, 7, TOPK, EXPERTS, HIDDEN)
    x, idx, out = put(driver, mine.x, mine.topk_idx, mine.x)
    with buffer.dispatch(x, idx) as handle:
        with pytest.raises(TypeError, match="out: expected an array to write to .xep allocates no device memory"):
            handle.combine()
        with pytest.raises(TypeError, match="out: expected an array in the memory of CUDA device"):
            handle.combine(out=mine.x)
        with pytest.raises(TypeError, match="numpy: expected rows in host memory"):
            handle.numpy()
        handle.combine_input()
        handle.combine(out=out)
        driver.wait()


def test_stream_of_a_host_buffer(group):
    if group.nranks > 1:
        pytest.skip("a rank of its own refuses alone")
    with group.buffer(EXPERTS, TOPK, HIDDEN, TOKENS, **FLOATS) as host:
        mine = oracle.inputs(5, 0, 7, TOPK, EXPERTS, HIDDEN)
        with pytest.raises(xep.InvalidError, match="invalid stream: 0x1 .NULL: the buffer is in host memory"):
            host.dispatch(mine.x, mine.topk_idx, stream=1)


def test_sizes(group):
    options = dict(experts=EXPERTS, topk=TOPK, hidden=HIDDEN, tokens=TOKENS, **FLOATS)
    assert xep.buffer_size(2, **options).device_bytes == 0
    with group.buffer(**options) as host:
        assert host.info().device == -1
    if cuda_memory.driver_of(group.rank) is not None:
        size = xep.buffer_size(2, memory="cuda", **options)
        assert size.device_bytes > TOKENS * HIDDEN * 4


def test_no_driver(group):
    """An error of every rank, and the group goes on."""
    if cuda_memory.driver_of(group.rank) is not None:
        pytest.skip("there is a driver")
    with pytest.raises(xep.UnsupportedError, match="no driver for CUDA devices|finds no CUDA device"):
        group.buffer(EXPERTS, TOPK, HIDDEN, TOKENS, memory="cuda")
    group.barrier()
