"""Frames as they are printed and written to files: one way for `chopper show` and snapshots."""

from __future__ import annotations

from typing import Final

from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.query.frame import Frame
from chopper_core.render import render
from chopper_core.render.glyphs import UNICODE, Glyphs

_WIDTH: Final = 120
_CHART_LINES: Final = 12


def scope_lines(run: Run, view: View, width: int, glyphs: Glyphs) -> list[str]:
    """The key figures of a node and the chart of its signal, as lines of text."""
    from chopper_core.query.signal_chart import signal_chart
    from chopper_tui.draw import signal_plot as plot
    from chopper_tui.draw.figures import figures_of
    from chopper_tui.key_line import KEY_FIGURES, key_line

    line = key_line(figures_of(run, view, KEY_FIGURES), view, glyphs)
    seen = signal_chart(run, view, plot.bins_for(run.signal(view.signal), width, glyphs))
    rows = plot.draw(seen, width, _CHART_LINES, glyphs)
    lines = [
        "  ".join(f"{title} {text}".strip() for title, text in line),
        "",
        plot.headline(seen, width, glyphs),
        *("".join(text for text, _ in row) for row in rows),
    ]
    return [*(each.rstrip() for each in lines), ""]


def printed(
    frame: Frame,
    format_name: str = "text",
    *,
    limit: int | None = None,
    width: int = 0,
    glyphs: Glyphs = UNICODE,
    charted: Run | None = None,
) -> str:
    """A frame in a format of `render`, with its pictures where it is read by people.

    A node of the tree has none; with its run its key figures and chart stand there.
    """
    drawn: list[str] = []
    if format_name in ("text", "markdown") and charted is not None and not frame.view.name:
        drawn = scope_lines(charted, frame.view, min(width or _WIDTH, _WIDTH), glyphs)
    if format_name in ("text", "markdown") and frame.charts:
        from chopper_tui.draw.charts import as_lines

        drawn = as_lines(frame.charts, min(width, 120), glyphs)
    return render(frame, format_name, limit=limit, width=width, glyphs=glyphs, drawn=drawn)
