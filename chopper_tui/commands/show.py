"""`chopper show`: a view as text, markdown, CSV or JSON."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from chopper_core.util.errors import DataError, UsageError
from chopper_tui.commands import info
from chopper_tui.commands.named import home_of, open_with_progress, view_of
from chopper_tui.commands.options import ADDRESSES, add_printing_options
from chopper_tui.commands.output import glyphs, width, write

if TYPE_CHECKING:
    from chopper_core.model.run import Run
    from chopper_core.model.view import View
    from chopper_core.query.frame import Frame

INFO: Final = "info"
"""The screen of the explorer that is no table."""
DESCRIPTION: Final = "Print a view as text, markdown, CSV or JSON."
_FORMAT_SUFFIXES: Final = {".md": "markdown", ".csv": "csv", ".json": "json"}


def add_options(parser: ArgumentParser) -> None:
    """The address, and how it is printed."""
    parser.add_argument("address", metavar="ADDRESS", help="a run, or a view of one; see below")
    parser.epilog = ADDRESSES
    add_printing_options(parser)


def run(options: Namespace) -> int:
    """Print the view of `options.address`, or write it to a file."""
    from chopper_core.render.ansi import paint_for, plain
    from chopper_tui.export import printed

    view = view_of(options.address, options)
    if view.name == INFO:
        options.run, options.format = view.run, "json" if options.format == "json" else "text"
        return info.run(options)
    if options.columns:
        view = replace(view, columns=tuple(name for name in options.columns.split(",") if name))
    is_read = sys.stdout.isatty() and not (options.output or options.format or options.chart)
    suffix = Path(options.output).suffix if options.output else ""
    opened = open_with_progress(view, options)
    default_width = 0 if options.output else width()
    text = printed(
        _frame(opened, home_of(view) if is_read else view, view),
        options.format or _FORMAT_SUFFIXES.get(suffix, "text"),
        limit=options.limit,
        width=default_width if options.width is None else options.width,
        glyphs=glyphs(is_ascii=options.ascii),
        charted=opened if options.chart else None,
        paint=plain if options.output else paint_for(sys.stdout.isatty(), os.environ),
    )
    if not options.output:
        write(text)
        return 0
    try:
        Path(options.output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataError(f"{options.output} can't be written: {error.strerror}") from error
    print(options.output, file=sys.stderr)
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
