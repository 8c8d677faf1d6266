# SPDX-License-Identifier: BSD-3-Clause
"""What the tests do to vLLM's experts, a rank at a time: the file of a rank has the word, as vllm_rank.py writes it.

roll: each token gets the sum of the one before it. raise: this rank has an exception in its experts. stay: experts that
are to move to other ranks stay where they are.
"""

from __future__ import annotations

import os
import pathlib

import torch
from vllm.distributed.eplb import eplb_state

import xep
from xep.integrations.vllm_all2all import XepAll2All, XepCommunicator

REASON = "these experts are out of order"


def word_of(rank: int) -> str:
    file = pathlib.Path(os.environ["XEP_TEST_TROUBLE"]).with_suffix(f".trouble.{rank}")
    return file.read_text() if file.exists() else ""


class Troubled(XepAll2All):
    def combine(self, hidden_states: torch.Tensor, is_sequence_parallel: bool = False) -> torch.Tensor:
        word = word_of(self.rank)
        if word == "raise":
            raise OSError(REASON)
        sums = super().combine(hidden_states, is_sequence_parallel)
        return sums.roll(1, 0) if word == "roll" else sums


class Communicator(XepCommunicator):
    def __init__(self, *arguments, **options) -> None:
        super().__init__(*arguments, **options)
        if isinstance(self.all2all_manager, XepAll2All):
            self.all2all_manager.__class__ = Troubled
            watch_experts(self.rank)
            watch_serving()


def watch_experts(rank: int) -> None:
    """Writes each move: the expert in each place of each layer, before and after it."""
    move = eplb_state.rearrange_expert_weights_inplace

    def moving(old: torch.Tensor, new: torch.Tensor, *arguments, **options) -> None:
        if word_of(rank) != "stay":
            print("experts:", old.tolist(), "->", new.tolist(), flush=True)
            move(old, new, *arguments, **options)

    eplb_state.rearrange_expert_weights_inplace = moving


def watch_serving() -> None:
    """Writes each step that this rank has served."""
    serve = xep.serve

    def serving(*arguments, **options) -> None:
        serve(*arguments, **options)
        print("served a step", flush=True)

    xep.serve = serving
