"""`chopper metrics`: all columns, with unit, definition and source."""

from __future__ import annotations

from argparse import Namespace
from typing import Final

from chopper_core.columns import catalogue
from chopper_core.util.escape import escape_lines
from chopper_core.views import view_specs
from chopper_tui.commands.output import write

DESCRIPTION: Final = "All columns: name, unit, reduction, definition, source."
OPTIONS: Final = """
    --format {text,markdown,json}=text | default: text"""


def run(options: Namespace) -> int:
    view_specs()  # The columns of rows of each view are registered with its module.
    write(escape_lines(catalogue(options.format)))
    return 0
