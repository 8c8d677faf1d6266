# SPDX-License-Identifier: BSD-3-Clause
"""What integrations build on: rows and gradients against loops in one process; and one rank's error on every rank."""

from __future__ import annotations

import os
import time

import pytest
from conftest import communicator

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402

import xep  # noqa: E402
from xep.integrations.exchange import Exchange, RankError, exchange_of  # noqa: E402

HIDDEN, TOPK, EXPERTS_OF_RANK = 10, 3, 2
IN_TIME = 25  # seconds, of the 30 that a rank waits for another one at most


@pytest.fixture
def group():
    communicator()
    made = dist.new_group()  # of its own for each test
    yield made
    dist.barrier()
    exchange_of(made).close()


def tokens_of(rank: int) -> int:
    return [7, 0, 12, 1][rank % 4]


def inputs(rank: int, ranks: int, dtype, experts=None):
    """x, topk_idx with some masked, weights, gradient of the outputs."""
    generator = torch.Generator().manual_seed(100 + rank)
    tokens = tokens_of(rank)
    experts = EXPERTS_OF_RANK * ranks if experts is None else experts
    idx = torch.rand((tokens, experts), generator=generator).topk(min(TOPK, experts), 1).indices
    idx[torch.rand(idx.shape, generator=generator) < 0.2] = -1
    x, grad = (torch.randn((tokens, HIDDEN), generator=generator, dtype=torch.float64) for _ in range(2))
    weights = torch.rand(idx.shape, generator=generator, dtype=torch.float64).masked_fill(idx < 0, 0.0)
    return x.to(dtype).requires_grad_(), idx, weights.to(dtype).requires_grad_(), grad.to(dtype)


def expert(number: int, x):
    return torch.tanh(x * (number + 1) / 3) * (number + 0.5)


def run_experts(first: int, rows, idx, weights):
    out = torch.zeros_like(rows)
    for row, k in (idx >= 0).nonzero().tolist():
        out = out.index_add(
            0, torch.tensor([row]), (weights[row, k] * expert(first + int(idx[row, k]), rows[row]))[None]
        )
    return out


def layer(exchange: Exchange, x, idx, weights, experts: int, work=run_experts):
    rows, local, row_weights, way = exchange.dispatch(x, idx, weights, experts)
    with exchange.alarm.telling():
        y = work(exchange.alarm.rank * (experts // exchange.ranks), rows, local, row_weights)
    return exchange.combine(y, way)


def check(exchange: Exchange, dtype=torch.float32, within=1e-5, narrow=None) -> None:
    """narrow: so many experts of the first ranks are chosen from."""
    rank, ranks = exchange.alarm.rank, exchange.ranks
    x, idx, weights, grad = inputs(rank, ranks, dtype, narrow)
    out = layer(exchange, x, idx, weights, EXPERTS_OF_RANK * ranks)
    out.backward(grad)
    alone_x, _, alone_weights, _ = inputs(rank, ranks, dtype, narrow)
    alone = run_experts(0, alone_x, idx, alone_weights) + 0 * alone_x + 0 * alone_weights.sum()
    alone.backward(grad)
    for got, want in ((out, alone), (x.grad, alone_x.grad), (weights.grad, alone_weights.grad)):
        assert got.dtype == dtype and got.shape == want.shape
        torch.testing.assert_close(got, want, rtol=within, atol=within)


@pytest.mark.parametrize("dtype, within", [(torch.float32, 1e-6), (torch.float64, 1e-14), (torch.bfloat16, 0.06)])
def test_ragged_tokens(group, dtype, within):
    """Some ranks have none; selections are masked."""
    exchange = exchange_of(group)
    for _ in range(3):
        check(exchange, dtype, within)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ranks_that_receive_nothing(group, dtype):
    check(exchange_of(group), dtype, 1e-6, narrow=EXPERTS_OF_RANK)


def test_weights_of_another_type(group):
    """As of a router in float32 before experts in bfloat16: they travel, and their gradients return, as they are."""
    exchange = exchange_of(group)
    x, idx, _, grad = inputs(exchange.alarm.rank, exchange.ranks, torch.bfloat16)
    for dtype in (torch.float32, torch.float64):
        weights = (torch.arange(idx.numel(), dtype=dtype).reshape(idx.shape) + 1) / 3
        experts = EXPERTS_OF_RANK * exchange.ranks
        rows, local, row_weights, way = exchange.dispatch(x, idx, weights.requires_grad_(), experts)
        out = exchange.combine(torch.zeros_like(rows) + row_weights.sum(1, keepdim=True).to(x.dtype) * 0, way)
        torch.autograd.backward([out, row_weights], [grad, torch.full_like(row_weights, 0.1)])
        assert rows.dtype == out.dtype == torch.bfloat16 and row_weights.dtype == weights.grad.dtype == dtype
        seen = torch.zeros_like(weights).masked_fill(idx >= 0, 0.1)
        torch.testing.assert_close(weights.grad.masked_fill(idx < 0, 0.0), seen, rtol=0, atol=1e-7)


def test_the_backward_pass_is_everywhere_or_nowhere(group):
    """Of outputs that no gradient reaches on ranks without rows: what one rank's graph lacks, others wait for."""
    exchange = exchange_of(group)
    scale = torch.tensor(2.0, requires_grad=True)

    def of_a_parameter(_first, rows, _idx, _weights):
        return rows * scale if len(rows) else rows.detach()

    x, idx, weights, grad = inputs(exchange.alarm.rank, exchange.ranks, torch.float32, EXPERTS_OF_RANK)
    rows, local, row_weights, way = exchange.dispatch(
        x.detach(), idx, weights.detach(), EXPERTS_OF_RANK * exchange.ranks, trained=True
    )
    exchange.combine(of_a_parameter(0, rows, local, row_weights), way).backward(grad)
    assert (scale.grad is not None) == (len(rows) > 0)
    with torch.no_grad():
        assert not layer(exchange, x, idx, weights, EXPERTS_OF_RANK * exchange.ranks).requires_grad


def test_a_second_process_group(group):
    """Halves of the ranks, and all of them: each has memory of its own, and their operations mix."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    halves = [dist.new_group(list(range(i, ranks, 2))) for i in range(2)]
    everyone, half = exchange_of(group), exchange_of(halves[rank % 2])
    assert half is not everyone and half.ranks < everyone.ranks
    for _ in range(2):
        check(half)
        check(everyone)
    half.close()


# ---- trouble ----


def test_an_exception_of_one_rank_is_everyones(group):
    """The others are in combine by then. The reason is that of the rank that had it, and the group ends with it."""
    exchange = exchange_of(group)
    check(exchange)
    guilty = exchange.ranks - 1

    def work(first, rows, idx, weights):
        if exchange.alarm.rank == guilty:
            raise ZeroDivisionError("these experts are out of order")
        return run_experts(first, rows, idx, weights)

    begin = time.monotonic()
    x, idx, weights, _ = inputs(exchange.alarm.rank, exchange.ranks, torch.float32)
    told = f"rank {guilty} failed: ZeroDivisionError: these experts are out of order"
    with pytest.raises(ZeroDivisionError if exchange.alarm.rank == guilty else RankError) as raised:
        layer(exchange, x, idx, weights, EXPERTS_OF_RANK * exchange.ranks, work)
    assert time.monotonic() - begin < IN_TIME
    assert exchange.alarm.rank == guilty or str(raised.value) == told
    with pytest.raises(RankError, match="out of order"):
        check(exchange)
    again = exchange_of(group)
    assert again is not exchange
    check(again)


def test_an_exception_before_anything_was_dispatched(group):
    """The others are on their way into the group."""
    exchange = exchange_of(group)
    begin = time.monotonic()
    if exchange.alarm.rank == 0:
        with pytest.raises(ValueError, match="early"), exchange.alarm.telling():
            raise ValueError("early")
    else:
        with pytest.raises(RankError, match="rank 0 failed: ValueError: early"):
            check(exchange)
    assert time.monotonic() - begin < IN_TIME


def test_tensors_of_another_device(group):
    exchange = exchange_of(group)
    x, idx, weights, _ = inputs(exchange.alarm.rank, exchange.ranks, torch.float32)
    guilty = exchange.ranks - 1
    if exchange.alarm.rank == guilty:
        weights = weights.detach().to("meta")
    with pytest.raises(TypeError if exchange.alarm.rank == guilty else RankError, match="on meta"):
        layer(exchange, x, idx, weights, EXPERTS_OF_RANK * exchange.ranks)


def test_ranks_that_disagree(group):
    exchange = exchange_of(group)
    width = HIDDEN + (exchange.alarm.rank == 0)
    idx = torch.zeros((3, 1), dtype=torch.int64)
    with pytest.raises((xep.MismatchError, RankError), match="disagree on hidden"):
        exchange.dispatch(torch.zeros((3, width)), idx, torch.ones((3, 1)), EXPERTS_OF_RANK * exchange.ranks)


def test_a_fork_has_an_error_and_its_parent_goes_on(group):
    exchange = exchange_of(group)
    check(exchange)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            check(exchange)
        except RuntimeError as error:
            status = 0 if "forked off" in str(error) else 2
        finally:
            os._exit(status)
    end = time.monotonic() + 100
    while (done := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < end:
        time.sleep(0.01)
    if done == (0, 0):
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert done[1] == 0
    check(exchange)
