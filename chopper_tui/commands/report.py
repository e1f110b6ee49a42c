"""`chopper report`: a run as one HTML page, for a ticket."""

from __future__ import annotations

from argparse import Namespace
from typing import Final

from chopper_core.render.report import Look, Style, report
from chopper_core.views.frame import Frame
from chopper_tui import __version__
from chopper_tui.commands.arguments import READING
from chopper_tui.commands.options import open_one_with, progress_line, view_of
from chopper_tui.commands.output import write_text
from chopper_tui.draw.pieces import Line

DESCRIPTION: Final = "Write a run as one HTML page: findings, evidence, tables, pictures, sources."
OPTIONS: Final = f"""
    RUN | a run, a part of one (RUN:gpu=3), or one with a baseline ('RUN?base=OTHER')
    -o, --output FILE | default: report.html{READING}"""
_CELLS: Final = 120


def run(options: Namespace) -> int:
    with progress_line() as progress:
        view = view_of(options.run, options)
        opened = open_one_with(view, options, progress)
        page = report(opened, view, LOOK, __version__, progress)
    options.output = options.output or "report.html"
    write_text(page, options)
    return 0


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
