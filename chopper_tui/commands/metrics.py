"""`chopper metrics`: every figure, with its unit, definition and source."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Final

from chopper_core.metrics import catalogue
from chopper_tui.commands.output import write

DESCRIPTION: Final = "Every figure: name, unit, how it adds up, definition, source."


def add_options(parser: ArgumentParser) -> None:
    """As what they are printed."""
    parser.add_argument(
        "--format", choices=("text", "markdown", "json"), default="text", help="default: text"
    )


def run(options: Namespace) -> int:
    """Print the registry of figures."""
    write(catalogue(options.format))
    return 0
