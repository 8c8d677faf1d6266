# SPDX-License-Identifier: BSD-3-Clause
"""How the package is installed, and how it finds the library."""

from __future__ import annotations

import ctypes.util
import os
import pathlib
import shutil
import subprocess
import sys
import venv

import numpy as np
import pytest
import xep
from programs import DISPATCH, run

SOURCE = pathlib.Path(__file__).resolve().parents[1]
LIBRARY = pathlib.Path(xep.library_info().library_path).resolve()
WHERE = "import xep; print(xep.library_info().library_path); print(xep.__file__)"


@pytest.fixture
def package(tmp_path):
    """The package alone, with no build tree around it."""
    folder = tmp_path / "contrib" / "python"
    shutil.copytree(SOURCE / "xep", folder / "xep", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def path_of(package: pathlib.Path) -> str:
    """Of modules: the package, and what this interpreter finds but the package's source."""
    return ":".join([str(package), *[folder for folder in sys.path if folder and SOURCE not in pathlib.Path(folder, "x").parents]])


def test_by_variable(package):
    assert pathlib.Path(run(WHERE, PYTHONPATH=path_of(package)).stdout.split()[0]).resolve() == LIBRARY


def test_from_the_build_tree(package, tmp_path):
    (tmp_path / ".libs").symlink_to(LIBRARY.parent)
    if not (LIBRARY.parent / "libxep.so").exists():
        pytest.skip("the library under test is an installed one")
    found = run(WHERE, PYTHONPATH=path_of(package), XEP_LIBRARY=None).stdout.split()
    assert pathlib.Path(found[0]).resolve() == LIBRARY and found[1].startswith(str(tmp_path))
    run(DISPATCH, PYTHONPATH=path_of(package), XEP_LIBRARY=None)


def test_by_the_loader(package, tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libxep.so.0").symlink_to(LIBRARY)
    folders = f"{tmp_path / 'lib'}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    found = run(WHERE, PYTHONPATH=path_of(package), XEP_LIBRARY=None, LD_LIBRARY_PATH=folders).stdout.split()
    assert pathlib.Path(found[0]).resolve() == LIBRARY


@pytest.mark.parametrize("path", ["/no/such/libxep.so.0", ctypes.util.find_library("c") or "libc.so.6"])
def test_a_library_that_is_not_there(path):
    variables = {"XEP_LIBRARY": path, "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", "import xep"], env=variables, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and f"ImportError: xep: {path}" in done.stderr and "XEP_LIBRARY" in done.stderr, done.stderr


def test_pip_install(tmp_path):
    """Into a fresh environment, without a network: what is installed works, away from the source."""
    pytest.importorskip("setuptools", minversion="61")
    pytest.importorskip("pip", minversion="22.3")
    source = shutil.copytree(SOURCE, tmp_path / "python", ignore=shutil.ignore_patterns("__pycache__"))  # setuptools writes there
    venv.create(tmp_path / "venv")
    python = str(tmp_path / "venv" / "bin" / "python")
    packages = str(pathlib.Path(np.__file__).parents[1])
    command = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", "--no-build-isolation", str(source)]
    environment = {**os.environ, "PYTHONPATH": packages}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr + done.stdout
    found = run(WHERE, python=python, PYTHONPATH=packages).stdout.split()
    assert found[1].startswith(str(tmp_path / "venv"))
    run(DISPATCH, python=python, PYTHONPATH=packages)
    installed = pathlib.Path(found[1]).parents[1]
    assert (installed / "deep_ep_cpp.py").exists()
    assert {file.name for file in (SOURCE / "deep_ep").glob("*.py*")} <= {file.name for file in (installed / "deep_ep").iterdir()}
