"""The chart of busy shares over time, drawn by plotext as characters in named inks."""

from __future__ import annotations

from itertools import groupby
from threading import Lock
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from chopper_core.metrics import METRICS
from chopper_core.query import BusyChart
from chopper_core.render.cells import scale_of
from chopper_core.render.glyphs import UNICODE, Glyphs

Line = list[tuple[str, str]]
"""Pieces of text, each with the name of its ink."""
Shares = NDArray[np.float64]

AXIS_WIDTH: Final = 4
"""Cells of `100` and of the axis itself."""
_FEW_TICKS: Final = 90
"""With as few bins, five labels of the time axis don't fit."""
_TALL: Final = 6
"""From this height on the time axis has labels of its own."""

_ASCII_AXES: Final = str.maketrans("┤│└┬─", "+|++-")
# plotext draws on one figure for the whole process.
_figure: Final = Lock()


def bins_for(width: int, glyphs: Glyphs) -> int:
    """How many bins of time a chart of this width can show."""
    return max(width - AXIS_WIDTH, 1) * (2 if glyphs is UNICODE else 1)


def headline(chart: BusyChart, width: int, glyphs: Glyphs) -> str:
    """What the chart shows and over which time, as far as there is room."""
    whole = scale_of(METRICS["start_ns"], chart.end_ns)
    dash = "–" if glyphs is UNICODE else "-"
    line = np.median(chart.shares, axis=0)
    parts = [
        "busy %",
        f"{whole.cell(chart.start_ns)}{dash}{whole.cell(chart.end_ns)} {whole.unit}",
        f"mean {100 * np.nanmean(chart.shares):.0f}",
        f"min {100 * np.nanmin(line):.0f}",
    ]
    if len(chart.gpus) > 1:
        parts.insert(1, f"median of {len(chart.gpus)} GPUs, min{dash}max shaded")
    while len("  ".join(parts)) > width and len(parts) > 1:
        parts.pop()
    return "  ".join(parts)


def draw(chart: BusyChart, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """The chart as `height` lines of `width` cells: the median over the band of all GPUs."""
    shares = 100 * np.nan_to_num(chart.shares)
    median = np.median(shares, axis=0)
    with _figure:
        line = _rows(chart, (median,), width, height, glyphs)
        if len(chart.gpus) == 1:
            band = [" " * len(row) for row in line]
        else:
            ends = (shares.max(axis=0), shares.min(axis=0))
            band = _rows(chart, ends, width, height, glyphs)
    canvas = height - 2 if height >= _TALL else height
    return [
        _merged(*rows) if y < canvas else [(rows[0], "dim")]
        for y, rows in enumerate(zip(line, band, strict=True))
    ]


def _rows(
    chart: BusyChart, signals: tuple[Shares, ...], width: int, height: int, glyphs: Glyphs
) -> list[str]:
    import plotext

    figure: Any = plotext.figure
    plotext.terminal.limit(False, False)
    figure.clear()
    figure.theme("colorless")
    figure.plot_size(width, height)
    figure.axes(False)
    figure.axes(True, axis="y", side="left")
    last = chart.shares.shape[1] - 1
    figure.ruler("y").lim(0, 100)
    marks = (0, 50, 100) if height >= 5 else (0, 100)
    figure.ruler("y").ticks(list(marks), [f"{mark:>3}" for mark in marks])
    figure.ruler("x").lim(0, max(last, 1))
    if height >= _TALL:
        figure.axes(True, axis="x", side="lower")
        figure.ruler("x").ticks(*_time_ticks(chart, last))
    else:
        figure.ruler("x").ticks([], [])
    marker = "braille" if glyphs is UNICODE else "*"
    x = list(range(last + 1))
    drawn = [figure.signal(x, signal.tolist(), marker=marker) for signal in signals]
    if len(drawn) == 1:
        drawn[0].lines()
    else:
        drawn[0].fill(drawn[1])
    figure.draw(drawn[0])
    text: str = figure.build().string(colorless=True)
    rows = [row.ljust(width)[:width] for row in text.split("\n")[:height]]
    return [row.translate(_ASCII_AXES) for row in rows] if glyphs is not UNICODE else rows


def _time_ticks(chart: BusyChart, last: int) -> tuple[list[float], list[str]]:
    scale = scale_of(METRICS["start_ns"], chart.end_ns)
    span = chart.end_ns - chart.start_ns
    parts = (0.0, 0.25, 0.5, 0.75, 1.0) if last > _FEW_TICKS else (0.0, 0.5)
    labels = [scale.cell(chart.start_ns + part * span) for part in parts]
    labels[-1] += f" {scale.unit}"
    return [part * last for part in parts], labels


def _merged(line: str, band: str) -> Line:
    """One row: the line where it passes, else the band; the axis is dim."""
    blank = " \u2800"

    def ink(position: int) -> str:
        if position < AXIS_WIDTH:
            return "dim"
        return "shade" if line[position] in blank else "accent"

    chars = [b if a in blank else a for a, b in zip(line, band, strict=True)]
    return [
        ("".join(chars[position] for position in positions), name)
        for name, positions in (
            (name, list(group)) for name, group in groupby(range(len(chars)), key=ink)
        )
    ]
