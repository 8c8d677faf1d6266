# SPDX-License-Identifier: BSD-3-Clause
"""Where a package of NVIDIA's is installed. xep needs none of them; programs that ask for one find it."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
from typing import Optional


def find_pkg_root(name: str, lib_name: Optional[str] = None, optional: bool = False) -> Optional[str]:
    """The folder of EP_NAME_ROOT_DIR or NAME_DIR, else that of the installed package nvidia-NAME-...: the one with
    lib/lib_name, or nvidia/NAME. None if optional, else AssertionError, where there is none."""
    for variable in (f"EP_{name.upper()}_ROOT_DIR", f"{name.upper()}_DIR"):
        if variable in os.environ:
            return os.environ[variable]
    for package in importlib.metadata.distributions():
        if f"nvidia-{name}" in (package.metadata["Name"] or "").lower().replace("_", "-"):
            root = _root_in(package, name, lib_name)
            if root is not None:
                return str(root)
    assert optional, f"{name}: found no package nvidia-{name} (EP_{name.upper()}_ROOT_DIR says where one is)"
    return None


def _root_in(package: importlib.metadata.Distribution, name: str, lib_name: Optional[str]) -> Optional[pathlib.Path]:
    if lib_name is None:
        folder = pathlib.Path(str(package.locate_file("nvidia")), name)
        return folder if folder.is_dir() else None
    for file in package.files or []:
        if lib_name in file.name:
            folder = pathlib.Path(str(file.locate())).parent
            return folder.parent if folder.name == "lib" else folder
    return None


def find_nccl_root(optional: bool = False) -> Optional[str]:
    """find_pkg_root() of NCCL."""
    return find_pkg_root("nccl", "libnccl.so", optional)


def get_nccl_lib_name(root: str) -> str:
    """The name of the library in root/lib."""
    found = sorted(file.name for file in pathlib.Path(root, "lib").glob("libnccl.so*") if file.is_file())
    if not found:
        raise ModuleNotFoundError(f"libnccl.so: found none in {root}/lib")
    return found[0]
