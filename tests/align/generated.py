"""Generated runs with the generator's own labels, matched activity by activity to ours."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from chopper_core.ingest.open import open_run
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL, Category, KernelTable, Kind, Rule

DEMO = Path(__file__).resolve().parents[2] / "demo_data"
CUT_ITERATION = 10
SMALL = {"ranks": 2, "iterations": 2, "layers": 4}
VARIANTS: dict[str, dict[str, bool]] = {
    "annotated": {},
    "recompute": {"recompute": True},
    "bare": {"annotations": False},
    "bare recompute": {"annotations": False, "recompute": True},
}
LEVELS = ("iteration", "phase", "layer", "operation")

# What FSDP's own kernels are called: by the truth for what they do, by ours for FSDP's range.
FSDP_NAMES = {
    "fsdp_copy_in": ("FSDP::all_gather_copy_in", "FSDP::post_backward_reduce"),
    "fsdp_copy_out": ("FSDP::all_gather_copy_out",),
}


def load_generator() -> ModuleType:
    """The generator's script as a module."""
    name = "demo_generate"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, DEMO / "generate.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # its dataclasses look their module up
        spec.loader.exec_module(module)
    return sys.modules[name]


@dataclass(frozen=True, slots=True)
class Activity:
    """One activity with the labels it should have and the labels that we give it."""

    rank: int
    kernel: str
    start_ns: int
    correlation: int
    kind: Kind
    linked: bool
    recompute: bool
    truth: dict[str, Any]
    ours: dict[str, Any]
    rules: dict[str, Rule]
    is_cut: bool
    """Whether it is of the iteration that the profiler's start cut: it is outside of steps."""

    @property
    def is_fsdp_copy(self) -> bool:
        return self.truth["operation"] in FSDP_NAMES

    def is_right(self, level: str) -> bool:
        """Whether our label is the true one; where the truth has no operation, any will do."""
        wanted, given = self.truth[level], self.ours[level]
        if level != "operation":
            return bool(wanted == given)
        names = FSDP_NAMES.get(wanted, (wanted,))
        suffix = " (recompute)" if self.recompute else ""
        return any(given == f"{name}{suffix}" for name in names)

    def says(self, level: str) -> str:
        """What is wrong at a level, for a failing test's message."""
        return (
            f"rank {self.rank} {level}: {self.truth[level]} -> {self.ours[level]} "
            f"by {self.rules[level].name}, launched {self.linked}, {self.truth}, {self.kernel[:60]}"
        )


@dataclass(frozen=True, slots=True)
class Generated:
    """A generated run."""

    folder: Path
    run: Run
    activities: tuple[Activity, ...]

    def of(self, *, cut: bool | None = None, linked: bool | None = None) -> list[Activity]:
        """The activities of the cut or the complete iterations, launched ones or the others."""
        return [
            each
            for each in self.activities
            if cut in (None, each.is_cut) and linked in (None, each.linked)
        ]


def generate(folder: Path, **options: Any) -> Generated:
    """Generate a run into a folder, open it, and match it with its labels."""
    labels = folder / "labels.json"
    load_generator().generate(folder / "run", labels=labels, **options)
    run = open_run(str(folder / "run"), jobs=1)
    truth = {int(rank): rows for rank, rows in json.loads(labels.read_text()).items()}
    return Generated(folder / "run", run, tuple(_match(run, truth)))


def activity_rows(table: KernelTable) -> np.ndarray:
    """The rows of activities: those of time outside steps have none."""
    return np.flatnonzero(table.category != Category.OUTSIDE)


def _match(run: Run, truth: dict[int, dict[str, list[Any]]]) -> list[Activity]:
    table = run.table
    rows: dict[tuple[int, int, int, str], int] = {}
    for row in activity_rows(table).tolist():
        key = (
            int(table.gpu[row]),
            int(table.start_ns[row]),
            int(table.duration_ns[row]),
            table.names[table.kernel[row]],
        )
        assert key not in rows
        rows[key] = row
    matched = []
    for rank, columns in truth.items():
        for position in range(len(columns["name"])):
            of_truth = {name: values[position] for name, values in columns.items()}
            row = rows.pop((rank, of_truth["start_ns"], of_truth["dur_ns"], of_truth["name"]))
            matched.append(_activity(run, rank, row, of_truth))
    assert not rows, "activities that the generator knows nothing of"
    return matched


def _activity(run: Run, rank: int, row: int, truth: dict[str, Any]) -> Activity:
    table = run.table
    codes = {level: int(table.column(level)[row]) for level in LEVELS}
    texts = {level: table.text_of(level, code) for level, code in codes.items()}
    is_cut = truth["iteration"] == CUT_ITERATION
    return Activity(
        rank=rank,
        kernel=truth["name"],
        start_ns=truth["start_ns"],
        correlation=truth["correlation"],
        kind=Kind(int(table.kind[row])),
        linked=truth["linked"],
        recompute=truth["recompute"],
        truth={level: truth[level] for level in LEVELS}
        | ({"iteration": NO_LABEL} if is_cut else {}),
        ours={
            "iteration": codes["iteration"],
            "phase": texts["phase"],
            "layer": None if codes["layer"] == NO_LABEL else codes["layer"],
            "operation": texts["operation"],
        },
        rules={level: Rule(int(table.column(f"{level}_rule")[row])) for level in LEVELS},
        is_cut=is_cut,
    )
