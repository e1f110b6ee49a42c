"""Frames of one run: the rows of a view, sorted, filtered, with columns and total."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, cast

import numpy as np
from msgspec.structs import replace

from chopper_core.metrics import METRICS, Metric, Scope, Values, metric_named
from chopper_core.metrics.time import INSTANCES
from chopper_core.model import address
from chopper_core.model.attributes import attributes_at
from chopper_core.model.charts import picked
from chopper_core.model.column_names import NO_STARTS, NO_TIMES
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.splits import is_split
from chopper_core.model.view import View, pivot
from chopper_core.util import debug
from chopper_core.util.arrays import Float64, Index
from chopper_core.util.errors import NothingToShow, UsageError
from chopper_core.views import OVERVIEW, plugin_of, view_module, view_spec, view_specs
from chopper_core.views.frame import Frame
from chopper_core.views.shared import splits as _splits  # noqa: F401 (adds splits)
from chopper_core.views.shared.children import (
    children,
    filter_note,
    means_of,
    ordered,
    run_notes,
    with_column_names,
)
from chopper_core.views.shared.derived import instance_levels, statistic_of
from chopper_core.views.shared.filter import Rows, filter_hint, matching, only
from chopper_core.views.shared.marks import Coverage
from chopper_core.views.spec import Previewed, ViewResult, ViewSpec, splits_of

_CACHED_RESULTS: Final = 32
_CACHED_ROWS: Final = 1 << 25
"""Results that hold rows times activities of the run that are cached: fewer of a larger run."""
_CACHED_LARGE_RESULTS: Final = 4
"""Results that hold rows that are cached of a run of any size."""


def run_frame(run: Run, view: View) -> Frame:
    """The frame of a view of one run; raises NoSuchNode or UsageError where it doesn't fit."""
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
    """The frame of a view, pending where a part of it takes long; raises as `run_frame`."""
    if run.is_sampled_only or not view.name or not view_spec(view.name).has_preview:
        return run_frame(run, view)
    if run.memo.has(("view", _plain(view))):
        return run_frame(run, view)
    module = cast(Previewed, view_module(view.name))
    _check(run, view, module.SPEC)
    found = module.preview(run, view)
    if found is None:
        return run_frame(run, view)
    return replace(_frame(run, view, found), is_pending=True)


def without_rows(run: Run, view: View, reason: str) -> Frame:
    """The frame of a view that has nothing to show, with the reason."""
    by = view_module(view.name).SPEC.by
    return Frame(
        view=view,
        address=address.render(view),
        level=view.by or (by[0] if by else "row"),
        columns=(),
        labels=(),
        values={},
        total={},
        sort="",
        hidden=0,
        hidden_ns=0,
        parent_ns=0,
        elapsed_ns=np.zeros(0, np.int64),
        notes=(reason, *run_notes(run, view)),
        target=lambda row: view,
        signal=run.signal(view.signal),
        means=_no_means,
        sparks=False,
    )


def answer(run: Run, view: View) -> ViewResult:
    """The rows of a named view, from the run's cache; raises NoSuchNode, or UsageError for wrong
    options."""
    module = view_module(view.name)
    spec = module.SPEC
    _check(run, view, spec)
    if view.path:
        run.tree(view.order).node(view.path)  # A view with nothing to show doesn't look for it.
    found = cached(run, view, lambda plain: module.answer(run, plain))
    if view.baseline is not None and not spec.compares:
        able = " and ".join(each.name for each in view_specs() if each.compares)
        note = f"this view ignores the baseline; use {able}"
        found = replace(found, notes=(note, *found.notes))
    return found


def _check(run: Run, view: View, spec: ViewSpec) -> None:
    """Raise UsageError where the run or the view's options don't fit."""
    if run.is_sampled_only and not spec.takes_samples:
        able = ", ".join(each.name for each in view_specs() if each.takes_samples)
        raise NothingToShow(
            f"the view {spec.name} needs a trace, and this run has telemetry alone, which {able} "
            "show"
        )
    if not (run.table.has_times or run.is_sampled_only):
        raise NothingToShow(f"the view {spec.name} needs times: {NO_TIMES}")
    if spec.needs_starts and run.is_reconstructed:
        raise NothingToShow(f"the view {spec.name} needs measured start times: {NO_STARTS}")
    splits = splits_of(run, spec)
    if view.by and view.by not in splits and not (spec.any_split and is_split(view.by)):
        choices = f"takes by={', '.join(splits)}" if splits else "takes no by="
        raise UsageError(f"the view {spec.name} {choices}, not {view.by!r}")
    if view.of and not spec.of:
        raise UsageError(f"the view {spec.name} takes no of=")
    if view.window and not spec.along_time:
        raise UsageError(f"the view {spec.name} takes no from=, to=, at= and mark=")


def _plain(view: View) -> View:
    """The view without what doesn't change its result."""
    return replace(view, sort="", filter="", columns=())


def cached(run: Run, view: View, ask: Callable[[View], ViewResult]) -> ViewResult:
    """The result of a view, asked once: sort, filter and columns don't change it."""
    plain = _plain(view)
    large = _CACHED_ROWS // max(len(run.table), 1)

    def asked() -> ViewResult | NothingToShow:
        try:
            return ask(plain)
        except NothingToShow as reason:
            # Finding it out may have taken long, too; its traceback holds all that was looked at.
            return NothingToShow(*reason.args)

    known = run.memo(
        ("view", plain),
        asked,
        keep=_CACHED_RESULTS,
        keep_large=max(_CACHED_LARGE_RESULTS, min(_CACHED_RESULTS, large)),
        is_large=_is_large,
    )
    if isinstance(known, NothingToShow):
        raise NothingToShow(*known.args)

    def opens(row: int) -> View:
        opened = known.opens(row)
        if opened != plain:
            return opened
        # A row that is no part of the tree is shown alone.
        return replace(view, filter=view.filter or only(known.level, [known.labels[row]]))

    return replace(known, opens=opens)


def _is_large(result: ViewResult | NothingToShow) -> bool:
    if isinstance(result, NothingToShow):
        return False
    return result.nodes is None or result.nodes.holds_rows


class _Columns:
    """The columns of a result, each computed when it is first asked for.

    Metrics of the registry are those of the rows' activities; other columns are the view's own.
    """

    def __init__(self, run: Run, view: View, result: ViewResult) -> None:
        self._run = run
        self._view = view
        self._nodes = result.nodes
        self._whole = result.whole or _node_of(run, view)
        self.own = {column.name: (column, values) for column, values in result.columns}
        names = self._sorted_by(view.columns or result.shown or tuple(self.own), view.sort)
        over = self._instance_levels(result, names)
        self._statistic = statistic_of(view, result.level) if over else None
        self.over = result.over or over
        if self._statistic and not view.columns:
            rest = (name for name in names[2:] if name != INSTANCES)
            names = (*names[:2], INSTANCES, *rest)
        nodes = self._whole if self._nodes is None else self._nodes
        self._coverage = Coverage(run, view, result.level, nodes, self._whole)
        self._values = {
            name: values if self._nodes is None else self._coverage.marked(each, values)
            for name, (each, values) in self.own.items()
            if self._statistic is None or not self._is_registered(name)
        }
        self._totals = {name: result.total.get(name) for name in self._values}
        self.metrics = tuple(map(self.metric, names))

    def _is_registered(self, name: str) -> bool:
        return self._nodes is not None and METRICS.get(name) is self.own[name][0]

    def _sorted_by(self, names: tuple[str, ...], sort: str) -> tuple[str, ...]:
        by = sort.removeprefix("-")
        is_known = by in self.own or (self._nodes is not None and by in METRICS)
        return (*names, by) if by not in names and is_known else names

    def _instance_levels(self, result: ViewResult, names: Sequence[str]) -> tuple[str, ...]:
        of_rows = (name not in self.own or self._is_registered(name) for name in names)
        if self._nodes is None or not any(of_rows):
            return ()
        return instance_levels(self._view, result.level)

    def _scope(self, groups: Groups) -> Scope:
        run = self._run
        return Scope(groups, self._whole, run.origin_ns, run.hardware, run.measured)

    def metric(self, name: str) -> Metric:
        """The column of a name; raises UsageError for an unknown one."""
        if name in self.own:
            found = self.own[name][0]
        elif self._nodes is None:
            raise UsageError(
                f"the view {self._view.name} has no column {name!r}; it has {', '.join(self.own)}"
            )
        else:
            found = metric_named(name, self._run.table, self._run.counter_info)
        is_plain = self._statistic is None or name in self._totals
        return found if is_plain or self._statistic is None else self._statistic.metric(found)

    def values(self, name: str) -> Values:
        if name not in self._values:
            found = self.metric(name)
            assert self._nodes is not None
            computed = found.compute(self._scope(self._nodes))
            self._values[name] = self._coverage.marked(found, computed)
        return self._values[name]

    def total(self, metric: Metric) -> int | float | None:
        """A column's total: the view's own, else that of the whole."""
        if metric.name in self._totals:
            return self._totals[metric.name]
        return metric.compute(self._scope(self._whole)).at(0)

    @property
    def notes(self) -> Sequence[str]:
        """Which figures cover only a part."""
        return self._coverage.notes(self.metrics)

    @property
    def partial_totals(self) -> frozenset[str]:
        """The columns whose total covers only a part."""
        known = [each for each in self.metrics if self.total(each) is not None]
        return self._coverage.partial_totals(known)


def _frame(run: Run, view: View, result: ViewResult) -> Frame:
    """The rows of a result, sorted, filtered, with the columns asked for and the total row."""
    titled = tuple(column for column, _ in result.columns)
    view = with_column_names(view, titled)
    # Along time, all of it is shown.
    counting = replace(view, cut=view.cut or view_module(view.name).SPEC.along_time)
    columns = _Columns(run, view, result)
    texts = _searched(result) if view.filter else result.labels
    own, coordinates = tuple(columns.own), run.table.coordinates
    rows = Rows(result.level, result.labels, columns.values, own, titled, texts, coordinates)
    mask = matching(rows, view.filter)
    shown = np.flatnonzero(mask)
    sort = view.sort or result.sort
    shown = shown[ordered(shown, result.level, list(result.labels), sort, columns.values)]
    nodes, signal = result.nodes, run.signal(view.signal)
    return Frame(
        view=view,
        address=address.render(view),
        level=result.level,
        columns=columns.metrics,
        labels=[result.labels[row] for row in shown.tolist()],
        values={each.name: columns.values(each.name).take(shown) for each in columns.metrics},
        total={each.name: columns.total(each) for each in columns.metrics},
        sort=sort,
        hidden=len(result.labels) - len(shown),
        hidden_ns=0,
        parent_ns=0,
        elapsed_ns=np.zeros(len(shown), np.int64),
        notes=(
            *_statistic_note(view, columns.over),
            *result.notes,
            *columns.notes,
            *run_notes(run, counting),
            *filter_hint(rows, view.filter, mask),
            *filter_note(len(result.labels), len(shown)),
        ),
        target=lambda row: result.opens(int(shown[row])),
        attributes=lambda row: attributes_at(run, result.opens(int(shown[row]))),
        signal=signal,
        means=_no_means if nodes is None else means_of(signal, nodes, shown),
        sparks=nodes is not None,
        more=tuple(each for each, _ in result.columns if each not in columns.metrics),
        headline=result.headline,
        charts=tuple(picked(each, shown.tolist()) for each in result.charts),
        over=columns.over,
        by=result.by,
        partial_total=columns.partial_totals,
        truncated=run.truncated(view),
        left_out=run.left_out(counting),
    )


def _node_of(run: Run, view: View) -> Groups:
    """The rows of a view's node; of a run without any sample none."""
    if len(run.table):
        return run.tree_of(view).node(view.path)
    return Groups.single(run.table, slice(0, 0))


def _searched(result: ViewResult) -> list[str]:
    """The text of each row in which a filter looks for names: its label and its words."""
    texts = list(result.labels)
    for _, values in result.columns:
        if values.words is not None:
            texts = [f"{text}\n{values.cell(row) or ''}" for row, text in enumerate(texts)]
    return texts


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


def _no_means(rows: Index, bins: int) -> Float64:
    return np.full((len(rows), bins), np.nan)
