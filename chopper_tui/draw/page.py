"""How the HTML report draws: the screen's pictures, in the colours of its light and dark themes."""

from __future__ import annotations

from typing import Final

from chopper_core.render.report import Look, Style
from chopper_core.views.frame import Frame
from chopper_tui.draw.pieces import Line

_CELLS: Final = 120


def _draw(frame: Frame) -> list[Line]:
    from chopper_core.model.charts import Cards
    from chopper_core.render.glyphs import UNICODE
    from chopper_tui.draw.charts import chart_lines

    charts = [chart for chart in frame.charts if not isinstance(chart, Cards)]
    return chart_lines(charts, _CELLS, UNICODE.coloured(True))


def _style(theme: str) -> Style:
    from chopper_tui.draw.theme import inks

    own = inks(theme, "truecolor", no_color=False)

    def of(ink: str) -> tuple[str, str]:
        style = own.of(ink)
        front, back = (
            "" if c is None else c.get_truecolor().hex for c in (style.color, style.bgcolor)
        )
        return front, back

    return of


LOOK: Final = Look(_draw, *(_style(theme) for theme in ("light", "dark")))
