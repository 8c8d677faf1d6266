# SPDX-License-Identifier: BSD-3-Clause
"""What fork_server.py runs is as if an interpreter had been started for it, and ends with who asked."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

FILE = pathlib.Path(__file__).resolve().with_name("fork_server.py")
WAIT = 60 * int(os.environ.get("XEP_TEST_SLOW", "1"))
WHO = """
import colorsys, os, sys
print(sys.argv, os.getcwd(), os.environ.get("OF_ITS_OWN"), "/of/its/own" in sys.path, __name__, sys.stdin.read())
print(os.getpid() == os.getsid(0), sorted(os.sched_getaffinity(0)), sys.path[0], file=sys.stderr)
"""


@pytest.fixture(scope="module")
def socket(tmp_path_factory):
    path = tmp_path_factory.mktemp("forks") / "socket"
    server = subprocess.Popen([sys.executable, FILE, "serve", path, "colorsys"])
    yield path
    assert server.poll() is None
    server.terminate()
    server.wait(WAIT)


def command(socket: pathlib.Path, *arguments: str) -> list[str]:
    return [sys.executable, "-I", "-S", str(FILE), "run", str(socket), *arguments]


def play(socket: pathlib.Path, *arguments: str, **options) -> subprocess.CompletedProcess:
    options = {"capture_output": True, "text": True, "timeout": WAIT, **options}
    return subprocess.run(command(socket, *arguments), **options)


def is_fork(socket: pathlib.Path, *before: str, **variables: str) -> bool:
    """The first imports colorsys as the server does; an interpreter of its own does not have it."""
    program = "import sys; print('colorsys' in sys.modules)"
    said = play(socket, *before, "-c", program, env={**os.environ, **variables}, check=True).stdout
    return {"True\n": True, "False\n": False}[said]


def await_end(pid: int) -> None:
    end = time.monotonic() + WAIT
    while os.path.exists(f"/proc/{pid}"):
        assert time.monotonic() < end, f"process {pid} is still there"
        time.sleep(0.01)


@pytest.mark.parametrize("way", ["script", "-c"])
def test_it_is_as_if_started(socket, way, tmp_path):
    script = tmp_path / "who.py"
    script.write_text(WHO)
    program = [str(script)] if way == "script" else ["-c", WHO]
    one = min(os.sched_getaffinity(0))
    options = {
        "cwd": tmp_path,
        "input": "said",
        "env": {**os.environ, "OF_ITS_OWN": "seen", "PYTHONPATH": "/of/its/own"},
        "preexec_fn": lambda: os.sched_setaffinity(0, [one]),
        "check": True,
    }
    forked = play(socket, *program, "one", "-two", **options)
    started = subprocess.run(
        [sys.executable, *program, "one", "-two"], capture_output=True, text=True, start_new_session=True, **options
    )
    assert (forked.stdout, forked.stderr) == (started.stdout, started.stderr)
    assert "seen True __main__ said" in forked.stdout and f"True [{one}]" in forked.stderr


def test_a_module(socket):
    assert play(socket, "-m", "json.tool", "--compact", input='{"a": [1, 2]}', check=True).stdout == '{"a":[1,2]}\n'


@pytest.mark.parametrize(
    ("program", "status", "said"),
    [
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit('what is wrong')", 1, "what is wrong\n"),
        ("raise SystemExit", 0, ""),
        ("import os; os._exit(9)", 9, ""),
        ("import os; os.kill(os.getpid(), 9)", -9, ""),
        ("import os; os.abort()", -6, ""),
        ("{}[1]", 1, 'Traceback (most recent call last):\n  File "<string>", line 1, in <module>\nKeyError: 1\n'),
        ("import atexit, sys; atexit.register(sys.stderr.write, 'the end'); sys.exit(2)", 2, "the end"),
        ("class Kept:\n def __del__(self): sys.stderr.write('freed')\nimport sys; kept = Kept()", 0, "freed"),
    ],
)
def test_ends(socket, program, status, said):
    done = play(socket, "-c", program)
    assert (done.returncode, done.stderr, done.stdout) == (status, said, "")


def test_what_has_to_be_there_from_the_start(socket):
    assert is_fork(socket) and is_fork(socket, "-u") and is_fork(socket, ANYTHING="else")
    assert not is_fork(socket, "-O")
    assert not is_fork(socket, LD_LIBRARY_PATH="/nowhere") and not is_fork(socket, PYTHONHASHSEED="3")


SLEEP = "import os, time; print(os.getpid(), flush=True); time.sleep(1000)"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_reach_it(socket, number):
    with subprocess.Popen(command(socket, "-c", SLEEP), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as asks:
        pid = int(asks.stdout.readline())
        asks.send_signal(number)
        said = asks.stderr.read()
        assert asks.wait(WAIT) == (1 if number == signal.SIGINT else -number)
        assert said.endswith(b"KeyboardInterrupt\n") == (number == signal.SIGINT)
    await_end(pid)


def test_it_ends_with_who_asked_and_takes_its_own_along(socket):
    program = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}])\n{SLEEP}"
    with subprocess.Popen(command(socket, "-c", program), stdout=subprocess.PIPE) as asks:
        pids = [int(asks.stdout.readline()) for _ in range(2)]
        asks.kill()
    for pid in pids:
        await_end(pid)


def test_what_it_leaves_behind_ends(socket):
    program = f"""
import subprocess, sys
left = subprocess.Popen([sys.executable, '-c', {SLEEP!r}], stdout=subprocess.PIPE)
print(left.stdout.readline().decode())
"""
    with subprocess.Popen(command(socket, "-c", program), stdout=subprocess.PIPE) as asks:
        pid = int(asks.stdout.readline())
        assert asks.wait(WAIT) == 0
    await_end(pid)


def test_it_ends_with_the_server(tmp_path):
    path = tmp_path / "socket"
    with subprocess.Popen([sys.executable, FILE, "serve", path]) as server:
        with subprocess.Popen(command(path, "-c", SLEEP), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as asks:
            pid = int(asks.stdout.readline())
            server.kill()
            assert asks.wait(WAIT) == 1 and b"the server is gone" in asks.stderr.read()
    await_end(pid)


def test_a_module_that_starts_threads_is_refused(tmp_path):
    (tmp_path / "starts_threads.py").write_text("import threading; threading.Timer(1, print).start()")
    done = subprocess.run(
        [sys.executable, FILE, "serve", tmp_path / "socket", "starts_threads"],
        capture_output=True, text=True, timeout=WAIT, env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 1 and "2 threads after the imports" in done.stderr
