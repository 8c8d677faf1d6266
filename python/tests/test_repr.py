# SPDX-License-Identifier: BSD-3-Clause
"""What objects, and errors of the interpreter, say to a user; the program that pydoc shows."""

from __future__ import annotations

import re
import textwrap

import numpy as np
import pytest
from programs import run

import xep


def test_objects_say_what_they_are():
    group = xep.Group()
    assert re.fullmatch(r"<xep.Group: rank 0 of 1, \w+>", repr(group))
    buffer = group.buffer(4, 2, 32, 6, dtype="float32", slots=3)
    text = "<xep.Buffer: 4 experts, topk 2, hidden 32, 6 tokens, FP32, combine BF16, 3 slots, of <xep.Group: rank 0 of"
    assert repr(buffer).startswith(text)
    handle = buffer.dispatch(np.ones((6, 32), np.float32), np.zeros((6, 2), np.int64))
    received = handle.recv
    assert repr(handle) == "<xep.Handle: 6 tokens, 6 rows received>"
    assert repr(received) == "<xep.Received: 6 rows of 32 FP32, BY_RANK, topk 2, 4 experts from 0 on>"
    handle.release()
    assert repr(handle) == "<xep.Handle: 6 tokens, released>" and "6 rows of 32" in repr(received)
    buffer.close()
    group.close()
    assert repr(buffer) == "<xep.Buffer: closed>" and repr(group).endswith(", closed>")


def test_pydoc_shows_a_whole_program():
    program = re.search(r"\n\n((?:    .*\n|\n)+)", xep.__doc__)[1]
    run(textwrap.dedent(program) + "\nassert (out == 4 * x).all() or (out == 2 * x).all()\n")


def test_the_interpreter_names_the_call():
    deep_ep = pytest.importorskip("deep_ep", reason="torch is not installed")
    for call in (deep_ep.Buffer.dispatch, deep_ep.Buffer.low_latency_combine, deep_ep.ElasticBuffer.combine):
        with pytest.raises(TypeError, match=rf"^{call.__name__}\(\) got an unexpected keyword argument 'worst'"):
            call(None, worst=3)
    for made in (deep_ep.Buffer, deep_ep.ElasticBuffer):
        with pytest.raises(
            TypeError, match=rf"^{made.__name__}.__init__\(\) got an unexpected keyword argument 'worst'"
        ):
            made(worst=3)
