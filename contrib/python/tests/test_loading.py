# SPDX-License-Identifier: BSD-3-Clause
"""How the package is installed, and how it finds the library."""

from __future__ import annotations

import ctypes.util
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import venv

import numpy as np
import pytest
import xep
from programs import DISPATCH, run

SOURCE = pathlib.Path(__file__).resolve().parents[1]
LIBRARY = pathlib.Path(xep.library_info().library_path).resolve()
PACKAGES = str(pathlib.Path(np.__file__).parents[1])
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


def install(folder: pathlib.Path, **variables: str) -> str:
    """Into a fresh environment, without a network; its interpreter."""
    pytest.importorskip("setuptools", minversion="61")
    pytest.importorskip("pip", minversion="22.3")
    source = folder / "contrib" / "python"  # setuptools writes there
    shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info", "_fast.*.so", "temp"))
    (folder / "include").symlink_to(SOURCE.parents[1] / "include")
    venv.create(folder / "venv")
    python = str(folder / "venv" / "bin" / "python")
    command = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", "--no-build-isolation", str(source)]
    environment = {**os.environ, "PYTHONPATH": PACKAGES, **variables}
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr + done.stdout
    return python


def test_pip_install(tmp_path):
    """What is installed works, away from the source, and is compiled."""
    python = install(tmp_path)
    found = run(WHERE, python=python, PYTHONPATH=PACKAGES).stdout.split()
    assert found[1].startswith(str(tmp_path / "venv"))
    run(DISPATCH, python=python, PYTHONPATH=PACKAGES)
    installed = pathlib.Path(found[1]).parents[1]
    assert (installed / "deep_ep_cpp.py").exists()
    assert {file.name for file in (SOURCE / "deep_ep").glob("*.py*")} <= {file.name for file in (installed / "deep_ep").iterdir()}
    if not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")):
        pytest.skip("this interpreter has no headers: its package is plain")
    compiled = run("import xep; print(xep.why_plain, xep._hot._fast.__file__)", python=python, PYTHONPATH=PACKAGES).stdout.split()
    assert compiled[0] == "None" and compiled[1].startswith(str(installed))


def test_pip_install_without_a_compiler(tmp_path):
    """The same, slower; asked for by name the compiled module is missed."""
    python = install(tmp_path, CC="/bin/false")
    library = tmp_path / "libxep.so.0"  # away from the build tree, which may have a compiled module
    shutil.copy(LIBRARY, library)
    settings = {"python": python, "PYTHONPATH": PACKAGES, "XEP_LIBRARY": str(library), "XEP_PLUGIN_PATH": str(LIBRARY.parent)}
    run(DISPATCH, **settings)
    assert "_fast" in run("import xep; print(xep.why_plain)", **settings).stdout
    for choice, said in (("compiled", "No module named 'xep._fast'"), ("fast", "XEP_PYTHON is 'fast': expected plain, compiled")):
        program = "try:\n    import xep\nexcept ImportError as error:\n    print(error)"
        assert said in run(program, **settings, XEP_PYTHON=choice).stdout
