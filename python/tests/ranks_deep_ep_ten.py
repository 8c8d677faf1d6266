# SPDX-License-Identifier: BSD-3-Clause
"""deep_ep over several nodes: the ten tensors of a handle, worked out in plain loops from what all ranks say they
choose: as DeepEP means them where each rank receives its own rows, and passes on nothing. Ranks have different numbers
of tokens, one has none; nodes may differ in size."""

from __future__ import annotations

import os
import pickle
import struct

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
from conftest import communicator  # noqa: E402
from normal_world import layout_arguments  # noqa: E402

import deep_ep  # noqa: E402
from deep_ep.utils import create_grouped_scores  # noqa: E402

HIDDEN, TOPK, EXPERTS_EACH, MOST_NODES = 64, 4, 2, 4
NAMES = (
    "is_token_in_rank", "rdma_channel_prefix_matrix", "gbl_channel_prefix_matrix", "recv_rdma_channel_prefix_matrix",
    "recv_rdma_rank_prefix_sum", "recv_gbl_channel_prefix_matrix", "recv_gbl_rank_prefix_sum", "recv_src_meta",
    "send_rdma_head", "send_nvl_head",
)  # fmt: skip


class Oracle:
    """goes[r][t]: the ranks that token t of rank r goes to."""

    def __init__(self, buffer: deep_ep.Buffer, goes: list[list[set[int]]]) -> None:
        self.rank, self.size, self.goes = buffer.rank, buffer.group_size, goes
        width = int(os.environ["XEP_NODE_RANKS"])
        self.nodes = [list(range(first, min(first + width, self.size))) for first in range(0, self.size, width)]
        self.node = {rank: n for n, ranks in enumerate(self.nodes) for rank in ranks}
        self.mates = self.nodes[self.node[self.rank]]

    def tokens(self, rank: int, to: set[int]) -> list[int]:
        return [token for token, ranks in enumerate(self.goes[rank]) if ranks & to]

    def heads(self, to: list[set[int]]) -> list[list[int]]:
        """Of each own token and each of to, its number among those that go there, or -1."""
        own = [self.tokens(self.rank, ranks) for ranks in to]
        return [[one.index(t) if t in one else -1 for one in own] for t in range(len(self.goes[self.rank]))]

    def forwarded(self) -> list[list[int]]:
        """Of each row received, at the place of this rank, its number among those of its source."""
        width, found = max(map(len, self.nodes)), []
        for rank, token in self.sources():
            number = self.tokens(rank, {self.rank}).index(token)
            found.append([number if place == self.mates.index(self.rank) else -1 for place in range(width)])
        return found

    def sources(self) -> list[tuple[int, int]]:
        return [(rank, t) for rank in range(self.size) for t in self.tokens(rank, {self.rank})]

    def meta(self) -> list[tuple[int, int]]:
        return [(self.node[rank], 1 << self.mates.index(self.rank)) for rank, _ in self.sources()]

    def tensors(self) -> dict[str, list]:
        each, own = [{rank} for rank in range(self.size)], self.goes[self.rank]
        nodes, came = [set(ranks) for ranks in self.nodes], self.sources()
        return dict(
            is_token_in_rank=[[rank in ranks for rank in range(self.size)] for ranks in own],
            rdma_channel_prefix_matrix=[[len(self.tokens(self.rank, node))] for node in nodes],
            gbl_channel_prefix_matrix=[[len(self.tokens(self.rank, one))] for one in each],
            recv_rdma_channel_prefix_matrix=[[sum(r in node for r, _ in came)] for node in nodes],
            recv_rdma_rank_prefix_sum=[sum(self.node[r] <= n for r, _ in came) for n in range(len(nodes))],
            recv_gbl_channel_prefix_matrix=[[sum(r < rank for r, _ in came)] for rank in range(self.size)],
            recv_gbl_rank_prefix_sum=[sum(r <= rank for r, _ in came) for rank in range(self.size)],
            recv_src_meta=[list(struct.pack("<iI", *one)) for one in self.meta()],
            send_rdma_head=self.heads(nodes),
            send_nvl_head=self.forwarded(),
        )

    def check(self, handle: tuple) -> None:
        assert len(handle) == len(NAMES)
        kinds = {"is_token_in_rank": torch.bool, "recv_src_meta": torch.uint8}
        wanted, width = self.tensors(), max(map(len, self.nodes))
        columns = dict(is_token_in_rank=self.size, recv_src_meta=8, send_rdma_head=len(self.nodes), send_nvl_head=width)
        for name, found in zip(NAMES, handle):
            assert found.dtype == kinds.get(name, torch.int32) and found.is_contiguous(), name
            assert found.tolist() == wanted[name], name
            assert name not in columns or found.shape[1] == columns[name], name


def choose(buffer: deep_ep.Buffer, seed: int, most: int, limited: bool) -> torch.Tensor:
    """[T, K] experts of this rank, which no other rank knows."""
    rank, size, experts = buffer.rank, buffer.group_size, EXPERTS_EACH * buffer.group_size
    generator = torch.Generator().manual_seed(100 * seed + rank)
    tokens = 0 if rank == (seed + 1) % size else most - 3 * rank % most
    scores = torch.rand((tokens, experts), generator=generator)
    nodes = buffer.runtime.get_num_rdma_ranks()
    if limited and experts % nodes == 0:
        groups = scores.view(tokens, nodes, experts // nodes).amax(dim=-1).topk(min(MOST_NODES, nodes), dim=-1).indices
        scores = create_grouped_scores(scores, groups, nodes)
    chosen = scores.topk(min(TOPK, experts), dim=-1).indices
    chosen[torch.rand(chosen.shape, generator=generator) < 0.2] = -1
    return chosen


def dispatched(buffer: deep_ep.Buffer, idx: torch.Tensor, left_out: int = 0, **options) -> tuple[tuple, Oracle]:
    """The handle of a dispatch, and what it must say. left_out: the first tokens, which go nowhere."""
    arguments = layout_arguments(buffer.get_dispatch_layout(idx, EXPERTS_EACH * buffer.group_size))
    arguments["is_token_in_rank"][:left_out] = False
    x = torch.randn((len(idx), HIDDEN), generator=torch.Generator().manual_seed(3)).bfloat16()
    *_, handle, event = buffer.dispatch(x, topk_idx=idx, topk_weights=torch.ones(idx.shape), **arguments, **options)
    event.event and event.current_stream_wait()
    told = [pickle.loads(one) for one in communicator().allgather(pickle.dumps((idx.tolist(), left_out)))]
    goes = [
        [{e // EXPERTS_EACH for e in chosen if e >= 0} if t >= out else set() for t, chosen in enumerate(tokens)]
        for tokens, out in told
    ]
    return handle, Oracle(buffer, goes)


@pytest.fixture
def buffer(buffer_of):
    if int(os.environ.get("XEP_NODE_RANKS", "0")) == 0:
        pytest.skip("there is one node (xep_run -N)")
    return buffer_of()


@pytest.mark.parametrize("limited", [False, True])
def test_ten_tensors(buffer, limited):
    for seed, most in enumerate((13, 40, 7)):  # a second buffer, then less than it has room for
        handle, oracle = dispatched(buffer, choose(buffer, seed, most, limited))
        oracle.check(handle)
        oracle.check(tuple(handle))


def test_ten_tensors_of_all_kinds_of_dispatches(buffer):
    idx = choose(buffer, 7, 23, False)
    worst = 23 * buffer.group_size
    for options in (dict(async_finish=True), dict(left_out=5), dict(left_out=23, async_finish=True)):
        handle, oracle = dispatched(buffer, idx, **options)
        oracle.check(handle)
    handle, oracle = dispatched(buffer, idx, num_worst_tokens=worst)
    assert handle[7].shape == (worst, 8) and bool((handle[7][len(oracle.sources()) :] == 255).all())
    oracle.check((*handle[:7], handle[7][: len(oracle.sources())], *handle[8:]))


def test_ten_tensors_of_old_handles(buffer):
    """Looked at when their slots are long gone; and one of which the tensors alone are left still combines."""
    made = [dispatched(buffer, choose(buffer, seed, 17, True)) for seed in range(8)]
    for handle, oracle in made:
        oracle.check(handle)
    plain, oracle = pickle.loads(pickle.dumps(tuple(made[0][0]))), made[0][1]
    rows = torch.ones((len(oracle.sources()), HIDDEN), dtype=torch.bfloat16)
    combined = buffer.combine(rows, plain)[0]
    assert combined[:, 0].tolist() == [float(len(ranks)) for ranks in oracle.goes[buffer.rank]]
