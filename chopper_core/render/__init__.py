"""A frame as text, markdown, CSV or JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from chopper_core.render.exchange import as_csv, as_json
from chopper_core.render.glyphs import UNICODE, Glyphs
from chopper_core.render.palette import Paint, plain
from chopper_core.render.text import as_html, as_markdown, as_text
from chopper_core.views.frame import Frame

__all__ = ["FORMATS", "as_csv", "as_html", "as_json", "as_markdown", "as_text", "render"]

FORMATS: Final = ("text", "markdown", "csv", "json")


def render(
    frame: Frame,
    format_name: str,
    *,
    limit: int | None = None,
    width: int = 0,
    glyphs: Glyphs = UNICODE,
    drawn: Sequence[str] = (),
    paint: Paint = plain,
) -> str:
    """A frame in one of `FORMATS`, ending in a newline.

    `limit` cuts the rows (and the output says so); `width` is the terminal's for `text`, 0 is
    unlimited; `glyphs` and `paint` are what `text` draws with.
    """
    renderers: dict[str, Callable[[], str]] = {
        "text": lambda: as_text(
            frame, limit=limit, width=width, glyphs=glyphs, drawn=drawn, paint=paint
        ),
        "markdown": lambda: as_markdown(frame, limit=limit, drawn=drawn),
        "csv": lambda: as_csv(frame, limit=limit),
        "json": lambda: as_json(frame, limit=limit),
    }
    return renderers[format_name]()
