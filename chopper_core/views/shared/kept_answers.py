"""Answers of views as they are kept with a run: plain values and arrays.

Functions of an answer, such as the view that a cell opens, are asked of the answer worked out
again, once they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import asdict, replace

from chopper_core.analyses.base import Base
from chopper_core.analyses.rows import LabelledRows, Partition
from chopper_core.columns import METRICS, Metric, Reduces, Values, computed_column
from chopper_core.model.charts import (
    Band,
    BarChart,
    Cards,
    Chart,
    Composition,
    HeatMap,
    LaneCells,
    Lanes,
    LineChart,
    MemoryChart,
    Roofline,
    SignalRows,
    Strip,
    picked,
)
from chopper_core.model.groups import Groups, are_groups
from chopper_core.model.run import Run
from chopper_core.model.table import LEVELS
from chopper_core.model.view import ALL_TIME, View
from chopper_core.store.kept import later
from chopper_core.util.arrays import AnyArray, Float64, Index, Mask
from chopper_core.util.errors import NothingToShow
from chopper_core.views import view_spec
from chopper_core.views.shared.table_view import OpensPart
from chopper_core.views.spec import ViewResult

_FIRST_LANES: Final = 12
"""Those of a first screen of 24 lines, and of the page below it that is drawn with them."""
_MANY: Final = 1 << 20
"""Activities of a run whose lanes take longer to draw than to read, at each start."""
_MOST_OPENED: Final = 256
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
        if groups.sizes().sum() > _MOST_ROWS:
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
    """A chart of the kinds that can be kept, at the place of its kind."""

    bars: BarChart | None = None
    cards: Cards | None = None
    composition: Composition | None = None
    heat: HeatMap | None = None
    lanes: Lanes | None = None
    lines: LineChart | None = None
    memory: MemoryChart | None = None
    roofline: Roofline | None = None
    signals: SignalRows | None = None

    @classmethod
    def of(cls, chart: Chart) -> StoredChart:
        """Raises ValueError for one of another kind."""
        if type(chart) not in _PLACES:
            raise ValueError(f"a chart of {type(chart).__name__}")
        given: dict[str, Any] = {_PLACES[type(chart)]: chart}
        return cls(**given)

    @property
    def chart(self) -> Chart:
        """Raises ValueError where there is none."""
        found = [getattr(self, name) for name in self.__struct_fields__]
        known: list[Chart] = [each for each in found if each is not None]
        if len(known) != 1:
            raise ValueError("a chart of no kind, or of several")
        return known[0]


_PLACES: Final[Mapping[type, str]] = {
    BarChart: "bars",
    Cards: "cards",
    Composition: "composition",
    HeatMap: "heat",
    Lanes: "lanes",
    LineChart: "lines",
    MemoryChart: "memory",
    Roofline: "roofline",
    SignalRows: "signals",
}


class DrawnLanes(Struct, frozen=True, eq=False):
    """What is drawn of the first lanes of a chart, and of the GPU of the first one."""

    cells: tuple[LaneCells, ...]
    clocks: tuple[Float64, ...]
    bands: tuple[Band, ...]
    strips: tuple[Strip, ...]
    host: LaneCells | None


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
            "charts": tuple(map(StoredChart.of, answer.charts)),
            "base": None if answer.base is None else StoredBase.of(run, answer.base),
        }
        plain = {name: getattr(answer, name) for name in cls.__struct_fields__ if name not in own}
        return cls(**plain, **own)


def kept_answer(run: Run, view: View, ask: Callable[[View], ViewResult]) -> ViewResult:
    """The result of a view, asked once in the life of the run's files; without what doesn't change
    it: sort, filter and columns. Raises NothingToShow."""

    def asked() -> ViewResult | NothingToShow:
        try:
            if not _can_be_kept(view):
                return ask(view)
            found = _recalled(run, view, partial(ask, view))
            return _with_lanes(run, view, found)
        except NothingToShow as reason:
            # Finding it out may have taken long, too; its traceback holds all that was looked at.
            return NothingToShow(*reason.args)

    known = run.memo(("view", view), asked)
    if isinstance(known, NothingToShow):
        raise NothingToShow(*known.args)
    return known


def is_answered(run: Run, view: View, ask: Callable[[View], ViewResult]) -> bool:
    """Whether `kept_answer` answers at once."""
    if run.memo.has(("view", view)):
        return True
    if not _can_be_kept(view):
        return False
    restored = partial(_restored, run, partial(ask, view))
    found = run.recalled((view.name, view), StoredAnswer, restored)
    if found is not None:
        run.memo(("view", view), lambda: _with_lanes(run, view, found))
    return found is not None


def _can_be_kept(view: View) -> bool:
    """Not what another run is compared with, nor each window that a person goes through."""
    return not view.base_run and view.window == ALL_TIME


def _recalled(run: Run, view: View, ask: Callable[[], ViewResult]) -> ViewResult:
    """The answer to a view as it was kept with the run's files, else asked."""
    stored = partial(StoredAnswer.of, run)
    restored, is_costly = partial(_restored, run, ask), view_spec(view.name).is_costly
    key = view.name, view
    found: ViewResult = run.kept(key, StoredAnswer, ask, stored, restored, is_costly=is_costly)
    return found


def _with_lanes(run: Run, view: View, found: ViewResult) -> ViewResult:
    """An answer whose charts of lanes draw the first of them once for the run's files."""
    charts = tuple(
        _kept_lanes(run, ("lanes", view, place), chart) if isinstance(chart, Lanes) else chart
        for place, chart in enumerate(found.charts)
    )
    return found if charts == found.charts else replace(found, charts=charts)


def _kept_lanes(run: Run, key: tuple[object, ...], chart: Lanes) -> Lanes:
    """A chart that draws its first lanes once for the run's files: of many activities that takes
    long, also where an answer was kept."""
    count = min(len(chart.lanes), _FIRST_LANES)
    if not count:
        return chart

    def first(bins: int) -> DrawnLanes:
        def made() -> DrawnLanes:
            return DrawnLanes(
                tuple(chart.cells(row, bins) for row in range(count)),
                tuple(chart.clocks(row, bins) for row in range(count)) if chart.clocks else (),
                chart.bands(0, bins),
                chart.strips(0, bins),
                chart.hosts(0, bins) if chart.hosts else None,
            )

        def checked(found: DrawnLanes) -> DrawnLanes:
            if [each.width_ns.shape for each in found.cells] != [(bins,)] * count:
                raise ValueError("other lanes")
            return found

        def same(found: DrawnLanes) -> DrawnLanes:
            return found

        own, is_costly = (*key, bins), len(run.table) >= _MANY
        return run.memo(
            own, lambda: run.kept(own, DrawnLanes, made, same, checked, is_costly=is_costly)
        )

    def of_rows(rows: Sequence[int]) -> Lanes:
        # Drawn together, the first ones are those of the rows in their order.
        chosen = picked(replace(chart, of_rows=None), rows)
        assert isinstance(chosen, Lanes)
        return _kept_lanes(run, (*key, tuple(map(int, rows[:_FIRST_LANES]))), chosen)

    clocks, hosts = chart.clocks, chart.hosts
    return replace(
        chart,
        cells=lambda row, bins: first(bins).cells[row] if row < count else chart.cells(row, bins),
        clocks=clocks
        and (lambda row, bins: first(bins).clocks[row] if row < count else clocks(row, bins)),
        bands=lambda row, bins: first(bins).bands if row == 0 else chart.bands(row, bins),
        strips=lambda row, bins: first(bins).strips if row == 0 else chart.strips(row, bins),
        hosts=hosts and (lambda row, bins: first(bins).host if row == 0 else hosts(row, bins)),
        of_rows=of_rows,
    )


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


def _restored_chart(place: int, stored: StoredChart, again: Callable[[], ViewResult]) -> Chart:
    chart = stored.chart

    def asked(name: str) -> Callable[..., Any]:
        return lambda *at: getattr(again().charts[place], name)(*at)

    names = (name for name in chart.__struct_fields__ if getattr(chart, name) is later)
    found: Chart = replace(chart, **{name: asked(name) for name in names})
    return found
