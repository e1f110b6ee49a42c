"""What an action of the explorer is, and the words that actions share."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from chopper_core.views import VIEWS

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
        digit: tuple(name for name, opens in VIEWS.items() if opens == digit)
        for digit in sorted(set(VIEWS.values()))
    },
    "0": (INFO,),
}
"""Digit → the views that it opens in turn."""
TIMELINE: Final = "timeline"
