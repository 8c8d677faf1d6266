# SPDX-License-Identifier: BSD-3-Clause
"""
The packages deep_ep and deep_ep_cpp, put into a folder of their own, xep_deep_ep, which a .pth file appends to Python's
path: a DeepEP that is installed, too, keeps its files, and comes first.
"""

import pathlib
import shutil

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

PYTHON = pathlib.Path(__file__).resolve().parents[2]


class Package(Distribution):
    def has_pure_modules(self):
        return True


class Build(build_py):
    def run(self):
        site = pathlib.Path(self.build_lib)
        target = site / "xep_deep_ep"
        shutil.copytree(
            PYTHON / "deep_ep", target / "deep_ep", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
        )
        shutil.copy(PYTHON / "deep_ep_cpp.py", target)
        (site / "xep_deep_ep.pth").write_text("xep_deep_ep\n")


setup(packages=[], py_modules=[], distclass=Package, cmdclass={"build_py": Build})
