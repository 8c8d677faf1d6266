# SPDX-License-Identifier: BSD-3-Clause
"""What Python adds to a dispatch and a combine: the same operations by C and by Python, in turn, in the same processes.

    xep_run -n 2 python bench_overhead.py [--limit MICROSECONDS] [--torch]

Zero copy in both: the peers read the results where combine_input() is. Operations through Python, a few small ones or a
large one, are compared with as many through C before and after them; printed is the median of the differences, for each
size. With --limit, exit status 1 when Python adds more at one of them. The C loop is compiled by $CC, else cc.

What Python adds grows with the size, though it does the same: after a large operation its own memory is in no cache any
    more.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import numpy as np

import xep

HERE = pathlib.Path(__file__).resolve().parent
INCLUDE = HERE.parents[1] / "include"
FIELDS = [("buffer", ctypes.c_void_p), ("tokens", ctypes.c_uint64), ("topk", ctypes.c_uint32), ("x", ctypes.c_void_p),
          ("topk_idx", ctypes.c_void_p), ("topk_weights", ctypes.c_void_p), ("out", ctypes.c_void_p)]  # fmt: skip
SIZES = ((4, 200, 20), (128, 200, 20), (4096, 600, 1))  # tokens, runs, operations of a run
EXPERTS, TOPK, WARMUP = 8, 2, 20


class Work(ctypes.Structure):
    _fields_ = FIELDS


class Calls(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("dispatch", "recv", "combine_input", "combine", "release")]


def write_version(folder: str) -> None:
    """version.h, which a build tree has and a wheel has not: of the library in use."""
    words = dict(zip(("XEP_VERSION_MAJOR", "XEP_VERSION_MINOR", "XEP_VERSION_PATCH"), xep.version().split(".")))
    words["PACKAGE_VERSION"] = xep.version()
    text = (INCLUDE / "xep" / "version.h.in").read_text()
    os.mkdir(os.path.join(folder, "xep"))
    pathlib.Path(folder, "xep", "version.h").write_text(re.sub(r"@(\w+)@", lambda name: words[name[1]], text))


def compile_loop(folder: str) -> ctypes.CDLL:
    path = os.path.join(folder, "bench_overhead.so")
    write_version(folder)
    command = [os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", f"-I{INCLUDE}", f"-I{folder}", "-o", path]
    subprocess.run([*" ".join(command).split(), str(HERE / "bench_overhead.c")], check=True)
    return ctypes.CDLL(path)


def calls() -> Calls:
    lib = ctypes.CDLL(xep.library_info().library_path)
    names = ("xep_dispatch", "xep_handle_recv", "xep_handle_combine_input", "xep_combine", "xep_handle_release")
    return Calls(*[ctypes.cast(getattr(lib, name), ctypes.c_void_p) for name in names])


def by_python(buffer: xep.Buffer, x, idx, weights, out, count: int) -> float:
    """Nanoseconds of an operation: the median of count."""
    times = []
    for _ in range(count):
        begin = time.perf_counter_ns()
        handle = buffer.dispatch(x, idx, weights)
        rows = handle.recv.x
        handle.combine_input()
        handle.combine(out=out)
        del rows
        handle.release()
        times.append(time.perf_counter_ns() - begin)
    return float(np.median(times))


def by_c(loop: ctypes.CDLL, work: Work, count: int) -> float:
    times = (ctypes.c_uint64 * count)()
    status = loop.bench_run(ctypes.byref(calls()), ctypes.byref(work), count, times)
    if status != 0:
        raise SystemExit(f"the C loop ended with status {status}")
    return float(np.median(times))


def added(
    group: xep.Group, loop: ctypes.CDLL, tokens: int, hidden: int, runs: int, count: int, torch
) -> tuple[float, float]:
    """Microseconds of C, and what Python adds."""
    rng = np.random.default_rng(group.rank)
    with group.buffer(EXPERTS, TOPK, hidden, tokens) as buffer:
        x = rng.integers(0, 2**15, (tokens, hidden), dtype=np.uint16)
        idx = np.argsort(rng.random((tokens, EXPERTS)), axis=1)[:, :TOPK].copy()
        weights = rng.random((tokens, TOPK), dtype=np.float32)
        out = np.empty_like(x)
        addresses = [array.ctypes.data for array in (x, idx, weights, out)]
        work = Work(buffer._buffer, tokens, TOPK, *addresses)
        arrays = [x, idx, weights, out]
        if torch is not None:
            arrays = [torch.from_numpy(x.view(np.int16)).view(torch.bfloat16), torch.from_numpy(idx),
                      torch.from_numpy(weights), torch.from_numpy(out.view(np.int16)).view(torch.bfloat16)]  # fmt: skip
        c, python = [], []
        for _ in range(runs + WARMUP):
            c.append(by_c(loop, work, count))
            python.append(by_python(buffer, *arrays, count))
        c.append(by_c(loop, work, count))
    c, python = np.array(c[WARMUP:]) / 1000, np.array(python[WARMUP:]) / 1000
    return float(np.median(c)), float(np.median(python - (c[:-1] + c[1:]) / 2))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=float, help="microseconds that Python may add")
    parser.add_argument("--torch", action="store_true", help="tensors instead of numpy arrays")
    parser.add_argument("--hidden", type=int, default=1024)
    options = parser.parse_args()
    torch = None
    if options.torch:
        import torch
    worst = 0.0
    with xep.Group() as group, tempfile.TemporaryDirectory() as folder:
        loop = compile_loop(folder)
        for tokens, runs, count in SIZES:
            c, more = added(group, loop, tokens, options.hidden, runs, count, torch)
            worst = max(worst, more)
            if group.rank == 0:
                print(f"{tokens:5} tokens of {options.hidden}: C {c:9.1f} us, Python adds {more:6.1f} us", flush=True)
        all_worst = max(float(part) for part in group.allgather(f"{worst:20.3f}".encode()))
    return 1 if options.limit is not None and all_worst > options.limit else 0


if __name__ == "__main__":
    sys.exit(main())
