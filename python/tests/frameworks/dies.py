# SPDX-License-Identifier: BSD-3-Clause
"""A model of which one rank dies of an exception that nobody catches, in a dispatch or between its layers of experts.

python dies.py GUILTY RANK FILE WHERE     # for both ranks; the file tells the port at which rank 0 has the store
"""

from __future__ import annotations

import pathlib
import sys
import time

import torch
import torch.distributed as dist

from xep.integrations.exchange import exchange_of


def store_of(rank: int, file: pathlib.Path) -> dist.TCPStore:
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
        file.with_suffix(".new").write_text(str(store.port))
        file.with_suffix(".new").rename(file)
        return store
    end = time.monotonic() + 60
    while not file.exists() and time.monotonic() < end:
        time.sleep(0.01)
    return dist.TCPStore("127.0.0.1", int(file.read_text()), 2, is_master=False)


def main() -> None:
    guilty, rank = int(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("gloo", store=store_of(rank, pathlib.Path(sys.argv[3])), rank=rank, world_size=2)
    exchange = exchange_of(dist.group.WORLD)
    x, idx = torch.ones((4, 8)), torch.arange(4).reshape(4, 1) % exchange.ranks
    weights = torch.ones((4, 1))
    for layer in range(3):
        if layer == 2 and rank == guilty:
            if sys.argv[4] == "attention":
                raise OSError("the attention of this rank is elsewhere")
            weights = weights.to("meta")
        rows, _, _, way = exchange.dispatch(x, idx, weights, exchange.ranks)
        exchange.combine(rows * 2, way)


if __name__ == "__main__":
    main()
