"""The registry of actions: what a person can do, by which key and by which command."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from chopper_core.analyses import ANALYSES
from chopper_core.errors import UsageError
from chopper_core.outliers import RULE

MOVE: Final = "Move"
WALK: Final = "Walk the tree"
ASK: Final = "Ask"
TIME: Final = "Along time"
SEEK: Final = "Find"
TABLE: Final = "Shape the table"
COMPARE: Final = "Compare"
TAKE: Final = "Take it with you"
CHOPPER: Final = "Chopper"
GROUPS: Final = (MOVE, WALK, ASK, TIME, SEEK, TABLE, COMPARE, TAKE, CHOPPER)


class Action(Struct, frozen=True):
    """One thing to do: the screens have a method `do_<id>` for it, called with the argument."""

    id: str
    keys: tuple[str, ...]
    """As people write them: `G`, `[`, `enter`, `ctrl+d`; the first one is the usual one."""
    verb: str
    """The command after `:`."""
    title: str
    help: str
    group: str
    takes: str = ""
    """What may follow the verb, for people; empty: nothing."""
    hint: str = ""
    """How the key line at the bottom names it; empty: it doesn't."""
    gives: tuple[str, ...] = ()
    """The argument that each key gives, where they differ."""
    view: str = ""
    """The view in which its keys hold, before those of all views; empty: all views."""


EXPLORE: Final = "explore"
INFO: Final = "info"
ALL: Final = "all"
"""What `:of` is given for no choice."""
SCREENS: Final = {
    "1": (EXPLORE,),
    **{
        digit: tuple(known.name for known in ANALYSES if known.screen == digit)
        for digit in sorted({known.screen for known in ANALYSES})
    },
    "0": (INFO,),
}
"""Digit → the views that it opens in turn."""
TIMELINE: Final = "timeline"

ACTIONS: Final = (
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
        "Back to the parent, with its cursor, sort, filter and scroll as they were.",
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
    Action(
        "zoom_in",
        ("+", "w"),
        "zoom-in",
        "Zoom in",
        "Timeline: half the time around the cursor.",
        TIME,
        hint="zoom",
        view=TIMELINE,
    ),
    Action(
        "zoom_out",
        ("-", "s"),
        "zoom-out",
        "Zoom out",
        "Timeline: twice the time around the cursor.",
        TIME,
        view=TIMELINE,
    ),
    Action(
        "pan_left",
        ("a", "H"),
        "pan-left",
        "Pan left",
        "Timeline: half a window earlier.",
        TIME,
        view=TIMELINE,
    ),
    Action(
        "pan_right",
        ("d", "L"),
        "pan-right",
        "Pan right",
        "Timeline: half a window later.",
        TIME,
        hint="pan",
        view=TIMELINE,
    ),
    Action(
        "time_left",
        ("left", "h"),
        "time-left",
        "Cursor left",
        "Timeline: the cursor goes a cell earlier.",
        TIME,
        view=TIMELINE,
    ),
    Action(
        "time_right",
        ("right", "l"),
        "time-right",
        "Cursor right",
        "Timeline: the cursor goes a cell later.",
        TIME,
        hint="cursor",
        view=TIMELINE,
    ),
    Action(
        "next_collective",
        ("c",),
        "next-collective",
        "Next collective",
        "Timeline: the cursor goes to the next start of a collective on the lane's GPU.",
        TIME,
        hint="collective",
        view=TIMELINE,
    ),
    Action(
        "previous_collective",
        ("C",),
        "previous-collective",
        "Previous collective",
        "Timeline: the cursor goes to the start of the collective before on the lane's GPU.",
        TIME,
        view=TIMELINE,
    ),
    Action(
        "previous_activity",
        (",",),
        "previous-activity",
        "Previous activity",
        "Timeline: the cursor goes to the start before on the lane.",
        TIME,
        view=TIMELINE,
    ),
    Action(
        "next_activity",
        (".",),
        "next-activity",
        "Next activity",
        "Timeline: the cursor goes to the next start on the lane.",
        TIME,
        hint="activity",
        view=TIMELINE,
    ),
    Action(
        "measure",
        ("v",),
        "measure",
        "Measure from here",
        "Timeline: marks the cursor's time, to measure from there to the cursor; again: no more.",
        TIME,
        hint="measure",
        view=TIMELINE,
    ),
    Action(
        "fit",
        ("F",),
        "fit",
        "Fit",
        "Timeline: zooms to what is measured, or else to the activity under the cursor.",
        TIME,
        view=TIMELINE,
    ),
    Action(
        "whole",
        ("Z",),
        "whole",
        "Whole scope",
        "Timeline: all of the scope's time again.",
        TIME,
        hint="whole",
        view=TIMELINE,
    ),
    Action(
        "at",
        (),
        "at",
        "Cursor at a time",
        "Timeline: the cursor goes to a time since the run's first activity: 12.5ms, 830us.",
        TIME,
        takes="TIME",
        view=TIMELINE,
    ),
    Action(
        "chart_in",
        ("+", "w"),
        "chart-in",
        "Zoom the chart in",
        "Chart of the tree: half the time, around the row under the cursor.",
        TIME,
    ),
    Action(
        "chart_out",
        ("_", "W"),
        "chart-out",
        "Zoom the chart out",
        "Chart of the tree: twice the time, also beyond the scope, whose part is marked.",
        TIME,
    ),
    Action(
        "chart_earlier",
        ("a", "H"),
        "chart-earlier",
        "Pan the chart left",
        "Chart of the tree: half of what it shows earlier.",
        TIME,
    ),
    Action(
        "chart_later",
        ("d", "L"),
        "chart-later",
        "Pan the chart right",
        "Chart of the tree: half of what it shows later.",
        TIME,
    ),
    Action(
        "chart_whole",
        ("Z",),
        "chart-whole",
        "Chart of the whole scope",
        "Chart of the tree: exactly the scope's time again.",
        TIME,
    ),
    Action(
        "find",
        ("f",),
        "find",
        "Find a name anywhere",
        "Lists where operations and kernels of the run match (terms as in a filter); Enter goes. "
        "In the timeline the cursor goes to the next one; n and N go on.",
        SEEK,
        takes="TEXT",
    ),
    Action(
        "next_hit",
        ("n",),
        "next-hit",
        "Next hit",
        "The next row that matches what was found or filtered last.",
        SEEK,
    ),
    Action(
        "previous_hit",
        ("N",),
        "previous-hit",
        "Previous hit",
        "The row before that matches what was found or filtered last.",
        SEEK,
    ),
    Action(
        "next_outlier",
        ("e",),
        "next-outlier",
        "Next outlier",
        f"The next row with {RULE}, by the sort column or time.",
        SEEK,
    ),
    Action(
        "previous_outlier",
        ("E",),
        "previous-outlier",
        "Previous outlier",
        f"The row before with {RULE}, by the sort column or time.",
        SEEK,
    ),
    Action(
        "go",
        ("ctrl+g",),
        "go",
        "Go to an address",
        "Opens an address, as snapshots print it; the key turns the breadcrumb into this view's "
        "address, to edit: Tab completes, Enter goes, Esc restores.",
        WALK,
        takes="ADDRESS",
    ),
    Action(
        "filter",
        ("/",),
        "filter",
        "Filter",
        "Shows the rows that match, while you type; Enter keeps it, Esc restores.",
        TABLE,
        takes="TEXT",
        hint="filter",
    ),
    Action(
        "hide",
        ("%",),
        "hide",
        "Hide small rows",
        "Hides rows below a share of their parent (1%), as a term of the filter; again: all rows.",
        TABLE,
        takes="SHARE",
    ),
    Action(
        "sort",
        ("o",),
        "sort",
        "Sort by …",
        "Orders the rows by a column (-COLUMN: largest first) or in the level's own order.",
        TABLE,
        takes="COLUMN",
        hint="sort",
    ),
    Action(
        "sort_left",
        (",",),
        "sort-left",
        "Sort by the column before",
        "Moves the sort one column to the left.",
        TABLE,
    ),
    Action(
        "sort_right",
        (".",),
        "sort-right",
        "Sort by the column after",
        "Moves the sort one column to the right.",
        TABLE,
    ),
    Action("reverse", ("r",), "reverse", "Reverse", "Turns the order of the rows round.", TABLE),
    Action(
        "columns",
        ("C",),
        "columns",
        "Columns",
        "Chooses the columns of tables of this level, kept for the next time; +A adds one, -A "
        "takes one away, `default` forgets the choice.",
        TABLE,
        takes="A,B|+A|-A|default",
    ),
    Action(
        "pivot",
        ("p",),
        "pivot",
        "Pivot",
        "Chooses the level that splits the scope next.",
        TABLE,
        takes="LEVEL",
        hint="pivot",
    ),
    Action(
        "stat",
        ("s",),
        "stat",
        "Statistic",
        "Figures as sum, mean, median, p95, max, min or spread over each row's instances: its "
        "GPUs, iterations and, of names, layers.",
        TABLE,
        takes="NAME [LEVEL,…]",
    ),
    Action(
        "names",
        ("x",),
        "names",
        "Full names",
        "Shows names whole, with namespaces and parameters, or short.",
        TABLE,
    ),
    Action(
        "detail",
        ("i",),
        "detail",
        "Detail of the row",
        "All figures of the row, its whole name and its address.",
        TABLE,
    ),
    Action(
        "baseline",
        ("b",),
        "baseline",
        "Baseline",
        "Takes the scope, or the path given, as what others are compared with; again: no more.",
        COMPARE,
        takes="[PATH]",
    ),
    Action(
        "mark",
        ("space",),
        "mark",
        "Mark the row",
        "Marks the row for a comparison, or no more; the status line counts the marks.",
        COMPARE,
        hint="mark",
    ),
    Action("unmark", ("u",), "unmark", "Unmark all", "Takes away all marks.", COMPARE),
    Action(
        "compare",
        ("=",),
        "compare",
        "Compare the marked rows",
        "The first of two marked rows becomes the baseline of the other, or of the cursor's row; "
        "of more the table shows only these.",
        COMPARE,
        hint="cmp",
    ),
    Action("zoom", ("z",), "zoom", "Table alone", "Gives the table the whole screen.", TABLE),
    Action(
        "metric",
        ("m",),
        "metric",
        "Signal",
        "Chooses the signal of the chart and the sparklines.",
        TABLE,
        takes="NAME",
    ),
    Action(
        "next_metric",
        ("M",),
        "next-metric",
        "Next signal",
        "Charts the next signal; after the last one comes the first.",
        TABLE,
    ),
    Action(
        "chart",
        ("c",),
        "chart",
        "Size of the chart",
        "The chart of the scope over time: small, full, off.",
        TABLE,
    ),
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

TYPED: Final = ("filter", "find", "go", "command")
"""What opens the prompt where nothing is given."""

PALETTE_KEY: Final = "ctrl+p"
"""Opens the palette: all actions, searched by name."""
FIXED_KEYS: Final = ("ctrl+c", "ctrl+z", PALETTE_KEY)
"""What these do doesn't depend on a person's keys."""
_NAMED: Final = {
    "enter": "⏎",
    "escape": "esc",
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
    "pageup": "PgUp",
    "pagedown": "PgDn",
    "home": "Home",
    "end": "End",
    "backspace": "Backspace",
}
_SPECIAL: Final = frozenset(_NAMED) | {
    *("space", "tab", "delete", "insert"),
    *(f"f{number}" for number in range(1, 13)),
}


def key_name(key: str) -> str:
    """A key as the screen names it."""
    return _NAMED.get(key, key)


def is_key(text: str) -> bool:
    """Whether a text names a key, as people write it: `G`, `[`, `enter`, `ctrl+d`, `f5`."""
    *modifiers, key = text.split("+") if len(text) > 1 else [text]
    if any(modifier not in ("ctrl", "alt", "shift") for modifier in modifiers):
        return False
    return key in _SPECIAL or (len(key) == 1 and key.isprintable() and key != " ")


def bound(action: Action) -> tuple[tuple[tuple[str, ...], str], ...]:
    """The keys of an action that do the same, each with the argument that they give."""
    if action.gives:
        return tuple(((key,), given) for key, given in zip(action.keys, action.gives, strict=False))
    return ((action.keys, ""),) if action.keys else ()


def key_table(actions: Iterable[Action] = ACTIONS) -> list[tuple[str, str, str]]:
    """(keys, command, help) of every action, for `chopper keys` and the README."""
    rows = [
        (
            " ".join(key_name(key) for key in action.keys),
            f":{action.verb} {action.takes}".rstrip(),
            action.help,
        )
        for action in actions
    ]
    return [*rows, (PALETTE_KEY, "", "Searches all of these by name.")]


def parse_command(text: str) -> tuple[Action, str]:
    """The action and the argument of a command; a verb may be cut where it stays unique."""
    verb, _, argument = text.strip().removeprefix(":").strip().partition(" ")
    found = [action for action in ACTIONS if action.verb == verb] or [
        action for action in ACTIONS if verb and action.verb.startswith(verb)
    ]
    if len(found) != 1:
        near = ", ".join(action.verb for action in found)
        raise UsageError(
            f"{verb!r} may be {near}" if found else f"no command {verb!r}; ? lists the commands"
        )
    if argument.strip() and not found[0].takes:
        raise UsageError(f":{found[0].verb} takes no argument")
    return found[0], argument.strip()
