# SPDX-License-Identifier: BSD-3-Clause
"""The smallest program: each token goes to one expert; expert e multiplies what it gets by e + 1."""

import numpy as np
import xep

TOKENS, HIDDEN, EXPERTS = 4, 16, 8
x = np.ones((TOKENS, HIDDEN), np.float32)
expert = np.array([[0], [2], [4], [6]])  # of each token: its only expert, as topk is 1

with xep.Group() as group:
    with group.buffer(EXPERTS, 1, HIDDEN, TOKENS, dtype="float32", combine_dtype="float32") as buffer:
        with buffer.dispatch(x, expert) as handle:
            recv = handle.recv  # views into the buffer: no copy
            y = handle.combine_input()  # the other ranks read the results from here
            y[:] = recv.x * (recv.first_expert + recv.topk_idx + 1)
            rows = len(recv.x)
            del recv, y  # views end before the handle does
            out = handle.combine()
    print(f"{rows} rows for my experts; my token 3 came back as {out[3, 0]:g}")
