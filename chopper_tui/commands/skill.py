"""`chopper skill`: the guide for agents."""

from __future__ import annotations

from argparse import Namespace
from typing import Final

from chopper_core.util.escape import escape_lines
from chopper_tui.commands.output import write

DESCRIPTION: Final = "Print the guide for agents: order of work, how to cite, ten worked questions."
OPTIONS: Final = ""


def run(options: Namespace) -> int:
    from chopper_core.answers.guide import guide

    write(escape_lines(guide()))
    return 0
