"""`chopper export`: a run in a format of other programs."""

from __future__ import annotations

import argparse
import os
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Final

from chopper_tui.commands.named import open_view, progress_line, view_of
from chopper_tui.commands.options import add_reading_options
from chopper_tui.commands.output import tell

DESCRIPTION: Final = "Write a run for another program: a simulator, a trace viewer, a script."


def add_options(parser: ArgumentParser) -> None:
    from chopper_core.render.exports import EXPORTS, export_format

    add = parser.add_argument
    add("run", metavar="RUN", help="comma-separated trace files, a directory, or a store")
    add("--to", required=True, metavar="FORMAT", help="see below")
    add("-o", "--output", required=True, metavar="PATH", help="a new file or folder")
    add("--iteration", type=int, metavar="N", help="only this iteration")
    add("--gaps", action="store_true", help="write idle time as rows")
    add("--force", action="store_true", help="leave out what can't be written instead of failing")
    add_reading_options(parser)
    lines = (f"  {name:9} {export_format(name).DESCRIPTION}" for name in EXPORTS)
    parser.epilog = "\n".join(["formats:", *lines])
    parser.formatter_class = argparse.RawDescriptionHelpFormatter


def run(options: Namespace) -> int:
    from chopper_core.render.exports import ExportOptions, export, export_format

    export_format(options.to)
    asked = ExportOptions(options.iteration, options.gaps, options.force)
    path = Path(os.path.expanduser(options.output))
    with progress_line() as progress:
        opened = open_view(view_of(options.run, options), options, progress)
        notes = export(opened, options.to, path, asked, progress)
    for note in notes:
        tell(note)
    tell(f"wrote {path}")
    return 0
