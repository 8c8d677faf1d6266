# SPDX-License-Identifier: BSD-3-Clause
"""deep_ep, normal mode: what DeepEP's tests of one node check, and what they leave out."""

from __future__ import annotations

import itertools
import sys

import conftest
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
from normal_world import HIDDEN, TOKENS, TOPK, World, layout_arguments, make_world, rows_of  # noqa: E402

import deep_ep  # noqa: E402
import xep  # noqa: E402
from deep_ep.utils import calc_diff, hash_tensor, per_token_cast_back, per_token_cast_to_fp8  # noqa: E402


@pytest.fixture
def world(buffer_of):
    return make_world(buffer_of(num_nvl_bytes=int(1e9)))


def test_layout(world):
    idx = world.topk_idx[world.rank]
    per_rank, per_node, per_expert, in_rank, event = world.buffer.get_dispatch_layout(idx, world.experts)
    assert torch.equal(in_rank, world.in_rank(world.rank)) and in_rank.dtype == torch.bool
    assert torch.equal(per_rank, in_rank.sum(0).int()) and per_rank.dtype == torch.int32
    assert torch.equal(per_expert, torch.stack([(idx == e).sum() for e in range(world.experts)]).int())
    assert per_node is None and event.event is None, "up to 8 ranks"
    event = world.buffer.get_dispatch_layout(idx, world.experts, async_finish=True)[-1]
    event.current_stream_wait()


CASES = list(itertools.product((False, True), (False, True), ("rank", "random", "fp8"), (False, True)))


def test_dispatch_and_combine(world):
    for previous, asynchronous, kind, with_topk in CASES:
        check_dispatch(world, previous, asynchronous, kind, with_topk)


def check_dispatch(world: World, previous: bool, asynchronous: bool, kind: str, with_topk: bool) -> None:
    buffer, rank = world.buffer, world.rank
    idx, weights = world.topk_idx[rank], world.weights[rank]
    all_rows = [rows_of("rank" if kind == "rank" else "random", r, len(world.topk_idx[r])) for r in range(world.size)]
    options = dict(async_finish=asynchronous)
    if previous:
        options["previous_event"] = buffer.capture()
    arguments = layout_arguments(buffer.get_dispatch_layout(idx, world.experts, **options)[:5])
    if with_topk:
        arguments.update(topk_idx=idx, topk_weights=weights)
    x = all_rows[rank]
    if kind == "fp8":
        cast, scales = per_token_cast_to_fp8(x)
        x = cast, scales.T.contiguous().T  # by column: strides are respected
    recv_x, recv_idx, recv_weights, counts, handle, event = buffer.dispatch(x, **arguments, **options)
    assert (event.event is not None) == asynchronous
    if asynchronous:
        event.current_stream_wait()
    rows = per_token_cast_back(*recv_x) if kind == "fp8" else recv_x

    sources = world.sources()
    wanted = (
        torch.stack([all_rows[r][t] for r, t in sources]) if sources else torch.empty((0, HIDDEN), dtype=torch.bfloat16)
    )
    if kind == "fp8":
        assert torch.equal(recv_x[0].view(torch.uint8), per_token_cast_to_fp8(wanted)[0].view(torch.uint8))
        assert torch.equal(recv_x[1], per_token_cast_to_fp8(wanted)[1])
    else:
        assert torch.equal(rows, wanted)
    check_counts(world, counts, handle, sources, arguments["num_tokens_per_rank"])
    if with_topk:
        check_topk(world, recv_idx, recv_weights, counts, sources)
        check_worst(world, x, arguments, options, recv_x, recv_idx, recv_weights)
    else:
        assert recv_idx is None and recv_weights is None
    check_cached(world, x, handle, options, recv_x)
    check_combine(world, rows, handle, recv_weights, all_rows[rank], options, kind)


def check_counts(world: World, counts: list, handle, sources: list, per_rank: torch.Tensor) -> None:
    local = world.experts // world.size
    first = world.rank * local
    assert counts == [sum(int((idx == first + e).sum()) for idx in world.topk_idx) for e in range(local)]
    prefix = handle[0]
    assert prefix.dtype == torch.int32 and torch.equal(
        prefix[-1] - (prefix[world.rank - 1] if world.rank else 0) >= 0, torch.ones(world.size) > 0
    )
    ends = [sum(source <= rank for source, _ in sources) for rank in range(world.size)]
    assert prefix[:, world.rank].tolist() == ends
    assert torch.equal(handle[1][:, -1], per_rank)
    assert handle[3].tolist() == [token for _, token in sources]
    assert torch.equal(handle[4], world.in_rank(world.rank))


def check_topk(world: World, recv_idx: torch.Tensor, recv_weights: torch.Tensor, counts: list, sources: list) -> None:
    local = world.experts // world.size
    assert recv_idx.dtype == torch.int64 and recv_idx.shape == (len(sources), TOPK)
    assert [int((recv_idx == e).sum()) for e in range(local)] == counts
    for row, (source, token) in enumerate(sources):
        here = world.owners(source)[token] == world.rank
        assert torch.equal(recv_idx[row], torch.where(here, world.topk_idx[source][token] - world.rank * local, -1))
        assert torch.equal(recv_weights[row], torch.where(here, world.weights[source][token], 0.0))


def check_worst(world: World, x, arguments: dict, options: dict, recv_x, recv_idx, recv_weights) -> None:
    worst = TOKENS * world.size
    other_x, other_idx, other_weights, counts, _, event = world.buffer.dispatch(
        x, **arguments, **options, num_worst_tokens=worst
    )
    assert counts == []
    with event:
        pass
    if isinstance(recv_x, tuple):
        assert torch.equal(other_x[1][: len(recv_idx)], recv_x[1])
        recv_x, other_x = recv_x[0], other_x[0]
    assert len(other_x) == len(other_idx) == len(other_weights) == worst
    rows = len(recv_idx)
    assert torch.equal(other_x[:rows].view(torch.uint8), recv_x.view(torch.uint8))
    assert torch.equal(other_idx[:rows], recv_idx) and torch.equal(other_weights[:rows], recv_weights)
    assert bool((other_idx[rows:] == -1).all())


def check_cached(world: World, x, handle, options: dict, recv_x) -> None:
    again, *nothing, event = world.buffer.dispatch(x, handle=handle, **options)
    assert nothing == [None] * 4
    with event:
        pass
    for one, two in zip(again, recv_x) if isinstance(again, tuple) else [(again, recv_x)]:
        assert torch.equal(one.view(torch.uint8), two.view(torch.uint8))


def check_combine(world: World, rows, handle, recv_weights, x, options: dict, kind: str) -> None:
    combined, combined_weights, event = world.buffer.combine(rows, handle, topk_weights=recv_weights, **options)
    if options["async_finish"]:
        with event:
            pass
    count = world.in_rank(world.rank).sum(1, keepdim=True)
    sent = count.squeeze(1) > 0
    assert combined.dtype == torch.bfloat16 and not bool(combined[~sent].any())
    difference = calc_diff(combined[sent].float() / count[sent], x[sent])
    assert difference < (5e-4 if kind == "fp8" else 5e-6)
    if recv_weights is None:
        assert combined_weights is None
    else:
        wanted = torch.where(world.topk_idx[world.rank] >= 0, world.weights[world.rank], 0.0)
        assert torch.equal(combined_weights, wanted)


def test_async_dispatch_returns_before_its_rows(buffer_of):
    """Counts are there, the event is reached when rank 0 moves its rows; also with room for more, and of a cached
    dispatch, whose counts need nobody: rank 0 has not begun it."""
    buffer = buffer_of(num_slots=8)
    world, rank = make_world(buffer), buffer.rank
    if world.size == 1:
        pytest.skip("needs several ranks")
    idx, weights = world.topk_idx[rank], world.weights[rank]
    arguments = dict(
        topk_idx=idx, topk_weights=weights, **layout_arguments(buffer.get_dispatch_layout(idx, world.experts))
    )
    x = rows_of("random", rank, len(idx))
    most = TOKENS * world.size
    buffer.dispatch(x, num_worst_tokens=most, **arguments)  # makes room
    wanted, _, _, counts, handle, _ = buffer.dispatch(x, **arguments)
    sums = x.float() * world.in_rank(rank).sum(1, keepdim=True)
    shared = handle.core.xep.buffer
    for kind in ("exact", "worst", "cached"):
        if rank == 0:  # tells what it sends, and is then busy elsewhere
            routing = dict(cached=handle.core.xep) if kind == "cached" else dict(topk_idx=idx, topk_weights=weights)
            if kind == "cached":
                conftest.meet()
            request = shared.dispatch_async(x, capacity=most if kind == "worst" else 0, **routing)
            if kind != "cached":
                conftest.meet()
                conftest.meet()
            made = request.wait()
            combined = made.combine(made.recv.x)
        else:
            if kind != "cached":
                conftest.meet()
            options = (
                dict(handle=handle)
                if kind == "cached"
                else dict(arguments, num_worst_tokens=most if kind == "worst" else 0)
            )
            recv_x, _, _, recv_counts, made, event = buffer.dispatch(x, async_finish=True, **options)
            assert not event.event.request.done()
            assert recv_counts == dict(exact=counts, worst=[], cached=None)[kind]
            conftest.meet()
            if made is not None:
                combined = buffer.combine(recv_x, made)[0]  # waits by itself
            else:
                event.current_stream_wait()
                combined = event.event.request.result.combine(recv_x)
            assert torch.equal(recv_x[: len(wanted)], wanted)
        assert calc_diff(combined, sums) < 1e-5


def test_bias_and_the_order_of_sums(world):
    """+0 + bias0 + bias1 + ranks ascending, in fp32, one rounding: bit for bit."""
    rank, buffer = world.rank, world.buffer
    idx, weights = world.topk_idx[rank], world.weights[rank]
    x = rows_of("random", rank, len(idx))
    arguments = layout_arguments(buffer.get_dispatch_layout(idx, world.experts))
    recv_x, _, _, _, handle, _ = buffer.dispatch(x, topk_idx=idx, topk_weights=weights, **arguments)
    answers = (recv_x.float() * (1.5 + rank)).bfloat16()
    biases = (rows_of("random", rank + 50, len(idx)), rows_of("random", rank + 60, len(idx)))
    for bias in (None, biases[0], biases[:1], biases, (biases[0], None), (None, biases[1]), (None, None)):
        combined, _, _ = buffer.combine(answers, handle, bias=bias)
        total = torch.zeros(x.shape)
        for one in (bias,) if isinstance(bias, torch.Tensor) else filter(torch.is_tensor, bias or ()):
            total += one.float()
        for other in range(world.size):
            mine = (x.float() * (1.5 + other)).bfloat16().float()
            total += torch.where(world.in_rank(rank)[:, other : other + 1], mine, 0.0)
        assert torch.equal(combined, total.bfloat16())


def test_pressure(world):
    """The same seed gives the same bits, many times; other seeds in between."""

    def step(seed: int) -> int:
        other = make_world(world.buffer, seed, tokens=TOKENS + seed)
        rank, buffer = world.rank, world.buffer
        idx, weights = other.topk_idx[rank], other.weights[rank]
        x = rows_of("random", rank + seed, len(idx))
        arguments = layout_arguments(buffer.get_dispatch_layout(idx, other.experts))
        recv_x, recv_idx, recv_weights, counts, handle, _ = buffer.dispatch(
            x, topk_idx=idx, topk_weights=weights, **arguments
        )
        combined, combined_weights, event = buffer.combine(recv_x, handle, topk_weights=recv_weights, async_finish=True)
        with event:
            total = sum(hash_tensor(t) for t in (recv_x, recv_idx, recv_weights)) + sum(counts)
        return total + hash_tensor(combined) + hash_tensor(combined_weights)

    for seed in range(1, 4):
        reference = step(seed)
        for _ in range(6):
            step(seed + 50)
            assert step(seed) == reference


def test_buffers_grow(buffer_of):
    """More tokens, at one rank only; wider rows; more of everything: the rows are all there, and the old handle
    works."""
    buffer = buffer_of()
    kept = None
    for step, (tokens, hidden) in enumerate(
        ((4, 64), (4 + 300 * (buffer.rank == 0), 64), (20, 512), (700, 512), (0, 512))
    ):
        world = make_world(buffer, step, tokens=0, ragged=False)
        counts = [4 + 300 * (rank == 0) if step == 1 else tokens for rank in range(buffer.group_size)]
        for rank, count in enumerate(counts):
            generator = torch.Generator().manual_seed(rank + step)
            world.topk_idx[rank] = torch.randint(-1, world.experts, (count, TOPK), generator=generator)
        idx = world.topk_idx[buffer.rank]
        x = torch.full((len(idx), hidden), float(buffer.rank), dtype=torch.bfloat16)
        arguments = layout_arguments(buffer.get_dispatch_layout(idx, world.experts))
        recv_x, _, _, _, handle, _ = buffer.dispatch(x, topk_idx=idx, topk_weights=torch.ones(idx.shape), **arguments)
        assert recv_x.shape == (len(world.sources()), hidden)
        assert recv_x[:, 0].tolist() == [float(source) for source, _ in world.sources()]
        combined, _, _ = buffer.combine(recv_x, handle)
        assert torch.equal(combined, x * world.in_rank(buffer.rank).sum(1, keepdim=True))
        if kept is not None:
            old_rows, old_handle, old_x, old_count = kept
            combined, _, _ = buffer.combine(old_rows, old_handle)
            assert torch.equal(combined, old_x * old_count)
        else:
            kept = recv_x.clone(), handle, x, world.in_rank(buffer.rank).sum(1, keepdim=True)


def test_worst_case_that_is_too_small(world):
    idx, weights = world.topk_idx[world.rank], world.weights[world.rank]
    arguments = layout_arguments(world.buffer.get_dispatch_layout(idx, world.experts))
    with pytest.raises(xep.CapacityError, match="num_worst_tokens: rank 0 gets .* and has room for 1"):
        world.buffer.dispatch(
            rows_of("rank", 0, len(idx)),
            topk_idx=idx,
            topk_weights=weights,
            num_worst_tokens=1 if world.rank == 0 else 900,
            **arguments,
        )


def test_more_columns_than_experts(world):
    experts = world.buffer.group_size
    x, topk_idx = torch.ones(2, 8), torch.zeros((2, experts + 1), dtype=torch.int64)
    layout = layout_arguments(world.buffer.get_dispatch_layout(topk_idx, experts))
    for _ in range(2):
        with pytest.raises(ValueError, match=f"topk_idx: expected at most {experts} columns, .*, got {experts + 1}"):
            world.buffer.dispatch(x, topk_idx=topk_idx, topk_weights=torch.ones(topk_idx.shape), **layout)
    layout = layout_arguments(world.buffer.get_dispatch_layout(topk_idx[:, :1].contiguous(), experts))
    world.buffer.dispatch(x, topk_idx=topk_idx[:, :1].contiguous(), topk_weights=torch.ones(2, 1), **layout)


def test_set_num_sms(world):
    assert deep_ep.Buffer.num_sms == 20
    try:
        deep_ep.Buffer.set_num_sms(24)
        assert world.buffer.get_dispatch_config(4).num_sms == 24
        assert 1 <= world.buffer._threads_of(world.buffer._xep) <= 24
        check_dispatch(world, False, False, "random", True)
        with pytest.raises(ValueError, match="expected an even number, got 3"):
            deep_ep.Buffer.set_num_sms(3)
    finally:
        deep_ep.Buffer.num_sms, deep_ep.Buffer._threads = 20, 0


@pytest.mark.parametrize("mode", ["normal", "ll"])
def test_calls_of_python(buffer_of, mode):
    """A dispatch and its combine, in the common case: each call costs more than the checks in it."""
    buffer = buffer_of(low_latency_mode=mode == "ll")
    experts, tokens = 2 * buffer.group_size, 4
    x, idx = torch.ones((tokens, 128)).bfloat16(), torch.arange(2 * tokens).reshape(tokens, 2) % experts
    weights = torch.full((tokens, 2), 0.5)
    arguments = layout_arguments(buffer.get_dispatch_layout(idx, experts))

    def operations() -> None:
        if mode == "normal":
            rows, _, _, _, handle, _ = buffer.dispatch(x, topk_idx=idx, topk_weights=weights, **arguments)
            buffer.combine(rows, handle)
        else:
            rows, _, handle, _, _ = buffer.low_latency_dispatch(x, idx, tokens, experts, use_fp8=False)
            buffer.low_latency_combine(rows, idx, weights, handle)

    calls: list[str] = []
    for _ in range(6):
        operations()
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_name) if event == "call" else None)
    try:
        operations()
    finally:
        sys.setprofile(None)
    assert len(calls) <= 20, calls
