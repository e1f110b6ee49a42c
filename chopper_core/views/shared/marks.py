"""Marks of cells: outliers of a column, tints of unusual figures, figures of some GPUs only.

Outliers follow a rule that is robust against them; tints follow one rule in every view, on the
screen and in text. Counters may cover 2 of 8 GPUs, telemetry one node.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.columns import Metric, Reduces, Scope, Values
from chopper_core.columns.metric import Theme
from chopper_core.model.column_names import HOTSPOT
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL_TEXT
from chopper_core.model.units import Unit
from chopper_core.model.view import View
from chopper_core.util.arrays import Float64, Int8, Mask
from chopper_core.util.errors import UsageError
from chopper_core.util.grouping import median_of, ratios
from chopper_core.views.frame import Frame

FACTOR: Final = 3.5
MAD_TO_SIGMA: Final = 1.4826
"""The median absolute deviation times this is the standard deviation of normal data."""
RULE: Final = f"a distance from the median over {FACTOR} x {MAD_TO_SIGMA} x MAD"
MIN_VALUES: Final = 4
"""The fewest values with which outliers are looked for."""
_MAX_SEARCHED: Final = 1 << 22
"""Activities whose GPUs are looked up row by row; rows of more are taken to span the scope."""
_MAX_NAMED: Final = 4


class Outliers(Struct, frozen=True):
    """The outlying rows of a column, in row order, and the limit that they exceed."""

    rows: tuple[int, ...]
    median: float
    limit: float
    """The largest distance from the median that is no outlier, in the column's unit."""


def outliers(values: Values, counted: Mask | None = None) -> Outliers:
    """The counted rows with |x - median| > 3.5 x 1.4826 x MAD; missing values take no part.

    Raises UsageError for too few values, and where half of them are equal: the MAD is then 0 and
    every other value would be an outlier.
    """
    known_rows = values.present() if counted is None else values.present() & counted
    numbers = np.where(known_rows, values.numbers.astype(np.float64), np.nan)
    known = numbers[np.isfinite(numbers)]
    if len(known) < MIN_VALUES:
        count = f"{len(known)} value{'s' * (len(known) != 1)}"
        raise UsageError(f"outliers need at least {MIN_VALUES} values, and the column has {count}")
    median = median_of(known)
    mad = median_of(np.abs(known - median))
    if mad == 0:
        raise UsageError("no outliers: half of the values equal the median, so the MAD is 0")
    limit = FACTOR * MAD_TO_SIGMA * mad
    rows = np.flatnonzero(np.abs(numbers - median) > limit)
    return Outliers(tuple(int(row) for row in rows), median, limit)


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


INKS: Final = (
    ("text", "text", "warning", "text", "warning", "warning", "alarm", "warning", "alarm"),
    ("text", "good", "good", "warning", "warning", "warning", "alarm", "warning", "alarm"),
)
"""The ink of each tint: of a figure, which only stands out far from its peers, and of a difference,
where less is better."""
_PEERS: Final = ("gpu", "node", "iteration", "layer", "activity")
"""Levels whose rows do the same work, so that each can be held against the others."""
_UTILISATIONS: Final = ("busy_pct", "gfx_util_pct", "gpu_util_pct")
_HEATS: Final = (HOTSPOT, "mean_hotspot_c", "now_hotspot_c", "mean_hot_c", "hottest_c")
_POWERS: Final = ("mean_power_w", "now_power_w")
_LIMIT: Final = "limit_w"
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

    A difference is tinted by its sign and size, utilisation, heat, and shares of the roof and of
    the power limit by fixed thresholds, any other figure by its distance from the median of its
    column: beyond the limit of `outliers` (3.5 x 1.4826 x MAD, the MAD being at least 0.5 % of the
    median), and far beyond twice that.
    Sums are held against each other only where rows do the same work; missing cells and the row
    of activities without a label never, nor do iterations that are left out.
    """
    values = frame.values[column.name]
    none = np.zeros(len(values), np.int8)
    if values.words is not None or not len(values) or len(values) > _MAX_ROWS:
        return none
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
    if name in _POWERS and (caps := frame.values.get(_LIMIT)) is not None:
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
    spread = MAD_TO_SIGMA * median_of(np.abs(known - median))
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


class Coverage(Struct, frozen=True, dict=True):
    """The GPUs of the rows of a view and of its node, where these are several."""

    run: Run
    view: View
    level: str
    nodes: Groups
    whole: Groups

    @cached_property
    def _scope(self) -> frozenset[int]:
        return frozenset(self.whole.gpus(0))

    @cached_property
    def _rows(self) -> Sequence[frozenset[int]]:
        nodes = self.nodes
        if nodes.has_gpus or int(nodes.sizes().sum()) <= _MAX_SEARCHED:
            return [frozenset(nodes.gpus(row)) for row in range(len(nodes))]
        return [self._scope] * len(nodes)

    def covered(self, metric: Metric) -> frozenset[int] | None:
        """The GPUs that the metric's source covers; None where it covers the scope."""
        run = self.run
        found: Iterable[int] | None = None
        if metric.theme is Theme.COUNTERS and run.counters:
            found = {source.gpu for source in run.counters}
        elif metric.theme is Theme.TELEMETRY and metric.name in run.measured:
            found = run.measured[metric.name].curves
        elif metric.theme is Theme.BREAKDOWN and len(self._scope) > 1:
            found = self._gpus_with(metric)
        if not found or "gpu" in dict(self.view.scope):
            return None
        covered = frozenset(found)
        return None if self._scope <= covered else covered

    def _gpus_with(self, metric: Metric) -> list[int]:
        run, view = self.run, self.view
        by_gpu = run.tree_of(view).split(view.path, ("gpu",))
        scope = Scope.of(run, by_gpu, self.whole)
        return [int(gpu) for gpu in by_gpu.codes("gpu")[metric.compute(scope).present()]]

    def marked(self, metric: Metric, values: Values) -> Values:
        covered = None if self.level == "gpu" else self.covered(metric)
        if covered is None:
            return values
        lacks = np.array([not gpus <= covered for gpus in self._rows], np.bool_)
        return replace(values, partial=lacks & values.present())

    def partial_totals(self, columns: Sequence[Metric]) -> frozenset[str]:
        return frozenset(each.name for each in columns if self.covered(each) is not None)

    @property
    def gpus(self) -> int:
        return len(self._scope)

    def notes(self, columns: Sequence[Metric]) -> tuple[str, ...]:
        coverage: dict[tuple[Theme, frozenset[int]], None] = {}
        for each in columns:
            if (covered := self.covered(each)) is not None:
                coverage[each.theme, covered & self._scope] = None
        return tuple(
            f"* {theme.value} of {len(gpus)} of {len(self._scope)} GPUs only{_named(gpus)}"
            for theme, gpus in coverage
        )


def _named(gpus: frozenset[int]) -> str:
    return f": {', '.join(map(str, sorted(gpus)))}" if 0 < len(gpus) <= _MAX_NAMED else ""
