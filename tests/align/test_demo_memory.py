"""The demo run with events of memory, against its truth and a plain sum of its events."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path

import pytest

from chopper_core.model.view import View
from chopper_core.views.query import query
from chopper_tui.cli import main
from tests.align.generated import load_generator
from tests.demo import DEMO, demo_run
from tests.wording import Wording

FOLDER = DEMO / "memory"


def test_the_peak_is_the_truths_and_its_holders_add_up_to_it() -> None:
    truth = json.loads((FOLDER / "truth.json").read_text())["memory"]
    run = demo_run("memory")
    for gpu, peak in truth["peak_bytes"].items():
        frame = query(run, View(run.name, (gpu,), name="memory", by="operation"))
        held = frame.values["held_bytes"]
        assert sum(int(held.at(row) or 0) for row in range(len(frame))) == peak


def test_events_balance_and_what_the_loop_keeps_is_found(wording: Wording) -> None:
    truth = json.loads((FOLDER / "truth.json").read_text())["memory"]
    for rank in (0, 1):
        trace = json.loads(gzip.decompress((FOLDER / f"rank{rank}.json.gz").read_bytes()))
        assert "generated" in trace["traceName"] and trace["chopper_generated"]
        events = [e["args"] for e in trace["traceEvents"] if e["name"] == "[memory]"]
        allocated = events[0]["Total Allocated"] - events[0]["Bytes"]
        alive: dict[int, int] = defaultdict(int)
        for event in events:
            allocated += event["Bytes"]
            assert allocated == event["Total Allocated"] <= event["Total Reserved"]
            alive[event["Addr"]] += event["Bytes"]
        kept = [size for size in alive.values() if size > 0]
        assert kept == [truth["kept_bytes"]] * len(truth["iterations"])
        assert max(e["Total Allocated"] for e in events) == truth["peak_bytes"][str(rank)]
    run = demo_run("memory")
    found = query(run, View(run.name, name="findings"))
    rules = [found.values["rule"].cell(row) for row in range(len(found))]
    wording(found.labels[rules.index("memory-growth")], "2.101 GB")


def test_it_is_made_byte_for_byte(tmp_path: Path) -> None:
    generator = load_generator()
    generator.write(tmp_path, generator.RUNS["memory"])
    for path in FOLDER.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name


def test_the_demo_shows_it(capsys: pytest.CaptureFixture[str], wording: Wording) -> None:
    assert main(["demo", "--memory"]) == 0
    assert "demo_data/memory" in capsys.readouterr().out
    assert main(["demo", "--memory", "--live"]) == 2
    wording(capsys.readouterr().err, "--memory")
