"""Labels of generated runs in other styles, against the generator's own labels."""

from __future__ import annotations

import importlib
import json
import re
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chopper_core.ingest.open import open_run
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL
from tests.align.generated import activity_rows, load_generator

STYLES = ("module", "module recomputing", "fsdp", "stages")
NAMES_OF_FSDP = ("fsdp_copy_in", "fsdp_copy_out", "all_gather", "reduce_scatter")
UNNAMED = ("opt_gc", "dl", "l", "cel", *NAMES_OF_FSDP)
"""Operations of which a trace without annotations shows only the operators."""

Key = tuple[int, int, str]


class Truth:
    """A simulated run, its traces on disk, and the true label of each activity."""

    def __init__(self, style: str, folder: Path, **options: Any) -> None:
        load_generator()
        planted = importlib.import_module("generator.planted")
        config = planted.STYLES[style]
        ranks = max(2, config.tensor * config.stages)
        config = replace(
            config, ranks=ranks, iterations=3, microsteps=min(config.microsteps, 2), **options
        )
        simulated = planted.simulated(config)
        simulated.write(folder)
        self.folder = folder
        self.labels: dict[int, list[tuple[int, str, Any]]] = defaultdict(list)
        for trace in simulated.traces:
            for each in trace.activities:
                self.labels[trace.rank].append((each.start_ns, each.kernel.name, each.label))

    def beside(self, run: Run) -> list[tuple[Any, dict[str, Any]]]:
        """The true and our labels of each activity of a run, matched by rank, start and name."""
        table = run.table
        found = []
        for rank, activities in self.labels.items():
            rows = activity_rows(table)
            rows = rows[table.gpu[rows] == rank]
            own = {(int(table.start_ns[r]), table.names[table.kernel[r]]): r for r in rows}
            # The last activity is in every cut of the trace too.
            offset = int(table.start_ns[rows].max()) - max(start for start, *_ in activities)
            for start, name, label in activities:
                row = own.get((start + offset, name))
                if row is not None:
                    found.append((label, ours_of(run, row)))
        assert len(found) == len(activity_rows(table))
        return found


def ours_of(run: Run, row: int) -> dict[str, Any]:
    table = run.table
    layer = int(table.layer[row])
    return {
        "iteration": int(table.iteration[row]),
        "phase": table.text_of("phase", int(table.phase[row])),
        "layer": None if layer == NO_LABEL else layer,
        "operation": table.text_of("operation", int(table.operation[row])),
    }


def wrong(pairs: list[tuple[Any, dict[str, Any]]], level: str) -> Counter[Any]:
    """(True label, ours) of activities whose label differs, with how often."""
    return Counter(
        (getattr(truth, level), ours[level], truth.operation)
        for truth, ours in pairs
        if getattr(truth, level) != ours[level]
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("style", STYLES)
def test_labels_of_a_style_are_the_truth_s(style: str, tmp_path: Path) -> None:
    truth = Truth(style, tmp_path / "run")
    pairs = truth.beside(open_run(str(truth.folder), jobs=1))
    assert wrong(pairs, "iteration") == {}
    # The gradient of the loss is made on the main thread, before autograd starts.
    assert {operation for _, _, operation in wrong(pairs, "phase")} <= {"l"}
    # A stage's trace counts its own layers.
    if style != "stages":
        assert wrong(pairs, "layer") == {}
    named = [
        (replace(label, operation=label.operation + " (recompute)" * label.recompute), ours)
        for label, ours in pairs
        if label.operation not in UNNAMED
    ]
    if style.startswith("module"):
        assert wrong(named, "operation") == {}


def test_rotation_and_repetition_of_heads_are_told_apart_by_shapes(tmp_path: Path) -> None:
    """FSDP's ranges name layers only; what lies between products is told by their order."""
    truth = Truth("fsdp", tmp_path / "run", rotates=True)
    pairs = truth.beside(open_run(str(truth.folder), jobs=1))
    own = [pair for pair in pairs if pair[0].operation in ("qkv_re", "attn_i", "attn_fa", "q_ip")]
    assert Counter(label.operation for label, _ in own)["attn_i"] > 50
    assert wrong(own, "operation") == {}


@pytest.mark.few(1)
@pytest.mark.parametrize("style", ["module", "module recomputing"])
def test_a_profiler_that_starts_in_backward_gives_the_same_layers(
    style: str, tmp_path: Path
) -> None:
    truth = Truth(style, tmp_path / "run")
    for path in truth.folder.glob("rank*.json"):
        document = json.loads(path.read_text())
        document["traceEvents"] = from_backward(document["traceEvents"])
        path.write_text(json.dumps(document))
    pairs = truth.beside(open_run(str(truth.folder), jobs=1))
    later = [pair for pair in pairs if pair[0].iteration > pairs[0][0].iteration]
    assert len(later) > 400
    assert wrong(later, "layer") == {}
    # In the cut iteration a layer may be open, never another one.
    cut = [pair for pair in pairs if pair[0].iteration == pairs[0][0].iteration]
    assert all(ours is None for _, ours, _ in wrong(cut, "layer"))


def from_backward(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events from within the first backward on; frames are numbered by their first call."""
    host = [each for each in events if each.get("cat") in ("cpu_op", "python_function")]
    nodes = [each["ts"] for each in host if each["name"].startswith("autograd::engine::evaluate")]
    start = sorted(nodes)[2] - 0.001
    launched = {
        each["args"]["correlation"]
        for each in events
        if each.get("cat") == "cuda_runtime" and each["ts"] >= start
    }
    kept = []
    for each in events:
        category = each.get("cat")
        if category in ("kernel", "gpu_memcpy", "gpu_memset"):
            if each["args"]["correlation"] in launched:
                kept.append(each)
        elif each["ph"] == "M" or each["ts"] >= start:
            kept.append(each)
    numbers: dict[str, dict[str, int]] = defaultdict(dict)
    for each in sorted((e for e in kept if e.get("cat") == "python_function"), key=_start):
        match = re.match(r"(nn\.Module: .+)_(\d+)$", each["name"])
        if match:
            number = numbers[match[1]].setdefault(match[2], len(numbers[match[1]]))
            each["name"] = f"{match[1]}_{number}"
    return kept


def _start(event: dict[str, Any]) -> float:
    return float(event["ts"])
