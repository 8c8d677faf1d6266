# SPDX-License-Identifier: BSD-3-Clause
"""Calls in forks of one process that has imported before what takes long to import."""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import os
import pathlib
import pkgutil
import signal
import sys
import time
from typing import Any

_context = multiprocessing.get_context("forkserver")


def preload(modules: list) -> None:
    """Forks come to have what is in os.environ now."""
    _context.set_forkserver_preload(modules)
    multiprocessing.forkserver.ensure_running()


def _call(log: pathlib.Path, folders: list, environment: dict, function: str, arguments: tuple) -> None:
    os.setsid()
    with open(log, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.path[:0] = map(str, folders)
    os.environ.update(environment)
    pkgutil.resolve_name(function)(*arguments)


class Forks:
    """Each in a session of its own. written: by each, with all processes of its session."""

    def __init__(self, folder: pathlib.Path, folders: list, environment: dict) -> None:
        self._folder, self._common = folder, (folders, environment)
        self._started: list = []
        self._logs: list = []

    def start(self, function: str, *arguments: Any) -> None:
        """function: module:name, looked for in folders first."""
        self._logs.append(self._folder / f"log.{len(self._logs)}")
        self._started.append(_context.Process(target=_call, args=(self._logs[-1], *self._common, function, arguments)))
        self._started[-1].start()

    def end(self, in_time: float) -> list:
        """The exit status of each: None where it had not come to its end. Nothing is left of them."""
        deadline = time.monotonic() + in_time
        for process in self._started:
            process.join(max(0.0, deadline - time.monotonic()))
        statuses = [process.exitcode for process in self._started]
        for process in self._started:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                process.kill()
            process.join()
        return statuses

    @property
    def written(self) -> list:
        return [log.read_text() if log.exists() else "" for log in self._logs]
