# SPDX-License-Identifier: BSD-3-Clause
"""deep_ep, low latency: what DeepEP's test checks, and the order of rows that is guaranteed here."""

from __future__ import annotations

import functools
import itertools
import time
from typing import Optional

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
from conftest import meet, until_clear  # noqa: E402
from low_latency_world import CASTS, HIDDEN, MOST, TOPK, World, check, finish  # noqa: E402

from deep_ep.utils import calc_diff, hash_tensor, per_token_cast_back  # noqa: E402


@pytest.fixture
def world(buffer_of):
    return World(buffer_of(low_latency_mode=True))


@pytest.mark.parametrize("how", ["call", "hook", "event"])
def test_dispatch_and_combine(world, how):
    for (fp8, power, ue8m0), numbers in itertools.product(CASTS, (1, 2)):
        for _ in range(numbers):
            check(world, how, fp8, power, ue8m0)


def test_weighted_sum_bit_for_bit(world):
    """Each expert answers differently; fp32, k ascending, fused multiply-add, one rounding."""
    recv_x, counts, handle, _, _ = world.dispatch(use_fp8=False)
    first = world.rank * world.local
    answers = torch.stack([(recv_x[e].float() * (1 + (first + e) / 8)).bfloat16() for e in range(world.local)])
    combined, _, _ = world.combine(answers, handle)
    total = torch.zeros(world.x.shape, dtype=torch.float64)
    for k in range(TOPK):
        expert = world.idx[:, k : k + 1]
        y = (world.x.float() * (1 + expert / 8)).bfloat16()
        step = (total + world.weights[:, k : k + 1].double() * y.double()).float().double()
        total = torch.where(expert >= 0, step, total)
    assert torch.equal(combined, total.bfloat16())


def test_two_batches_overlap(world):
    """Two operations between their call and their hook, in either order of hooks."""
    for order in ((0, 1), (1, 0)):
        begun = [world.dispatch(use_fp8=False, return_recv_hook=True) for _ in range(2)]
        for i in order:
            begun[i][4]()
        sums = [world.combine(begun[i][0], begun[i][2], return_recv_hook=True) for i in range(2)]
        for i in order:
            sums[i][2]()
        assert torch.equal(sums[0][0], sums[1][0])
        wanted = world.x.float() * world.weights.masked_fill(world.idx < 0, 0).sum(1, keepdim=True)
        assert calc_diff(wanted, sums[0][0]) < 1e-5


def test_held_tensors(world):
    """Beyond the slots received rows are copies; the program does not notice."""
    held = []
    for number in range(6):
        world.x += number
        for x in world.all_x:
            if x is not world.x:
                x += number
        recv_x, counts, handle, _, hook = world.dispatch(use_fp8=number % 2 == 1, return_recv_hook=True)
        hook()
        held.append((number, [x.clone() for x in world.all_x], recv_x, counts, tuple(handle[:2])))
    for number, all_x, recv_x, counts, (src_info, layout_range) in held:
        values = per_token_cast_back(*recv_x) if number % 2 else recv_x
        for local in range(world.local):
            for source in range(world.size):
                count, begin = int(layout_range[local, source]) & 0xFFFFFFFF, int(layout_range[local, source]) >> 32
                tokens = src_info[local, begin : begin + count].long()
                assert torch.allclose(
                    values[local, begin : begin + count].float(), all_x[source][tokens].float(), rtol=0.07
                )


@pytest.mark.parametrize("rows_too", [False, True])
def test_handles_of_many_layers(world, rows_too):
    """A program that keeps each layer's last handle: those that were combined give up their slots, and say so."""
    kept = []
    wanted = world.x.float() * world.weights.masked_fill(world.idx < 0, 0).sum(1, keepdim=True)
    for number in range(9):
        recv_x, _, handle, _, _ = world.dispatch(use_fp8=False)
        rows = recv_x.clone()
        kept.append((handle, recv_x if rows_too else None))
        for _ in range(2):
            assert calc_diff(wanted, world.combine(rows, handle)[0]) < 1e-5
        del recv_x
    for handle, recv_x in kept:
        src_info, layout_range, *_ = handle
        assert torch.equal(layout_range, kept[0][0][1])
        for local, source in itertools.product(range(world.local), range(world.size)):
            count, begin = int(layout_range[local, source]) & 0xFFFFFFFF, int(layout_range[local, source]) >> 32
            tokens = (world.all_idx[source] == world.rank * world.local + local).any(1).nonzero().flatten()
            assert torch.equal(src_info[local, begin : begin + count].long(), tokens)
            if recv_x is not None:
                assert torch.equal(recv_x[local, begin : begin + count], world.all_x[source][tokens])
    with pytest.raises(ValueError, match="handle: its slot was given to a later dispatch"):
        world.combine(rows, kept[3][0])
    assert calc_diff(wanted, world.combine(rows, kept[-1][0])[0]) < 1e-5


def test_hooks_in_the_wrong_order(world):
    """What would need rows that nobody has asked for yet is an error on every rank, at once, whatever has arrived."""
    recv_x, _, handle, _, hook = world.dispatch(use_fp8=False, return_recv_hook=True)
    rows = torch.zeros(recv_x.shape, dtype=torch.bfloat16)
    too_early = r"handle: hook\(\) of its dispatch, or of the combine before, was not called yet"
    with pytest.raises(RuntimeError, match=too_early):
        world.combine(rows, handle)
    with pytest.raises(RuntimeError, match=too_early):
        world.buffer.get_next_low_latency_combine_buffer(handle)
    hook()
    combined, _, hook = world.combine(recv_x, handle, return_recv_hook=True)
    with pytest.raises(RuntimeError, match=too_early):
        world.combine(recv_x, handle)
    hook()
    del recv_x, handle
    want = world.dispatch()[2][1]
    begun = [world.dispatch(return_recv_hook=True)[2:] for _ in range(9)]  # more than there are slots
    for *_, hook in begun:
        hook()
    assert all(torch.equal(kept[1], want) for kept, *_ in begun)
    check(world, "hook", False, False, False)


@pytest.mark.parametrize("slots", [2, 3, 4])
@pytest.mark.parametrize("how", ["hook", "event"])
def test_more_in_flight_than_slots(buffer_of, how, slots):
    """Nobody waits for any of them meanwhile, and all that they return is kept."""
    world = World(buffer_of(low_latency_mode=True, num_slots=slots))
    rows, counts, *_ = world.dispatch(use_fp8=False)
    want = [rows[e, :count].clone() for e, count in enumerate(counts.tolist())]
    del rows
    stats = torch.zeros(world.local, dtype=torch.int32)
    options = dict(async_finish=how == "event", return_recv_hook=how == "hook")
    begun = [
        world.dispatch(use_fp8=False, cumulative_local_expert_recv_stats=stats, **options) for _ in range(2 * slots + 1)
    ]
    for recv_x, came, _, event, hook in begun:
        finish(event, hook, how)
        assert torch.equal(came, counts)
        assert all(torch.equal(recv_x[e, : len(one)], one) for e, one in enumerate(want))
    assert torch.equal(stats, len(begun) * counts)


def test_events_that_nobody_waits_for(world):
    wanted = world.x.float() * world.weights.masked_fill(world.idx < 0, 0).sum(1, keepdim=True)
    results = []
    for number in range(9):
        recv_x, _, handle, event, _ = world.dispatch(use_fp8=False, async_finish=True)
        if number % 2:
            event.current_stream_wait()
            results += [world.combine(recv_x, handle, async_finish=True) for _ in range(2)]
    for combined, event, _ in results:
        event.current_stream_wait()
        assert calc_diff(wanted, combined) < 1e-5


def test_statistics_accumulate(world):
    stats = torch.full((world.local,), 1000, dtype=torch.int32)
    total = torch.full((world.local,), 1000, dtype=torch.int32)
    for _ in range(3):
        total += world.dispatch(cumulative_local_expert_recv_stats=stats)[1]
    assert torch.equal(stats, total)


@pytest.mark.parametrize("how", ["call", "hook", "event"])
def test_costs_name_the_late_rank(world, how):
    """Of three that are there in time and one that is not, that one; computing between sending and receiving is not
    waiting."""
    if world.size == 1:
        pytest.skip("a rank of its own never waits")
    options = dict(async_finish=how == "event", return_recv_hook=how == "hook")

    def one_is_late(late: int, delay: float) -> Optional[tuple]:
        costs = {name: torch.full((world.size,), 7) for name in ("dispatch", "combine")}
        spent = dict.fromkeys(costs, 0)
        handle = None
        for name, number in itertools.product(costs, range(3)):
            meet()
            time.sleep(2 * delay if world.rank == late else 0)
            begin = time.perf_counter_ns()
            if name == "dispatch":
                recv_x, _, handle, event, hook = world.dispatch(
                    use_fp8=False, dispatch_wait_recv_cost_stats=costs[name], **options
                )
            else:
                _, event, hook = world.combine(
                    recv_x.clone(), handle, combine_wait_recv_cost_stats=costs[name], **options
                )
            if how != "call":
                time.sleep(delay)
                begin = time.perf_counter_ns()
            finish(event, hook, how)
            spent[name] += time.perf_counter_ns() - begin
        for name, cost in costs.items():
            cost -= 7  # what was in it stays
            assert (cost <= spent[name]).all(), (name, cost, spent)
            others = [3 * cost[r] for r in range(world.size) if r != late]
            if world.rank != late and cost[late] <= max(spent[name] / 2, *others):
                return name, late, cost, spent
        return None

    for late in (0, world.size - 1):
        until_clear(functools.partial(one_is_late, late))


def test_selections_left_out_of_combine(world):
    recv_x, _, handle, _, _ = world.dispatch(use_fp8=False)
    less = world.idx.clone()
    less[:, 0] = -1
    combined, _, _ = world.buffer.low_latency_combine(recv_x, less, world.weights, handle)
    wanted = world.x.float() * world.weights.masked_fill(less < 0, 0).sum(1, keepdim=True)
    assert calc_diff(wanted, combined) < 1e-5
    changed = world.idx.clone()
    recv_x, _, handle, _, _ = world.buffer.low_latency_dispatch(world.x, changed, MOST, world.experts, use_fp8=False)
    changed[:, 0] = -1
    again, _, _ = world.buffer.low_latency_combine(recv_x, changed, world.weights, handle)
    assert torch.equal(again, combined)


def test_logfmt(world):
    recv_x, _, handle, _, _ = world.dispatch(use_fp8=False)
    combined, _, _ = world.combine(recv_x, handle, use_logfmt=True)
    wanted = world.x.float() * world.weights.masked_fill(world.idx < 0, 0).sum(1, keepdim=True)
    assert calc_diff(wanted, combined) < 1e-3


def test_beside_normal_mode(world):
    """On one Buffer, in turn, with cleaning between as DeepEP asks for, or without."""
    layout = world.buffer.get_dispatch_layout(world.idx, world.experts)
    arguments = dict(num_tokens_per_rank=layout[0], num_tokens_per_expert=layout[2], is_token_in_rank=layout[3])
    for number in range(3):
        recv_x, recv_idx, _, _, handle, _ = world.buffer.dispatch(
            world.x, topk_idx=world.idx, topk_weights=world.weights, **arguments
        )
        combined, _, _ = world.buffer.combine(recv_x, handle)
        assert calc_diff(combined, world.x.float() * layout[3].sum(1, keepdim=True)) < 1e-5
        if number < 2:
            world.buffer.clean_low_latency_buffer(MOST, HIDDEN, world.experts)
        check(world, "call", True, False, False)


def test_pressure(buffer_of):
    buffer = buffer_of(low_latency_mode=True)

    def number(seed: int) -> int:
        world = World(buffer, seed)
        recv_x, counts, handle, _, hook = world.dispatch(use_fp8=True, return_recv_hook=True)
        hook()
        rows = [recv_x[0][e, :n] for e, n in enumerate(counts.tolist())]
        values = per_token_cast_back(recv_x[0], recv_x[1])
        combined, event, _ = world.combine(values, handle, async_finish=True)
        with event:
            total = sum(hash_tensor(part) for part in rows)
        return total + hash_tensor(combined)

    for seed in range(1, 4):
        reference = number(seed)
        for _ in range(6):
            number(seed + 50)
            assert number(seed) == reference
