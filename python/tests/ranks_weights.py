# SPDX-License-Identifier: BSD-3-Clause
"""Weights from Python: read where they are and by copies, changed, reduced; what is refused."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from conftest import communicator

import xep

EXPERTS, SHAPE = 9, (5, 31, 7)
MAPS = {
    "blocks": lambda n: None,
    "dealt out": lambda n: [e % n for e in range(EXPERTS)],
    "one": lambda n: [n - 1] * EXPERTS,
}


def values(expert: int, version: int) -> np.ndarray:
    return (np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE) + 1000 * expert) * (version + 1)


@pytest.fixture(params=["mapped", "copied"])
def group(request, monkeypatch):
    """copied: no rank is mapped, and ranks make progress beside their programs."""
    if request.param == "copied":
        monkeypatch.setenv("XEP_MAP", "never")
        monkeypatch.setenv("XEP_PROGRESS", "thread")
    with xep.Group(communicator(), timeout=30) as made:
        yield made


def kinds():
    try:
        import torch  # noqa: F401
    except ImportError:
        return [False]
    return [False, True]


@pytest.mark.parametrize("torch", kinds())
@pytest.mark.parametrize("owners", list(MAPS))
def test_every_rank_reads_all_experts(group, owners, torch):
    """More often than there are copies, in an order of its own, and again when they have changed."""
    with group.weights(EXPERTS, SHAPE, "float32", owners=MAPS[owners](group.nranks), copies=3, torch=torch) as weights:
        assert sum(part[0] for part in group.allgather(bytes([len(weights.local)]))) == EXPERTS
        for version in range(2):
            for e in weights.local:
                if torch:
                    weights.change(e).numpy()[...] = values(e, version)
                    weights.publish(e)
                else:
                    weights.fill(e, values(e, version))
            group.barrier()
            for i in range(2 * EXPERTS):
                e = (i * 2 + group.rank) % EXPERTS
                if i % 3 == 0:
                    weights.prefetch(e)
                found = weights.of(e)
                assert tuple(found.shape) == SHAPE
                np.testing.assert_array_equal(np.asarray(found), values(e, version))
            del found
            group.barrier()


def test_arrays_are_the_memory_itself(group):
    """What an owner writes is seen by arrays that were had before; they cannot be written, and keep the memory."""
    weights = group.weights(group.nranks, 64, "float64")
    weights.fill(group.rank, 1.0)
    group.barrier()
    mine, first = weights.of(group.rank), weights.of(0)
    group.barrier()
    with pytest.raises(ValueError, match="read-only"):
        mine[0] = 2.0
    weights.fill(group.rank, 3.0)
    group.barrier()
    assert (mine == 3.0).all() and (first == (3.0 if group.peer(0).mapped or group.rank == 0 else 1.0)).all()
    assert (weights.of(0) == 3.0).all()  # its copy was out of date
    with pytest.raises(BufferError, match="2 arrays of weights are alive"):
        weights.close()
    tail = mine[1:]
    del mine, first
    gc.collect()
    with pytest.raises(BufferError, match="1 arrays of weights are alive"):
        group.close()
    del tail
    weights.close()
    weights.close()
    with pytest.raises(ValueError, match="the weights are closed"):
        weights.of(0)
    assert repr(weights) == "<xep.Weights: closed>"


def test_bfloat16_is_bits(group):
    with group.weights(group.nranks, (2, 3)) as weights:
        with pytest.raises(TypeError, match="bits of floats"):
            weights.fill(group.rank, 0.5)
        weights.fill(group.rank, xep.to_bfloat16(np.full((2, 3), 0.5)))
        group.barrier()
        assert (xep.from_bfloat16(weights.of(group.nranks - 1)) == 0.5).all()
        group.barrier()


@pytest.mark.parametrize("torch", kinds())
def test_gradients_are_added_in_the_order_of_ranks(group, torch):
    """Of very different sizes, so that another order has other bits."""

    def gradient(rank, e):
        return (np.random.default_rng([rank, e]).standard_normal(SHAPE) * 10.0 ** ((rank * 5 + e) % 7)).astype(
            np.float32
        )

    def given(rank):
        return [e for e in range(EXPERTS) if (e + rank) % 3 != 0]

    with group.weights(
        EXPERTS, SHAPE, gradients=EXPERTS, owners=MAPS["dealt out"](group.nranks), torch=torch
    ) as weights:
        mine = {e: gradient(group.rank, e) for e in given(group.rank)}
        if torch:
            import torch as pytorch

            mine = {e: pytorch.from_numpy(array) for e, array in mine.items()}
        out = weights.reduce(mine)
        again = weights.reduce({}, out)
        assert again is out and (out is None) == (not weights.local)
        for i, e in enumerate(weights.local):
            total = np.zeros(SHAPE, np.float32)
            for rank in range(group.nranks):
                if e in given(rank):
                    total += gradient(rank, e)
            np.testing.assert_array_equal(np.asarray(out[i]), total)


def test_what_is_refused(group):
    last = group.nranks - 1
    for arguments, error, message in [
        ((0, 4), xep.InvalidError, "invalid experts: 0"),
        ((4, 0), xep.InvalidError, "invalid bytes: 0"),
        ((4, -1), ValueError, "shape: expected an integer"),
        ((4, 4, "float3"), TypeError, "dtype: expected one of .* got 'float3'"),
    ]:
        with pytest.raises(error, match=message):
            group.weights(*arguments)
    with pytest.raises(ValueError, match="owners: expected 4 ranks"):
        group.weights(4, 4, owners=[0])
    with pytest.raises(xep.InvalidError, match=rf"invalid owners\[1\]: {group.nranks} \(one of"):
        group.weights(2, 4, owners=[0, group.nranks])
    with pytest.raises(TypeError, match="unexpected argument 'owner'"):
        group.weights(2, 4, owner=[0, 0])
    if group.nranks > 1:
        with pytest.raises(xep.MismatchError, match=rf"rank {last} and rank 0 disagree on owners\[1\]: 0, {last}"):
            group.weights(2, 4, owners=[last, 0 if group.rank == last else last])
    with group.weights(EXPERTS, 4, "float32", owners=[last] * EXPERTS, gradients=1) as weights:
        with pytest.raises(xep.InvalidError, match=f"the weights of expert 3 are not filled: rank {last}"):
            weights.of(3)
        with pytest.raises(xep.InvalidError, match="invalid expert: 9"):
            weights.of(EXPERTS)
        with pytest.raises(ValueError, match="expert: expected an integer"):
            weights.of(-1)
        if group.rank == last:
            with pytest.raises(xep.InvalidError, match="expert 2 is not being changed"):
                weights.publish(2)
        else:
            with pytest.raises(xep.InvalidError, match=rf"invalid expert: 2 \(rank {last} has it\)"):
                weights.change(2)
        gradient = np.ones(4, np.float32)
        with pytest.raises(ValueError, match=r"gradients\[0\]: expected an array of shape \(4,\)"):
            weights.reduce({0: gradient[:3]})
        with pytest.raises(TypeError, match=r"gradients\[0\]: expected FP32"):
            weights.reduce({0: gradient.astype(np.float64)})
        with pytest.raises(xep.InvalidError, match="invalid count: 2 .at most params.gradients, 1|cannot go on with"):
            weights.reduce({0: gradient, 1: gradient} if group.rank == last else {0: gradient})
        group.barrier()
