# SPDX-License-Identifier: BSD-3-Clause
"""Integrations in processes of their own: what is imported, which versions are taken, how a job ends that fails."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest
from programs import run

from xep.integrations.versions import require

HERE = pathlib.Path(__file__).resolve().parent


def test_nothing_is_imported_unasked():
    run(
        """
        import sys, xep
        assert not any(name.startswith("xep.integrations") for name in sys.modules)
        import xep.integrations
        assert not {"torch", "transformers", "vllm", "megatron"} & set(sys.modules)
        """
    )


def test_versions():
    for version in ("5.23", "5.23.0", "5.23.1", "6.0.1"):
        require("anything", version, ("5.23", "6.0"))
    for version in ("5.22.0", "5.230", "5.24.0", "6.1", "unknown"):
        with pytest.raises(ImportError, match="anything: version .* not known to this integration"):
            require("anything", version, ("5.23", "6.0"))


def test_an_untested_version_on_request(monkeypatch):
    monkeypatch.setenv("XEP_UNTESTED", "1")
    with pytest.warns(RuntimeWarning, match=r"anything: version 9\.9 is not known"):
        require("anything", "9.9", ("5.23",))
    monkeypatch.setenv("XEP_UNTESTED", "0")
    with pytest.raises(ImportError, match="XEP_UNTESTED=1"):
        require("anything", "9.9", ("5.23",))


def test_an_unknown_transformers_is_refused():
    pytest.importorskip("transformers", reason="transformers is not installed")
    run(
        """
        import transformers
        transformers.__version__ = "5.99.0"
        try:
            import xep.integrations.transformers
        except ImportError as error:
            assert "transformers: version 5.99.0 is not known" in str(error), error
        else:
            raise SystemExit("it was taken")
        """
    )


def in_its_own_shared_memory(command: list[str]) -> list[str]:
    """The command; what it leaves in /dev/shm, and segments of System V, go to the end of its output. Where there are
    no new namespaces, without that."""
    space = ["unshare", "--ipc", "--mount"]
    if subprocess.run([*space, "true"], capture_output=True).returncode != 0:
        return command
    script = 'mount -t tmpfs tmpfs /dev/shm; "$@"; s=$?; echo "left: $(ls /dev/shm) $(ipcs -m | grep 0x)"; exit $s'
    return [*space, "sh", "-c", script, "sh", *command]


@pytest.mark.parametrize("guilty, where", [(0, "attention"), (1, "attention"), (0, "dispatch")])
def test_an_exception_nobody_catches_is_every_ranks(guilty, where, tmp_path):
    """And nothing is left behind. Rank 0 has the store, so that it must not end before it was heard."""
    pytest.importorskip("torch", reason="torch is not installed")
    script = """
        "$1" "$2" "$3" 0 "$4" "$5" 2>"$4.0" & first=$!
        "$1" "$2" "$3" 1 "$4" "$5" 2>"$4.1" & second=$!
        wait $first; echo "status $?"; wait $second; echo "status $?"
    """
    program = [sys.executable, str(HERE / "dies.py"), str(guilty), str(tmp_path / "port"), where]
    command = ["sh", "-c", script, "sh", *program]
    done = subprocess.run(in_its_own_shared_memory(command), capture_output=True, text=True, timeout=500)
    assert done.stdout.count("status 1") == 2, done
    assert done.stdout.count("left:") == 0 or done.stdout.rstrip().endswith("left:"), done
    said = [(tmp_path / f"port.{rank}").read_text() for rank in (0, 1)]
    reasons = {"attention": "OSError: the attention of this rank is elsewhere", "dispatch": "TypeError: weights: "}
    reason = reasons[where]
    assert reason in said[guilty]
    assert f"RankError: rank {guilty} failed: {reason}" in said[1 - guilty]
