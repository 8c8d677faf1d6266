# SPDX-License-Identifier: BSD-3-Clause
"""Pictures of what xep_perf wrote, and a sentence for what is none."""

import copy
import json
import subprocess
import sys
import xml.etree.ElementTree

import pytest
from programs import SLOW

import xep
from xep import plot


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Written by xep_perf itself: a sweep, and a run with waits."""
    folder = tmp_path_factory.mktemp("perf")
    small = ["--hidden", "64", "--experts", "9", "--topk", "2", "--iters", "2", "--warmup", "1"]
    for name, more in (("sweep", ["--sweep", "tokens=1..5"]), ("run", ["--tokens", "8", "--waits"])):
        command = ["xep_run", "-n", "2", "xep_perf", *small, *more, "--json", str(folder / f"{name}.json")]
        subprocess.run(command, check=True, timeout=100 * SLOW, stdout=subprocess.DEVNULL)
    return folder


def test_the_sweep_of_xep_perf(measured):
    whole = json.loads((measured / "sweep.json").read_text())
    assert whole["sweep"] == "tokens"
    assert [point["tokens"] for point in whole["results"]] == [1, 2, 4, 5]
    assert all(point["ranks"] == 2 and len(point["ops"]) == 2 for point in whole["results"])


def test_the_load_of_xep_perf(measured):
    run = json.loads((measured / "run.json").read_text())
    assert len(run["load"]["experts"]) == 9 and sum(run["load"]["experts"]) == 2 * 8 * 2
    assert sum(map(sum, run["load"]["rows"])) == run["ops"][0]["rows"]


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_pictures(measured, tmp_path, capsys, suffix):
    pytest.importorskip("matplotlib")
    others = tmp_path / "raw.txt"
    lines = [
        f"RES tag=a mode=normal R=2 T={tokens} H=64 K=2 E=9 G=0 impl=neighbour op={op} n=3 med_us={10 * tokens}.5"
        for tokens in (1, 2, 3)
        for op in ("dispatch", "combine")
    ]
    others.write_text("\n".join(["noise", *lines, "RES mode=ll R=9 T=1 H=1 K=1 E=1 impl=alien op=dispatch med_us=1"]))
    picture = tmp_path / f"all{suffix}"
    files = [str(measured / "sweep.json"), str(measured / "run.json")]
    assert plot.main([*files, "--others", str(others), "-o", str(picture)]) == 0
    assert capsys.readouterr().out == f"{picture}\n"
    if suffix == ".png":
        assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 20000
        return
    texts = {"".join(text.itertext()) for text in xml.etree.ElementTree.parse(picture).iter() if "text" in text.tag}
    assert {"dispatch", "combine", "a plain copy of the same rows", "time / plain", "neighbour", "rank that waits",
            "waited for rank, and by all together [µs]", "experts of even ranks, even ranks", "mean"} <= texts
    whole = " ".join(texts)
    assert "xep_perf --hidden 64" in whole and " x " in whole and "who is slow? rank" in whole
    assert "alien" not in texts
    assert any(text.startswith("selections: max / mean") for text in texts)


def test_one_panel_and_the_default_name(measured, tmp_path):
    pytest.importorskip("matplotlib")
    copied = tmp_path / "run.json"
    copied.write_bytes((measured / "run.json").read_bytes())
    assert plot.main([str(copied), "--what", "load"]) == 0
    assert copied.with_suffix(".png").exists()


def test_placements(tmp_path):
    pytest.importorskip("matplotlib")
    command = ["xep_perf", "--simulate", "4,2", "--tokens", "8", "--hidden", "64", "--experts", "8", "--topk", "2"]
    command += ["--placement", "--json", str(tmp_path / "placed.json")]
    subprocess.run(command, check=True, timeout=100 * SLOW, stdout=subprocess.DEVNULL)
    assert plot.main([str(tmp_path / "placed.json"), "-o", str(tmp_path / "placed.svg")]) == 0
    drawn = (tmp_path / "placed.svg").read_text()
    assert "64 replicas" in drawn and "selections: max / mean" in drawn


def damage(change):
    def make(measured, path):
        whole = copy.deepcopy(json.loads((measured / "run.json").read_text()))
        change(whole)
        path.write_text(json.dumps(whole))

    return make


def text(content):
    return lambda measured, path: path.write_text(content)


@pytest.mark.parametrize(
    "make, more, sentence",
    [
        (lambda measured, path: None, [], "No such file or directory"),
        (text("no JSON"), [], "not JSON (xep_perf --json FILE writes it)"),
        (text('{"traceEvents": []}'), [], "not a result of xep_perf"),
        (text("[1, 2]"), [], "not a result of xep_perf"),
        (text('{"placements": []}'), [], "invalid placements.imbalance: None (a number"),
        (text('{"sweep": "tokens", "results": []}'), [], "the sweep is empty"),
        (text('{"sweep": "colour", "results": []}'), [], "unknown sweep: 'colour' (tokens, hidden, topk, sms)"),
        (damage(lambda run: run.update(format=2)), [], "unknown format: 2 (1; a newer xep_perf needs"),
        (damage(lambda run: run.update(ops=[])), [], "nothing was timed"),
        (damage(lambda run: run.update(ranks="two")), [], "invalid ranks: 'two' (a number"),
        (damage(lambda run: run["ops"][0].update(op="fly")), [], "unknown operation in ops"),
        (damage(lambda run: run["ops"][0].update(us=3)), [], "invalid dispatch.us.median: None (a number"),
        (damage(lambda run: run["ops"][1].pop("limit_us")), [], "invalid combine.limit_us: None (a number"),
        (damage(lambda run: run["ops"][1].update(waits=[1])), [], "invalid combine.waits (waited_us of each of 2"),
        (damage(lambda run: run.update(load={"rows": 3})), [], "invalid load (experts of 9 experts, rows of 2 ranks)"),
        (damage(lambda run: None), ["--what", "tea"], "unknown --what: 'tea' (curves, waits, load, placement)"),
        (damage(lambda run: None), ["--what", "curves"], "nothing to draw as curves in "),
        (damage(lambda run: None), ["-o", "x.gif"], "invalid picture: x.gif (a name that ends with .png, .svg, .pdf)"),
        (damage(lambda run: None), ["-o", "/no/such/x.png"], "cannot write /no/such/x.png: No such file or directory"),
        (damage(lambda run: None), ["--others", __file__], "no line begins with RES"),
    ],
)
def test_what_cannot_be_drawn(measured, tmp_path, capsys, make, more, sentence):
    if any(part in sentence for part in ("invalid combine.waits", "load", "cannot write", "nothing to draw")):
        pytest.importorskip("matplotlib")
    path = tmp_path / "result.json"
    make(measured, path)
    assert plot.main([str(path), *more]) == 1
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith("xep_plot: ") and printed.err.count("\n") == 1
    assert sentence in printed.err


def test_version(capsys):
    with pytest.raises(SystemExit, match="0"):
        plot.parse(["--version"])
    assert capsys.readouterr().out == f"xep_plot {xep.version()}\n"


def test_without_matplotlib(measured):
    program = f"import sys; sys.modules['matplotlib'] = None; from xep import plot; plot.main(['{measured}/run.json'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60 * SLOW)
    assert done.stderr == "xep_plot: matplotlib is missing: pip install 'xep-moe[plot]', or pip install matplotlib\n"
