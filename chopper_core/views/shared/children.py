"""The rows of the tree: the children of a node, their columns, order, notes and signals."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.metrics import (
    Metric,
    Scope,
    Values,
    column_names,
    default_columns,
    metric_named,
    numbered,
)
from chopper_core.metrics.lookup import reason_notes
from chopper_core.metrics.time import INSTANCES, SHARE
from chopper_core.model import address
from chopper_core.model.attributes import attributes_at
from chopper_core.model.groups import Groups
from chopper_core.model.inputs import TIMES_NOTES
from chopper_core.model.run import Run, interval_of, scope_of
from chopper_core.model.signals import Signal, bounds_of
from chopper_core.model.units import time_text
from chopper_core.model.view import View, enter
from chopper_core.util.arrays import Float64, Index, Mask
from chopper_core.views.frame import Frame
from chopper_core.views.shared.derived import (
    Statistic,
    instance_levels,
    is_difference,
    statistic_of,
)
from chopper_core.views.shared.filter import Rows, filter_hint, matching
from chopper_core.views.shared.marks import Coverage

MAX_SPARKLINE_GPUS: Final = 128
"""The most GPUs of a row for which its sparkline is computed."""
MAX_SPARKLINE_ACTIVITIES: Final = 1 << 24
"""The most activities that are gathered to find the GPUs of the rows."""
NAME: Final = "name"
"""The column of the labels, for sorting."""
LONGEST_FIRST: Final = ("operation", "kernel", "class", "shape")
"""Levels without a default order: their longest rows come first."""


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

    @property
    def is_zoomed(self) -> bool:
        """Whether it shows a time range other than the node's."""
        return (self.start_ns, self.end_ns) != self.scope_ns


def _wanted() -> None:
    """Somebody waits for it."""


def signal_chart(
    run: Run, view: View, bins: int, check: Callable[[], None] = _wanted
) -> SignalChart:
    """The signal of a view over its node, from its first start to its last end, or its window.

    `check` raises Cancelled once the result is no longer wanted: many GPUs are slow.
    """
    signal = run.signal(view.signal)
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
    gpus = [gpu for gpu in there if gpu in signal.curves]
    bounds = bounds_of(start + run.origin_ns, end + run.origin_ns, bins)
    values = []
    for gpu in gpus:
        check()
        values.append(signal.curves[gpu].means(bounds))
    stacked = np.stack(values) if values else np.full((0, bins), np.nan)
    return SignalChart(signal, start, end, scope, tuple(gpus), stacked)


def _rows_by_gpu(signal: Signal, nodes: Groups, chosen: Sequence[int]) -> dict[int, list[int]]:
    """GPU with the signal → the places of the chosen nodes on it; not of nodes on very many."""
    found: dict[int, list[int]] = {}
    for place, row in enumerate(chosen):
        gpus = [gpu for gpu in nodes.gpus(row) if gpu in signal.curves]
        for gpu in gpus if len(gpus) <= MAX_SPARKLINE_GPUS else ():
            found.setdefault(gpu, []).append(place)
    return dict(sorted(found.items()))


def means_of(signal: Signal, nodes: Groups, shown: Index) -> Callable[[Index, int], Float64]:
    """The means of a signal over the time of the shown nodes, as `Frame.means`.

    NaN for nodes on more than MAX_SPARKLINE_GPUS GPUs, or with more than MAX_SPARKLINE_ACTIVITIES
    activities whose GPUs aren't indexed: they would take too long.
    """

    def means(rows: Index, bins: int) -> Float64:
        known = nodes.means_of.setdefault((signal.name, bins), {})
        chosen = shown[rows].tolist()
        asked = [row for row in dict.fromkeys(chosen) if row not in known]
        known.update(zip(asked, _means(signal, nodes, asked, bins), strict=True))
        return np.array([known[row] for row in chosen]).reshape(-1, bins)

    return means


def _means(signal: Signal, nodes: Groups, chosen: Sequence[int], bins: int) -> Float64:
    total, count = np.zeros((len(chosen), bins)), np.zeros((len(chosen), bins), np.intp)
    is_much = not nodes.has_gpus and int(nodes.sizes().sum()) > MAX_SPARKLINE_ACTIVITIES
    if not is_much and chosen:
        start, end = nodes.min("start_ns"), nodes.max("end_ns")
        bounds = np.stack([bounds_of(int(start[row]), int(end[row]), bins) for row in chosen])
        # A GPU's curve is read once for all rows.
        for gpu, places in _rows_by_gpu(signal, nodes, chosen).items():
            values = signal.curves[gpu].means(bounds[places])
            is_known = np.isfinite(values)
            total[places] += np.where(is_known, values, 0.0)
            count[places] += is_known
    with np.errstate(invalid="ignore"):
        result: Float64 = np.where(count > 0, total / count, np.nan)
    return result


def children(run: Run, view: View) -> Frame:
    """The children of a view's node and their figures; view modules and baselines play no part."""
    if view.window:
        interval_of(run, view)
    tree = run.tree_of(view)
    parent = tree.node(view.path)
    signal = run.signal(view.signal)
    if view.is_leaf:
        labels: list[str] = [view.path[-1]]
        nodes = parent
    else:
        children = tree.children(view.path)
        labels, nodes = list(children.labels), children.groups
    scope = Scope(nodes, parent, run.origin_ns, run.hardware, run.measured)
    computed: dict[str, Values] = {}
    left_out = run.left_out(view)
    skipped = set(map(str, left_out)) if view.level == "iteration" else set()
    counted = np.array([label not in skipped for label in labels], np.bool_)
    statistic = statistic_of(view)
    coverage = Coverage(run, view, view.level, nodes, parent)

    def values(name: str) -> Values:
        if name not in computed:
            found = column_of(name, run, statistic).compute(scope)
            if name == SHARE:
                found = replace(found, missing=~(found.present() & counted))
            computed[name] = coverage.marked(column_of(name, run, statistic), found)
        return computed[name]

    columns = tuple(column_of(name, run, statistic) for name in names_of(run, view))
    rows = Rows(view.level, labels, values, columns=columns, coordinates=run.table.coordinates)
    mask = matching(rows, view.filter)
    shown = np.flatnonzero(mask)
    elapsed = metric_named("elapsed_ns", run.table).compute(scope).numbers.astype(np.int64)
    hidden_ns = int(elapsed[~mask & counted].sum())
    sort = view.sort or ("-elapsed_ns" if view.level in LONGEST_FIRST else "")
    shown = shown[ordered(shown, view.level, labels, sort, values, counted)]
    totals = Scope(parent, parent, run.origin_ns, run.hardware, run.measured)
    total = {column.name: column.compute(totals).at(0) for column in columns}
    nowhere = [
        column
        for column in columns
        if column.name in view.columns
        and total[column.name] is None
        and not values(column.name).present().any()
    ]
    shown_labels = [labels[row] for row in shown]

    def target(row: int) -> View:
        return view if view.is_leaf else enter(view, shown_labels[row])

    return Frame(
        view=view,
        address=address.render(view),
        level=view.level,
        columns=columns,
        labels=shown_labels,
        values={column.name: values(column.name).take(shown) for column in columns},
        total=total,
        sort=sort,
        hidden=len(labels) - len(shown),
        hidden_ns=hidden_ns,
        parent_ns=int(metric_named("elapsed_ns", run.table).compute(totals).numbers[0]),
        elapsed_ns=elapsed[shown],
        notes=(
            *filter_hint(rows, view.filter, mask),
            *notes_of(run, view, labels, len(shown), hidden_ns),
            *coverage.notes(columns),
            *reason_notes(nowhere, run.table, run.hardware),
        ),
        partial_total=coverage.partial_totals(columns),
        attributes=lambda row: attributes_at(run, target(row)),
        target=target,
        signal=signal,
        means=means_of(signal, nodes, shown),
        over=instance_levels(view),
        truncated=run.truncated(view),
        left_out=left_out,
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

    def named(text: str) -> str:
        return text if text.removeprefix("-") in settings else column_names([text], known)[0]

    return replace(view, columns=tuple(map(named, view.columns)), sort=named(view.sort))


def names_of(run: Run, view: View) -> tuple[str, ...]:
    """The columns of a view, by default those of its level, with a statistic the instances too.

    The one that its rows are sorted by is always among them.
    """
    names = view.columns or default_columns(view.level, run.table, run.hardware)
    if view.stat and not view.columns:
        names = (*names[:2], INSTANCES, *names[2:])
    sort = view.sort.removeprefix("-")
    return names if sort in ("", NAME, *names) or is_difference(sort) else (*names, sort)


def column_of(name: str, run: Run, statistic: Statistic | None) -> Metric:
    """The metric of a column; raises UsageError for an unknown name."""
    known = metric_named(name, run.table, run.counter_info)
    return statistic.metric(known) if statistic else known


def ordered(
    shown: Index,
    level: str,
    labels: list[str],
    sort: str,
    values: Callable[[str], Values],
    counted: Mask | None = None,
) -> Index:
    """The order of the rows; by name it is the level's default order, or alphabetical.

    Operations and kernels have no default order.
    """
    if not sort:
        return np.arange(len(shown))
    descending, name = sort.startswith("-"), sort.removeprefix("-")
    if name == NAME:
        order = np.arange(len(shown))
        if level in LONGEST_FIRST:
            order = np.array(sorted(order, key=lambda row: labels[int(shown[row])]), np.intp)
        return order[::-1] if descending else order
    column = values(name).take(shown)
    # Differences sort by size, in either direction.
    size = np.abs(column.numbers) if is_difference(name) else column.numbers
    numbers = -size if descending else size
    # Rows without a value come last in both directions, and after them those left out of sums.
    skipped = np.zeros(len(shown), np.bool_) if counted is None else ~counted[shown]
    return np.lexsort((numbers, ~column.present(), skipped))


def notes_of(
    run: Run, view: View, labels: Sequence[str], shown: int, hidden_ns: int
) -> tuple[str, ...]:
    """Notes on the rows of a node: `shown` are shown, the others have `hidden_ns` in total."""
    notes = run_notes(run, view)
    if view.stat:
        over = instance_levels(view)
        instances = f"a row's instances (one per {', '.join(over)})"
        notes.insert(0, f"figures are the {view.stat} over {instances}; % is the share of the sum")
    if shown < len(labels):
        notes.append(
            f"{len(labels) - shown} of {len(labels)} rows filtered out ({time_text(hidden_ns)}); "
            "totals and shares include them"
        )
    return tuple(notes)


def cut_note(run: Run, view: View, where: str = "") -> list[str]:
    """A note on the truncated iterations of a view's node: whether they take part."""
    cut, left_out = run.truncated(view), run.left_out(view)
    if not cut:
        return []
    which = f"iteration{'s' * (len(cut) > 1)} {', '.join(map(str, cut))}"
    verb = "is" if len(cut) == 1 else "are"
    note = f"{which}{f' {where}' * bool(where)} {verb} truncated by the profiling window"
    if left_out:
        return [f"{note}: left out unless cut=1"]
    is_chosen = view.cut or "iteration" in dict(view.scope)
    return [note if is_chosen else f"{note}, and there is no complete one"]


def run_notes(run: Run, view: View) -> list[str]:
    """Notes on everything that comes from a run."""
    notes = cut_note(run, view)
    if run.is_sampled_only and not view.name:
        notes.append("no trace: rows are intervals between samples, and no activity is known")
    if run.generated:
        notes.append(f"generated data, not measured (made by {run.generated})")
    if run.times_mark:
        notes.append(TIMES_NOTES[run.times_mark])
    damaged = sum(bool(source.losses) for source in run.sources)
    if damaged:
        notes.append(f"{damaged} of {len(run.sources)} files lost data; see `chopper info`")
    if run.failed:
        files = f"{len(run.failed)} file{'s' if len(run.failed) > 1 else ''}"
        notes.append(f"{files} could not be used; see `chopper info`")
    return notes


def filter_note(rows: int, shown: int) -> tuple[str, ...]:
    """How many rows of a result the filter hides."""
    return (f"{rows - shown} of {rows} rows filtered out",) if shown < rows else ()


def figures(run: Run, view: View, names: Iterable[str]) -> dict[str, Values]:
    """Figures of a view's node itself, one value each; raises NoSuchNode for an unknown node."""
    known = [metric_named(name, run.table, run.counter_info) for name in names]
    if not len(run.table):
        return {each.name: numbered([None]) for each in known}
    node = run.tree_of(view).node(view.path)
    scope = Scope(node, node, run.origin_ns, run.hardware, run.measured)
    coverage = Coverage(run, view, "", node, node)
    return {each.name: coverage.marked(each, each.compute(scope)) for each in known}
