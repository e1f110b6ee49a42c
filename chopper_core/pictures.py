"""Pictures as data: what a frame shows beside its table, for whatever draws it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from chopper_core.window import Stretch

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One line, or one part of every bar; NaN where nothing is known."""

    name: str
    numbers: Numbers


@dataclass(frozen=True, slots=True, eq=False)
class BarChart:
    """A bar per label, of one series or of several stacked on each other."""

    title: str
    unit: str
    labels: tuple[str, ...]
    series: tuple[Series, ...]
    level: str = ""
    """What the labels name, for their short forms."""


@dataclass(frozen=True, slots=True, eq=False)
class LineChart:
    """Curves, or points, over numbers."""

    title: str
    unit: str
    x_title: str
    x_unit: str
    x: tuple[Numbers, ...]
    """The places of each series' numbers."""
    series: tuple[Series, ...]
    points: bool = False
    """Whether the numbers are drawn one by one, unconnected."""


@dataclass(frozen=True, slots=True, eq=False)
class HeatMap:
    """A figure of every row in every column; NaN where nothing is known."""

    title: str
    unit: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    x_title: str
    numbers: Numbers
    """Rows x columns."""


@dataclass(frozen=True, slots=True, eq=False)
class BoxChart:
    """The least, the quartiles and the largest of a figure for every label."""

    title: str
    unit: str
    labels: tuple[str, ...]
    quantiles: Numbers
    """Labels x (min, q1, median, q3, max)."""
    level: str = ""


@dataclass(frozen=True, slots=True)
class Span:
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


@dataclass(frozen=True, slots=True, eq=False)
class LaneCells:
    """What runs in each cell of a lane; integers, so that cells add up to their lane."""

    kind_ns: NDArray[np.int64]
    """Kinds x cells: the time in which an activity of the kind runs."""
    busy_ns: NDArray[np.int64]
    """The time in which any runs."""
    width_ns: NDArray[np.int64]
    """The time that each cell stands for."""
    spans: tuple[Span, ...]
    """Activities that are wide enough to be named."""


@dataclass(frozen=True, slots=True)
class Band:
    """A level of the tree along time: the label of what runs in the middle of each cell."""

    title: str
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Strip:
    """A signal along time: its mean in each cell, NaN where it isn't known."""

    title: str
    unit: str
    low: float
    high: float
    numbers: Numbers


@dataclass(frozen=True, slots=True)
class Pointed:
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


@dataclass(frozen=True, slots=True, eq=False)
class Lanes:
    """What runs when, lane by lane: it is worked out for as many cells as there is room for."""

    title: str
    lanes: tuple[str, ...]
    owners: tuple[str, ...]
    """The GPU of each lane."""
    kinds: tuple[str, ...]
    seen: Stretch
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


def picked(picture: Lanes, rows: Sequence[int]) -> Lanes:
    """Some lanes of a picture, in another order perhaps."""
    return replace(
        picture,
        lanes=tuple(picture.lanes[row] for row in rows),
        owners=tuple(picture.owners[row] for row in rows),
        pointed=tuple(picture.pointed[row] for row in rows),
        cells=lambda row, bins: picture.cells(rows[row], bins),
        bands=lambda row, bins: picture.bands(rows[row], bins),
        strips=lambda row, bins: picture.strips(rows[row], bins),
    )


Picture = BarChart | LineChart | HeatMap | BoxChart | Lanes
