# SPDX-License-Identifier: BSD-3-Clause
"""What frameworks find of an installed xep."""

from __future__ import annotations

import pathlib

import pytest

tomllib = pytest.importorskip("tomllib", reason="needs Python 3.11")

PROJECT = pathlib.Path(__file__).resolve().parent.parent.parent / "pyproject.toml"


def install(folder: pathlib.Path, group: str, more: str = "") -> pathlib.Path:
    """The plugin that xep has in that group, and more lines of it -> the folder, for sys.path."""
    entry = tomllib.loads(PROJECT.read_text())["project"]["entry-points"][group]["xep"]
    info = folder / "xep_in_tests-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: xep_in_tests\n")
    (info / "entry_points.txt").write_text(f"[{group}]\nxep = {entry}\n{more}")
    return folder
