# SPDX-License-Identifier: BSD-3-Clause
"""deep_ep.ElasticBuffer: what handles tell, and dispatches that use one again."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
from elastic_world import (  # noqa: E402
    LOCAL,
    MOST,
    TOPK,
    answers,
    check_received,
    make_world,
    settle,
    stacked,
    sums,
)  # fmt: skip

import deep_ep  # noqa: E402


def test_dispatch_again(elastic):
    """With a handle: other rows, other weights, either arrangement, zeros in gaps; its slot may be with others."""
    world = make_world(elastic(), "masked")
    alignment, kept = 8, []
    for expand in (False, True):
        kept.append((expand, world.buffer.dispatch(**world.mine(), do_expand=expand, expert_alignment=alignment)[3]))
    others = [make_world(world.buffer, "random", seed=seed) for seed in (1, 2)]
    for step in range(3):
        world.weights = [w * (step + 2) for w in world.weights]
        x = [x * (step + 2) for x in world.x]
        for (expand, handle), weighted, asynchronous in itertools.product(kept, (True, False), (True, False)):
            weights = world.weights[world.rank] if weighted else None
            for scales in (False, True):
                sent = [(row.view(torch.uint8), torch.full((len(row), 2), float(i))) for i, row in enumerate(x)]
                got = settle(
                    world.buffer.dispatch(
                        sent[world.rank] if scales else x[world.rank], topk_weights=weights, handle=handle,
                        do_expand=expand, do_zero_padding=expand, async_with_compute_stream=asynchronous,
                    ),
                    asynchronous,
                )  # fmt: skip
                recv_x, recv_idx, recv_weights, same, _ = got
                assert same is handle
                if scales:
                    assert torch.equal(recv_x[1][:, 0], recv_x[1][:, 1])
                    recv_x = recv_x[0].view(torch.bfloat16)
                if weighted:
                    check_received(world, (recv_x, recv_idx, recv_weights, handle, None), expand, alignment, x)
                else:
                    assert recv_weights is None
                if expand:
                    gaps = [row for row, source in enumerate(world.expanded(alignment)[0]) if source is None]
                    assert not bool(recv_x[gaps].any()) and (not weighted or not bool(recv_weights[gaps].any()))
        for other in others:  # takes the slots
            _, _, _, handle, _ = other.buffer.dispatch(**other.mine(), do_expand=True)
            other.buffer.dispatch(**other.mine())
    for expand, handle in kept:
        rows = stacked([world.x[r][t] for r, t in world.sources()], world.x[0])
        if expand:
            rows = stacked(
                [world.x[s[0]][s[1]] if s else torch.full_like(world.x[0][0], float("nan"))
                    for s in world.expanded(alignment)[0]],
                world.x[0],
            )  # fmt: skip
        combined, _, _ = world.buffer.combine(answers(world, rows, expand, alignment), handle)
        assert torch.equal(combined, sums(world, (), True))


def test_dispatch_of_another_arrangement(elastic):
    """A handle of either arrangement gives the other one, too."""
    world = make_world(elastic())
    for expand in (False, True):
        _, _, _, handle, _ = world.buffer.dispatch(**world.mine(), do_expand=expand)
        got = world.buffer.dispatch(
            world.x[world.rank], topk_weights=world.weights[world.rank], handle=handle, do_expand=not expand
        )
        check_received(world, got, not expand, 1, world.x)


def test_dispatch_handles_tell(elastic):
    world = make_world(elastic(), "masked")
    idx = world.topk_idx[world.rank]
    for expand, alignment, copied in itertools.product((False, True), (1, 8), (True, False)):
        *_, handle, _ = world.buffer.dispatch(
            **world.mine(), do_expand=expand, expert_alignment=alignment, do_handle_copy=copied, num_sms=6
        )
        rows, counts, total = world.expanded(alignment)
        sources = world.sources()
        aligned = [-(-n // alignment) * alignment for n in counts]
        assert isinstance(handle, deep_ep.EPHandle) and torch.equal(handle.topk_idx, idx)
        assert not len(idx) or (handle.topk_idx.data_ptr() == idx.data_ptr()) != copied
        assert (handle.do_expand, handle.num_experts, handle.expert_alignment) == (expand, world.experts, alignment)
        assert (handle.num_max_tokens_per_rank, handle.num_sms) == (MOST, 6)
        assert handle.num_recv_tokens == len(sources) and handle.num_expanded_tokens == total
        assert handle.num_recv_tokens_per_expert_list == aligned
        assert handle.num_unaligned_recv_tokens_per_expert.tolist() == counts
        ends = [sum(aligned[: e + 1]) for e in range(LOCAL)]
        assert handle.psum_num_recv_tokens_per_expert.tolist() == (
            [end - a + n for end, a, n in zip(ends, aligned, counts)] if expand else ends
        )
        places = world.buffer.get_logical_domain_size()[1]  # of a node, in hybrid mode
        until = [sum(source % places <= place for source, _ in sources) for place in range(places)]
        assert handle.psum_num_recv_tokens_per_scaleup_rank.tolist() == until
        meta = handle.recv_src_metadata
        assert meta.dtype == torch.int32 and meta.shape == (len(sources), 2 + TOPK)
        for row, (rank, token) in enumerate(sources):
            here = world.here(rank, token, world.rank)
            place = sum(r == rank and t < token for r, t in sources)
            first = next(k for k, e in enumerate(here) if e >= 0)
            slots = [rows.index((rank, token, k)) if e >= 0 and expand else -1 for k, e in enumerate(here)]
            assert meta[row].tolist() == [rank * MOST + token, place * TOPK + first, *slots]
        for name in ("dst_buffer_slot_idx", "token_metadata_at_forward", "channel_linked_list"):
            assert getattr(handle, name) is None


def test_handles_of_many_layers(elastic):
    """What a handle tells, and the way back, when others took its slot before anything was looked at."""
    buffer = elastic()
    layers = [make_world(buffer, "masked", seed=seed) for seed in range(5)]
    kept = [(expand, buffer.dispatch(**w.mine(), do_expand=expand)) for w in layers for expand in (False, True)]
    for (expand, (recv_x, _, recv_weights, handle, _)), world in zip(kept, [w for w in layers for _ in range(2)]):
        sources = world.sources()
        assert handle.recv_src_metadata[:, 0].tolist() == [rank * MOST + token for rank, token in sources]
        assert handle.psum_num_recv_tokens_per_scaleup_rank[-1] == len(sources)
        combined, back, _ = buffer.combine(answers(world, recv_x, expand, 1), handle, recv_weights)
        assert torch.equal(combined, sums(world, (), True))
        assert torch.equal(back, torch.where(world.topk_idx[world.rank] >= 0, world.weights[world.rank], 0.0))


def test_dispatch_without_cpu_sync(elastic):
    """As many rows as could arrive; what is there is told by the handle's tensors."""
    world = make_world(elastic())
    recv_x, _, weights, handle, _ = world.buffer.dispatch(
        **world.mine(), do_cpu_sync=False, do_expand=True, expert_alignment=8
    )
    most = world.size * MOST * min(TOPK, LOCAL) + 7 * LOCAL
    assert len(recv_x) == len(weights) == handle.num_expanded_tokens == -(-most // 8) * 8
    assert handle.num_recv_tokens == world.size * MOST and handle.num_recv_tokens_per_expert_list == []
    assert handle.psum_num_recv_tokens_per_scaleup_rank[-1] == len(world.sources())
    assert handle.recv_src_metadata.shape[0] == world.size * MOST
    again, *_ = world.buffer.dispatch(world.x[world.rank], handle=handle, do_expand=True)
    here = [row for row, source in enumerate(world.expanded(8)[0]) if source]
    assert torch.equal(again[here], recv_x[here]) and again.shape == recv_x.shape
