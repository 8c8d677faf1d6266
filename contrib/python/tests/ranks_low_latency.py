# SPDX-License-Identifier: BSD-3-Clause
"""deep_ep, low latency: what DeepEP's test checks, and the order of rows that is guaranteed here."""

from __future__ import annotations

import itertools
import time

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import deep_ep  # noqa: E402
from conftest import meet  # noqa: E402
from deep_ep.utils import calc_diff, hash_tensor, per_token_cast_back, per_token_cast_to_fp8  # noqa: E402

TOKENS, MOST, HIDDEN, TOPK = 20, 24, 512, 4
CASTS = ((False, False, False), (True, False, False), (True, True, False), (True, True, True))


class World:
    def __init__(self, buffer: deep_ep.Buffer, seed: int = 0) -> None:
        self.buffer, self.rank, self.size = buffer, buffer.rank, buffer.group_size
        self.experts = 6 * self.size
        self.local = self.experts // self.size
        self.all_idx, self.all_x, self.all_weights = [], [], []
        for rank in range(self.size):
            generator = torch.Generator().manual_seed(100 * seed + rank)
            tokens = 0 if rank == 1 and self.size > 2 else TOKENS - rank
            idx = torch.topk(torch.rand((tokens, self.experts), generator=generator), TOPK, dim=1, sorted=False).indices
            idx[torch.rand(idx.shape, generator=generator) < 0.1] = -1
            x = torch.full((tokens, HIDDEN), float(rank - 128), dtype=torch.bfloat16)
            x[:, -128:] = torch.arange(tokens).unsqueeze(1).bfloat16()
            if seed:
                x = torch.randn(x.shape, generator=generator).bfloat16()
            self.all_idx.append(idx)
            self.all_x.append(x)
            self.all_weights.append(torch.rand((tokens, TOPK), generator=generator))
        self.idx, self.x, self.weights = self.all_idx[self.rank], self.all_x[self.rank], self.all_weights[self.rank]

    def dispatch(self, **options):
        return self.buffer.low_latency_dispatch(self.x, self.idx, MOST, self.experts, **options)

    def combine(self, x, handle, **options):
        return self.buffer.low_latency_combine(x, self.idx, self.weights, handle, **options)


@pytest.fixture
def world(buffer_of):
    return World(buffer_of(low_latency_mode=True))


def finish(event: deep_ep.EventOverlap, hook, how: str) -> None:
    assert (hook is not None) == (how == "hook") and (event.event is not None) == (how == "event")
    if how == "hook":
        hook()
        hook()
    elif how == "event":
        event.current_stream_wait()


@pytest.mark.parametrize("how", ["call", "hook", "event"])
def test_dispatch_and_combine(world, how):
    for (fp8, power, ue8m0), turns in itertools.product(CASTS, (1, 2)):
        for _ in range(turns):
            check(world, how, fp8, power, ue8m0)


def check(world: World, how: str, fp8: bool, power: bool, ue8m0: bool) -> None:
    stats = torch.zeros(world.local, dtype=torch.int32)
    cost = torch.zeros(world.size, dtype=torch.int64)
    recv_x, counts, handle, event, hook = world.dispatch(
        use_fp8=fp8,
        round_scale=power,
        use_ue8m0=ue8m0,
        async_finish=how == "event",
        return_recv_hook=how == "hook",
        cumulative_local_expert_recv_stats=stats,
        dispatch_wait_recv_cost_stats=cost,
    )
    early = recv_x[0][0] if fp8 else recv_x[0]  # a view taken before the rows are there
    finish(event, hook, how)
    rows = world.size * MOST
    if fp8:
        words = HIDDEN // 512 if ue8m0 else HIDDEN // 128
        assert recv_x[0].dtype == torch.float8_e4m3fn and recv_x[0].shape == (world.local, rows, HIDDEN)
        assert recv_x[1].shape == (world.local, rows, words) and recv_x[1].dtype == (torch.int32 if ue8m0 else torch.float32)
        assert recv_x[1].stride() == (words * rows, 1, rows), "by column, as DeepEP's"
        assert early.data_ptr() == recv_x[0].data_ptr()
        values = per_token_cast_back(*recv_x)
    else:
        assert recv_x.shape == (world.local, rows, HIDDEN) and recv_x.dtype == torch.bfloat16
        values = recv_x
    assert bool((cost >= 0).all()) and cost[world.rank] == 0 and torch.equal(stats, counts)
    check_rows(world, values, recv_x if fp8 and not power else None, counts, handle)
    check_combines(world, values, handle, how, 9e-4 if fp8 else 1e-5, exact=not power)


def check_rows(world: World, values, cast, counts, handle) -> None:
    src_info, layout_range, most, hidden, experts = handle
    assert (most, hidden, experts) == (MOST, HIDDEN, world.experts) and len(handle) == 5
    assert counts.dtype == torch.int32 and layout_range.dtype == torch.int64 and src_info.dtype == torch.int32
    for local in range(world.local):
        expert, row = world.rank * world.local + local, 0
        for source, idx in enumerate(world.all_idx):
            tokens = (idx == expert).any(1).nonzero().flatten()
            count, begin = int(layout_range[local, source]) & 0xFFFFFFFF, int(layout_range[local, source]) >> 32
            assert (count, begin) == (len(tokens), row)
            segment = slice(begin, begin + count)
            assert torch.equal(src_info[local, segment].long(), tokens)
            assert torch.allclose(values[local, segment].float(), world.all_x[source][tokens].float(), rtol=0.07, atol=1e-3)
            if cast is not None:
                wanted, scales = per_token_cast_to_fp8(world.all_x[source][tokens])
                assert torch.equal(cast[0][local, segment].view(torch.uint8), wanted.view(torch.uint8))
                assert torch.allclose(cast[1][local, segment], scales, rtol=1.3e-6, atol=1e-5)
            row += count
        assert int(counts[local]) == row


def check_combines(world: World, values, handle, how: str, tolerance: float, exact: bool) -> None:
    answers = values.contiguous()
    for zero_copy, given in itertools.product((False, True), (False, True)):
        out = torch.full(world.x.shape, float("nan"), dtype=torch.bfloat16) if given else None
        x = answers
        if zero_copy:
            x = world.buffer.get_next_low_latency_combine_buffer(handle)
            assert x.shape == answers.shape and x.dtype == torch.bfloat16
            x.copy_(answers)
        cost = torch.zeros(world.size, dtype=torch.int64)
        combined, event, hook = world.combine(
            x,
            handle,
            zero_copy=zero_copy,
            out=out,
            async_finish=how == "event",
            return_recv_hook=how == "hook",
            combine_wait_recv_cost_stats=cost,
        )
        finish(event, hook, how)
        assert not given or combined is out
        assert bool((cost >= 0).all()) and cost[world.rank] == 0 and not bool(combined.isnan().any())
        wanted = world.x.float() * world.weights.masked_fill(world.idx < 0, 0).sum(1, keepdim=True)
        if exact:
            assert calc_diff(wanted, combined) < tolerance
        del x


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
    for turn in range(6):
        world.x += turn
        for x in world.all_x:
            if x is not world.x:
                x += turn
        recv_x, counts, handle, _, hook = world.dispatch(use_fp8=turn % 2 == 1, return_recv_hook=True)
        hook()
        held.append((turn, [x.clone() for x in world.all_x], recv_x, counts, tuple(handle[:2])))
    for turn, all_x, recv_x, counts, (src_info, layout_range) in held:
        values = per_token_cast_back(*recv_x) if turn % 2 else recv_x
        for local in range(world.local):
            for source in range(world.size):
                count, begin = int(layout_range[local, source]) & 0xFFFFFFFF, int(layout_range[local, source]) >> 32
                tokens = src_info[local, begin : begin + count].long()
                assert torch.allclose(values[local, begin : begin + count].float(), all_x[source][tokens].float(), rtol=0.07)


@pytest.mark.parametrize("rows_too", [False, True])
def test_handles_of_many_layers(world, rows_too):
    """A program that keeps each layer's last handle: those that were combined give up their slots, and say so."""
    kept = []
    wanted = world.x.float() * world.weights.masked_fill(world.idx < 0, 0).sum(1, keepdim=True)
    for turn in range(9):
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
    hooks = [world.dispatch(return_recv_hook=True)[4] for _ in range(4)]
    with pytest.raises(RuntimeError, match=r"low_latency_dispatch: hook\(\) of 4 dispatches was not called yet"):
        world.dispatch(return_recv_hook=True)
    for hook in hooks:
        hook()
    check(world, "hook", False, False, False)


def test_events_that_nobody_waits_for(world):
    wanted = world.x.float() * world.weights.masked_fill(world.idx < 0, 0).sum(1, keepdim=True)
    results = []
    for turn in range(9):
        recv_x, _, handle, event, _ = world.dispatch(use_fp8=False, async_finish=True)
        if turn % 2:
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
    """Of three that are there in time and one that is not, that one; computing between sending and receiving is not waiting."""
    if world.size == 1:
        pytest.skip("a rank of its own never waits")
    options = dict(async_finish=how == "event", return_recv_hook=how == "hook")
    for late in (0, world.size - 1):
        costs = {name: torch.full((world.size,), 7) for name in ("dispatch", "combine")}
        spent = dict.fromkeys(costs, 0)
        handle = None
        for name, turn in itertools.product(costs, range(3)):
            meet()
            time.sleep(0.08 if world.rank == late else 0)
            begin = time.perf_counter_ns()
            if name == "dispatch":
                recv_x, _, handle, event, hook = world.dispatch(
                    use_fp8=False, dispatch_wait_recv_cost_stats=costs[name], **options
                )
            else:
                _, event, hook = world.combine(recv_x.clone(), handle, combine_wait_recv_cost_stats=costs[name], **options)
            if how != "call":
                time.sleep(0.04)
                begin = time.perf_counter_ns()
            finish(event, hook, how)
            spent[name] += time.perf_counter_ns() - begin
        if world.rank == late:
            continue
        for name, cost in costs.items():
            cost -= 7  # what was in it stays
            assert spent[name] / 2 < cost[late] <= spent[name], (name, late, cost, spent)
            assert all(3 * cost[r] < cost[late] for r in range(world.size) if r != late), (name, late, cost)


def test_selections_left_out_of_combine(world):
    recv_x, _, handle, _, _ = world.dispatch(use_fp8=False)
    less = world.idx.clone()
    less[:, 0] = -1
    combined, _, _ = world.buffer.low_latency_combine(recv_x, less, world.weights, handle)
    wanted = world.x.float() * world.weights.masked_fill(less < 0, 0).sum(1, keepdim=True)
    assert calc_diff(wanted, combined) < 1e-5
    if len(less):
        token, k = (world.idx >= 0).nonzero()[0].tolist()
        less = world.idx.clone()
        less[token, k] = (less[token, k] + 1) % world.experts
        with pytest.raises(ValueError, match=rf"topk_idx: expected what was dispatched .* for selection {k} of token {token}"):
            world.buffer.low_latency_combine(recv_x, less, world.weights, handle)


def test_logfmt(world):
    recv_x, _, handle, _, _ = world.dispatch(use_fp8=False)
    combined, _, _ = world.combine(recv_x, handle, use_logfmt=True)
    wanted = world.x.float() * world.weights.masked_fill(world.idx < 0, 0).sum(1, keepdim=True)
    assert calc_diff(wanted, combined) < 1e-3


def test_beside_normal_mode(world):
    """On one Buffer, in turn, with cleaning between as DeepEP asks for, or without."""
    layout = world.buffer.get_dispatch_layout(world.idx, world.experts)
    arguments = dict(num_tokens_per_rank=layout[0], num_tokens_per_expert=layout[2], is_token_in_rank=layout[3])
    for turn in range(3):
        recv_x, recv_idx, _, _, handle, _ = world.buffer.dispatch(world.x, topk_idx=world.idx, topk_weights=world.weights, **arguments)
        combined, _, _ = world.buffer.combine(recv_x, handle)
        assert calc_diff(combined, world.x.float() * layout[3].sum(1, keepdim=True)) < 1e-5
        if turn < 2:
            world.buffer.clean_low_latency_buffer(MOST, HIDDEN, world.experts)
        check(world, "call", True, False, False)


def test_pressure(buffer_of):
    buffer = buffer_of(low_latency_mode=True)

    def turn(seed: int) -> int:
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
        reference = turn(seed)
        for _ in range(6):
            turn(seed + 50)
            assert turn(seed) == reference


def test_wrong_arguments(world, buffer_of):
    good = dict(x=world.x, topk_idx=world.idx, num_max_dispatch_tokens_per_rank=MOST, num_experts=world.experts)
    tokens = len(world.x)
    for wrong, error, text in (
        (dict(x=world.x.float()), TypeError, "x: expected a CPU tensor bfloat16 .any, any., got float32"),
        (dict(x=world.x.repeat(1, 2)[:, :HIDDEN]), ValueError, "x: expected a contiguous tensor"),
        (dict(x=world.x[:, :100].contiguous()), ValueError, "x: expected a multiple of 128 channels, got 100"),
        (dict(topk_idx=world.idx.float()), TypeError, "topk_idx: expected a CPU tensor int64 or int32"),
        (dict(num_experts=world.experts + world.size + 1), ValueError, "num_experts: expected a multiple|expected") ,
        (dict(num_max_dispatch_tokens_per_rank=-1), ValueError, "num_max_dispatch_tokens_per_rank: expected 1 or more, got -1"),
        (dict(num_max_dispatch_tokens_per_rank=24.0), TypeError, "num_max_dispatch_tokens_per_rank: expected an integer, got 24.0"),
        (dict(use_ue8m0=True), ValueError, "round_scale: expected True with use_ue8m0"),
        (dict(async_finish=True, return_recv_hook=True), ValueError, "async_finish, return_recv_hook: expected at most one"),
        (dict(cumulative_local_expert_recv_stats=torch.zeros(3, dtype=torch.int32)), ValueError, rf"cumulative_local_expert_recv_stats: expected a CPU tensor int32 \[{world.local}\]"),
        (dict(dispatch_wait_recv_cost_stats=torch.zeros(world.size)), TypeError, "dispatch_wait_recv_cost_stats: expected a CPU tensor int64"),
    ):  # fmt: skip
        if "num_experts" in wrong and world.size == 1:
            continue
        if tokens <= 1 and wrong.keys() & {"x"}:
            continue
        with pytest.raises(error, match=text):
            world.buffer.low_latency_dispatch(**{**good, **wrong})
    recv_x, _, handle, _, _ = world.dispatch(use_fp8=False)
    with pytest.raises(TypeError, match="handle: expected what low_latency_dispatch returned, got tuple"):
        world.combine(recv_x, (1, 2))
    with pytest.raises(ValueError, match=rf"x: expected a CPU tensor bfloat16 \[{world.local}, {world.size * MOST}, {HIDDEN}\]"):
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
    with pytest.raises(RuntimeError, match="expected a Buffer made with low_latency_mode=True"):
        buffer_of().low_latency_dispatch(**good)
    with pytest.raises(RuntimeError, match="clean_low_latency_buffer: expected a Buffer made with low_latency_mode=True"):
        buffer_of().clean_low_latency_buffer(MOST, HIDDEN, world.experts)
    assert world.dispatch(use_fp8=False, use_ue8m0=True)[0].dtype == torch.bfloat16, "scales are of fp8"
    for call in ("low_latency_update_mask_buffer", "low_latency_query_mask_buffer"):
        with pytest.raises(NotImplementedError, match=call):
            getattr(other, call)(0)


def test_handles_of_the_other_mode(world):
    layout = world.buffer.get_dispatch_layout(world.idx, world.experts)
    arguments = dict(num_tokens_per_rank=layout[0], num_tokens_per_expert=layout[2], is_token_in_rank=layout[3])
    rows, _, _, _, normal, _ = world.buffer.dispatch(world.x, topk_idx=world.idx, topk_weights=world.weights, **arguments)
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


def test_nothing_is_copied(world):
    """What is received, and where the answers go, lies in the buffer's own memory; what is combined, where it was."""
    recv_x, _, handle, _, _ = world.dispatch()
    shared = handle.xep._buffer
    answers = world.buffer.get_next_low_latency_combine_buffer(handle)
    for tensor in (*recv_x, handle[0], answers):
        assert shared._base <= tensor.data_ptr() < shared._base + shared._bytes
    given, out = torch.zeros(answers.shape, dtype=torch.bfloat16), torch.empty_like(world.x)
    world.combine(given, handle, out=out)
    back = shared._combine_struct
    assert back.x == given.data_ptr()
    if len(out):
        assert (back.out, back.weights) == (out.data_ptr(), world.weights.data_ptr())
