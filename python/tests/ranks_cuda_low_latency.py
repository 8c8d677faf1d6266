# SPDX-License-Identifier: BSD-3-Clause
"""deep_ep on CUDA tensors, low latency: rows, counts and sums as plain loops have them; hooks, events, graphs."""

from __future__ import annotations

import itertools
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("torch has no CUDA device here", allow_module_level=True)
from conftest import communicator, meet  # noqa: E402
from cuda_memory import LONG, bits, late, rank_device  # noqa: E402
from low_latency_world import CASTS, MOST, World  # noqa: E402

from deep_ep.utils import calc_diff, per_token_cast_back  # noqa: E402


@pytest.fixture
def low(buffer_of):
    """A world of CPU tensors, and of device tensors of the same."""
    rank_device(communicator().rank)
    world = World(buffer_of(low_latency_mode=True), seed=2)
    world.host_x, world.host_idx, world.host_weights = world.x, world.idx, world.weights
    world.x, world.idx, world.weights = world.x.cuda(), world.idx.cuda(), world.weights.cuda()
    return world


def wanted_sum(world) -> torch.Tensor:
    return world.host_x.float() * world.host_weights.masked_fill(world.host_idx < 0, 0).sum(1, keepdim=True)


def check_rows(world, values, counts, handle) -> None:
    src_info, layout_range, most, _, experts = handle
    assert (most, experts) == (MOST, world.experts)
    src_info, layout_range, values = src_info.cpu(), layout_range.cpu(), values.cpu()
    for local in range(world.local):
        expert, row = world.rank * world.local + local, 0
        for source, idx in enumerate(world.all_idx):
            tokens = (idx == expert).any(1).nonzero().flatten()
            count, begin = int(layout_range[local, source]) & 0xFFFFFFFF, int(layout_range[local, source]) >> 32
            assert (count, begin) == (len(tokens), row)
            rows = world.all_x[source][tokens]
            assert torch.equal(src_info[local, begin : begin + count].long(), tokens)
            assert torch.allclose(values[local, begin : begin + count].float(), rows.float(), rtol=0.07, atol=0.02)
            row += count
        assert int(counts[local]) == row


def check_casts(world, recv_x, counts, **how) -> None:
    """Bit by bit as CPU tensors arrive, by the same Buffer."""
    there = world.buffer.low_latency_dispatch(world.host_x, world.host_idx, MOST, world.experts, **how)[0]
    for ours, theirs in zip(recv_x, there) if how["use_fp8"] else ((recv_x, there),):
        for expert, count in enumerate(counts.tolist()):
            assert torch.equal(bits(ours[expert, :count]), bits(theirs[expert, :count]))


@pytest.mark.parametrize("how", ["call", "hook", "event"])
@pytest.mark.parametrize("cast", CASTS)
def test_low_latency(low, how, cast):
    fp8, power, ue8m0 = cast
    stats = torch.zeros(low.local, dtype=torch.int32, device="cuda")
    options = dict(async_finish=how == "event", return_recv_hook=how == "hook")
    for step in (1, 2):
        low.x = late(low.host_x)
        recv_x, counts, handle, event, hook = low.dispatch(
            use_fp8=fp8, round_scale=power, use_ue8m0=ue8m0, cumulative_local_expert_recv_stats=stats, **options
        )
        finish(event, hook, how)
        rows = recv_x[0] if fp8 else recv_x
        assert rows.is_cuda and rows.shape == (low.local, low.size * MOST, low.x.shape[1]) and counts.is_cuda
        assert torch.equal(stats, counts * step)
        values = per_token_cast_back(*recv_x) if fp8 else recv_x
        check_rows(low, values, counts, handle)
        check_casts(low, recv_x, counts, use_fp8=fp8, round_scale=power, use_ue8m0=ue8m0)
        for zero_copy, given in itertools.product((False, True), (False, True)):
            out = torch.full_like(low.x, float("nan")) if given else None
            x = low.buffer.get_next_low_latency_combine_buffer(handle) if zero_copy else values.clone()
            torch.cuda._sleep(LONG // 10)
            x.copy_(values)
            combined, event, hook = low.combine(x, handle, zero_copy=zero_copy, out=out, **options)
            finish(event, hook, how)
            assert out is None or combined is out
            assert calc_diff(wanted_sum(low), combined.cpu()) < (9e-4 if fp8 else 1e-5)
            del x


def finish(event, hook, how: str) -> None:
    assert (hook is not None) == (how == "hook") and (event.event is not None) == (how == "event")
    if how == "hook":
        hook()
    elif how == "event":
        event.current_stream_wait()


def test_two_batches_overlap(low):
    for order in ((0, 1), (1, 0)):
        begun = [low.dispatch(use_fp8=False, return_recv_hook=True) for _ in range(2)]
        looked_at = [tuple(one[2])[:2] for one in begun]  # before the rows are there
        for i in order:
            begun[i][4]()
        for (_, layout_range), one in zip(looked_at, begun):
            assert torch.equal((layout_range & 0xFFFFFFFF).sum(1).int(), one[1])
        sums = [low.combine(begun[i][0], begun[i][2], return_recv_hook=True) for i in range(2)]
        for i in order:
            sums[i][2]()
        assert torch.equal(sums[0][0], sums[1][0])
        assert calc_diff(wanted_sum(low), sums[0][0].cpu()) < 1e-5


def test_selections_left_out(low):
    recv_x, _, handle, _, _ = low.dispatch(use_fp8=False)
    less = low.idx.clone()
    less[:, 0] = -1
    combined = low.buffer.low_latency_combine(recv_x, less, low.weights, handle)[0]
    host = less.cpu()
    wanted = low.host_x.float() * low.host_weights.masked_fill(host < 0, 0).sum(1, keepdim=True)
    assert calc_diff(wanted, combined.cpu()) < 1e-5


def test_held_tensors(low):
    held = []
    for step in range(6):
        low.x = (low.host_x + step).cuda()
        recv_x, counts, handle, _, hook = low.dispatch(use_fp8=False, return_recv_hook=True)
        hook()
        held.append((step, recv_x, counts, handle))
    for step, recv_x, counts, handle in held:
        layout_range, src_info = handle[1].cpu(), handle[0].cpu()
        for local, source in itertools.product(range(low.local), range(low.size)):
            count, begin = int(layout_range[local, source]) & 0xFFFFFFFF, int(layout_range[local, source]) >> 32
            rows = (low.all_x[source] + step)[src_info[local, begin : begin + count].long()]
            assert torch.equal(recv_x[local, begin : begin + count].cpu(), rows)


def test_a_graph(low):
    """Captured once, and launched with other rows."""
    if low.buffer.runtime.get_num_rdma_ranks() > 1:
        pytest.skip("rows are staged: the host takes part in every operation")
    recv_x, _, handle, _, _ = low.dispatch(use_fp8=False)
    low.combine(recv_x, handle)
    torch.cuda.synchronize()
    meet()
    graph, x = torch.cuda.CUDAGraph(), low.x.clone()
    with torch.cuda.graph(graph, capture_error_mode="relaxed"):
        recv_x, _, handle, _, hook = low.buffer.low_latency_dispatch(
            x, low.idx, MOST, low.experts, use_fp8=False, return_recv_hook=True
        )
        hook()
        combined, _, hook = low.buffer.low_latency_combine(
            recv_x, low.idx, low.weights, handle, return_recv_hook=True
        )
        hook()
    for step in range(3):
        x.copy_(low.x * (step + 1))
        graph.replay()
        assert calc_diff(wanted_sum(low) * (step + 1), combined.cpu()) < 1e-5
    torch.cuda.synchronize()
    meet()


def test_calls_of_python(low):
    """A dispatch and its combine, in the common case: what the host does is to be done before the device is."""
    calls: list[str] = []

    def operations() -> None:
        (rows, _), _, handle, _, _ = low.buffer.low_latency_dispatch(low.x, low.idx, MOST, low.experts)
        low.buffer.low_latency_combine(rows.new_zeros(rows.shape, dtype=torch.bfloat16), low.idx, low.weights, handle)

    for _ in range(6):
        operations()
    queue = low.buffer._pools.queue
    assert queue.alone is not None and not queue.freed, "all is on one stream, whose order is enough"
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_name) if event == "call" else None)
    try:
        operations()
    finally:
        sys.setprofile(None)
    assert len(calls) <= 21, calls  # one of which is operations()


def test_what_is_refused(low, buffer_of):
    costs = torch.zeros(low.size, dtype=torch.int64, device="cuda")
    with pytest.raises(ValueError, match="dispatch_wait_recv_cost_stats: expected None for tensors of a CUDA device"):
        low.dispatch(dispatch_wait_recv_cost_stats=costs)
    with pytest.raises(TypeError, match="topk_idx: expected a cuda:. tensor int64 or int32"):
        low.buffer.low_latency_dispatch(low.x, low.host_idx, MOST, low.experts)
    masked = World(buffer_of(low_latency_mode=True, enable_shrink=True))
    masked.x, masked.idx = masked.x.cuda(), masked.idx.cuda()
    with pytest.raises(RuntimeError, match="enable_shrink: expected False for tensors of a CUDA device"):
        masked.dispatch()
