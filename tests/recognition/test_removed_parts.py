"""What a trace lacks makes labels and findings fewer, not others."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from chopper_core.ingest.open import open_run
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL
from chopper_core.model.view import View
from chopper_core.views.query import query
from tests.demo import DEMO, demo_run
from tests.removals import REMOVALS, Remove

STEPS = 2


def opened(folder: Path, remove: Remove) -> Run:
    folder.mkdir()
    for path in sorted((DEMO / "fsdp2").glob("rank*.json.gz")):
        with gzip.open(path, "rt") as file:
            document = json.load(file)
        document["traceEvents"] = remove(document["traceEvents"])
        (folder / path.stem).write_text(json.dumps(document))
    return open_run(str(folder), jobs=1)


def phases(run: Run) -> dict[tuple[int, int], int]:
    """The phase of each activity, by GPU and start."""
    table = run.table
    rows = (table.gpu.tolist(), table.start_ns.tolist(), table.phase.tolist())
    return {(gpu, start): phase for gpu, start, phase in zip(*rows, strict=True)}


def findings(run: Run) -> Iterable[dict[str, Any]]:
    frame = query(run, View(run.name, name="findings"))
    return (frame.row(row) for row in range(len(frame)))


@pytest.mark.few(1)
@pytest.mark.parametrize("removed", REMOVALS)
def test_the_rest_says_what_the_whole_says(removed: str, tmp_path: Path) -> None:
    run, whole = opened(tmp_path / "run", REMOVALS[removed]), demo_run()
    own, its = (query(each, View(each.name, name="overview")).row(0) for each in (run, whole))
    # Without annotations a step ends with its last kernel.
    assert own["iteration_ns"] == pytest.approx(its["iteration_ns"], rel=1e-3)
    # Labels are the same, or none; but for the kernel that makes the first gradient, which only
    # annotations show to be backward.
    known = phases(whole)
    wrong = [at for at, phase in phases(run).items() if known[at] != phase != NO_LABEL]
    assert len(wrong) <= STEPS * len(run.gpus)
    # The first cause is, too, and what it saves, if that can be replayed.
    first, of_whole = next(iter(findings(run))), next(iter(findings(whole)))
    assert first["rule"] == of_whole["rule"] and str(first["detail"]).startswith("GPU 5 ")
    if first["saving_ns"] is not None:
        assert first["saving_ns"] == pytest.approx(of_whole["saving_ns"], rel=0.25)
    rules = {each["rule"] for each in findings(whole)} | {"missing", "labels", "exposed"}
    assert {each["rule"] for each in findings(run)} <= rules, removed
