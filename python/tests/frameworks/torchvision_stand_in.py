# SPDX-License-Identifier: BSD-3-Clause
"""For what imports torchvision and does not use it: PyPI has it for CUDA only."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from unittest import mock


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.startswith("torchvision") else None

    def create_module(self, spec):
        return mock.MagicMock(__name__=spec.name)

    def exec_module(self, module):
        pass


def install() -> None:
    if importlib.util.find_spec("torchvision") is None:
        sys.meta_path.append(_Finder())
