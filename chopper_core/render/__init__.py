"""A frame as text, markdown, CSV or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from chopper_core.render.exchange import as_csv, as_json
from chopper_core.render.glyphs import UNICODE, Glyphs
from chopper_core.render.palette import Paint, plain
from chopper_core.render.text import as_html, as_markdown, as_text
from chopper_core.views.frame import Frame

__all__ = ["FORMATS", "as_csv", "as_html", "as_json", "as_markdown", "as_text", "render"]

FORMATS: Final = ("text", "markdown", "csv", "json")


def render_frame(
    frame: Frame,
    format_name: str,
    *,
    limit: int | None = None,
    width: int = 0,
    glyphs: Glyphs = UNICODE,
    drawn: Sequence[str] = (),
    paint: Paint = plain,
    has_pictures: bool = False,
    is_brief: bool = False,
) -> str:
    """A frame in one of `FORMATS`, ending in a newline.

    `limit` cuts the rows (and the output says so); `width` is the terminal's for `text`, 0 is
    unlimited; `glyphs` and `paint` are what `text` draws with. JSON takes `has_pictures` and
    `is_brief`.
    """
    match format_name:
        case "csv":
            return as_csv(frame, limit=limit)
        case "json":
            return as_json(frame, limit=limit, has_pictures=has_pictures, is_brief=is_brief)
        case "markdown":
            return as_markdown(frame, limit=limit, drawn=drawn)
    return as_text(frame, limit=limit, width=width, glyphs=glyphs, drawn=drawn, paint=paint)
