# SPDX-License-Identifier: BSD-3-Clause
"""deep_ep on CUDA tensors, normal mode: rows, sums and handles as plain loops have them, and what streams and events
mean. What is sent is held up on the device, so that what does not wait for it is found out."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("torch has no CUDA device here", allow_module_level=True)
from conftest import communicator  # noqa: E402
from cuda_memory import LONG, bits, held_up, late, rank_device  # noqa: E402
from normal_world import HIDDEN, TOKENS, layout_arguments, make_world, prepared, rows_of  # noqa: E402

import xep  # noqa: E402
from deep_ep.utils import calc_diff, per_token_cast_back, per_token_cast_to_fp8  # noqa: E402


@pytest.fixture
def device():
    return rank_device(communicator().rank)


@pytest.fixture
def world(buffer_of, device):
    return make_world(buffer_of())


# ---- normal mode ----

CASES = list(itertools.product((False, True), (False, True), ("random", "fp8"), (False, True)))


@pytest.mark.parametrize("previous, asynchronous, kind, with_topk", CASES)
def test_dispatch_and_combine(world, previous, asynchronous, kind, with_topk):
    """On a stream of the program's."""
    with torch.cuda.stream(torch.cuda.Stream()):
        buffer, rank = world.buffer, world.rank
        idx, weights = late(world.topk_idx[rank]), world.weights[rank].cuda()
        all_rows = [rows_of("random", r, len(world.topk_idx[r])) for r in range(world.size)]
        wanted = torch.stack([all_rows[r][t] for r, t in world.sources()])
        if kind == "fp8":
            cast, scales = per_token_cast_to_fp8(all_rows[rank])
            x = late(cast), scales.cuda().T.contiguous().T  # by column: strides are respected
        else:
            x = late(all_rows[rank])
        options = dict(async_finish=asynchronous)
        if previous:
            options["previous_event"] = buffer.capture()
            options["allocate_on_comm_stream"] = asynchronous
        layout = buffer.get_dispatch_layout(idx, world.experts, **options)
        if previous:
            options["previous_event"] = buffer.capture()
        if asynchronous:
            layout[-1].current_stream_wait()
        check_layout(world, layout)
        arguments = layout_arguments(layout)
        if with_topk:
            arguments.update(topk_idx=idx, topk_weights=weights)
        recv_x, recv_idx, recv_weights, counts, handle, event = buffer.dispatch(x, **arguments, **options)
        assert (event.event is not None) == asynchronous
        if asynchronous:
            event.current_stream_wait()
        check_rows(world, recv_x, wanted, recv_idx, recv_weights, counts)
        check_handle(world, handle)
        again, *nothing, event = buffer.dispatch(x, handle=handle, **options)
        with event:
            pass
        assert nothing == [None] * 4
        check_rows(world, again, wanted, None, None, None)
        check_sums(world, per_token_cast_back(*recv_x) if kind == "fp8" else recv_x, recv_weights, handle, options)


def check_layout(world, layout) -> None:
    per_rank, per_node, per_expert, in_rank, _ = layout
    idx = world.topk_idx[world.rank]
    assert all(found.is_cuda for found in (per_rank, per_expert, in_rank)) and per_node is None
    assert torch.equal(in_rank.cpu(), world.in_rank(world.rank))
    assert torch.equal(per_rank.cpu(), in_rank.cpu().sum(0).int()) and per_rank.dtype == torch.int32
    assert per_expert.tolist() == [int((idx == e).sum()) for e in range(world.experts)]


def check_rows(world, recv_x, wanted, recv_idx, recv_weights, counts) -> None:
    if isinstance(recv_x, tuple):
        cast, scales = per_token_cast_to_fp8(wanted)
        assert torch.equal(bits(recv_x[0]), bits(cast)) and torch.equal(recv_x[1].cpu(), scales)
    else:
        assert recv_x.is_cuda and torch.equal(recv_x.cpu(), wanted)
    local = world.experts // world.size
    first = world.rank * local
    if counts is not None:
        assert counts == [sum(int((idx == first + e).sum()) for idx in world.topk_idx) for e in range(local)]
    if recv_idx is None:
        return
    for row, (source, token) in enumerate(world.sources()):
        here = world.owners(source)[token] == world.rank
        assert torch.equal(recv_idx[row].cpu(), torch.where(here, world.topk_idx[source][token] - first, -1))
        assert torch.equal(recv_weights[row].cpu(), torch.where(here, world.weights[source][token], 0.0))


def check_handle(world, handle) -> None:
    """DeepEP's six tensors; on several nodes ten, of which ranks_deep_ep_internode.py has more to say."""
    sources, nodes = world.sources(), world.buffer.runtime.get_num_rdma_ranks()
    assert len(handle) == (6 if nodes == 1 else 10) and all(item.is_cuda for item in handle)
    if nodes > 1:
        return
    ends = [sum(source <= rank for source, _ in sources) for rank in range(world.size)]
    assert handle[0][:, world.rank].tolist() == ends
    assert handle[1][:, -1].tolist() == world.in_rank(world.rank).sum(0).tolist()
    assert handle[3].tolist() == [token for _, token in sources]
    assert torch.equal(handle[4].cpu(), world.in_rank(world.rank))
    assert torch.equal(handle[5].cpu() >= 0, world.in_rank(world.rank))


def check_sums(world, rows, recv_weights, handle, options) -> None:
    """Twice the rows, made late; each comes back from each of its ranks."""
    torch.cuda._sleep(LONG // 10)
    answers, bias = rows * 2, torch.ones((len(world.topk_idx[world.rank]), HIDDEN), dtype=torch.bfloat16).cuda()
    if "previous_event" in options:
        options["previous_event"] = world.buffer.capture()
    out, weights, event = world.buffer.combine(answers, handle, topk_weights=recv_weights, bias=bias, **options)
    with event:
        pass
    copies = world.in_rank(world.rank).sum(1, keepdim=True)
    mine = rows_of("random", world.rank, len(copies))
    assert out.is_cuda and calc_diff(out.cpu(), mine.float() * 2 * copies + 1) < 1e-3
    if recv_weights is not None:
        idx = world.topk_idx[world.rank]
        assert torch.equal(weights.cpu(), torch.where(idx >= 0, world.weights[world.rank], 0.0))


def test_worst_tokens(world):
    x, arguments = prepared(world)
    worst = TOKENS * world.size
    recv_x, recv_idx, recv_weights, counts, handle, _ = world.buffer.dispatch(x, **arguments, num_worst_tokens=worst)
    rows = len(world.sources())
    assert counts == [] and len(recv_x) == len(recv_idx) == len(recv_weights) == worst
    assert bool((recv_idx[rows:] == -1).all()) and bool((recv_idx[:rows] >= 0).any(1).all())
    out, _, _ = world.buffer.combine(recv_x, handle)
    assert calc_diff(out.cpu(), x.cpu() * world.in_rank(world.rank).sum(1, keepdim=True)) < 1e-5


def test_worst_tokens_wait_for_nothing(world):
    """Calls are back while the streams of all ranks are held up: a dispatch, one with its handle and a combine. Rows
    and sums are those of a dispatch whose counts are waited for."""
    if world.buffer.runtime.get_num_rdma_ranks() > 1:
        pytest.skip("rows are staged: the host takes part in every operation")
    x, arguments = prepared(world)
    worst, rows = TOKENS * world.size, len(world.sources())
    wanted = [one.clone() for one in world.buffer.dispatch(x, **arguments)[:3]]
    world.buffer.dispatch(x, **arguments, num_worst_tokens=worst)  # makes room
    for _ in range(2):
        with held_up(20):
            recv_x, recv_idx, recv_weights, counts, handle, _ = world.buffer.dispatch(
                x, **arguments, num_worst_tokens=worst
            )
            again = world.buffer.dispatch(x + 1, handle=handle)[0]
            out, weights, _ = world.buffer.combine(recv_x, handle, topk_weights=recv_weights)
        assert counts == [] and len(recv_x) == len(again) == worst
        for theirs, ours in zip((recv_x, recv_idx, recv_weights), wanted):
            assert torch.equal(theirs[:rows], ours)
        assert torch.equal(again[:rows], wanted[0] + 1) and bool((recv_idx[rows:] == -1).all())
        sources = [token for _, token in world.sources()]
        assert handle[3].tolist() == sources + [-1] * (worst - rows)
        ends = [sum(source <= rank for source, _ in world.sources()) for rank in range(world.size)]
        assert handle[0][:, world.rank].tolist() == ends
        assert calc_diff(out.cpu(), x.cpu() * world.in_rank(world.rank).sum(1, keepdim=True)) < 1e-5
        idx = world.topk_idx[world.rank]
        assert torch.equal(weights.cpu(), torch.where(idx >= 0, world.weights[world.rank], 0.0))
        plain = tuple(handle)
    assert torch.equal(world.buffer.dispatch(x, handle=plain)[0][:rows], wanted[0])


def test_worst_tokens_of_many_layers(world):
    """Handles without slots are routed anew, and received tensors are copies: also where nobody waits."""
    x, arguments = prepared(world)
    worst, rows = TOKENS * world.size, len(world.sources())
    kept = [world.buffer.dispatch(x + layer, **arguments, num_worst_tokens=worst) for layer in range(8)]
    wanted = world.buffer.dispatch(x, **arguments)[0]
    for layer, (recv_x, *_, handle, _) in reversed(list(enumerate(kept))):
        assert torch.equal(recv_x[:rows], wanted + layer)
        assert len(world.buffer.dispatch(x, handle=handle)[0]) == worst
        out, _, _ = world.buffer.combine(recv_x, handle)
        copies = world.in_rank(world.rank).sum(1, keepdim=True)
        assert calc_diff(out.cpu(), (x.cpu() + layer) * copies) < 1e-4


def test_too_few_worst_tokens(world):
    """All that wait for memory find it out; where nobody waits the next call tells of it."""
    x, arguments = prepared(world)
    with pytest.raises(ValueError, match="x: expected at most num_worst_tokens, 1, on a CUDA device, got"):
        world.buffer.dispatch(x, **arguments, num_worst_tokens=1)
    few = max(len(idx) for idx in world.topk_idx)
    if world.size == 1 or world.buffer.runtime.get_num_rdma_ranks() > 1:
        return
    with pytest.raises(xep.CapacityError, match="num_worst_tokens: rank . gets .* rows and has room for"):
        world.buffer.dispatch(x, **arguments, num_worst_tokens=few)
    world.buffer.dispatch(x, **arguments, num_worst_tokens=world.size * few)
    recv_x, recv_idx, _, _, handle, _ = world.buffer.dispatch(x, **arguments, num_worst_tokens=few)
    assert bool((recv_idx == -1).all())
    with pytest.raises(xep.XepError, match="rank . would get .* rows, it has room for"):
        world.buffer.combine(recv_x, handle)
    world.buffer.reset()
    recv_x = world.buffer.dispatch(x, **arguments, num_worst_tokens=world.size * few)[0]
    assert torch.equal(recv_x[: len(world.sources())], world.buffer.dispatch(x, **arguments)[0])


def test_a_plain_tuple_is_a_handle(world):
    x, arguments = prepared(world)
    recv_x, _, _, _, handle, _ = world.buffer.dispatch(x, **arguments)
    again = world.buffer.dispatch(x, handle=tuple(handle))[0]
    assert torch.equal(again, recv_x)
    out, _, _ = world.buffer.combine(recv_x, tuple(handle))
    assert calc_diff(out.cpu(), x.cpu() * world.in_rank(world.rank).sum(1, keepdim=True)) < 1e-5


def test_more_rows_than_before(world):
    """Memory is made anew by agreement; what was received before stays."""
    x, arguments = prepared(world)
    before = world.buffer.dispatch(x, **arguments)[0]
    wanted = before.clone()
    larger = make_world(world.buffer, seed=3, tokens=5 * TOKENS)
    x, arguments = prepared(larger)
    recv_x = world.buffer.dispatch(x, **arguments)[0]
    assert len(recv_x) == len(larger.sources()) and torch.equal(before, wanted)


def test_overlap(world):
    """What comes after previous_event alone is done while the program's stream is still held up; also where it takes
    over the slot of an older handle."""
    x, arguments = prepared(world)
    for _ in range(6):
        handle = world.buffer.dispatch(x, **arguments)[4]
    previous = world.buffer.capture()
    with held_up(10):
        recv_x, _, _, _, _, event = world.buffer.dispatch(x, handle=handle, previous_event=previous, async_finish=True)
        event.event.synchronize()
    with event:
        pass
    assert len(recv_x) == len(world.sources())


def test_a_slot_is_not_written_while_its_rows_are_read(buffer_of, device):
    """The program reads late what it has let go of, and dispatches that do not wait for it go on."""
    world = make_world(buffer_of(num_slots=1))
    x, arguments = prepared(world)
    wanted = world.buffer.dispatch(x, **arguments)[0].clone()
    copies = []
    other = x + 1
    previous = world.buffer.capture()
    for _ in range(3):
        recv_x = world.buffer.dispatch(x, **arguments)[0]
        torch.cuda._sleep(LONG // 2)
        copies.append(recv_x.clone())
        del recv_x
        for _ in range(4):
            world.buffer.dispatch(other, **arguments, previous_event=previous, async_finish=True)
    for copy in copies:
        assert torch.equal(copy, wanted)


def test_many_layers(world):
    """Received tensors and handles that are kept: those beyond the slots are copies."""
    x, arguments = prepared(world)
    kept = []
    for layer in range(8):
        kept.append((layer, *world.buffer.dispatch(x + layer, **arguments)))
    for layer, recv_x, recv_idx, *_, handle, _ in reversed(kept):
        assert recv_idx.is_cuda
        out, _, _ = world.buffer.combine(recv_x, handle)
        copies = world.in_rank(world.rank).sum(1, keepdim=True)
        assert calc_diff(out.cpu(), (x.cpu() + layer) * copies) < 1e-5


# ---- both kinds of memory; what is refused ----


def test_beside_cpu_tensors(world):
    """One Buffer, with tensors of either kind in turn."""
    x, arguments = prepared(world)
    for _ in range(2):
        there = world.buffer.dispatch(x, **arguments)[0]
        here = world.buffer.dispatch(x.cpu(), **{k: v if v is None else v.cpu() for k, v in arguments.items()})[0]
        assert here.is_cpu and torch.equal(there.cpu(), here)


def test_wrong_arguments(world):
    x, arguments = prepared(world)
    recv_x, _, _, _, handle, _ = world.buffer.dispatch(x, **arguments)
    for wrong, text in (
        (dict(topk_idx=arguments["topk_idx"].cpu()), "topk_idx: expected a cuda:. tensor int64 or int32"),
        (dict(is_token_in_rank=arguments["is_token_in_rank"].cpu()), "is_token_in_rank: expected a cuda:. tensor"),
    ):
        with pytest.raises(TypeError, match=text):
            world.buffer.dispatch(x, **{**arguments, **wrong})
    with pytest.raises(ValueError, match="x: expected a tensor of cuda:., as what was dispatched, got cpu"):
        world.buffer.combine(recv_x.cpu(), handle)


def test_streams_of_a_buffer(world):
    x, arguments = prepared(world)
    world.buffer.dispatch(x, **arguments)
    stream = world.buffer.get_comm_stream()
    assert isinstance(stream, torch.cuda.Stream) and stream != torch.cuda.current_stream()
    assert world.buffer.runtime.get_local_device_id() == x.device.index
    with pytest.raises(ValueError, match="allocate_on_comm_stream: expected previous_event and async_finish"):
        world.buffer.dispatch(x, **arguments, allocate_on_comm_stream=True)
