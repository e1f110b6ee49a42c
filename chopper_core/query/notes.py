"""What is to be said of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.query.statistic import instance_levels, leaves_out_cut

if TYPE_CHECKING:
    pass


def notes_of(
    run: Run, view: View, labels: Sequence[str], shown: int, hidden_ns: int
) -> tuple[str, ...]:
    """What is to be said of the rows of a node, `shown` of them, the others with `hidden_ns`."""
    notes = run_notes(run)
    over = instance_levels(view)
    if view.stat:
        what = f"{view.stat} over the instances of a row, one per {', '.join(over)}"
        notes.insert(0, f"figures are the {what}; % is the share of the sum")
    if shown < len(labels):
        notes.append(
            f"{len(labels) - shown} of {len(labels)} rows hidden by the filter, with "
            f"{hidden_ns / 1e6:.3f} ms; total and share are of all rows"
        )
    spans_iterations = view.level == "iteration" or (view.stat and "iteration" in over)
    if spans_iterations or "iteration" in dict(view.scope):
        wanted = dict(view.scope).get("iteration")
        cut = sorted({number for numbers in run.partial_iterations.values() for number in numbers})
        cut = [number for number in cut if wanted in (None, str(number))]
        if cut:
            which = ", ".join(map(str, cut))
            left_out = "; it counts in % alone" if leaves_out_cut(view) else ""
            notes.append(f"the profiler's start or end cuts iteration {which}{left_out}")
    return tuple(notes)


def run_notes(run: Run) -> list[str]:
    """What is to be said of everything that comes from a run."""
    notes = []
    if run.generated:
        notes.append(f"generated data, not measured (made by {run.generated})")
    damaged = sum(bool(source.losses) for source in run.sources)
    if damaged:
        notes.append(f"{damaged} of {len(run.sources)} files lost data; `chopper info` says what")
    if run.failed:
        files = f"{len(run.failed)} file{'s' if len(run.failed) > 1 else ''}"
        notes.append(f"{files} could not be used; `chopper info` says why")
    return notes


def filter_note(rows: int, shown: int) -> tuple[str, ...]:
    """How many rows of an answer a filter hides."""
    return (f"{rows - shown} of {rows} rows hidden by the filter",) if shown < rows else ()
