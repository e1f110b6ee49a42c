"""From a run, or a set of runs, and a view to its frame: rows sorted, filtered, with a total."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from msgspec.structs import replace

from chopper_core.analyses import call_figures as _splits  # noqa: F401 (adds splits)
from chopper_core.columns.filter import only
from chopper_core.model.column_names import NO_STARTS, NO_TIMES
from chopper_core.model.parallel import DIMENSIONS
from chopper_core.model.phrases import level_title
from chopper_core.model.run import Run
from chopper_core.model.table import SPLITS, is_split
from chopper_core.model.view import View, pivot
from chopper_core.util import debug
from chopper_core.util.errors import NothingToShow, UsageError
from chopper_core.util.naming import names_meant
from chopper_core.views import OVERVIEW, plugin_of, view_module, view_spec, view_specs
from chopper_core.views.frame import Frame
from chopper_core.views.shared.children import children
from chopper_core.views.shared.framing import arranged, framed
from chopper_core.views.shared.kept_answers import is_answered, kept_answer
from chopper_core.views.shared.row_columns import Columns, with_column_names
from chopper_core.views.shared.run_notes import filter_note, run_notes
from chopper_core.views.spec import Choosy, Previewed, SeveralRuns, ViewResult, ViewSpec, splits_of


def query(run: Run, view: View) -> Frame:
    """The frame of a view; raises NoSuchNode or UsageError where the view doesn't fit the run."""
    view = _with_split(run, view)
    return run.frame(view, wait=True) if isinstance(run, SeveralRuns) else run_frame(run, view)


def preview_frame(run: Run, view: View) -> Frame:
    view = _with_split(run, view)
    return run.frame(view, wait=False) if isinstance(run, SeveralRuns) else run_preview(run, view)


def _with_split(run: Run, view: View) -> View:
    """The view with its `by=` as the run's splits are spelled, where it is one of them in another
    case, shortened, or as screens call it."""
    if not view.by or is_split(view.by):
        return view
    levels = (*view.order[len(view.path) :], *DIMENSIONS, *SPLITS)
    splits = splits_of(run, view_spec(view.name)) if view.name else levels
    found = names_meant(view.by, splits, {level_title(each): each for each in splits})
    return replace(view, by=found[0]) if len(found) == 1 else view


def frame_of(run: Run, view: View) -> Frame:
    try:
        return query(run, view)
    except NothingToShow as reason:
        return without_rows(run, view, str(reason))


def run_frame(run: Run, view: View) -> Frame:
    with debug.timed(f"answer {view.name or 'tree'} of {'/'.join(view.path) or 'the run'}"):
        if not (len(run.table) or view.name):
            return run_frame(run, replace(view, name=OVERVIEW))
        if view.name:
            plugin = plugin_of(view.name)
            return _named(run, view) if plugin is None else plugin.call(_named, run, view)
        view = with_column_names(split_tree(view))
        if view.baseline is not None:
            from chopper_core.views.shared.compared import compared  # most views have no baseline

            return compared(run, view)
        return children(run, view)


def _named(run: Run, view: View) -> Frame:
    return _frame(run, view, answer(run, view))


def split_tree(view: View) -> View:
    """A view of the tree whose `by=` is the next level of its order."""
    if not view.by:
        return view
    split = pivot(view, view.by)
    if split.level != view.by:
        raise UsageError(f"the tree can't be split by {view.by!r}")
    return replace(split, by="", sort=view.sort, filter=view.filter)


def run_preview(run: Run, view: View) -> Frame:
    found = None
    can_be_quick = view.name and not run.is_sampled_only and view_spec(view.name).has_preview
    if can_be_quick:
        module = cast(Previewed, view_module(view.name))
        check_fits(run, view, module.SPEC)
        if not is_answered(run, _plain(view), partial(module.answer, run)):
            found = module.preview(run, view)
    if found is None:
        return run_frame(run, view)
    return _frame(run, view, found, is_pending=True)


def without_rows(run: Run, view: View, reason: str) -> Frame:
    by = view_module(view.name).SPEC.by
    return Frame(
        view=view,
        level=view.by or (by[0] if by else "row"),
        columns=(),
        labels=(),
        values={},
        total={},
        notes=(reason, *run_notes(run, view)),
        target=lambda row: view,
        signal=run.signals(view.signal)[0],
        quality=run.doubts,
    )


def answer(run: Run, view: View) -> ViewResult:
    module = view_module(view.name)
    spec = module.SPEC
    check_fits(run, view, spec)
    if view.path:
        run.tree(view.order).node(view.path)  # A view with nothing to show doesn't look for it.
    found = cached(run, view, lambda plain: module.answer(run, plain))
    if view.baseline is not None and not spec.compares:
        able = ", ".join(each.name for each in view_specs() if each.compares)
        note = f"this view ignores the baseline; these show it: {able}"
        found = replace(found, notes=(note, *found.notes))
    return found


def check_fits(run: Run, view: View, spec: ViewSpec) -> None:
    """Raises NothingToShow or UsageError where a view has no answer for a run."""
    is_of_memory = run.is_snapshot and spec.takes_snapshots
    if run.is_logged_only and not (spec.takes_logs or is_of_memory):
        raise NothingToShow(f"{spec.title} needs a trace, and this run has a trainer's log alone")
    if run.is_snapshot and not (is_of_memory or run.is_logged_only):
        raise NothingToShow(f"{spec.title} needs a trace, and this run has memory snapshots alone")
    if run.is_sampled_only and not (spec.takes_samples or is_of_memory):
        raise NothingToShow(f"{spec.title} needs a trace, and this run has telemetry alone")
    if not (run.table.has_times or run.is_sampled_only):
        raise NothingToShow(f"{spec.title} needs times: {NO_TIMES}")
    if spec.needs_starts and run.is_reconstructed:
        raise NothingToShow(f"{spec.title} needs measured start times: {NO_STARTS}")
    splits = splits_of(run, spec)
    if view.by and view.by not in splits and not (spec.any_split and is_split(view.by)):
        choices = f"takes by={', '.join(splits)}" if splits else "takes no by="
        raise UsageError(f"the view {spec.name} {choices}, not {view.by!r}")
    if view.of and not spec.of:
        raise UsageError(f"the view {spec.name} takes no of=")
    if view.window and not spec.along_time:
        raise UsageError(f"the view {spec.name} takes no from=, to=, at= and mark=")


def reason_against_view(run: Run, name: str) -> str:
    """Why no scope of a run has an answer of a view, without asking it; empty: one may have."""
    module = view_module(name)
    try:
        check_fits(run, View(run.name, name=name), module.SPEC)
    except NothingToShow as reason:
        return str(reason)
    return cast(Choosy, module).missing_from(run) if hasattr(module, "missing_from") else ""


def _plain(view: View) -> View:
    """The view without what doesn't change its result."""
    return replace(view, sort="", filter="", columns=())


def cached(run: Run, view: View, ask: Callable[[View], ViewResult]) -> ViewResult:
    """The result of a view, asked once: sort, filter and columns don't change it."""
    plain, is_kept = _plain(view), not view_spec(view.name).is_live
    known = kept_answer(run, plain, ask) if is_kept else ask(plain)

    def opens(row: int) -> View:
        opened = known.opens(row)
        if opened != plain:
            return opened
        # A row that is no part of the tree is shown alone.
        return replace(view, filter=view.filter or only(known.rows.level, [known.rows.labels[row]]))

    return replace(known, opens=opens)


def _frame(run: Run, view: View, result: ViewResult, *, is_pending: bool = False) -> Frame:
    """The rows of a result, sorted, filtered, with the columns asked for and the total row."""
    view = with_column_names(view, tuple(column for column, _ in result.columns))
    columns = Columns(run, view, result)
    shown = arranged(run, view, result, columns)
    # Along time, all of it is shown.
    counting = replace(view, cut=view.cut or view_module(view.name).SPEC.along_time)
    notes = (
        *_statistic_note(view, result.over or columns.over),
        *result.notes,
        *columns.notes,
        *columns.unavailable,
        *run_notes(run, counting),
        *shown.hint,
        *filter_note(len(result.rows.labels), shown.hidden),
    )
    return framed(
        run,
        view,
        result,
        columns,
        shown,
        notes=notes,
        left_out=run.uncounted(counting),
        is_pending=is_pending,
    )


def _statistic_note(view: View, over: Sequence[str]) -> tuple[str, ...]:
    """Which figures are the statistic, or why none is."""
    if not view.stat:
        return ()
    if not over:
        spec = view_module(view.name).SPEC
        return (f"no {view.stat} here: the view {spec.name} {spec.no_statistic}",)
    return (
        f"columns whose titles begin with {view.stat} are over a row's instances, one per "
        f"{', '.join(over)}; other columns and the headline cover the whole row",
    )
