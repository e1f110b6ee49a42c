"""Views and ranges of time as frozen values, and the pure functions from one to another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.overrides import NO_OVERRIDES, Overrides
from chopper_core.model.parallel import DIMENSIONS
from chopper_core.model.phrases import level_title
from chopper_core.model.table import ACTIVITY, LEVELS, SPLITS, is_split
from chopper_core.model.units import time_text
from chopper_core.util.errors import UsageError
from chopper_core.util.naming import one_named
from chopper_core.util.patterns import late

SHORTEST_NS: Final = 100
"""Maximum zoom: kernels aren't shorter."""
_UNITS: Final = {"": 1, "ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000,
                 "min": 60_000_000_000, "h": 3_600_000_000_000}  # fmt: skip
_TIME: Final = late(r"(\d+)(?:\.(\d+))?(ns|us|µs|ms|s|min|h)?")
_ON_A_CLOCK: Final = late(r"(\d+):([0-5]?\d):([0-5]?\d(?:\.\d+)?)")
STATISTICS: Final = {
    "sum": "all instances of the row together",
    "mean": "mean of the row's instances, unweighted",
    "median": "median of the row's instances",
    "p95": "95th percentile of the row's instances",
    "max": "largest of the row's instances",
    "min": "smallest of the row's instances",
    "spread": "largest minus smallest instance",
}
"""Statistics over the instances of a row (see `statistic`), with their definitions."""
SUM: Final = "sum"
SEPARATOR: Final = ";"
"""Between the questions of a view."""
RUN_LEVEL: Final = "run"
"""The level of rows that are runs."""


class Window(Struct, frozen=True):
    """Times in ns since the run's first activity; None: the default of the view."""

    from_ns: int | None = None
    to_ns: int | None = None
    at_ns: int | None = None
    """The cursor."""
    mark_ns: int | None = None
    """The other end of a measurement from the cursor."""

    def __bool__(self) -> bool:
        return self != ALL_TIME


ALL_TIME: Final = Window()


class Interval(Struct, frozen=True):
    """A window with all times resolved, within the run."""

    from_ns: int
    to_ns: int
    at_ns: int
    mark_ns: int | None
    end_ns: int
    """The end of the run."""

    @property
    def length_ns(self) -> int:
        return self.to_ns - self.from_ns

    def window(self) -> Window:
        return Window(self.from_ns, self.to_ns, self.at_ns, self.mark_ns)


def parse_time(key: str, text: str) -> int:
    """ns of a time such as `1500`, `1.5us`, `12.25ms`, `3s` or `1:02:03.5`; raises UsageError."""
    if clock := _ON_A_CLOCK.fullmatch(text.strip()):
        hours, minutes, seconds = clock.groups()
        whole = int(hours) * _UNITS["h"] + int(minutes) * _UNITS["min"]
        return whole + parse_time(key, f"{seconds}s")
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"{key}={text} is an invalid time; write 1500ns, 1.5us, 12.25ms, 3s or 1:02:03.5"
        )
    number, part, unit = match.groups()
    # In integers: a float lacks the digits for the ns of a long run.
    digits = (part or "").ljust(9, "0")
    scale = _UNITS[unit or ""]
    return int(number) * scale + int(digits[:9]) * scale // 10**9


def _typed(ns: int) -> str:
    """A time as people type it in an address: `9s`, `12.25ms`."""
    unit = next((unit for unit in ("s", "ms", "us") if abs(ns) >= _UNITS[unit]), "ns")
    return f"{ns / _UNITS[unit]:.10g}{unit}"


def resolved(window: Window, scope: tuple[int, int], end_ns: int) -> Interval:
    """Resolve a window within a run that ends at `end_ns`; defaults come from the scope.

    Raises UsageError where it contains no time of the run.
    """
    end_ns = max(end_ns, 1)
    begin = scope[0] if window.from_ns is None else window.from_ns
    end = window.to_ns
    if end is None:
        end = scope[1] if scope[1] > begin else end_ns
    if begin >= end_ns:
        raise UsageError(f"from={_typed(begin)} is after the end of the run ({time_text(end_ns)})")
    if begin > end or (begin == end and window.to_ns is not None):
        raise UsageError(f"from={_typed(begin)} is not before to={_typed(end)}")
    begin, end = _within(begin, max(min(end, end_ns) - begin, SHORTEST_NS), end_ns)
    at = begin + (end - begin) // 2 if window.at_ns is None else window.at_ns
    return Interval(begin, end, min(at, end_ns), window.mark_ns, end_ns)


def zoomed(interval: Interval, factor: float) -> Interval:
    """Zoom to `factor` times the length; a visible cursor keeps its place on the screen."""
    length = max(round(interval.length_ns * factor), SHORTEST_NS)
    at = interval.at_ns
    if not interval.from_ns <= at <= interval.to_ns:
        at = interval.from_ns + interval.length_ns // 2
    begin = at - (at - interval.from_ns) * length // max(interval.length_ns, 1)
    return _placed(interval, begin, length)


def panned(interval: Interval, share: float) -> Interval:
    """Pan by a share of the length; the cursor moves along."""
    moved = _placed(
        interval, interval.from_ns + round(interval.length_ns * share), interval.length_ns
    )
    at = interval.at_ns + moved.from_ns - interval.from_ns
    return replace(moved, at_ns=min(max(at, 0), interval.end_ns))


def pointing(interval: Interval, at_ns: int) -> Interval:
    """Move the cursor; the interval follows if the cursor would leave it."""
    at = min(max(at_ns, 0), interval.end_ns)
    begin = interval.from_ns
    if at < interval.from_ns or at > interval.to_ns:
        near = interval.length_ns // 4
        begin = at - near if at > interval.to_ns else at - interval.length_ns + near
        if not begin <= at <= begin + interval.length_ns:
            begin = at - interval.length_ns // 2
    return replace(_placed(interval, begin, interval.length_ns), at_ns=at)


def stepped(interval: Interval, cells: int, bins: int) -> Interval:
    """Move the cursor by some cells, to the middle of a cell."""
    # In integers: a float puts a cursor at the edge of a cell into the one before.
    bins = max(min(bins, interval.length_ns), 1)
    cell = (interval.at_ns - interval.from_ns) * bins // max(interval.length_ns, 1)
    return pointing(
        interval, interval.from_ns + (2 * (cell + cells) + 1) * interval.length_ns // (2 * bins)
    )


def fitted(interval: Interval, from_ns: int, to_ns: int) -> Interval:
    """Fit the interval to a range of time, with an eighth of margin on either side."""
    room = (to_ns - from_ns) // 8
    return _placed(interval, from_ns - room, max(to_ns - from_ns + 2 * room, SHORTEST_NS))


def _placed(interval: Interval, begin: int, length: int) -> Interval:
    begin, end = _within(begin, length, interval.end_ns)
    return replace(interval, from_ns=begin, to_ns=end)


def _within(begin: int, length: int, end_ns: int) -> tuple[int, int]:
    """Move a range into 0 … `end_ns`, and shorten it if it doesn't fit."""
    length = max(min(length, end_ns), 1)
    begin = max(min(begin, end_ns - length), 0)
    return begin, begin + length


class Baseline(Struct, frozen=True):
    """The node that a view is compared with."""

    run: str = ""
    """Another run, as the user named it; empty: the same run."""
    path: tuple[str, ...] | None = None
    """Another node of the view's order; None: the node of the view's own path."""


class View(Struct, frozen=True):
    """A node of a run and how its children are shown."""

    run: str
    """The run as the user named it: a file or a directory."""
    path: tuple[str, ...] = ()
    """Labels for a prefix of `order`, as a path spells them; one more picks an activity."""
    order: tuple[str, ...] = LEVELS
    columns: tuple[str, ...] = ()
    """Names of metrics; empty: the defaults of the level, to which `+name` adds one."""
    sort: str = ""
    """A column, `-column` for the largest first, or empty: the level's default order."""
    filter: str = ""
    signal: str = ""
    """The signal of the chart and the sparklines; empty: the run's first. Of several, with commas
    between them, each has a column of sparklines, and the first one is the chart's."""
    baseline: Baseline | None = None
    name: str = ""
    """The view of the node (see `views`); empty: its children."""
    by: str = ""
    """The split of the view's rows; empty: its first choice."""
    of: str = ""
    """The view's figure, where one can be selected."""
    overrides: Overrides = NO_OVERRIDES
    """User overrides for the files of the run."""
    stat: str = ""
    """One of `STATISTICS` over each row's instances; empty: the sum."""
    over: tuple[str, ...] = ()
    """The levels whose labels define the instances; empty: the defaults of `statistic`."""
    window: Window = ALL_TIME
    """Time range, cursor and mark of a view along time."""
    cut: bool = False
    """Whether iterations that the profiling window cuts take part in the figures."""
    is_total: bool = False
    """Whether figures that add up are totals; else they are per step and GPU."""

    @property
    def level(self) -> str:
        depth = len(self.path)
        return self.order[depth] if depth < len(self.order) else ACTIVITY

    @property
    def added_columns(self) -> tuple[str, ...]:
        """Columns that are shown in addition to the default ones."""
        return tuple(name[1:] for name in self.columns if name.startswith("+"))

    @property
    def scope(self) -> tuple[tuple[str, str], ...]:
        return tuple(zip((*self.order, ACTIVITY), self.path, strict=False))

    @property
    def base_run(self) -> str:
        """The other run that it is compared with; empty: none."""
        name = self.baseline.run if self.baseline is not None else ""
        return name if name != self.run else ""

    @property
    def row_baseline(self) -> str | None:
        """The row that all others of the table are compared with; None where the baseline is no
        child of the node, and rows are compared with those of the same name."""
        path = None if self.baseline is None or self.base_run else self.baseline.path
        return path[-1] if path and path[:-1] == self.path else None

    @property
    def is_leaf(self) -> bool:
        """Whether the node is a single activity, which has no children."""
        return len(self.path) > len(self.order)


def enter(view: View, label: str, partner: str = "") -> View:
    """Go to a child: unsorted and unfiltered, with the same columns.

    `partner` is the child's label in the baseline, where it differs. A child that is compared with
    another row stays so.
    """
    if view.is_leaf:
        return view
    baseline = view.baseline
    has_path = baseline is not None and (baseline.path is not None or partner)
    if baseline is not None and has_path and view.row_baseline is None:
        above = view.path if baseline.path is None else baseline.path
        baseline = replace(baseline, path=(*above, partner or label))
    # Rows that one row is the baseline of have an order of their own.
    sort = view.sort if baseline is not None and view.row_baseline is None else ""
    return replace(
        view,
        path=(*view.path, label),
        sort=sort,
        filter="",
        baseline=baseline,
        name="",
        by="",
        of="",
        window=ALL_TIME,
    )


def with_view(view: View, name: str) -> View:
    """The same node in another view; empty: its children."""
    if name == view.name:
        return view
    return replace(view, name=name, by="", of="", columns=(), sort="", filter="", window=ALL_TIME)


def up(view: View) -> View:
    if not view.path:
        return view
    baseline = view.baseline
    if baseline is not None and baseline.path is not None:
        baseline = replace(baseline, path=baseline.path[:-1])
    sort = view.sort if baseline is not None else ""
    return replace(
        view, path=view.path[:-1], sort=sort, filter="", baseline=baseline, window=ALL_TIME
    )


def sibling(view: View, labels: Sequence[str], step: int) -> View:
    """Go to a neighbour of the node among `labels`; at the end of the list, the view itself."""
    if not view.path or view.path[-1] not in labels:
        return view
    position = labels.index(view.path[-1]) + step
    if not 0 <= position < len(labels):
        return view
    # Another GPU can show the same time range; another iteration lies at another time.
    is_gpu = view.scope[-1][0] == "gpu"
    window = view.window if is_gpu else ALL_TIME
    return replace(_moved(view, (*view.path[:-1], labels[position])), window=window)


def at_level(view: View, level: str, label: str) -> View:
    path = tuple(label if name == level else old for name, old in view.scope)
    return _moved(view, path)


def _moved(view: View, path: tuple[str, ...]) -> View:
    """The view of another node; where a row was the baseline, it is compared with the node of it,
    row by row."""
    baseline = view.baseline
    if baseline is not None and view.row_baseline is not None and path != view.path:
        baseline = replace(baseline, path=view.path)
    return replace(view, path=path, baseline=baseline)


def pivot(view: View, level: str) -> View:
    """The same node, split by another level next; the levels of the path keep their order."""
    depth = len(view.path)
    rest = view.order[depth:]
    if not (level in (*rest, *DIMENSIONS) or is_split(level)) or level in view.order[:depth]:
        return view
    order = (*view.order[:depth], level, *(name for name in rest if name != level))
    # A row that is the baseline is none of the rows of another level.
    is_gone = level != view.level and view.row_baseline is not None
    baseline = None if is_gone else view.baseline
    return replace(view, order=order, sort="", filter="", baseline=baseline)


def as_statistic(view: View, stat: str, over: Sequence[str] = ()) -> View:
    """The same view with its figures as a statistic over instances; raises UsageError."""
    stat = one_named("statistic", stat, STATISTICS)
    over = [level_named(level) for level in over]
    is_sum = stat == SUM
    return replace(view, stat="" if is_sum else stat, over=() if is_sum else tuple(over))


def baseline_view(view: View) -> View:
    """The baseline of a view as a view of its own; raises UsageError without one."""
    if view.baseline is None:
        raise UsageError("the view has no baseline")
    path = view.path if view.baseline.path is None else view.baseline.path
    run = view.baseline.run or view.run
    return replace(
        view,
        run=run,
        path=path,
        sort="",
        filter="",
        columns=(),
        baseline=None,
        window=ALL_TIME,
    )


def level_named(text: str, names: Sequence[str] = LEVELS) -> str:
    """The level that people type, by its name or as screens call it; raises UsageError."""
    return one_named("level", text, names, {level_title(name): name for name in names})


def complete_order(levels: Sequence[str]) -> tuple[str, ...]:
    """A full order that begins with the given levels; the others follow in default order."""
    known = (*LEVELS, *DIMENSIONS)
    levels = [
        level if level in known or is_split(level) else level_named(level, (*known, *SPLITS))
        for level in levels
    ]
    if len(set(levels)) != len(levels):
        raise UsageError(f"the order {','.join(levels)} repeats a level")
    return (*levels, *(level for level in LEVELS if level not in levels))


def child_of(view: View, level: str, label: str) -> View:
    plain = replace(view, name="", by="", of="", columns=(), sort="", filter="")
    if level in view.order[: len(view.path)]:
        return plain
    split = pivot(plain, level)
    return replace(split, path=(*split.path, label), baseline=enter(split, label).baseline)
