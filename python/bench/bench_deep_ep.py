# SPDX-License-Identifier: BSD-3-Clause
"""What deep_ep adds to the same operations by xep, both with tensors: in turn, in the same processes.

    xep_run -n 2 python bench_deep_ep.py [--profile normal|ll]

Normal: a dispatch with weights, and a combine of the rows received; the layout, which is a call of its own in deep_ep,
    apart. Elastic: the same by ElasticBuffer, which needs no layout; by expert: with do_expand, beside the same xep.
Low latency: a dispatch in bfloat16, and a combine with weights. As in bench_overhead.py, compared is the time that one
operation in ten is faster than. --profile: where the time of deep_ep is spent, at rank 0, instead.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from typing import Any, Callable

import torch

import deep_ep
import xep

HIDDEN, TOPK, EXPERTS_OF_RANK = 1024, 8, 8
STEPS, OPERATIONS = 30, 40


class Inputs:
    def __init__(self, rank: int, nranks: int, tokens: int) -> None:
        generator = torch.Generator().manual_seed(rank)
        self.experts = EXPERTS_OF_RANK * nranks
        self.tokens = tokens
        self.x = torch.randn((tokens, HIDDEN), generator=generator).bfloat16()
        self.idx = torch.rand((tokens, self.experts), generator=generator).topk(TOPK, dim=1).indices
        self.weights = torch.rand((tokens, TOPK), generator=generator)


def normal_by_deep_ep(buffer: deep_ep.Buffer, given: Inputs) -> Callable[[], Any]:
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(given.idx, given.experts)
    config = buffer.get_dispatch_config(buffer.group_size)

    def operations() -> None:
        rows, _, row_weights, _, handle, _ = buffer.dispatch(
            given.x,
            num_tokens_per_rank=per_rank,
            is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert,
            topk_idx=given.idx,
            topk_weights=given.weights,
            config=config,
        )
        buffer.combine(rows, handle)

    return operations


def elastic_by_deep_ep(buffer: deep_ep.ElasticBuffer, given: Inputs, expand: bool) -> Callable[[], Any]:
    """expand: rows by expert, which are copied, and summed on the way back."""

    def operations() -> None:
        rows, _, _, handle, _ = buffer.dispatch(
            given.x, topk_idx=given.idx, topk_weights=given.weights, num_experts=given.experts, do_expand=expand
        )
        buffer.combine(rows, handle)

    return operations


def normal_by_xep(buffer: xep.Buffer, given: Inputs) -> Callable[[], Any]:
    def operations() -> None:
        handle = buffer.dispatch(given.x, given.idx, given.weights)
        received = handle.recv
        rows, _, _ = received.x, received.topk_idx, received.topk_weights
        handle.combine(rows)
        del received, rows, _
        handle.release()

    return operations


def ll_by_deep_ep(buffer: deep_ep.Buffer, given: Inputs) -> Callable[[], Any]:
    def operations() -> None:
        rows, _, handle, _, _ = buffer.low_latency_dispatch(
            given.x, given.idx, given.tokens, given.experts, use_fp8=False
        )
        buffer.low_latency_combine(rows, given.idx, given.weights, handle)

    return operations


def ll_by_xep(buffer: xep.Buffer, given: Inputs) -> Callable[[], Any]:
    def operations() -> None:
        handle = buffer.dispatch(given.x, given.idx, arrangement=xep.Rows.BY_EXPERT_PADDED)
        rows = handle.recv.x
        handle.combine(rows, weights=given.weights)
        del rows
        handle.release()

    return operations


def timed(operations: Callable[[], Any], count: int) -> list[int]:
    times = []
    for _ in range(count):
        begin = time.perf_counter_ns()
        operations()
        times.append(time.perf_counter_ns() - begin)
    return times


def low(times: list[int]) -> float:
    return sorted(times)[len(times) // 10] / 1000


def compare(ways: list[Callable[[], Any]]) -> list[float]:
    """Microseconds of each."""
    times: list[list[int]] = [[] for _ in ways]
    for step in range(STEPS + 2):
        for kept, way in zip(times, ways):
            new = timed(way, OPERATIONS)
            kept.extend(new if step >= 2 else ())
    return [low(kept) for kept in times]


def measure(buffer: deep_ep.Buffer, elastic: deep_ep.ElasticBuffer, group: xep.Group, tokens: int) -> None:
    given = Inputs(group.rank, group.nranks, tokens)
    shape = (given.experts, TOPK, HIDDEN, tokens)
    with group.buffer(*shape, mode="normal", slots=4) as normal, group.buffer(*shape, mode="ll", slots=4) as ll:
        plain, ours, rows, by_expert = compare([
            normal_by_xep(normal, given),
            normal_by_deep_ep(buffer, given),
            elastic_by_deep_ep(elastic, given, False),
            elastic_by_deep_ep(elastic, given, True),
        ])  # fmt: skip
        ll_plain, ll_ours = compare([ll_by_xep(ll, given), ll_by_deep_ep(buffer, given)])
    layout = low(timed(lambda: buffer.get_dispatch_layout(given.idx, given.experts), 1000))
    if group.rank == 0:
        for name, one, two in (
            ("normal", plain, ours),
            ("elastic", plain, rows),
            ("by expert", plain, by_expert),
            ("ll", ll_plain, ll_ours),
        ):
            print(f"{tokens:5} tokens {name:>9}: xep {one:7.1f} us, deep_ep adds {two - one:6.1f} us", flush=True)
        print(f"{tokens:5} tokens    layout: {layout:.1f} us", flush=True)


def profile(buffer: deep_ep.Buffer, group: xep.Group, mode: str) -> None:
    given = Inputs(group.rank, group.nranks, 4)
    operations = (normal_by_deep_ep if mode == "normal" else ll_by_deep_ep)(buffer, given)
    timed(operations, 100)
    profiler = cProfile.Profile()
    profiler.runcall(timed, operations, 2000)
    if group.rank == 0:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", choices=("normal", "ll"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    buffer = deep_ep.Buffer(low_latency_mode=True, explicitly_destroy=True)
    if options.profile is not None:
        profile(buffer, buffer._xep, options.profile)
    elastic = deep_ep.ElasticBuffer(num_max_tokens_per_rank=128, explicitly_destroy=True)
    for tokens in () if options.profile is not None else (4, 128):
        measure(buffer, elastic, buffer._xep, tokens)
    elastic.destroy()
    buffer.destroy()


if __name__ == "__main__":
    main()
