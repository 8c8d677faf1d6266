# SPDX-License-Identifier: BSD-3-Clause
"""What programs do wrong or cannot help: forks, defaults of torch, ranks that are late or disagree, dropped Buffers."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref

import numpy as np
import pytest
from conftest import communicator, meet

import xep

torch = pytest.importorskip("torch", reason="torch is not installed")
from low_latency_world import World  # noqa: E402
from normal_world import HIDDEN, layout_arguments, make_world  # noqa: E402

import deep_ep  # noqa: E402


def need_several(group) -> None:
    if group.nranks == 1:
        pytest.skip("needs more than one rank")


def in_a_fork(program) -> None:
    """It must come to its end."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            program()
            status = 0
        finally:
            os._exit(status)
    end = time.monotonic() + 100
    while (done := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < end:
        time.sleep(0.01)
    if done == (0, 0):
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert done[1] == 0


def send(world, value: float):
    idx, weights = world.topk_idx[world.rank], world.weights[world.rank]
    x = torch.full((len(idx), HIDDEN), value, dtype=torch.bfloat16)
    arguments = layout_arguments(world.buffer.get_dispatch_layout(idx, world.experts))
    return world.buffer.dispatch(x, topk_idx=idx, topk_weights=weights, **arguments)


def test_a_fork_has_errors_and_its_parent_right_results(group):
    tokens = 5
    idx = torch.arange(2 * tokens).reshape(tokens, 2) % (2 * group.nranks)
    weights = torch.ones((tokens, 2))
    with group.buffer(2 * group.nranks, 2, 16, tokens, dtype="float32", combine_dtype="float32") as buffer:

        def program() -> None:
            for call in (
                lambda: buffer.dispatch(torch.ones((tokens, 16)), idx, weights),
                lambda: buffer.dispatch_async(torch.ones((tokens, 16)), idx, weights),
                lambda: handle.combine(handle.recv.x),
                lambda: handle.combine_async(torch.ones((tokens, 16))),
                lambda: handle.recv,
                lambda: group.allgather(b""),
                lambda: group.buffer(2, 2, 16, tokens),
                lambda: group.peer(0),
                handle.combine_input,
                buffer.info,
                buffer.waits,
                buffer.memory,
                buffer.send_memory,
                buffer.reset,
                group.barrier,
                group.shrink,
                group.grow,
                request.wait,
                request.done,
            ):
                with pytest.raises(RuntimeError, match="forked off"):
                    call()
            handle.release()
            buffer.close()
            group.close()
            with xep.Group(allgather=lambda data: [data], rank=0, nranks=1) as own:
                assert own.nranks == 1

        for step in range(3):
            request = buffer.dispatch_async(torch.full((tokens, 16), float(step)), idx, weights)
            handle = request.result
            in_a_fork(program)
            request.wait()
            assert (handle.recv.x == step).all()
            out = handle.combine(handle.recv.x)
            assert (out == step * out[0, 0] / max(step, 1)).all()
            handle.release()


def test_a_fork_drops_a_buffer_alone(buffer_of):
    world = make_world(buffer_of(explicitly_destroy=False), ragged=False)
    send(world, 1.0)

    def program() -> None:
        with pytest.raises(RuntimeError, match="forked off"):
            send(world, 2.0)
        world.buffer.__del__()
        assert not world.buffer.is_available()

    in_a_fork(program)
    rows = send(world, 3.0)[0]
    assert (rows == 3.0).all() and world.buffer.is_available()


def wrong_calls(buffer, x, idx) -> list:
    """Each is refused by Python itself."""
    return [
        lambda: buffer.dispatch(x, idx[:-1]),
        lambda: buffer.dispatch_async(x, idx, no_such_argument=1),
        lambda: buffer.dispatch(x[:, ::2], idx),
        lambda: buffer.dispatch(x, idx, capacity=-1),
    ]


@pytest.mark.parametrize("mode", ["normal", "ll"])
def test_what_one_rank_alone_refuses(group, mode):
    """Its next call does not pair with the one that the others are in: all are told, and then go on together."""
    need_several(group)
    odd, last = group.nranks - 1, group.rank == group.nranks - 1
    tokens, experts = 4, 2 * group.nranks
    idx = torch.arange(2 * tokens).reshape(tokens, 2) % experts
    with group.buffer(experts, 2, 16, tokens, mode=mode, dtype="float32", combine_dtype="float32") as buffer:
        x = torch.ones((tokens, 16))
        for calls in (1, 3, 4):
            for wrong in wrong_calls(buffer, x, idx)[:calls] if last else []:
                with pytest.raises((TypeError, ValueError)):
                    wrong()
            for _ in range(1 if last else 1 + calls):
                with pytest.raises(xep.MismatchError, match=f"{calls} of those before it .*failed on rank {odd} alone"):
                    buffer.dispatch(x, idx)
            with buffer.dispatch(x, idx) as handle:
                if last:
                    with pytest.raises((TypeError, ValueError)):
                        handle.combine(handle.recv.x, out=torch.zeros(3))
                for _ in range(1 if last else 2):
                    with pytest.raises(xep.MismatchError, match=f"failed on rank {odd} alone"):
                        handle.combine(handle.recv.x)
                assert handle.combine(handle.recv.x).shape == x.shape


def alone(world, wrong, right, calls: int = 1) -> None:
    """The last rank is refused so many times, and all are told with their next call."""
    odd = world.size - 1
    for _ in range(calls if world.rank == odd else 0):
        with pytest.raises((TypeError, ValueError, AssertionError)):
            wrong()
    for _ in range(1 if world.rank == odd else 1 + calls):
        with pytest.raises(xep.MismatchError, match=f"failed on rank {odd} alone"):
            right()
    right()


def test_what_deep_ep_refuses_on_one_rank_alone(buffer_of):
    world = make_world(buffer_of(), ragged=False)
    if world.size == 1:
        pytest.skip("needs more than one rank")
    x, _, _, _, handle, _ = send(world, 1.0)
    idx = world.topk_idx[world.rank]
    for calls in (1, 2):
        alone(world, lambda: world.buffer.dispatch(torch.ones(3), topk_idx=idx), lambda: send(world, 1.0), calls)
    alone(world, lambda: world.buffer.combine(x[:-1], handle), lambda: world.buffer.combine(x, handle))


@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("mode", ["normal", "ll"])
def test_a_first_dispatch_refused_on_one_rank_alone(buffer_of, mode, calls):
    """Before there is anything that counts calls: all are told what happened, and then go on together."""
    if mode == "normal":
        world = make_world(buffer_of(), ragged=False)
        wrong, right = lambda: world.buffer.dispatch(torch.ones(3)), lambda: send(world, 1.0)
    else:
        world = World(buffer_of(low_latency_mode=True))
        wrong = lambda: world.dispatch(async_finish=True, return_recv_hook=True)  # noqa: E731
        right = world.dispatch
    if world.size == 1:
        pytest.skip("needs more than one rank")
    alone(world, wrong, right, calls)
    right()


def test_another_call_than_a_first_dispatch(buffer_of):
    """After a dispatch that was refused on it alone a rank gives up: the others hear where it is, and why."""
    world = make_world(buffer_of(), ragged=False)
    if world.size == 1:
        pytest.skip("needs more than one rank")
    odd = world.size - 1
    if world.rank == odd:
        with pytest.raises(ValueError, match="x: expected"):
            world.buffer.dispatch(torch.ones(3))
        with pytest.warns(ResourceWarning, match="rank 0 is in dispatch, this rank in destroy"):
            world.buffer.destroy()
    else:
        text = f"rank {odd} is in destroy, this rank in dispatch.*1 of those before it failed on rank {odd} alone .x: "
        with pytest.raises(xep.MismatchError, match=text):
            send(world, 1.0)
        world.buffer.explicitly_destroy = False
        world.buffer._xep.leave()
        world.buffer._destroyed = True


def test_what_low_latency_refuses_on_one_rank_alone(buffer_of):
    world = World(buffer_of(low_latency_mode=True))
    if world.size == 1:
        pytest.skip("needs more than one rank")
    recv_x, _, handle, _, _ = world.dispatch(use_fp8=False)
    both = dict(async_finish=True, return_recv_hook=True)
    alone(world, lambda: world.combine(recv_x[:, :-1], handle), lambda: world.combine(recv_x, handle))
    alone(world, lambda: world.dispatch(**both), lambda: world.dispatch(), 2)


def test_arrays_of_failed_operations_are_kept(group):
    """The transport may read them until the reset."""
    need_several(group)
    tokens, experts = 4, 2 * group.nranks
    idx = torch.arange(2 * tokens).reshape(tokens, 2) % experts
    with group.buffer(experts, 2, 16, tokens, dtype="float32", combine_dtype="float32", timeout=3) as buffer:
        for begun in (False, True):
            meet()
            x = np.ones((tokens, 16), np.float32)
            kept = weakref.ref(x)
            if group.rank != 0:
                with pytest.raises(xep.DeadlineError):
                    buffer.dispatch_async(x, idx.numpy()).wait() if begun else buffer.dispatch(x, idx.numpy())
                for _ in range(3):
                    with pytest.raises(xep.BrokenError):
                        buffer.dispatch(np.ones((tokens, 16), np.float32), idx.numpy())
            del x
            gc.collect()
            assert (kept() is None) == (group.rank == 0)
            meet()
            buffer.reset()
            assert kept() is None


def test_a_result_outlives_the_buffer_of_its_operation(group):
    """Of one that is in flight when the buffer is closed, and of which nobody has the request: until the library has
    ended it, the thread of the group may write there."""
    need_several(group)
    tokens, experts = 4, 2 * group.nranks
    idx = np.arange(2 * tokens).reshape(tokens, 2) % experts
    with xep.Group(communicator()) as own:
        with own.buffer(experts, 2, 16, tokens, dtype="float32", combine_dtype="float32") as buffer:
            handle = buffer.dispatch(np.ones((tokens, 16), np.float32), idx)
            kept = None
            if own.rank != 0:  # rank 0 does not come, so it does not end
                request = handle.combine_async(handle.recv.x.copy())
                kept = weakref.ref(request.result)
                del request
            del handle
            gc.collect()
        assert own.rank == 0 or kept() is not None
    gc.collect()
    assert own.rank == 0 or kept() is None


def test_growing_with_another_default_type(buffer_of):
    world = make_world(buffer_of(), ragged=False)
    many = make_world(world.buffer, tokens=200, ragged=False)
    torch.set_default_dtype(torch.bfloat16)
    try:
        for one in (world, many):
            rows, _, weights, _, handle, _ = send(one, 4.0)
            assert (rows == 4.0).all() and weights.dtype == torch.float32
            one.buffer.combine(rows, handle)
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_destructor_does_not_wait_long(group):
    """Rank 0 still has its Buffer when the others drop theirs."""
    need_several(group)
    buffer = deep_ep.Buffer(communicator(), timeout=600)  # longer than a test may take
    rank = buffer.rank
    send(make_world(buffer, ragged=False), 1.0)
    meet()
    if rank != 0:
        del buffer
    meet()
    assert rank != 0 or buffer.is_available()


def test_usable_again_after_a_timeout(buffer_of):
    buffer = deep_ep.Buffer(communicator(), explicitly_destroy=True, timeout=8)
    if buffer.group_size == 1:
        buffer.destroy()
        pytest.skip("needs more than one rank")
    world = make_world(buffer, ragged=False)
    old = send(world, 1.0)[4]
    meet()
    if world.rank != 0:
        with pytest.raises(xep.DeadlineError):
            send(world, 2.0)
    meet()
    buffer.reset()
    with pytest.raises(ValueError, match="its dispatch ended when the Buffer was reset"):
        buffer.combine(torch.zeros((1, HIDDEN), dtype=torch.bfloat16), old)
    rows, _, _, _, handle, _ = send(world, 3.0)
    assert (rows == 3.0).all()
    buffer.combine(rows, handle)
    meet()
    if world.rank != 0:
        with pytest.raises(xep.DeadlineError):
            send(world, 4.0)
    meet()
    del rows, handle
    buffer.destroy()


@pytest.mark.parametrize("wait", ["barrier", "dispatch", "request", "close"])
def test_ctrl_c_ends_a_wait(group, wait):
    """Rank 0 does not come; the others have longer than a test may take, and are interrupted."""
    need_several(group)
    own = xep.Group(communicator(), timeout=600)
    buffer = own.buffer(own.nranks, 1, 16, 4, timeout=600)
    x, idx = torch.ones((4, 16), dtype=torch.bfloat16), torch.zeros((4, 1), dtype=torch.int64)
    calls = {
        "barrier": own.barrier,
        "dispatch": lambda: buffer.dispatch(x, idx),
        "request": lambda: buffer.dispatch_async(x, idx).wait(),
        "close": buffer.close,
    }
    if own.rank == 1:  # alone: its abort ends the waits of the others, too
        with pytest.raises(KeyboardInterrupt):
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            calls[wait]()
            time.sleep(1)  # close has no error: it is raised behind it
        with pytest.raises(xep.AbortedError):
            own.barrier()
    meet()
    own.abort()
    buffer.close()
    own.close()


def several_ranks(buffer_of, first):
    """The world, and this rank's topk_idx and weights. first: there is no buffer for its dispatches yet."""
    world = make_world(buffer_of(), ragged=False)
    if world.size == 1:
        pytest.skip("needs more than one rank")
    if not first:
        send(world, 1.0)
    return world, world.topk_idx[world.rank], world.weights[world.rank]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("what", ["hidden", "type"])
def test_one_rank_has_wider_rows(buffer_of, first, what):
    """Every rank is told which, whether or not there is a buffer already."""
    world, idx, weights = several_ranks(buffer_of, first)
    arguments = layout_arguments(world.buffer.get_dispatch_layout(idx, world.experts))
    odd = world.rank == world.size - 1
    width, dtype = HIDDEN, torch.bfloat16
    if odd:
        width, dtype = (2 * HIDDEN, dtype) if what == "hidden" else (HIDDEN, torch.float32)
    with pytest.raises(xep.MismatchError, match=f"rank {world.size - 1}"):
        world.buffer.dispatch(
            torch.ones((len(idx), width), dtype=dtype), topk_idx=idx, topk_weights=weights, **arguments
        )
    assert (send(world, 2.0)[0] == 2.0).all()


@pytest.mark.parametrize("first", [True, False])
def test_one_rank_has_more_experts(buffer_of, first):
    """Nobody waits for a deadline, whether or not the others have a buffer already; and there may be one for each."""
    world, idx, weights = several_ranks(buffer_of, first)
    x = torch.full((len(idx), HIDDEN), 2.0, dtype=torch.bfloat16)
    arguments = layout_arguments(world.buffer.get_dispatch_layout(idx, 2 * world.experts))
    want = f"num_experts: {world.experts} on rank 0, {2 * world.experts} on rank {world.size - 1}"
    with pytest.raises(xep.MismatchError, match=want):
        if world.rank == world.size - 1:
            world.buffer.dispatch(x, topk_idx=idx, topk_weights=weights, **arguments)
        else:
            send(world, 2.0)
    assert (send(world, 3.0)[0] == 3.0).all()
    assert (world.buffer.dispatch(x, topk_idx=idx, topk_weights=weights, **arguments)[0] == 2.0).all()
    assert (send(world, 4.0)[0] == 4.0).all()


@pytest.mark.parametrize("num_slots", [2, 3, 4, 5])
def test_low_latency_results_kept_without_combine(buffer_of, num_slots):
    buffer = buffer_of(low_latency_mode=True, num_slots=num_slots)
    experts = 2 * buffer.group_size
    idx = torch.arange(8).reshape(4, 2) % experts
    kept = []
    for step in range(3 * num_slots):
        x = torch.full((4, 128), float(step), dtype=torch.bfloat16)
        kept.append(buffer.low_latency_dispatch(x, idx, 4, experts, use_fp8=False)[:3])
    for step, (rows, counts, _) in enumerate(kept):
        for expert, count in enumerate(counts.tolist()):
            assert (rows[expert, :count] == step).all()


def test_all_tensors_of_a_handle_outlive_the_buffer(buffer_of):
    world = make_world(buffer_of(), ragged=False)
    kept, other = send(world, 1.0)[4], send(world, 2.0)[4]
    want = [tensor.clone() for tensor in kept]
    kept, other = send(world, 1.0)[4], kept
    world.buffer.destroy()
    for tensors in (kept, other):
        for tensor, same in zip(tensors, want):
            assert torch.equal(tensor, same)
