# SPDX-License-Identifier: BSD-3-Clause
"""vLLM's CPU backend with the plugin.

Most of the time vLLM is imported and engines start. So it is imported once, in a process of which ranks are forks, and
one start of two ranks answers several rounds, of which each test looks at one. The example, last, has engines as users
have them: in processes of their own, with vLLM's coordinator.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from typing import Any, Optional

import entry_points
import forks
import programs
import pytest

import xep

HERE = pathlib.Path(__file__).resolve().parent
GROUP = "vllm.general_plugins"
UPSTREAM = HERE.parents[2] / "contrib" / "upstream"
EXAMPLE = HERE.parents[2] / "examples" / "moe_vllm.py"
pytestmark = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
IN_TIME = 200 * int(os.environ.get("XEP_TEST_SLOW", "1"))  # seconds for an engine to start, answer and end
NEW = 8  # tokens for each prompt
PROMPTS = [[1, 2, 3, 4, 5], [7, 8, 9], list(range(20, 90)), [11]]
IDLE_STEPS = int(os.environ.get("XEP_TEST_IDLE_STEPS", "120"))
PORTS = 10  # that vLLM keeps for the first rank of its data parallelism; each rank has as many of its own
LONG = 40  # tokens for each of the prompts of a rank beside which the other one has none, 8 at a time
MANY = [[number % 200 + 1, number // 200 + 1] for number in range(-(-IDLE_STEPS // LONG) * 8)]


@pytest.fixture(scope="module")
def plugins(tmp_path_factory):
    """With that of what tests do to it."""
    return [entry_points.install(tmp_path_factory.mktemp("plugins"), GROUP, "zz_tests = vllm_rank:register\n")]


@pytest.fixture(scope="module", autouse=True)
def imported():
    """By the process that ranks are forks of."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in dict(
            PYTHONPATH=":".join([str(HERE), *sys.path]), XEP_LIBRARY=xep.library_info().library_path,
            XEP_TIMEOUT=f"{2 * IN_TIME}s",  # what ends within our time does so for another reason
            OMP_NUM_THREADS="1", VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_CPU_KVCACHE_SPACE="1",
            VLLM_LOGGING_LEVEL=os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"), VLLM_NO_USAGE_STATS="1",
            VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_DP_MASTER_IP="127.0.0.1", HF_HUB_OFFLINE="1",
        ).items():  # fmt: skip
            patch.setenv(name, value)
        forks.preload(["vllm.entrypoints.llm", "vllm.v1.worker.cpu_worker", "vllm.model_executor.models.qwen3_moe"])
        yield


def alone_in_a_process(folder: pathlib.Path, function: str, *arguments: Any) -> None:
    process = forks.Forks(folder, [], {})
    process.start(function, *arguments)
    assert process.end(IN_TIME) == [0], process.written[0]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Of seven experts: folders, by kind."""
    path = tmp_path_factory.mktemp("models")
    alone_in_a_process(tmp_path_factory.mktemp("making"), "vllm_rank:make_models", str(path), 7)
    return path


@pytest.fixture(scope="module")
def model(models):
    return models / "qwen3_moe"


@dataclasses.dataclass
class Round:
    """prompts: of each rank. trouble: of each rank, a word of vllm_trouble.py. new: tokens for each prompt."""

    prompts: list
    trouble: tuple = ("", "")
    new: int = NEW


@dataclasses.dataclass
class Outcome:
    """tokens[round][rank]: None where there was no answer. written: by each rank."""

    tokens: list
    written: list

    def of(self, number: int) -> list:
        assert None not in self.tokens[number], "\n".join(text[-4000:] for text in self.written)
        return self.tokens[number]


def read(file: pathlib.Path) -> Optional[list]:
    return json.loads(file.read_text()) if file.exists() else None


def generate(
    folder: pathlib.Path, model, plugins: list, rounds: list, compiled=False, tensor=1, options=None, **environment
) -> Outcome:
    """tensor: ranks of a tensor-parallel group; prompts are for each group. options: of vLLM."""
    file, ranks = folder / "job.json", len(rounds[0].prompts) * tensor
    file.write_text(json.dumps(dict(
        ranks=ranks, tensor=tensor, options=options or {}, rounds=[dataclasses.asdict(each) for each in rounds],
        model=str(model), compiled=compiled, in_time=IN_TIME, ports=PORTS,
        port=programs.free_ports(PORTS * (1 + ranks)),
    )))  # fmt: skip
    started = forks.Forks(folder, plugins, dict(environment, XEP_TEST_TROUBLE=str(file)))
    for rank in range(ranks):
        started.start("vllm_rank:be_rank", file, rank)
    if None in started.end(IN_TIME):
        pytest.fail("\n".join(["a rank has not come to its end", *(text[-4000:] for text in started.written)]))
    tokens = [[read(folder / f"job.{number}.{rank}") for rank in range(ranks)] for number in range(len(rounds))]
    return Outcome(tokens, started.written)


@pytest.fixture(scope="module")
def alone_in_rounds(tmp_path_factory, model, plugins):
    rounds = [Round([PROMPTS]), Round([MANY], new=LONG)]
    return generate(tmp_path_factory.mktemp("alone"), model, plugins, rounds)


@pytest.fixture(scope="module")
def alone(alone_in_rounds):
    return alone_in_rounds.of(0)[0]


UNEVEN, EMPTY, IDLE, ROLLED, FAILED = range(5)
GUILTY = 0  # it has the store, which must not end before the other has heard


@pytest.fixture(scope="module")
def together(tmp_path_factory, model, plugins):
    """Two ranks."""
    rounds = [
        Round([PROMPTS[:1], PROMPTS[1:]]),
        Round([[], PROMPTS]),
        Round([[], MANY], new=LONG),
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


def test_a_rank_serves_while_it_has_no_prompts(together, alone_in_rounds):
    """In every step but those in which a buffer is made, and with every token of one process."""
    assert together.of(IDLE) == [[], alone_in_rounds.of(1)[0]]
    assert together.written[0].count("served a step") >= IDLE_STEPS
    assert sum("served a step" in text for text in together.written) == 1


def test_tokens_with_the_sums_of_others_differ(together, alone):
    """The control: what is compared above depends on what comes back from the experts."""
    found = together.of(ROLLED)[1]
    assert len(found) == len(alone) and all(one != other for one, other in zip(found, alone))


def test_an_exception_in_the_experts_of_one_rank_is_every_ranks(together):
    """Each rank ends, the other one with the reason, too."""
    assert together.tokens[FAILED] == [None, None]
    reason = "OSError: these experts are out of order"
    assert reason in together.written[GUILTY], together.written[GUILTY][-4000:]
    other = together.written[1 - GUILTY]
    assert f"RankError: rank {GUILTY} failed: {reason}" in other, other[-4000:]


def test_compiled(tmp_path, model, plugins, alone):
    one, three = generate(tmp_path, model, plugins, [Round([PROMPTS[:1], PROMPTS[1:]])], compiled=True).of(0)
    assert one + three == alone


def test_beside_tensor_parallelism(tmp_path, model, plugins, alone):
    """Two engines of two ranks each, which cut their tokens into two parts; with the control."""
    halves = [PROMPTS[:1], PROMPTS[1:]]
    rounds = [Round(halves, ("",) * 4), Round(halves, ("roll",) * 4)]
    outcome = generate(tmp_path, model, plugins, rounds, tensor=2)
    one, peer, three, other_peer = outcome.of(0)
    assert one + three == alone and [peer, other_peer] == [one, three]
    assert all(found != expected for found, expected in zip(outcome.of(1)[2], alone[1:]))


def test_beside_tensor_parallelism_without_parts(tmp_path_factory, models, plugins):
    """A model of which vLLM does not cut the tokens: the ranks of an engine dispatch the same ones. Their experts are
    dealt out in turn."""
    alone, together = (tmp_path_factory.mktemp(name) for name in ("mixtral_alone", "mixtral_together"))
    expected = generate(alone, models / "mixtral", plugins, [Round([PROMPTS])]).of(0)[0]
    rounds = [Round([PROMPTS[:1], PROMPTS[1:]], ("",) * 4)]
    options = dict(expert_placement_strategy="round_robin")
    outcome = generate(
        together, models / "mixtral", plugins, rounds, tensor=2, options=options, VLLM_LOGGING_LEVEL="INFO"
    )
    one, _, three, _ = outcome.of(0)
    assert one + three == expected
    assert "Expert placement strategy: round_robin" in outcome.written[0], outcome.written[0][-4000:]


def test_balanced_experts(tmp_path, model, plugins, alone):
    """Seven experts and a copy of one; they move every four steps. With the control: experts that do not move."""
    balance = dict(num_redundant_experts=1, window_size=4, step_interval=4, use_async=False, communicator="torch_gloo")
    halves = [PROMPTS[:1], PROMPTS[1:]]
    rounds = [Round(halves), Round(halves), Round(halves, ("stay", "stay"))]
    options = dict(enable_eplb=True, eplb_config=balance)
    outcome = generate(tmp_path, model, plugins, rounds, options=options)
    for number in (0, 1):
        one, three = outcome.of(number)
        assert one + three == alone
    moves = re.findall(r"^experts: (.*) -> (.*)$", outcome.written[0], re.M)
    assert sum(old != new for old, new in moves) >= 2, outcome.written[0][-4000:]
    assert outcome.of(2) != outcome.of(1)


def test_without_the_plugin(tmp_path, model, plugins):
    outcome = generate(tmp_path, model, plugins, [Round([PROMPTS[:1], PROMPTS[1:]])], XEP_VLLM="0")
    assert outcome.tokens == [[None, None]]
    assert all("NotImplementedError" in text for text in outcome.written), outcome.written[0][-4000:]


def test_the_change_for_upstream(tmp_path, model, plugins, alone):
    """contrib/upstream: vLLM without us, with the patch. The control is the test before this one."""
    if shutil.which("patch") is None:
        pytest.skip("there is no program patch")
    patch = UPSTREAM / "vllm-0.32-cpu-gatherv.patch"
    for name in re.findall(r"^\+\+\+ b/(\S+)", patch.read_text(), re.M):
        file = tmp_path / name
        file.parent.mkdir(parents=True)
        installed = pathlib.Path(importlib.util.find_spec("vllm").origin).parent.parent / name
        file.write_text(installed.read_text())
    subprocess.run(["patch", "-s", "-p1", "-i", str(patch)], cwd=tmp_path, check=True)
    variables = dict(XEP_VLLM="0", XEP_TEST_UPSTREAM=str(tmp_path))
    one, three = generate(tmp_path, model, plugins, [Round([PROMPTS[:1], PROMPTS[1:]])], **variables).of(0)
    assert one + three == alone


def test_what_is_refused(tmp_path):
    alone_in_a_process(tmp_path, "vllm_checks:what_is_refused")
    alone_in_a_process(tmp_path, "vllm_checks:who_serves")


def test_uneven_collectives(tmp_path):
    started = forks.Forks(tmp_path, [], {})
    for rank in range(3):
        started.start("vllm_checks:uneven_collectives", str(tmp_path), rank, 3)
    assert started.end(IN_TIME) == [0] * 3, started.written


def test_scales_of_cast_rows(tmp_path):
    started = forks.Forks(tmp_path, [], {})
    for rank in range(2):
        started.start("vllm_checks:scales_of_cast_rows", str(tmp_path), rank, 2)
    assert started.end(IN_TIME) == [0] * 2, started.written


def test_versions_and_the_switch(tmp_path):
    alone_in_a_process(tmp_path, "vllm_checks:versions_and_the_switch")


def test_example(tmp_path):
    """Small, with engines in processes of their own; of an odd number of prompts one engine gets more."""
    command = [sys.executable, str(EXAMPLE), *"--prompts 5 --length 40 --new 6 --hidden 64 --layers 2".split()]
    variables = dict(os.environ, PYTHONPATH=":".join([str(entry_points.install(tmp_path, GROUP)), *sys.path]))
    del variables["VLLM_ENABLE_V1_MULTIPROCESSING"]
    done = subprocess.run(
        [*command, "--limit", str(2 * IN_TIME)], env=variables, capture_output=True, text=True, timeout=3 * IN_TIME
    )
    assert done.returncode == 0, done.stderr[-8000:] + done.stdout
    assert re.search(r"^2 engines, over xep +\d+ +\d+ +\d+$", done.stdout, re.M), done.stdout
    assert "sequences with the same tokens: 5 of 5" in done.stdout
