# SPDX-License-Identifier: BSD-3-Clause
"""An interpreter that has imported what takes long, and forks what would each import it again: the ranks of a test.

fork_server.py serve SOCKET MODULE...       imports them and serves, until it is ended
fork_server.py run SOCKET [ARGUMENT...]     as `python ARGUMENT...`; started by the interpreter that is meant

What is run gets arguments, environment, folder, processors and the standard files of the process that asks, which
passes signals on and ends as it ended; xep is loaded by nobody before. Where an environment has to be there from the
start (LD_PRELOAD), or arguments are for the interpreter itself, that process becomes an interpreter of its own.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys
import time

_PATIENCE = 60.0  # seconds, for a server that starts
_NOT_FROM_THE_START = ("PYTHONPATH", "PYTHON_EXEC")  # torchrun's
_FROM_THE_START = ("PYTHON", "LD_", "OMP_", "MKL_", "ASAN_", "UBSAN_", "LSAN_", "MALLOC_")
_PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def _from_the_start(environment) -> dict[str, str]:
    """What an interpreter and its libraries look at when they start."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_FROM_THE_START) and name not in _NOT_FROM_THE_START
    }


# ---- the process that asks: no more than it needs is imported ----


def _connect(path: str) -> socket.socket:
    end = time.monotonic() + _PATIENCE
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(path)
            return connection
        except OSError as error:
            connection.close()
            if time.monotonic() > end:
                sys.exit(f"fork_server.py: nobody serves at {path}: {error}")
            time.sleep(0.02)


def _pass_signals_on(connection: socket.socket) -> None:
    for number in _PASSED_ON:
        signal.signal(number, lambda number, _: connection.send(bytes([number])))


def _end_as(status: int) -> None:
    """As a process of which waitpid() tells this status."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


def run(path: str, arguments: list[str]) -> None:
    unbuffered = arguments[:1] == ["-u"]
    after = arguments[unbuffered:]
    if not after or (after[0].startswith("-") and after[0] not in ("-c", "-m")):
        os.execv(sys.executable, [sys.executable, *arguments])
    connection = _connect(path)
    asked = dict(
        arguments=after, unbuffered=unbuffered, environment=dict(os.environ), folder=os.getcwd(),
        processors=sorted(os.sched_getaffinity(0)),
        ignored=[number for number in _PASSED_ON if signal.getsignal(number) == signal.SIG_IGN],
    )  # fmt: skip
    message = json.dumps(asked).encode()
    _pass_signals_on(connection)
    socket.send_fds(connection, [struct.pack("<q", len(message))], [0, 1, 2])
    connection.sendall(message)
    answer = connection.makefile().readline().split()
    if answer == ["refused"]:
        for number in _PASSED_ON:
            signal.signal(number, signal.SIG_DFL)
        os.execv(sys.executable, [sys.executable, *arguments])
    if answer[:1] != ["ended"]:
        sys.exit("fork_server.py: the server is gone")
    _end_as(int(answer[1]))


# ---- the server ----


class Server:
    def __init__(self, path: str) -> None:
        import selectors

        self._selector = selectors.DefaultSelector()
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(path)
        self._listening.listen(256)
        self._selector.register(self._listening, selectors.EVENT_READ, self._accept)
        self._children: dict[int, tuple[int, socket.socket]] = {}  # by the descriptor that tells that one has ended
        self._start = _from_the_start(os.environ)
        own = [os.path.dirname(os.path.abspath(__file__)), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        self.path = [entry for entry in sys.path if entry not in own]

    def serve(self) -> dict:
        """Returns in each child, with what it was asked for."""
        while True:
            for key, _ in self._selector.select():
                if self._selector.get_map().get(key.fd) is key:  # not ended by what came before
                    asked = key.data(key.fileobj)
                    if asked is not None:
                        return asked

    def _accept(self, listening: socket.socket) -> dict | None:
        connection = listening.accept()[0]
        connection.settimeout(_PATIENCE)
        files: list[int] = []
        try:
            head, files, _, _ = socket.recv_fds(connection, 8, 3)
            (left,) = struct.unpack("<q", head)
            message = b""
            while len(message) < left:
                part = connection.recv(left - len(message))
                if not part:
                    raise EOFError
                message += part
            asked = json.loads(message)
            if len(files) != 3 or _from_the_start(asked["environment"]) != self._start:
                connection.sendall(b"refused\n")
                connection.close()
                return None
            return self._fork(asked, connection, files)
        except (OSError, EOFError, struct.error):  # it has gone
            connection.close()
            return None
        finally:
            for file in files:
                os.close(file)

    def _fork(self, asked: dict, connection: socket.socket, files: list[int]) -> dict | None:
        import selectors

        parent, pid = os.getpid(), os.fork()
        if pid != 0:
            ended = os.pidfd_open(pid)
            self._children[ended] = pid, connection
            self._selector.register(ended, selectors.EVENT_READ, self._bury)
            self._selector.register(connection, selectors.EVENT_READ, lambda one: self._signal(pid, one))
            return None
        os.setsid()
        _die_with(parent)
        for number, file in enumerate(files):
            os.dup2(file, number)
        for key in list(self._selector.get_map().values()):
            os.close(key.fd) if isinstance(key.fileobj, int) else key.fileobj.close()
        connection.close()
        self._selector.close()
        return asked

    def _signal(self, pid: int, connection: socket.socket) -> None:
        """The child has not been waited for: the process is still that one."""
        try:
            numbers = connection.recv(64)
        except OSError:
            numbers = b""
        if numbers:
            for number in numbers:
                os.kill(pid, number)
        else:  # who asked is gone
            self._selector.unregister(connection)
            _kill_session(pid)

    def _bury(self, ended: int) -> None:
        pid, connection = self._children.pop(ended)
        _kill_session(pid)  # what it has left behind; it keeps its number until it is waited for
        _, status = os.waitpid(pid, 0)
        self._selector.unregister(ended)
        os.close(ended)
        if connection in self._selector.get_map():
            self._selector.unregister(connection)
        try:
            connection.sendall(b"ended %d\n" % status)
        except OSError:
            pass  # who asked is gone
        connection.close()


def _kill_session(pid: int) -> None:
    for kill in (os.kill, os.killpg):
        try:
            kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def _die_with(parent: int) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


def _become(asked: dict, path: list[str]) -> None:
    """This process is what was asked for, but for the program."""
    import importlib
    import tempfile

    os.chdir(asked["folder"])
    os.sched_setaffinity(0, asked["processors"])
    for number in _PASSED_ON:  # a shell starts what runs beside it without those of the terminal
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in asked["ignored"] else usual)
    os.environ.clear()
    os.environ.update(asked["environment"])
    python_path = os.environ.get("PYTHONPATH", "")
    sys.path[:] = [os.path.abspath(entry) for entry in python_path.split(os.pathsep) if python_path] + path
    tempfile.tempdir = None
    importlib.invalidate_caches()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # not the others' numbers; Python's own module sees to itself
    if asked["unbuffered"]:
        sys.stdout.reconfigure(write_through=True)


def _play(arguments: list[str]) -> None:
    """As the interpreter would, in a module __main__ that lives until its end."""
    import runpy
    import types

    what, *others = arguments
    if what == "-m":
        sys.argv = others
        sys.path.insert(0, os.getcwd())
        runpy.run_module(others[0], run_name="__main__", alter_sys=True)
        return
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if what == "-c":
        sys.argv, source, name = ["-c", *others[1:]], others[0], "<string>"
        sys.path.insert(0, "")
    else:
        sys.argv, name = arguments, what
        main.__file__ = os.path.abspath(what)
        sys.path.insert(0, os.path.dirname(os.path.realpath(what)))
        with open(what, "rb") as file:
            source = file.read()
    exec(compile(source, name, "exec"), main.__dict__)


def _status_of(arguments: list[str]) -> int:
    """Of the program, played to its end; what it has raised is printed."""
    import traceback

    try:
        _play(arguments)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 255
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:
        own = error.__traceback__.tb_next.tb_next  # frames of this file: this function and _play()
        traceback.print_exception(type(error), error, own)
        return 1
    return 0


def _end(status: int) -> None:
    """The interpreter's own end, but for what was imported before the fork: with torch, to take that down takes a child
    0.2 seconds."""
    import atexit
    import gc
    import threading

    threading._shutdown()
    atexit._run_exitfuncs()
    sys.modules.pop("__main__", None)  # what it had is freed, while it has the names to see to that
    gc.collect()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            status = status or 120  # as the interpreter does
        except ValueError:
            pass  # the program has closed it
    os._exit(status)


def serve(path: str, modules: list[str]) -> None:
    """Until it is ended by a signal."""
    import gc
    import importlib

    server = Server(path)
    for name in modules:
        importlib.import_module(name)
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        sys.exit(f"fork_server.py: {threads} threads after the imports (1: others would not be in a fork)")
    gc.collect()
    gc.freeze()  # collections in the children neither look at nor touch all this
    asked = server.serve()
    _become(asked, server.path)
    _end(_status_of(asked["arguments"]))


if __name__ == "__main__":
    {"serve": serve, "run": run}[sys.argv[1]](sys.argv[2], sys.argv[3:])
