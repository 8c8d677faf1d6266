# SPDX-License-Identifier: BSD-3-Clause
"""A program's own spans: beside those of the library in the trace, nothing without one."""

import json
import os
import subprocess
import sys

import pytest
from programs import SLOW

import xep

PROGRAM = """
import numpy as np
import xep

@xep.span("a decorated function")
def twice(n):
    return twice(n - 1) if n else None

before = xep.span("before there is a group")
with before:
    pass
x = np.ones((4, 16), np.float32)
with xep.Group() as group:
    with group.buffer(4, 1, 16, 4, dtype="float32", combine_dtype="float32") as buffer:
        with xep.span("layer"):
            with buffer.dispatch(x, np.arange(4)[:, None]) as handle:
                with xep.span("experts \u00e4"):
                    y = handle.combine_input()
                    y[:] = handle.recv.x
                    del y
                handle.combine()
        twice(2)
        try:
            with xep.span("raises"):
                raise KeyError
        except KeyError:
            pass
"""


def test_spans_beside_the_library(tmp_path):
    trace = tmp_path / "trace.json"
    environment = {**os.environ, "XEP_TRACE": str(trace)}
    subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True, timeout=60 * SLOW)
    subprocess.run(["xep_trace", "merge", str(trace)], check=True, timeout=60 * SLOW)
    spans = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    own = [event["name"] for event in spans if event["cat"] == "span"]
    assert sorted(own) == ["a decorated function"] * 3 + ["experts \u00e4", "layer", "raises"]
    (layer,) = (event for event in spans if event["name"] == "layer")
    inside = {
        event["name"]
        for event in spans
        if event["tid"] == layer["tid"]
        and layer["ts"] <= event["ts"]
        and event["ts"] + event["dur"] <= layer["ts"] + layer["dur"]
    }
    assert {"dispatch", "experts \u00e4", "combine"} <= inside


def test_without_a_trace():
    with xep.span("nothing") as span:
        assert span._begin == 0


@pytest.mark.parametrize("name", [None, 3, b"bytes", "a\0b"])
def test_names_that_are_none(name):
    with pytest.raises(TypeError, match="invalid name of a span: .* .a str without null characters."):
        xep.span(name)
