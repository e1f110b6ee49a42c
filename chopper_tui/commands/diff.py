"""`chopper diff`: what changed between two runs, as `show` prints it."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Final

from chopper_tui.commands import show
from chopper_tui.commands.named import against
from chopper_tui.commands.options import add_printing_options

DESCRIPTION: Final = "Compare B with A, its baseline: what changed, largest first."


def add_options(parser: ArgumentParser) -> None:
    """Two runs, a path in them, and the format."""
    parser.add_argument("a", metavar="A", help="the baseline")
    parser.add_argument("b", metavar="B", help="the run to compare with it")
    parser.add_argument(
        "path",
        metavar="PATH",
        nargs="?",
        default="",
        help="a part of both, such as gpu=0/iteration=11",
    )
    add_printing_options(parser)


def run(options: Namespace) -> int:
    """Print the comparison."""
    options.address = f"{against(options.b, options.a, options.path)}&view=compare"
    return show.run(options)
