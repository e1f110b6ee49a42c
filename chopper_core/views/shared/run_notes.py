"""Notes on the data of a run below a frame: doubts, truncated steps, losses, filtered rows."""

from __future__ import annotations

from typing import Final

from chopper_core.columns.derived import instance_levels
from chopper_core.model.inputs import REPEATED_STEPS, TIMES_NOTES
from chopper_core.model.phrases import by_number
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL, Rule
from chopper_core.model.units import time_text
from chopper_core.model.view import View

_BEING_WRITTEN: Final = "is still being written"
"""The end of the reason why a file of a followed run isn't read yet."""
_LEFT_OUT: Final = "left out unless cut=1"
_TRUNCATED: Final = "truncated by the profiling window"
WARM_UP: Final = "warm-up"
"""Of a step that begins a window and takes far longer than the others."""


def notes_of(run: Run, view: View, count: int, hidden: int, hidden_ns: float) -> tuple[str, ...]:
    """Notes on the rows of a node: `hidden` of them are filtered out, with a time in total."""
    notes = run_notes(run, view)
    if view.stat:
        over = instance_levels(view)
        instances = f"a row's instances (one per {', '.join(over)})"
        notes.insert(0, f"figures are the {view.stat} over {instances}; % is the share of the sum")
    if hidden:
        time = f" ({time_text(hidden_ns)}); totals and shares include them"
        notes += [f"{note}{time}" for note in filter_note(count, hidden)]
    return tuple(notes)


def cut_note(run: Run, view: View, where: str = "") -> list[str]:
    """A note on the truncated steps of a view's node: whether they take part."""
    cut, left_out = run.truncated(view), run.left_out(view)
    whose = f" {where}" if where else ""
    outside = []
    if NO_LABEL in run.uncounted(view):
        outside = [f"{_time_outside(run)} outside steps{whose}: {_LEFT_OUT}"]
    if not cut:
        return outside
    why: dict[str, list[int]] = {}
    for number in cut:
        gpus = run.lacking.get(number)
        reason = f"missing on {by_number('GPU', gpus)}" if gpus else _TRUNCATED
        if number in run.warm_up:
            reason = WARM_UP
        why.setdefault(reason, []).append(number)
    note = "; ".join(
        f"step{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
        f"{whose} {'is' if len(numbers) == 1 else 'are'} {reason}"
        for reason, numbers in why.items()
    )
    if left_out:
        return [f"{note}: {_LEFT_OUT}", *outside]
    is_chosen = view.cut or "iteration" in dict(view.scope)
    return [note if is_chosen else f"{note}, and there is no complete one", *outside]


def _time_outside(run: Run) -> str:
    """The time of a GPU that belongs to no step, mean over GPUs."""
    own = run.pairs.codes("iteration") == NO_LABEL
    each = float(run.pairs.elapsed_ns[own].sum()) / max(len(run.gpus), 1)
    return f"{time_text(each)} per GPU"


def _whole_run(run: Run) -> list[str]:
    """How the traced steps compare with the whole run, by its trainer's log."""
    from chopper_core.analyses.training import traced_steps  # most runs have no log

    traced = traced_steps(run)
    return [] if traced is None else [traced.sentence]


def run_notes(run: Run, view: View) -> list[str]:
    notes = [doubt.note for doubt in run.doubts]
    notes += cut_note(run, view)
    if run.logs and not view.name and not view.path:
        notes += _whole_run(run)
    if run.is_sampled_only and not view.name:
        notes.append("no trace: rows are intervals between samples, and no activity is known")
    if run.generated:
        notes.append(f"generated data, not measured (made by {run.generated})")
    if run.times_mark:
        notes.append(TIMES_NOTES[run.times_mark])
    damaged = run.memo(("damaged",), lambda: sum(bool(source.losses) for source in run.sources))
    if damaged:
        which = "the file" if len(run.sources) == 1 else f"{damaged} of {len(run.sources)} files"
        notes.append(f"{which} lost data; see `chopper info`")
    if run.memo(("repeated",), lambda: any(REPEATED_STEPS in s.findings for s in run.sources)):
        notes.append("step annotations repeat numbers: a step is all that has its number")
    if run.memo(("unannotated",), lambda: _ends_with_optimizer(run)):
        notes.append("what is of which step isn't recorded: steps end with the optimizer")
    waiting = sum(why.endswith(_BEING_WRITTEN) for _, why in run.failed)
    for count, text in (
        (waiting, "being written, not read yet"),
        (len(run.failed) - waiting, "could not be used; see `chopper info`"),
    ):
        if count:
            notes.append(f"{count} file{'s' if count > 1 else ''} {text}")
    return notes


def _ends_with_optimizer(run: Run) -> bool:
    if not len(run.table):
        return False
    return bool((run.table.column("iteration_rule")[run.pairs.first] == Rule.BURST).any())


def filter_note(count: int, hidden: int) -> tuple[str, ...]:
    return (f"{hidden} of {count} rows filtered out",) if hidden else ()
