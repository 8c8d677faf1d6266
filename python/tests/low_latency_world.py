# SPDX-License-Identifier: BSD-3-Clause
"""Low-latency mode of deep_ep: what every rank dispatches, known to every rank, and what must come of it."""

from __future__ import annotations

import itertools

import torch

import deep_ep
from deep_ep.utils import calc_diff, per_token_cast_back, per_token_cast_to_fp8

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


def finish(event: deep_ep.EventOverlap, hook, how: str) -> None:
    assert (hook is not None) == (how == "hook") and (event.event is not None) == (how == "event")
    if how == "hook":
        hook()
        hook()
    elif how == "event":
        event.current_stream_wait()


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
        assert recv_x[1].shape == (world.local, rows, words) and recv_x[1].dtype == (
            torch.int32 if ue8m0 else torch.float32
        )
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
            assert torch.allclose(
                values[local, segment].float(), world.all_x[source][tokens].float(), rtol=0.07, atol=1e-3
            )
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
