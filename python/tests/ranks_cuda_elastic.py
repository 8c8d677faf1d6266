# SPDX-License-Identifier: BSD-3-Clause
"""ElasticBuffer on CUDA tensors: everything bit by bit as the same buffer has it for CPU tensors, which have tests of
their own; and sums by plain arithmetic. What is sent is held up on the device."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("torch has no CUDA device here", allow_module_level=True)
from conftest import communicator  # noqa: E402
from cuda_memory import bits, held_up, late, rank_device  # noqa: E402

import deep_ep  # noqa: E402
from deep_ep.utils import calc_diff, per_token_cast_to_fp8  # noqa: E402
from deep_ep.utils.math import align  # noqa: E402

HIDDEN, TOPK, MOST = 256, 4, 64


@pytest.fixture
def buffer():
    rank_device(communicator().rank)
    made = deep_ep.ElasticBuffer(
        communicator(), num_max_tokens_per_rank=MOST, explicitly_destroy=True, timeout=30
    )
    yield made
    made.destroy()


@pytest.fixture
def sent(buffer):
    """x, topk_idx, topk_weights in host memory."""
    generator = torch.Generator().manual_seed(buffer.rank_idx)
    tokens, experts = 50 - 7 * buffer.rank_idx, 6 * buffer.num_ranks
    idx = torch.topk(torch.rand((tokens, experts), generator=generator), TOPK, dim=1, sorted=False).indices
    idx[torch.rand(idx.shape, generator=generator) < 0.1] = -1
    x = torch.randn((tokens, HIDDEN), generator=generator).bfloat16()
    return x, idx, torch.rand((tokens, TOPK), generator=generator)


def same(there, here) -> bool:
    if there is None or here is None:
        return there is here
    return there.is_cuda and here.is_cpu and there.shape == here.shape and torch.equal(bits(there), bits(here))


WAYS = [
    dict(),
    dict(do_cpu_sync=False),
    dict(do_cpu_sync=False, do_expand=True),
    dict(do_cpu_sync=False, do_expand=True, expert_alignment=8, do_zero_padding=True),
    dict(do_expand=True),
    dict(do_expand=True, expert_alignment=8, do_zero_padding=True),
    dict(do_expand=True, expert_alignment=8, do_zero_padding=True, use_tma_aligned_col_major_sf=True),
]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("cast", [False, True])
@pytest.mark.parametrize("way", range(len(WAYS)))
def test_as_cpu_tensors(buffer, sent, way, cast, asynchronous):
    options, (x, idx, weights) = dict(WAYS[way], num_experts=6 * buffer.num_ranks), sent
    rows = per_token_cast_to_fp8(x) if cast else x
    here_x, here_idx, here_weights, here, _ = buffer.dispatch(rows, idx, weights, **options)
    there_rows = (late(rows[0]), rows[1].cuda()) if cast else late(x)
    there = buffer.dispatch(
        there_rows, idx.cuda(), weights.cuda(), async_with_compute_stream=asynchronous, **options
    )
    there_x, there_idx, there_weights, handle, event = there
    assert (event.event is not None) == asynchronous
    with event:
        pass
    check_received(here, here_x, there_x, options)
    check_received(here, here_weights, there_weights, options)
    assert same(there_idx, here_idx)
    check_handles(handle, here, options)
    check_back(buffer, sent, here, handle, asynchronous)


def check_received(here, here_x, there_x, options) -> None:
    """All rows, with the zeros between them; where these were not asked for, those of experts."""
    pairs = zip(there_x, here_x) if isinstance(here_x, tuple) else ((there_x, here_x),)
    for theirs, ours in pairs:
        assert theirs.stride() == ours.stride()
        for first, count in runs_of(here, options):
            assert same(theirs[first : first + count], ours[first : first + count])


def runs_of(handle, options) -> list:
    if not options.get("do_expand"):
        return [(0, int(handle.psum_num_recv_tokens_per_scaleup_rank[-1]))]
    counts, alignment = handle.num_unaligned_recv_tokens_per_expert.tolist(), options.get("expert_alignment", 1)
    if options.get("do_zero_padding"):
        return [(0, sum(align(count, alignment) for count in counts))]
    return [(0, sum(counts))]


def check_handles(there, here, options) -> None:
    assert there.num_recv_tokens_per_expert_list == here.num_recv_tokens_per_expert_list
    assert there.num_expanded_tokens == here.num_expanded_tokens and there.num_recv_tokens == here.num_recv_tokens
    for name in (
        "topk_idx", "psum_num_recv_tokens_per_scaleup_rank", "psum_num_recv_tokens_per_expert",
        "num_unaligned_recv_tokens_per_expert", "recv_src_metadata",
    ):  # fmt: skip
        assert same(getattr(there, name), getattr(here, name)), name


def check_back(buffer, sent, here, there, asynchronous: bool) -> None:
    """Answers that differ from row to row, made late; weights; a bias."""
    rows = here.num_expanded_tokens if here.do_expand else here.num_recv_tokens
    answers = torch.randn((rows, HIDDEN), generator=torch.Generator().manual_seed(9)).bfloat16()
    weights = torch.rand((rows,) if here.do_expand else (rows, TOPK), generator=torch.Generator().manual_seed(3))
    bias = torch.ones(sent[0].shape, dtype=torch.bfloat16)
    ours, our_weights, _ = buffer.combine(answers, here, topk_weights=weights, bias=bias)
    theirs, their_weights, event = buffer.combine(
        late(answers), there, topk_weights=weights.cuda(), bias=bias.cuda(), async_with_compute_stream=asynchronous
    )
    with event:
        pass
    assert same(theirs, ours) and same(their_weights, our_weights)


def test_sums(buffer, sent):
    """Each of a token's experts gives twice the row."""
    x, idx, weights = (one.cuda() for one in sent)
    recv_x, _, _, handle, _ = buffer.dispatch(x, idx, weights, num_experts=6 * buffer.num_ranks, do_expand=True)
    out, _, _ = buffer.combine(recv_x * 2, handle)
    assert calc_diff(out.cpu(), sent[0].float() * 2 * (sent[1] >= 0).sum(1, keepdim=True)) < 1e-4


def test_again(buffer, sent):
    """With the routing of a handle; weights too."""
    x, idx, weights = sent
    for expand, with_weights in itertools.product((False, True), (False, True)):
        options = dict(num_experts=6 * buffer.num_ranks, do_expand=expand)
        here, there = buffer.dispatch(x, idx, **options)[3], buffer.dispatch(x.cuda(), idx.cuda(), **options)[3]
        more = weights if with_weights else None
        ours = buffer.dispatch(x + 1, topk_weights=more, handle=here, do_expand=expand)
        theirs = buffer.dispatch(
            (x + 1).cuda(), topk_weights=None if more is None else more.cuda(), handle=there, do_expand=expand
        )
        assert same(theirs[0], ours[0]) and same(theirs[2], ours[2])


@pytest.mark.parametrize("expand", [False, True])
def test_without_cpu_sync_nothing_waits(buffer, sent, expand):
    """Calls are back while the streams of all ranks are held up."""
    if buffer.num_ranks > 1 and buffer.get_physical_domain_size()[0] > 1:
        pytest.skip("rows are staged: the host takes part in every operation")
    x, idx, weights = (one.cuda() for one in sent)
    options = dict(num_experts=6 * buffer.num_ranks, do_expand=expand, do_cpu_sync=False)
    buffer.dispatch(x, idx, weights, **options)  # makes room
    stats = torch.zeros(6, dtype=torch.int32).cuda()
    for step in range(2):
        with held_up(20):
            recv_x, _, recv_weights, handle, _ = buffer.dispatch(
                x, idx, weights, cumulative_local_expert_recv_stats=stats, **options
            )
            out, back, _ = buffer.combine(recv_x * 2, handle, topk_weights=recv_weights)
            metadata = handle.recv_src_metadata, handle.psum_num_recv_tokens_per_expert
        assert len(metadata[0]) == handle.num_recv_tokens == MOST * buffer.num_ranks
        assert torch.equal(stats, handle.num_unaligned_recv_tokens_per_expert * (step + 1))
        there = sent[1] >= 0
        owners = torch.where(there, sent[1] // 6, -1)
        ranks = torch.stack([(owners == rank).any(1) for rank in range(buffer.num_ranks)], dim=1)
        copies = (there if expand else ranks).sum(1, keepdim=True)
        assert calc_diff(out.cpu(), sent[0].float() * 2 * copies) < 1e-4
        assert torch.equal(back.cpu(), torch.where(there, sent[2], 0.0))


def test_overlap(buffer, sent):
    x, idx, _ = (one.cuda() for one in sent)
    for _ in range(5):
        handle = buffer.dispatch(x, idx, num_experts=6 * buffer.num_ranks)[3]
    options = dict(allocate_on_comm_stream=True, async_with_compute_stream=True, previous_event=buffer.capture())
    with held_up(10):
        event = buffer.dispatch(x, handle=handle, **options)[4]
        event.event.synchronize()
    with event:
        pass


def test_what_is_refused(buffer, sent):
    x, idx, _ = (one.cuda() for one in sent)
    with pytest.raises(TypeError, match="topk_idx: expected a cuda:. tensor int64 or int32"):
        buffer.dispatch(x, idx.cpu(), num_experts=6 * buffer.num_ranks)
    recv_x, _, _, handle, _ = buffer.dispatch(x, idx, num_experts=6 * buffer.num_ranks)
    with pytest.raises(ValueError, match="x: expected a tensor of cuda:., as what was dispatched, got cpu"):
        buffer.combine(recv_x.cpu(), handle)
    del recv_x
