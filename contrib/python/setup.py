# SPDX-License-Identifier: BSD-3-Clause
"""Builds the compiled module xep._fast, where there are a C compiler and xep's headers; the package works without it."""

import os
import pathlib
import shlex
import subprocess

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = pathlib.Path(__file__).resolve().parent


def installed_flags():
    """Where an installed xep has its headers."""
    try:
        text = subprocess.run(["pkg-config", "--cflags", "xep"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    return shlex.split(text)


class Build(build_ext):
    def build_extension(self, ext):
        import numpy

        # Of a tree that is not configured the header of the version is missing; what it says is not needed here.
        stand_in = pathlib.Path(self.build_temp).resolve() / "include" / "xep"
        stand_in.mkdir(parents=True, exist_ok=True)
        (stand_in / "version.h").touch()
        ext.include_dirs = [numpy.get_include(), str(HERE.parents[1] / "include")]
        ext.extra_compile_args = ["-std=c11", "-fvisibility=hidden", *installed_flags(), "-idirafter", str(stand_in.parent)]
        super().build_extension(ext)


# relative to this folder, as setuptools wants them
sources = [os.path.join("fast", name) for name in sorted(os.listdir(HERE / "fast")) if name.endswith(".c")]
setup(
    ext_modules=[Extension("xep._fast", sources, depends=[os.path.join("fast", "fast.h"), str(HERE.parents[1] / "include" / "xep" / "xep.h")], optional=True)],
    cmdclass={"build_ext": Build},
)
