"""The rows of the tree: the children of a node, their columns, order, notes and signals."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.analyses.base import base_of, divided
from chopper_core.analyses.coverage import Coverage
from chopper_core.analyses.rows import Partition
from chopper_core.columns import (
    METRICS,
    Metric,
    Reduces,
    Scope,
    Values,
    column_names,
    default_columns,
    metric_named,
    numbered,
)
from chopper_core.columns.derived import Statistic, instance_levels, is_difference
from chopper_core.columns.filter import LONGEST_FIRST, NAME, FilterRows, Shown, shown_of
from chopper_core.columns.lookup import missing_throughout, reasons
from chopper_core.columns.time import INSTANCES, SHARE
from chopper_core.model.attributes import attributes_at
from chopper_core.model.charts import LineChart, picked
from chopper_core.model.groups import Groups
from chopper_core.model.inputs import REPEATED_STEPS, TIMES_NOTES
from chopper_core.model.memo import LazyMap
from chopper_core.model.phrases import by_number
from chopper_core.model.run import Run, interval_of, scope_of
from chopper_core.model.signals import Signal, bounds_of
from chopper_core.model.table import LEVELS, NO_LABEL
from chopper_core.model.units import time_text
from chopper_core.model.view import View, enter
from chopper_core.util.arrays import Float64, Index, Int64, Mask
from chopper_core.util.errors import UsageError
from chopper_core.util.grouping import evenly, ratios
from chopper_core.views.frame import Frame, Number, no_means
from chopper_core.views.spec import ViewResult

MOST_CHARTED_GPUS: Final = 1024
"""Of more, as many at equal distances: to read a GPU takes half a millisecond."""
MAX_SPARKLINE_GPUS: Final = 128
"""The most GPUs of a row for which its sparkline is computed."""
MAX_SPARKLINE_ACTIVITIES: Final = 1 << 24
"""The most activities that are gathered to find the GPUs of the rows."""


_NO_TIMES: Final = np.zeros(0)
_BEING_WRITTEN: Final = "is still being written"
"""The end of the reason why a file of a followed run isn't read yet."""
_OUTSIDE: Final = "outside steps: left out unless cut=1"
_TRUNCATED: Final = "truncated by the profiling window"
WARM_UP: Final = "warm-up"
"""Of a step that begins a window and takes far longer than the others."""


class SignalChart(Struct, frozen=True):
    """A signal of a node's GPUs over the node's time, or over the window of its view."""

    signal: Signal
    start_ns: int
    """Since the run's first activity."""
    end_ns: int
    scope_ns: tuple[int, int]
    """The node's own time."""
    gpus: tuple[int, ...]
    values: Float64
    """GPUs x bins of equal width; NaN where the signal is unknown."""
    there: int = 0
    """How many GPUs have the signal; of very many, some are shown."""

    @property
    def is_zoomed(self) -> bool:
        return (self.start_ns, self.end_ns) != self.scope_ns


def signal_chart(
    run: Run, view: View, bins: int, check: Callable[[], None] = lambda: None
) -> SignalChart:
    """The signal of a view over its node, from its first start to its last end, or its window.

    `check` raises Cancelled once the result is no longer wanted: many GPUs are slow.
    """
    signal = run.signals(view.signal)[0]
    scope = scope_of(run, view)
    start, end = scope
    if view.window:
        seen = interval_of(run, view)
        start, end = seen.from_ns, seen.to_ns
    there = (
        [gpu.index for gpu in run.gpus]
        if run.is_sampled_only and not (view.path and len(run.table))
        else run.tree(view.order).node(view.path).gpus(0)
    )
    known = [gpu for gpu in there if gpu in signal.curves]
    gpus = evenly(known, MOST_CHARTED_GPUS)
    bounds = bounds_of(start + run.origin_ns, end + run.origin_ns, bins)
    values = []
    for gpu in gpus:
        check()
        values.append(signal.curves[gpu].means(bounds))
    stacked = np.stack(values) if values else np.full((0, bins), np.nan)
    return SignalChart(signal, start, end, scope, gpus, stacked, len(known))


def signal_means(
    signal: Signal, nodes: Groups, shown: Index, has: Callable[[Signal], bool]
) -> Callable[..., Float64]:
    """The means of a signal that it `has` over the time of the shown nodes, as `Frame.means`.

    NaN for nodes on more than MAX_SPARKLINE_GPUS GPUs, or with more than MAX_SPARKLINE_ACTIVITIES
    activities whose GPUs aren't indexed: they would take too long.
    """

    def means(rows: Index, bins: int, of: Signal = signal) -> Float64:
        if not has(of):
            return no_means(rows, bins)
        known = nodes.means_of.setdefault((of.name, bins), {})
        chosen = shown[rows].tolist()
        asked = [row for row in dict.fromkeys(chosen) if row not in known]
        known.update(zip(asked, _means(of, nodes, asked, bins), strict=True))
        return np.array([known[row] for row in chosen]).reshape(-1, bins)

    return means if has(signal) else no_means


def _means(signal: Signal, nodes: Groups, chosen: Sequence[int], bins: int) -> Float64:
    total, count = np.zeros((len(chosen), bins)), np.zeros((len(chosen), bins), np.intp)
    is_much = not nodes.has_gpus and int(nodes.sizes().sum()) > MAX_SPARKLINE_ACTIVITIES
    if not is_much and chosen:
        start, end = nodes.min("start_ns"), nodes.max("end_ns")
        bounds = bounds_of(start[chosen], end[chosen], bins)
        # A GPU's curve is read once for all rows.
        places_of: dict[int, list[int]] = {}
        for place, row in enumerate(chosen):
            gpus = [gpu for gpu in nodes.gpus(row) if gpu in signal.curves]
            for gpu in gpus if len(gpus) <= MAX_SPARKLINE_GPUS else ():
                places_of.setdefault(gpu, []).append(place)
        for gpu, places in sorted(places_of.items()):
            values = signal.curves[gpu].means(bounds[places])
            is_known = np.isfinite(values)
            total[places] += np.where(is_known, values, 0.0)
            count[places] += is_known
    return ratios(total, count)


class LabelledActivities(Struct, frozen=True, eq=False):
    """The activities with the label of each row, of a view that computes its own figures of them.

    Registered columns answer there as in the tree; `at` is the group of each row, -1 without any.
    """

    level: str
    nodes: Groups
    at: Index
    whole: Groups
    """Those of all rows as one group."""

    @classmethod
    def of(cls, run: Run, view: View, level: str, labels: Sequence[str]) -> LabelledActivities:
        tree = run.tree_of(view)
        nodes = tree.split(view.path, (level,))
        place_of = {label: place for place, label in enumerate(nodes.labels(level))}
        at = np.array([place_of.get(label, -1) for label in labels], np.intp)
        left_out = np.delete(nodes.codes(level), at[at >= 0]).tolist()
        whole = tree.split(view.path, (), {level: left_out} if left_out else {})
        return cls(level, nodes, at, whole)

    def values(self, run: Run, view: View, metric: Metric) -> Values:
        found = metric.compute(Scope.of(run, self.nodes, self.whole))
        found = Coverage(run, view, self.level, self.nodes, self.whole).marked(metric, found)
        taken = found.take(np.maximum(self.at, 0))
        return replace(taken, missing=~taken.present() | (self.at < 0))


class Columns:
    """The columns of rows, each computed when it is first asked for.

    Those of the result are of the rows alone, with their totals; all others are metrics of the
    rows' activities, and their total row is that of the whole.
    """

    def __init__(
        self,
        run: Run,
        view: View,
        result: ViewResult,
        counted: Mask | None = None,
    ) -> None:
        """Figures that add up are put on a base; rows that aren't `counted` have no share."""
        rows, level = result.rows, result.rows.level
        nodes = rows.nodes if isinstance(rows, Partition) else None
        whole = rows.whole if isinstance(rows, Partition) else _node_of(run, view)
        self._run, self._view, self._nodes, self._whole = run, view, nodes, whole
        self.base = result.base or base_of(run, view)
        self._labels = {level: rows.labels}
        self._counted = counted
        self._divisors: dict[Reduces, Int64] = {}
        self.own = {column.name: (column, values) for column, values in result.columns}
        self._labelled: LabelledActivities | None = None
        self._is_labelled = nodes is None and has_activities(run, level)
        self._has_nodes = nodes is not None or self._is_labelled
        names = names_of(view, result.shown or tuple(self.own), self.own, has_nodes=self._has_nodes)
        of_nodes = (name not in self.own or self._is_registered(name) for name in names)
        self.over = instance_levels(view, level) if nodes is not None and any(of_nodes) else ()
        self._statistic = Statistic(view.stat, self.over) if view.stat and self.over else None
        if self._statistic and not view.columns:
            names = with_instances(names)
        self._coverage = Coverage(run, view, level, whole if nodes is None else nodes, whole)
        chosen = {
            name: own
            for name, own in self.own.items()
            if self._statistic is None or not self._is_registered(name)
        }
        self._values = {
            name: self._doubted(name, self._based(*own)) for name, own in chosen.items()
        }
        self._totals = {
            name: self._based_total(each, result.total.get(name))
            for name, (each, _) in chosen.items()
        }
        self._extrapolated: set[str] = set()
        """The columns whose total was computed and is extrapolated."""
        self.metrics = tuple(map(self.metric, names))
        self.totals = LazyMap(names, lambda name: self._total(self.metric(name)))

    def _is_registered(self, name: str) -> bool:
        return self._nodes is not None and METRICS.get(name) is self.own[name][0]

    @property
    def hidden(self) -> tuple[Metric, ...]:
        """The columns that can be asked for and aren't shown: the view's own, then registered."""
        own = [each for each, _ in self.own.values() if each not in self.metrics]
        known = {*self.own, *(each.name for each in self.metrics)}
        registered = [
            each
            for each in (METRICS.values() if self._has_nodes else ())
            if each.name not in known and not missing_throughout(each, self._run.table)
        ]
        return (*own, *registered)

    def metric(self, name: str) -> Metric:
        if name in self.own:
            found = self.own[name][0]
        elif self._nodes is None and not self._is_labelled:
            raise UsageError(
                f"the view {self._view.name} has no column {name!r}; it has {', '.join(self.own)}"
            )
        else:
            found = metric_named(name, self._run.table, self._run.counter_info)
        if self._statistic is None or name in self._totals:
            return found
        return self._statistic.metric(found)

    def values(self, name: str) -> Values:
        if name not in self._values:
            metric = self.metric(name)
            if self._nodes is None:
                found = self._activities.values(self._run, self._view, metric)
            else:
                found = metric.compute(Scope.of(self._run, self._nodes, self._whole))
            if name == SHARE and self._counted is not None:
                found = replace(found, missing=~(found.present() & self._counted))
            self._values[name] = self._doubted(name, self._based(metric, found))
        return self._values[name]

    @property
    def _activities(self) -> LabelledActivities:
        if self._labelled is None:
            ((level, labels),) = self._labels.items()
            self._labelled = LabelledActivities.of(self._run, self._view, level, labels)
        return self._labelled

    def _doubted(self, name: str, values: Values) -> Values:
        """Values marked where a doubt touches the column's figures."""
        if name not in self._run.doubted:
            return values
        return replace(values, extrapolated=values.present())

    def _based(self, metric: Metric, values: Values) -> Values:
        """Values of the rows on the base of the view, marked where they cover only some GPUs."""
        if self._nodes is not None:
            values = self._coverage.marked(metric, values)
        return divided(values, self._divisor(metric, self._labels))

    def _based_total(self, metric: Metric, number: Number | None) -> Number | None:
        by = int(self._divisor(metric, {"": [""]})[0])
        return number if number is None or by == 1 else number / by

    def _divisor(self, metric: Metric, labels: Mapping[str, Sequence[str]]) -> Int64:
        if not metric.adds_up:
            return np.ones(1, np.int64)
        is_labelled = self._nodes is None and metric.name not in self.own
        gpus = None if self._nodes is None else self._coverage.covered(metric)
        if is_labelled:
            # The view's own figures may be on the base already; these aren't.
            return replace(self.base, is_applied=False).of_rows(labels, None, metric.reduces)
        if gpus is not None or labels is not self._labels:
            return self.base.of_rows(labels, gpus, metric.reduces)
        # That of most columns is the same, and rows may be ten thousand.
        if metric.reduces not in self._divisors:
            found = self.base.of_rows(labels, None, metric.reduces)
            self._divisors[metric.reduces] = found
        return self._divisors[metric.reduces]

    def _total(self, metric: Metric) -> Number | None:
        if metric.name in self._totals:
            return self._totals[metric.name]
        whole = self._activities.whole if self._is_labelled else self._whole
        found = metric.compute(Scope.of(self._run, whole))
        if found.is_extrapolated(0):
            self._extrapolated.add(metric.name)
        return None if found.words is not None else self._based_total(metric, found.at(0))

    @property
    def adds_up(self) -> bool:
        """Whether there are figures that add up among them."""
        return any(each.adds_up for each in (*self.metrics, *(own for own, _ in self.own.values())))

    @property
    def notes(self) -> Sequence[str]:
        return self._coverage.notes(self.metrics)

    @property
    def partial_totals(self) -> frozenset[str]:
        partial = self._coverage.partial_totals(self.metrics)
        return frozenset(name for name in partial if self.totals[name] is not None)

    @property
    def extrapolated_totals(self) -> frozenset[str]:
        """Those of columns with rows that are extrapolated or missing: others have none."""
        for metric in self.metrics:
            values = self.values(metric.name)
            masks = (each for each in (values.extrapolated, values.missing) if each is not None)
            if any(each.any() for each in masks):
                self.totals[metric.name]
        return frozenset(self._extrapolated)


def names_of(
    view: View, default: Sequence[str], own: Collection[str] = (), *, has_nodes: bool = True
) -> tuple[str, ...]:
    """The columns of a view, and the one that its rows are sorted by, where it is one of them."""
    names, sort = view.columns or tuple(default), view.sort.removeprefix("-")
    if added := view.added_columns:
        chosen = (name for name in names if not name.startswith("+"))
        names = tuple(dict.fromkeys((*default, *chosen, *added)))
    is_known = sort in own or (has_nodes and not is_difference(sort))
    return (*names, sort) if is_known and sort not in ("", NAME, *names) else names


def has_activities(run: Run, level: str) -> bool:
    """Whether rows of a level are labels of activities, for which registered columns answer."""
    return (
        bool(len(run.table))
        and not run.table.is_sampled
        and (level in LEVELS or level in run.table.coordinates)
    )


def with_instances(names: Sequence[str]) -> tuple[str, ...]:
    return (*names[:2], INSTANCES, *(name for name in names[2:] if name != INSTANCES))


def _node_of(run: Run, view: View) -> Groups:
    """The activities of a view's node as one group."""
    if not len(run.table):
        return Groups.single(run.table, slice(0, 0))
    return run.tree_of(view).node(view.path)


def arranged(
    run: Run, view: View, result: ViewResult, columns: Columns, counted: Mask | None = None
) -> Shown:
    """The rows of a result that the view's filter leaves, in the order of its sort."""
    texts = list(result.rows.labels)
    for _, values in result.columns if view.filter else ():
        if values.words is not None:
            words = (*values.words, "")
            places = np.where(values.present(), values.numbers, -1).tolist()
            texts = [f"{text}\n{words[place]}" for text, place in zip(texts, places, strict=True)]
    titled = (*columns.metrics, *(each for each, _ in result.columns))
    rows = FilterRows(
        result.rows.level, result.rows.labels, columns.values, tuple(columns.own), titled, texts,
        run.table.coordinates,
    )  # fmt: skip
    return shown_of(rows, view.filter, view.sort or result.sort, counted)


def framed(
    run: Run,
    view: View,
    result: ViewResult,
    columns: Columns,
    shown: Shown,
    *,
    notes: tuple[str, ...],
    left_out: tuple[int, ...],
    is_pending: bool = False,
    hidden_ns: float = 0,
    parent_ns: float = 0,
    elapsed_ns: Float64 = _NO_TIMES,
) -> Frame:
    """The frame of a result: its columns for the rows that are shown, with the total row."""
    rows, places = result.rows, shown.at.tolist()
    signal, *others = run.signals(view.signal)
    means = no_means
    if isinstance(rows, Partition):
        # How busy a kernel keeps the GPU while it runs says nothing.
        means = signal_means(
            signal, rows.nodes, shown.at, lambda each: not view.name or each.name in run.measured
        )
    return Frame(
        view=view,
        level=rows.level,
        columns=columns.metrics,
        labels=shown.labels,
        values=shown.values(columns.metrics),
        total=columns.totals,
        notes=notes,
        target=lambda row: result.opens(places[row]),
        signal=signal,
        means=means,
        signals=tuple(others),
        sort=view.sort or result.sort,
        hidden=shown.hidden,
        hidden_ns=hidden_ns,
        parent_ns=parent_ns,
        elapsed_ns=elapsed_ns,
        more=columns.hidden if view.name else (),
        headline=result.headline,
        charts=tuple(
            picked(each, places)
            for each in result.charts
            if not isinstance(each, LineChart) or each.has_course
        ),
        over=result.over or columns.over,
        is_pending=is_pending,
        by=result.by,
        truncated=run.truncated(view),
        warm_up=tuple(sorted(run.warm_up)),
        left_out=left_out,
        attributes=lambda row: attributes_at(run, result.opens(places[row])),
        base=columns.base.text if columns.base.is_applied or columns.adds_up else "",
        total_title=result.total_title or columns.base.total_title(rows.level, rows.labels),
        partial_total=columns.partial_totals,
        extrapolated_total=result.extrapolated_total | columns.extrapolated_totals | run.doubted,
        quality=run.doubts,
    )


def tree_result(run: Run, view: View) -> ViewResult:
    """The children of a node, or the single activity that a view names."""
    tree, level = run.tree_of(view), view.level
    whole = tree.node(view.path)
    if view.is_leaf:
        rows = Partition(level, [view.path[-1]], whole, whole)
    else:
        found = tree.children(view.path)
        rows = Partition(level, list(found.labels), found.groups, whole)
    return ViewResult(
        rows,
        columns=(),
        opens=lambda row: view if view.is_leaf else enter(view, rows.labels[row]),
        sort="-elapsed_ns" if level in LONGEST_FIRST else "",
        shown=default_columns(level, run.table, run.hardware),
    )


def children(run: Run, view: View) -> Frame:
    if view.window:
        interval_of(run, view)
    result, left_out = tree_result(run, view), run.uncounted(view)
    rows = result.rows
    assert isinstance(rows, Partition)
    skipped: set[str] = set()
    if rows.level == "iteration":
        skipped = {run.table.text_of(rows.level, code) for code in left_out}
    counted = np.array([label not in skipped for label in rows.labels], np.bool_)
    columns = Columns(run, view, result, counted)
    shown = arranged(run, view, result, columns, counted)
    elapsed_ns, base = rows.nodes.elapsed_ns, columns.base
    hidden_ns = float(base.each(elapsed_ns[~shown.mask & counted].sum()))
    nowhere = [
        column
        for column in columns.metrics
        if column.name in view.columns
        and columns.totals[column.name] is None
        and not columns.values(column.name).present().any()
    ]
    notes = (
        *shown.hint,
        *notes_of(run, view, len(rows.labels), shown.hidden, hidden_ns),
        *columns.notes,
        *(
            f"{', '.join(each.name for each in group)} unavailable: {reason}"
            for reason, group in reasons(nowhere, run.table, run.hardware).items()
        ),
    )
    return framed(
        run,
        view,
        result,
        columns,
        shown,
        notes=notes,
        left_out=left_out,
        hidden_ns=hidden_ns,
        parent_ns=float(base.each(rows.whole.elapsed_ns[0])),
        elapsed_ns=(elapsed_ns / base.of_rows({rows.level: rows.labels}))[shown.at],
    )


def silent_levels(run: Run, view: View) -> tuple[str, ...]:
    """The labels of the levels below a view's node that say nothing: one value each.

    They lead to the next level that splits; empty where the node's own children do, and where
    nothing below it does.
    """
    if not len(run.table):
        return ()
    tree, path = run.tree(view.order), view.path
    while len(path) < len(view.order):
        labels = tree.children(path).labels
        if len(labels) > 1:
            return path[len(view.path) :]
        path = (*path, labels[0])
    return ()


def with_column_names(
    view: View, known: Sequence[Metric] = (), settings: Collection[str] = ()
) -> View:
    """The view with its columns by name, however they are written; settings name themselves."""

    own = {*settings, *(metric.name for metric in known)}

    def named(text: str) -> str:
        return text if text.lstrip("-+") in own else column_names([text], known)[0]

    return replace(view, columns=tuple(map(named, view.columns)), sort=named(view.sort))


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
    outside = [f"{_time_outside(run)} {_OUTSIDE}"] if NO_LABEL in run.uncounted(view) else []
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
        f"step{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
        f"{f' {where}' * bool(where)} {'is' if len(numbers) == 1 else 'are'} {reason}"
        for reason, numbers in why.items()
    )
    if left_out:
        return [f"{note}: left out unless cut=1", *outside]
    is_chosen = view.cut or "iteration" in dict(view.scope)
    return [note if is_chosen else f"{note}, and there is no complete one"]


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
        notes.append(f"{damaged} of {len(run.sources)} files lost data; see `chopper info`")
    if run.memo(("repeated",), lambda: any(s.findings.get(REPEATED_STEPS) for s in run.sources)):
        notes.append("step annotations repeat numbers: a step is all that has its number")
    waiting = sum(why.endswith(_BEING_WRITTEN) for _, why in run.failed)
    for count, text in (
        (waiting, "being written, not read yet"),
        (len(run.failed) - waiting, "could not be used; see `chopper info`"),
    ):
        if count:
            notes.append(f"{count} file{'s' * (count > 1)} {text}")
    return notes


def filter_note(count: int, hidden: int) -> tuple[str, ...]:
    return (f"{hidden} of {count} rows filtered out",) if hidden else ()


def node_figures(run: Run, view: View, names: Iterable[str]) -> dict[str, Values]:
    """Figures of a view's node itself, one value each; raises NoSuchNode for an unknown node."""
    known = [metric_named(name, run.table, run.counter_info) for name in names]
    if not len(run.table):
        return {each.name: numbered([None]) for each in known}
    node = run.tree_of(view).node(view.path)
    columns = Columns(run, view, ViewResult(Partition("", [""], node, node), (), lambda row: view))
    return {each.name: columns.values(each.name) for each in known}
