# SPDX-License-Identifier: BSD-3-Clause
"""Arrays of received rows and the memory they look at: who keeps what alive, in numpy and in torch."""

from __future__ import annotations

import contextlib
import gc
import importlib
import weakref

import numpy as np
import pytest

import xep

T, K, E, H = 6, 2, 4, 32


@pytest.fixture
def buffer():
    with xep.Group() as group, group.buffer(E, K, H, T, dtype="float32", combine_dtype="float32", scales=2) as made:
        yield made


def dispatch(buffer: xep.Buffer, value: float = 1.0, **options) -> xep.Handle:
    idx = np.tile(np.arange(K, dtype=np.int64), (T, 1))
    return buffer.dispatch(np.full((T, H), value, np.float32), idx, np.ones((T, K), np.float32), **options)


def free(buffer: xep.Buffer) -> int:
    return buffer.info().free_slots


def test_views_are_of_the_shared_memory(buffer):
    base = np.frombuffer(buffer.memory(), np.uint8)
    with dispatch(buffer) as handle:
        for array in (handle.recv.x, handle.recv.topk_idx, handle.recv.topk_weights, handle.recv.src_token):
            assert np.shares_memory(array, base)
            assert array.flags.writeable
        assert handle.recv.x.ctypes.data == handle.numpy().x.ctypes.data, "no copy"
        del array
    del base


def test_a_dropped_handle_gives_its_slot_back_at_once(buffer):
    gc.disable()
    try:
        for _ in range(20):
            handle = dispatch(buffer)
            assert handle.recv.x.sum() == T * H
        del handle
        assert free(buffer) == 2
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "derive", [lambda x: x, lambda x: x[1:], lambda x: x.T, lambda x: x.view(np.uint32), lambda x: memoryview(x)]
)
def test_anything_derived_keeps_the_slot(buffer, derive):
    handle = dispatch(buffer, 7.0)
    array = derive(handle.recv.x)
    handle.release()
    del handle
    gc.collect()
    assert free(buffer) == 1
    dispatch(buffer, 8.0).release()
    assert np.asarray(array).view(np.float32).max() == 7.0
    del array
    assert free(buffer) == 2


def test_release_without_views_is_at_once(buffer):
    handle = dispatch(buffer)
    assert free(buffer) == 1
    handle.release()
    assert free(buffer) == 2
    handle.release()
    with pytest.raises(ValueError, match="the handle was released"):
        handle.recv
    with pytest.raises(ValueError, match="the handle was released"):
        handle.combine(np.zeros((T, H), np.float32))


def test_received_object_holds_the_handle(buffer):
    received = dispatch(buffer, 3.0).recv
    assert received.x.max() == 3.0
    received._handle.release()
    with pytest.raises(ValueError, match="the handle was released"):
        received.x
    assert free(buffer) == 2


def test_combine_input_keeps_the_slot(buffer):
    handle = dispatch(buffer)
    y = handle.combine_input()
    handle.release()
    assert free(buffer) == 1
    y[:] = 5
    del y
    assert free(buffer) == 2


def test_close_refuses_while_arrays_live():
    with xep.Group() as group:
        buffer = group.buffer(E, K, H, T, dtype="float32", combine_dtype="float32")
        array = dispatch(buffer, 2.0).recv.x
        with pytest.raises(BufferError, match="arrays of the rows of 1 dispatches are alive"):
            buffer.close()
        assert array.max() == 2.0
        with pytest.raises(BufferError):
            group.close()
        del array
        buffer.close()
        buffer.close()
        with pytest.raises(ValueError, match="the buffer is closed"):
            dispatch(buffer)


def test_memory_object_keeps_the_buffer():
    with xep.Group() as group:
        buffer = group.buffer(E, K, H, T)
        memory = memoryview(buffer.memory())
        with pytest.raises(BufferError):
            buffer.close()
        assert memory.nbytes == buffer.info().bytes
        memory.release()
        del memory
        buffer.close()


def test_close_ends_handles():
    with xep.Group() as group:
        buffer = group.buffer(E, K, H, T, dtype="float32", combine_dtype="float32")
        handle = dispatch(buffer)
        received = handle.recv
        received.x
        buffer.close()
        with pytest.raises(ValueError, match="its buffer closed"):
            handle.recv
        with pytest.raises(ValueError, match="its buffer closed"):
            received.x


def test_error_in_a_block_with_arrays_alive():
    """What the traceback's frames still hold stays mapped."""
    with pytest.raises(ZeroDivisionError):
        with xep.Group() as group, group.buffer(E, K, H, T, dtype="float32", combine_dtype="float32") as buffer:
            array = dispatch(buffer, 4.0).recv.x
            1 / 0
    assert array.max() == 4.0


def test_warnings_of_what_was_not_closed():
    group = xep.Group()
    with pytest.warns(ResourceWarning, match="xep.Group was not closed"):
        del group
        gc.collect()


def test_capacity_zero_rows(buffer):
    handle = buffer.dispatch(np.empty((0, H), np.float32), np.empty((0, K), np.int64))
    assert handle.recv.x.shape == (0, H) and handle.rows == 0 and handle.recv.topk_idx.shape == (0, K)
    assert handle.combine(handle.recv.x).shape == (0, H)


def test_torch_views_share_memory_and_keep_the_slot(buffer):
    torch = pytest.importorskip("torch")
    handle = dispatch(buffer, 6.0)
    tensor = handle.torch().x
    assert tensor.dtype == torch.float32 and tensor.data_ptr() == handle.numpy().x.ctypes.data
    part = tensor[2:].T
    handle.release()
    del handle, tensor
    gc.collect()
    assert free(buffer) == 1
    assert part.max() == 6.0
    array = part.numpy()
    exchanged = torch.from_dlpack(part)
    del part
    assert free(buffer) == 1 and array.max() == 6.0
    del array
    assert free(buffer) == 1 and exchanged.max() == 6.0
    del exchanged
    assert free(buffer) == 2


@pytest.mark.parametrize(
    "name", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "uint8", "int32", "int64", "float64"]
)
def test_torch_types(name):
    torch = pytest.importorskip("torch")
    dtype = getattr(torch, name)
    with xep.Group() as group, group.buffer(E, K, H, T, dtype=dtype) as buffer:
        x = torch.arange(T * H).remainder(64).reshape(T, H).to(dtype)
        idx = torch.zeros((T, 1), dtype=torch.int64)
        with buffer.dispatch(x, idx) as handle:
            assert handle.recv.x.dtype == dtype
            assert torch.equal(handle.recv.x.view(torch.uint8), x.view(torch.uint8))


@pytest.mark.parametrize("quant", [None, "none", "e4m3"])
def test_ml_dtypes_in_and_out(quant):
    """Also of 8 bits; None: mode normal."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    mode, options = ("normal", {}) if quant is None else ("ll", dict(quant=quant))
    with xep.Group() as group, group.buffer(E, K, 128, T, mode=mode) as buffer:
        x = (np.arange(T * 128) % 16 + 1).reshape(T, 128).astype(ml_dtypes.bfloat16)
        with buffer.dispatch(x, np.zeros((T, 1), np.int64), **options) as handle:
            assert handle.recv.x.dtype == (ml_dtypes.float8_e4m3fn if quant == "e4m3" else ml_dtypes.bfloat16)
            assert handle.numpy().x.dtype == handle.recv.x.dtype
            y = handle.combine_input()
            y[:] = x.reshape(y.shape) * ml_dtypes.bfloat16(3)
            out = handle.combine()
            assert y.dtype == out.dtype == x.dtype and (out == 3 * x.astype(np.float32)).all()
            if mode == "normal":
                y = handle.combine_input()
                y[:] = handle.recv.x
                assert (handle.combine() == x).all() and (handle.combine(handle.recv.x) == x).all()
            bits = handle.combine_input("uint16")
            assert bits.dtype == np.uint16
            del y, bits


def test_bits_of_8_bit_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for dtype in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
        with xep.Group() as group, group.buffer(E, K, H, T, dtype=dtype) as buffer:
            x = np.arange(T * H).reshape(T, H).astype(dtype)
            with buffer.dispatch(x, np.zeros((T, 1), np.int64)) as handle:
                assert handle.recv.x.dtype == dtype and (handle.recv.x.view(np.uint8) == x.view(np.uint8)).all()
                assert handle.combine_input().dtype == ml_dtypes.bfloat16


def refuse_floats(bits):
    for at, values in ((slice(None), 1.5), (0, np.ones(H, np.float32)), ((0, 0), 3.0), (..., np.ones(H))):
        with pytest.raises(TypeError, match="expected the bits of floats as uint16 .*, got float"):
            bits[at] = values
    with pytest.raises(TypeError):
        np.multiply(np.ones(H, np.float32), 2, out=bits)
    bits[:] = xep.to_bfloat16(np.full(H, 1.5, np.float32))


def test_floats_are_not_made_integers():
    """Where the input has the default type and numpy none for it: without a word 3.7 was the bits of 4.2e-45 before."""
    with xep.Group() as group, group.buffer(E, K, H, T, dtype="float32", send_memory=True) as buffer:
        refuse_floats(buffer.send_memory("bfloat16"))
        x, index = np.full((T, H), 3.7, np.float32), np.zeros((T, 1), np.int64)
        for sent in (x, x.astype(np.float16), xep.to_bfloat16(x)):
            with buffer.dispatch(sent, index) as handle:
                refuse_floats(handle.combine_input())
                assert (xep.from_bfloat16(handle.combine()) == 1.5).all()


def test_combine_has_the_type_of_its_input():
    types = ["float16"]
    with contextlib.suppress(ImportError):
        types.append(importlib.import_module("ml_dtypes").bfloat16)
    with xep.Group() as group, group.buffer(E, K, H, T, dtype="float32") as buffer:
        x = np.full((T, H), 1.5, np.float32)
        with buffer.dispatch(x, np.zeros((T, 1), np.int64)) as handle:
            for dtype in types:
                handle.combine_input(dtype)[:] = handle.recv.x * 2
                with pytest.raises(TypeError, match=r"dtype: expected None or that of combine_input\(\), got .float32"):
                    handle.combine(dtype="float32")
                out = handle.combine()
                assert out.dtype == np.dtype(dtype) and (out == 3).all()


def test_operations_do_not_leak_objects(buffer):
    """No cycles: what one step makes is gone after it, without the garbage collector."""
    gc.disable()
    try:
        handle = dispatch(buffer)
        references = [weakref.ref(handle), weakref.ref(handle.recv), weakref.ref(handle._memory)]
        request = handle.combine_async(handle.combine_input())
        references.append(weakref.ref(request))
        request.wait()
        del handle, request
        assert [reference() for reference in references] == [None] * 4
    finally:
        gc.enable()


def test_counts_of_a_released_handle_do_not_change(buffer):
    received = dispatch(buffer).recv
    received._handle.release()
    with buffer.dispatch(np.empty((0, H), np.float32), np.empty((0, K), np.int64)):
        assert received.rows == T
