# SPDX-License-Identifier: BSD-3-Clause
"""Ranks that die, are silent or are masked, and the others, which go on: programs of ranks, started here."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest
from programs import SLOW

import xep

pytestmark = pytest.mark.again
HERE = pathlib.Path(__file__).resolve().parent


WAYS = {"mapped": {}, "wire": {"XEP_MAP": "never", "UCX_TLS": "tcp,self"}}


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """How bytes travel: by memory that ranks map, or over sockets."""
    for name, value in WAYS[request.param].items():
        monkeypatch.setenv(name, value)


def survive(ranks: int, survivors: int, left: int, program: str, *arguments: str) -> None:
    """So many of the ranks print that they have survived, and that they were left out and have come to their end."""
    variables = {"PYTHONPATH": ":".join(sys.path), "XEP_LIBRARY": xep.library_info().library_path}
    python = os.environ.get("XEP_TEST_FORKS", sys.executable)
    command = ["xep_run", "-k", "-n", str(ranks), python, str(HERE / program), *arguments]
    done = subprocess.run(
        command,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120 * SLOW,
    )
    said = done.stdout
    assert (said.count("I survived"), said.count("I left")) == (survivors, left), said


@pytest.mark.usefixtures("way")
def test_ranks_are_killed():
    survive(5, 2, 0, "masks_xep.py", "killed")


@pytest.mark.usefixtures("way")
def test_the_rest_makes_a_group():
    survive(5, 3, 0, "masks_xep.py", "shrunk")


@pytest.mark.usefixtures("way")
def test_a_rank_is_masked():
    survive(5, 4, 1, "masks_xep.py", "asked")


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(("how", "left"), [("killed", 0), ("absent", 3), ("masked", 3)])
def test_the_scenario_of_deep_ep(how, left, tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    survive(8, 5, left, "masks_deep_ep.py", how, str(tmp_path))


def test_ranks_that_destroy_their_buffer_instead(tmp_path):
    """They have not come to the call that the others are in."""
    pytest.importorskip("torch", reason="torch is not installed")
    survive(8, 5, 3, "masks_deep_ep.py", "destroyed", str(tmp_path))
