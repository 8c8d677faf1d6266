# SPDX-License-Identifier: BSD-3-Clause
"""Package xep on rows in device memory: the same rows and sums as in host memory, streams, who keeps what, errors.
Where there is no device a stand-in for the driver serves (python/run-tests)."""

from __future__ import annotations

import ctypes
import gc

import cuda_memory
import numpy as np
import oracle
import pytest

import xep

EXPERTS, TOPK, HIDDEN, TOKENS = 12, 3, 40, 50
FLOATS = dict(dtype="float32", combine_dtype="float32")


def tokens_of(rank: int) -> int:
    """Differs; rank 1 has none."""
    return 0 if rank == 1 else 30 + 7 * (rank % 3)


@pytest.fixture
def driver(group):
    found = cuda_memory.driver_of(group.rank)
    if found is None:
        pytest.skip("there is no CUDA device")
    return found


@pytest.fixture
def sent(group):
    return [oracle.inputs(5, rank, tokens_of(rank), TOPK, EXPERTS, HIDDEN) for rank in range(group.nranks)]


@pytest.fixture
def buffer(group, driver):
    with group.buffer(EXPERTS, TOPK, HIDDEN, TOKENS, scales=4, memory="cuda", **FLOATS) as made:
        yield made


@pytest.fixture
def ll(group, driver):
    with group.buffer(EXPERTS, TOPK, 256, TOKENS, mode="ll", memory="cuda") as made:
        yield made


def put(driver, *arrays):
    return [cuda_memory.Array(driver, array) for array in arrays]


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


# ---- other packages ----


def test_interface_and_dlpack(group, driver, buffer, sent):
    """What a consumer is told, and who keeps the slot meanwhile."""
    mine = sent[group.rank]
    x, idx = put(driver, mine.x, mine.topk_idx)
    handle = buffer.dispatch(x, idx)
    array = handle.recv.x
    told = array.__cuda_array_interface__
    assert told["shape"] == array.shape == (handle.rows, HIDDEN) and told["typestr"] == "<f4" and told["version"] == 3
    assert array.nbytes == handle.rows * HIDDEN * 4 and len(array) == handle.rows and "DeviceArray" in repr(array)
    assert array.__dlpack_device__() == (2, driver.device)
    for wrong in (dict(copy=True), dict(dl_device=(1, 0)), dict(dl_device=(2, driver.device + 1))):
        with pytest.raises(BufferError, match="|".join(wrong)):
            array.__dlpack__(**wrong)
    capsule = array.__dlpack__(stream=None, max_version=(1, 0), dl_device=(2, driver.device), copy=False)
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    words = (ctypes.c_uint64 * 2).from_address(get(capsule, b"dltensor"))
    if handle.rows:
        assert words[0] == told["data"][0]
    assert words[1] == driver.device << 32 | 2
    rows = handle.rows
    del array
    handle.release()
    assert buffer.slots_held() == (rows > 0), "the capsule keeps the slot"
    del capsule
    gc.collect()
    assert buffer.slots_held() == 0


class Told:
    """An array of which nothing is known but DLPack."""

    def __init__(self, array, kind: int = 2) -> None:
        self._array, self._kind = array, kind

    def __dlpack_device__(self):
        return self._kind, getattr(self._array, "device", 0)

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)


def test_arrays_by_dlpack_alone(group, driver, buffer, sent):
    """Rows, indices and weights as they were received, sent on to whom they name; outputs; strides and all."""
    mine = sent[group.rank]
    x, idx, weights, out = put(driver, mine.x, mine.topk_idx, mine.topk_weights, np.full_like(mine.x, np.nan))
    with buffer.dispatch(x, idx, weights) as first:
        recv = first.recv
        assert first.combine(Told(recv.x), topk_weights=Told(recv.topk_weights), out=out, out_weights=weights)[0] is out
        copies = oracle.copies(mine, EXPERTS, group.nranks)[:, None]
        np.testing.assert_array_equal(driver.get(out), mine.x * copies)
        with group.buffer(EXPERTS, TOPK, HIDDEN, TOKENS * group.nranks, memory="cuda", **FLOATS) as wide:
            with wide.dispatch(Told(recv.x), Told(recv.topk_idx), Told(recv.topk_weights)) as second:
                with wide.dispatch(recv.x, recv.topk_idx, recv.topk_weights) as third:
                    for name in ("x", "topk_idx", "topk_weights", "src_token"):
                        one, other = (driver.get(getattr(handle.recv, name)) for handle in (second, third))
                        np.testing.assert_array_equal(one, other)
        with pytest.raises(TypeError, match="x: expected an array in the memory of CUDA device .*, got Told on DLPack"):
            buffer.dispatch(Told(recv.x, kind=10), idx)
        del recv
    with group.buffer(EXPERTS, TOPK, HIDDEN, TOKENS, **FLOATS) as host:
        with pytest.raises(TypeError, match="x: expected an array in host memory, got Told on DLPack's device"):
            host.dispatch(Told(x), mine.topk_idx)


def test_arrays_keep_their_slot(group, driver, buffer, sent):
    mine = sent[group.rank]
    x, idx = put(driver, mine.x, mine.topk_idx)
    kept = []
    for _ in range(buffer.slots):
        handle = buffer.dispatch(x, idx)
        kept.append(handle.recv.src_token)
        handle.release()
    assert buffer.slots_held() == (buffer.slots if len(kept[0]) else 0), "an array without elements keeps nothing"
    copies = [driver.get(array) for array in kept]
    np.testing.assert_array_equal(copies[0], copies[1])
    kept.clear()
    buffer.dispatch(x, idx).release()


def test_torch(group, driver, buffer, sent):
    """Tensors on torch's current stream, with torch's own results."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("torch has no CUDA device here")
    torch.cuda.set_device(driver.device)
    mine, want = sent[group.rank], oracle.received(sent, group.rank, EXPERTS)
    copies = torch.from_numpy(oracle.copies(mine, EXPERTS, group.nranks)[:, None])
    side = torch.cuda.Stream()
    for stream in (torch.cuda.current_stream(), side):
        with torch.cuda.stream(stream):
            x, idx, weights = (torch.from_numpy(a).cuda() for a in (mine.x, mine.topk_idx, mine.topk_weights))
            with buffer.dispatch(x, idx, weights) as handle:
                recv = handle.recv
                assert recv.x.is_cuda and recv.x.get_device() == driver.device and not recv.rank_rows.is_cuda
                assert torch.equal(recv.x.cpu(), torch.from_numpy(want.x))
                assert torch.equal(recv.topk_idx.cpu(), torch.from_numpy(want.topk_idx))
                y = handle.combine_input()
                torch.mul(recv.x, 2, out=y)
                out = handle.combine()
                assert out.is_cuda and torch.equal(out.cpu(), x.cpu() * 2 * copies)
                out, sums = handle.combine(recv.x.clone(), topk_weights=recv.topk_weights, bias=x)
                assert torch.equal(out.cpu(), x.cpu() * (copies + 1))
                assert torch.equal(sums.cpu(), torch.where(idx >= 0, weights, 0.0).cpu())
                del recv, y
    with pytest.raises(TypeError, match="x: expected .* the memory of CUDA device .*, got torch.strided on cpu"):
        buffer.dispatch(x.cpu(), idx)
    with buffer.dispatch(x, idx, stream=side) as handle:
        side.synchronize()
        assert torch.equal(handle.recv.x.cpu(), torch.from_numpy(want.x))


def test_torch_bfloat16_and_casts(group, driver, ll):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("torch has no CUDA device here")
    torch.cuda.set_device(driver.device)
    inputs = oracle.inputs(9, group.rank, tokens_of(group.rank), TOPK, EXPERTS, 256)
    x = torch.from_numpy(inputs.x).to(torch.bfloat16).cuda()
    idx, weights = torch.from_numpy(inputs.topk_idx).cuda(), torch.from_numpy(inputs.topk_weights).cuda()
    with ll.dispatch(x, idx, weights, quant=xep.Quant.E4M3) as handle:
        recv = handle.recv
        assert recv.x.dtype == torch.float8_e4m3fn and recv.expert_count.is_cuda
        valid = recv.topk_idx[:, 0] >= 0
        y = recv.x.to(torch.float32) * recv.scales.repeat_interleave(128, dim=1)
        out = handle.combine(torch.where(valid[:, None], y, 0.0).to(torch.bfloat16))
        want = x.float() * torch.where(idx >= 0, weights, 0.0).sum(dim=1, keepdim=True)
        assert torch.allclose(out.float(), want, rtol=0.1, atol=0.05)
        del recv


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
