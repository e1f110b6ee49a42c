"""Frames as they are printed and written to files: one way for `chopper show` and snapshots."""

from __future__ import annotations

from chopper_core.frame import Frame
from chopper_core.render import render
from chopper_core.render.glyphs import UNICODE, Glyphs


def printed(
    frame: Frame,
    format_name: str = "text",
    *,
    limit: int | None = None,
    width: int = 0,
    glyphs: Glyphs = UNICODE,
) -> str:
    """A frame in a format of `render`, with its pictures where it is read by people."""
    drawn: list[str] = []
    if format_name in ("text", "markdown") and frame.pictures:
        from chopper_tui.drawing import as_lines

        drawn = as_lines(frame.pictures, min(width, 120), glyphs)
    return render(frame, format_name, limit=limit, width=width, glyphs=glyphs, drawn=drawn)
