"""The help: made from the registries, so that it can't be wrong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import wrap

from rich.text import Text

from chopper_core.metrics import Metric
from chopper_tui.actions import GROUPS, PALETTE_KEY, Action, key_name
from chopper_tui.screens.reader import Reader

_FILTER = (
    ("gemm", "names that match a regular expression, upper and lower case alike"),
    ("!copy", "names that don't"),
    ("time>1ms", "a comparison with a column, by its title or name: > >= < <= = !="),
    ("gpu:0-3,7", "labels of the rows' level, numbers in ranges"),
)
_HEAD = 19
"""Cells for keys, or for the title of a column."""


def help_screen(actions: Sequence[Action], columns: Iterable[Metric], width: int) -> Reader:
    """The keys and commands, the filter language and what the columns mean."""
    text = Text()
    room = max(width - 10, 20)

    def section(title: str) -> None:
        text.append(("\n" if text else "") + title + "\n", "bold")

    def entry(head: str, body: str, command: str = "") -> None:
        lines = wrap(body, max(room - _HEAD - 2, 16))
        margin = "\n" + " " * (_HEAD + 2)
        text.append(f"  {head:<{_HEAD}}" + (margin if len(head) >= _HEAD else ""))
        text.append(margin.join(lines), "dim")
        if command:
            room_left = room - _HEAD - 2 - len(lines[-1])
            text.append("  " if len(command) + 2 <= room_left else margin)
            text.append(command)
        text.append("\n")

    for group in GROUPS:
        section(group)
        for action in actions:
            if action.group == group:
                keys = " ".join(key_name(key) for key in action.keys)
                entry(keys, action.help, f":{action.verb} {action.takes}".rstrip())
    entry(PALETTE_KEY, "All of these, searched by name.")
    section("Filter: terms with spaces between; a row must match all of them")
    for term, meaning in _FILTER:
        entry(term, meaning)
    section("Columns of this table")
    for metric in columns:
        unit = f" ({metric.unit})" if metric.unit and not metric.title.endswith(metric.unit) else ""
        entry(f"{metric.title}{unit}", f"{metric.definition} [{metric.name}]")
    return Reader("Help", text)
