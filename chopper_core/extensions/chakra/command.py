"""`chopper check`: Chakra traces against the rules of the tools that read them."""

from __future__ import annotations

from argparse import Namespace
from typing import Final

from chopper_tui.commands.output import tell, write

DESCRIPTION: Final = "Check Chakra traces against the rules of feeders and simulators."
OPTIONS: Final = """
    DIR+ | the .et files of one trace, or their directory"""
VIOLATED: Final = 1


def run(options: Namespace) -> int:
    from chopper_core.extensions.chakra.lint import lint
    from chopper_core.store.format import paths_of
    from chopper_core.util.escape import escape_each

    report = lint([path for each in options.dir for path in paths_of(each)])
    write(escape_each(report.violations))
    for note in escape_each(report.notes):
        tell(f"note: {note}")
    files = f"{report.files} file{'s' if report.files > 1 else ''}"
    many = f"{report.count:,} violation{'s' if report.count != 1 else ''}"
    tell(f"{files}, {report.nodes:,} nodes: {many if report.violations else 'no violations'}")
    return VIOLATED if report.violations else 0
