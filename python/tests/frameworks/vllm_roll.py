# SPDX-License-Identifier: BSD-3-Clause
"""A plugin of the tests, for the control: with XEP_TEST_ROLL each token gets the sum of the one before it."""

from __future__ import annotations

import os


def register() -> None:
    if os.environ.get("XEP_TEST_ROLL") != "1":
        return
    from xep.integrations import vllm_all2all

    combine = vllm_all2all.XepAll2All.combine

    def rolled(self, hidden_states, is_sequence_parallel=False):
        return combine(self, hidden_states, is_sequence_parallel).roll(1, 0)

    vllm_all2all.XepAll2All.combine = rolled
