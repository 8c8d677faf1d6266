# SPDX-License-Identifier: BSD-3-Clause
"""Groups that take processes in which no launcher has started."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest
from programs import SLOW

import xep

HERE = pathlib.Path(__file__).resolve().parent


@pytest.mark.parametrize("how", ["file", "called"])
def test_a_joiner(how, tmp_path):
    variables = {"PYTHONPATH": ":".join(sys.path), "XEP_LIBRARY": xep.library_info().library_path}
    program = [os.environ.get("XEP_TEST_FORKS", sys.executable), str(HERE / "grow_xep.py")]
    path = str(tmp_path / "address")
    options = {
        "env": {**os.environ, **variables},
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        "text": True,
    }
    with subprocess.Popen(["xep_run", "-n", "2", *program, "member", path, how], **options) as members:
        with subprocess.Popen([*program, "joiner", path, how], **options) as joiner:
            try:
                said = members.communicate(timeout=120 * SLOW)[0] + joiner.communicate(timeout=120 * SLOW)[0]
            finally:
                members.kill()
                joiner.kill()
    assert said.count("I grew") == 3, said
    assert not os.path.exists(path)
