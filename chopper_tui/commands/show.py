"""`chopper show`: a view as text, markdown, CSV or JSON."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import TYPE_CHECKING, Final

from chopper_core.answers.opening import home_of
from chopper_core.answers.runner import shown
from chopper_core.util.errors import UsageError
from chopper_core.util.memory import keep_freed
from chopper_tui.commands import info
from chopper_tui.commands.arguments import ADDRESSES, READING, TABLE
from chopper_tui.commands.options import open_with_progress, view_of
from chopper_tui.commands.output import print_frame

if TYPE_CHECKING:
    from chopper_core.model.run import Run
    from chopper_core.model.view import View
    from chopper_core.views.frame import Frame

INFO: Final = "info"
"""The screen of the explorer that is no table."""
DESCRIPTION: Final = "Print a view as text, markdown, CSV or JSON."
OPTIONS: Final = f"""
    ADDRESS | a run, or a view of one; see below{TABLE}{READING}"""
EPILOG: Final = ADDRESSES


def run(options: Namespace) -> int:
    view = view_of(options.address, options)
    if view.name == INFO:
        options.run, options.format = view.run, "json" if options.format == "json" else "text"
        return info.run(options)
    view = shown(view, options.columns)
    is_read = sys.stdout.isatty() and not (options.output or options.format or options.chart)
    opened = open_with_progress(view, options)
    keep_freed(of_large=True)
    frame = _frame(opened, home_of(view) if is_read else view, view)
    print_frame(frame, options, opened if options.chart else None)
    return 0


def _frame(run: Run, view: View, plain: View) -> Frame:
    """The frame of a view; where the run has no overview, that of the tree."""
    from chopper_core.views.query import frame_of, query

    if view == plain:
        return frame_of(run, view)
    try:
        return query(run, view)
    except UsageError:
        return frame_of(run, plain)
