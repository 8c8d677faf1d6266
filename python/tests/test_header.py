# SPDX-License-Identifier: BSD-3-Clause
"""Enumerations that Python repeats, against the library's headers."""

from __future__ import annotations

import pathlib
import re

import xep

HEADERS = ("status.h", "dtype.h", "xep.h", "elastic.h", "cuda.h", "pieces.h", "serve.h", "inspect.h", "experts.h")
TOP = pathlib.Path(__file__).resolve().parents[2]


def test_enumerations():
    """Every member, and no other."""
    text = "".join((TOP / "include" / "xep" / name).read_text() for name in HEADERS)
    declared = {name: int(value) for name, value in re.findall(r"\bXEP_(\w+)(?: =|,)\s+(-?\d+)\b", text)}
    repeated = {member.name: int(member) for kind in (xep.Status, xep.Dtype) for member in kind}
    repeated.update({f"QUANT_{member.name}": int(member) for member in xep.Quant})
    repeated.update({f"ROWS_{member.name}": int(member) for member in xep.Rows})
    repeated.update({f"OUT_{member.name}": int(member) for member in xep.OutReason})
    others = "BUFFER_|DISPATCH_|COMBINE_|EXPAND_|OP_|DTYPE_DEFAULT|MEMORY_|ON_FAILURE_|PATH_|GROW_"
    others += "|ADDRESS_BYTES|BALANCE_|CAN_|STEP_|PAYLOADS_MOST"
    features = {name[4:].lower(): int(value) for name, value in declared.items() if name.startswith("CAN_")}
    assert features == {name: 1 << bit for bit, name in enumerate(xep.library.FEATURES)}
    absent = {name for name in declared if re.match(others, name)}
    assert repeated == {name: value for name, value in declared.items() if name not in absent}
