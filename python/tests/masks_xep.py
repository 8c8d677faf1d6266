# SPDX-License-Identifier: BSD-3-Clause
"""A rank of test_masks.py: ranks die, and xep goes on without them. Prints "I survived" on those that do."""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np
from oracle import inputs, owner_of

import xep

EXPERTS, TOPK, HIDDEN, TOKENS, TIMEOUT = 11, 3, 40, 17, 30


class Rounds:
    """Operations that are compared with plain loops, without the ranks that are out."""

    def __init__(self, group: xep.Group, buffer: xep.Buffer) -> None:
        self.group, self.buffer = group, buffer
        self.rank, self.nranks = group.rank, group.nranks

    def inputs(self, step: int, rank: int):
        return inputs(step, rank, TOKENS - rank, TOPK, EXPERTS, HIDDEN)

    def dispatch(self, step: int, out: set[int], begun: bool = False) -> xep.Handle:
        mine = self.inputs(step, self.rank)
        if begun:
            request = self.buffer.dispatch_async(mine.x, mine.topk_idx, mine.topk_weights)
            assert request.wait_counts().recv.rows >= 0
            handle = request.wait()
        else:
            handle = self.buffer.dispatch(mine.x, mine.topk_idx, mine.topk_weights)
        self.check_rows(step, handle, out)
        return handle

    def check_rows(self, step: int, handle: xep.Handle, out: set[int]) -> None:
        recv = handle.recv
        assert (recv.out is None) == (not out), (recv.out, out)
        assert not out or recv.out.tolist() == [int(rank in out) for rank in range(self.nranks)]
        for local in range(recv.local_experts):
            expert, row = recv.first_expert + local, int(recv.expert_begin[local])
            for source in range(self.nranks):
                sent = self.inputs(step, source)
                tokens = [] if source in out else np.flatnonzero((sent.topk_idx == expert).any(1))
                assert recv.pair_count[local, source] == len(tokens), (local, source)
                for token in tokens:
                    assert recv.src_token[row] == token and (recv.x[row] == sent.x[token]).all()
                    row += 1

    def combine(self, step: int, handle: xep.Handle, out: set[int], begun: bool = False) -> None:
        mine = self.inputs(step, self.rank)
        missing = np.full((len(mine.x), TOPK), 77, np.uint8)
        if begun:
            sums = handle.combine_async(handle.recv.x, missing=missing).wait()
        else:
            sums = handle.combine(handle.recv.x, missing=missing)
        for token, chosen in enumerate(mine.topk_idx):
            gone = [expert >= 0 and owner_of(int(expert), EXPERTS, self.nranks)[0] in out for expert in chosen]
            assert missing[token].tolist() == [int(one) for one in gone]
            weights = np.where((chosen >= 0) & ~np.array(gone), mine.topk_weights[token], 0)
            assert (sums[token] == weights.sum() * mine.x[token]).all()
        handle.release()

    def check_masks(self, out: set[int], reason: xep.OutReason) -> None:
        masks = self.group.mask_query()
        assert [mask.rank for mask in masks] == sorted(out) and all(mask.reason == reason for mask in masks)
        assert all(0 < mask.since_ns <= time.monotonic_ns() for mask in masks)


def killed(rounds: Rounds) -> None:
    """Ranks 1 and 3 before the same dispatch, rank 0 before a combine."""
    out: set[int] = set()
    for step in range(24):
        if step == 8 and rounds.rank in (1, 3):
            os.kill(os.getpid(), signal.SIGKILL)
        if step == 8:
            out = {1, 3}
        handle = rounds.dispatch(step, out, begun=bool(step % 2))
        if step == 16 and rounds.rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if step == 16:
            out = {0, 1, 3}
        rounds.combine(step, handle, out, begun=bool(step % 3))
    rounds.check_masks(out, xep.OutReason.DIED)
    rounds.group.barrier()


def asked(rounds: Rounds) -> None:
    """Rank 4 is well, and masked by rank 2. It is told, and nothing else happens to it."""
    assert rounds.group.mask_query() == []
    for wrong in (-1, rounds.nranks, "2", 1.5):
        try:
            rounds.group.mask_set(wrong)
        except ValueError as error:
            assert f"rank: expected an integer from 0 to {rounds.nranks - 1}, got {wrong!r}" in str(error)
        else:
            raise AssertionError(f"a mask for rank {wrong!r}")
    rounds.combine(0, rounds.dispatch(0, set()), set())
    rounds.group.barrier()
    if rounds.rank == 2:
        rounds.group.mask_set(4)
    try:
        rounds.group.barrier()
        for step in range(1, 9):  # from one of them on, which all agree on
            mine = rounds.inputs(step, rounds.rank)
            with rounds.buffer.dispatch(mine.x, mine.topk_idx, mine.topk_weights) as handle:
                out = set() if handle.recv.out is None else set(np.flatnonzero(handle.recv.out).tolist())
                rounds.check_rows(step, handle, out)
        assert out == {4}
    except xep.PeerError as error:
        assert rounds.rank == 4 and "this rank is out of the group" in error.reason, error
        print("I left", flush=True)
        return
    assert rounds.rank != 4
    rounds.check_masks({4}, xep.OutReason.ASKED if rounds.rank == 2 else rounds.group.mask_query()[0].reason)


def await_all(group: xep.Group) -> None:
    """Whoever has left the barrier may shrink the group at once, which ends it for those that are still in it."""
    try:
        group.barrier()
    except xep.AbortedError:
        pass


def shrunk(rounds: Rounds) -> None:
    """Ranks 1 and 3 die between operations; the others make a group of their own, twice, and use it."""
    old = rounds.group
    kept = rounds.dispatch(0, set())
    for wrong in (-1, rounds.nranks + 1, "2"):
        try:
            old.shrink(least=wrong)
        except ValueError as error:
            assert f"least: expected an integer from 0 to {rounds.nranks}, got {wrong!r}" in str(error)
        else:
            raise AssertionError(f"least {wrong!r} was taken")
    await_all(old)
    if rounds.rank in (1, 3):
        os.kill(os.getpid(), signal.SIGKILL)
    group = old.shrink(least=3)
    assert (group.origins, group.nranks, group.boot) == ([0, 2, 4], 3, "shrink"), group.origins
    assert [mask.rank for mask in old.mask_query()] == [1, 3]
    rounds.check_rows(0, kept, set())
    try:
        old.barrier()
    except xep.AbortedError:
        pass
    else:
        raise AssertionError("a barrier of a group that was shrunk")
    kept.release()
    old.close()
    fewer = Rounds(group, make_buffer(group, None))
    for step in range(5):
        fewer.combine(step, fewer.dispatch(step, set()), set())
    await_all(group)
    again = group.shrink()
    assert (again.origins, again.rank) == ([0, 1, 2], group.rank), again.origins
    group.close()
    last = Rounds(again, make_buffer(again, None))
    last.combine(7, last.dispatch(7, set()), set())
    again.close()


def make_buffer(group: xep.Group, on_failure: str | None) -> xep.Buffer:
    options = {} if on_failure is None else {"on_failure": on_failure}
    return group.buffer(
        EXPERTS, TOPK, HIDDEN, TOKENS, mode="ll", dtype="float32", combine_dtype="float32", slots=2, timeout=TIMEOUT,
        **options,
    )  # fmt: skip


def main() -> None:
    scenario = {"killed": killed, "asked": asked, "shrunk": shrunk}[sys.argv[1]]
    group = xep.Group(timeout=TIMEOUT)
    buffer = make_buffer(group, None if scenario is shrunk else "mask")
    rounds = Rounds(group, buffer)
    scenario(rounds)
    group.close()
    if not (scenario is asked and rounds.rank == 4):
        print("I survived", flush=True)


if __name__ == "__main__":
    main()
