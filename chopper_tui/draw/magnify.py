"""Charts seen closer: a part of their time, their columns, or the low end of their bars."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.charts import BarChart, BoxChart, Chart, HeatMap, LineChart, SignalRows
from chopper_core.util.errors import UsageError

_MAX: Final = 1024.0
_MIN_COLUMNS: Final = 2


class Lens(Struct, frozen=True):
    """How close a chart is seen, and where along its axis."""

    factor: float = 1.0
    centre: float = 0.5
    """The place in the middle of what is seen, 0 to 1 of the whole."""

    @property
    def range(self) -> tuple[float, float]:
        """The part that is seen, 0 to 1 of the whole."""
        half = 0.5 / self.factor
        middle = min(max(self.centre, half), 1 - half)
        return middle - half, middle + half


WHOLE: Final = Lens()


def zoomed(lens: Lens, chart: Chart, factor: float) -> Lens:
    """The lens closer by a factor; raises UsageError where the chart can't be seen so."""
    if isinstance(chart, HeatMap):
        most = max(len(chart.columns) / _MIN_COLUMNS, 1.0)
    elif isinstance(chart, LineChart | SignalRows | BarChart | BoxChart):
        most = _MAX
    else:
        raise UsageError("this picture has no scale to zoom")
    closer = min(max(lens.factor * factor, 1.0), most)
    if closer == lens.factor:
        raise UsageError("maximum zoom" if factor > 1 else "this is the whole picture")
    return replace(lens, factor=closer)


def panned(lens: Lens, chart: Chart, share: float) -> Lens:
    """The lens moved by a share of what is seen; raises UsageError at an end."""
    if isinstance(chart, BarChart | BoxChart):
        raise UsageError("bars begin at zero: this picture can't be moved")
    begin, end = lens.range
    moved = replace(lens, centre=(begin + end) / 2 + share / lens.factor)
    if moved.range == lens.range:
        raise UsageError("this is the end of the picture")
    return replace(moved, centre=sum(moved.range) / 2)


def seen(chart: Chart, lens: Lens) -> Chart:
    """The part of a chart that is seen; charts without a scale are whole."""
    if lens == WHOLE:
        return chart
    begin, end = lens.range
    match chart:
        case LineChart():
            return _part_of_curves(chart, begin, end)
        case SignalRows():
            first, last = _columns(chart.numbers.shape[1], begin, end)
            low, high = chart.x
            step = (high - low) / chart.numbers.shape[1]
            part = (low + first * step, low + last * step)
            return replace(chart, numbers=chart.numbers[:, first:last], x=part)
        case HeatMap():
            first, last = columns_seen(chart, lens)
            opens = chart.opens
            return replace(
                chart,
                columns=chart.columns[first:last],
                numbers=chart.numbers[:, first:last],
                opens=opens and (lambda row, column: opens(row, first + column)),
            )
        case BarChart():
            sums = np.nansum([np.abs(each.numbers) for each in chart.series], axis=0)
            return replace(chart, longest=float(sums.max(initial=0.0)) / lens.factor)
        case BoxChart():
            known = chart.quantiles[np.isfinite(chart.quantiles).all(axis=1)]
            if not len(known):
                return chart
            middle = float(np.median(known[:, 2]))
            half = float(known.max() - known.min()) / (2 * lens.factor)
            return replace(chart, quantiles=np.clip(chart.quantiles, middle - half, middle + half))
    return chart


def columns_seen(chart: HeatMap, lens: Lens) -> tuple[int, int]:
    """The first column of a map that is seen, and the one after the last."""
    return _columns(len(chart.columns), *lens.range)


def _columns(count: int, begin: float, end: float) -> tuple[int, int]:
    wide = max(round((end - begin) * count), min(_MIN_COLUMNS, count))
    first = min(max(round(begin * count), 0), count - wide)
    return first, first + wide


def _part_of_curves(chart: LineChart, begin: float, end: float) -> LineChart:
    known = np.concatenate([x[np.isfinite(x)] for x in chart.x]) if chart.x else np.zeros(0)
    if not len(known):
        return chart
    low, span = float(known.min()), float(known.max() - known.min())
    kept = [(x >= low + begin * span) & (x <= low + end * span) for x in chart.x]
    return replace(
        chart,
        x=tuple(x[ok] for x, ok in zip(chart.x, kept, strict=True)),
        series=tuple(
            replace(each, numbers=each.numbers[ok])
            for each, ok in zip(chart.series, kept, strict=True)
        ),
    )
