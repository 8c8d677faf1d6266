# SPDX-License-Identifier: BSD-3-Clause
"""deep_ep.EPBuffer and BucketBuffer, V2.5: against plain loops, on outputs that were poisoned before."""

from __future__ import annotations

import gc
import itertools
import os
import weakref

import conftest
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
from elastic_world import MOST, ROUTINGS, answers, check_received, make_world, scaled, settle, sums  # noqa: E402

import deep_ep  # noqa: E402
import xep  # noqa: E402

UNIT = 2 << 20


@pytest.fixture
def ep():
    """EPBuffers over all ranks, destroyed at the end; what torch.empty gives is NaN or the largest integer."""
    made = []

    def make(**options):
        options = dict(dict(num_max_tokens_per_rank=MOST, hidden=72, explicitly_destroy=True, timeout=30), **options)
        made.append(deep_ep.EPBuffer(conftest.communicator(), **options))
        return made[-1]

    torch.set_deterministic_debug_mode("error")
    yield make
    torch.set_deterministic_debug_mode("default")
    for buffer in made:
        buffer.destroy()


def waited(got, deferred):
    """What a call gave, when it is done: (results, event)."""
    if not deferred:
        return got
    assert isinstance(got, deep_ep.EventOverlap)
    results = got.wait()
    assert got.wait() is None, "the first wait alone returns them"
    return (*results, got)


@pytest.mark.parametrize("how", ["blocking", "asynchronous", "deferred"])
@pytest.mark.parametrize("routing", ROUTINGS)
def test_dispatch_and_combine(ep, routing, how):
    world = make_world(ep(), routing)
    deferred = how == "deferred"
    ways = dict(async_with_compute_stream=how != "blocking", defer_epilogue=deferred)

    def call(function, *given, **options):
        got = waited(function(*given, **options, **ways), deferred)
        return got if deferred else settle(got, how != "blocking")

    for turn, (expand, alignment) in enumerate(itertools.product((False, True), (1, 8))):
        sync, biased = turn % 3 != 1, (turn + len(how)) % 3
        stats = torch.full((3,), 7, dtype=torch.int32) if turn % 2 else None
        got = call(
            world.buffer.dispatch, **world.mine(), do_expand=expand, expert_alignment=alignment, do_cpu_sync=sync,
            cumulative_local_expert_recv_stats=stats, num_sms=5,
        )  # fmt: skip
        check_received(world, got, expand, alignment, world.x, sync)
        recv_x, _, recv_weights, handle, _ = got
        assert stats is None or (stats - 7).tolist() == world.expanded(1)[1]
        assert handle.num_sms == 6, "rounded up to even"
        assert handle.topk_idx is world.topk_idx[world.rank] and isinstance(handle, deep_ep.EPHandle)
        check_handle(world, handle, expand, alignment, sync)
        y = answers(world, recv_x, expand, alignment)
        again = call(
            world.buffer.dispatch, world.x[world.rank] * 2, topk_weights=world.weights[world.rank], handle=handle,
            do_expand=expand, do_zero_padding=expand,
        )  # fmt: skip
        assert again[3] is handle
        check_received(world, again, expand, alignment, [x * 2 for x in world.x], sync)
        if expand:
            gaps = [row for row, source in enumerate(world.expanded(alignment)[0]) if source is None]
            assert not again[0][gaps].any() and not again[2][gaps].any(), "zero between experts"
        one, two = (torch.randn_like(world.x[world.rank]) for _ in range(2))
        bias = (None, one, (None, two))[biased]
        combined, back, _ = call(world.buffer.combine, y, handle, recv_weights, bias)
        assert torch.equal(combined, sums(world, ((), (one,), (two,))[biased], True)), "bit for bit"
        assert torch.equal(back, torch.where(world.topk_idx[world.rank] >= 0, world.weights[world.rank], 0.0))


def check_handle(world, handle, expand, alignment, sync):
    """Its tensors, by plain loops."""
    sources = world.sources()
    rows, counts, total = world.expanded(alignment)
    aligned = [-(-n // alignment) * alignment for n in counts]
    ends = [sum(aligned[: i + 1]) for i in range(3)]
    per_rank = [sum(source[0] <= rank for source in sources) for rank in range(world.size)]
    assert handle.num_recv_tokens_per_expert_list == (aligned if sync else [])
    width = world.buffer.get_logical_domain_size()[1]
    if width < world.size:  # by place on the node
        per_rank = [sum(source[0] % width <= place for source in sources) for place in range(width)]
    assert handle.psum_num_recv_tokens_per_scaleup_rank.tolist() == per_rank
    assert handle.num_unaligned_recv_tokens_per_expert.tolist() == counts
    wanted = [e - a + n for e, a, n in zip(ends, aligned, counts)] if expand else ends
    assert handle.psum_num_recv_tokens_per_expert.tolist() == wanted
    meta = handle.recv_src_metadata[: len(sources)]
    assert meta[:, 0].tolist() == [rank * MOST + token for rank, token in sources]
    if expand:
        for source, slots in zip(sources, meta[:, 2:].tolist()):
            assert slots == [rows.index((*source, k)) if (*source, k) in rows else -1 for k in range(3)]
    assert (handle.num_recv_tokens, handle.num_expanded_tokens)[expand] >= (len(sources), total)[expand]


def test_scales_and_widths(ep):
    """e4m3 with scales by row and by column, then bfloat16 along the same handle."""
    world = make_world(ep(), "masked", 136)
    sent = scaled(world)
    for expand, by_column in itertools.product((False, True), repeat=2):
        options = dict(do_expand=expand, use_tma_aligned_col_major_sf=by_column)
        recv, *rest = world.buffer.dispatch(**dict(world.mine(), x=sent[world.rank]), **options)
        check_received(world, (recv[0].view(torch.uint8), *rest), expand, 1, [q.view(torch.uint8) for q, _ in sent])
        check_received(world, (recv[1], *rest), expand, 1, [s for _, s in sent])
        wide = world.buffer.dispatch(world.x[world.rank], None, world.weights[world.rank], handle=rest[2], **options)
        check_received(world, wide, expand, 1, world.x)


def test_deferred_results_are_waited_for_in_any_order(ep):
    """Several at once, of which DeepEP would have one overwrite the other; and none, on one rank, disturbs nobody."""
    world = make_world(ep())
    x = world.x[world.rank]
    ways = dict(async_with_compute_stream=True, defer_epilogue=True)
    events = [world.buffer.dispatch(**dict(world.mine(), x=x * (n + 1)), do_expand=n % 2, **ways) for n in range(3)]
    if world.rank == 0:
        del events[2]  # its results are lost
    for n in reversed(range(len(events))):
        check_received(world, waited(events[n], True), n % 2 == 1, 1, [x * (n + 1) for x in world.x])
    handle = world.buffer.dispatch(**world.mine())[3]
    y = torch.zeros((handle.num_recv_tokens, x.shape[1]), dtype=torch.bfloat16)
    bias = torch.ones_like(x)
    event = world.buffer.combine(y, handle, bias=bias, **ways)
    bias += 1
    with pytest.raises(RuntimeError, match="bias: it was written between combine and the wait for it"):
        event.wait()


def test_constructed_handle(ep, elastic):
    """By the sixteen arguments, in order, of another's attributes: it stands for the same rows."""
    names = (
        "do_expand num_experts expert_alignment num_max_tokens_per_rank num_sms topk_idx num_recv_tokens "
        "num_expanded_tokens num_recv_tokens_per_expert_list psum_num_recv_tokens_per_scaleup_rank "
        "psum_num_recv_tokens_per_expert num_unaligned_recv_tokens_per_expert recv_src_metadata dst_buffer_slot_idx "
        "token_metadata_at_forward channel_linked_list"
    ).split()
    for make, expand in itertools.product((ep, elastic), (False, True)):
        world = make_world(make(), "masked")
        recv_x, _, _, handle, _ = world.buffer.dispatch(**world.mine(), do_expand=expand, expert_alignment=4)
        assert handle.num_sms >= 4 and handle.num_sms % 2 == 0 and isinstance(handle, deep_ep.EPHandle)
        y = answers(world, recv_x, expand, 4)
        built = deep_ep.EPHandle(*[getattr(handle, name) for name in names])
        del handle
        assert torch.equal(world.buffer.combine(y, built)[0], sums(world, (), True))
        again = world.buffer.dispatch(world.x[world.rank], None, world.weights[world.rank], handle=built,
                                      do_expand=expand)  # fmt: skip
        check_received(world, again, expand, 4, world.x)
    with pytest.raises(AttributeError, match="there is no anything"):
        built.anything  # noqa: B018


def test_refused(ep):
    """What DeepEP refuses, and what it takes and does wrong."""
    world = make_world(ep())
    buffer, mine = world.buffer, world.mine()
    recv_x, _, _, handle, _ = buffer.dispatch(**mine)
    again = dict(x=mine["x"], handle=handle)
    for call, wrong, text in (
        (buffer.dispatch, dict(mine, do_handle_copy=True), "do_handle_copy: expected False"),
        (buffer.dispatch, dict(mine, defer_epilogue=True), "defer_epilogue: expected async_with_compute_stream"),
        (buffer.combine, dict(x=recv_x, handle=handle, defer_epilogue=True), "defer_epilogue: expected async"),
        (buffer.dispatch, dict(mine, do_zero_padding=True), "do_zero_padding: expected do_expand"),
        (buffer.dispatch, dict(mine, previous_event=buffer.capture()), "allocate_on_comm_stream: expected True"),
        (buffer.dispatch, dict(again, do_expand=True), "do_expand: expected False, as of the handle, got True"),
        (buffer.dispatch, dict(again, do_cpu_sync=True), "do_cpu_sync: expected False or None"),
        (buffer.dispatch, dict(again, cumulative_local_expert_recv_stats=torch.zeros(3, dtype=torch.int32)), "cumul"),
        (buffer.combine, dict(x=recv_x, handle=handle, bias=[mine["x"]]), "bias: expected a tensor or a tuple of two"),
        (buffer.combine, dict(x=recv_x, handle=(1, 2)), "handle: expected an EPHandle, got tuple"),
        (buffer.combine, dict(x=recv_x[:-1], handle=handle), "x: expected the"),
        (buffer.lb_prefetch_weights, dict(zip(
            ("redundant_expert_weights", "expert_weights", "redundancy_mapping"), itertools.repeat(recv_x)
        )), "the buffer has no memory for copies of experts"),
        (deep_ep.EPBuffer, dict(group=conftest.communicator()), "num_max_tokens_per_rank, hidden: expected both"),
        (deep_ep.EPBuffer, dict(num_bytes=100), "num_bytes: expected a multiple of 2097152, got 100"),
    ):  # fmt: skip
        with pytest.raises((AssertionError, RuntimeError), match=text):
            call(**wrong)
    wrong_expert = mine["topk_idx"].clone()
    wrong_expert[:1] = world.experts
    if len(wrong_expert):
        with pytest.raises((ValueError, RuntimeError)):
            buffer.dispatch(**dict(mine, topk_idx=wrong_expert))
    with pytest.raises(TypeError, match="do_handle_copy|previous_event_before_epilogue"):
        buffer.dispatch(**mine, previous_event_before_epilogue=None)
    kept = dict(mine, topk_idx=mine["topk_idx"].clone())
    handle = ep().dispatch(**kept)[3]
    kept["topk_idx"].add_(0)
    for call in (lambda: buffer.combine(recv_x, handle), lambda: buffer.dispatch(mine["x"], handle=handle)):
        with pytest.raises(AssertionError, match="topk_idx: it was written after the dispatch"):
            call()
    for name in ("EngramBuffer", "PPBuffer"):
        with pytest.raises(NotImplementedError, match=name):
            getattr(deep_ep, name)(conftest.communicator(), 1, 2)


def test_ranks_disagree_on_the_tokens_of_a_rank(ep):
    if conftest.communicator().size > 1:
        with pytest.raises(xep.MismatchError, match=r"rank \d is in a Buffer for \d+ tokens, this rank in a Buffer "):
            ep(num_max_tokens_per_rank=32 + conftest.communicator().rank)


def test_size_hints(ep):
    class Ranks:
        def __init__(self, size):
            self.size = size

    hint = deep_ep.EPBuffer.get_buffer_size_hint
    if "XEP_NODE_RANKS" not in os.environ:
        assert hint(Ranks(8), 4096, 7168, 8) == 473956352 and hint(Ranks(8), 4096, 7168, 8, True) == 471859200
        assert hint(Ranks(8), 4096, 7168) == 484442112 and hint(Ranks(16), 4096, 7168, 8) == 1218445312
    buffer = ep(prefer_overlap_with_compute=False, sl_idx=3)
    assert buffer.num_bytes > 0 and buffer.num_bytes % UNIT == 0 and buffer.num_lb_bytes == 0
    buffer.barrier(True, False, True, 0)
    assert deep_ep.get_physical_domain_size(buffer) == buffer.get_physical_domain_size()
    assert deep_ep.comm.get_logical_domain_size(buffer) == buffer.get_logical_domain_size()
    group = conftest.communicator()
    assert deep_ep.get_physical_domain_size(group) == buffer.get_physical_domain_size()
    assert deep_ep.get_logical_domain_size(group) == buffer.get_logical_domain_size()
    assert deep_ep.get_logical_domain_size(group, False) == (1, buffer.num_ranks)
    deep_ep.destroy_all_managed_nccl_comm()
    assert buffer.lb_get_theoretical_num_sms() % 2 == 0
    buffer.destroy()
    buffer.destroy()
    with pytest.raises(RuntimeError, match="destroyed"):
        buffer.dispatch(torch.zeros((1, 72)).bfloat16())


# ---- copies of experts ----


def node_of(buffer):
    """(ranks of this node, place on it)"""
    mine = buffer._nodes.members[buffer._nodes.node_of[buffer.rank_idx]]
    return mine, mine.index(buffer.rank_idx)


def mapping_of(ranks, slots, local, seed):
    """Random, a quarter empty, none of a rank's own; the same expert may be in several slots."""
    generator = torch.Generator().manual_seed(seed)
    mapping = torch.full((ranks, slots), -1, dtype=torch.int32)
    for q, c in itertools.product(range(ranks), range(slots)):
        others = [e for e in range(ranks * local) if e // local != q]
        if others and float(torch.rand((), generator=generator)) > 0.25:
            mapping[q, c] = others[int(torch.randint(len(others), (), generator=generator))]
    return mapping


@pytest.mark.parametrize("size", [32, 20480, 32 * 4099, 3 << 16])
def test_prefetched_weights(ep, size):
    """Bytes of each expert and tensor; what is not to be written stays as it was."""
    slots, local = 3, 2
    plan = deep_ep.BufferAllocator()
    redundant = [plan.allocate((slots, n), torch.uint8) for n in (size, 64)]
    assert redundant[0].is_meta and plan.num_bytes == 2 * -(-slots * size // UNIT) * UNIT or size > UNIT
    buffer = ep(lb_allocation_plan_or_num_bytes=plan)
    assert buffer.num_lb_bytes == plan.num_bytes and redundant[1].is_cpu
    (mine, place), pattern = node_of(buffer), lambda e, t, n: ((torch.arange(n) + 7 * e + t) % 251).to(torch.uint8)
    first = place * local
    own = [torch.stack([pattern(first + e, t, n) for e in range(local)]) for t, n in enumerate((size, 64))]
    for turn in range(4):
        mapping = mapping_of(len(mine), slots, local, 10 * turn + buffer._nodes.node_of[buffer.rank_idx])
        for tensor in redundant:
            tensor.fill_(0xA5)
        pushed = 2 - turn % 2
        given = [one.view(slots, 4, -1) for one in redundant[:pushed]], [one.view(local, 2, -1) for one in own[:pushed]]
        given = (given[0][0], given[1][0]) if pushed == 1 else given
        event = buffer.lb_prefetch_weights(*given, mapping, previous_event=buffer.capture() if turn % 2 else None)
        assert event.wait() is None
        for t, c in itertools.product(range(2), range(slots)):
            expert = int(mapping[place, c]) if t < pushed else -1
            there = torch.full_like(redundant[t][c], 0xA5) if expert < 0 else pattern(expert, t, redundant[t].shape[1])
            assert torch.equal(redundant[t][c], there), (t, c, expert)
    with pytest.raises(AssertionError, match="its tensors have their memory already"):
        plan.allocate((1,), torch.uint8)
    with pytest.raises(AssertionError, match="in the buffer's memory for them"):
        buffer.lb_prefetch_weights(redundant[0].clone(), own[0], mapping)
    if len(mine) > 1:
        mapping[0, 0] = 0
        with pytest.raises(AssertionError, match="an expert of another rank, .* got 0 at rank 0, slot 0"):
            buffer.lb_prefetch_weights(redundant[0], own[0], mapping)


@pytest.mark.parametrize("hidden", [8, 1000, 40968])
def test_reduced_gradients(ep, hidden):
    slots, local = 2, 3
    plan = deep_ep.BufferAllocator()
    redundant = plan.allocate((slots, hidden), torch.float32)
    buffer = ep(lb_allocation_plan_or_num_bytes=plan)
    mine, place = node_of(buffer)

    def grads(rank):
        return (torch.arange(slots * hidden) % 61 + 100 * rank).float().view(slots, hidden)

    redundant.copy_(grads(place))
    for turn in range(3):
        mapping = mapping_of(len(mine), slots, local, 10 * turn + buffer._nodes.node_of[buffer.rank_idx])
        own = torch.full((local, hidden), 5.0)
        wanted = own.clone()
        for q, c in itertools.product(range(len(mine)), range(slots)):
            expert = int(mapping[q, c])
            if expert >= 0 and expert // local == place:
                wanted[expert % local] += grads(q)[c]
        buffer.lb_reduce_grads(redundant, own, mapping).wait()
        assert torch.equal(own, wanted) and torch.equal(redundant, grads(place)), "added, and nothing cleared"
    with pytest.raises(AssertionError, match="float32"):
        buffer.lb_reduce_grads(redundant.double(), own, mapping)


def test_plans():
    plan = deep_ep.BufferAllocator()
    one, two = plan.allocate((3, 5), torch.float32), plan.allocate((7,), torch.bfloat16)
    assert plan.num_bytes == 2 * UNIT and [offset for _, offset in plan.allocations] == [0, UNIT]
    buffer = deep_ep.BucketBuffer(conftest.communicator(), plan, explicitly_destroy=True)
    assert plan.materialized and one.data_ptr() == buffer.storage.data_ptr() and two.is_cpu
    assert two.data_ptr() - one.data_ptr() == UNIT and buffer.storage.numel() == plan.num_bytes
    two.fill_(3)
    assert buffer.storage[UNIT : UNIT + 14].view(torch.bfloat16).tolist() == [3.0] * 7
    with pytest.raises(AssertionError, match="a plan serves one buffer"):
        deep_ep.BucketBuffer(conftest.communicator(), plan)
    buffer.destroy()


# ---- collectives ----

GUARD = 12345


@pytest.fixture
def bucket():
    made = deep_ep.BucketBuffer(conftest.communicator(), 4 * UNIT, explicitly_destroy=True)
    made.storage.view(torch.int32).fill_(GUARD)
    yield made
    made.destroy()


def numbers(rank, count, seed, dtype=torch.float32):
    """Small integers, exact in any order."""
    generator = torch.Generator().manual_seed(100 * seed + rank)
    return torch.randint(-3, 4, (count,), generator=generator).to(dtype)


@pytest.mark.parametrize("session", [False, True])
def test_all_gather(bucket, session):
    ranks, rank = bucket.contexts[0].ranks, bucket.contexts[0].rank
    for turn, (count, dtype) in enumerate(
        ((1, torch.uint8), (33, torch.int32), (4096 * 3 + 5, torch.float32), (70001, torch.bfloat16))
    ):
        parts = [numbers(r, count, turn).abs().to(dtype) for r in range(ranks)]
        offset = 64 * (turn + 1)
        size = ranks * parts[0].nbytes
        place = bucket.storage[offset : offset + size].view(dtype)
        after = bucket.storage[offset + size :][-size % 4 :][:64].clone()
        if session:
            out = torch.full((ranks, count), 99, dtype=torch.float32).to(dtype)
            wide = torch.stack([parts[rank], parts[rank]], 1)
            with bucket.session() as opened:
                event = bucket.all_gather(wide[:, 0], dsts=out)  # strided
                assert event.num_sms == 0 and not torch.equal(out, torch.stack(parts)), "copied by the wait"
                assert event.wait() is out
                inside = opened.allocate((ranks, count), dtype)
                inside[rank].copy_(parts[rank])
                again = bucket.all_gather([inside[rank]]).wait()
                assert again[0].data_ptr() == inside.data_ptr() and torch.equal(again[0], torch.cat(parts))
                with pytest.raises(AssertionError, match="one at a time"):
                    bucket.session().__enter__()
        else:
            own = place.view(ranks, count)[rank]
            own.copy_(parts[rank])
            out = bucket.all_gather(own).wait()
            assert out.data_ptr() == place.data_ptr() and torch.equal(out, torch.cat(parts))
            place.zero_()
            source = parts[rank].clone()
            event = bucket.all_gather([source], dsts=[place])
            source.zero_()
            [out] = event.wait()
            assert torch.equal(bucket.storage[offset + size :][-size % 4 :][:64], after), "nothing behind it"
        assert torch.equal(out.view(-1), torch.cat(parts))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_reductions(bucket, precision):
    """Exact for integers; for others fp32 sums, ranks ascending, the same on all ranks; in place and from outside."""
    ranks, rank = bucket.contexts[0].ranks, bucket.contexts[0].rank
    for turn, (units, scale) in enumerate(((1, 1.0), (1025, 0.25), (600, -0.5), (3, 0.0))):
        count = 8 * ranks * units
        real = [torch.randn(count, generator=torch.Generator().manual_seed(r + 10 * turn)) for r in range(ranks)]
        for values in ([numbers(r, count, turn) for r in range(ranks)], real):
            begin = 64 + rank * (count // ranks)
            wanted = torch.zeros(count)
            for r in range(ranks):
                far = values[r].bfloat16().float() if precision == "bf16" else values[r]
                owner = torch.arange(count) // (count // ranks) == r
                wanted += torch.where(owner, values[r], far)
            wanted = wanted if scale == 1 else wanted * scale
            shard = wanted[begin - 64 : begin - 64 + count // ranks]
            place = bucket.storage.view(torch.float32)[64 : 64 + count]
            place.copy_(values[rank])
            event = bucket.reduce_scatter(place.view(-1, 4), precision, scale, num_sms=8)
            out = event.wait()
            assert event.num_sms == 8 and out.data_ptr() == place.data_ptr() + 4 * (begin - 64)
            assert torch.equal(out, shard)
            if precision == "bf16":
                continue
            place.copy_(values[rank])
            event = bucket.all_reduce([place], scale)
            assert event.num_sms == bucket.get_theoretical_num_sms("all_reduce") and event.wait()[0] is not None
            assert torch.equal(place, wanted), "the same bits on all ranks"
            assert bucket.storage[:256].view(torch.int32).eq(GUARD).all()
            source = values[rank].view(-1, 8).t().contiguous().t()
            with bucket.session():
                both = bucket.reduce_scatter([source, values[rank]], scale=scale).wait()
                assert torch.equal(both[0], shard) and torch.equal(both[1], shard)
                assert torch.equal(bucket.all_reduce(values[rank], scale).wait(), wanted)
                assert torch.equal(source.reshape(-1), values[rank]), "what was given stays as it was"
            bucket.storage.view(torch.int32).fill_(GUARD)


def test_what_buckets_refuse(bucket):
    ranks, rank = bucket.contexts[0].ranks, bucket.contexts[0].rank
    floats = bucket.storage.view(torch.float32)
    good, outside = floats[: 8 * ranks], torch.zeros(8 * ranks)
    for call, text in (
        (lambda: bucket.all_reduce(outside), "expected tensors in storage, or a session"),
        (lambda: bucket.all_reduce(good.double()), "expected float32 of a multiple of"),
        (lambda: bucket.all_reduce(floats[:3]), "expected float32 of a multiple of"),
        (lambda: bucket.all_reduce(floats[1 : 8 * ranks + 1]), "at a multiple of 32 bytes"),
        (lambda: bucket.all_reduce(good, num_sms=0), "num_sms: expected None or more than 0"),
        (lambda: bucket.reduce_scatter(good, "fp16"), "comm_precision: expected fp32 or bf16"),
        (lambda: bucket.all_gather(outside), "that lie in storage"),
        (lambda: bucket.all_gather(good, num_sms=2), "num_sms: expected None or 0"),
        (lambda: bucket.all_gather(outside, dsts=outside), "dsts: expected a contiguous"),
        (lambda: bucket.all_gather(outside, dsts=torch.zeros(8 * ranks * ranks)), "tensors in storage without a ses"),
        (lambda: bucket.all_gather([good] * 65), "expected 1 to 64 tensors, got 65"),
        (lambda: bucket.all_reduce(good, group="other"), "group: expected one of this buffer"),
        (lambda: deep_ep.BucketBuffer(conftest.communicator(), UNIT + 1), "a multiple of 2097152 bytes"),
    ):
        if ranks > 1 or "dsts: expected a" not in text:
            with pytest.raises((AssertionError, RuntimeError), match=text):
                call()
    if ranks > 1:
        with pytest.raises(AssertionError, match="got an overlap"):
            bucket.all_gather(floats[8 : 8 + 16], dsts=floats[: 16 * ranks] if rank else floats[4 : 4 + 16 * ranks])
    with pytest.raises(NotImplementedError, match="broadcast"):
        bucket.get_theoretical_num_sms("broadcast")
    with bucket.session() as session:
        with pytest.raises(RuntimeError, match="session: expected room for"):
            session.allocate((bucket.num_bytes,))
        with pytest.raises(TypeError):
            bucket.all_reduce(outside, dsts=outside)


def test_several_groups_and_the_end():
    """With a group at each place; freed when it is gone, explicitly or not."""
    groups = [conftest.communicator(), conftest.communicator()]
    for explicit in (True, False):
        made = deep_ep.BucketBuffer(groups, UNIT, explicitly_destroy=explicit)
        with pytest.raises(AssertionError, match="group: expected one of the 2"):
            made.barrier()
        if explicit:
            made.destroy()
            made.destroy()
        else:
            with pytest.raises(AssertionError, match="explicitly_destroy=True"):
                made.destroy()
        seen = weakref.ref(made)
        del made
        gc.collect()
        assert seen() is None
