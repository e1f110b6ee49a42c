"""`chopper report`: a run as one HTML page, for a ticket."""

from __future__ import annotations

from argparse import Namespace
from typing import Final

from chopper_core.render.report import report
from chopper_tui import __version__
from chopper_tui.commands.arguments import READING
from chopper_tui.commands.options import open_one_with, progress_line, view_of
from chopper_tui.commands.output import write_text
from chopper_tui.draw.page import LOOK

DESCRIPTION: Final = "Write a run as one HTML page: findings, evidence, tables, pictures, sources."
OPTIONS: Final = f"""
    RUN | a run, a part of one (RUN:gpu=3), or one with a baseline ('RUN?base=OTHER')
    -o, --output FILE | default: report.html{READING}"""


def run(options: Namespace) -> int:
    with progress_line() as progress:
        view = view_of(options.run, options)
        opened = open_one_with(view, options, progress)
        page = report(opened, view, LOOK, __version__, progress)
    options.output = options.output or "report.html"
    write_text(page, options)
    return 0
