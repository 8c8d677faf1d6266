#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Rows of a model that was trained, for test/bench/accuracy: what enters its feed-forward layers, and what leaves them.

activations.py TOP FILE [SECONDS, 150]: trains a transformer of 3 layers and 512 channels on the sources and documents
below TOP for so many seconds of the processor, and writes FILE.in and FILE.out, rows of bf16. Needs torch.
"""

from __future__ import annotations

import pathlib
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

WIDTH, LAYERS, LENGTH, HEADS = 512, 3, 96, 8


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.mixed = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = [part.unflatten(2, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.before(x)).chunk(3, -1)]
        seen = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.mixed(seen.transpose(1, 2).flatten(2))
        self.rows_in = self.between(x)
        self.rows_out = self.down(F.silu(self.gate(self.rows_in)) * self.up(self.rows_in))
        return x + self.rows_out


def main() -> None:
    top, file, seconds = pathlib.Path(sys.argv[1]), sys.argv[2], float((sys.argv[3:] or ["150"])[0])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    names = [name for pattern in ("*.md", "docs/**/*.md", "src/**/*.[ch]") for name in sorted(top.glob(pattern))]
    text = torch.tensor([byte for name in names for byte in name.read_bytes() if byte < 128])
    letters, places = nn.Embedding(128, WIDTH), nn.Embedding(LENGTH, WIDTH)
    layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
    head = nn.Sequential(nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 128, bias=False))
    weights = [weight for part in (letters, places, layers, head) for weight in part.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=1e-3, weight_decay=0.1)
    while time.process_time() < seconds:
        begins = torch.randint(0, len(text) - LENGTH - 1, (8,))
        batch = torch.stack([text[begin : begin + LENGTH + 1] for begin in begins])
        found = head(layers(letters(batch[:, :-1]) + places.weight))
        loss = F.cross_entropy(found.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
    print(f"loss {loss.item():.2f} a letter")
    for name in ("in", "out"):
        rows = torch.cat([getattr(layer, f"rows_{name}").detach().flatten(0, 1) for layer in layers])
        rows = rows[torch.randperm(len(rows))].to(torch.bfloat16)
        rows.view(torch.int16).numpy().tofile(f"{file}.{name}")
        print(f"{file}.{name}: {len(rows)} rows, largest {rows.abs().max():.2f}")


if __name__ == "__main__":
    main()
