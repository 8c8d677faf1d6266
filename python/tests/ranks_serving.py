# SPDX-License-Identifier: BSD-3-Clause
"""Ranks that serve, from Python: two layers against one process, how a call ends, what a function may and may not."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest
from conftest import as_kind, communicator, meet

import xep

EXPERTS, TOPK, HIDDEN, TOKENS, LAYERS, STEPS = 8, 3, 24, 11, 2, 3
SHAPE = (EXPERTS, TOPK, HIDDEN, TOKENS)
FP32 = dict(dtype="float32", combine_dtype="float32")


@pytest.fixture(autouse=True)
def several(group):
    if group.nranks == 1:
        pytest.skip("needs a rank that works and one that serves")


def serves(group) -> bool:
    """All but rank 0 and, of four, rank 2."""
    return group.rank % 2 == 1 or group.rank > 2


def routing_of(rank: int, step: int, layer: int):
    """With weights whose sums of whole numbers are exact."""
    random = np.random.default_rng([rank, step, layer])
    idx = np.array([random.permutation(EXPERTS)[:TOPK] for _ in range(TOKENS)])
    idx[random.random(idx.shape) < 0.1] = -1
    return idx, 2.0 ** random.integers(-1, 2, idx.shape).astype(np.float32)


def tokens_of(rank: int, step: int):
    return np.random.default_rng([rank, step]).integers(-4, 5, (TOKENS, HIDDEN)).astype(np.float32)


def factor(experts, layer: int):
    return (np.asarray(experts) + 1 + layer * 2).astype(np.float32)


def outputs_of(received, layer: int):
    """The sum over this rank's experts; mode ll gives the weights in combine, normal here."""
    rows = np.asarray(received.x).reshape(-1, HIDDEN)[: received.rows]
    local = np.asarray(received.topk_idx)[: received.rows]
    scale = np.array([*factor(received.experts, layer), 0], np.float32)[local]
    if received.topk_weights is not None:
        scale = scale * np.asarray(received.topk_weights)[: received.rows]
    return rows * scale.sum(axis=1, keepdims=True, dtype=np.float32)


def work(group, buffers, step: int, last: bool = False) -> None:
    x = tokens_of(group.rank, step)
    if step == 2 and len(buffers) == 1:
        buffers[0].announce_layers(LAYERS)
        with pytest.raises(xep.InvalidError, match="this rank has announced a dispatch"):
            buffers[0].step_end()
    expected = x.copy()
    for layer in range(LAYERS):
        for buffer in buffers:
            idx, weights = routing_of(group.rank, step, layer)
            with buffer.dispatch(x, idx, weights) as handle:
                out = handle.combine(outputs_of(handle.recv, layer))
            if layer + 1 < LAYERS and step == 1:
                buffer.announce_dispatch()
                with pytest.raises(xep.InvalidError, match="this rank has announced a dispatch"):
                    buffer.step_end()
            scale = (weights * factor(idx, layer) * (idx >= 0)).sum(axis=1, keepdims=True)
            expected = x * scale
            np.testing.assert_array_equal(out, expected)
        x = np.clip(expected, -8, 8)
    xep.step_end(buffers, last=last)


@pytest.mark.parametrize("mode", ["normal", "ll"])
@pytest.mark.parametrize("way", ["returns", "writes", "torch"])
def test_two_layers(group, mode, way):
    if way == "torch":
        pytest.importorskip("torch")
    calls = []

    def experts(call):
        assert call.buffer is buffer and call.handle.recv.rows == call.handle.rows
        calls.append((call.step, call.dispatch))
        outputs = outputs_of(call.handle.recv, call.dispatch)
        if way != "writes":
            return as_kind("torch" if way == "torch" else "numpy", outputs)
        y = call.handle.combine_input()
        y.reshape(-1, HIDDEN)[: call.handle.rows] = outputs
        return None

    with group.buffer(*SHAPE, mode=mode, served=True, **FP32) as buffer:
        if serves(group):
            assert buffer.serve(experts, torch=way == "torch") is None
            assert calls == [(step, layer) for step in range(STEPS) for layer in range(LAYERS)]
        else:
            for step in range(STEPS):
                work(group, [buffer], step, last=step + 1 == STEPS)


def test_two_buffers_and_a_stop_by_another_thread(group):
    """A rank that serves the first steps works in the last one."""
    calls = []

    def experts(call):
        calls.append(call.step)
        if call.step == STEPS - 2:
            stopper = threading.Thread(target=buffers[1].serve_stop)
            stopper.start()
            stopper.join()
        return outputs_of(call.handle.recv, call.dispatch)

    with (
        group.buffer(*SHAPE, mode="normal", served=True, **FP32) as normal,
        group.buffer(*SHAPE, mode="ll", served=True, **FP32) as ll,
    ):
        buffers = [normal, ll]
        for step in range(STEPS):
            if not serves(group):
                work(group, buffers, step)
            elif step == 0:
                xep.serve(buffers, experts)
                assert sorted(set(calls)) == list(range(STEPS - 1))
            elif step == STEPS - 1:
                work(group, buffers, step)


def test_weights_come_back(group):
    """The function returns those of its rows; a rank that works gets their sums."""

    def experts(call):
        weights = call.handle.recv.topk_weights
        return outputs_of(call.handle.recv, 0), weights * np.float32(2)

    idx, weights = routing_of(group.rank, 0, 0)
    with group.buffer(*SHAPE, mode="normal", served=True, **FP32) as buffer:
        if serves(group):
            buffer.serve(experts)
        else:
            with buffer.dispatch(tokens_of(group.rank, 0), idx, weights) as handle:
                received = handle.recv
                _, back = handle.combine(outputs_of(received, 0), topk_weights=received.topk_weights * np.float32(2))
                np.testing.assert_array_equal(back, np.where(idx >= 0, weights * 2, 0))
                del received
            buffer.step_end(last=True)


def test_a_function_that_raises(group):
    """As itself where it was raised, elsewhere as an error that names the rank; a reset makes the buffer whole."""
    idx, weights = routing_of(group.rank, 0, 0)
    with group.buffer(*SHAPE, served=True, **FP32) as buffer:

        def wrong(call):
            if group.rank == 1:
                raise KeyError("no such expert")
            return outputs_of(call.handle.recv, 0)

        if serves(group):
            with pytest.raises(KeyError if group.rank == 1 else xep.FunctionError, match="no such|rank 1"):
                buffer.serve(wrong)
        else:
            with pytest.raises(xep.FunctionError, match="rank 1") as caught:
                with buffer.dispatch(tokens_of(group.rank, 0), idx, weights) as handle:
                    handle.combine(outputs_of(handle.recv, 0))
            assert caught.value.status == xep.Status.ERR_FUNCTION
            del caught
        buffer.reset()
        if serves(group):
            buffer.serve(lambda call: outputs_of(call.handle.recv, call.dispatch))
        else:
            work(group, [buffer], 0, last=True)


@pytest.mark.parametrize("way", ["told", "only one"])
def test_the_expert_that_failed(group, way):
    """Every rank hears its global number: of the exception, or where no other one has rows."""
    local = 1
    bad = xep.expert_range(EXPERTS, group.nranks, 1)[0] + local
    idx = np.full((TOKENS, TOPK), -1)
    idx[:, 0] = bad
    if way == "told":
        idx[:, 1] = bad - local

    def wrong(call):
        error = KeyError("no such weights")
        if way == "told":
            error.expert = local
        if call.handle.rows:
            raise error

    with group.buffer(*SHAPE, served=True, **FP32) as buffer:
        with pytest.raises(KeyError if group.rank == 1 else xep.FunctionError, match=f"such weights|, expert {bad}[)]"):
            if serves(group):
                buffer.serve(wrong)
            else:
                with buffer.dispatch(tokens_of(group.rank, 0), idx) as handle:
                    handle.combine(handle.recv.x * 0)
        buffer.reset()


def test_what_a_function_may_not(group):
    """Each mistake is an exception in it, and the step goes on; what is kept of its rows has no rows any more."""
    kept = []

    def experts(call):
        handle, buffer = call.handle, call.buffer
        for wrong in (
            lambda: buffer.dispatch(np.zeros((1, HIDDEN), np.float32), np.zeros((1, 1), np.int64)),
            lambda: handle.combine(),
            buffer.reset,
            buffer.close,
            lambda: buffer.serve(experts),
            buffer.step_end,
        ):
            with pytest.raises(ValueError, match="the buffer is being served"):
                wrong()
        outputs = outputs_of(handle.recv, call.dispatch)
        kept.append(handle)
        if call.dispatch == 1:
            handle.release()
        else:
            return outputs
        with pytest.raises(ValueError, match="the handle was released"):
            handle.combine_input()
        raise StopIteration("no more")

    with group.buffer(*SHAPE, served=True, **FP32) as buffer:
        if serves(group):
            with pytest.raises(StopIteration):
                buffer.serve(experts)
            for handle in kept:
                with pytest.raises(ValueError, match="the handle was released"):
                    handle.combine_input()
            del handle
            kept.clear()
        else:
            with pytest.raises(xep.FunctionError):
                work(group, [buffer], 0)
        buffer.reset()


@pytest.mark.parametrize(
    "result, text",
    [
        ("rows", "x: expected a"),
        (np.zeros((1000, HIDDEN), np.float32), "x: expected"),
        ((None, None, None), "function: expected outputs and topk_weights, got a tuple of 3"),
        (np.zeros((100, HIDDEN), np.int64), "x: "),
    ],
)
def test_outputs_that_are_none(group, result, text):
    """Of whichever rank fails first; the error of others names it."""
    with group.buffer(*SHAPE, served=True, **FP32) as buffer:
        if serves(group):
            reason = f"{text}|expert function (of a rank )?failed"
            with pytest.raises((TypeError, ValueError, xep.FunctionError), match=reason):
                buffer.serve(lambda call: result)
        else:
            with pytest.raises(xep.FunctionError):
                work(group, [buffer], 0)
        buffer.reset()


def test_what_is_refused(group):
    with group.buffer(*SHAPE, **FP32) as plain, group.buffer(*SHAPE, served=True, **FP32) as buffer:
        with pytest.raises(xep.UnsupportedError, match="XEP_BUFFER_SERVED"):
            plain.serve(print)
        with pytest.raises(xep.UnsupportedError, match="XEP_BUFFER_SERVED"):
            plain.step_end()
        for call in (lambda: xep.serve([], print), lambda: xep.step_end([])):
            with pytest.raises(xep.InvalidError, match="no buffers"):
                call()
        with pytest.raises(TypeError, match=r"buffers\[1\]: expected a Buffer, got 3"):
            xep.serve([buffer, 3], print)
        with pytest.raises(ValueError, match="timeout"):
            buffer.serve(print, timeout=-1)
        buffer.serve_stop()
        buffer.serve(print)  # there is no step under way
    with pytest.raises(ValueError, match="the buffer is closed"):
        buffer.serve(print)


def test_ctrl_c():
    """Of a group of its own, which it ends: the rank that serves raises KeyboardInterrupt, others AbortedError."""
    with pytest.raises((KeyboardInterrupt, xep.AbortedError)) as caught:
        with xep.Group(communicator()) as own, own.buffer(*SHAPE, served=True, **FP32) as buffer:
            meet()
            if own.rank == own.nranks - 1:
                threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
                buffer.serve(print)
            buffer.serve(print)
    assert caught.type is (KeyboardInterrupt if own.rank == own.nranks - 1 else xep.AbortedError)
