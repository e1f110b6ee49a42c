"""Answers of views as they are kept with a run: plain values and arrays.

Functions of an answer, such as the view that a cell opens, are asked of the answer worked out
again, once they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import asdict, replace

from chopper_core.analyses.base import Base
from chopper_core.analyses.rows import LabelledRows, Partition
from chopper_core.columns import METRICS, Metric, Reduces, Values, computed_column
from chopper_core.model.charts import (
    BarChart,
    Cards,
    Chart,
    Composition,
    HeatMap,
    LineChart,
    MemoryChart,
    Roofline,
    SignalRows,
)
from chopper_core.model.groups import Groups, are_groups
from chopper_core.model.run import Run
from chopper_core.model.table import LEVELS
from chopper_core.model.view import View
from chopper_core.store.kept import decoded, encoded, later
from chopper_core.util.arrays import AnyArray, Index, Mask
from chopper_core.util.errors import NothingToShow
from chopper_core.views import view_spec
from chopper_core.views.shared.table_view import OpensPart
from chopper_core.views.spec import ViewResult

_CHARTS: Final = {
    each.__name__: each
    for each in (
        BarChart, Cards, Composition, HeatMap, LineChart, MemoryChart, Roofline, SignalRows,
    )
}  # fmt: skip
"""The kinds of charts that can be kept: lanes are drawn from the activities."""
_MOST_OPENED: Final = 4096
"""Rows whose views are kept one by one, where they are no parts of the tree."""
_MOST_ROWS: Final = 1 << 21
"""Activities of rows that are no part of the tree."""


class StoredColumn(Struct, frozen=True):
    """A column of a view without its function, and its values."""

    name: str
    unit: str
    title: str
    reduces: Reduces
    definition: str
    source: str
    missing_because: str
    signed: bool
    numbers: AnyArray
    missing: Mask | None
    extrapolated: Mask | None
    words: tuple[str, ...] | None
    partial: Mask | None
    bound: Mask | None

    @classmethod
    def of(cls, metric: Metric, values: Values) -> StoredColumn:
        plain = {name: getattr(metric, name) for name in cls.__struct_fields__[:8]}
        return cls(**plain | {"unit": str(metric.unit)}, **asdict(values))

    @property
    def metric(self) -> Metric:
        known = METRICS.get(self.name)
        plain = {name: getattr(self, name) for name in self.__struct_fields__[:8]}
        if known is not None and all(getattr(known, name) == own for name, own in plain.items()):
            return known
        return computed_column(**plain)

    @property
    def values(self) -> Values:
        return Values(**{name: getattr(self, name) for name in Values.__struct_fields__})


class StoredGroups(Struct, frozen=True):
    """Groups of activities: where in a tree they are, else their rows."""

    order: tuple[str, ...]
    left_out: tuple[int, ...] = ()
    path: tuple[str, ...] = ()
    levels: tuple[str, ...] = ()
    without: Mapping[str, tuple[int, ...]] = {}
    rows: Index | None = None
    first: Index | None = None

    @classmethod
    def of(cls, groups: Groups) -> StoredGroups:
        """Raises ValueError for many rows."""
        if groups.origin is not None:
            return cls(*groups.origin)
        if len(groups.rows) > _MOST_ROWS:
            raise ValueError("groups of too many rows")
        return cls((), rows=groups.rows, first=groups.first)

    def groups(self, run: Run) -> Groups:
        """Raises ValueError for rows that the run hasn't."""
        rows, first, count = self.rows, self.first, len(run.table)
        if rows is None or first is None:
            return run.tree(self.order, self.left_out).split(self.path, self.levels, self.without)
        if not are_groups(rows, first, count):
            raise ValueError("rows of another run")
        return Groups(run.table, rows, first)


class StoredBase(Struct, frozen=True):
    """The base of a view's figures without its run."""

    within: Mask
    others: Mask
    complete: Mask
    is_total: bool
    is_itself: bool
    on_gpus: bool
    is_applied: bool
    is_of_step: bool

    @classmethod
    def of(cls, run: Run, base: Base) -> StoredBase:
        if base.run is not run or base.cells is not run.pairs:
            raise ValueError("a base of another run")
        return cls(*(getattr(base, name) for name in cls.__struct_fields__))

    def base(self, run: Run) -> Base:
        if {len(each) for each in (self.within, self.others, self.complete)} != {len(run.pairs)}:
            raise ValueError("a base of other steps")
        return Base(run, run.pairs, **asdict(self))


class StoredChart(Struct, frozen=True):
    """A chart of one of `_CHARTS`."""

    kind: str
    content: bytes


class StoredAnswer(Struct, frozen=True):
    """A `ViewResult` as it is kept."""

    level: str
    labels: tuple[str, ...] | None
    """None where they are those of its groups: names of kernels can be kilobytes each."""
    columns: tuple[StoredColumn, ...]
    opened: tuple[View, ...]
    """The views that the rows open; none where there are many, or where they are `parts_of`."""
    parts_of: View | None
    """The view whose parts of the tree the rows open."""
    total: Mapping[str, int | float]
    sort: str
    shown: tuple[str, ...]
    nodes: StoredGroups | None
    whole: StoredGroups | None
    headline: tuple[str, ...]
    notes: tuple[str, ...]
    charts: tuple[StoredChart, ...]
    over: tuple[str, ...]
    by: str
    base: StoredBase | None
    total_title: str
    extrapolated_total: frozenset[str]

    @classmethod
    def of(cls, run: Run, answer: ViewResult) -> StoredAnswer:
        """Raises ValueError or TypeError for an answer that can't be kept."""
        rows, opens, labels = answer.rows, answer.opens, tuple(answer.rows.labels)
        parts_of = None
        if isinstance(opens, OpensPart) and (opens.level, *opens.labels) == (rows.level, *labels):
            parts_of = opens.view
        are_opened = parts_of is None and len(labels) <= _MOST_OPENED
        are_of_groups = (
            isinstance(rows, Partition)
            and rows.level in LEVELS
            and rows.labels == rows.nodes.labels(rows.level)
        )
        own: dict[str, Any] = {
            "level": rows.level,
            "labels": None if are_of_groups else labels,
            "columns": tuple(StoredColumn.of(*each) for each in answer.columns),
            "opened": tuple(map(opens, range(len(labels)))) if are_opened else (),
            "parts_of": parts_of,
            "nodes": StoredGroups.of(rows.nodes) if isinstance(rows, Partition) else None,
            "whole": StoredGroups.of(rows.whole) if isinstance(rows, Partition) else None,
            "charts": tuple(map(_stored_chart, answer.charts)),
            "base": None if answer.base is None else StoredBase.of(run, answer.base),
        }
        plain = {name: getattr(answer, name) for name in cls.__struct_fields__ if name not in own}
        return cls(**plain, **own)


def kept_answer(run: Run, view: View, ask: Callable[[View], ViewResult]) -> ViewResult:
    """The result of a view, asked once in the life of the run's files; without what doesn't change
    it: sort, filter and columns. Raises NothingToShow."""

    def asked() -> ViewResult | NothingToShow:
        try:
            return ask(view) if view.base_run else _recalled(run, view, partial(ask, view))
        except NothingToShow as reason:
            # Finding it out may have taken long, too; its traceback holds all that was looked at.
            return NothingToShow(*reason.args)

    known = run.memo(("view", view), asked)
    if isinstance(known, NothingToShow):
        raise NothingToShow(*known.args)
    return known


def _recalled(run: Run, view: View, ask: Callable[[], ViewResult]) -> ViewResult:
    """The answer to a view as it was kept with the run's files, else asked."""
    stored = partial(StoredAnswer.of, run)
    restored, is_costly = partial(_restored, run, ask), view_spec(view.name).is_costly
    key = view.name, view
    found: ViewResult = run.kept(key, StoredAnswer, ask, stored, restored, is_costly=is_costly)
    return found


def _restored(run: Run, again: Callable[[], ViewResult], stored: StoredAnswer) -> ViewResult:
    """An answer that was kept; `again` works it out, for what can't be kept of it.

    Raises ValueError where it isn't one of the run.
    """
    again, opened = cache(again), stored.opened
    rows = _restored_rows(run, stored)
    if any(len(each.numbers) != len(rows.labels) for each in stored.columns):
        raise ValueError("columns of another length")
    own: dict[str, Any] = {
        "rows": rows,
        "columns": tuple((each.metric, each.values) for each in stored.columns),
        "charts": tuple(
            _restored_chart(place, each, again) for place, each in enumerate(stored.charts)
        ),
        "base": None if stored.base is None else stored.base.base(run),
        "opens": lambda row: opened[row] if opened else again().opens(row),
    }
    if stored.parts_of is not None:
        own["opens"] = OpensPart(stored.parts_of, stored.level, rows.labels)
    plain = {
        name: getattr(stored, name) for name in ViewResult.__struct_fields__ if name not in own
    }
    return ViewResult(**plain, **own)


def _restored_rows(run: Run, stored: StoredAnswer) -> LabelledRows:
    level, labels = stored.level, stored.labels
    if stored.nodes is None or stored.whole is None:
        if labels is None:
            raise ValueError("rows without labels")
        return LabelledRows(level, list(labels))
    nodes, whole = stored.nodes.groups(run), stored.whole.groups(run)
    if labels is None and level not in LEVELS:
        raise ValueError("groups of another level")
    return Partition(level, nodes.labels(level) if labels is None else list(labels), nodes, whole)


def _stored_chart(chart: Chart) -> StoredChart:
    kind = type(chart).__name__
    if kind not in _CHARTS:
        raise ValueError(f"a chart of {kind}")
    return StoredChart(kind, encoded(chart))


def _restored_chart(place: int, stored: StoredChart, again: Callable[[], ViewResult]) -> Chart:
    kind = _CHARTS.get(stored.kind)
    if kind is None:
        raise ValueError(f"a chart of {stored.kind}")
    chart: Any = decoded(stored.content, kind)

    def asked(name: str) -> Callable[..., Any]:
        return lambda *at: getattr(again().charts[place], name)(*at)

    names = (name for name in chart.__struct_fields__ if getattr(chart, name) is later)
    found: Chart = replace(chart, **{name: asked(name) for name in names})
    return found
