"""The help, generated from the registries."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from rich.text import Text

from chopper_core.query.frame import Frame
from chopper_core.render.cells import level_title
from chopper_core.views import VIEWS, view_spec, view_specs
from chopper_core.views.spec import FIGURE, SUMS
from chopper_tui.keymap import EXPLORE, GROUPS, INFO, PALETTE_KEY, Action

_FILTER = (
    ("gemm", "names that match a regular expression, ignoring case"),
    ("!copy", "names that don't"),
    ("time>1ms", "a comparison with a column, by its title or name: > >= < <= = !="),
    ("gpu:0-3,7", "labels of the rows' level, numbers in ranges"),
    ("class:gemm,copy", "values of a text column"),
)
_HEAD_CELLS = 19
"""Cells for keys, or for the title of a column."""


def help_text(actions: Sequence[Action], frame: Frame, width: int) -> Text:
    """Help on this screen, keys and commands, screens, the filter and columns."""
    text = Text()
    room = max(min(width * 96 // 100, 110) - 6, 20)

    def section(title: str) -> None:
        text.append(("\n" if text else "") + title + "\n", "bold")

    def entry(head: str, body: str, command: str = "") -> None:
        lines = wrap(body, max(room - _HEAD_CELLS - 2, 16))
        margin = "\n" + " " * (_HEAD_CELLS + 2)
        text.append(f"  {head:<{_HEAD_CELLS}}" + (margin if len(head) >= _HEAD_CELLS else ""))
        text.append(margin.join(lines), "dim")
        if command:
            room_left = room - _HEAD_CELLS - 2 - len(lines[-1])
            text.append("  " if len(command) + 2 <= room_left else margin)
            text.append(command)
        text.append("\n")

    for title, lines in _here(frame):
        section(title)
        for head, body in lines:
            entry(head, body)
    for group in GROUPS:
        section(group)
        for action in actions:
            if action.group == group:
                entry(action.key_names, action.help, action.command)
    entry(PALETTE_KEY, "Search all of these by name.")
    section("Screens: views of the scope, by digit or by :view NAME")
    for keys, name, asks, splits in screen_table():
        entry(f"{keys}  {name}", f"{asks} Split by {splits}." if splits else asks)
    section("Filter: terms with spaces between; a row must match all of them")
    for term, meaning in _FILTER:
        entry(term, meaning)
    section("Columns of this table")
    for metric in frame.columns:
        unit = f" ({metric.unit})" if metric.unit and not metric.title.endswith(metric.unit) else ""
        entry(f"{metric.title}{unit}", f"{metric.definition} [{metric.name}]")
    return text


def screen_table() -> list[tuple[str, str, str, str]]:
    """(digit, name, question, splits) of every screen, for the help and the README."""
    rows = [("1", EXPLORE, "Where does the scope's time go, level by level?", "")]
    rows += [
        (VIEWS[each.name], each.name, each.question, ", ".join(each.by)) for each in view_specs()
    ]
    rows.sort(key=lambda row: row[0])
    return [*rows, ("0", INFO, "Which sources were read, aligned, labelled or left out?", "")]


def _here(frame: Frame) -> list[tuple[str, list[tuple[str, str]]]]:
    """The current screen and the keys that change it."""
    view = frame.view
    if not view.name:
        if view.is_leaf:
            return [("Here: a single activity", [("i", "shows all its figures; esc goes up.")])]
        rows = f"a row per {level_title(frame.level)}; enter opens it, p splits by another level."
        return [(f"Here: {level_title(frame.level)}s of the scope", [("rows", rows)])]
    known = view_spec(view.name)
    lines = [("question", known.question)]
    if known.by:
        lines.append(("p  :by", f"splits by {', '.join(known.by)}; now by {view.by or 'default'}."))
    if known.of:
        figure = {FIGURE: "any figure", SUMS: "any time, count or amount"}.get(known.of, known.of)
        lines.append(("m  :of", f"chooses its figure: {figure}; now {view.of or 'the default'}."))
    if len(frame.charts) > 1:
        lines.append(("M", f"shows the next of its {len(frame.charts)} charts."))
    lines.append(("enter, esc", "go to the evidence of a row and back; 1 to the tree."))
    return [(f"Here: {known.title}", lines)]
