# SPDX-License-Identifier: BSD-3-Clause
"""Pictures of what xep_perf measured: ``xep_plot`` or ``python -m xep.plot``.

    xep_run -n 4 xep_perf --sweep tokens=1..4096 --json sweep.json
    xep_plot sweep.json                    # sweep.png: time, GB/s and the ratio, beside a plain copy

    xep_run -n 4 xep_perf --waits --json run.json
    xep_plot run.json -o run.svg           # who waits for whom; load of experts and ranks

    xep_perf --simulate 64,8 --tokens 256 --routing zipf:1.2 --placement --json placed.json
    xep_plot placed.json                   # what other places for experts would be worth

Several files are drawn into one picture. Needs matplotlib: ``pip install 'xep-moe[plot]'``.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
from typing import Any, NamedTuple, Optional

from ._ext import version
from .layout import expert_range

PANELS = ("curves", "waits", "load", "placement")
SUFFIXES = (".png", ".svg", ".pdf")
COLORS = ("#0b6fb8", "#d1495b", "#3a7d44", "#8e5ea2", "#c77c11", "#4b5563")  # of files; told apart without colour, too
MARKERS = ("o", "s", "^", "D", "v", "P")
OTHER_COLORS = ("#9a8c98", "#b08968", "#7f9c96", "#a3a380", "#8d99ae", "#bc8f8f")


class PlotError(Exception):
    """What is wrong, in a sentence."""


class Point(NamedTuple):
    """One run of xep_perf: its shape, and its operations by their names."""

    shape: dict[str, Any]
    ops: dict[str, Any]


class Result(NamedTuple):
    """One file of xep_perf. swept: the option that differs between its points; None: it has one."""

    path: pathlib.Path
    swept: Optional[str]
    points: list[Point]


class Other(NamedTuple):
    """One measurement of another implementation, of a line that begins with RES."""

    name: str
    op: str
    shape: tuple[Any, ...]
    tokens: int
    us: float


# ---- reading ----


SWEPT = {"tokens": "tokens of a rank", "hidden": "elements of a row", "topk": "top-k", "sms": "multiprocessors"}


def read_number(path: pathlib.Path, where: str, holder: Any, name: str) -> float:
    value = holder.get(name) if isinstance(holder, dict) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise PlotError(f"{path}: invalid {where}{name}: {value!r} (a number, as xep_perf --json writes it)")
    return value


def read_point(path: pathlib.Path, whole: Any) -> Point:
    if isinstance(whole, dict) and whole.get("format", 1) != 1:
        raise PlotError(f"{path}: unknown format: {whole['format']!r} (1; a newer xep_perf needs a newer xep_plot)")
    if not isinstance(whole, dict) or not isinstance(whole.get("ops"), list):
        raise PlotError(f"{path}: not a result of xep_perf (it has no ops; xep_perf --json FILE writes one)")
    for name in ("ranks", "tokens", "hidden", "topk", "experts"):
        read_number(path, "", whole, name)
    ops = {}
    for op in whole["ops"]:
        if not isinstance(op, dict) or op.get("op") not in ("dispatch", "combine"):
            raise PlotError(f"{path}: unknown operation in ops (dispatch or combine)")
        for name in ("median", "p10", "p90"):
            read_number(path, f"{op['op']}.us.", op.get("us"), name)
        read_number(path, f"{op['op']}.gbps.", op.get("gbps"), "dedup")
        read_number(path, f"{op['op']}.", op, "limit_us")
        ops[op["op"]] = op
    if not ops:
        raise PlotError(f"{path}: nothing was timed (xep_perf without --check-only times)")
    return Point(whole, ops)


def read_placements(path: pathlib.Path, whole: dict[str, Any]) -> Point:
    placements = whole["placements"]
    for placed in placements if isinstance(placements, list) and placements else [None]:
        for name in ("imbalance", "us"):
            read_number(path, "placements.", placed, name)
    for name in ("ranks", "tokens", "hidden", "topk", "experts"):
        read_number(path, "", whole, name)
    return Point(whole, {})


def read_result(path: pathlib.Path) -> Result:
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlotError(f"{path}: {error.strerror}") from None
    except ValueError:
        raise PlotError(f"{path}: not JSON (xep_perf --json FILE writes it)") from None
    if isinstance(whole, dict) and "placements" in whole:
        return Result(path, None, [read_placements(path, whole)])
    if not isinstance(whole, dict) or "sweep" not in whole:
        return Result(path, None, [read_point(path, whole)])
    if whole["sweep"] not in SWEPT:
        raise PlotError(f"{path}: unknown sweep: {whole['sweep']!r} ({', '.join(SWEPT)})")
    points = whole.get("results")
    if not isinstance(points, list) or not points:
        raise PlotError(f"{path}: the sweep is empty (xep_perf --sweep {whole['sweep']}=1..4096 --json FILE)")
    points = [read_point(path, point) for point in points]
    for point in points:
        read_number(path, "", point.shape, whole["sweep"])
    return Result(path, whole["sweep"], sorted(points, key=lambda point: point.shape[whole["sweep"]]))


def read_others(path: pathlib.Path) -> list[Other]:
    """Lines "RES key=value ...": impl, op, mode, R, T, H, K, E and med_us; all others are left out."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise PlotError(f"{path}: {getattr(error, 'strerror', None) or 'not a text'}") from None
    others = []
    for number, line in enumerate(lines, 1):
        if not line.startswith("RES "):
            continue
        fields = dict(word.split("=", 1) for word in line.split()[1:] if "=" in word)
        try:
            shape = (fields["mode"], *(int(fields[key]) for key in "RHKE"))
            others.append(Other(fields["impl"], fields["op"], shape, int(fields["T"]), float(fields["med_us"])))
        except (KeyError, ValueError) as error:
            raise PlotError(f"{path}:{number}: missing or invalid field: {error}") from None
    if not others:
        raise PlotError(f"{path}: no line begins with RES, so no other implementation is in it")
    return others


# ---- curves ----

# what xep_perf calls the limit: loops of the same processes over the same bytes, which an operation may beat
PLAIN = {"dispatch": "a plain copy of the same rows", "combine": "a plain sum of the same rows"}


def label_of(result: Result) -> str:
    shape = result.points[0].shape
    fixed = [f"top {shape['topk']} of {shape['experts']}"] if result.swept != "topk" else []
    if result.swept != "hidden":
        fixed.append(f"hidden {shape['hidden']}")
    return f"{shape.get('mode', 'xep')}, {shape['ranks']} ranks, {', '.join(fixed)}"


def find_others(result: Result, others: list[Other], op: str) -> dict[str, dict[int, float]]:
    """Time over tokens of each other implementation, of the same shape as the result."""
    shape = result.points[0].shape
    wanted = (shape.get("mode"), shape["ranks"], shape["hidden"], shape["topk"], shape["experts"])
    found: dict[str, dict[int, list[float]]] = {}
    for other in others:
        if result.swept == "tokens" and other.op == op and other.shape == wanted:
            found.setdefault(other.name, {}).setdefault(other.tokens, []).append(other.us)
    return {
        name: {tokens: statistics.median(times) for tokens, times in sorted(by_tokens.items())}
        for name, by_tokens in sorted(found.items())
    }


def draw_result(time: Any, rate: Any, ratio: Any, result: Result, op: str, number: int) -> None:
    points = [point for point in result.points if op in point.ops]
    x = [point.shape[str(result.swept)] for point in points]
    median, p10, p90 = ([point.ops[op]["us"][name] for point in points] for name in ("median", "p10", "p90"))
    limit = [point.ops[op]["limit_us"] or float("nan") for point in points]
    gbps = [point.ops[op]["gbps"]["dedup"] for point in points]
    color = COLORS[number % len(COLORS)]
    style = {"color": color, "marker": MARKERS[number % len(MARKERS)], "markersize": 4, "linewidth": 1.8}
    time.fill_between(x, p10, p90, color=color, alpha=0.15, linewidth=0)
    time.plot(x, median, label=label_of(result), **style)
    time.plot(x, limit, color=color, linestyle=(0, (4, 2)), linewidth=1.1, label=PLAIN[op])
    rate.plot(x, gbps, **style)
    rate.plot(
        x,
        [value * us / least for value, us, least in zip(gbps, median, limit)],
        color=color,
        linestyle=(0, (4, 2)),
        linewidth=1.1,
    )
    ratio.plot(x, [us / least for us, least in zip(median, limit)], **style)


def draw_others(time: Any, rate: Any, result: Result, others: list[Other], op: str) -> None:
    moved = {
        point.shape["tokens"]: point.ops[op]["gbps"]["dedup"] * point.ops[op]["us"]["median"]
        for point in result.points
        if op in point.ops
    }
    for number, (name, by_tokens) in enumerate(find_others(result, others, op).items()):
        color, marker = OTHER_COLORS[number % len(OTHER_COLORS)], MARKERS[(number + 1) % len(MARKERS)]
        style = {"color": color, "marker": marker, "markersize": 3.5, "linewidth": 1.1}
        time.plot(list(by_tokens), list(by_tokens.values()), label=name, **style)
        common = [tokens for tokens in by_tokens if tokens in moved]
        rate.plot(common, [moved[tokens] / by_tokens[tokens] for tokens in common], **style)


def short(value: float, _position: Any = None) -> str:
    """1, 64, 4k: for axes that grow by factors."""
    if value >= 1024 and value % 1024 == 0:
        return f"{value / 1024:g}k"
    return f"{value:g}"


def draw_curves(figure: Any, results: list[Result], others: list[Other]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    swept = {result.swept for result in results}
    if len(swept) > 1:
        raise PlotError(f"sweeps of {' and '.join(sorted(map(str, swept)))} do not fit into one picture")
    axes = figure.subplots(3, 2, sharex=True, height_ratios=(3, 2, 1.4))
    option = str(swept.pop())
    for column, op in enumerate(("dispatch", "combine")):
        time, rate, ratio = (row[column] for row in axes)
        for number, result in enumerate(results):
            draw_result(time, rate, ratio, result, op, number)
            draw_others(time, rate, result, others, op)
        time.set_title(op, loc="left", fontweight="bold")
        time.set_yscale("log")
        time.yaxis.set_minor_locator(NullLocator())
        rate.set_ylim(bottom=0)
        ratio.axhline(1, color="black", linewidth=0.9, linestyle=(0, (4, 2)))
        ratio.set_ylim(bottom=0)
        ratio.set_xscale("log", base=2)
        ratio.xaxis.set_major_locator(LogLocator(base=2, numticks=9))
        ratio.xaxis.set_major_formatter(FuncFormatter(short))
        ratio.set_xlabel(SWEPT[option])
        for axis in (time, rate, ratio):
            axis.grid(True, which="major", alpha=0.25)
    axes[0][0].set_ylabel("median time [µs], p10 to p90")
    axes[1][0].set_ylabel("rows received [GB/s]")
    axes[2][0].set_ylabel("time / plain")
    unique = {
        label: handle
        for axis in axes[0]
        for handle, label in zip(*axis.get_legend_handles_labels())
    }
    figure.legend(unique.values(), unique.keys(), loc="outside lower center", ncols=min(3, len(unique)), frameon=False)


# ---- waits ----


def is_square(matrix: Any, size: int) -> bool:
    return (
        isinstance(matrix, list)
        and len(matrix) == size
        and all(isinstance(row, list) and len(row) == size for row in matrix)
        and all(isinstance(value, (int, float)) for row in matrix for value in row)
    )


def read_waits(result: Result, op: str) -> list[list[float]]:
    """[waiting][late] microseconds of one operation."""
    point, late = result.points[0], result.points[0].ops[op]["waits"]
    late = late if isinstance(late, list) else []
    by_late: Any = [entry.get("waited_us") for entry in late if isinstance(entry, dict)]
    if not is_square(by_late, point.shape["ranks"]):
        raise PlotError(f"{result.path}: invalid {op}.waits (waited_us of each of {point.shape['ranks']} ranks)")
    return [list(row) for row in zip(*by_late)]


def draw_waits(figure: Any, result: Result) -> None:
    ops = [op for op in ("dispatch", "combine") if "waits" in result.points[0].ops.get(op, {})]
    matrices = {op: read_waits(result, op) for op in ops}
    most = max(max(map(max, matrix)) for matrix in matrices.values()) or 1.0
    axes = figure.subplots(1, len(matrices), squeeze=False)[0]
    for axis, (op, matrix) in zip(axes, matrices.items()):
        shown = [[us if waiting != late else float("nan") for late, us in enumerate(row)]
                 for waiting, row in enumerate(matrix)]
        totals = [sum(row[late] for row in matrix) for late in range(len(matrix))]
        image = axis.imshow(shown, cmap="YlOrRd", vmin=0, vmax=most)
        axis.set_title(f"{op}: who is slow? rank {totals.index(max(totals))}", loc="left", fontweight="bold")
        axis.set_xlabel("waited for rank, and by all together [µs]")
        axis.set_xticks(range(len(matrix)), [f"{late}\n{total:.0f}" for late, total in enumerate(totals)]
                        if len(matrix) <= 16 else None)
        axis.set_yticks(range(len(matrix)))
        if len(matrix) <= 16:
            for waiting, row in enumerate(matrix):
                for late, us in enumerate(row):
                    if late == waiting:
                        continue
                    axis.text(late, waiting, f"{us:.0f}", ha="center", va="center", fontsize=8,
                              color="white" if us > 0.6 * most else "black")
    axes[0].set_ylabel("rank that waits")
    figure.colorbar(image, ax=list(axes), label="waited in one operation [µs]", shrink=0.85)


# ---- load ----


def draw_load(figure: Any, result: Result) -> None:
    from matplotlib.patches import Patch

    shape = result.points[0].shape
    load: Any = shape["load"] if isinstance(shape["load"], dict) else {}
    experts, rows, ranks = load.get("experts"), load.get("rows"), shape["ranks"]
    if not is_square([experts] * shape["experts"], shape["experts"]) or not is_square(rows, ranks):
        raise PlotError(f"{result.path}: invalid load (experts of {shape['experts']} experts, rows of {ranks} ranks)")
    received = [sum(row[rank] for row in rows) for rank in range(ranks)]
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    for rank in range(ranks):
        first, count = expert_range(len(experts), ranks, rank)
        own = range(first, first + count)
        left.bar(own, experts[first : first + count], width=1.0, color=COLORS[rank % 2], linewidth=0)
    for axis, values, what in ((left, experts, "selections"), (right, received, "rows received")):
        mean = sum(values) / len(values)
        axis.axhline(mean, color="black", linewidth=0.9, linestyle=(0, (4, 2)), label="mean")
        if mean > 0:
            axis.set_title(f"{what}: max / mean {max(values) / mean:.2f}", loc="left", fontsize=10)
        axis.margins(x=0.01)
        axis.grid(True, axis="y", alpha=0.25)
    right.bar(range(ranks), received, color=[COLORS[rank % 2] for rank in range(ranks)], width=0.8)
    right.set_xticks(range(ranks) if ranks <= 16 else range(0, ranks, ranks // 8))
    left.set_xlabel("expert")
    left.set_ylabel("selections")
    right.set_xlabel("rank")
    right.set_ylabel("rows")
    mean, _ = left.get_legend_handles_labels()
    patches = [Patch(color=COLORS[odd]) for odd in (0, 1)]
    figure.legend([*patches, *mean], ["experts of even ranks, even ranks", "of odd ranks", "mean"],
                  loc="outside lower center", ncols=3, frameon=False)


# ---- placement ----


def draw_placement(figure: Any, result: Result) -> None:
    placements = result.points[0].shape["placements"]
    names = [str(placed.get("name")) for placed in placements]
    left, right = figure.subplots(1, 2, sharey=True)
    for axis, name, what in ((left, "imbalance", "selections: max / mean"), (right, "us", "dispatch and combine, us")):
        axis.barh(names, [placed[name] for placed in placements], color=COLORS[0])
        axis.set_title(what, loc="left", fontsize=10)
        axis.grid(True, axis="x", alpha=0.25)
    left.axvline(1, color="black", linewidth=0.9, linestyle=(0, (4, 2)))
    left.invert_yaxis()


# ---- the picture ----


def title_of(result: Result) -> str:
    shape = result.points[0].shape
    return (
        f"{shape.get('mode', 'xep')}, {shape['ranks']} ranks, {shape['tokens']} tokens a rank, "
        f"hidden {shape['hidden']}, top {shape['topk']} of {shape['experts']}, routing {shape.get('routing', '?')}"
    )


def source_of(results: list[Result]) -> str:
    """What was run, where, and by which version: a line for each file."""
    lines = []
    for result in results:
        shape = result.points[0].shape
        names = (("xep ", "version"), ("UCX ", "ucx"), ("", "machine"), ("", "command"))
        lines.append("; ".join(f"{what}{shape[name]}" for what, name in names if name in shape))
    return "\n".join(dict.fromkeys(lines))


def choose_panels(results: list[Result], wanted: Optional[list[str]]) -> list[tuple[str, list[Result]]]:
    """What there is data for; each wanted one must be."""
    sweeps = [result for result in results if result.swept is not None]
    single = [result for result in results if result.swept is None]
    chosen = [("curves", sweeps)] if sweeps else []
    for result in single:
        if any("waits" in op for op in result.points[0].ops.values()):
            chosen.append(("waits", [result]))
        if "load" in result.points[0].shape:
            chosen.append(("load", [result]))
        if "placements" in result.points[0].shape:
            chosen.append(("placement", [result]))
    needs = {"curves": "--sweep", "waits": "--waits", "load": "--json and no --sweep", "placement": "--placement"}
    for name in wanted or ():
        if name not in [panel for panel, _ in chosen]:
            raise PlotError(f"nothing to draw as {name} in {', '.join(str(result.path) for result in results)} "
                            f"(xep_perf {needs[name]} measures it)")
    chosen = [(name, its) for name, its in chosen if not wanted or name in wanted]
    if not chosen:
        raise PlotError(f"nothing to draw in {results[0].path} (xep_perf --sweep or --waits measures more)")
    return chosen


def draw(results: list[Result], others: list[Other], wanted: Optional[list[str]] = None) -> Any:
    """A figure of matplotlib."""
    try:
        import matplotlib
    except ImportError:
        raise PlotError("matplotlib is missing: pip install 'xep-moe[plot]', or pip install matplotlib") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = choose_panels(results, wanted)
    heights = {"curves": 7.5, "waits": 3.8, "load": 3.2, "placement": 3.2}
    drawers = {"waits": draw_waits, "load": draw_load, "placement": draw_placement}
    pyplot.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False,
                            "svg.fonttype": "none", "svg.hashsalt": "xep"})
    source = source_of(results)
    figure = pyplot.figure(figsize=(9, sum(heights[name] for name, _ in panels)), layout="constrained")
    figure.supxlabel(source, x=0.01, ha="left", fontsize=6.5, color="#555555", wrap=True)
    parts = figure.subfigures(len(panels), 1, squeeze=False, height_ratios=[heights[name] for name, _ in panels])
    titled = None
    for part, (name, its) in zip(parts[:, 0], panels):
        if name == "curves":
            draw_curves(part, its, others)
            continue
        if its[0] is not titled:
            part.suptitle(title_of(its[0]), fontsize=10)
        titled = its[0]
        drawers[name](part, its[0])
    return figure


def parse(arguments: Optional[list[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="xep_plot", description="Draws what xep_perf --json wrote.")
    parser.add_argument("-V", "--version", action="version", version=f"xep_plot {version()}")
    parser.add_argument("files", nargs="+", type=pathlib.Path, metavar="FILE", help="results of xep_perf --json")
    parser.add_argument("-o", "--output", type=pathlib.Path, metavar="PICTURE",
                        help="a .png, .svg or .pdf; default: the first FILE, as .png")
    parser.add_argument("--what", metavar="PANELS", help=f"of {', '.join(PANELS)}, by commas; default: all there is")
    parser.add_argument("--others", action="append", default=[], type=pathlib.Path, metavar="FILE",
                        help='times of other implementations: lines "RES mode=.. R=.. T=.. H=.. K=.. E=.. impl=.. '
                             'op=.. med_us=..", drawn where the shape is the same')
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> pathlib.Path:
    output = options.output or options.files[0].with_suffix(".png")
    if output.suffix not in SUFFIXES:
        raise PlotError(f"invalid picture: {output} (a name that ends with {', '.join(SUFFIXES)})")
    wanted = options.what.split(",") if options.what is not None else None
    for name in wanted or ():
        if name not in PANELS:
            raise PlotError(f"unknown --what: {name!r} ({', '.join(PANELS)})")
    results = [read_result(path) for path in options.files]
    others = [other for path in options.others for other in read_others(path)]
    figure = draw(results, others, wanted)
    try:
        metadata = {".svg": {"Date": None}, ".png": {"Software": None}}.get(output.suffix)
        figure.savefig(output, dpi=110, metadata=metadata)
    except OSError as error:
        raise PlotError(f"cannot write {output}: {error.strerror}") from None
    return output


def main(arguments: Optional[list[str]] = None) -> int:
    try:
        print(run(parse(arguments)))
    except PlotError as error:
        print(f"xep_plot: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
