"""Output of commands: data on standard output, everything else on standard error."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from chopper_tui.commands import PROGRAM

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_core.render.glyphs import Glyphs
    from chopper_tui.config import Config
    from chopper_tui.keymap import Action


def write(text: str) -> None:
    """Write data."""
    sys.stdout.write(text)
    sys.stdout.flush()


def tell(text: str) -> None:
    """Print a message."""
    print(f"{PROGRAM}: {text}", file=sys.stderr)


def width() -> int:
    """The terminal's width; 120 cells where the output is not a terminal."""
    if sys.stdout.isatty():
        return os.get_terminal_size(sys.stdout.fileno()).columns
    columns = os.environ.get("COLUMNS", "")
    return (int(columns) if columns.isdecimal() else 0) or 120


def glyphs(*, is_ascii: bool = False) -> Glyphs:
    """The characters that standard output can show, or ASCII alone."""
    from chopper_core.render.glyphs import ASCII
    from chopper_tui.terminal import glyphs_of

    return ASCII if is_ascii else glyphs_of(sys.stdout)


def registry() -> Sequence[Action]:
    """All actions, imported when they are needed."""
    from chopper_tui.actions import ACTIONS

    return ACTIONS


def settings() -> Config:
    """The person's settings; warnings go to standard error."""
    from chopper_tui.config import read_config

    config = read_config(registry)
    for warning in config.warnings:
        tell(warning)
    return config
