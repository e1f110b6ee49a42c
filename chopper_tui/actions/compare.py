"""Comparing: marks, the comparison of the marked rows, the baseline; and sets of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from chopper_core.analyses.base import baseline_of
from chopper_core.columns.filter import NAME, only
from chopper_core.model.address import parse_baseline
from chopper_core.model.phrases import level_title
from chopper_core.model.view import RUN_LEVEL, Baseline, View, with_view
from chopper_core.render.cells import baseline_title, crumb, elide
from chopper_core.util.errors import UsageError
from chopper_core.util.escape import clean
from chopper_core.views import OVERVIEW, RUNS, view_spec
from chopper_core.views.spec import BEST, SeveralRuns
from chopper_tui.history import (
    Mark,
    Visit,
    changed,
    comparison,
    mark_of_row,
    toggled,
    with_baseline,
)
from chopper_tui.keymap import COMPARE, action

if TYPE_CHECKING:
    from chopper_tui.history import Marks
    from chopper_tui.screen import Explorer


def refuse_of_set(screen: Explorer) -> None:
    if isinstance(screen.run, SeveralRuns):
        raise UsageError(
            "this needs a single run; Enter opens the run under the cursor, space marks two, "
            "= compares"
        )


async def enter_run(screen: Explorer, target: View) -> None:
    """Enter the run of a row, at its overview, or the runs of a row's group."""
    if target.run == screen.run.name:
        await screen.go(screen.trail_to(target))
        return
    screen.say(f"opening {target.run}")
    asked = target if target != View(target.run) else with_view(target, OVERVIEW)
    await screen.go(screen.trail_to(asked))
    if screen.run.name != target.run and asked.name == OVERVIEW:
        # A run without times, say, has a tree all the same.
        await screen.go(screen.trail_to(target))


async def leave_run(screen: Explorer) -> None:
    """Go back to the set, to the view and the row that the run was entered from."""
    for view, before in reversed(screen.entries):
        if view.run == screen.run.name:
            screen.entries.remove((view, before))
            await screen.go(before)
            return
    await screen.go((Visit(View(screen.home.name, name=RUNS)),))


async def leave_view(screen: Explorer) -> None:
    view = screen.view
    if view.name != RUNS:
        await screen.change(replace(with_view(view, RUNS), baseline=None))
    elif view.filter or view.baseline or view.by:
        await screen.change(replace(view, filter="", baseline=None, by=""))
    else:
        screen.say("these are all runs; q quits")


def marked_runs(marks: Marks) -> list[str]:
    return [mark.path[0] for mark in marks if mark.order == (RUN_LEVEL,)]


async def compare_runs(screen: Explorer) -> None:
    """Compare two marked runs; show more alone; without marks normalise to the row or the best."""
    names = marked_runs(screen.marks)
    if not names:
        await normalise(screen, "", has_best=True)
    elif len(names) == 1:
        raise UsageError("one run is marked; mark another, or unmark it to divide by a row")
    elif len(names) == 2:
        assert isinstance(screen.run, SeveralRuns)
        paths = screen.run.paths()
        base, own = (paths[name] for name in names)
        view = View(own, name="compare", baseline=Baseline(base))
        await screen.go(screen.trail_to(view), f"{clean(names[1])} vs {clean(names[0])}")
    else:
        view = replace(screen.view, filter=only(RUN_LEVEL, names))
        await screen.go(changed(screen.here, view), f"{len(names)} marked runs")


async def normalise(screen: Explorer, argument: str, *, has_best: bool = False) -> None:
    """Divide figures by those of a run, by default the row's; again: by nothing.

    With `has_best`, which runs in between by the best of the group.
    """
    if screen.view.name != RUNS:
        raise UsageError("the table of runs has a baseline; 6 shows it")
    before, name = screen.view.baseline, argument or screen.table.label
    if before is not None and has_best:
        name = BEST if before.run != BEST else ""
    elif before is not None and not argument and before.run == name:
        name = ""
    if name is None:
        raise UsageError("there is no row to divide by")
    what = "the best" if name == BEST else clean(name)
    why = f"divided by {what}; space marks two rows, then = says why they differ"
    view = replace(screen.view, baseline=Baseline(name) if name else None, sort="")
    await screen.change(view, why if name else "")


async def view_of_set(screen: Explorer, name: str) -> None:
    """Show a view of the marked runs, or of those that are shown."""
    if name == "compare":
        await compare_runs(screen)
        return
    asked = with_view(screen.view, view_spec(name).name)
    marked = marked_runs(screen.marks)
    kept = only(RUN_LEVEL, marked) if marked else runs_filter(screen.view)
    if asked.name == RUNS:
        kept = runs_filter(screen.view) if screen.view.name == RUNS else ""
    await screen.change(replace(asked, filter=kept, baseline=None))


def runs_filter(view: View) -> str:
    return " ".join(term for term in view.filter.split() if term.startswith(f"{RUN_LEVEL}:"))


def mark_here(screen: Explorer) -> Mark | None:
    """The mark of the cursor's row; None where it is no place of the tree and no run."""
    label = screen.table.label
    if isinstance(screen.run, SeveralRuns):
        is_run = label is not None and screen.frame.level == RUN_LEVEL
        return Mark((RUN_LEVEL,), (str(label),)) if is_run else None
    return (
        mark_of_row(screen.view, screen.frame.level, label)
        if screen.listing is screen.table
        else None
    )


def _can_be_baseline(screen: Explorer) -> bool:
    """Whether `b` finds a row to compare with: a place, or a run in the table of runs."""
    if isinstance(screen.run, SeveralRuns):
        return screen.view.name == RUNS and screen.table.label is not None
    return mark_here(screen) is not None


@action(COMPARE, "b", title="Baseline", takes="[PLACE]", hint="baseline", can=_can_be_baseline)
async def baseline(screen: Explorer, argument: str) -> None:
    """Compare the table with the row under the cursor, or with the place given (`step 11`, a row,
    an address); press again on that row to stop. Enter compares what is in another row, { } and
    [ ] the same place elsewhere. In a table of runs: divide figures by the row's, or by the given
    run's.
    """
    if isinstance(screen.run, SeveralRuns):
        await normalise(screen, argument)
        return
    view, row = screen.view, mark_here(screen)
    place = _place_asked(screen, argument)
    if place is not None:
        chosen, name = Baseline("", place.path), ", ".join(crumb(*step) for step in place.scope)
        if len(place.path) != len(view.path):
            # The rows next to it, as `b` on its row shows them.
            view = replace(place, path=place.path[:-1])
    elif argument:
        chosen, name = parse_baseline(argument, view.order), argument
        baseline_of(screen.run, replace(view, baseline=chosen))  # Not all views look for it.
    elif row is None:
        raise UsageError("this row is no place of the tree: nothing to compare with")
    else:
        chosen = Baseline("", row.path)
        name = f"{level_title(row.order[len(row.path) - 1])} {row.path[-1]}"
        # Other tables have no differences: the tree shows the same rows with them.
        # They stay in their order, so that the next keys are on the rows that one sees.
        sort = "" if view.name else screen.frame.sort or NAME
        view = replace(with_view(view, ""), order=row.order, sort=sort)
    if not argument and not screen.view.name and screen.view.baseline == chosen:
        await screen.go(with_baseline(screen.here, None), "no baseline")
        return
    is_here = view.path == screen.view.path
    trail = changed(screen.here, view) if is_here else screen.trail_to(view)
    trail = with_baseline(trail, chosen)
    name = elide(name, screen.size.width // 2, screen.table.glyphs)
    await screen.go(trail, f"compared with {name}")


def _place_asked(screen: Explorer, text: str) -> View | None:
    """The place that a text names: a row of the table, or in words; None where it is none."""
    view, run = screen.view, screen.run
    if not text or text in run.others or "=" in text or text.endswith(":"):
        return None
    row = mark_of_row(view, screen.frame.level, text) if text in screen.frame.labels else None
    if row is None:
        from chopper_tui.spoken import place_asked

        return place_asked(run, view, text)
    return replace(with_view(view, ""), order=row.order, path=row.path)


def _can_mark(screen: Explorer) -> bool:
    return mark_here(screen) is not None


@action(COMPARE, "space", title="Mark the row", hint="mark", can=_can_mark)
def mark(screen: Explorer, _: str) -> None:
    """Mark the row for a comparison, or unmark it, in any table of places; the status line counts
    the marks."""
    marked = mark_here(screen)
    if screen.table.label is None:
        raise UsageError("there is no row to mark")
    if marked is None:
        raise UsageError("this row is no place of the tree: nothing to mark")
    _set_marks(screen, toggled(screen.marks, marked))


def _set_marks(screen: Explorer, marks: Marks) -> None:
    screen.marks = marks
    screen.show_marks()


@action(COMPARE, "u", title="Clear marks")
def unmark(screen: Explorer, _: str) -> None:
    """Clear marks."""
    if not screen.marks:
        raise UsageError("nothing is marked")
    _set_marks(screen, ())


def _can_compare(screen: Explorer) -> bool:
    """Whether `=` finds what it compares: marks, or in a table of runs the row."""
    if isinstance(screen.run, SeveralRuns):
        count = len(marked_runs(screen.marks))
        return count > 1 or (not count and screen.view.name == RUNS and bool(screen.table.rows))
    try:
        comparison(screen.marks, screen.view, mark_here(screen))
    except UsageError:
        return False
    return True


@action(COMPARE, "=", title="Compare the marked rows", hint="compare", can=_can_compare)
async def compare(screen: Explorer, _: str) -> None:
    """Compare two marked rows, or a marked row and the cursor's: the first is the baseline of the
    second. More than two are shown alone in their table. In a table of runs
    without marks: divide figures by the row's; press again for the best of the group, and again
    to stop.
    """
    if isinstance(screen.run, SeveralRuns):
        await compare_runs(screen)
        return
    view = comparison(screen.marks, screen.view, mark_here(screen))
    count = f"{len(screen.marks)} marked rows"
    if view.path == screen.view.path and view.order == screen.view.order:
        await screen.go(changed(screen.here, view), count)
    else:
        message = f"baseline {baseline_title(view)}" if view.baseline else count
        await screen.go(screen.trail_to(view), message)
    if view.baseline is not None and screen.view.baseline == view.baseline:
        # They are compared; the next marks are of another comparison.
        _set_marks(screen, ())
