"""Taking along what is seen, and what concerns Chopper itself."""

from __future__ import annotations

from typing import Final

from chopper_tui.actions.action import CHOPPER, TAKE, Action

TAKING: Final = (
    Action(
        "copy_row",
        ("y",),
        "copy-row",
        "Copy the row",
        "Puts the row on the terminal's clipboard: name, figures, address.",
        TAKE,
    ),
    Action(
        "copy_view",
        ("Y",),
        "copy-view",
        "Copy the view",
        "Puts the whole table as text on the terminal's clipboard.",
        TAKE,
    ),
    Action(
        "snapshot",
        ("P",),
        "snapshot",
        "Snapshot",
        "Writes the whole filtered table to a file and says where; as text with the key figures "
        "and the chart.",
        TAKE,
        takes="[text|md|csv|json|svg] [PATH]",
        hint="snap",
    ),
    Action(
        "command",
        (":",),
        "command",
        "Command line",
        "Takes a command: a word shown here after the colon. Tab completes, ↑ ↓ recall.",
        CHOPPER,
        hint="cmd",
    ),
    Action("help", ("?",), "help", "Help", "Keys, commands, the filter and the columns.", CHOPPER),
    Action(
        "theme",
        (),
        "theme",
        "Colours",
        "Colours for a dark or a light terminal, of high contrast, or the terminal's own 16.",
        CHOPPER,
        takes="dark|light|contrast|ansi",
    ),
    Action("redraw", ("ctrl+l",), "redraw", "Redraw", "Draws the whole screen again.", CHOPPER),
    Action(
        "suspend",
        ("ctrl+z",),
        "suspend",
        "To the shell",
        "Stops Chopper and gives the terminal back; `fg` goes on.",
        CHOPPER,
    ),
    Action("quit", ("q", "ctrl+c"), "quit", "Quit", "Leaves Chopper.", CHOPPER, hint="quit"),
)
