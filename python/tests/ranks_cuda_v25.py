# SPDX-License-Identifier: BSD-3-Clause
"""EPBuffer and BucketBuffer on CUDA tensors, as the same buffers have it for CPU tensors (which have their own tests):
on streams that change from call to call, what is sent held up on the device."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("torch has no CUDA device here", allow_module_level=True)
from conftest import communicator  # noqa: E402
from cuda_memory import bits, late, rank_device  # noqa: E402
from ranks_ep import mapping_of, node_of, numbers  # noqa: E402

import deep_ep  # noqa: E402

HIDDEN, TOPK, MOST, UNIT = 256, 4, 64, 2 << 20


@pytest.fixture(autouse=True)
def on_device():
    """As DeepEP's own init_dist does."""
    torch.set_default_device(rank_device(communicator().rank))
    yield
    torch.cuda.synchronize()
    torch.set_default_device(None)


def make(**options):
    options = dict(dict(num_max_tokens_per_rank=MOST, hidden=HIDDEN, explicitly_destroy=True, timeout=30), **options)
    return deep_ep.EPBuffer(communicator(), **options)


def same(there, here) -> bool:
    if there is None or here is None:
        return there is here
    return there.is_cuda and torch.equal(bits(there), bits(here))


@pytest.mark.parametrize("expand", [False, True])
@pytest.mark.parametrize("how", ["blocking", "asynchronous", "deferred"])
def test_dispatch_and_combine(how, expand):
    """As CPU tensors, bit for bit, the order of sums among them."""
    buffer = make()
    generator = torch.Generator(device="cpu").manual_seed(buffer.rank_idx)
    tokens, experts = 50 - 7 * (buffer.rank_idx % 4), 6 * buffer.num_ranks
    idx = torch.rand((tokens, experts), generator=generator, device="cpu").topk(TOPK, dim=1, sorted=False).indices
    x = (torch.randn((tokens, HIDDEN), generator=generator, device="cpu") * 2.0 ** (8 * (idx[:, :1] % 4))).bfloat16()
    weights, bias = torch.rand((tokens, TOPK), generator=generator, device="cpu"), torch.ones_like(x)
    ways = dict(async_with_compute_stream=how != "blocking", defer_epilogue=how == "deferred")
    options = dict(num_experts=experts, do_expand=expand, do_zero_padding=expand, expert_alignment=8 if expand else 1)

    def wait(got):
        if how == "deferred":
            return got.wait()
        *results, event = got
        if how == "asynchronous":
            event.wait()
        return results

    here_x, here_idx, here_weights, here = buffer.dispatch(x, idx, weights, **options)[:4]
    given = idx.cuda()
    there_x, there_idx, there_weights, there = wait(buffer.dispatch(late(x), given, weights.cuda(), **options, **ways))
    assert there.topk_idx is given and same(there_x, here_x) and same(there_weights, here_weights)
    assert same(there_idx, here_idx)
    y = (here_x.float() * (1 + buffer.rank_idx) / 3).bfloat16()
    ours, our_weights, _ = buffer.combine(y, here, here_weights, (None, bias))
    theirs, their_weights = wait(buffer.combine(late(y), there, there_weights, (None, bias.cuda()), **ways))
    assert same(theirs, ours) and same(their_weights, our_weights)
    again = wait(buffer.dispatch(late(x * 2), handle=there, do_expand=expand, do_zero_padding=expand, **ways))
    assert again[3] is there and same(again[0], here_x * 2)
    buffer.destroy()


def test_copies_of_experts():
    """Weights and gradients, behind a stream that is held up, with previous_event and without."""
    slots, local, hidden = 3, 2, 4096
    plan = deep_ep.BufferAllocator()
    weights, grads = plan.allocate((slots, hidden), torch.bfloat16), plan.allocate((slots, 1000), torch.float32)
    buffer = make(lb_allocation_plan_or_num_bytes=plan)
    assert weights.is_cuda and grads.is_cuda
    mine, place = node_of(buffer)
    own = [torch.full((hidden,), place * local + e, dtype=torch.bfloat16) for e in range(local)]
    with torch.device("cpu"):
        mappings = [mapping_of(len(mine), slots, local, 10 * turn) for turn in range(4)]
    for turn, mapping in enumerate(mappings):
        weights.fill_(99)
        torch.cuda._sleep(30_000_000)
        given = torch.stack(own) + 0
        before = buffer.capture() if turn % 2 else None
        event = buffer.lb_prefetch_weights(weights, given, mapping.cuda(), previous_event=before)
        event.wait()
        wanted = torch.where(mapping[place] >= 0, mapping[place], 99)
        assert same(weights, wanted.bfloat16()[:, None].expand(slots, hidden))
        grads.copy_((torch.arange(slots) + 10 * place)[:, None].expand_as(grads))
        total = torch.full((local, 1000), 5.0)
        buffer.lb_reduce_grads(grads, total, mapping.cuda()).wait()
        expected = [5.0] * local
        for q, c in itertools.product(range(len(mine)), range(slots)):
            if int(mapping[q, c]) // local == place and mapping[q, c] >= 0:
                expected[int(mapping[q, c]) % local] += c + 10 * q
        assert total[:, 0].tolist() == expected and bool((total == total[:, :1]).all())
    del weights, grads, plan
    buffer.destroy()


def test_collectives():
    """Of sizes that are no multiples of anything, in storage and in sessions, each call on another stream, the event of
    the one before alone waited for; guards around."""
    bucket = deep_ep.BucketBuffer(communicator(), 8 * UNIT, explicitly_destroy=True)
    ranks, rank, streams = bucket.contexts[0].ranks, bucket.contexts[0].rank, [torch.cuda.Stream() for _ in range(3)]
    assert bucket.storage.is_cuda
    bucket.storage.fill_(7)
    torch.cuda.synchronize()
    event = None

    def on(turn):
        stream = streams[turn % 3]
        stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(stream):
            if event is not None:
                event.event.current_stream_wait()
            torch.cuda._sleep(3_000_000 * (1 + (turn + rank) % 3))
        return torch.cuda.stream(stream)

    sizes = [(1, torch.uint8), (33, torch.int32), (4096 * 3 + 5, torch.float32), (70001, torch.bfloat16)]
    for turn, (count, dtype) in enumerate(sizes):
        with torch.device("cpu"):
            parts = [numbers(r, count, turn).abs().to(dtype) for r in range(ranks)]
        size, wanted = ranks * parts[0].nbytes, torch.cat(parts)
        place = bucket.storage[64 : 64 + size].view(dtype)
        with on(turn):
            place.view(ranks, count)[rank].copy_(parts[rank])
            event = bucket.all_gather(place.view(ranks, count)[rank])
            out = event.wait()
            assert out.data_ptr() == place.data_ptr() and same(out, wanted)
            place.fill_(7)
        with on(turn + 1), bucket.session():
            to = torch.zeros((ranks, count), dtype=dtype)
            event = bucket.all_gather(parts[rank].cuda(), dsts=to)
            assert event.wait() is to and same(to.view(-1), wanted)
        bucket.storage.fill_(7)
        torch.cuda.synchronize()
    for turn, (units, scale) in enumerate(((1, 1.0), (1025, 0.25), (600, -0.5), (3, 0.0))):
        count = 8 * ranks * units
        with torch.device("cpu"):
            values = [numbers(r, count, turn) for r in range(ranks)]
        wanted = sum(values) * scale
        place = bucket.storage.view(torch.float32)[64 : 64 + count]
        with on(turn):
            place.copy_(values[rank])
            event = bucket.reduce_scatter(place, scale=scale)
            assert same(event.wait(), wanted.view(ranks, -1)[rank])
        with on(turn + 1):
            place.copy_(values[rank])
            event = bucket.all_reduce([place], scale)
            event.wait()
            assert same(place, wanted) and bool((bucket.storage[:256] == 7).all())
        with on(turn + 2), bucket.session():
            event = bucket.all_reduce(late(values[rank]), scale)
            assert same(event.wait(), wanted)
        bucket.storage.fill_(7)
        torch.cuda.synchronize()
    bucket.barrier()
    bucket.destroy()
