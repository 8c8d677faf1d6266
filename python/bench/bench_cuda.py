# SPDX-License-Identifier: BSD-3-Clause
"""How long deep_ep's calls take on CUDA tensors, and how much of that the host: medians of a rank's, in microseconds.

xep_run -n 2 python python/bench/bench_cuda.py [--tokens 4096] [--hidden 7168] [--topk 8] [--experts-per-rank 64]

device: from one call to the next, by events, when many are enqueued; host: until the call returns, where nothing is
in its way. What a call is bound by is the larger of the two; a normal dispatch waits for counts, so its host time has
those of the device. "graph" is a dispatch and a combine of low latency, captured once.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

import deep_ep
import xep

TURNS, WARM = 30, 8


def measure(group: xep.Group, name: str, call) -> None:
    begun, spent = [torch.cuda.Event(enable_timing=True) for _ in range(TURNS + 1)], []
    for _ in range(WARM):
        call()
    torch.cuda.synchronize()
    group.barrier()
    for event in begun[:-1]:
        event.record()
        call()
    begun[-1].record()
    torch.cuda.synchronize()
    for _ in range(TURNS):
        group.barrier()
        begin = time.perf_counter()
        call()
        spent.append(time.perf_counter() - begin)
        torch.cuda.synchronize()
    device = statistics.median(one.elapsed_time(other) for one, other in zip(begun, begun[1:]))
    if group.rank == 0:
        print(f"{name:28}{device * 1e3:10.0f}{statistics.median(spent) * 1e6:10.0f}", flush=True)


def normal(group: xep.Group, buffer: deep_ep.Buffer, args: argparse.Namespace) -> None:
    x, idx, weights, experts = inputs(group, args.tokens, args)

    def dispatch():
        per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(idx, experts)
        layout = dict(num_tokens_per_rank=per_rank, num_tokens_per_expert=per_expert, is_token_in_rank=in_rank)
        return buffer.dispatch(x, topk_idx=idx, topk_weights=weights, **layout)

    recv_x, *_, handle, _ = dispatch()
    rows = recv_x.clone()
    del recv_x
    measure(group, "layout", lambda: buffer.get_dispatch_layout(idx, experts) and None)
    measure(group, "layout and dispatch", lambda: dispatch() and None)
    measure(group, "dispatch with handle", lambda: buffer.dispatch(x, handle=handle) and None)
    measure(group, "combine", lambda: buffer.combine(rows, handle) and None)


def by_expert(group: xep.Group, args: argparse.Namespace) -> None:
    """With do_expand: a row for each selection, which combine sums first."""
    x, idx, weights, experts = inputs(group, args.tokens, args)
    buffer = deep_ep.ElasticBuffer(
        num_max_tokens_per_rank=args.tokens, hidden=args.hidden, num_topk=args.topk, explicitly_destroy=True
    )

    def dispatch(**how):
        return buffer.dispatch(x, idx, weights, num_experts=experts, do_expand=True, num_sms=args.sms, **how)

    recv_x, _, _, handle, _ = dispatch()
    rows = recv_x.clone()
    del recv_x
    measure(group, "by expert, dispatch", lambda: dispatch() and None)
    measure(group, "by expert, no CPU sync", lambda: dispatch(do_cpu_sync=False) and None)
    measure(group, "by expert, combine", lambda: buffer.combine(rows, handle) and None)
    torch.cuda.synchronize()
    group.barrier()
    buffer.destroy()


def low_latency(group: xep.Group, buffer: deep_ep.Buffer, args: argparse.Namespace) -> None:
    x, idx, weights, experts = inputs(group, args.decode_tokens, args)
    (rows, _), _, handle, _, _ = buffer.low_latency_dispatch(x, idx, args.decode_tokens, experts)
    answers = torch.zeros(rows.shape, dtype=torch.bfloat16, device="cuda")
    del rows
    dispatch = lambda **how: buffer.low_latency_dispatch(x, idx, args.decode_tokens, experts, **how)  # noqa: E731
    combine = lambda to, **how: buffer.low_latency_combine(answers, idx, weights, to, **how)  # noqa: E731
    measure(group, "low-latency dispatch", lambda: dispatch() and None)
    measure(group, "low-latency combine", lambda: combine(handle) and None)
    measure(group, "low latency, both", lambda: combine(dispatch()[2]) and None)
    torch.cuda.synchronize()
    group.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="relaxed"):
        kept = dispatch(return_recv_hook=True)
        kept[4]()
        back = combine(kept[2], return_recv_hook=True)
        back[2]()
    measure(group, "low latency, graph", graph.replay)
    torch.cuda.synchronize()
    group.barrier()


def inputs(group: xep.Group, tokens: int, args: argparse.Namespace) -> tuple:
    """x, topk_idx, topk_weights, and the number of experts."""
    torch.manual_seed(group.rank)
    experts = args.experts_per_rank * group.nranks
    idx = torch.rand((tokens, experts), device="cuda").topk(args.topk, dim=1).indices
    x = torch.randn((tokens, args.hidden), device="cuda").bfloat16()
    return x, idx, torch.rand((tokens, args.topk), device="cuda"), experts


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, value in dict(tokens=4096, decode_tokens=128, hidden=7168, topk=8, experts_per_rank=64, sms=24).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("bench_cuda.py: no CUDA device (torch.cuda.is_available())")
    deep_ep.Buffer.set_num_sms(args.sms)
    with xep.Group() as group:
        torch.cuda.set_device(group.rank % torch.cuda.device_count())
        buffer = deep_ep.Buffer(low_latency_mode=True, explicitly_destroy=True)
        if group.rank == 0:
            print(f"{group.nranks} ranks, {torch.cuda.get_device_name()}\n{'us':28}{'device':>10}{'host':>10}")
        normal(group, buffer, args)
        low_latency(group, buffer, args)
        by_expert(group, args)
        buffer.destroy()


if __name__ == "__main__":
    main()
