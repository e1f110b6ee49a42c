"""Comparing: marks, the comparison of the marked rows, the baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chopper_core.model.address import parse_baseline
from chopper_core.model.view import Baseline
from chopper_core.render.cells import baseline_title
from chopper_core.util.errors import UsageError
from chopper_core.views.spec import SeveralRuns
from chopper_tui.actions.sets import compare_runs, mark_run, normalise
from chopper_tui.history import changed, comparison, mark_of, toggled, with_baseline
from chopper_tui.keymap import COMPARE, action

if TYPE_CHECKING:
    from chopper_tui.screen import Explorer


@action(COMPARE, "b", title="Baseline", takes="[PATH]")
async def baseline(screen: Explorer, argument: str) -> None:
    """Set the scope, or the path given, as baseline; press again to clear. In a table of runs:
    divide figures by the row's, or by the given run's.
    """
    if isinstance(screen.run, SeveralRuns):
        await normalise(screen, argument)
        return
    if argument:
        chosen = parse_baseline(argument, screen.view.order)
    elif screen.view.baseline is None:
        chosen = Baseline("", screen.view.path)
    else:
        await screen.go(with_baseline(screen.here, None), "no baseline")
        return
    trail = with_baseline(screen.here, chosen)
    await screen.go(trail, "baseline set; go to the scope to compare with it")


@action(COMPARE, "space", title="Mark the row", hint="mark")
def mark(screen: Explorer, _: str) -> None:
    """Mark the row for a comparison, or unmark it; the status line counts the marks."""
    label = screen.table.label
    if isinstance(screen.run, SeveralRuns):
        mark_run(screen)
        return
    if screen.view.name:
        raise UsageError("only rows of the tree can be marked; 1 shows it")
    if label is None:
        raise UsageError("there is no row to mark")
    screen.marks = toggled(screen.marks, mark_of(screen.view, label))
    screen.show_marks()


@action(COMPARE, "u", title="Clear marks")
def unmark(screen: Explorer, _: str) -> None:
    """Clear marks."""
    if not screen.marks:
        raise UsageError("nothing is marked")
    screen.marks = ()
    screen.show_marks()


@action(COMPARE, "=", title="Compare the marked rows", hint="cmp")
async def compare(screen: Explorer, _: str) -> None:
    """Compare two marked rows, or a marked row and the cursor's: the first is the baseline of the
    second. More than two are shown alone in their table. In a table of runs
    without marks: divide figures by the row's; press again for the best of the group, and again
    to stop.
    """
    if isinstance(screen.run, SeveralRuns):
        await compare_runs(screen)
        return
    view = comparison(screen.marks, screen.view, screen.table.label)
    count = f"{len(screen.marks)} marked rows"
    if view.path == screen.view.path and view.order == screen.view.order:
        await screen.go(changed(screen.here, view), count)
    else:
        message = f"baseline {baseline_title(view)}" if view.baseline else count
        await screen.go(screen.trail_to(view), message)
    if view.baseline is not None and screen.view.baseline == view.baseline:
        # They are compared; the next marks are of another comparison.
        screen.marks = ()
        screen.show_marks()
