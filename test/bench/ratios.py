# SPDX-License-Identifier: BSD-3-Clause
"""Is xep as fast as it was? Ratios to the machine's limit, and to a program written by hand, against bounds.

    ratios.py BUILD BOUNDS [--launches N] [--iters N] [--busy] [WORD...]       (make bench)

BUILD has xep_run and xep_perf. A line of BOUNDS is a bound:

    mode ranks tokens hidden topk experts   dispatch|combine   limit|peer|place|read   bound

Below a line "cores N" are the bounds of machines with at least so many processors, instead of those above it.

place: of a dispatch whose rows are read in place, to the limit; read: of it and one read of all rows, to a dispatch
that copies them and the same read.

With WORDs only lines that have all of them are measured ("ll", "peer"). One launch of xep_perf times the operation, its
limit and the peer in turn, on the same ranks, so that all see the same machine; that is done N times (7), the shapes in
turn, and each launch gives a ratio of medians. The median of what more launches would give lies between the least and
the greatest of N with a probability of 1 - 2 ** (1 - N): 98 % for 7. Where all of that is above the bound the program
says so and exits with 1, and where the median is below 0.97 of a limit, which then is none.

A launch during which other programs used more than 0.15 of a core does not count; with fewer than 5 that do, a bound is
not judged, which is said, too. --busy counts all.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

SECONDS = 300  # for one launch
QUIET = 0.15  # cores
ENOUGH = 5  # launches: an interval of 94 %
BEATEN = 0.97  # of a limit: it is none
SHAPE = ("ranks", "tokens", "hidden", "topk", "experts")
AGAINST = {"dispatch": ("limit", "peer", "place", "read"), "combine": ("limit", "peer")}
OPTIONS = {"peer": "--peer", "place": "--in-place", "read": "--in-place"}
Bound = collections.namedtuple("Bound", ("mode", *SHAPE, "op", "against", "most"))


def read_bounds(path: str, words: list[str]) -> list[Bound]:
    bounds: list[Bound] = []
    is_for_this = True
    for number, line in enumerate(pathlib.Path(path).read_text(encoding="utf-8").splitlines(), 1):
        fields = line.partition("#")[0].split()
        if fields[:1] == ["cores"] and fields[-1].isdigit():
            is_for_this = len(os.sched_getaffinity(0)) >= int(fields[-1])
            bounds = [] if is_for_this else bounds
            continue
        if not is_for_this or not fields or not set(words) <= set(fields):
            continue
        try:
            mode, *shape, op, against, most = fields
            bound = Bound(mode, *map(int, shape), op, against, float(most))
        except (TypeError, ValueError):
            bound = None
        if bound is None or bound.against not in AGAINST.get(bound.op, ()):
            allowed = "mode, five numbers, op, limit, peer, place or read, bound"
            sys.exit(f"{path}:{number}: not a bound: {line} ({allowed})")
        bounds.append(bound)
    return bounds


def used() -> tuple[float, float]:
    """Seconds of processor time: of everything, and of the jobs started here."""
    user, nice, system, _, _, irq, softirq, *_ = map(int, open("/proc/stat", encoding="ascii").readline().split()[1:])
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK"), own.ru_utime + own.ru_stime


def others(work: Callable[[], dict]) -> tuple[float, dict]:
    """Cores that other programs used meanwhile, and what the work gave."""
    begin, (all_before, own_before) = time.monotonic(), used()
    result = work()
    all_after, own_after = used()
    return ((all_after - all_before) - (own_after - own_before)) / (time.monotonic() - begin), result


def launch(build: pathlib.Path, bound: Bound, iters: int, more: set[str]) -> dict[tuple[str, str], float]:
    """One job -> the ratio of each operation to the limit and, by the options that are more, to all else."""
    options = [word for name in SHAPE[1:] for word in (f"--{name}", str(getattr(bound, name)))]
    options += ["--mode", bound.mode, "--iters", str(iters or iterations(bound)), "--warmup", "5", "--json", "-"]
    command = [build / "xep_run", "-r", "-n", str(bound.ranks), build / "xep_perf", *options, *sorted(more)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL)
    if run.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit status {run.returncode}\n{run.stderr}")
    ratios = {}
    result = json.loads(run.stdout)
    for op in result["ops"]:
        ratios[op["op"], "limit"] = op["us"]["median"] / op["limit_us"]
        if "--peer" in more:
            ratios[op["op"], "peer"] = op["us"]["median"] / op["peer_us"]
        if op["op"] == "dispatch" and "--in-place" in more:
            ratios["dispatch", "place"] = result["in_place"]["us"] / op["limit_us"]
            ratios["dispatch", "read"] = result["in_place"]["read_us"] / result["in_place"]["copied_read_us"]
    return ratios


def iterations(bound: Bound) -> int:
    """As many as take a second or so."""
    return min(1000, max(20, (1 << 32) // (bound.ranks * bound.tokens * bound.hidden * 16)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("bounds")
    parser.add_argument("--launches", type=int, default=7)
    parser.add_argument("--iters", type=int, default=0, help="of a launch (0: as many as take a second or so)")
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("words", nargs="*")
    chosen = parser.parse_intermixed_args()
    bounds = read_bounds(chosen.bounds, chosen.words)
    if not bounds or chosen.launches < 1:
        sys.exit(f"nothing to measure: no line of {chosen.bounds} has {' '.join(chosen.words) or 'a bound'}")
    shapes = {bound[:6]: bound for bound in bounds}
    options = collections.defaultdict(set)
    for bound in bounds:
        options[bound[:6]].update(filter(None, [OPTIONS.get(bound.against)]))
    found = collections.defaultdict(list)
    for number in range(chosen.launches):
        for shape, bound in shapes.items():
            progress(f"\rlaunch {number + 1} of {chosen.launches}")
            cores, ratios = others(lambda: launch(chosen.build, bound, chosen.iters, options[shape]))
            for what, ratio in ratios.items() if chosen.busy or cores < QUIET else ():
                found[shape, what].append(ratio)
    progress("\n")
    return report(bounds, found, min(ENOUGH, chosen.launches))


def progress(text: str) -> None:
    if sys.stderr.isatty():
        print(text, end="", file=sys.stderr, flush=True)


def report(bounds: list[Bound], found: dict, enough: int) -> int:
    slower = unknown = 0
    head = "".join(f"{name:>8}" for name in SHAPE)
    print(f"{'mode':8}{head}  {'op':9}{'to':6}{'bound':>6}{'ratio':>7}  {'interval'}")
    for bound in bounds:
        ratios = found[bound[:6], (bound.op, bound.against)]
        line = f"{bound.mode:8}" + "".join(f"{getattr(bound, name):8}" for name in SHAPE)
        line += f"  {bound.op:9}{bound.against:6}{bound.most:6.2f}"
        if len(ratios) < enough:
            unknown += 1
            print(f"{line}  not judged: the machine was quiet during {len(ratios)} launches")
            continue
        is_slower = min(ratios) > bound.most
        slower += is_slower
        print(f"{line} {statistics.median(ratios):6.2f}  {min(ratios):.2f}-{max(ratios):.2f}" + "  slower" * is_slower)
    print(f"{slower} of {len(bounds)} slower than their bound, {unknown} not judged")
    beaten = [(shape, op) for (shape, (op, against)), ratios in found.items() if against == "limit" and ratios
              and statistics.median(ratios) < BEATEN]
    for shape, op in beaten:
        ratio = statistics.median(found[shape, (op, "limit")])
        print(f"a limit that is beaten: {' '.join(map(str, shape))} {op}, {ratio:.2f}")
    return 1 if slower or beaten else 0


if __name__ == "__main__":
    sys.exit(main())
