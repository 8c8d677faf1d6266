# SPDX-License-Identifier: BSD-3-Clause
"""deep_ep over several nodes: what DeepEP's test of them checks, of every kind of rows, also with a routing that
reaches four nodes at most. What must come is worked out from the inputs of all ranks, in plain loops."""

from __future__ import annotations

import contextlib
import itertools
import os

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
from conftest import communicator, meet  # noqa: E402
from normal_world import layout_arguments  # noqa: E402

import deep_ep  # noqa: E402
import xep  # noqa: E402
from deep_ep.utils import calc_diff, create_grouped_scores, per_token_cast_back, per_token_cast_to_fp8  # noqa: E402

TOKENS, HIDDEN, TOPK, MOST_NODES = 24, 512, 4, 4
EXPERTS_EACH = 4  # of a rank


class World:
    """nodes: the ranks of each, by what the launcher was told: consecutive, the last may be smaller."""

    def __init__(self, buffer: deep_ep.Buffer, seed: int = 0) -> None:
        self.buffer, self.rank, self.size = buffer, buffer.rank, buffer.group_size
        width = int(os.environ["XEP_NODE_RANKS"])
        self.nodes = [list(range(first, min(first + width, self.size))) for first in range(0, self.size, width)]
        self.experts = EXPERTS_EACH * self.size
        self.topk_idx = [self.route(1000 * seed + rank) for rank in range(self.size)]
        self.random_weights = [
            torch.rand((TOKENS, TOPK), generator=torch.Generator().manual_seed(9 + rank)) for rank in range(self.size)
        ]

    def route(self, seed: int) -> torch.Tensor:
        """[T, K] int64: the best experts of the nodes with the best experts, some selections masked. Where nodes differ
        in size their experts are no groups, and all are open."""
        generator = torch.Generator().manual_seed(seed)
        scores = torch.randn((TOKENS, self.experts), generator=generator).abs() + 1
        if self.experts % len(self.nodes) == 0 and len({len(node) for node in self.nodes}) == 1:
            best = scores.view(TOKENS, len(self.nodes), -1).amax(dim=-1)
            groups = best.topk(min(MOST_NODES, len(self.nodes)), dim=-1, sorted=False).indices
            scores = create_grouped_scores(scores, groups, len(self.nodes))
        chosen = scores.topk(TOPK, dim=-1, largest=True, sorted=False).indices
        chosen[torch.rand(chosen.shape, generator=generator) < 0.05] = -1
        return chosen

    def ranks_of(self, rank: int, token: int) -> set[int]:
        return {int(expert) // EXPERTS_EACH for expert in self.topk_idx[rank][token] if expert >= 0}

    def nodes_of(self, rank: int, token: int) -> set[int]:
        return {n for n, node in enumerate(self.nodes) if self.ranks_of(rank, token) & set(node)}

    def sources(self) -> list[tuple[int, int]]:
        """(rank, token) of each row this rank gets, in the order in which it gets them."""
        every = itertools.product(range(self.size), range(TOKENS))
        return [(rank, token) for rank, token in every if self.rank in self.ranks_of(rank, token)]

    def rows(self, kind: str, rank: int) -> torch.Tensor:
        """bfloat16 [T, H]"""
        if kind.startswith("rank"):
            return torch.full((TOKENS, HIDDEN), float(rank), dtype=torch.bfloat16)
        return torch.randn((TOKENS, HIDDEN), generator=torch.Generator().manual_seed(70 + rank)).bfloat16()

    def weights(self, kind: str, rank: int) -> torch.Tensor:
        return torch.full((TOKENS, TOPK), float(rank)) if kind.startswith("rank") else self.random_weights[rank]

    def config(self) -> deep_ep.Config:
        return deep_ep.Config(24, 8, 720 if self.size in (24, 48, 96, 144, 160) else 512, 16, 128)


@pytest.fixture
def world(buffer_of):
    if int(os.environ.get("XEP_NODE_RANKS", "0")) == 0:
        pytest.skip("there is one node (xep_run -N)")
    size = communicator().size
    config = deep_ep.Buffer.get_dispatch_config(size)
    return World(buffer_of(
        num_nvl_bytes=config.get_nvl_buffer_size_hint(2 * HIDDEN, size),
        num_rdma_bytes=config.get_rdma_buffer_size_hint(2 * HIDDEN, size),
    ))  # fmt: skip


def test_layout(world):
    per_rank, per_node, per_expert, in_rank, _ = world.buffer.get_dispatch_layout(
        world.topk_idx[world.rank], world.experts
    )
    ranks = [world.ranks_of(world.rank, token) for token in range(TOKENS)]
    nodes = [world.nodes_of(world.rank, token) for token in range(TOKENS)]
    assert max(map(len, nodes)) <= MOST_NODES and len(world.nodes) == world.buffer.runtime.get_num_rdma_ranks()
    assert per_rank.tolist() == [sum(rank in one for one in ranks) for rank in range(world.size)]
    assert per_node.tolist() == [sum(node in one for one in nodes) for node in range(len(world.nodes))]
    chosen = world.topk_idx[world.rank].flatten().tolist()
    assert per_expert.tolist() == [chosen.count(expert) for expert in range(world.experts)]
    assert in_rank.tolist() == [[rank in one for rank in range(world.size)] for one in ranks]
    assert per_rank.dtype == per_node.dtype == per_expert.dtype == torch.int32 and in_rank.dtype == torch.bool


def test_default_device_is_not_asked(world, buffer_of):
    """A program that has set torch's gets CPU tensors for CPU tensors, and their values."""
    rank, idx, x = world.rank, world.topk_idx[world.rank], world.rows("rank", world.rank)
    with torch.device("meta"):
        buffer = buffer_of()
        per_rank, per_node, per_expert, in_rank, _ = buffer.get_dispatch_layout(idx, world.experts)
        layout = (per_rank, per_node, in_rank, per_expert)
        got = buffer.dispatch(x, None, *layout, idx, world.random_weights[rank])
        assert all(item.is_cpu for item in got[4])
        assert got[0][:, 0].tolist() == [float(source) for source, _ in world.sources()]
        combined, _, _ = buffer.combine(got[0], got[4])
    assert combined[:, 0].tolist() == [float(rank * len(world.ranks_of(rank, token))) for token in range(TOKENS)]


KINDS = ("random", "rank", "rank fp8", "random fp8")


@pytest.mark.parametrize("kind", KINDS)
def test_dispatch_and_combine(world, kind):
    for previous, asynchronous, with_topk in itertools.product((False, True), repeat=3):
        if not (previous and asynchronous and world.size > 8):  # the same code, and many ranks on few processors
            check_round(world, kind, previous, asynchronous, with_topk)


def options_of(buffer, previous: bool, asynchronous: bool) -> dict:
    return dict(async_finish=asynchronous, previous_event=buffer.capture() if previous else None)


def arrived(event, asynchronous: bool) -> None:
    assert (event.event is not None) == asynchronous
    if asynchronous:
        event.current_stream_wait()


def plain(rows) -> torch.Tensor:
    return per_token_cast_back(*rows) if isinstance(rows, tuple) else rows


def check_round(world: World, kind: str, previous: bool, asynchronous: bool, with_topk: bool) -> None:
    buffer, idx = world.buffer, world.topk_idx[world.rank]
    x = world.rows(kind, world.rank)
    sent = per_token_cast_to_fp8(x) if kind.endswith("fp8") else x
    arguments = layout_arguments(buffer.get_dispatch_layout(idx, world.experts))
    if with_topk:
        arguments.update(topk_idx=idx, topk_weights=world.weights(kind, world.rank))
    options = options_of(buffer, previous, asynchronous)
    recv_x, recv_idx, recv_weights, counts, handle, event = buffer.dispatch(
        sent, config=world.config(), **arguments, **options
    )
    arrived(event, asynchronous)
    check_rows(world, kind, plain(recv_x), handle, counts)
    if with_topk:
        check_topk(world, kind, recv_idx, recv_weights, counts)
        check_worst(world, kind, sent, arguments, options, asynchronous)
    again, *_, event = buffer.dispatch(sent, handle=handle, config=world.config(), **options)
    arrived(event, asynchronous)
    assert torch.equal(plain(again), plain(recv_x)), "a cached dispatch"
    check_combine(world, kind, plain(recv_x), handle, recv_weights, x, options)


def check_rows(world: World, kind: str, rows: torch.Tensor, handle: tuple, counts: list) -> None:
    sources = world.sources()
    every = [plain(per_token_cast_to_fp8(world.rows(kind, r)) if kind.endswith("fp8") else world.rows(kind, r))
             for r in range(world.size)]  # fmt: skip
    assert rows.shape == (len(sources), HIDDEN)
    assert all(torch.equal(row, every[rank][token]) for row, (rank, token) in zip(rows, sources))
    assert len(handle) == 10
    ends = handle[-4].tolist()  # recv_gbl_rank_prefix_sum, as DeepEP's test takes it
    assert ends == [sum(source <= rank for source, _ in sources) for rank in range(world.size)]
    first = world.rank * EXPERTS_EACH
    chosen = [idx.flatten().tolist() for idx in world.topk_idx]
    assert counts == [sum(one.count(first + e) for one in chosen) for e in range(EXPERTS_EACH)]


def check_topk(world: World, kind: str, recv_idx: torch.Tensor, recv_weights: torch.Tensor, counts: list) -> None:
    assert [int((recv_idx == e).sum()) for e in range(EXPERTS_EACH)] == counts
    for row, (source, token) in enumerate(world.sources()):
        for k, expert in enumerate(world.topk_idx[source][token].tolist()):
            here = expert >= 0 and expert // EXPERTS_EACH == world.rank
            assert int(recv_idx[row, k]) == (expert % EXPERTS_EACH if here else -1)
            assert float(recv_weights[row, k]) == (float(world.weights(kind, source)[token, k]) if here else 0.0)


def check_worst(world: World, kind: str, sent, arguments: dict, options: dict, asynchronous: bool) -> None:
    worst, count = world.size * TOKENS, len(world.sources())
    recv_x, recv_idx, recv_weights, counts, handle, event = world.buffer.dispatch(
        sent, config=world.config(), num_worst_tokens=worst, **arguments, **options
    )
    arrived(event, asynchronous)
    assert counts == [] and len(plain(recv_x)) == len(recv_idx) == len(recv_weights) == worst
    assert int(handle[-4][-1]) == count and bool((recv_idx[count:] == -1).all())
    assert bool((recv_idx[:count] >= 0).any(1).all())


def check_combine(world: World, kind: str, rows, handle, recv_weights, x: torch.Tensor, options: dict) -> None:
    """Sums of what was dispatched, and two biases: x times the ranks that had it, and the biases."""
    ones = torch.ones((TOKENS, HIDDEN), dtype=torch.bfloat16)
    noise = torch.randn((TOKENS, HIDDEN), generator=torch.Generator().manual_seed(5 + world.rank)).bfloat16()
    combined, weights, event = world.buffer.combine(
        rows, handle, topk_weights=recv_weights, bias=(ones, noise), config=world.config(), **options
    )
    arrived(event, options["async_finish"])
    ranks = torch.tensor([len(world.ranks_of(world.rank, token)) for token in range(TOKENS)]).unsqueeze(1)
    found = (combined.float() - ones - noise.float()) / ranks.clamp(min=1)
    wanted = torch.where(ranks > 0, x.float(), 0.0)
    assert calc_diff(found, wanted) < (5e-4 if kind == "random fp8" else 5e-6)
    if recv_weights is not None:
        valid = world.topk_idx[world.rank] >= 0
        assert torch.equal(weights, torch.where(valid, world.weights(kind, world.rank), 0.0))


def test_the_same_again(world):
    """DeepEP's pressure test: what one seed gives is the same every time."""
    for seed in range(3):
        routed, seen = World(world.buffer, seed), set()
        for _ in range(3):
            idx = routed.topk_idx[world.rank]
            layout = layout_arguments(world.buffer.get_dispatch_layout(idx, world.experts))
            x = world.rows("random", world.rank)
            weights = world.random_weights[world.rank]
            recv_x, recv_idx, _, _, handle, _ = world.buffer.dispatch(
                x, topk_idx=idx, topk_weights=weights, config=world.config(), **layout
            )
            combined = world.buffer.combine(recv_x, handle, config=world.config())[0]
            seen.add(tuple(one.view(torch.uint8).numpy().tobytes() for one in (recv_x, recv_idx, combined)))
        assert len(seen) == 1


def test_hints(world):
    """What a program asks before it has a Buffer: nodes are as large as the launcher makes them."""
    width, config = len(world.nodes[0]), deep_ep.Config(24, 8, 512, 16, 128)
    for ranks in (width, 2 * width, 3 * width + 1):
        nodes = -(-ranks // width)
        each = 2 * HIDDEN + 8 + 128 * 8 + 128 * 4 + 128 * 4
        rdma = 12 * nodes * (width * 2 + 2) * 2 * 4 + 12 * nodes * 128 * 2 * (each + 16) if nodes > 1 else 0
        assert config.get_rdma_buffer_size_hint(2 * HIDDEN, ranks) == -(-rdma // 128) * 128
        nvl = 12 * min(ranks, width) * ((2 * nodes + 3) * 4 + 512 * each)
        assert config.get_nvl_buffer_size_hint(2 * HIDDEN, ranks) == -(-nvl // 128) * 128
    assert world.buffer.num_rdma_bytes == config_hint(world)
    scratch = world.buffer.get_local_buffer_tensor(torch.uint8, use_rdma_buffer=True)
    assert scratch.numel() == world.buffer.num_rdma_bytes > 0


def config_hint(world: World) -> int:
    size = communicator().size
    return deep_ep.Buffer.get_dispatch_config(size).get_rdma_buffer_size_hint(2 * HIDDEN, size)


def test_every_node_is_one(world):
    """What the runtime says of a rank is the same as the launcher's numbers, and so is what all say together."""
    runtime, (node,) = world.buffer.runtime, [n for n, ranks in enumerate(world.nodes) if world.rank in ranks]
    assert runtime.is_internode_available() and runtime.get_rdma_rank() == node
    assert runtime.get_root_rdma_rank(True) == world.nodes[node].index(world.rank)
    mine = bytes([runtime.get_rdma_rank(), runtime.get_root_rdma_rank(True)])
    everywhere = [tuple(one) for one in communicator().allgather(mine)]
    assert everywhere == [(n, place) for n, ranks in enumerate(world.nodes) for place in range(len(ranks))]


@pytest.mark.skipif("communicator().size > 4")
def test_usable_again_after_a_late_rank():
    buffer = deep_ep.Buffer(communicator(), explicitly_destroy=True, timeout=8)
    world = World(buffer)
    layout = layout_arguments(buffer.get_dispatch_layout(world.topk_idx[world.rank], world.experts))

    def send() -> tuple:
        x, idx = world.rows("rank", world.rank), world.topk_idx[world.rank]
        return buffer.dispatch(x, topk_idx=idx, topk_weights=world.random_weights[world.rank], **layout)

    send()
    late = world.rank == world.size - 1
    meet()
    if not late:
        with pytest.raises(xep.DeadlineError):
            send()
    meet()
    if late:
        with contextlib.suppress(xep.XepError):  # it has the others' rows
            send()
    meet()
    buffer.reset()
    got = send()
    assert got[0][:, 0].tolist() == [float(source) for source, _ in world.sources()]
    del got
    buffer.destroy()
