# SPDX-License-Identifier: BSD-3-Clause
"""Owner maps from Python: a layer against the sum made by hand, whoever owns which expert; what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import xep
from xep.plan import Plan

EXPERTS, TOPK, HIDDEN, TOKENS = 13, 4, 24, 17


def maps_of(nranks: int):
    random = np.random.default_rng(3).integers(0, nranks, EXPERTS)
    return {
        "dealt out": [e % nranks for e in range(EXPERTS)],
        "any": random,
        "all on the last": (nranks - 1,) * EXPERTS,
        "none on rank 0": [min(1 + e % max(nranks - 1, 1), nranks - 1) for e in range(EXPERTS)],
    }


def routing_of(rank: int):
    """Selections, some of them -1, and weights with which sums of whole numbers are exact."""
    random = np.random.default_rng(rank)
    idx = np.array([random.permutation(EXPERTS)[:TOPK] for _ in range(TOKENS)])
    idx[random.random(idx.shape) < 0.1] = -1
    return idx, 2.0 ** random.integers(-2, 3, idx.shape).astype(np.float32)


def layer(buffer, x, idx, weights, **options):
    """Expert e multiplies by e + 1; mode ll gives the weights in combine, normal here."""
    handle = buffer.dispatch(x, idx, weights, **options)
    received = handle.recv
    rows = np.asarray(received.x).reshape(-1, HIDDEN)[: received.rows]
    local = np.asarray(received.topk_idx)[: received.rows]
    scale = np.array([*received.experts, -1], dtype=np.float32)[local] + 1
    if received.topk_weights is not None:
        scale = scale * np.asarray(received.topk_weights)[: received.rows]
    combined = handle.combine(rows * (scale * (local >= 0)).sum(axis=1, keepdims=True).astype(np.float32))
    handle.release()
    return combined


@pytest.mark.parametrize("mode", ["normal", "ll"])
@pytest.mark.parametrize("which", list(maps_of(1)))
def test_a_layer_is_right_whoever_owns_what(group, mode, which):
    owners = maps_of(group.nranks)[which]
    idx, weights = routing_of(group.rank)
    x = np.random.default_rng(50 + group.rank).integers(-8, 9, (TOKENS, HIDDEN)).astype(np.float32)
    with group.buffer(
        EXPERTS, TOPK, HIDDEN, TOKENS, mode=mode, dtype="float32", combine_dtype="float32", owners=owners
    ) as buffer:
        mine = [e for e in range(EXPERTS) if owners[e] == group.rank]
        assert buffer.local_experts == len(mine)
        handle = buffer.dispatch(x, idx, weights)
        assert list(handle.recv.experts) == mine
        assert not mine or handle.recv.first_expert == mine[0]
        handle.release()
        expected = (weights * (idx + 1) * (idx >= 0)).sum(axis=1, keepdims=True) * x
        assert np.array_equal(layer(buffer, x, idx, weights), expected)


def test_layout_counts_by_the_map(group):
    owners = maps_of(group.nranks)["any"]
    idx, _ = routing_of(group.rank)
    counted = xep.layout(idx, EXPERTS, group.nranks, owners=owners)
    for rank in range(group.nranks):
        there = ((idx >= 0) & (np.append(owners, -1)[idx] == rank)).any(axis=1)
        assert np.array_equal(counted.token_in_rank[:, rank], there)
        assert counted.tokens_per_rank[rank] == there.sum()


def test_what_is_refused():
    for owners, message in [
        ([0] * (EXPERTS - 1), "owners: expected 13 ranks, one for each expert, got 12"),
        ([0] * 4 + [-1] * 9, r"owners\[4\]: expected a rank, got -1"),
        ([0] * 5 + [2] * 8, r"invalid owners\[5\]: 2 \(one of 2 ranks\)"),
        ([0] * 12 + ["1"], r"owners\[12\]: expected a rank, got '1'"),
        (np.zeros(EXPERTS), r"owners\[0\]: expected a rank, got .*0\.0"),
        (np.zeros((EXPERTS, 2), np.int64), r"owners\[0\]: expected a rank, got array"),
        (7, "owners: expected a sequence of ranks"),
    ]:
        with pytest.raises((ValueError, TypeError), match=message):
            xep.buffer_size(2, EXPERTS, TOPK, HIDDEN, TOKENS, owners=owners)


@pytest.mark.parametrize("mode", ["normal", "ll"])
@pytest.mark.parametrize("balance", ["none", "least-loaded", "even"])
def test_a_layer_is_right_whoever_serves_what(group, mode, balance):
    """Replicas of two experts on all other ranks, or of none, as with "even" every rank has all."""
    owners = maps_of(group.nranks)["dealt out"]
    idx, weights = routing_of(group.rank)
    idx[::2, 0] = 3
    x = np.random.default_rng(50 + group.rank).integers(-8, 9, (TOKENS, HIDDEN)).astype(np.float32)
    shape = dict(mode=mode, dtype="float32", combine_dtype="float32", owners=owners)
    replicas = [(e, r) for e in (3, 5) for r in range(group.nranks) if owners[e] != r and balance != "even"]
    with group.buffer(EXPERTS, TOPK, HIDDEN, TOKENS, **shape) as plain:
        expected = layer(plain, x, idx, weights)
    with group.buffer(EXPERTS, TOPK, HIDDEN, TOKENS, **shape, replicas=replicas, balance=balance) as buffer:
        assert buffer.local_experts >= 2
        np.testing.assert_array_equal(layer(buffer, x, idx, weights), expected)
        assert buffer.loads().dispatches == 0
        if balance != "none":
            np.testing.assert_array_equal(layer(buffer, x, idx, weights, balance=True), expected)
            loads = buffer.loads()
            assert loads.dispatches == 1 and loads.selections // group.nranks <= loads.most_after <= loads.most_before
        else:
            with pytest.raises(xep.InvalidError, match="invalid flags"):
                buffer.dispatch(x, idx, weights, balance=True)


def eplb_maps(nranks: int):
    """As an EPLB library makes them, of one layer: expert 3 has two copies, expert 5 one for each rank and another."""
    copies = [*range(EXPERTS), 3, *[5] * nranks]
    copies += [7] * (-len(copies) % nranks)
    phy2log = np.random.default_rng(1).permutation(copies)
    logcnt = np.bincount(phy2log, minlength=EXPERTS)
    log2phy = np.full((EXPERTS, logcnt.max()), -1)
    for e in range(EXPERTS):
        log2phy[e, : logcnt[e]] = np.flatnonzero(phy2log == e)
    return phy2log[None], log2phy[None], logcnt[None]


def rows_at_end(call, end: int):
    """All rows of an expert go to its first instance, 0, or its last, -1."""
    rows = np.zeros(len(call.rank), np.int64)
    rows[call.begin[:-1] if end == 0 else call.begin[1:] - 1] = call.counts.sum(0)
    return rows


def as_tensors(arrays):
    torch = pytest.importorskip("torch")
    return tuple(map(torch.from_numpy, arrays))


PLANS = {
    "rows": lambda call: rows_at_end(call, -1),
    "maps": lambda call: eplb_maps(len(call.counts)),
    "tensors": lambda call: as_tensors(eplb_maps(len(call.counts))),
}


@pytest.mark.parametrize("mode", ["normal", "ll"])
@pytest.mark.parametrize("plan", list(PLANS))
def test_a_layer_is_right_by_a_plan_of_the_callers(group, mode, plan):
    maps = eplb_maps(group.nranks)
    owners, replicas = xep.placement(maps[0], group.nranks)
    idx, weights = routing_of(group.rank)
    x = np.random.default_rng(50 + group.rank).integers(-8, 9, (TOKENS, HIDDEN)).astype(np.float32)
    shape = dict(mode=mode, dtype="float32", combine_dtype="float32", owners=owners)
    with group.buffer(EXPERTS, TOPK, HIDDEN, TOKENS, **shape) as plain:
        expected = layer(plain, x, idx, weights)
    with group.buffer(EXPERTS, TOPK, HIDDEN, TOKENS, **shape, replicas=replicas, balance=PLANS[plan]) as buffer:
        np.testing.assert_array_equal(layer(buffer, x, idx, weights, balance=True), expected)
        handle = buffer.dispatch(x, idx, weights, balance=True)
        local = list(handle.recv.experts).index(5)
        served = int((np.asarray(handle.recv.topk_idx)[: handle.recv.rows] == local).sum())
        handle.release()
    if plan == "rows":
        return
    everybody = sum(int((routing_of(rank)[0] == 5).sum()) for rank in range(group.nranks))
    mine = (maps[0].reshape(group.nranks, -1)[group.rank] == 5).sum()  # a rank may have several copies
    assert mine * (everybody // maps[2][0][5]) <= served <= mine * -(-everybody // maps[2][0][5])


def copies_elsewhere(call):
    """One of each expert on each rank, whether it is there or not."""
    nranks = len(call.counts)
    return np.tile(np.arange(EXPERTS), nranks), np.arange(EXPERTS)[:, None] + EXPERTS, np.ones(EXPERTS, int)


def copies_of_another(call):
    return np.zeros(len(call.counts), int), np.zeros((EXPERTS, 1), int), np.ones(EXPERTS, int)


NO_PLAN = "rank {last} has no plan: its function failed"
DIFFERENT = "rank {last} and rank 0 have different plans for expert [0-9]"
TWICE = "the rows of expert 0 do not add up"
WRONG_PLANS = [  # the function, what it is an error of on its rank, and on the others
    (lambda call: rows_at_end(call, 0), xep.MismatchError, DIFFERENT, DIFFERENT),
    (lambda call: 1 // 0, ZeroDivisionError, "division", NO_PLAN),
    (lambda call: rows_at_end(call, -1)[1:], ValueError, "numbers of rows, one for each instance", NO_PLAN),
    (lambda call: rows_at_end(call, -1) * 2, xep.InvalidError, TWICE, "rank {last} has no valid plan: " + TWICE),
    (copies_elsewhere, ValueError, r"expected one where expert 0 is, got one of rank 1 \(replicas\)", NO_PLAN),
    (copies_of_another, ValueError, r"log2phy\[1, 0\]: expected a copy of expert 1 in phy2log, got 0", NO_PLAN),
]


@pytest.mark.parametrize("wrong, error, own, others", WRONG_PLANS)
def test_a_plan_that_is_wrong_on_one_rank_is_an_error_on_all(group, wrong, error, own, others):
    """And the next dispatch is as if nothing had been."""
    last = group.nranks - 1
    if last == 0:
        pytest.skip("nobody else")
    idx, weights = routing_of(group.rank)
    idx[0, 0] = 0
    x = np.ones((TOKENS, HIDDEN), np.float32)
    is_wrong = True

    def plan(call):
        return wrong(call) if is_wrong and group.rank == last else rows_at_end(call, -1)

    replicas = [(e, last) for e in range(xep.expert_range(EXPERTS, group.nranks, last)[0]) if e % 2 == 0 and e > 0]
    shape = dict(dtype="float32", combine_dtype="float32", replicas=replicas, balance=plan)
    with group.buffer(EXPERTS, TOPK, HIDDEN, TOKENS, **shape) as buffer:
        if group.rank != last:
            error, own = xep.MismatchError, others
        with pytest.raises(error, match=own.format(last=last)):
            buffer.dispatch(x, idx, weights, balance=True)
        is_wrong = False
        expected = (weights * (idx + 1) * (idx >= 0)).sum(axis=1, keepdims=True) * x
        np.testing.assert_array_equal(layer(buffer, x, idx, weights, balance=True), expected)


def test_copies_on_ranks_that_are_out_get_nothing():
    """Expert 0 has two copies on rank 0 and one on rank 1, which has expert 1, too."""
    plan = Plan(lambda call: ([0, 0, 0, 1], [[0, 1, 2], [3, -1, -1]], [3, 1]))
    counts, begin, rank = (np.array(each, np.uint32) for each in ([[4, 0], [0, 2]], [0, 2, 3], [0, 1, 1]))
    for out, expected in ((None, [3, 1, 2]), (bytes([1, 0]), [0, 4, 2]), (bytes([0, 1]), [4, 0, 2])):
        rows = np.zeros(3, np.uint64)
        assert plan.make(2, 2, counts.data, begin.data, rank.data, rows.data, out), plan.take_raised()
        assert rows.tolist() == expected


def test_a_placement_of_copies(group):
    assert xep.placement([0, 1, 2, 1, 0, 0], 3) == ([0, 0, 1], [(1, 1), (0, 2)])
    with pytest.raises(ValueError, match="expected a multiple of 3 ranks, got 4 copies"):
        xep.placement([0, 1, 2, 1], 3)
    with pytest.raises(ValueError, match="a copy of each expert up to 3"):
        xep.placement([0, 3], 2)


def test_replicas_that_are_none(group):
    for replicas, why in (([(1,)], r"replicas\[0\]: expected \(expert, rank\)"), ([(1, -1)], r"replicas\[0\]")):
        with pytest.raises(ValueError, match=why):
            group.buffer(EXPERTS, TOPK, HIDDEN, TOKENS, replicas=replicas)
    with pytest.raises(xep.InvalidError, match="which owns it"):
        group.buffer(EXPERTS, TOPK, HIDDEN, TOKENS, replicas=[(0, 0)])
    with pytest.raises(ValueError, match="balance"):
        group.buffer(EXPERTS, TOPK, HIDDEN, TOKENS, balance="more")
