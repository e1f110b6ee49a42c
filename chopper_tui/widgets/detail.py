"""The row under the cursor: all its figures, and its time on every GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from textwrap import wrap

import numpy as np

from chopper_core.metrics import METRICS
from chopper_core.render.cells import LEVEL_TITLES, clean, display_name, scale_of
from chopper_core.render.glyphs import Glyphs, bar
from chopper_core.schema import NO_LABEL_TEXT
from chopper_tui.looks import Detail, OnGpus, figure
from chopper_tui.widgets.pane import Pane, Pieces, fit


class DetailPane(Pane):
    """The name, the figures and the address of a row."""

    detail: Detail | None = None

    def show(self, detail: Detail | None) -> None:
        """Show a row's detail."""
        self.detail = detail
        self.redraw()

    def lines(self, width: int, height: int) -> Iterable[Pieces]:
        """The detail in two columns where there is room for them."""
        if self.detail is None:
            return []
        return [
            [(" ", "text"), *line] for line in detail_lines(self.detail, width - 2, self.glyphs)
        ]


def detail_lines(detail: Detail, width: int, glyphs: Glyphs) -> Iterator[Pieces]:
    """The detail of a row in lines of a width."""
    title = f"{LEVEL_TITLES[detail.level]} "
    name = display_name(detail.label, detail.level)
    yield [(title, "dim"), (fit(name, max(width - len(title), 1), glyphs).rstrip(), "strong")]
    whole = clean(detail.label)
    if detail.label != NO_LABEL_TEXT and (whole != name or len(title + name) > width):
        for text in wrap(whole, max(width, 8)):
            yield [(text, "text")]
    for text in wrap(clean(detail.address), max(width, 8), break_on_hyphens=False):
        yield [(text, "dim")]
    yield []
    across = 2 if width >= 56 else 1
    cell = (width - 2 * (across - 1)) // across
    known = [(m, figure(m, n, glyphs)) for m, n in detail.figures]
    down = -(-len(known) // across)
    for line in range(down):
        pieces: list[tuple[str, str]] = []
        for metric, text in known[line::down]:
            room = cell - len(text) - 1
            pieces += [
                (fit(metric.title, room, glyphs), "dim"),
                (f" {text}", "text"),
                ("  ", "dim"),
            ]
        yield pieces


class GpuPane(Pane):
    """The time of the cursor's row on every GPU, against their median."""

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
        title = f"{self.name_of_row} on every GPU"
        yield [(" ", "text"), (fit(title, width - 2, glyphs), "dim")]
        median = times.median_ns
        scale = scale_of(METRICS["elapsed_ns"], float(np.nanmax(times.elapsed_ns)))
        largest = float(np.nanmax(times.elapsed_ns)) or 1.0
        digits = len(str(max(times.gpus)))
        for index in _chosen(times, height - 1):
            elapsed = float(times.elapsed_ns[index])
            here = times.gpus[index] == times.here
            ink = "strong" if here else "text"
            name = f"{glyphs.cursor if here else ' '} GPU {times.gpus[index]:>{digits}}"
            if np.isnan(elapsed):
                yield [(f"{name}  {glyphs.missing:>9}", "dim")]
                continue
            change = 100 * (elapsed - median) / median if median else 0.0
            mark = glyphs.up if change > 0.05 else glyphs.down if change < -0.05 else " "
            text = f"{name}  {scale.cell(elapsed):>9} {scale.unit}  {mark}{change:+6.1f}%  "
            drawn = bar(elapsed / largest, max(width - len(text) - 1, 0), glyphs)
            far = abs(change) >= 5
            yield [
                (text[: -len(f"{mark}{change:+6.1f}%  ")], ink),
                (f"{mark}{change:+6.1f}%  ", "alert" if far else ink),
                (drawn, "accent"),
            ]


def _chosen(times: OnGpus, room: int) -> list[int]:
    if len(times.gpus) <= room:
        return list(range(len(times.gpus)))
    far = np.argsort(-np.abs(np.nan_to_num(times.elapsed_ns - times.median_ns)), kind="stable")
    return sorted(far[: max(room, 0)].tolist())
