"""`chopper info`: the sources of a run, their alignment, its labels, and files left out."""

from __future__ import annotations

from argparse import Namespace
from typing import Final

from chopper_core.model.overrides import overrides_of
from chopper_core.model.view import View
from chopper_tui.commands.arguments import READING
from chopper_tui.commands.options import open_one_with, progress_line
from chopper_tui.commands.output import write

DESCRIPTION: Final = "Describe a run: sources, alignment, labels, and files left out."
OPTIONS: Final = f"""
    RUN | comma-separated trace files, a directory, or a store
    --verify | verify the checksums of all files of a store first
    --format {{text,json}}=text | default: text{READING}"""


def run(options: Namespace) -> int:
    from chopper_core.ingest.cache import verify_run
    from chopper_core.render import info

    overrides = overrides_of(
        options.clock, options.gpu, hardware=options.hardware, parallel=options.parallel
    )
    if getattr(options, "verify", False):  # `show` has it not
        with progress_line() as progress:
            verify_run(options.run, overrides, progress, again=True)
    with progress_line() as progress:
        opened = open_one_with(View(options.run, overrides=overrides), options, progress)
    write((info.info_json if options.format == "json" else info.info_text)(opened))
    return 0
