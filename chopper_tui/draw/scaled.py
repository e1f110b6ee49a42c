"""Charts with figures that can be computed with, in the units that suit them."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from operator import is_
from typing import Any, Final, TypeVar, cast

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.charts import BarChart, BoxChart, Composition, LineChart, SignalRows
from chopper_core.model.units import LONG_TIMES

T = TypeVar("T")
_SHORT_MS: Final = 0.1
_LONG_MS: Final = 1e5
"""Charts have ms from the first to the second; figures in them have up to five digits."""
_MAX_FIGURE: Final = 1e60


def drawable(value: T) -> T:
    """A chart, or a part of one, whose figures can be computed with.

    Infinite ones are unknown, those beyond 10^60 are drawn there, those below 10^-60 at 0: sums,
    differences and quotients of them are finite. An end of an axis that is unknown is 0.
    """
    new: Any = value
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        size = np.abs(value)
        if (size > _MAX_FIGURE).any() or ((size < 1 / _MAX_FIGURE) & (size > 0)).any():
            known = np.where(np.isinf(value), np.nan, value)
            new = np.clip(np.where(size < 1 / _MAX_FIGURE, 0.0, known), -_MAX_FIGURE, _MAX_FIGURE)
    elif isinstance(value, float):
        is_none = not isfinite(value) or 0 < abs(value) < 1 / _MAX_FIGURE
        new = 0.0 if is_none else min(max(value, -_MAX_FIGURE), _MAX_FIGURE)
    elif isinstance(value, tuple) and not (value and isinstance(value[-1], str)):
        items = tuple(map(drawable, value))
        new = value if all(map(is_, items, value)) else items
    elif isinstance(value, Struct):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        other = {name: drawable(each) for name, each in fields.items()}
        changed = {name: each for name, each in other.items() if each is not fields[name]}
        new = replace(value, **changed) if changed else value
    return cast("T", new)


def in_fitting_units(chart: Any) -> Any:
    """A chart of times in ms in the unit that suits the longest: minutes of a long run, say."""
    changes: dict[str, Any] = {}
    if isinstance(chart, LineChart | SignalRows) and chart.x_unit == "ms":
        ends = [each for each in chart.x if np.size(each)]
        length, unit = _time_unit(ends)
        x = tuple(np.asarray(each) / length if np.ndim(each) else each / length for each in chart.x)
        changes = {"x": x, "x_unit": unit} if unit != "ms" else {}
    if isinstance(chart, BarChart | LineChart | Composition) and chart.unit == "ms":
        sums = [each.numbers for each in chart.series]
        length, unit = _time_unit(sums if isinstance(chart, LineChart) else [np.nansum(sums, 0)])
        if isinstance(chart, BarChart) and length > 1:
            length, unit = 1e-6, "ns"  # each bar in the unit that suits it
        series = tuple(replace(each, numbers=each.numbers / length) for each in chart.series)
        changes |= {"series": series, "unit": unit} if unit != "ms" else {}
    elif isinstance(chart, BoxChart) and chart.unit == "ms":
        length, unit = _time_unit([chart.quantiles])
        changes = {"quantiles": chart.quantiles / length, "unit": unit} if unit != "ms" else {}
    return replace(chart, **changes) if changes else chart


def _time_unit(numbers: Sequence[Any]) -> tuple[float, str]:
    """The unit for times in ms, by the longest: its ms, and its name."""
    longest = max((float(np.nanmax(np.abs(each), initial=0.0)) for each in numbers), default=0.0)
    if 0 < longest < _SHORT_MS:
        return 1e-3, "µs"
    if longest < _LONG_MS:
        return 1.0, "ms"
    return next((ns / 1e6, unit) for least, ns, unit in LONG_TIMES if longest * 1e6 >= least)
