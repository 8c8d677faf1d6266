# SPDX-License-Identifier: BSD-3-Clause
"""vLLM's CPU backend with the plugin, as its users have it: engines in processes of their own."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import textwrap

import pytest

import xep

tomllib = pytest.importorskip("tomllib", reason="needs Python 3.11")

HERE = pathlib.Path(__file__).resolve().parent
pytestmark = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
IN_TIME = 500  # seconds for an engine to start, answer and end
PROMPTS = [[1, 2, 3, 4, 5], [7, 8, 9], list(range(20, 90)), [11]]


def run(program: str) -> None:
    """Importing vLLM alone takes long on a machine that is busy."""
    variables = dict(os.environ, PYTHONPATH=":".join(sys.path), XEP_LIBRARY=xep.library_info().library_path)
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=IN_TIME)
    assert done.returncode == 0, done.stderr + done.stdout


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    run(f"import sys; sys.path.insert(0, {str(HERE)!r}); import vllm_rank; vllm_rank.make_model({str(path)!r}, 7)")
    return path


@pytest.fixture(scope="module")
def plugins(tmp_path_factory):
    """A folder in which vLLM finds the entry point that an installed xep has, and that of the control."""
    project = tomllib.loads((HERE.parent.parent / "pyproject.toml").read_text())["project"]
    entry = project["entry-points"]["vllm.general_plugins"]["xep"]
    folder = tmp_path_factory.mktemp("plugins")
    (folder / "tests_of_xep-0.dist-info").mkdir()
    (folder / "tests_of_xep-0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: tests_of_xep\n")
    (folder / "tests_of_xep-0.dist-info" / "entry_points.txt").write_text(
        f"[vllm.general_plugins]\nxep = {entry}\nroll = vllm_roll:register\n"
    )
    return f"{folder}:{HERE}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def generate(folder: pathlib.Path, model, plugins: str, prompts: list[list], environment=None, **job):
    """prompts: of each rank. (tokens of each rank, or None where one failed; what all wrote)"""
    variables = dict(
        os.environ, PYTHONPATH=":".join([plugins, *sys.path]), XEP_LIBRARY=xep.library_info().library_path,
        **(environment or {}),
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "job.json"
    file.write_text(json.dumps(dict(
        {"prompts": prompts, "model": str(model), "dtype": "float32", "compiled": False, "new": 8, "port": free_port()},
        **job,
    )))  # fmt: skip
    ranks = []
    for rank in range(len(prompts)):
        with open(folder / f"log.{rank}", "w") as log:
            command = [sys.executable, str(HERE / "vllm_rank.py"), str(file), str(rank)]
            ranks.append(subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, env=variables
            ))  # fmt: skip
    try:
        for process in ranks:
            process.wait(IN_TIME)
    finally:
        for process in ranks:  # engines and workers are in its session
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
    written = "".join((folder / f"log.{rank}").read_text() for rank in range(len(prompts)))
    answers = [folder / f"job.{rank}" for rank in range(len(prompts))]
    if not all(answer.exists() for answer in answers):
        return None, written
    return [json.loads(answer.read_text())["tokens"] for answer in answers], written


@pytest.fixture(scope="module")
def alone(tmp_path_factory, model, plugins):
    tokens, written = generate(tmp_path_factory.mktemp("alone"), model, plugins, [PROMPTS])
    assert tokens is not None, written[-4000:]
    return tokens[0]


@pytest.mark.parametrize("compiled", [False, True])
def test_the_tokens_are_those_of_one_process(tmp_path, model, plugins, alone, compiled):
    """Seven experts on two ranks, which have one prompt and three."""
    tokens, written = generate(tmp_path, model, plugins, [PROMPTS[:1], PROMPTS[1:]], compiled=compiled)
    assert tokens is not None, written[-4000:]
    assert tokens[0] + tokens[1] == alone


def test_a_rank_without_prompts_and_the_control(tmp_path, model, plugins, alone):
    tokens, written = generate(tmp_path / "right", model, plugins, [[], PROMPTS])
    assert tokens is not None, written[-4000:]
    assert tokens == [[], alone]
    tokens, written = generate(tmp_path / "rolled", model, plugins, [[], PROMPTS], {"XEP_TEST_ROLL": "1"})
    assert tokens is not None, written[-4000:]
    assert tokens[1] != alone


def test_without_the_plugin(tmp_path, model, plugins):
    tokens, written = generate(tmp_path, model, plugins, [PROMPTS[:1], PROMPTS[1:]], {"XEP_VLLM": "0"})
    assert tokens is None and "NotImplementedError" in written, written[-4000:]


def test_what_is_refused():
    run(
        """
        import types, xep.integrations.vllm_all2all as integration

        def refusal(lora=None, **changed):
            parallel = dict(tensor_parallel_size=1, pipeline_parallel_size=1, enable_eplb=False, enable_dbo=False,
                            expert_placement_strategy="linear", **{})
            parallel.update(changed)
            return integration._refusal(types.SimpleNamespace(
                parallel_config=types.SimpleNamespace(**parallel), lora_config=lora))

        assert refusal() is None
        for name, value in (("tensor_parallel_size", 2), ("pipeline_parallel_size", 2), ("enable_eplb", True),
                            ("enable_dbo", True), ("expert_placement_strategy", "round_robin")):
            assert name in refusal(**{name: value}) and str(value) in refusal(**{name: value})
        assert "enable_lora" in refusal(lora=object())
        """
    )


def test_versions_and_the_switch():
    """An unknown version turns it off, with a warning; it is an error where it was asked for."""
    run(
        """
        import logging, os, vllm, xep.integrations.vllm as integration
        from vllm.platforms import current_platform
        own = current_platform.get_device_communicator_cls()
        said = []
        logger = logging.getLogger("vllm.plugins.xep")
        logger.addFilter(lambda record: said.append(record.getMessage()) or False)
        known, vllm.__version__ = vllm.__version__, "0.99.0"
        integration.register()
        assert current_platform.get_device_communicator_cls() == own and "0.99.0" in said[0], said
        os.environ["XEP_VLLM"] = "1"
        try:
            integration.register()
            raise SystemExit("it was taken")
        except ImportError as error:
            assert "vllm: version 0.99.0 is not known" in str(error)
        vllm.__version__ = known
        os.environ["XEP_VLLM"] = "0"
        integration.register()
        assert current_platform.get_device_communicator_cls() == own
        del os.environ["XEP_VLLM"]
        integration.register()
        assert "xep" in current_platform.get_device_communicator_cls()
        """
    )
