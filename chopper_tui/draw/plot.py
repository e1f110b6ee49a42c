"""Charts of two axes, drawn by plotext with its axes and ticks.

A chart's cost is bounded by its canvas, not by its data: plotext makes a point of each cell
that a line crosses, outside of the canvas too, and its work grows with the points that it is given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, Final

import numpy as np
from msgspec import Struct

from chopper_core.render.glyphs import Glyphs
from chopper_core.util.arrays import Float64, Index
from chopper_core.util.grouping import distinct, run_mask
from chopper_tui.draw.axes import Axis, shares
from chopper_tui.draw.pieces import Line

_POINTS_PER_CELL: Final = 8
"""Points of a curve per column of the canvas: the ends and extremes of its two halves."""
_ASCII_AXES: Final = str.maketrans("┤│└┬─", "+|++-")
_PLOTEXT: Final = Lock()
"""plotext draws on one figure for the whole process."""
_PIECE: Final = re.compile(r"\x1b\[0m(?:\x1b\[38;5;(\d+)m)?([^\x1b]*)")
"""A part of a line in one colour, whose number is that of a curve's ink."""
LINE: Final = {"unicode": "hd", "ascii": "*"}
"""The marker of lines: quarters of a cell, or a sign."""


class Curve(Struct, frozen=True, eq=False):
    """Points in the order in which they are joined; all of them are known."""

    x: Float64
    y: Float64
    ink: str
    marker: str
    is_joined: bool = False
    is_filled: bool = False
    """Whether the area below it is filled."""


def plotted(
    curves: Sequence[Curve],
    size: tuple[int, int],
    x_axis: Axis,
    y_axis: Axis,
    glyphs: Glyphs,
    check: Callable[[], None],
    right: Axis | None = None,
    texts: Sequence[tuple[float, float, str]] = (),
) -> list[Line]:
    """Curves over their axes, the later ones in front, with texts to the right of places.

    `check` raises Cancelled once the result is no longer wanted.
    """
    import plotext

    width, height = size
    inks = ["dim", *(curve.ink for curve in curves)]
    with _PLOTEXT:
        check()
        figure: Any = plotext.figure
        plotext.terminal.limit(False, False)
        figure.clear()
        figure.theme("colorless")
        figure.plot_size(width, height)
        figure.axes(False)
        figure.axes(True, axis="y", side="left")
        for axis, name, side in (
            (x_axis, "x", "lower"), (y_axis, "y", "left"), (right, "y", "right")
        ):  # fmt: skip
            if axis is not None:
                ruler = figure.ruler(name, side=side)
                ruler.lim(0, 1)
                ruler.ticks(shares(np.array(axis.places), axis).tolist(), list(axis.texts))
        for x, y, text in texts:
            place = x_axis.share(x), y_axis.share(y)
            figure.draw(figure.text(*place, text, alignment="left"))
        for number, curve in enumerate(curves, 1):
            check()
            xs, ys = _on_canvas(curve, width, x_axis, y_axis)
            marker = plotext.marker(curve.marker, pixel=plotext.pixel(number))
            signal = figure.signal(xs, ys, marker=marker)
            signal.lines(curve.is_joined)
            signal.fillx(curve.is_filled)
            figure.draw(signal)
        check()
        text = figure.build().string()
    rows = [
        [(piece, inks[int(ink or 0)]) for ink, piece in _PIECE.findall(row) if piece]
        for row in text.split("\n")[:height]
    ]
    if glyphs.is_ascii:
        rows = [[(piece.translate(_ASCII_AXES), ink) for piece, ink in row] for row in rows]
    return rows


def _on_canvas(
    curve: Curve, width: int, x_axis: Axis, y_axis: Axis
) -> tuple[list[float], list[float]]:
    """A curve as shares of the canvas, without the points that can't be seen."""
    x, y = shares(curve.x, x_axis), shares(curve.y, y_axis)
    kept = _kept_points(x, y, width)
    return x[kept].tolist(), y[kept].tolist()


def _kept_points(x: Float64, y: Float64, width: int) -> Index:
    """Of more points than a canvas can show: first, last, lowest, highest of each half cell."""
    most = _POINTS_PER_CELL * width
    if len(x) <= most:
        return np.arange(len(x))
    columns = np.floor(x * 2 * width).astype(np.intp)
    is_new = run_mask(columns)
    run, begins = np.cumsum(is_new), np.flatnonzero(is_new)
    ends = np.append(begins[1:], len(x)) - 1
    by_height = np.lexsort((y, run))
    kept = distinct(np.concatenate([begins, ends, by_height[begins], by_height[ends]]))
    # A curve that runs to and fro is thinned.
    return kept[:: -(-len(kept) // most)]
