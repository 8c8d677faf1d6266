# SPDX-License-Identifier: BSD-3-Clause
"""A rank of test_masks.py: DeepEP's own scenario of enable_shrink. Rank 1 is gone at the first low_latency_dispatch,
rank 3 at the first low_latency_combine, rank 5 at the first clean_low_latency_buffer; after each of them the masks are
exactly these, and what the others receive and sum is what plain loops make of the ranks that are left.

masks_deep_ep.py how FOLDER
    killed    they kill themselves
    absent    they live, and do not call: until the others are done, when they are told that they are out
    masked    likewise, but rank 0 masks them, so that nobody waits for them
    destroyed they destroy their Buffer instead, which is no call that the others are in
"""

from __future__ import annotations

import os
import pathlib
import signal
import sys
import time

import torch
from oracle import inputs

import deep_ep
import xep

MOST, TOPK, HIDDEN = 24, 4, 256
GONE_AT = {"dispatch": 1, "combine": 3, "clean": 5}


class Gone(Exception):
    """This rank takes part no longer."""


class World:
    def __init__(self, how: str, folder: pathlib.Path) -> None:
        self.how, self.folder = how, folder
        ranks = int(os.environ["PMIX_SIZE"]) if "PMIX_SIZE" in os.environ else 8
        self.experts = 3 * ranks
        size = deep_ep.Buffer.get_low_latency_rdma_size_hint(MOST, HIDDEN, ranks, self.experts)
        self.buffer = deep_ep.Buffer(
            None, 0, size, low_latency_mode=True, enable_shrink=True, explicitly_destroy=True,
            timeout=(4 if how in ("absent", "destroyed") else 60) * int(os.environ.get("XEP_TEST_SLOW", "1")),
        )  # fmt: skip
        self.rank, self.size = self.buffer.rank, self.buffer.group_size
        assert self.size == ranks
        self.out: set[int] = set()

    def inputs(self, step: int, rank: int):
        """(x, topk_idx, topk_weights)"""
        sent = inputs(step, rank, MOST - rank, TOPK, self.experts, HIDDEN)
        return torch.from_numpy(sent.x).bfloat16(), torch.from_numpy(sent.topk_idx), torch.from_numpy(sent.topk_weights)

    def fail_at(self, call: str) -> None:
        """The first time: ranks fail when they first call it."""
        rank = GONE_AT[call]
        if rank in self.out:
            return
        self.out.add(rank)
        if self.rank == rank and self.how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.rank == rank:
            raise Gone
        if self.rank == 0 and self.how == "masked":
            self.buffer.low_latency_update_mask_buffer(rank, True)

    def next(self) -> int:
        return next((rank for rank in GONE_AT.values() if rank not in self.out), -1)

    def check_masks(self) -> None:
        status = torch.full((self.size,), 7, dtype=torch.int32)
        self.buffer.low_latency_query_mask_buffer(status)
        masked = {rank for rank in range(self.size) if status[rank] == 1}
        assert all(value in (0, 1) for value in status.tolist())
        if self.how != "masked":
            assert masked == self.out, (masked, self.out)
        else:  # rank 0 may be at the next one, and its mask is known everywhere
            assert self.out <= masked <= self.out | {self.next()}, (masked, self.out)
        assert {mask.rank for mask in self.buffer.masks()} >= masked

    def dispatch(self, step: int, how: str, fp8: bool):
        x, idx, _ = self.inputs(step, self.rank)
        if step > 0:
            self.fail_at("dispatch")
        rows, counts, handle, event, hook = self.buffer.low_latency_dispatch(
            x, idx, MOST, self.experts, use_fp8=fp8, async_finish=how == "event", return_recv_hook=how == "hook"
        )
        hook() if hook is not None else event.current_stream_wait() if how == "event" else None
        values = deep_ep.utils.per_token_cast_back(*rows) if fp8 else rows
        self.check_rows(step, values, counts, handle, 0.07 if fp8 else 0.0)
        return values.clone(), handle

    def check_rows(self, step: int, values: torch.Tensor, counts: torch.Tensor, handle, rtol: float) -> None:
        for local, layout in enumerate(handle[1].tolist()):
            expert, row = self.rank * len(handle[1]) + local, 0
            for source, packed in enumerate(layout):
                x, idx, _ = self.inputs(step, source)
                tokens = (idx == expert).any(1).nonzero().flatten()
                if source in self.out:
                    tokens = tokens[:0]
                assert (packed & 0xFFFFFFFF, packed >> 32) == (len(tokens), row), (expert, source)
                assert torch.equal(handle[0][local, row : row + len(tokens)].long(), tokens)
                assert torch.allclose(values[local, row : row + len(tokens)].float(), x[tokens].float(), rtol, 0)
                row += len(tokens)
            assert int(counts[local]) == row

    def combine(self, step: int, values: torch.Tensor, handle, how: str, zero_copy: bool, exact: bool) -> None:
        x, idx, weights = self.inputs(step, self.rank)
        if step > 0:
            self.fail_at("combine")
        answers = values
        if zero_copy:
            answers = self.buffer.get_next_low_latency_combine_buffer(handle)
            answers.copy_(values)
        combined, event, hook = self.buffer.low_latency_combine(
            answers, idx, weights, handle, zero_copy=zero_copy, out=torch.full_like(x, float("nan")),
            async_finish=how == "event", return_recv_hook=how == "hook",
        )  # fmt: skip
        hook() if hook is not None else event.current_stream_wait() if how == "event" else None
        here = (idx >= 0) & ~torch.isin(idx // (self.experts // self.size), torch.tensor(sorted(self.out)))
        wanted = weights.masked_fill(~here, 0.0).sum(1, keepdim=True) * x.float()
        if exact:
            assert torch.equal(combined, wanted.bfloat16())
        else:
            assert torch.allclose(combined.float(), wanted, rtol=0.07, atol=0.3)

    def clean(self) -> None:
        self.fail_at("clean")
        self.buffer.clean_low_latency_buffer(MOST, HIDDEN, self.experts)

    def step(self, step: int) -> None:
        how, fp8 = ("call", "hook", "event")[step % 3], step % 4 == 3
        values, handle = self.dispatch(step, how, fp8)
        self.check_masks()
        self.combine(step, values, handle, how, zero_copy=step % 2 == 0, exact=not fp8)
        self.check_masks()

    def play(self) -> None:
        for step in range(12):
            if step == 2:
                self.clean()
                self.check_masks()
            self.step(step)
        assert self.out == {1, 3, 5}
        self.refuses_to_unmask()

    def refuses_to_unmask(self) -> None:
        self.buffer.low_latency_update_mask_buffer(0, False)  # is not masked
        for call in (
            lambda: self.buffer.low_latency_update_mask_buffer(3, False),
            self.buffer.low_latency_clean_mask_buffer,
        ):
            try:
                call()
            except NotImplementedError as error:
                assert "is out and cannot come back into this group" in str(error)
            else:
                raise AssertionError("a rank that is out came back")

    def told(self) -> None:
        """One that lives, and was left out, after the others have come to their end."""
        end = time.monotonic() + 100 * int(os.environ.get("XEP_TEST_SLOW", "1"))
        while len(list(self.folder.iterdir())) < self.size - len(GONE_AT) and time.monotonic() < end:
            time.sleep(0.01)
        x, idx, _ = self.inputs(0, self.rank)
        try:
            self.buffer.low_latency_dispatch(x, idx, MOST, self.experts)
        except xep.PeerError as error:
            assert "this rank is out of the group" in error.reason
        else:
            raise AssertionError("a rank that is out has dispatched")


def main() -> None:
    world = World(sys.argv[1], pathlib.Path(sys.argv[2]))
    try:
        world.play()
        (world.folder / str(world.rank)).touch()
        end = "I survived"
    except Gone:
        if world.how != "destroyed":
            world.told()
        end = "I left"
    except xep.PeerError as error:  # rank 0, which is ahead, has masked this one before it was at its call
        assert world.how == "masked" and world.rank in GONE_AT.values(), error
        assert "this rank is out of the group" in error.reason
        world.told()
        end = "I left"
    world.buffer.destroy()
    print(end, flush=True)


if __name__ == "__main__":
    main()
