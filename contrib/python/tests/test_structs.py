# SPDX-License-Identifier: BSD-3-Clause
"""The structs of the package are those of the C header, which a compiled probe knows; so are names and values."""

from __future__ import annotations

import ctypes
import os
import pathlib
import re
import shutil
import subprocess

import pytest
import xep
from xep import _structs

TOP = pathlib.Path(__file__).resolve().parents[3]


def include_folders() -> list[str]:
    """Of the installed header, or of the build tree the library is in; version.h is made at configure."""
    library = pathlib.Path(xep.library_info().library_path).resolve()
    candidates = [library.parent.parent / "include", TOP / "include"]
    return [f"-I{folder}" for folder in candidates if (folder / "xep").is_dir()]


@pytest.fixture(scope="module")
def probe(tmp_path_factory):
    compiler = os.environ.get("CC", "cc").split()
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"no C compiler: {compiler[0]}")
    folder = tmp_path_factory.mktemp("probe")
    lines = ["#include <stddef.h>", "#include <stdio.h>", "#include <xep/xep.h>", "int main(void) {"]
    for struct in _structs.STRUCTS:
        lines.append(f'printf("{struct.c_name} %zu\\n", sizeof({struct.c_name}));')
        for name, *_ in struct._fields_:
            member = f"(({struct.c_name} *)0)->{name}"
            lines.append(f'printf("{struct.c_name}.{name} %zu %zu\\n", offsetof({struct.c_name}, {name}), sizeof {member});')
    enums = {**{f"XEP_{s.name}": s for s in xep.Status}, **{f"XEP_{d.name}": d for d in xep.Dtype}}
    enums.update({f"XEP_QUANT_{q.name}": q for q in xep.Quant} | {f"XEP_ROWS_{r.name}": r for r in xep.Rows})
    lines += [f'printf("{name} %d\\n", (int){name});' for name in enums]
    lines += ["return 0;", "}"]
    source = folder / "probe.c"
    source.write_text("\n".join(lines))
    command = [*compiler, *include_folders(), "-o", str(folder / "probe"), str(source)]
    subprocess.run(command, check=True, timeout=60)
    output = subprocess.run([str(folder / "probe")], check=True, capture_output=True, text=True, timeout=60).stdout
    return {words[0]: [int(word) for word in words[1:]] for words in map(str.split, output.splitlines())}, enums


@pytest.mark.parametrize("struct", _structs.STRUCTS, ids=lambda s: s.c_name)
def test_layout(probe, struct):
    known, _ = probe
    assert known[struct.c_name] == [ctypes.sizeof(struct)]
    for name, *_ in struct._fields_:
        field = getattr(struct, name)
        assert known[f"{struct.c_name}.{name}"] == [field.offset, field.size], name


def header() -> str:
    folder = next(f[2:] for f in include_folders() if (pathlib.Path(f[2:]) / "xep" / "xep.h").exists())
    return (pathlib.Path(folder) / "xep" / "xep.h").read_text()


def test_no_field_is_missing():
    """A field at the end of a struct that grows into padding would not change its size."""
    text = re.sub(r"/\*.*?\*/", "", header(), flags=re.S)
    for struct in _structs.STRUCTS:
        body = re.search(r"typedef struct \w+ \{([^}]*)\} " + struct.c_name + ";", text)
        assert body is not None, struct.c_name
        declared = re.findall(r"(\w+)(?:\[\d+\])?\s*(?=[;,])", body[1])
        assert declared == [name for name, *_ in struct._fields_], struct.c_name


def test_enums(probe):
    known, enums = probe
    for name, value in enums.items():
        assert known[name] == [int(value)], name


def test_every_function_is_declared():
    declared = set(re.findall(r"XEP_API [\w \*]*?\b(xep_\w+)\(", header()))
    assert set(_structs.PROTOTYPES) <= declared


def test_initialised_size():
    assert all(struct().size == ctypes.sizeof(struct) for struct in _structs.STRUCTS)
