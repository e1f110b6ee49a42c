"""Moving the cursor, walking the tree, asking other questions."""

from __future__ import annotations

from typing import Final

from chopper_tui.actions.action import ASK, MOVE, SCREENS, WALK, Action

WALKING: Final = (
    Action("down", ("down", "j"), "next-row", "Next row", "The cursor goes one row down.", MOVE),
    Action("up", ("up", "k"), "previous-row", "Previous row", "The cursor goes one row up.", MOVE),
    Action(
        "page_down",
        ("pagedown", "ctrl+f"),
        "page-down",
        "Page down",
        "The cursor goes down by the height of the table.",
        MOVE,
    ),
    Action(
        "page_up",
        ("pageup", "ctrl+b"),
        "page-up",
        "Page up",
        "The cursor goes up by the height of the table.",
        MOVE,
    ),
    Action(
        "half_down",
        ("ctrl+d",),
        "half-down",
        "Half a page down",
        "The cursor goes down by half the height of the table.",
        MOVE,
    ),
    Action(
        "half_up",
        ("ctrl+u",),
        "half-up",
        "Half a page up",
        "The cursor goes up by half the height of the table.",
        MOVE,
    ),
    Action("first", ("g", "home"), "first", "First row", "The cursor goes to the top.", MOVE),
    Action("last", ("G", "end"), "last", "Last row", "The cursor goes to the end.", MOVE),
    Action(
        "drill",
        ("enter", "right", "l"),
        "in",
        "Into the row",
        "Opens the row under the cursor: its children become the table.",
        WALK,
        hint="in",
    ),
    Action(
        "leave",
        ("escape", "left", "h", "backspace"),
        "up",
        "Up to the parent",
        "Back to the parent, with its cursor, sort, filter and scroll as they were; what takes "
        "long is given up.",
        WALK,
        hint="up",
    ),
    Action(
        "previous_sibling",
        ("[",),
        "previous-sibling",
        "Previous sibling",
        "The scope's neighbour above it in the parent's table.",
        WALK,
    ),
    Action(
        "next_sibling",
        ("]",),
        "next-sibling",
        "Next sibling",
        "The scope's neighbour below it in the parent's table.",
        WALK,
        hint="sibling",
    ),
    Action(
        "previous_gpu",
        ("{",),
        "previous-gpu",
        "Same on the previous GPU",
        "The same scope on the GPU before; its nearest ancestor if that GPU lacks it.",
        WALK,
    ),
    Action(
        "next_gpu",
        ("}",),
        "next-gpu",
        "Same on the next GPU",
        "The same scope on the GPU after; its nearest ancestor if that GPU lacks it.",
        WALK,
        hint="GPU",
    ),
    Action("back", ("-",), "back", "Last view", "The scope before this one, and back.", WALK),
    Action(
        "view",
        tuple(SCREENS),
        "view",
        "View",
        "Asks another question of the scope: a screen by its digit (again: its next view), or a "
        "view by name.",
        ASK,
        takes="NAME",
        hint="views",
        gives=tuple(SCREENS),
    ),
    Action(
        "by",
        (),
        "by",
        "Split the view by",
        "Chooses what the rows of a view are: for kernels their name, class or operation; as p.",
        ASK,
        takes="WORD",
    ),
    Action(
        "of",
        (),
        "of",
        "Figure of the view",
        "Chooses what a view is of, where it takes something: a figure, as m; a collective; "
        "the tokens; `all` takes the choice back.",
        ASK,
        takes="METRIC|…|all",
    ),
)
