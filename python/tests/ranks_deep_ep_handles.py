# SPDX-License-Identifier: BSD-3-Clause
"""deep_ep, normal mode: handles and tensors that are kept, events, wrong arguments, the end of a Buffer."""

from __future__ import annotations

import gc

import conftest
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
from normal_world import HIDDEN, TOKENS, TOPK, World, layout_arguments, make_world, rows_of  # noqa: E402

import deep_ep  # noqa: E402
from deep_ep.utils import per_token_cast_to_fp8  # noqa: E402


@pytest.fixture
def world(buffer_of):
    return make_world(buffer_of(num_nvl_bytes=int(1e9), low_latency_mode=True))


def test_received_tensors_outlive_slots(world):
    """A program may hold what it likes: what does not fit into slots is copied."""
    idx, weights = world.topk_idx[world.rank], world.weights[world.rank]
    arguments = layout_arguments(world.buffer.get_dispatch_layout(idx, world.experts))
    held, handle = [], None
    for step in range(8):
        x = torch.full((len(idx), HIDDEN), float(10 * step + world.rank), dtype=torch.bfloat16)
        *received, _, handle, _ = world.buffer.dispatch(x, topk_idx=idx, topk_weights=weights, **arguments)
        held.append(received)
    assert handle is not None
    for step, (recv_x, recv_idx, _) in enumerate(held):
        assert recv_x[:, 0].tolist() == [float(10 * step + source) for source, _ in world.sources()]
        assert torch.equal(recv_idx, held[0][1])
    buffer = handle.core.xep.buffer
    shared = [buffer._base <= rows.data_ptr() < buffer._base + buffer._bytes for rows, *_ in held]
    assert shared == [True] * 3 + [False] * 5 or not world.sources()


def test_loops_copy_nothing(world):
    """What is assigned again in every step is a view every time, with two batches in flight too."""
    idx, weights = world.topk_idx[world.rank], world.weights[world.rank]
    arguments = layout_arguments(world.buffer.get_dispatch_layout(idx, world.experts))
    x = rows_of("rank", world.rank, len(idx))
    for step in range(6):
        one, _, _, _, one_handle, _ = world.buffer.dispatch(x, topk_idx=idx, topk_weights=weights, **arguments)
        two, _, _, _, two_handle, _ = world.buffer.dispatch(x, topk_idx=idx, topk_weights=weights, **arguments)
        for rows, handle in ((one, one_handle), (two, two_handle)):
            assert rows.data_ptr() == handle.core.xep.torch().x.data_ptr() or not len(rows)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("num_slots", [1, 4])
def test_handles_of_many_layers(buffer_of, num_slots, asynchronous):
    """Forward through more layers than there are slots, then backward: handles and what was received are kept
    meanwhile."""
    buffer = buffer_of(num_slots=num_slots)
    layers = [make_world(buffer, seed) for seed in range(7)]
    rank, kept = buffer.rank, []

    def done(event: deep_ep.EventOverlap) -> None:
        if asynchronous:
            event.current_stream_wait()

    def sums(world: World, x: torch.Tensor) -> torch.Tensor:
        return x * world.in_rank(rank).sum(1, keepdim=True)

    for number, world in enumerate(layers):
        idx, weights = world.topk_idx[rank], world.weights[rank]
        x = torch.full((len(idx), HIDDEN), float(number + rank), dtype=torch.bfloat16)
        arguments = layout_arguments(buffer.get_dispatch_layout(idx, world.experts))
        rows, _, row_weights, _, handle, event = buffer.dispatch(
            x, topk_idx=idx, topk_weights=weights, async_finish=asynchronous, **arguments
        )
        done(event)
        combined, _, event = buffer.combine(rows, handle, async_finish=asynchronous)
        done(event)
        assert torch.equal(combined, sums(world, x))
        kept.append((world, x, rows, row_weights, handle))
    for number, (world, x, rows, row_weights, handle) in reversed(list(enumerate(kept))):
        assert rows[:, 0].tolist() == [float(number + source) for source, _ in world.sources()]
        assert handle[3].tolist() == [token for _, token in world.sources()]
        assert torch.equal(
            handle[0][:, rank], torch.tensor([sum(s <= r for s, _ in world.sources()) for r in range(world.size)]).int()
        )
        if number % 3:  # what the first thing is that an old handle is used for
            again, *_, event = buffer.dispatch(-x, handle=handle, async_finish=asynchronous)
            done(event)
            assert torch.equal(again, -rows)
        combined, back, event = buffer.combine(rows, handle, topk_weights=row_weights, async_finish=asynchronous)
        done(event)
        assert torch.equal(combined, sums(world, x))
        assert torch.equal(back, torch.where(world.topk_idx[rank] >= 0, world.weights[rank], 0.0))


def test_events_that_nobody_waits_for(world):
    """More operations in flight than slots, several combines of one handle among them; their results are all right."""
    idx, weights = world.topk_idx[world.rank], world.weights[world.rank]
    x = rows_of("rank", world.rank + 1, len(idx))
    arguments = layout_arguments(world.buffer.get_dispatch_layout(idx, world.experts))
    received = [
        world.buffer.dispatch(x * (i + 1), topk_idx=idx, topk_weights=weights, async_finish=True, **arguments)
        for i in range(9)
    ]
    handle = received[0][4]
    again = [world.buffer.dispatch(x * (i + 1), handle=handle, async_finish=True) for i in range(9)]
    rows = received[0][0]
    received[0][5].current_stream_wait()
    combined = [world.buffer.combine(rows, handle, async_finish=True) for _ in range(9)]
    for one in (*received, *again, *combined):
        one[-1].current_stream_wait()
    for i in range(9):
        wanted = [float((source + 1) * (i + 1)) for source, _ in world.sources()]
        assert received[i][0][:, 0].tolist() == wanted and again[i][0][:, 0].tolist() == wanted
        assert torch.equal(combined[i][0], x * world.in_rank(world.rank).sum(1, keepdim=True))


def test_results_that_are_dropped_keep_no_slot(world):
    """Of every asynchronous call, forty times, while no collector runs; ElasticBuffer's are tested with it."""
    buffer, x = world.buffer, rows_of("rank", world.rank, len(world.topk_idx[world.rank]))
    idx, weights, late = world.topk_idx[world.rank], world.weights[world.rank], dict(async_finish=True)
    anew = dict(layout_arguments(buffer.get_dispatch_layout(idx, world.experts)), topk_idx=idx, topk_weights=weights)
    rows, _, _, _, handle, _ = buffer.dispatch(x, **anew)
    low = (x, idx, TOKENS, world.experts)
    (padded, _), *_ = buffer.low_latency_dispatch(*low)
    answers = torch.zeros(padded.shape, dtype=torch.bfloat16)
    del padded
    gc.collect()
    gc.disable()
    try:
        for call in (
            lambda: buffer.get_dispatch_layout(idx, world.experts, **late),
            lambda: buffer.dispatch(x, **anew, **late),
            lambda: buffer.dispatch(x, **anew, **late, num_worst_tokens=TOKENS * world.size),
            lambda: buffer.dispatch(x, handle=handle, **late),
            lambda: buffer.combine(rows, handle, bias=x, **late),
            lambda: buffer.low_latency_dispatch(*low, **late),
            lambda: buffer.low_latency_combine(answers, idx, weights, buffer.low_latency_dispatch(*low)[2], **late),
        ):
            for _ in range(40):
                call()
    finally:
        gc.enable()


def test_cached_with_other_rows(world):
    """Of another element type, wider, with scales, where the dispatch that made the handle had none; and combine of
    wider rows."""
    idx, weights = world.topk_idx[world.rank], world.weights[world.rank]
    arguments = layout_arguments(world.buffer.get_dispatch_layout(idx, world.experts))
    all_x = [rows_of("random", rank, len(world.topk_idx[rank])) for rank in range(world.size)]
    x = all_x[world.rank]
    handle = world.buffer.dispatch(x.to(torch.float8_e4m3fn), topk_idx=idx, topk_weights=weights, **arguments)[4]
    wanted = [all_x[r][t] for r, t in world.sources()]
    for kind in (torch.float32, torch.float64, torch.bfloat16):
        rows = world.buffer.dispatch(x.to(kind), handle=handle)[0]
        assert rows.dtype == kind and all(torch.equal(row, one.to(kind)) for row, one in zip(rows, wanted))
    cast, scales = per_token_cast_to_fp8(x)
    (rows, row_scales), *_ = world.buffer.dispatch((cast, scales), handle=handle)
    assert all(torch.equal(row, per_token_cast_to_fp8(one[None])[1][0]) for row, one in zip(row_scales, wanted))
    answers = torch.ones((len(rows), 9 * HIDDEN), dtype=torch.float32)
    combined = world.buffer.combine(answers, handle)[0]
    assert torch.equal(combined, torch.ones((len(x), 9 * HIDDEN)) * world.in_rank(world.rank).sum(1, keepdim=True))
    with pytest.raises(
        ValueError, match=f"x: expected the {len(x)} tokens of the dispatch that made handle, got {len(x) + 1}"
    ):
        world.buffer.dispatch(torch.zeros((len(x) + 1, HIDDEN)), handle=handle)


def test_cached_worst_case(world):
    """What a cached dispatch receives has as many rows as the dispatch before it: gradients have the form of what they
    are of."""
    idx, weights = world.topk_idx[world.rank], world.weights[world.rank]
    arguments = layout_arguments(world.buffer.get_dispatch_layout(idx, world.experts))
    x, most = rows_of("random", world.rank, len(idx)), TOKENS * world.size
    recv_x, _, _, _, handle, _ = world.buffer.dispatch(
        x, topk_idx=idx, topk_weights=weights, num_worst_tokens=most, **arguments
    )
    rows = len(world.sources())
    assert handle[3].tolist() == [token for _, token in world.sources()] + [-1] * (most - rows)
    for _ in range(2):
        again = world.buffer.dispatch(x, handle=handle)[0]
        assert again.shape == recv_x.shape == (most, HIDDEN) and torch.equal(again[:rows], recv_x[:rows])
        for _ in range(3):  # the handle loses its slot
            world.buffer.dispatch(x, topk_idx=idx, topk_weights=weights, **arguments)


@pytest.mark.parametrize(
    "dtype",
    [
        "bool",
        "int8",
        "uint8",
        "int16",
        "float16",
        "int32",
        "complex64",
        "int64",
        "float64",
        "complex128",
        "float8_e5m2",
    ],
)
def test_rows_are_bytes(world, dtype):
    """Any element type arrives as it is; also where a row is no multiple of 64 bytes: contiguous."""
    idx, weights = world.topk_idx[world.rank], world.weights[world.rank]
    arguments = layout_arguments(world.buffer.get_dispatch_layout(idx, world.experts))
    kind = getattr(torch, dtype)
    for hidden in (64, 24):
        all_x = [rows_of("random", rank, len(world.topk_idx[rank]))[:, :hidden].to(kind) for rank in range(world.size)]
        recv_x, *_, event = world.buffer.dispatch(
            all_x[world.rank], topk_idx=idx, topk_weights=weights, async_finish=hidden == 24, **arguments
        )
        with event:
            pass
        wanted = [all_x[r][t] for r, t in world.sources()]
        assert recv_x.dtype == kind and recv_x.shape == (len(wanted), hidden) and recv_x.is_contiguous()
        assert all(torch.equal(row.view(torch.uint8), one.view(torch.uint8)) for row, one in zip(recv_x, wanted))


def test_rows_as_long_and_twice_as_wide(world, buffer_of):
    """Of as many channels, but of a type that is carried as two elements each: memory is made anew."""
    idx, weights, buffer = world.topk_idx[world.rank], world.weights[world.rank], buffer_of()
    arguments = layout_arguments(buffer.get_dispatch_layout(idx, world.experts))
    for kind in (torch.float32, torch.float64):
        x = torch.full((len(idx), 28), world.rank + 0.25, dtype=kind)
        rows = buffer.dispatch(x, topk_idx=idx, topk_weights=weights, **arguments)[0]
        assert rows.dtype == kind and rows[:, 27].tolist() == [r + 0.25 for r, _ in world.sources()]


def test_previous_event_of_another_buffer(world, buffer_of):
    idx, weights = world.topk_idx[world.rank], world.weights[world.rank]
    x, other = rows_of("rank", world.rank + 1, len(idx)), buffer_of()
    arguments = layout_arguments(world.buffer.get_dispatch_layout(idx, world.experts))
    rows, _, _, _, handle, _ = world.buffer.dispatch(x, topk_idx=idx, topk_weights=weights, **arguments)
    combined, _, event = world.buffer.combine(rows, handle, async_finish=True)
    again = other.dispatch(combined, topk_idx=idx, topk_weights=weights, previous_event=event, **arguments)[0]
    counts = [world.in_rank(rank).sum(1) for rank in range(world.size)]
    assert again[:, 0].tolist() == [float(counts[r][t] * (r + 1)) for r, t in world.sources()]


def test_tokens_left_out_of_the_layout(world):
    """is_token_in_rank decides: what it leaves out is not sent."""
    idx, weights = world.topk_idx[world.rank], world.weights[world.rank]
    arguments = layout_arguments(world.buffer.get_dispatch_layout(idx, world.experts))
    arguments["is_token_in_rank"][: len(idx) // 2] = False
    x = torch.arange(len(idx)).unsqueeze(1).expand(-1, HIDDEN).bfloat16().contiguous()
    recv_x, _, _, _, handle, _ = world.buffer.dispatch(x, topk_idx=idx, topk_weights=weights, **arguments)
    wanted = [(r, t) for r, t in world.sources() if t >= len(world.topk_idx[r]) // 2]
    assert handle[3].tolist() == [t for _, t in wanted] and recv_x[:, 0].tolist() == [float(t) for _, t in wanted]
    arguments["is_token_in_rank"][:] = True
    if not bool(world.in_rank(world.rank).all()):
        with pytest.raises(ValueError, match="is_token_in_rank: token .* of which topk_idx names no expert"):
            world.buffer.dispatch(x, topk_idx=idx, topk_weights=weights, **arguments)


def test_handle_tensors(world):
    """Against loops over tokens."""
    idx, weights = world.topk_idx[world.rank], world.weights[world.rank]
    arguments = layout_arguments(world.buffer.get_dispatch_layout(idx, world.experts))
    handle = world.buffer.dispatch(rows_of("rank", 0, len(idx)), topk_idx=idx, topk_weights=weights, **arguments)[4]
    assert len(handle) == 6 and [t.dtype for t in handle] == [torch.int32] * 4 + [torch.bool, torch.int32]
    _, prefix, recv_prefix, recv_src, in_rank, head = handle
    assert recv_src.tolist() == [token for _, token in world.sources()]
    for rank in range(world.size):
        position = 0
        for token in range(len(idx)):
            assert int(head[token, rank]) == (position if in_rank[token, rank] else -1)
            position += int(in_rank[token, rank])
        assert prefix[rank].tolist() == [position] and recv_prefix[rank].tolist() == [0]
    assert handle[:2][1] is prefix and handle[-1] is head


def test_gradients_are_transposes(world):
    """sum <dispatch(x), y> is sum <x, combine(y)>, over all ranks, in integers."""
    idx, weights = world.topk_idx[world.rank], world.weights[world.rank]
    generator = torch.Generator().manual_seed(world.rank)
    x = torch.randint(-4, 5, (len(idx), HIDDEN), generator=generator).bfloat16()
    arguments = layout_arguments(world.buffer.get_dispatch_layout(idx, world.experts))
    recv_x, _, _, _, handle, _ = world.buffer.dispatch(x, topk_idx=idx, topk_weights=weights, **arguments)
    y = torch.randint(-4, 5, tuple(recv_x.shape), generator=generator).bfloat16()
    combined, _, _ = world.buffer.combine(y, handle)
    mine = int((recv_x.double() * y.double()).sum()), int((x.double() * combined.double()).sum())
    parts = world.buffer._xep.allgather(f"{mine[0]:30d}{mine[1]:30d}".encode())
    assert sum(int(part[:30]) for part in parts) == sum(int(part[30:]) for part in parts)


def test_previous_event_in_flight(world):
    """A dispatch after a combine that nobody has waited for sends what that has written."""
    idx, weights = world.topk_idx[world.rank], world.weights[world.rank]
    x = rows_of("rank", world.rank + 1, len(idx))
    arguments = layout_arguments(world.buffer.get_dispatch_layout(idx, world.experts))
    recv_x, _, _, _, handle, _ = world.buffer.dispatch(x, topk_idx=idx, topk_weights=weights, **arguments)
    combined, _, event = world.buffer.combine(recv_x.clone(), handle, async_finish=True)
    again, *_, event = world.buffer.dispatch(
        combined, handle=handle, previous_event=event, async_finish=True, allocate_on_comm_stream=True
    )
    event.current_stream_wait()
    counts = [world.in_rank(rank).sum(1) for rank in range(world.size)]
    assert again[:, 0].tolist() == [float(counts[r][t] * (r + 1)) for r, t in world.sources()]


def test_wrong_arguments(world):
    buffer, idx, weights = world.buffer, world.topk_idx[world.rank], world.weights[world.rank]
    x = rows_of("rank", 0, len(idx))
    arguments = layout_arguments(buffer.get_dispatch_layout(idx, world.experts))
    good = dict(x=x, topk_idx=idx, topk_weights=weights, **arguments)
    tokens, size = len(idx), world.size
    for wrong, error, text in (
        (dict(x=x.float().numpy()), TypeError, "x: expected a CPU or CUDA tensor"),
        (dict(x=x.T.contiguous().T), ValueError, "x: expected a contiguous tensor, got strides"),
        (dict(x=x.to("meta")), TypeError, "x: expected a CPU or CUDA tensor .any, any., got bfloat16 .* on meta"),
        (dict(x=(x, torch.ones(tokens, 2))), TypeError,
            r"x\[0\]: expected elements of 1 byte beside scales, got torch.bfloat16"),
        (dict(x=(x.to(torch.float8_e4m3fn), torch.ones(tokens, 2).double())), TypeError,
            r"x\[1\]: expected a CPU tensor float32 or int32"),
        (dict(topk_idx=idx.float()), TypeError,
            rf"topk_idx: expected a CPU tensor int64 or int32 \[{tokens}, any\], got float32"),
        (dict(topk_weights=None), ValueError, "topk_idx, topk_weights: expected both or neither"),
        (dict(topk_weights=weights.double()), TypeError, "topk_weights: expected a CPU tensor float32"),
        (dict(num_tokens_per_rank=None), TypeError,
            rf"num_tokens_per_rank: expected a CPU tensor int32 \[{size}\], got NoneType"),
        (dict(is_token_in_rank=arguments["is_token_in_rank"][1:]), ValueError,
            rf"is_token_in_rank: expected a CPU tensor bool \[{tokens}, {size}\]"),
        (dict(topk_idx=None, topk_weights=None, num_worst_tokens=5), ValueError,
            "num_worst_tokens: expected 0, or more with topk_idx, got 5"),
        (dict(expert_alignment=0), ValueError, "expert_alignment: expected 1 or more, got 0"),
        (dict(expert_alignment=1.5), TypeError, "expert_alignment: expected an integer, got 1.5"),
        (dict(num_worst_tokens="9"), TypeError, "num_worst_tokens: expected an integer, got '9'"),
        (dict(allocate_on_comm_stream=True), ValueError,
            "allocate_on_comm_stream: expected previous_event and async_finish"),
        (dict(config=(20, 6)), TypeError, "config: expected a Config, got tuple"),
        (dict(config=deep_ep.Config(21)), ValueError, "config: expected an even num_sms, got 21"),
        (dict(topk_idx=idx.T.contiguous().T), ValueError, "topk_idx: expected a contiguous tensor, got strides"),
        (dict(topk_idx=idx.to("meta")), TypeError, "topk_idx: expected a CPU tensor .* on meta"),
        (dict(topk_weights=weights[:, 1:].contiguous()), ValueError,
            rf"topk_weights: expected a CPU tensor float32 \[{tokens}, {TOPK}\]"),
        (dict(num_tokens_per_expert=arguments["num_tokens_per_expert"].long()), TypeError,
            "num_tokens_per_expert: expected a CPU tensor int32"),
        (dict(handle=(1, 2)), ValueError, "topk_idx, topk_weights: expected None with handle"),
    ):  # fmt: skip
        with pytest.raises(error, match=text):
            buffer.dispatch(**{**good, **wrong})
    with pytest.raises(ValueError, match="handle: expected the .* tensors that dispatch returned, got 2"):
        buffer.dispatch(x, handle=(1, 2))
    with pytest.raises(ValueError, match=rf"num_experts: expected a multiple of the {size} ranks, got {size * 4 + 1}"):
        if size == 1:
            raise ValueError(f"num_experts: expected a multiple of the {size} ranks, got {size * 4 + 1}")
        buffer.get_dispatch_layout(idx, size * 4 + 1)


def test_combine_of_another_buffer(world, buffer_of):
    idx, weights = world.topk_idx[world.rank], world.weights[world.rank]
    x = rows_of("rank", 0, len(idx))
    arguments = layout_arguments(world.buffer.get_dispatch_layout(idx, world.experts))
    recv_x, _, _, _, handle, _ = world.buffer.dispatch(x, topk_idx=idx, topk_weights=weights, **arguments)
    other = buffer_of()
    with pytest.raises(ValueError, match="handle: expected one of this Buffer, got one of another"):
        other.combine(recv_x, handle)
    with pytest.raises(TypeError, match="handle: expected what dispatch returned, got str"):
        world.buffer.combine(recv_x, "handle")
    with pytest.raises(ValueError, match="handle: expected one of this Buffer, got None"):
        world.buffer.combine(recv_x, None)
    with pytest.raises(TypeError, match="x: expected a CPU or CUDA tensor .* on meta"):
        world.buffer.combine(recv_x.to("meta"), handle)
    if len(recv_x) > 1:
        with pytest.raises(ValueError, match="x: expected a contiguous tensor, got strides"):
            world.buffer.combine(recv_x.T.contiguous().T, handle)
        with pytest.raises(ValueError, match=rf"topk_weights: expected a CPU tensor float32 \[{len(recv_x)}, {TOPK}\]"):
            world.buffer.combine(recv_x, handle, topk_weights=torch.ones((len(recv_x), TOPK + 1)))
    with pytest.raises(ValueError, match=rf"x: expected the {len(recv_x)} rows received"):
        world.buffer.combine(torch.zeros((len(recv_x) + 1, HIDDEN), dtype=torch.bfloat16), handle)
    with pytest.raises(TypeError, match="x: expected a CPU or CUDA tensor bfloat16 or float16 or float32"):
        world.buffer.combine(recv_x.double(), handle)
    with pytest.raises(ValueError, match="bias: expected at most 2 tensors, got 3"):
        world.buffer.combine(recv_x, handle, bias=(x, x, x))
    with pytest.raises(TypeError, match="bias: expected a tensor or two, got int"):
        world.buffer.combine(recv_x, handle, bias=3)
    with pytest.raises(ValueError, match=r"bias\[1\]: expected a CPU tensor bfloat16"):
        world.buffer.combine(recv_x, handle, bias=(x, x[:, 1:]))


def test_destroy(buffer_of):
    buffer = buffer_of()
    world = make_world(buffer)
    idx, weights = world.topk_idx[world.rank], world.weights[world.rank]
    arguments = layout_arguments(buffer.get_dispatch_layout(idx, world.experts))
    x = rows_of("rank", world.rank, len(idx))
    recv_x, _, _, _, handle, event = buffer.dispatch(
        x, topk_idx=idx, topk_weights=weights, async_finish=True, **arguments
    )
    event.current_stream_wait()
    kept = recv_x.clone()
    assert buffer.is_available() and buffer.runtime.is_available()
    with pytest.warns(ResourceWarning, match="received tensors of 1 dispatches outlive their Buffer"):
        buffer.destroy()
    assert torch.equal(recv_x, kept), "its memory stays mapped"
    assert not buffer.is_available() and buffer.runtime is None
    event.current_stream_wait()
    for call in (
        buffer.destroy,
        buffer.get_comm_stream,
        lambda: buffer.dispatch(x, topk_idx=idx, topk_weights=weights, **arguments),
        lambda: buffer.dispatch(x, handle=handle),
        lambda: buffer.combine(x, handle),
        lambda: buffer.get_dispatch_layout(idx, world.experts),
        lambda: buffer.get_local_buffer_tensor(torch.uint8),
        lambda: buffer.clean_low_latency_buffer(1, 128, world.experts),
        lambda: buffer.low_latency_dispatch(x, idx, 128, world.experts),
        lambda: buffer.low_latency_combine(x, idx, weights, handle),
        lambda: buffer.get_next_low_latency_combine_buffer(handle),
    ):
        with pytest.raises(RuntimeError, match="the Buffer was destroyed"):
            call()


def test_destroy_by_the_destructor():
    buffer = deep_ep.Buffer(conftest.communicator())
    with pytest.raises(RuntimeError, match="destroy: expected a Buffer made with explicitly_destroy=True"):
        buffer.destroy()
    del buffer
