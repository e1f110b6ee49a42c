"""`chopper baseline`: names for runs that others are compared with."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Final

from chopper_core.render.cells import clean, escape_lines
from chopper_core.store.format import SIGN, baselines, remove_baseline, set_baseline
from chopper_core.util.errors import UsageError
from chopper_tui.commands.output import tell, write

DESCRIPTION: Final = "Name runs to compare with: `@NAME` stands for the run, as in base=@NAME."


def add_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("do", nargs="?", choices=("list", "set", "remove"), default="list")
    add("name", metavar="NAME", nargs="?", default="")
    add("runs", metavar="RUN", nargs="*", help="a run, or several with the same settings")


def run(options: Namespace) -> int:
    if options.do == "set":
        if not options.runs:
            raise UsageError("a baseline needs a name and a run: chopper baseline set NAME RUN")
        tell(f"{SIGN}{options.name} is {', '.join(set_baseline(options.name, *options.runs))}")
    elif options.do == "remove":
        remove_baseline(options.name)
    else:
        for name, paths in baselines().items():
            write(escape_lines(f"{SIGN}{clean(name)}\t{clean(','.join(paths))}\n"))
    return 0
