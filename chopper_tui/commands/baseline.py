"""`chopper baseline`: names for runs that others are compared with."""

from __future__ import annotations

from argparse import Namespace
from typing import Final

from chopper_core.store.format import SIGN, baselines, remove_baseline, set_baseline
from chopper_core.util.errors import UsageError
from chopper_core.util.escape import clean, escape_lines
from chopper_tui.commands.output import tell, write

DESCRIPTION: Final = "Name runs to compare with: `@NAME` stands for the run, as in base=@NAME."
OPTIONS: Final = """
    {list,set,remove}?=list
    NAME?
    RUN* | a run, or several with the same settings"""


def run(options: Namespace) -> int:
    if options.do == "set":
        if not options.run:
            raise UsageError("a baseline needs a name and a run: chopper baseline set NAME RUN")
        tell(f"{SIGN}{options.name} is {', '.join(set_baseline(options.name, *options.run))}")
    elif options.do == "remove":
        remove_baseline(options.name)
    else:
        for name, paths in baselines().items():
            write(escape_lines(f"{SIGN}{clean(name)}\t{clean(','.join(paths))}\n"))
    return 0
