"""`chopper doctor`: what a bug report needs."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Final

from chopper_tui.commands.output import write
from chopper_tui.doctor import report

DESCRIPTION: Final = "What a bug report needs: terminal, locale, versions."


def add_options(parser: ArgumentParser) -> None:
    """None."""


def run(options: Namespace) -> int:
    """Print it."""
    write(report())
    return 0
