# SPDX-License-Identifier: BSD-3-Clause
"""Rows of package xep in device memory as other packages see them: CUDA's array interface, DLPack, torch; and who keeps
their slot meanwhile. Where there is no device a stand-in for the driver serves (python/run-tests), but not for torch.
"""

from __future__ import annotations

import ctypes
import gc

import numpy as np
import oracle
import pytest
from cuda_world import EXPERTS, FLOATS, HIDDEN, TOKENS, TOPK, inputs_of, ll_buffer, normal_buffer, put, tokens_of

import xep


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
