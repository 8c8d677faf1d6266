# SPDX-License-Identifier: BSD-3-Clause
"""deep_ep.ElasticBuffer: dispatch and combine against plain loops, on outputs that were poisoned before."""

from __future__ import annotations

import gc
import itertools
import math
import os
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
from conftest import communicator  # noqa: E402
from elastic_world import (  # noqa: E402
    LOCAL,
    ROUTINGS,
    TOPK,
    answer,
    answers,
    by_last,
    check_received,
    make_world,
    scaled,
    settle,
    sums,
)  # fmt: skip

import deep_ep  # noqa: E402
import xep  # noqa: E402


def poison(world) -> None:
    """Leaves NaN in every slot."""
    x = torch.full_like(world.x[world.rank], float("nan"))
    for _ in range(8):
        _, _, _, handle, _ = world.buffer.dispatch(**dict(world.mine(), x=x))
    world.buffer.combine(torch.full((handle.num_recv_tokens, x.shape[1]), float("nan"), dtype=torch.bfloat16), handle)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("routing", ROUTINGS)
def test_dispatch_and_combine(elastic, routing, asynchronous):
    world = make_world(elastic(), routing)
    poison(world)
    how = dict(async_with_compute_stream=asynchronous)
    for expand, alignment, sync, biased in itertools.product((False, True), (1, 8), (True, False), (0, 1, 2)):
        stats = torch.full((LOCAL,), 7, dtype=torch.int32)
        got = settle(
            world.buffer.dispatch(
                **world.mine(), **how, do_expand=expand, expert_alignment=alignment, do_cpu_sync=sync,
                cumulative_local_expert_recv_stats=stats,
            ),
            asynchronous,
        )  # fmt: skip
        check_received(world, got, expand, alignment, world.x, sync)
        recv_x, _, recv_weights, handle, _ = got
        assert (stats - 7).tolist() == world.expanded(1)[1]
        biases = tuple(torch.randn_like(world.x[world.rank]) for _ in range(biased))
        combined, back, _ = settle(
            world.buffer.combine(
                answers(world, recv_x, expand, alignment), handle, recv_weights,
                bias=(None, biases[0] if biases else None, biases)[biased], **how,
            ),
            asynchronous,
        )  # fmt: skip
        assert torch.equal(combined, sums(world, biases, True)), "bit for bit"
        assert torch.equal(back, torch.where(world.topk_idx[world.rank] >= 0, world.weights[world.rank], 0.0))


@pytest.mark.parametrize("hidden", [1, 33, 128, 2880])
@pytest.mark.parametrize("expand", [False, True])
def test_dispatch_of_any_width(elastic, hidden, expand):
    """Rows of odd bytes; in bfloat16, fp32, and e4m3 with scales, received by row and by column."""
    world = make_world(elastic(), "masked", hidden)
    alignment = 4
    for by_column in (False, True):
        sent = scaled(world)
        recv, *rest = world.buffer.dispatch(
            **dict(world.mine(), x=sent[world.rank]), do_expand=expand, expert_alignment=alignment,
            use_tma_aligned_col_major_sf=by_column,
        )  # fmt: skip
        as_bytes = recv[0].view(torch.uint8)
        check_received(world, (as_bytes, *rest), expand, alignment, [q.view(torch.uint8) for q, _ in sent])
        check_received(world, (recv[1], *rest), expand, alignment, [s for _, s in sent])
        rows, words = recv[1].shape
        assert recv[1].stride() == (1, -(-rows // 4) * 4) if by_column and min(rows, words) > 1 else True
    wide = [x.float() * math.pi for x in world.x]
    got = world.buffer.dispatch(**dict(world.mine(), x=wide[world.rank]), do_expand=expand, expert_alignment=alignment)
    check_received(world, got, expand, alignment, wide)
    combined, _, _ = world.buffer.combine(got[0] * 2, got[3])
    owners = torch.where(world.topk_idx[world.rank] >= 0, world.topk_idx[world.rank] // LOCAL, -1)
    copies = (owners >= 0).sum(1) if expand else torch.tensor([len({*o} - {-1}) for o in owners.tolist()])
    torch.testing.assert_close(combined, wide[world.rank] * 2 * copies.unsqueeze(1), rtol=1e-6, atol=0)


def test_combine_rounds_once(elastic):
    """Without allow_multiple_reduction selections are added one by one."""
    world = make_world(elastic(allow_multiple_reduction=False))
    differs = False
    for asynchronous in (False, True):
        how = dict(async_with_compute_stream=asynchronous)
        recv_x, _, recv_weights, handle, _ = settle(
            world.buffer.dispatch(**world.mine(), **how, do_expand=True), asynchronous
        )
        y, bias = answers(world, recv_x, True, 1), torch.randn_like(world.x[world.rank])
        combined, back, _ = settle(world.buffer.combine(y, handle, recv_weights, bias, **how), asynchronous)
        assert combined.dtype == torch.bfloat16 and torch.equal(combined, sums(world, (bias,), False))
        assert torch.equal(back, world.weights[world.rank])
        differs = differs or not torch.equal(combined, sums(world, (bias,), True))
    assert differs or not len(combined), "the other order of rounding would not have been noticed"


@pytest.mark.parametrize("expand", [False, True])
@pytest.mark.parametrize("multiple", [False, True])
@pytest.mark.parametrize("hybrid", [False, True])
def test_sums_are_those_of_the_domain(elastic, hybrid, multiple, expand):
    """Bit for bit; where the order is another one, some bits are, too."""
    world = make_world(elastic(allow_hybrid_mode=hybrid, allow_multiple_reduction=multiple), hidden=512)
    recv_x, _, _, handle, _ = world.buffer.dispatch(**world.mine(), do_expand=expand)
    combined, _, _ = world.buffer.combine(answers(world, recv_x, expand, 1), handle)
    assert torch.equal(combined, sums(world, (), multiple, expand))
    if world.buffer.get_logical_domain_size()[0] > 1:
        assert not torch.equal(combined, sums(world, (), not multiple, expand))


def test_ranks_are_summed_by_selection(elastic):
    """What they give shows the order: 1 counts for nothing beside 2 to the power of 30."""
    world, parts = make_world(elastic(allow_hybrid_mode=False)), torch.tensor([2.0**30, 1.0, -(2.0**30), 3.0])
    recv_x, _, _, handle, _ = world.buffer.dispatch(**world.mine())
    combined, _, _ = world.buffer.combine(torch.full_like(recv_x, float(parts[world.rank % 4])), handle)
    for row, chosen in zip(combined, world.topk_idx[world.rank].tolist()):
        total = torch.zeros(())
        for owner in by_last(expert // LOCAL for expert in chosen if expert >= 0):
            total = total + parts[owner % 4]
        assert bool((row == total.bfloat16()).all())


@pytest.mark.parametrize("asynchronous", [False, True])
def test_selections_are_added_one_by_one(elastic, asynchronous):
    """Without allow_multiple_reduction, of whichever ranks: 1 counts for nothing beside 2 to the power of 30."""
    world, parts = make_world(elastic(allow_multiple_reduction=False)), torch.tensor([2.0**30, 1.0, -(2.0**30)])
    how = dict(async_with_compute_stream=asynchronous)
    (recv_x, _, _, handle, _) = settle(world.buffer.dispatch(**world.mine(), **how, do_expand=True), asynchronous)
    for row, (_, _, k) in zip(recv_x, world.expanded(1)[0]):
        row.fill_(float(parts[k]))
    combined, _, _ = settle(world.buffer.combine(recv_x, handle, **how), asynchronous)
    for row, chosen in zip(combined, world.topk_idx[world.rank].tolist()):
        total = torch.zeros(())
        for part, expert in zip(parts, chosen):
            total = total + part if expert >= 0 else total
        assert bool((row == total.bfloat16()).all())


def test_weights_of_other_ranks_do_not_count(elastic):
    """What comes back of a selection is what its own rank gave, whatever others wrote there."""
    world = make_world(elastic())
    recv_x, recv_idx, recv_weights, handle, _ = world.buffer.dispatch(**world.mine())
    recv_weights = torch.where(recv_idx >= 0, recv_weights, float("nan"))
    _, back, _ = world.buffer.combine(recv_x, handle, topk_weights=recv_weights)
    assert torch.equal(back, world.weights[world.rank])


def test_many_dispatches_in_flight(elastic):
    """Each begins after the one before; rows that go on are those of the event."""
    world = make_world(elastic())
    x, begun, event = world.x[world.rank], [], None
    for step in range(6):
        got = world.buffer.dispatch(
            **dict(world.mine(), x=x * (step + 1)), do_expand=step % 2 == 1, previous_event=event,
            allocate_on_comm_stream=True, async_with_compute_stream=True,
        )  # fmt: skip
        begun.append(got)
        event = got[4]
    for step, got in reversed(list(enumerate(begun))):
        got[4].current_stream_wait()
        check_received(world, got, step % 2 == 1, 1, [x * (step + 1) for x in world.x])
    recv_x, _, _, handle, _ = begun[1]
    combined = world.buffer.combine(answers(world, begun[0][0], False, 1), begun[0][3], async_with_compute_stream=True)
    seen = []
    combined[2].register_hook_after_wait(lambda: seen.append("hook"))
    late, _, _ = world.buffer.combine(
        answers(world, recv_x, True, 1), handle, previous_event=combined[2], allocate_on_comm_stream=True,
        previous_event_before_epilogue=world.buffer.capture(),
    )  # fmt: skip
    with combined[2](release_handle=True):
        assert seen == []
    assert seen == ["hook"] and combined[2].event is None
    assert torch.equal(combined[0], sums(world, (), True))
    assert late.shape == x.shape


def test_results_that_are_dropped_keep_no_slot(elastic):
    """Nobody waits for the event, and no collector runs."""
    world = make_world(elastic(), "random")
    rows = world.buffer.dispatch(**world.mine())[3].num_recv_tokens
    gc.collect()
    gc.disable()
    try:
        for turn in range(40):
            got = world.buffer.dispatch(
                **world.mine(), async_with_compute_stream=True, do_expand=turn % 2 == 0, do_zero_padding=turn % 4 == 0
            )
            if turn % 3 == 0:
                y = torch.zeros((got[3].num_expanded_tokens if turn % 2 == 0 else rows, got[0].shape[1])).bfloat16()
                world.buffer.combine(y, got[3], async_with_compute_stream=True)
            del got
    finally:
        gc.enable()


def test_dispatch_and_combine_are_adjoint(elastic):
    """<dispatch(x), y> = <x, combine(y)>, over all ranks, in both arrangements: one is the other's gradient."""
    world = make_world(elastic(), "masked")
    generator = torch.Generator().manual_seed(9 + world.rank)
    x = torch.randint(-4, 5, world.x[world.rank].shape, generator=generator).bfloat16()
    for expand in (False, True):
        recv_x, _, _, handle, _ = world.buffer.dispatch(**dict(world.mine(), x=x), do_expand=expand)
        y = torch.randint(-4, 5, recv_x.shape, generator=generator).bfloat16()
        combined, _, _ = world.buffer.combine(y, handle)
        there, here = (recv_x.double() * y.double()).sum(), (combined.double() * x.double()).sum()
        found = torch.frombuffer(
            bytearray(b"".join(world.buffer._xep.allgather(torch.stack([there, here]).numpy().tobytes()))),
            dtype=torch.float64,
        ).view(-1, 2)
        assert float(found[:, 0].sum()) == float(found[:, 1].sum())


def test_domains_and_hints(elastic):
    buffer = elastic(hidden=64, num_topk=TOPK)
    width = int(os.environ.get("XEP_NODE_RANKS", "0")) or buffer.num_ranks
    physical = (-(-buffer.num_ranks // width), width)
    hybrid = physical[0] > 1 and width > 1 and os.environ.get("XEP_PATH") != "flat"
    assert buffer.get_logical_domain_size() == (physical if hybrid else (1, buffer.num_ranks))
    assert elastic(allow_hybrid_mode=False).get_logical_domain_size() == (1, buffer.num_ranks)
    assert elastic(allow_multiple_reduction=False).get_logical_domain_size() == (1, buffer.num_ranks)
    assert buffer.get_physical_domain_size() == physical
    assert (buffer.num_rdma_ranks, buffer.num_nvlink_ranks) == buffer.get_physical_domain_size()
    width = width if hybrid else buffer.num_ranks
    assert (buffer.scaleout_rank_idx, buffer.scaleup_rank_idx) == divmod(buffer.rank_idx, width)
    assert buffer.num_bytes % (2 << 20) == 0 and buffer.num_bytes > 0
    assert elastic(num_bytes=4 << 20, num_max_tokens_per_rank=0).num_bytes == 4 << 20
    sms = buffer.get_theoretical_num_sms(LOCAL * buffer.num_ranks, TOPK)
    assert sms >= 4 and sms % 2 == 0
    assert (
        buffer.get_theoretical_num_qps(sms) == min(16 * sms + 1, buffer.num_allocated_qps) and buffer.num_allocated_qps
    )
    buffer.barrier(with_cpu_sync=True)
    with buffer.get_comm_stream():
        buffer.capture().current_stream_wait()


def test_wrong_arguments(elastic):
    """Each is refused before anything is sent, by errors of the kinds that programs catch."""
    world = make_world(elastic())
    buffer, mine = world.buffer, world.mine()
    recv_x, _, weights, handle, _ = buffer.dispatch(**mine, do_expand=True)
    other = elastic().dispatch(**mine)[3]
    again = dict(x=mine["x"], handle=handle)
    for call, wrong, error, text in (
        (buffer.dispatch, dict(mine, num_max_tokens_per_rank=2), ValueError, "x: expected at most num_max_tokens"),
        (buffer.dispatch, dict(mine, num_experts=None), ValueError, "num_experts: expected a multiple of the"),
        (buffer.dispatch, dict(mine, topk_idx=None), TypeError, "topk_idx: expected a CPU tensor int64 or int32"),
        (buffer.dispatch, dict(mine, topk_weights=weights), ValueError, "topk_weights: expected a CPU tensor float32"),
        (buffer.dispatch, dict(mine, do_zero_padding=True), ValueError, "do_zero_padding: expected do_expand with it"),
        (buffer.dispatch, dict(mine, expert_alignment=0), ValueError, "expert_alignment: expected 1 or more, got 0"),
        (buffer.dispatch, dict(mine, num_sms=-2), ValueError, "num_sms: expected 0 or more, got -2"),
        (buffer.combine, dict(x=recv_x, handle=handle, num_sms=-2), ValueError, "num_sms: expected 0 or more, got -2"),
        (buffer.dispatch, dict(mine, num_sms=None), TypeError, "num_sms: expected an integer, got None"),
        (buffer.combine, dict(x=recv_x, handle=handle, num_sms=None), TypeError, "num_sms: expected an integer, got"),
        (buffer.dispatch, dict(mine, previous_event_before_epilogue=3), TypeError, "before_epilogue: expected an Ev"),
        (buffer.combine, dict(x=recv_x, handle=handle, previous_event_before_epilogue=3), TypeError, "before_epilogue"),
        (buffer.dispatch, dict(mine, num_qps=1000), ValueError, "num_qps: expected at most num_allocated_qps, 129"),
        (buffer.dispatch, dict(mine, previous_event=buffer.capture()), ValueError, "allocate_on_comm_stream: expe"),
        (buffer.dispatch, dict(mine, cumulative_local_expert_recv_stats=torch.zeros(1)), TypeError, "cumulative_loc"),
        (buffer.dispatch, dict(again, topk_idx=mine["topk_idx"]), ValueError, "topk_idx: expected None with handle"),
        (buffer.dispatch, dict(again, do_cpu_sync=True), ValueError, "do_cpu_sync: expected False or None with handle"),
        (buffer.dispatch, dict(again, num_experts=1), ValueError, "num_experts: expected .* as of the handle, got 1"),
        (buffer.dispatch, dict(again, x=torch.zeros((1, 72)).bfloat16()), ValueError, "x: expected the .* tokens"),
        (buffer.dispatch, dict(again, handle=(1, 2)), TypeError, "handle: expected an EPHandle, got tuple"),
        (buffer.dispatch, dict(again, handle=other), ValueError, "handle: expected one of this Buffer"),
        (buffer.combine, dict(x=torch.zeros((len(recv_x) + 1, 72)), handle=handle), ValueError, "x: expected the"),
        (buffer.combine, dict(x=recv_x.double(), handle=handle), TypeError, "x: expected a CPU or CUDA tensor bfloat"),
        (buffer.combine, dict(x=recv_x, handle=handle, bias=mine["x"][:, 1:]), ValueError, r"bias\[0\]: expected"),
        (buffer.combine, dict(x=recv_x, handle=handle, topk_weights=weights[:-1]), ValueError, "topk_weights: expect"),
        (deep_ep.ElasticBuffer, dict(num_bytes=100), ValueError, "num_bytes: expected a multiple of 2097152 bytes"),
    ):  # fmt: skip
        for kind in (error, AssertionError, RuntimeError):
            with pytest.raises(kind, match=text):
                call(**wrong)
    buffer.dispatch(**mine)
    lasting = elastic(explicitly_destroy=False)
    with pytest.raises(AssertionError, match="destroy: expected a Buffer made with explicitly_destroy=True"):
        lasting.destroy()
    lasting.explicitly_destroy = True
    buffer.destroy()
    buffer.destroy()
    assert buffer.runtime is None
    with pytest.raises(RuntimeError, match="the Buffer was destroyed"):
        buffer.dispatch(**mine)


def test_ranks_disagree_on_the_tokens_of_a_rank(elastic):
    if communicator().size > 1:
        with pytest.raises(xep.MismatchError, match=r"rank \d is in a Buffer for \d+ tokens, this rank in a Buffer "):
            elastic(num_max_tokens_per_rank=32 + communicator().rank)


def test_a_handle_shows_what_deepep_shows(elastic):
    world = make_world(elastic())
    handle = world.buffer.dispatch(**world.mine())[3]
    shown = {name for name in dir(handle) if not name.startswith("_")}
    assert shown == {
        "do_expand", "num_experts", "expert_alignment", "num_max_tokens_per_rank", "num_sms", "topk_idx",
        "num_recv_tokens", "num_expanded_tokens", "num_recv_tokens_per_expert_list",
        "psum_num_recv_tokens_per_scaleup_rank", "psum_num_recv_tokens_per_expert",
        "num_unaligned_recv_tokens_per_expert", "recv_src_metadata", "dst_buffer_slot_idx",
        "token_metadata_at_forward", "channel_linked_list", "cached_recv_src_metadata_before_sort",
    }  # fmt: skip
    assert all(hasattr(handle, name) for name in shown)
    for name in ("rows", "xep", "owner", "capacity"):
        with pytest.raises(AttributeError, match=f"EPHandle: there is no {name}"):
            getattr(handle, name)


@pytest.mark.parametrize("expand", [False, True])
def test_calls_of_python(elastic, expand):
    world, calls = make_world(elastic()), []
    for count in (False,) * 6 + (True,):
        sys.setprofile(
            (lambda frame, event, _: calls.append(frame.f_code.co_name) if event == "call" else None) if count else None
        )
        try:
            recv_x, _, _, handle, _ = world.buffer.dispatch(
                world.x[world.rank], world.topk_idx[world.rank], num_experts=world.experts, do_expand=expand
            )
            world.buffer.combine(recv_x, handle)
        finally:
            sys.setprofile(None)
        del recv_x, handle
    assert len(calls) <= 20, " ".join(calls)


def test_indices_of_32_bits(elastic):
    world = make_world(elastic(), "masked")
    arguments = dict(world.mine(), topk_idx=world.topk_idx[world.rank].int())
    for expand in (False, True):
        got = world.buffer.dispatch(**arguments, do_expand=expand, expert_alignment=2)
        check_received(world, got, expand, 2, world.x)
        assert expand or got[1].dtype == torch.int32
        combined, _, _ = world.buffer.combine(answers(world, got[0], expand, 2), got[3])
        assert torch.equal(combined, sums(world, (), True))
    assert answer(torch.ones(2), 8).tolist() == [10.0, 10.0]
