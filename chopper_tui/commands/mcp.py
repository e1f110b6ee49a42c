"""`chopper mcp`: a server for agents, by the Model Context Protocol."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import Final

from chopper_tui import __version__
from chopper_tui.commands.arguments import LIMITS
from chopper_tui.commands.options import read_options
from chopper_tui.commands.output import tell
from chopper_tui.terminal import guard_mapped_files

DESCRIPTION: Final = "Answer agents on standard input and output (MCP): read-only, no network."
OPTIONS: Final = f"""
    RUN* | runs, and directories of runs, that may be opened; default: the working
        directory{LIMITS}"""
EPILOG: Final = """\
A client starts it, for instance by this entry of its configuration:
  {"mcpServers": {"chopper": {"command": "chopper", "args": ["mcp", "RUN"]}}}
`chopper skill` prints the guide that an agent should read first.
"""


def run(options: Namespace) -> int:
    from chopper_core.answers.server import serve, stop_where_unwanted
    from chopper_core.answers.tools import Toolbox

    if sys.stdin.isatty():
        tell("waiting for a client, which starts this command itself; Ctrl-D ends it")
    guard_mapped_files()
    serve(Toolbox(options.run, read_options(options), stop_where_unwanted), __version__)
    return 0
