# SPDX-License-Identifier: BSD-3-Clause
"""Builds the compiled module xep._ext: it needs a C compiler and xep's headers, of its tree or installed."""

import os
import pathlib
import re
import shlex
import subprocess
import sysconfig

from setuptools import Distribution, Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError

HERE = pathlib.Path(__file__).resolve().parent


def installed_flags():
    """Where an installed xep has its headers."""
    try:
        text = subprocess.run(["pkg-config", "--cflags", "xep"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    return shlex.split(text)


def write_version(folder):
    """version.h as configure would make it, for a tree that is not configured."""
    template = HERE.parent / "include" / "xep" / "version.h.in"
    if not template.exists():
        return
    version = re.search(r'^version = "(.*)"', (HERE / "pyproject.toml").read_text(), re.M)[1]
    words = dict(
        zip(("XEP_VERSION_MAJOR", "XEP_VERSION_MINOR", "XEP_VERSION_PATCH"), version.split(".")),
        PACKAGE_VERSION=version,
    )
    text = re.sub(r"@(\w+)@", lambda name: words[name[1]], template.read_text())
    (folder / "xep").mkdir(parents=True, exist_ok=True)
    (folder / "xep" / "version.h").write_text(text)


class Build(build_ext):
    def build_extension(self, ext):
        import numpy

        made = pathlib.Path(self.build_temp).resolve() / "include"
        write_version(made)
        ext.include_dirs = [numpy.get_include(), str(HERE.parent / "include")]
        # -O3: gcc 12 makes vector code of sums of rows by nothing less, which is four times as fast
        ext.extra_compile_args = ["-std=gnu11", "-O3", "-fvisibility=hidden", *installed_flags()]
        ext.extra_compile_args += ["-idirafter", str(made)]
        try:
            super().build_extension(ext)
        except (BaseError, CCompilerError, OSError) as error:
            raise SystemExit(
                f"xep: xep._ext cannot be compiled: {error} (it needs a C compiler and Python's headers; on Debian and "
                "Ubuntu: apt-get install gcc libc6-dev python3-dev; a wheel made by contrib/build-wheel needs neither)"
            ) from None


class Binary(Distribution):
    """With a compiled module, also where contrib/wheel.py has made it before (XEP_EXT=made)."""

    def has_ext_modules(self):
        return True


if sysconfig.get_config_var("Py_GIL_DISABLED"):
    raise SystemExit("xep: free-threaded Python is not supported: its module counts on the GIL (use one that has it)")
# relative to this folder, as setuptools wants them
sources = sorted(f"ext/{file.name}" for file in (HERE / "ext").glob("*.c"))
headers = sorted(str(file) for folder in (HERE / "ext", HERE.parent / "include" / "xep") for file in folder.glob("*.h"))
# xep_run and the like, which contrib/build-wheel puts there
scripts = sorted(f"scripts/{file.name}" for file in (HERE / "scripts").glob("*"))
made = os.environ.get("XEP_EXT") == "made"
modules = [] if made else [Extension("xep._ext", sources, depends=headers)]
setup(ext_modules=modules, cmdclass={"build_ext": Build}, scripts=scripts, distclass=Binary)
