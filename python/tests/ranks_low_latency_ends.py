# SPDX-License-Identifier: BSD-3-Clause
"""deep_ep, low latency: wrong arguments, handles that have ended, and that nothing is copied."""

from __future__ import annotations

import time

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
from low_latency_world import HIDDEN, MOST, World, check, finish  # noqa: E402

import deep_ep  # noqa: E402
import xep  # noqa: E402


@pytest.fixture
def world(buffer_of):
    return World(buffer_of(low_latency_mode=True))


def test_wrong_arguments_of_a_dispatch(world, buffer_of):
    good = dict(x=world.x, topk_idx=world.idx, num_max_dispatch_tokens_per_rank=MOST, num_experts=world.experts)
    tokens = len(world.x)
    for wrong, error, text in (
        (dict(x=world.x.float()), TypeError, "x: expected a CPU or CUDA tensor bfloat16 .any, any., got float32"),
        (dict(x=world.x.repeat(1, 2)[:, :HIDDEN]), ValueError, "x: expected a contiguous tensor"),
        (dict(x=world.x[:, :100].contiguous()), ValueError, "x: expected a multiple of 128 channels, got 100"),
        (dict(topk_idx=world.idx.float()), TypeError, "topk_idx: expected a CPU tensor int64 or int32"),
        (dict(num_experts=world.experts + world.size + 1), ValueError, "num_experts: expected a multiple|expected") ,
        (dict(num_max_dispatch_tokens_per_rank=-1), ValueError,
            "num_max_dispatch_tokens_per_rank: expected 1 or more, got -1"),
        (dict(num_max_dispatch_tokens_per_rank=24.0), TypeError,
            "num_max_dispatch_tokens_per_rank: expected an integer, got 24.0"),
        (dict(use_ue8m0=True), ValueError, "round_scale: expected True with use_ue8m0"),
        (dict(async_finish=True, return_recv_hook=True), ValueError,
            "async_finish, return_recv_hook: expected at most one"),
        (dict(cumulative_local_expert_recv_stats=torch.zeros(3, dtype=torch.int32)), ValueError,
            rf"cumulative_local_expert_recv_stats: expected a CPU tensor int32 \[{world.local}\]"),
        (dict(dispatch_wait_recv_cost_stats=torch.zeros(world.size)), TypeError,
            "dispatch_wait_recv_cost_stats: expected a CPU tensor int64"),
    ):  # fmt: skip
        if "num_experts" in wrong and world.size == 1:
            continue
        if tokens <= 1 and wrong.keys() & {"x"}:  # as many are refused on all ranks
            wrong, error, text = dict(x=None), TypeError, "x: expected"
        with pytest.raises(error, match=text):
            world.buffer.low_latency_dispatch(**{**good, **wrong})
    with pytest.raises(RuntimeError, match="expected a Buffer made with low_latency_mode=True"):
        buffer_of().low_latency_dispatch(**good)
    assert world.dispatch(use_fp8=False, use_ue8m0=True)[0].dtype == torch.bfloat16, "scales are of fp8"


def test_wrong_arguments_of_a_combine(world, buffer_of):
    tokens = len(world.x)
    recv_x, _, handle, _, _ = world.dispatch(use_fp8=False)
    with pytest.raises(ValueError, match="handle: expected the 5 items that low_latency_dispatch returned, got 2"):
        world.combine(recv_x, (1, 2))
    with pytest.raises(
        ValueError, match=rf"x: expected a CPU tensor bfloat16 \[{world.local}, {world.size * MOST}, {HIDDEN}\]"
    ):
        world.combine(recv_x[:, 1:], handle)
    with pytest.raises(TypeError, match="x: expected a CPU tensor bfloat16 .* on meta"):
        world.combine(recv_x.to("meta"), handle)
    with pytest.raises(ValueError, match="x: expected a contiguous tensor, got strides"):
        world.combine(recv_x.transpose(1, 2).contiguous().transpose(1, 2), handle)
    with pytest.raises(TypeError, match="topk_weights: expected a CPU tensor float32"):
        world.buffer.low_latency_combine(recv_x, world.idx, world.weights.double(), handle)
    with pytest.raises(ValueError, match="use_logfmt, zero_copy: expected at most one of them"):
        world.combine(recv_x, handle, use_logfmt=True, zero_copy=True)
    with pytest.raises(ValueError, match=rf"out: expected a CPU tensor bfloat16 \[{tokens}, {HIDDEN}\]"):
        world.combine(recv_x, handle, out=torch.zeros((tokens + 1, HIDDEN), dtype=torch.bfloat16))
    other = buffer_of(low_latency_mode=True)
    with pytest.raises(ValueError, match="handle: expected one of this Buffer, got one of another"):
        other.low_latency_combine(recv_x, world.idx, world.weights, handle)


def test_calls_of_another_kind_of_buffer(world, buffer_of):
    with pytest.raises(
        RuntimeError, match="clean_low_latency_buffer: expected a Buffer made with low_latency_mode=True"
    ):
        buffer_of().clean_low_latency_buffer(MOST, HIDDEN, world.experts)
    for call, arguments in (
        ("low_latency_update_mask_buffer", (0, True)),
        ("low_latency_query_mask_buffer", (torch.zeros(world.size, dtype=torch.int32),)),
        ("low_latency_clean_mask_buffer", ()),
    ):
        with pytest.raises(RuntimeError, match=f"{call}: expected a Buffer made with enable_shrink=True"):
            getattr(world.buffer, call)(*arguments)


def test_masks_without_failures(buffer_of):
    """Wrong arguments, and that nobody is masked. Memory is there at once, for fewer selections, too."""
    size = buffer_of(low_latency_mode=True).group_size
    hint = deep_ep.Buffer.get_low_latency_rdma_size_hint(MOST, HIDDEN, size, 6 * size)
    buffer = buffer_of(low_latency_mode=True, enable_shrink=True, num_rdma_bytes=hint)
    made = buffer._low_latency.buffers()
    assert len(made) == 1
    world, status = World(buffer), torch.full((size,), 7, dtype=torch.int32)
    for how in ("call", "hook", "event"):
        check(world, how, True, False, False)
        check(world, how, False, False, False)
        buffer.clean_low_latency_buffer(MOST, HIDDEN, world.experts)
    assert buffer._low_latency.buffers() == made
    buffer.low_latency_query_mask_buffer(status)
    assert not status.any() and buffer.masks() == []
    buffer.low_latency_update_mask_buffer(0)
    buffer.low_latency_clean_mask_buffer()
    for wrong, error, text in (
        (buffer.group_size, ValueError, f"rank_to_mask: expected a rank below {buffer.group_size}"),
        (-1, ValueError, "rank_to_mask: expected 0 or more, got -1"),
        ("1", TypeError, "rank_to_mask: expected an integer, got '1'"),
        (buffer.rank, ValueError, "rank"),
    ):
        with pytest.raises(error, match=text):
            buffer.low_latency_update_mask_buffer(wrong, True)
    for wrong_status in (status.long(), torch.zeros(buffer.group_size + 1, dtype=torch.int32), [0]):
        with pytest.raises((TypeError, ValueError), match="mask_status: expected a CPU tensor int32"):
            buffer.low_latency_query_mask_buffer(wrong_status)


def test_handles_of_the_other_mode(world):
    layout = world.buffer.get_dispatch_layout(world.idx, world.experts)
    arguments = dict(num_tokens_per_rank=layout[0], num_tokens_per_expert=layout[2], is_token_in_rank=layout[3])
    rows, _, _, _, normal, _ = world.buffer.dispatch(
        world.x, topk_idx=world.idx, topk_weights=world.weights, **arguments
    )
    recv_x, _, handle, _, _ = world.dispatch(use_fp8=False)
    with pytest.raises(TypeError, match="handle: expected what low_latency_dispatch returned, got NormalHandle"):
        world.combine(recv_x, normal)
    with pytest.raises(TypeError, match="handle: expected what dispatch returned, got LowLatencyHandle"):
        world.buffer.combine(rows, handle)


def test_handles_end_with_cleaning(world):
    """What was dispatched before is gone, with an error that says so."""
    recv_x, _, handle, _, _ = world.dispatch(use_fp8=False)
    kept = recv_x.clone()
    del recv_x
    world.buffer.clean_low_latency_buffer(MOST, HIDDEN, world.experts)
    with pytest.raises(ValueError, match="the handle was released, or its buffer closed or reset"):
        world.combine(kept, handle)
    check(world, "call", False, False, False)


@pytest.mark.parametrize("what", ["hook", "event", "combine"])
def test_destroy_waits_for_nothing_that_was_not_begun(world, what):
    """One rank is ahead, in a call that the others never make, and is told at the end, long before the deadline."""
    if world.size == 1:
        pytest.skip("a rank of its own is never ahead")
    recv_x, _, handle, _, _ = world.dispatch(use_fp8=False)
    answers, hook, event = recv_x.clone(), None, None
    del recv_x
    if world.rank == 0 and what == "combine":
        hook = world.combine(answers, handle, return_recv_hook=True)[2]
    elif world.rank == 0:
        how = dict(async_finish=what == "event", return_recv_hook=what == "hook")
        event, hook = world.dispatch(use_fp8=False, **how)[3:]  # an event keeps what is received
    begin = time.monotonic()
    world.buffer.destroy()
    assert time.monotonic() - begin < 25, "the deadline is 30 seconds"
    if what != "combine" or world.rank != 0:
        assert handle[0].shape == (world.local, world.size * MOST), "of what has come a handle tells"
    if hook is not None:
        with pytest.raises(xep.AbortedError, match="the buffer was closed"):
            hook()


@pytest.mark.parametrize("how", ["hook", "event"])
def test_what_all_have_begun_ends_behind_destroy(world, how):
    _, counts, _, event, hook = world.dispatch(async_finish=how == "event", return_recv_hook=how == "hook")
    world.buffer.destroy()
    finish(event, hook, how)
    wanted = [(torch.cat(world.all_idx) == world.rank * world.local + e).any(1).sum() for e in range(world.local)]
    assert counts.tolist() == wanted


def test_runtime_moves_tokens(world):
    """By tensors instead of a handle, as DeepEP's own Python does it."""
    runtime = world.buffer.runtime
    (rows, scales), counts, handle, _, _ = world.dispatch()
    found = runtime.low_latency_dispatch(
        world.x, world.idx, None, None, MOST, world.experts, True, False, False, False, False
    )
    assert torch.equal(found[2], counts) and found[5:] == (None, None)
    for expert, count in enumerate(counts.tolist()):
        for one, other in ((found[0], rows), (found[1], scales), (found[3], handle[0])):
            assert torch.equal(one[expert, :count].float(), other[expert, :count].float())
    answers = torch.randn(rows.shape).bfloat16()
    want = world.combine(answers, handle)[0]
    how = (None, MOST, world.experts, False, False, False, False)
    combined, event, hook = runtime.low_latency_combine(answers, world.idx, world.weights, *found[3:5], *how)
    assert event is None and hook is None and torch.equal(combined, want)


def test_nothing_is_copied(world):
    """What is received, and where the answers go, lies in the buffer's own memory; what is combined, where it was."""
    recv_x, _, handle, _, _ = world.dispatch()
    shared = handle.core.xep.buffer
    answers = world.buffer.get_next_low_latency_combine_buffer(handle)
    for tensor in (*recv_x, answers):
        assert shared._base <= tensor.data_ptr() < shared._base + shared._bytes
    given, out = torch.zeros(answers.shape, dtype=torch.bfloat16), torch.empty_like(world.x)
    passed = {}

    class Spy:
        parked = None

        def combine(self, x, **options):
            passed.update(options, x=x)
            return real.combine(x, **options)

    real, handle.core.xep = handle.core.xep, Spy()
    world.combine(given, handle, out=out)
    assert passed["x"] is given and passed["out"] is out and passed["weights"] is world.weights
