"""`chopper export`: a run in a format of other programs."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path
from typing import Final

from chopper_core.render.exports import EXPORTS, ExportOptions, export, export_format, format_named
from chopper_tui.commands.arguments import READING
from chopper_tui.commands.options import open_one_with, progress_line, view_of
from chopper_tui.commands.output import tell

DESCRIPTION: Final = "Write a run for another program: a simulator, a trace viewer, a script."
OPTIONS: Final = f"""
    RUN | comma-separated trace files, a directory, or a store
    required --to FORMAT | see below
    required -o, --output PATH | a new file or folder
    --iteration N | only this step
    --gaps | write idle time as rows
    --host | write the host's operators and calls too
    --nodes N | at most so many nodes
    --force | leave out what can't be written instead of failing{READING}"""
EPILOG: Final = "\n".join(
    ["formats:", *(f"  {name:9} {export_format(name).DESCRIPTION}" for name in EXPORTS)]
)


def run(options: Namespace) -> int:
    options.to = format_named(options.to)
    asked = ExportOptions(
        **{name: getattr(options, name) for name in ExportOptions.__struct_fields__}
    )
    path = Path(os.path.expanduser(options.output))
    with progress_line() as progress:
        opened = open_one_with(view_of(options.run, options), options, progress)
        notes = export(opened, options.to, path, asked, progress)
    for note in notes:
        tell(note)
    tell(f"wrote {path}")
    return 0
