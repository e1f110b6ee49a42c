"""Marks of cells: outliers of a column, tints of unusual figures, figures of some GPUs only.

Outliers follow a rule that is robust against them; tints follow one rule in every view, on the
screen and in text. Counters may cover 2 of 8 GPUs, telemetry one node.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.analyses.outliers import FACTOR, MIN_VALUES, spread_of
from chopper_core.columns import Metric, Reduces, Values
from chopper_core.model.column_names import HOTSPOT
from chopper_core.model.table import NO_LABEL_TEXT
from chopper_core.model.units import Unit
from chopper_core.util.arrays import Float64, Int8
from chopper_core.util.grouping import median_of, ratios
from chopper_core.views.frame import Frame


class Limits(Struct, frozen=True):
    """From where figures are marked: as a warning, and as an alarm."""

    hot_c: tuple[float, float] = (90.0, 95.0)
    """Of the hottest spot."""
    power_pct: tuple[float, float] = (90.0, 100.0)
    """Of the power limit."""
    roof_pct: tuple[float, float] = (40.0, 20.0)
    """Of the roof, below which a row that counts is poor."""
    util_pct: tuple[float, float] = (80.0, 50.0)
    """Of the time, below which a GPU is used little."""


_limits = Limits()


def mark_limits() -> Limits:
    return _limits


def set_mark_limits(chosen: Limits) -> None:
    """Choose the limits of this process."""
    global _limits
    _limits = chosen


class Tint(IntEnum):
    """How a cell stands out."""

    NONE = 0
    BELOW = 1
    FAR_BELOW = 2
    ABOVE = 3
    FAR_ABOVE = 4
    POOR = 5
    VERY_POOR = 6
    HIGH = 7
    TOO_HIGH = 8
    BEST = 9


_ABOVE: Final = (Tint.FAR_ABOVE, Tint.HIGH, Tint.TOO_HIGH)
_BELOW: Final = (Tint.FAR_BELOW, Tint.POOR, Tint.VERY_POOR)


def sign_of(tint: Tint, up: str, down: str, best: str) -> str:
    """The sign of a figure that stands out; empty for others."""
    if tint is Tint.BEST:
        return best
    return up if tint in _ABOVE else down if tint in _BELOW else ""


INKS: Final = (
    ("text", "text", "warning", "text", "warning", "warning", "alarm", "warning", "alarm", "good"),
    ("text", "good", "good", "warning", "warning", "warning", "alarm", "warning", "alarm", "good"),
)
"""The ink of each tint: of a figure, which only stands out far from its peers, and of a difference,
where less is better."""
_PEERS: Final = ("gpu", "node", "iteration", "layer", "activity")
"""Levels whose rows do the same work, so that each can be held against the others."""
_UTILISATIONS: Final = ("busy_pct", "gfx_util_pct", "gpu_util_pct")
_HEATS: Final = (HOTSPOT, "mean_hotspot_c", "now_hotspot_c", "mean_hot_c", "hottest_c")
_LIMITS: Final = {"mean_power_w": "limit_w", "now_power_w": "now_limit_w"}
"""Power → the column of its limit."""
_ROOFS: Final = ("roof_pct", "model_roof_pct", "peak_pct")
_COUNTS_PCT: Final = 1.0
"""Of the kernel time."""
_LEAST_SPREAD: Final = 0.005
"""Of the median: peers that are closer together than this count as equal."""
_LEAST_POINTS: Final = 0.3
"""The same for shares in %."""
_FAR: Final = 2.0
"""Times the limit from which on a cell is far out."""
_CHANGE_PCT: Final = (1.0, 5.0)
"""Differences in % that are mild, and that are strong."""
_OF_LARGEST: Final = (0.05, 0.25)
"""The same as shares of the column's largest difference."""
_NEGLIGIBLE: Final = 0.0005
"""Of the scope's time: a difference in time below it is not tinted."""
_MAX_ROWS: Final = 100_000
_IDENTITIES: Final = (Reduces.COMMON, Reduces.DISTINCT)
_SUMMED: Final = (Reduces.SUM, Reduces.OF_SUMS)
_AVERAGED: Final = (Reduces.MEAN, Reduces.OF_MEANS)


def tints(frame: Frame, column: Metric) -> Int8:
    """The `Tint` of each cell of a column.

    The best figure among runs has its own. A difference is tinted by its sign and size,
    utilisation, heat, and shares of the roof and of the power limit by fixed thresholds, any other
    figure by its distance from the median of its column: beyond the limit of `outliers` (3.5 x
    1.4826 x MAD, the MAD being at least 0.5 % of the median), and far beyond twice that.
    Sums are held against each other only where rows do the same work; missing cells and the row
    of activities without a label never, nor do steps that are left out.
    """
    values = frame.values[column.name]
    none = np.zeros(len(values), np.int8)
    if values.words is not None or not len(values) or len(values) > _MAX_ROWS:
        return none
    if (best := frame.best.get(column.name)) is not None:
        return _chosen(none, (best, Tint.BEST))
    numbers = values.known()
    if column.signed:
        return _of_changes(frame, column, numbers)
    # A spread of use, heat or power is none itself.
    name = "" if frame.view.stat == "spread" else column.name
    if name in _HEATS:
        warm, hot = _limits.hot_c
        return _chosen(none, (numbers >= warm, Tint.HIGH), (numbers >= hot, Tint.TOO_HIGH))
    if name in _UTILISATIONS:
        good, fair = _limits.util_pct
        return _chosen(none, (numbers < good, Tint.POOR), (numbers < fair, Tint.VERY_POOR))
    if name in _ROOFS and (shares := frame.values.get("kernel_pct")) is not None:
        counts, (poor, very_poor) = shares.known(missing=0.0) >= _COUNTS_PCT, _limits.roof_pct
        return _chosen(
            none,
            (counts & (numbers < poor), Tint.POOR),
            (counts & (numbers < very_poor), Tint.VERY_POOR),
        )
    if (caps := frame.values.get(_LIMITS.get(name, ""))) is not None:
        near, reached = (100 * numbers >= pct * caps.known() for pct in _limits.power_pct)
        if near.any():
            return _chosen(none, (near, Tint.HIGH), (reached, Tint.TOO_HIGH))
    if not _comparable(frame, column):
        return none
    numbers[~frame.counted()] = np.nan
    if NO_LABEL_TEXT in frame.labels:
        numbers[frame.labels.index(NO_LABEL_TEXT)] = np.nan
    return _of_distances(numbers, _least_spread(frame, column, values))


def _comparable(frame: Frame, column: Metric) -> bool:
    if column.name == "share_pct":
        return False
    if frame.level not in _PEERS:
        return column.reduces in _AVERAGED and column.unit is not Unit.NONE
    if column.reduces is Reduces.NONE:
        return column.unit is not Unit.NONE  # counts and ratios of a view's own are aids
    return column.reduces not in _IDENTITIES


def _least_spread(frame: Frame, column: Metric, values: Values) -> float:
    """The spread below which a figure counts as equal: of time, a share of the rows' time."""
    if column.unit is Unit.PERCENT:
        return _LEAST_POINTS
    if column.unit is not Unit.NS or not len(frame.elapsed_ns):
        return 0.0
    least = _LEAST_SPREAD if column.reduces in _SUMMED else _NEGLIGIBLE
    return least * median_of(frame.elapsed_ns)


def _usual(numbers: Float64, least: float = 0.0) -> tuple[float, float]:
    """The median of peers, and the distance beyond which one of them stands out; 0: none does."""
    known = numbers[np.isfinite(numbers)]
    if len(known) < MIN_VALUES:
        return np.nan, 0.0
    median = median_of(known)
    spread = spread_of(known)
    return median, FACTOR * max(spread, _LEAST_SPREAD * abs(median), least)


def far_out(values: Float64) -> Float64:
    """How far the mean of each row is above the median of these; 0 where it doesn't stand out.

    They do by the rule of `tints`.
    """
    known = np.isfinite(values)
    means = ratios(np.where(known, values, 0.0).sum(axis=1), known.sum(axis=1))
    median, limit = _usual(means)
    distances: Float64 = np.nan_to_num(means - median)
    return np.where(np.abs(distances) > limit, distances, 0.0) if limit else np.zeros(len(values))


def _of_distances(numbers: Float64, least: float) -> Int8:
    median, limit = _usual(numbers, least)
    tint = np.zeros(len(numbers), np.int8)
    if not limit:
        return tint
    distances = (numbers - median) / limit
    return _chosen(
        tint,
        (distances < -1, Tint.BELOW),
        (distances < -_FAR, Tint.FAR_BELOW),
        (distances > 1, Tint.ABOVE),
        (distances > _FAR, Tint.FAR_ABOVE),
    )


def _of_changes(frame: Frame, column: Metric, numbers: Float64) -> Int8:
    sizes = np.abs(np.nan_to_num(numbers))
    if column.unit is Unit.PERCENT:
        mild, strong = _CHANGE_PCT
    else:
        base = frame.values.get("base_ns")
        # Candidates for a baseline are no parts of the scope, but each has its time.
        whole = frame.parent_ns or (0.0 if base is None else float(base.known(0.0).max()))
        floor = _NEGLIGIBLE * whole if column.unit is Unit.NS else 0.0
        mild, strong = (max(share * float(sizes.max()), floor) for share in _OF_LARGEST)
    strong = max(strong, np.finfo(np.float64).tiny)
    below, above = numbers < 0, numbers > 0
    return _chosen(
        np.zeros(len(numbers), np.int8),
        (below & (sizes >= mild), Tint.BELOW),
        (below & (sizes >= strong), Tint.FAR_BELOW),
        (above & (sizes >= mild), Tint.ABOVE),
        (above & (sizes >= strong), Tint.FAR_ABOVE),
    )


def _chosen(tint: Int8, *rules: tuple[np.ndarray, Tint]) -> Int8:
    for holds, chosen in rules:
        tint[holds] = chosen
    return tint
