"""A frame as data: kept for the next start, which shows it before anything is computed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy as np
from msgspec import Struct

from chopper_core.metrics import METRICS, Metric, Values, computed_column
from chopper_core.model.charts import Band, Cards, Chart, Composition, LaneCells, Lanes, Pointed
from chopper_core.model.signals import Signal
from chopper_core.model.view import Interval, View
from chopper_core.query.frame import Frame, Number
from chopper_core.util.arrays import Float64, Int64, Mask

_OWN: Final = ("columns", "more", "values", "charts")
"""The fields of a kept frame that differ from the frame's."""


class KeptColumn(Struct, frozen=True):
    """A column: the metric of its name, or one that only such a frame has."""

    name: str
    is_registered: bool
    unit: str = ""
    title: str = ""
    definition: str = ""
    reduces: str = ""
    source: str = ""
    missing_because: str = ""
    signed: bool = False


class KeptValues(Struct, frozen=True):
    """The figures of a column: integers or others."""

    integers: Int64 | None
    others: Float64 | None
    missing: Mask | None
    extrapolated: Mask | None
    words: tuple[str, ...] | None
    partial: Mask | None


class KeptLanes(Struct, frozen=True, tag=True):
    """Lanes without their cells."""

    title: str
    lanes: tuple[str, ...]
    owners: tuple[str, ...]
    kinds: tuple[str, ...]
    seen: Interval
    pointed: tuple[Pointed, ...]
    signals: int
    missing: str
    classes: tuple[str, ...]

    def chart(self, fresh: Callable[[], Lanes]) -> Lanes:
        """The lanes; their cells are asked of fresh ones."""

        def cells(row: int, bins: int) -> LaneCells:
            return fresh().cells(row, bins)

        def bands(row: int, bins: int) -> tuple[Band, ...]:
            return fresh().bands(row, bins)

        def part(begin: float, end: float) -> Lanes:
            lanes = fresh()
            return lanes if lanes.part is None else lanes.part(begin, end)

        return Lanes(
            **_fields(self), cells=cells, bands=bands, part=part, strips=lambda row, bins: ()
        )


class KeptFrame(Struct, frozen=True):
    """The data of a frame."""

    address: str
    level: str
    labels: tuple[str, ...]
    columns: tuple[KeptColumn, ...]
    more: tuple[KeptColumn, ...]
    values: dict[str, KeptValues]
    total: dict[str, Number | None]
    sort: str
    hidden: int
    hidden_ns: int
    parent_ns: int
    elapsed_ns: Int64
    notes: tuple[str, ...]
    partners: tuple[str, ...]
    sparks: bool
    headline: tuple[str, ...]
    charts: tuple[Composition | Cards | KeptLanes, ...]
    over: tuple[str, ...]
    by: str
    truncated: tuple[int, ...]
    left_out: tuple[int, ...]
    partial_total: frozenset[str]

    def frame(self, view: View, signal: Signal, compute: Callable[[], Frame]) -> Frame:
        """The frame; what isn't data in it is asked of a computed one, once."""
        computed = cache(compute)

        def lanes() -> Lanes:
            return next(each for each in computed().charts if isinstance(each, Lanes))

        return Frame(
            **{name: value for name, value in _fields(self).items() if name not in _OWN},
            view=view,
            columns=tuple(map(_column, self.columns)),
            more=tuple(map(_column, self.more)),
            values={name: _values(each) for name, each in self.values.items()},
            charts=tuple(
                each.chart(lanes) if isinstance(each, KeptLanes) else each for each in self.charts
            ),
            target=lambda row: computed().target(row),
            attributes=lambda row: computed().attributes(row),
            signal=signal,
            means=lambda rows, bins: computed().means(rows, bins),
        )


def kept_frame(frame: Frame) -> KeptFrame | None:
    """The data of a frame; None where a part of it is still computed, or isn't data."""
    charts = [_kept_chart(each) for each in frame.charts]
    if frame.is_pending or any(each is None for each in charts):
        return None
    same = {name: getattr(frame, name) for name in KeptFrame.__struct_fields__ if name not in _OWN}
    return KeptFrame(
        **same,
        columns=tuple(map(_kept_column, frame.columns)),
        more=tuple(map(_kept_column, frame.more)),
        values={name: _kept_values(each) for name, each in frame.values.items()},
        charts=tuple(each for each in charts if each is not None),
    )


def _fields(struct: Struct) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


def _kept_column(metric: Metric) -> KeptColumn:
    if METRICS.get(metric.name) is metric:
        return KeptColumn(metric.name, True)
    own = {name: getattr(metric, name) for name in KeptColumn.__struct_fields__[2:]}
    return KeptColumn(metric.name, False, **own)


def _column(kept: KeptColumn) -> Metric:
    if kept.is_registered:
        return METRICS[kept.name]
    return computed_column(**{k: v for k, v in _fields(kept).items() if k != "is_registered"})


def _kept_values(values: Values) -> KeptValues:
    is_float = values.numbers.dtype.kind == "f"
    return KeptValues(
        None if is_float else values.numbers.astype(np.int64),
        values.numbers.astype(np.float64) if is_float else None,
        values.missing,
        values.extrapolated,
        values.words,
        values.partial,
    )


def _values(kept: KeptValues) -> Values:
    numbers = kept.others if kept.integers is None else kept.integers
    assert numbers is not None
    return Values(numbers, kept.missing, kept.extrapolated, kept.words, kept.partial)


def _kept_chart(chart: Chart) -> Composition | Cards | KeptLanes | None:
    if isinstance(chart, Lanes) and chart.hosts is None and chart.ghosts is None:
        return KeptLanes(**{name: getattr(chart, name) for name in KeptLanes.__struct_fields__})
    return chart if isinstance(chart, Composition | Cards) else None
