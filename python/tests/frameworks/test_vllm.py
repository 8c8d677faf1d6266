# SPDX-License-Identifier: BSD-3-Clause
"""vLLM's CPU backend with the plugin, as its users have it: engines in processes of their own.

Most of the time engines start. So one start of two ranks answers several rounds, of which each test looks at one.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import textwrap
from typing import Optional

import pytest

import xep

tomllib = pytest.importorskip("tomllib", reason="needs Python 3.11")

HERE = pathlib.Path(__file__).resolve().parent
pytestmark = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
IN_TIME = 200 * int(os.environ.get("XEP_TEST_SLOW", "1"))  # seconds for an engine to start, answer and end
NEW = 8  # tokens for each prompt
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
    """A folder in which vLLM finds the entry point that an installed xep has, and that of what tests do to it."""
    project = tomllib.loads((HERE.parent.parent / "pyproject.toml").read_text())["project"]
    entry = project["entry-points"]["vllm.general_plugins"]["xep"]
    folder = tmp_path_factory.mktemp("plugins")
    (folder / "tests_of_xep-0.dist-info").mkdir()
    (folder / "tests_of_xep-0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: tests_of_xep\n")
    (folder / "tests_of_xep-0.dist-info" / "entry_points.txt").write_text(
        f"[vllm.general_plugins]\nxep = {entry}\nzz_tests = vllm_rank:register\n"
    )
    return f"{folder}:{HERE}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclasses.dataclass
class Round:
    """prompts: of each rank. trouble: of each rank, a word of vllm_trouble.py."""

    prompts: list
    trouble: tuple = ("", "")


@dataclasses.dataclass
class Outcome:
    """tokens[round][rank]: None where there was no answer. written[rank]: by all its processes."""

    tokens: list
    written: list

    def of(self, number: int) -> list:
        assert None not in self.tokens[number], "\n".join(text[-4000:] for text in self.written)
        return self.tokens[number]


def read(file: pathlib.Path) -> Optional[list]:
    return json.loads(file.read_text()) if file.exists() else None


def generate(folder: pathlib.Path, model, plugins: str, rounds: list, compiled=False, **environment) -> Outcome:
    """A deadline of xep that is longer than ours: what ends sooner does so for another reason."""
    file, ranks = folder / "job.json", len(rounds[0].prompts)
    variables = dict(
        os.environ, PYTHONPATH=":".join([plugins, *sys.path]), XEP_LIBRARY=xep.library_info().library_path,
        XEP_TIMEOUT=f"{2 * IN_TIME}s", XEP_TEST_TROUBLE=str(file), **environment,
    )  # fmt: skip
    file.write_text(json.dumps(dict(
        ranks=ranks, rounds=[dataclasses.asdict(each) for each in rounds], model=str(model), compiled=compiled, new=NEW,
        port=free_port(), in_time=IN_TIME,
    )))  # fmt: skip
    logs = [folder / f"log.{rank}" for rank in range(ranks)]
    started = []
    for rank in range(ranks):
        with open(logs[rank], "w") as log:
            command = [sys.executable, str(HERE / "vllm_rank.py"), str(file), str(rank)]
            started.append(subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, env=variables
            ))  # fmt: skip
    try:
        for process in started:
            process.wait(IN_TIME)
    except subprocess.TimeoutExpired:
        pytest.fail("\n".join(["a rank has not come to its end", *(log.read_text()[-4000:] for log in logs)]))
    finally:
        for process in started:  # engines and workers are in its session
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
    tokens = [[read(folder / f"job.{number}.{rank}") for rank in range(ranks)] for number in range(len(rounds))]
    return Outcome(tokens, [log.read_text() for log in logs])


@pytest.fixture(scope="module")
def alone(tmp_path_factory, model, plugins):
    return generate(tmp_path_factory.mktemp("alone"), model, plugins, [Round([PROMPTS])]).of(0)[0]


UNEVEN, EMPTY, ROLLED, FAILED = range(4)
GUILTY = 0  # it has the store, which must not end before the other has heard


@pytest.fixture(scope="module")
def together(tmp_path_factory, model, plugins):
    """Seven experts on two ranks."""
    rounds = [
        Round([PROMPTS[:1], PROMPTS[1:]]),
        Round([[], PROMPTS]),
        Round([[], PROMPTS], ("roll", "roll")),
        Round([PROMPTS[:1], PROMPTS[1:]], tuple("raise" if rank == GUILTY else "" for rank in range(2))),
    ]
    return generate(tmp_path_factory.mktemp("together"), model, plugins, rounds)


def test_the_tokens_are_those_of_one_process(together, alone):
    """The ranks have one prompt and three."""
    one, three = together.of(UNEVEN)
    assert one + three == alone
    assert len(alone) == len(PROMPTS) and all(len(tokens) == NEW for tokens in alone)


def test_a_rank_without_prompts(together, alone):
    assert together.of(EMPTY) == [[], alone]


def test_tokens_with_the_sums_of_others_differ(together, alone):
    """The control: what is compared above depends on what comes back from the experts."""
    found = together.of(ROLLED)[1]
    assert len(found) == len(alone) and all(one != other for one, other in zip(found, alone))


def test_an_exception_in_the_experts_of_one_rank_is_every_ranks(together):
    """vLLM catches it, and ends its engine; the other rank's engine ends too, and has the reason."""
    assert together.tokens[FAILED] == [None, None]
    reason = "OSError: these experts are out of order"
    assert reason in together.written[GUILTY], together.written[GUILTY][-4000:]
    other = together.written[1 - GUILTY]
    assert f"RankError: rank {GUILTY} failed: {reason}" in other, other[-4000:]


def test_compiled(tmp_path, model, plugins, alone):
    one, three = generate(tmp_path, model, plugins, [Round([PROMPTS[:1], PROMPTS[1:]])], compiled=True).of(0)
    assert one + three == alone


def test_without_the_plugin(tmp_path, model, plugins):
    outcome = generate(tmp_path, model, plugins, [Round([PROMPTS[:1], PROMPTS[1:]])], XEP_VLLM="0")
    assert outcome.tokens == [[None, None]]
    assert all("NotImplementedError" in text for text in outcome.written), outcome.written[0][-4000:]


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
