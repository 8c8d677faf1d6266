# SPDX-License-Identifier: BSD-3-Clause
"""
Times the two products of experts whose rows come at once, or in parts, on one CUDA device, by torch:

    python3 test/bench/product_parts.py [EXPERTS ROWS HIDDEN INTERMEDIATE]

Each part reads the weights of all experts: what it costs to begin before all rows are here.
"""

import sys
from collections.abc import Callable

import torch


def time_us(call: Callable[[], None], count: int = 10) -> float:
    for _ in range(3):
        call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(count):
        call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3 / count


def main(experts: int = 64, rows: int = 512, hidden: int = 7168, intermediate: int = 2048) -> None:
    make = {"dtype": torch.bfloat16, "device": "cuda"}
    up = torch.randn(experts, hidden, 2 * intermediate, **make)
    down = torch.randn(experts, intermediate, hidden, **make)
    x = torch.randn(experts, rows, hidden, **make)
    for parts in (1, 2, 4, 8):
        inputs = [part.contiguous() for part in x.chunk(parts, dim=1)]

        def products(inputs: list[torch.Tensor] = inputs) -> None:
            for part in inputs:
                middle = torch.bmm(part, up)[:, :, :intermediate].contiguous()
                torch.bmm(middle, down)

        print(f"{experts} experts of {rows} rows in {parts} parts: {time_us(products):8.1f} us", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
