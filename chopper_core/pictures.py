"""Pictures as data: what a frame shows beside its table, for whatever draws it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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


@dataclass(frozen=True, slots=True, eq=False)
class Lanes:
    """What runs when: per lane and bin of time the kind that has most of it, and its share."""

    title: str
    lanes: tuple[str, ...]
    kinds: tuple[str, ...]
    start_ns: int
    end_ns: int
    shares: Numbers
    """Lanes x kinds x bins, from 0 to 1."""


Picture = BarChart | LineChart | HeatMap | BoxChart | Lanes
