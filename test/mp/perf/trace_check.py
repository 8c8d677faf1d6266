# SPDX-License-Identifier: BSD-3-Clause
"""Checks a merged trace; shares nothing with what writes it.

    trace_check.py FILE rounds TRUTH_FOLDER RANKS [AHEAD_SECONDS]
    trace_check.py FILE flood COUNT
    trace_check.py FILE killed TRUTH_FOLDER
    trace_check.py FILE missing RANK...
"""

import collections
import json
import pathlib
import sys


class Trace:
    def __init__(self, path):
        whole = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        self.ranks = {rank["rank"]: rank for rank in whole["otherData"]["ranks"]}
        self.tracks = {}
        self.spans = []
        self.arrows = collections.defaultdict(dict)
        assert whole["otherData"]["format"] == 1
        for event in whole["traceEvents"]:
            if event["ph"] == "M" and event["name"] == "thread_name":
                self.tracks[event["pid"], event["tid"]] = event["args"]["name"]
            if event["ph"] in "sf":
                self.arrows[event["id"]][event["ph"]] = event
            if event["ph"] != "X":
                continue
            event["begin"] = round(event["ts"] * 1000)  # nanoseconds, as whole numbers
            event["end"] = event["begin"] + round(event["dur"] * 1000)
            event.setdefault("args", {})
            self.spans.append(event)
        assert all(span["begin"] >= 0 for span in self.spans)

    def of(self, pid=None, **wanted):
        for span in self.spans:
            if pid in (None, span["pid"]) and all(
                span.get(key, span["args"].get(key)) == value for key, value in wanted.items()
            ):
                yield span


def check_nesting(trace):
    """On each track a span lies within another or beside it."""
    by_track = collections.defaultdict(list)
    for span in trace.spans:
        by_track[span["pid"], span["tid"]].append(span)
    for track, spans in by_track.items():
        assert track in trace.tracks, f"track {track} has no name"
        open_spans = []
        for span in sorted(spans, key=lambda span: (span["begin"], -span["end"])):
            while open_spans and open_spans[-1]["end"] <= span["begin"]:
                open_spans.pop()
            if open_spans:
                assert span["end"] <= open_spans[-1]["end"], f"{span} overlaps {open_spans[-1]}"
            span["inside"] = list(open_spans)
            open_spans.append(span)


def read_truth(folder, rank):
    for line in (pathlib.Path(folder) / f"truth.{rank}").read_text().splitlines():
        buffer, epoch, name, tokens, rows = line.split()
        yield int(buffer), int(epoch), name, int(tokens), int(rows)


def check_operations(trace, folder, rank):
    found = collections.Counter()
    for span in trace.of(pid=rank, cat="operation"):
        args = span["args"]
        assert args["status"] == 0
        found[args["buffer"], args["epoch"], span["name"], args["tokens"], args["rows"]] += 1
    truth = collections.Counter(read_truth(folder, rank))
    assert found == truth, f"rank {rank}: {found} is not {truth}"


def check_phases(trace):
    """Each phase and wait lies in the operation of its epoch, and what all operations do is in all of them."""
    inside = collections.defaultdict(set)
    for span in trace.spans:
        if span["cat"] not in ("phase", "wait"):
            continue
        outer = span["inside"][0]
        assert outer["cat"] == "operation" and outer["args"]["epoch"] == span["args"]["epoch"], span
        assert span["cat"] == "phase" or span["inside"][-1]["cat"] in ("phase", "wait"), span
        inside[outer["pid"], outer["args"]["buffer"], outer["args"]["epoch"]].add(span["name"])
    for span in trace.of(cat="operation"):
        names = inside[span["pid"], span["args"]["buffer"], span["args"]["epoch"]]
        wanted = {"dispatch": {"wait for rows"}, "combine": {"sum", "wait for outputs"}}[span["name"]]
        of_mode = [{"plan", "wait for counts", "rows"}, {"find places", "copy rows"}]
        if span["name"] == "dispatch":
            wanted |= of_mode[span["args"]["buffer"]]
        assert wanted <= names, f"{span}: {names}"


def check_late(trace, nranks):
    """In round i rank i % R came late: everybody else's longest wait for the first words of its dispatch is for it."""
    first_wait = ["wait for counts", "wait for rows"]  # of each mode
    for buffer in range(2):
        for number in range(4):
            late, longest = number % nranks, {}
            for rank in range(nranks):
                waits = [
                    span["end"] - span["begin"]
                    for span in trace.of(pid=rank, cat="wait", epoch=2 * number + 1, buffer=buffer)
                    if any(outer["name"] == first_wait[buffer] for outer in span["inside"])
                    and (rank == late or span["args"]["rank"] == late)
                ]
                longest[rank] = max(waits, default=0)
            shortest = min(wait for rank, wait in longest.items() if rank != late)
            assert shortest > longest[late], f"buffer {buffer}, round {number}: {longest}, of which {late} is late"


def check_arrows(trace):
    """Each leads from an operation to a wait for its rank in the operation of that epoch; few waits have none."""

    def at(end):
        ns = round(end["ts"] * 1000)
        return [s for s in trace.of(pid=end["pid"], tid=end["tid"]) if s["begin"] <= ns < s["end"]]

    for arrow in trace.arrows.values():
        assert arrow["s"]["ts"] <= arrow["f"]["ts"], arrow
        waits = [s for s in at(arrow["f"]) if s["cat"] == "wait" and s["args"]["rank"] == arrow["s"]["pid"]]
        epochs = [s["args"]["epoch"] for s in at(arrow["s"]) if s["cat"] == "operation"]
        assert waits and epochs == [waits[0]["args"]["epoch"]], (arrow, epochs, waits)
    waits = sum(1 for _ in trace.of(cat="wait"))
    assert waits / 2 < len(trace.arrows) <= waits, f"{len(trace.arrows)} arrows for {waits} waits"


def check_barriers(trace, nranks):
    """Nobody leaves one before all have entered, as far as the clocks are known to agree.

    Each clock is known with an error of its own, so those of two ranks differ by the sum of both.
    """
    by_number = collections.defaultdict(list)
    for span in trace.of(cat="call", name="barrier"):
        by_number[span["args"]["epoch"]].append(span)
    bounds = {number: rank["clock_bound_ns"] for number, rank in trace.ranks.items()}
    if not any(rank["clock_ahead_ns"] for rank in trace.ranks.values()):
        bounds = dict.fromkeys(bounds, 0)  # one clock
    assert len(by_number) >= 16
    for number, spans in by_number.items():
        assert len(spans) == nranks, f"barrier {number}: {len(spans)} ranks"
        last, first = max(s["begin"] - bounds[s["pid"]] for s in spans), min(s["end"] + bounds[s["pid"]] for s in spans)
        assert last <= first, f"barrier {number}, with clocks known to {bounds}: {spans}"


def check_program(trace, nranks):
    """The program's own spans, and its calls, on the tracks of its threads."""
    for rank in range(nranks):
        layers = list(trace.of(pid=rank, cat="span", name="layer"))
        assert len(layers) == 8 and {trace.tracks[s["pid"], s["tid"]] for s in layers} == {"program"}
        for name in ("dispatch", "combine"):
            calls = list(trace.of(pid=rank, cat="call", name=name))
            assert len(calls) == 8 and all(call["inside"][0]["name"] == "layer" for call in calls)
        for span in trace.of(pid=rank, cat="span", name='gemm "1" \u00e4\ufffd'):
            assert [outer["name"] for outer in span["inside"]] == ["layer", "experts"]
        assert len(list(trace.of(pid=rank, cat="span", name="experts"))) == 8
        (other,) = trace.of(pid=rank, cat="span", name="another thread")
        assert trace.tracks[rank, other["tid"]].startswith("thread ")
        assert not list(trace.of(pid=rank, name="of a child"))
        work = {trace.tracks[s["pid"], s["tid"]] for s in trace.of(pid=rank, cat="work")}
        assert work >= {"buffer 0 normal, thread 0", "buffer 0 normal, thread 1"}, work


def check_rounds(trace, folder, nranks, ahead="0"):
    nranks = int(nranks)
    assert sorted(trace.ranks) == list(range(nranks))
    for rank, summary in trace.ranks.items():
        assert summary["dropped"] == summary["lost"] == summary["damaged"] == 0
        expected = int(float(ahead) * 1e9) if rank >= 2 else 0
        assert expected or summary["clock_bound_ns"] == 0, f"one clock, but: {summary}"
        assert abs(summary["clock_ahead_ns"] - expected) <= summary["clock_bound_ns"] + 1000, summary
        check_operations(trace, folder, rank)
    check_nesting(trace)
    check_phases(trace)
    check_arrows(trace)
    check_late(trace, nranks)
    check_barriers(trace, nranks)
    check_program(trace, nranks)


def check_flood(trace, count):
    """The newest are there, one behind the other; the older ones are counted."""
    count = int(count)
    for rank, summary in trace.ranks.items():
        numbers = sorted(int(s["name"].split()[1]) for s in trace.of(pid=rank) if s["name"].startswith("flood"))
        assert numbers == list(range(count - len(numbers), count)), numbers
        assert 500 < len(numbers) < count / 2
        barriers = len(list(trace.of(pid=rank, name="barrier")))
        assert summary["events"] == len(numbers) + barriers
        all_barriers = 16 if len(trace.ranks) > 1 else 8  # 8 at either end, of a rank alone at the begin
        assert summary["dropped"] == all_barriers + count - summary["events"], summary
        assert not [s for s in trace.of(pid=rank) if s["name"] in ("never begun", "from the future")]


def check_killed(trace, folder):
    """Rank 1 left what it did before."""
    for rank in trace.ranks:
        check_operations(trace, folder, rank)
    check_nesting(trace)


def check_missing(trace, *ranks):
    missing = [rank for rank, summary in trace.ranks.items() if summary.get("missing")]
    assert missing == [int(rank) for rank in ranks], missing
    assert {span["pid"] for span in trace.spans} == set(trace.ranks) - set(missing)


checks = {"rounds": check_rounds, "flood": check_flood, "killed": check_killed, "missing": check_missing}
checks[sys.argv[2]](Trace(sys.argv[1]), *sys.argv[3:])
