"""The row under the cursor on every GPU."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec import Struct

from chopper_core.metrics import METRICS
from chopper_core.render.cells import ColumnScale, scale_of, scale_title
from chopper_core.render.glyphs import Glyphs, bar, sparkline
from chopper_tui.draw.pieces import Pieces, fit
from chopper_tui.screen_data import RowOnGpus
from chopper_tui.widgets.pane import Pane

_FAR_PCT = 5.0
"""From this difference from the median on a GPU must not be overlooked."""
_LEAST_PCT = 0.05
_LEAST_BAR = 6
_SPARK = 12
_LEAST_SPARK = 4
_FIGURES = 37
"""Cells of a line before its sparkline, with a clock and times of eight digits."""
_GPU, _TIME, _CHANGE, _CLOCK = "GPU", "time", "Δ median", "gfx MHz"


class GpuPane(Pane):
    """Time and clock of a row on every GPU, against the median of the times, and a signal."""

    times: RowOnGpus | None = None
    name_of_row = ""

    @property
    def spark_cells(self) -> int:
        """How long a sparkline has room; it takes as many bins."""
        room = self.size.width - _FIGURES
        return min(room, _SPARK) if room >= _LEAST_SPARK else 0

    def show(self, name: str, times: RowOnGpus | None) -> None:
        """Show the times of a row."""
        self.name_of_row, self.times = name, times
        self.redraw()

    def lines(self, width: int, height: int) -> Iterable[Pieces]:
        """A line per GPU; where they don't fit, those that are farthest from the median."""
        times, glyphs = self.times, self.glyphs
        if times is None:
            return
        legend = f"{glyphs.mark} slowest " if times.slowest is not None else ""
        title = f"{self.name_of_row} on every GPU"
        yield [(" ", "text"), (fit(title, width - 1 - len(legend), glyphs) + legend, "dim")]
        scale = scale_of(METRICS["elapsed_ns"], float(np.nanmax(times.elapsed_ns)))
        table = _Lines(times, scale, width, glyphs)
        yield [(table.header(), "dim")]
        for position in _chosen(times, height - 2):
            yield table.line(position)


class _Lines(Struct, frozen=True):
    """The lines of GPUs under their header."""

    times: RowOnGpus
    scale: ColumnScale
    width: int
    glyphs: Glyphs

    @property
    def _has_clocks(self) -> bool:
        return any(clock is not None and clock.number is not None for clock in self.times.clocks)

    @property
    def _digits(self) -> int:
        return max(len(str(max(self.times.gpus))), len(_GPU))

    @property
    def _time_width(self) -> int:
        known = self.times.elapsed_ns[~np.isnan(self.times.elapsed_ns)]
        return max(len(self._time_title), *(len(self.scale.cell(float(each))) for each in known))

    @property
    def _time_title(self) -> str:
        return self.glyphs.spelled(f"{_TIME} {self.scale.unit}")

    @property
    def _spark(self) -> int:
        return int(self.times.shares.shape[1]) if self._room() >= _LEAST_SPARK else 0

    def _room(self) -> int:
        """The cells after the figures."""
        used = 2 + self._digits + 2 + self._time_width + 2 + len(_CHANGE)
        used += 2 + len(_CLOCK) if self._has_clocks else 0
        return self.width - used - 3

    def header(self) -> str:
        """The titles of the columns."""
        text = f"  {_GPU:>{self._digits}}  {self._time_title:>{self._time_width}}  {_CHANGE}"
        if self._has_clocks:
            text += f"  {_CLOCK}"
        if self._spark:
            signal, room = self.times.signal, self._room()
            title = scale_title(signal) if len(scale_title(signal)) <= room else signal.title
            text += "  " + fit(title, room, self.glyphs)
        return text

    def line(self, position: int) -> Pieces:
        """One GPU."""
        times, glyphs = self.times, self.glyphs
        elapsed = float(times.elapsed_ns[position])
        here = times.gpus[position] == times.here
        ink = "strong" if here else "text"
        mark = glyphs.mark if position == times.slowest else " "
        name = f"{glyphs.cursor if here else ' '}{mark}{times.gpus[position]:>{self._digits}}"
        if np.isnan(elapsed):
            return [(f"{name}  {glyphs.missing:>{self._time_width}}", "dim")]
        median = times.median_ns
        change = 100 * (elapsed - median) / median if median else 0.0
        is_change = abs(change) >= _LEAST_PCT
        arrow = " " if not is_change else glyphs.up if change > 0 else glyphs.down
        percent = f"{change:+.1f}" if is_change else "0.0"
        pieces = [
            (f"{name}  {self.scale.cell(elapsed):>{self._time_width}}", ink),
            (f"  {arrow}{percent:>6}%", "alert" if abs(change) >= _FAR_PCT else ink),
        ]
        if self._has_clocks:
            clock = times.clocks[position]
            text = glyphs.missing if clock is None else clock.text(glyphs, beside_title=True)
            pieces.append((f"  {text.removesuffix(' MHz'):>{len(_CLOCK)}}", ink))
        room = self._room()
        if self._spark:
            spark = sparkline(times.shares[position], glyphs)[:room]
            pieces.append((f"  {spark}", "spark"))
            room -= len(spark) + 2
        if room >= _LEAST_BAR:
            largest = float(np.nanmax(times.elapsed_ns)) or 1.0
            pieces.append((f"  {bar(elapsed / largest, room, glyphs)}", "accent"))
        return pieces


def _chosen(times: RowOnGpus, room: int) -> list[int]:
    if len(times.gpus) <= room:
        return list(range(len(times.gpus)))
    far = np.argsort(-np.abs(np.nan_to_num(times.elapsed_ns - times.median_ns)), kind="stable")
    return sorted(far[: max(room, 0)].tolist())
