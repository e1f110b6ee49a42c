"""Step annotations with the number of an earlier one, as loops that count from 0 again write."""

from __future__ import annotations

from pathlib import Path

import pytest

from chopper_core.ingest.open import open_run
from chopper_core.model.inputs import REPEATED_STEPS
from chopper_core.model.view import View
from chopper_core.views.query import query
from tests.align.traces import TinyTrace

_NOTE = "step annotations repeat numbers"


def _said(folder: Path, *steps: tuple[int, int, int, int]) -> tuple[int, bool]:
    """How many annotations (number, begin, end, thread) repeat one, and whether views say so."""
    trace = TinyTrace()
    for number, begin, end, thread in steps:
        trace.note(f"step_{number}", begin, end, thread)
        trace.launch("kernel", begin + 1)
    trace.write(folder / "rank0.json")
    run = open_run(str(folder / "rank0.json"), jobs=1)
    notes = query(run, View(run.name)).notes
    return run.sources[0].findings.get(REPEATED_STEPS, 0), any(_NOTE in note for note in notes)


@pytest.mark.parametrize(
    ("steps", "repeats"),
    [
        # Each step once.
        ([(0, 0, 90, 1), (1, 100, 190, 1)], 0),
        # A second image is denoised in the same steps.
        ([(0, 0, 90, 1), (1, 100, 190, 1), (0, 200, 290, 1), (1, 300, 390, 1)], 2),
        ([(0, 0, 90, 1), (0, 100, 190, 1), (0, 200, 290, 1)], 2),
        # Two threads are in a step at once.
        ([(0, 0, 90, 1), (0, 2, 80, 2), (1, 100, 190, 1)], 0),
        # A step within a step.
        ([(9, 0, 390, 1), (0, 10, 90, 1), (1, 100, 190, 1)], 0),
    ],
)
def test_repeated_numbers_are_counted_and_said(
    steps: list[tuple[int, int, int, int]], repeats: int, tmp_path: Path
) -> None:
    assert _said(tmp_path, *steps) == (repeats, repeats > 0)
