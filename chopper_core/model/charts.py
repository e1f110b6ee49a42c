"""Charts as data: drawn next to a frame's table by any renderer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.units import Unit
from chopper_core.model.view import Interval, View
from chopper_core.util.arrays import Float64, Int64

QUEUE: Final = "queue"
"""The title of the strip of the launch queue's depth."""
SLACK: Final = "slack"
OF_TRACE: Final = (QUEUE, SLACK)
"""Strips that follow from the trace; the others are telemetry."""


class Series(Struct, frozen=True, eq=False):
    """One line, or one part of every bar; NaN for missing values."""

    name: str
    numbers: Float64


class BarChart(Struct, frozen=True, eq=False):
    """A bar per label, of one series or of several stacked on each other."""

    title: str
    unit: str
    labels: tuple[str, ...]
    series: tuple[Series, ...]
    level: str = ""
    """The level of the labels, for their short forms."""
    longest: float = 0.0
    """Where the axis ends: longer bars are cut and marked; 0: at the longest one."""


class LineChart(Struct, frozen=True, eq=False):
    """Curves, or points, over numbers."""

    title: str
    unit: str
    x_title: str
    x_unit: str
    x: tuple[Float64, ...]
    series: tuple[Series, ...]
    points: bool = False
    marked: tuple[str, ...] = ()
    """The series that the chart is about; of many, those far from the others stand out else."""
    is_nested: bool = False
    """Whether the series are parts of the first one."""

    @property
    def has_course(self) -> bool:
        """Whether it shows more than a table: points, or a curve of three places."""
        return self.points or max(map(len, self.x), default=0) > 2

    @classmethod
    def over(
        cls, title: str, unit: str, x_title: str, x_unit: str,
        x: Float64, lines: Mapping[str, Float64],
    ) -> LineChart:  # fmt: skip
        series = tuple(Series(name, numbers) for name, numbers in lines.items())
        return cls(title, unit, x_title, x_unit, (x,) * len(series), series)

    @classmethod
    def clouds(
        cls, title: str, unit: str, x_title: str, x_unit: str,
        clouds: Mapping[str, tuple[Float64, Float64]],
    ) -> LineChart:  # fmt: skip
        x = tuple(x for x, _ in clouds.values())
        series = tuple(Series(name, y) for name, (_, y) in clouds.items())
        return cls(title, unit, x_title, x_unit, x, series, points=True)


class SignalRows(Struct, frozen=True, eq=False):
    """A signal of several labels along one time axis: a row each, on one scale."""

    title: str
    unit: str
    x_title: str
    x_unit: str
    x: tuple[float, float]
    """Start and end of the time axis."""
    labels: tuple[str, ...]
    numbers: Float64
    """Rows x equal parts of the time: the mean of each, NaN if unknown."""
    means: Float64
    outliers: tuple[int, ...]
    """The rows whose mean is an outlier among the rows' means."""


class StepBars(Struct, frozen=True, eq=False):
    """The time of each step as a bar; a cursor moves along them."""

    title: str
    unit: str
    steps: Int64
    """Their numbers, in order."""
    numbers: Float64
    outliers: tuple[int, ...]
    """The places of those that stand out."""
    profiled: tuple[int, ...]
    """Those that a profiler recorded, or was near."""
    traced: tuple[int, ...]
    """Those whose trace was read."""
    described: Callable[[int], str]
    """The step at a place in a few words."""
    opens: Callable[[int], View]
    """The view of the step at a place; raises UsageError for one without a trace."""

    @property
    def listed(self) -> range:
        return range(len(self.steps))

    @property
    def has_marks(self) -> bool:
        """Whether some steps were traced and others weren't."""
        return 0 < len(self.traced) < len(self.steps)


class GpuLanes(Struct, frozen=True, eq=False):
    """Several signals of GPUs along one time axis: a row per GPU, the signals side by side."""

    title: str
    labels: tuple[str, ...]
    names: tuple[str, ...]
    """What else a GPU is called, such as its node; empty where that says nothing."""
    signals: tuple[SignalRows, ...]
    """Their means are the latest values."""
    whole: tuple[float | None, ...]
    """The latest value of each signal for all GPUs."""
    limits: tuple[float | None, ...]
    """Of each signal."""
    raised: tuple[tuple[int, ...], ...] = ()
    """Of each signal, the rows among its outliers that are too high; the others are too low."""
    last: Series | None = None
    """A figure without a lane."""
    steps: StepBars | None = None
    """The time of each step, above the rows."""


class Roofline(Struct, frozen=True, eq=False):
    """Points under roofs, on two logarithmic axes: FLOP/B and TFLOP/s; NaN if unknown."""

    title: str
    labels: tuple[str, ...]
    """The table's row of each point."""
    intensity: Float64
    tflops: Float64
    share: Float64
    """Part of the time of each point, 0 to 1."""
    measured_intensity: Float64
    measured_tflops: Float64
    sentences: tuple[str, ...]
    memory_tbps: float | None
    """The slope of the memory's roof; None if unknown."""
    peaks: tuple[tuple[str, float], ...]
    """Name and TFLOP/s of each flat roof, the highest first."""
    seen: tuple[float, float] = (0.0, 1.0)
    """The part of the axis of intensity that is drawn, as shares."""


class UnitFigure(Struct, frozen=True):
    """A figure of a unit of the GPU, or of a way between two."""

    title: str
    text: str
    """With its unit; empty: unknown."""
    share: float | None = None
    """Of its peak, 0 to 1; None without one."""
    is_load: bool = True
    """Whether a large share means that something is nearly used up."""


class GpuUnit(Struct, frozen=True):
    """A unit or a cache of the GPU with its figures, the most important first."""

    title: str
    stage: int
    """How far it is from the compute units, which are 0: caches, L2, fabric and memory."""
    figures: tuple[UnitFigure, ...]


class DataPath(Struct, frozen=True):
    """The way of data between two units, and its rates in both directions."""

    near: int
    """The unit nearer to the compute units, as a place in the chart's units."""
    far: int
    inward: UnitFigure
    """To the compute units; of a path whose directions aren't distinguished, both."""
    outward: UnitFigure | None


class MemoryChart(Struct, frozen=True, eq=False):
    """The units of a GPU and the ways between them, from the compute units to the memory."""

    title: str
    units: tuple[GpuUnit, ...]
    paths: tuple[DataPath, ...]


class HeatMap(Struct, frozen=True, eq=False):
    """A figure for every row and column; NaN if unknown."""

    title: str
    unit: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    x_title: str
    numbers: Float64
    has_own_rows: bool = False
    """Whether its rows differ from those of the table."""
    signed: bool = False
    kinds: tuple[str, ...] = ()
    """What -100, 0 and 100 % are, where they differ in kind: shares of less are the one between."""
    labels: tuple[str, ...] = ()
    """The table's rows that these rows show, by label."""
    opens: Callable[[int, int], View] | None = None
    """The view that a cell opens, by row and column; None: its cells open nothing."""


class IcicleRow(Struct, frozen=True, eq=False):
    """The blocks of a level, in the order of those that hold them."""

    level: str
    labels: tuple[str, ...]
    begins_ns: Int64
    """Of the scope's time, so that a block lies within the one that holds it."""
    ends_ns: Int64
    numbers: Float64
    parents: Int64
    """The block of the level above that holds each."""
    times_ns: Float64
    """The time of each, on the base of the view."""


class Icicle(Struct, frozen=True, eq=False):
    """The time of a scope as blocks, level below level."""

    title: str
    unit: str
    """Of the figure that colours the blocks."""
    rows: tuple[IcicleRow, ...]
    opens: Callable[[int, int], View]
    """The view that a block opens, by level and place."""
    signed: bool = False
    seen: tuple[float, float] = (0.0, 1.0)
    """The part of the time that is drawn, as shares."""


LEAST_SHARE: Final = 0.0005
"""Of the longest bar or the whole: a smaller part is not seen, and its figure would be 0.0 %."""


class Composition(Struct, frozen=True, eq=False, tag=True):
    """A bar over the whole width for each of one or two wholes, with the figure of every part."""

    title: str
    unit: str
    labels: tuple[str, ...]
    """The wholes: a second one is what the first is compared with."""
    series: tuple[Series, ...]
    """The parts, which add up to their whole."""
    reduction: str = ""
    """How the wholes were made, such as `mean`: shown next to them where the title has no room."""
    some: str = ""
    """The GPUs that distinguish the divided parts: `2/8`."""
    divided: tuple[str, ...] = ()
    """The names of parts that only some GPUs distinguish: the time of all is divided as on them."""
    opens: Callable[[int], View] | None = None
    """The view that a part opens, sorted by its column; None: the parts have no columns."""
    doubted: tuple[str, ...] = ()
    """The names of parts that a doubt about the data touches."""

    @property
    def shares(self) -> Float64:
        """The shares of the parts in their wholes, as wholes x parts."""
        numbers = np.nan_to_num(np.stack([each.numbers for each in self.series], axis=1))
        wholes = numbers.sum(axis=1, keepdims=True)
        return np.asarray(numbers / np.where(wholes > 0, wholes, 1.0), np.float64)

    @property
    def listed(self) -> list[int]:
        """The parts that are large enough to be seen."""
        most = np.abs(self.shares).max(axis=0, initial=0.0)
        return [place for place, share in enumerate(most.tolist()) if share >= LEAST_SHARE]


class Card(Struct, frozen=True):
    """A sentence with its figures, and the address of its evidence."""

    figures: tuple[str, ...]
    text: str
    address: str
    """'' where its run ends with the command that shows it."""
    note: str = ""
    """Other facts, in a few words."""
    share_pct: float = 0.0
    """What is to be saved, else what it costs, in % of the step."""
    sure: int = 0
    """How sure it is, 1 to 3; 0: it is no finding."""
    rule: str = ""
    heading: str = ""
    """What stands above it, where it is the first of a group."""


class Cards(Struct, frozen=True, tag=True):
    """Sentences to read, the most important first."""

    title: str
    cards: tuple[Card, ...]
    is_pending: bool = False
    figures: str = ""
    number: str = ""
    """How many things they are about, where several may share a card: `5 with 3 parts`."""


class Span(Struct, frozen=True):
    """Adjacent cells of a line with one label."""

    begin: int
    end: int
    text: str
    dense: bool = False
    """Whether each of its cells holds more than one activity."""
    short: str = ""
    """Text for narrow spans."""
    begins: bool = True
    """Whether it begins here, not before the visible interval."""
    is_comm: bool = False


class LaneCells(Struct, frozen=True, eq=False):
    """Running time in each cell of a lane; integers, so cells add up to their lane."""

    kind_ns: Int64
    """Kinds x cells: the time in which an activity of the kind runs."""
    busy_ns: Int64
    width_ns: Int64
    spans: tuple[Span, ...]
    """Activities wide enough for a label."""
    class_ns: Int64 | None = None
    """Classes x cells: the time in which compute of each class runs; None if unknown."""
    waiting_ns: Int64 | None = None
    """The time in which communication waits for the last GPU; None if unknown."""
    computing_ns: Int64 | None = None
    """The time in which the GPU computes, on this lane or another; None: only on this one."""
    is_tall: bool = False
    """Whether they are a line of their own, without the other half of the lane."""


class Ghost(Struct, frozen=True, eq=False):
    """The baseline's lane beneath a lane, moved so that their first activities start together."""

    title: str
    cells: LaneCells
    drift_ns: int
    """How much later than there the last activity of the window starts here."""


class Band(Struct, frozen=True):
    """A level of the tree along time: the label of the activity in the middle of each cell."""

    title: str
    spans: tuple[Span, ...]


class Strip(Struct, frozen=True, eq=False):
    """A signal along time: its mean in each cell, NaN if unknown."""

    title: str
    unit: Unit
    low: float
    high: float
    numbers: Float64


class Pointed(Struct, frozen=True):
    """The activity on a lane at the cursor; None where nothing runs, or if unknown."""

    kernel: str | None = None
    operation: str | None = None
    phase: str | None = None
    layer: int | None = None
    start_ns: int | None = None
    """Since the run's first activity."""
    duration_ns: int | None = None
    mhz: float | None = None
    """Mean clock of the GPU during the activity."""
    next_ns: int | None = None
    """Time to the next start on the lane."""
    queue: int | None = None
    """Activities of the GPU that are launched and haven't started."""
    gap_ns: int | None = None
    """Length of the time around the cursor in which nothing runs on the GPU."""
    host: str | None = None
    """What the GPU's host does during that time."""


class Lanes(Struct, frozen=True, eq=False, kw_only=True):
    """Activities along time, lane by lane, computed for the available number of cells."""

    title: str
    lanes: tuple[str, ...]
    owners: tuple[str, ...]
    kinds: tuple[str, ...]
    seen: Interval
    pointed: tuple[Pointed, ...] = ()
    """The activity at the cursor, lane by lane; empty where no cursor points at a time."""
    cells: Callable[[int, int], LaneCells]
    """(lane, number of cells) → its cells."""
    bands: Callable[[int, int], tuple[Band, ...]]
    """Of the GPU of a lane and a number of cells."""
    strips: Callable[[int, int], tuple[Strip, ...]] = lambda row, bins: ()
    """Of the GPU of a lane and a number of cells."""
    signals: int = 0
    """Maximum number of strips."""
    missing: str = ""
    """Why there are no strips."""
    clocks: Callable[[int, int], Float64] | None = None
    """(lane, number of cells) → the mean clock of its GPU in each, NaN if unknown; empty for the
    further lanes of a GPU. None where no clock is known."""
    classes: tuple[str, ...] = ()
    hosts: Callable[[int, int], LaneCells | None] | None = None
    """The work of the threads that launch on a lane's GPU: operators, and other runtime calls."""
    late: str = ""
    """The lane of the GPU that the others wait for, which is shown where not all have room."""
    ghosts: Callable[[int, int], Ghost | None] | None = None
    """The baseline's lane beneath each lane, where there is a baseline."""
    has_own_rows: bool = False
    """Whether its lanes differ from the rows of the table."""
    part: Callable[[float, float], Lanes] | None = None
    """(begin, end) as shares of its time → the same lanes over that part; None: its view has a
    window of its own."""
    of_rows: Callable[[Sequence[int]], Lanes] | None = None
    """The lanes of some rows, in their order, where these are made together."""


def lanes_of_rows(charts: Sequence[Chart]) -> Lanes | None:
    """The lanes that stand in the rows of the table: not those of a picture, the first chart."""
    lanes = (each for each in charts[1:] if isinstance(each, Lanes))
    return next((each for each in lanes if not each.has_own_rows), None)


def picked(chart: Chart, rows: Sequence[int]) -> Chart:
    """The chart of some rows of the table, in their order, where it shows them one by one."""
    if isinstance(chart, Roofline):
        return replace(chart, **_picked(chart, rows, _ROOFLINE_ROWS))
    if isinstance(chart, GpuLanes):
        of_gpus = (_picked_rows(each, rows) for each in chart.signals)
        last = chart.last and replace(chart.last, numbers=chart.last.numbers[list(rows)])
        names = _picked(chart, rows, ("labels", "names"))
        raised = tuple(_places_of(each, rows) for each in chart.raised)
        return replace(chart, signals=tuple(of_gpus), raised=raised, last=last, **names)
    if isinstance(chart, Lanes) and not chart.has_own_rows:
        return _picked_lanes(chart, rows)
    return chart


def _picked_rows(chart: SignalRows, rows: Sequence[int]) -> SignalRows:
    outliers = _places_of(chart.outliers, rows)
    return replace(chart, outliers=outliers, **_picked(chart, rows, ("labels", "numbers", "means")))


def _places_of(chosen: Sequence[int], rows: Sequence[int]) -> tuple[int, ...]:
    return tuple(place for place, row in enumerate(rows) if row in chosen)


_ROOFLINE_ROWS: Final = (
    *("labels", "sentences", "intensity", "tflops", "share"),
    *("measured_intensity", "measured_tflops"),
)


def _picked(chart: Struct, rows: Sequence[int], fields: Sequence[str]) -> dict[str, Any]:
    found = {name: getattr(chart, name) for name in fields}
    return {
        name: values[list(rows)]
        if isinstance(values, np.ndarray)
        else tuple(values[r] for r in rows)
        for name, values in found.items()
    }


def _picked_lanes(chart: Lanes, rows: Sequence[int]) -> Lanes:
    if chart.of_rows is not None:
        return chart.of_rows(rows)

    def of_row(found: Callable[[int, int], Any] | None) -> Callable[[int, int], Any] | None:
        return None if found is None else lambda row, bins: found(rows[row], bins)

    def part(begin: float, end: float) -> Lanes:
        return _picked_lanes(chart if chart.part is None else chart.part(begin, end), rows)

    by_row = ("cells", "bands", "strips", "clocks", "hosts", "ghosts")
    return replace(
        chart,
        **_picked(chart, rows, ("lanes", "owners", *(["pointed"] if chart.pointed else []))),
        **{name: of_row(getattr(chart, name)) for name in by_row},
        part=None if chart.part is None else part,
    )


Chart = (
    BarChart
    | LineChart
    | Roofline
    | SignalRows
    | StepBars
    | GpuLanes
    | HeatMap
    | Icicle
    | Lanes
    | Composition
    | Cards
    | MemoryChart
)
