"""`chopper keys`: the keys of the explorer, with those of the settings."""

from __future__ import annotations

from argparse import Namespace
from typing import Final

from chopper_core.util.escape import escape_each
from chopper_tui.commands.output import registry, settings, write
from chopper_tui.keymap import key_table

DESCRIPTION: Final = "The keys of the explorer."
OPTIONS: Final = """
    --format {text,markdown}=text | default: text"""


def run(options: Namespace) -> int:
    rows = key_table(settings().actions or registry())
    if options.format == "markdown":
        lines = ["| keys | `:` command | does |", "| :-- | :-- | :-- |"]
        lines += [f"| {_code(keys)} | {_code(verb)} | {text} |" for keys, verb, text in rows]
    else:
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        lines = [f"{keys:<{widths[0]}}  {verb:<{widths[1]}}  {text}" for keys, verb, text in rows]
    write(escape_each(lines))
    return 0


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|") if text else ""
