"""Pictures as data: what a frame shows beside its table, for whatever draws it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.window import Interval
from chopper_core.util.arrays import Float64, Int64


class Series(Struct, frozen=True, eq=False):
    """One line, or one part of every bar; NaN where nothing is known."""

    name: str
    numbers: Float64


class BarChart(Struct, frozen=True, eq=False):
    """A bar per label, of one series or of several stacked on each other."""

    title: str
    unit: str
    labels: tuple[str, ...]
    series: tuple[Series, ...]
    level: str = ""
    """What the labels name, for their short forms."""


class LineChart(Struct, frozen=True, eq=False):
    """Curves, or points, over numbers."""

    title: str
    unit: str
    x_title: str
    x_unit: str
    x: tuple[Float64, ...]
    """The places of each series' numbers."""
    series: tuple[Series, ...]
    points: bool = False
    """Whether the numbers are drawn one by one, unconnected."""


class SignalRows(Struct, frozen=True, eq=False):
    """A signal of several things along one time: a row each, all on one scale."""

    title: str
    unit: str
    x_title: str
    x_unit: str
    x: tuple[float, float]
    """Where the time begins and ends."""
    labels: tuple[str, ...]
    numbers: Float64
    """Rows x equal parts of the time: the mean in each, NaN where nothing is known."""
    means: Float64
    """The mean of each row."""
    apart: tuple[int, ...]
    """The rows whose mean is an outlier among the rows' means."""


class HeatMap(Struct, frozen=True, eq=False):
    """A figure of every row in every column; NaN where nothing is known."""

    title: str
    unit: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    x_title: str
    numbers: Float64
    """Rows x columns."""
    has_own_rows: bool = False
    """Whether its rows are others than those of the table."""


class BoxChart(Struct, frozen=True, eq=False):
    """The least, the quartiles and the largest of a figure for every label."""

    title: str
    unit: str
    labels: tuple[str, ...]
    quantiles: Float64
    """Labels x (min, q1, median, q3, max)."""
    level: str = ""


class Span(Struct, frozen=True):
    """Cells of a line that are one thing."""

    begin: int
    end: int
    text: str
    dense: bool = False
    """Whether more than one thing lies in each of its cells."""
    short: str = ""
    """What stands for the text where that has no room."""
    begins: bool = True
    """Whether the thing begins here, and not before what is seen."""


class LaneCells(Struct, frozen=True, eq=False):
    """What runs in each cell of a lane; integers, so that cells add up to their lane."""

    kind_ns: Int64
    """Kinds x cells: the time in which an activity of the kind runs."""
    busy_ns: Int64
    """The time in which any runs."""
    width_ns: Int64
    """The time that each cell stands for."""
    spans: tuple[Span, ...]
    """Activities that are wide enough to be named."""


class Band(Struct, frozen=True):
    """A level of the tree along time: the label of what runs in the middle of each cell."""

    title: str
    spans: tuple[Span, ...]


class Strip(Struct, frozen=True, eq=False):
    """A signal along time: its mean in each cell, NaN where it isn't known."""

    title: str
    unit: str
    low: float
    high: float
    numbers: Float64


class Pointed(Struct, frozen=True):
    """What runs on a lane at the cursor; None where nothing does, or it isn't known."""

    kernel: str | None = None
    operation: str | None = None
    phase: str | None = None
    layer: int | None = None
    start_ns: int | None = None
    """Since the run's first activity."""
    duration_ns: int | None = None
    mhz: float | None = None
    """Mean clock of the GPU meanwhile."""
    next_ns: int | None = None
    """Time to the next start on the lane."""


class Lanes(Struct, frozen=True, eq=False):
    """What runs when, lane by lane: it is worked out for as many cells as there is room for."""

    title: str
    lanes: tuple[str, ...]
    owners: tuple[str, ...]
    """The GPU of each lane."""
    kinds: tuple[str, ...]
    seen: Interval
    pointed: tuple[Pointed, ...]
    """What is at the cursor, lane by lane."""
    cells: Callable[[int, int], LaneCells]
    """Of a lane and a number of cells."""
    bands: Callable[[int, int], tuple[Band, ...]]
    """Of the GPU of a lane and a number of cells."""
    strips: Callable[[int, int], tuple[Strip, ...]]
    """Of the GPU of a lane and a number of cells."""
    signals: int
    """How many strips there are, where the GPU has them all."""
    missing: str
    """Why there is no strip."""


def picked(chart: Lanes, rows: Sequence[int]) -> Lanes:
    """Some lanes of a picture, in another order perhaps."""
    return replace(
        chart,
        lanes=tuple(chart.lanes[row] for row in rows),
        owners=tuple(chart.owners[row] for row in rows),
        pointed=tuple(chart.pointed[row] for row in rows),
        cells=lambda row, bins: chart.cells(rows[row], bins),
        bands=lambda row, bins: chart.bands(rows[row], bins),
        strips=lambda row, bins: chart.strips(rows[row], bins),
    )


Chart = BarChart | LineChart | SignalRows | HeatMap | BoxChart | Lanes
