"""Every axis, legend and figure of a chart is in the unit that suits its largest figure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import numpy as np
import pytest

from chopper_core.model.charts import (
    BarChart,
    Chart,
    Composition,
    GpuLanes,
    HeatMap,
    Icicle,
    IcicleRow,
    LineChart,
    Series,
    SignalRows,
    StepBars,
)
from chopper_core.model.view import View
from chopper_core.render.glyphs import UNICODE
from chopper_tui.draw.canvas import WHOLE, Lens
from chopper_tui.draw.charts import chart_lines, draw, seen

X: Final = np.arange(4.0)
SHARES: Final = np.array([0.2, 0.4, 0.7, 1.0])
LABELS: Final = ("one", "two", "three", "four")


def icicle(unit: str, numbers: np.ndarray) -> Icicle:
    ends = np.arange(1, 5)
    row = IcicleRow("layer", LABELS, ends - 1, ends, numbers, np.zeros(4, int), ends * 1e6)
    return Icicle("time by layer; colour held", unit, (row,), lambda at, of: View())


def steps(unit: str, numbers: np.ndarray) -> StepBars:
    places = np.arange(4)
    return StepBars("step", unit, places, numbers, (), (), (), str, lambda at: View())


def signals(unit: str, numbers: np.ndarray) -> SignalRows:
    rows = np.stack([numbers, numbers])
    means = rows.mean(axis=1)
    return SignalRows("held", unit, "time", "s", (0.0, 4.0), ("GPU 0", "GPU 1"), rows, means, ())


KINDS: Final[dict[str, Callable[[str, np.ndarray], Chart]]] = {
    "bars": lambda unit, y: BarChart("held", unit, LABELS, (Series("held", y),)),
    "signed bars": lambda unit, y: BarChart(
        "held", unit, LABELS, (Series("more", 0 * y), Series("less", -y))
    ),
    "line": lambda unit, y: LineChart.over("held", unit, "step", "", X, {"a": y}),
    "lines": lambda unit, y: LineChart.over("held", unit, "step", "", X, {"a": y, "b": y / 2}),
    "points": lambda unit, y: LineChart.clouds("a by b", "", "b", unit, {"a": (y, X)}),
    "signals": signals,
    "heat map": lambda unit, y: HeatMap(
        "held", unit, ("GPU 0",), LABELS, "layer", y[None], has_own_rows=True
    ),
    "icicle": icicle,
    "steps": steps,
    "whole": lambda unit, y: Composition(
        "held",
        unit,
        ("",),
        tuple(Series(f"p{n}", y[n : n + 1] * 0.43) for n in range(len(y))),
    ),
}
UNITS: Final = [
    ("B", 32e9, "GB"),
    ("B", 5e6, "MB"),
    ("B", 800.0, "B"),
    ("FLOP", 4e12, "TFLOP"),
    ("J", 5e6, "MJ"),
    ("J", 0.5, "mJ"),
    ("W", 44e3, "kW"),
    ("ms", 3e6, "min"),
    ("ms", 0.05, "µs"),
    ("MHz", 2100.0, "MHz"),
    ("%", 90.0, "%"),
    ("widgets per gadget", 90.0, "widgets per gadget"),
]


def drawn(chart: Chart) -> str:
    lines = chart_lines([chart], 80, UNICODE)
    return "\n".join("".join(text for text, _ in line) for line in lines)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("unit", "most", "shown"), UNITS)
def test_a_chart_is_in_the_unit_that_suits_its_largest_figure(
    kind: str, unit: str, most: float, shown: str
) -> None:
    text = drawn(KINDS[kind](unit, most * SHARES))
    assert re.search(rf"(?<![\w/]){re.escape(shown)}(?!\w)", text), text
    # No figure is longer than five digits before its point, none is drawn as a power of ten.
    assert not re.search(r"\d{6}|\de[+-]?\d", text), text


@pytest.mark.parametrize("kind", KINDS)
def test_a_chart_of_nothing_or_of_zeros_keeps_its_unit(kind: str) -> None:
    for numbers in (np.zeros(4), np.full(4, np.nan)):
        chart = KINDS[kind]("B", numbers)
        assert seen(chart, WHOLE) == chart or "GB" not in drawn(chart)


def test_the_unit_stays_while_a_chart_is_zoomed() -> None:
    chart = KINDS["line"]("B", np.array([1e3, 2e3, 3e9, 4e9]))
    begin = seen(chart, Lens(centre=0.0, factor=2.0))
    title = "".join(text for text, _ in draw(begin, 80, 12, UNICODE)[0])
    assert title.startswith("held, GB")


def test_a_small_bar_next_to_a_large_one_is_no_power_of_ten() -> None:
    numbers = np.array([32e9, 12.0, -12.0, 0.0])
    lines = drawn(BarChart("held", "B", LABELS, (Series("held", numbers),))).splitlines()
    figures = {line.split()[0]: line.split()[1] for line in lines[1:5]}
    assert figures == {"one": "32", "two": "<0.001", "three": ">-0.001", "four": "0"}


def test_the_steps_above_lanes_are_in_the_unit_that_suits_them() -> None:
    lanes = GpuLanes(
        "GPUs", ("0", "1"), ("", ""), (signals("W", 700 * SHARES),), (1400.0,), (None,), ((),),
        steps=steps("ms", 3e5 * SHARES),
    )  # fmt: skip
    text = drawn(lanes)
    assert "step s  last 300" in text
    assert "held W" in text


def test_a_title_without_a_unit_says_where_the_axis_begins() -> None:
    chart = LineChart.over("loss", "", "step", "", X, {"loss": 8.0 + SHARES})
    assert drawn(chart).startswith("loss, axis from 8")
