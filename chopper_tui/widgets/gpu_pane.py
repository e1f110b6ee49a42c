"""The row under the cursor on every GPU."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from chopper_core.metrics import METRICS
from chopper_core.render.cells import Scale, scale_of
from chopper_core.render.glyphs import Glyphs, bar
from chopper_tui.looks import OnGpus
from chopper_tui.widgets.pane import Pane, Pieces, fit

_FAR_PCT = 5.0
"""From this difference from the median on a GPU must not be overlooked."""
_LEAST_PCT = 0.05
_LEAST_BAR = 6


class GpuPane(Pane):
    """Time and clock of a row on every GPU, against the median of the times."""

    times: OnGpus | None = None
    name_of_row = ""

    def show(self, name: str, times: OnGpus | None) -> None:
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
        for position in _chosen(times, height - 1):
            yield _line(times, position, scale, width, glyphs)


def _line(times: OnGpus, position: int, scale: Scale, width: int, glyphs: Glyphs) -> Pieces:
    elapsed = float(times.elapsed_ns[position])
    here = times.gpus[position] == times.here
    slowest = position == times.slowest
    ink = "strong" if here else "text"
    digits = len(str(max(times.gpus)))
    cursor, mark = glyphs.cursor if here else " ", glyphs.mark if slowest else " "
    name = f"{cursor}{mark}GPU {times.gpus[position]:>{digits}}"
    if np.isnan(elapsed):
        return [(f"{name}  {glyphs.missing:>8}", "dim")]
    median = times.median_ns
    change = 100 * (elapsed - median) / median if median else 0.0
    is_change = abs(change) >= _LEAST_PCT
    arrow = " " if not is_change else glyphs.up if change > 0 else glyphs.down
    percent = f"{change:+.1f}" if is_change else "0.0"
    pieces = [
        (f"{name}  {scale.cell(elapsed):>8} {scale.unit}", ink),
        (f"  {arrow}{percent:>6}%", "alert" if abs(change) >= _FAR_PCT else ink),
    ]
    if any(clock is not None and clock.number is not None for clock in times.clocks):
        clock = times.clocks[position]
        pieces.append((f"  {clock.text(glyphs) if clock else glyphs.missing:>9}", ink))
    room = width - sum(len(text) for text, _ in pieces) - 3
    if room >= _LEAST_BAR:
        largest = float(np.nanmax(times.elapsed_ns)) or 1.0
        pieces.append((f"  {bar(elapsed / largest, room, glyphs)}", "accent"))
    return pieces


def _chosen(times: OnGpus, room: int) -> list[int]:
    if len(times.gpus) <= room:
        return list(range(len(times.gpus)))
    far = np.argsort(-np.abs(np.nan_to_num(times.elapsed_ns - times.median_ns)), kind="stable")
    return sorted(far[: max(room, 0)].tolist())
