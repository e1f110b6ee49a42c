"""Actions and their keys: the decorator that declares one, and how keys and commands find it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.util.errors import UsageError
from chopper_core.util.naming import bare, names_meant, near_names
from chopper_core.util.patterns import listed_entries
from chopper_core.views import PLACES, TABS, TREE, VIEWS

MOVE: Final = "Move"
WALK: Final = "Walk the tree"
ASK: Final = "Ask"
TIME: Final = "Along time"
FIND: Final = "Find"
TABLE: Final = "Shape the table"
COMPARE: Final = "Compare"
EXPORT: Final = "Take it with you"
CHOPPER: Final = "Chopper"
GROUPS: Final = (MOVE, WALK, ASK, TIME, FIND, TABLE, COMPARE, EXPORT, CHOPPER)

PALETTE_KEY: Final = "ctrl+p"
FIXED_KEYS: Final = ("ctrl+c", "ctrl+z", PALETTE_KEY)

EXPLORE: Final = TREE
INFO: Final = "info"
LIVE: Final = "live"
"""The view whose figures change while the run stays the same."""
ALL: Final = "all"
"""The argument of `:of` that takes the choice back."""
SCREENS: Final = {
    place: tuple(name for name, tab in TABS.items() if tab.place == place) for place in PLACES
}
"""Key of each place → the views that it opens in turn."""
MOVED: Final = {"7": "power", "8": "compare", "9": "findings"}
"""Keys that opened a view before there were places, and the view that they still open."""

Handler = Callable[..., Awaitable[None] | None]
"""Performs an action on the explorer's screen, with the argument of the command or "", and the
number of presses that it is for where these add up."""


H = TypeVar("H", bound=Handler)
V = TypeVar("V", bound=Callable[..., Awaitable[None] | None])


class Action(Struct, frozen=True):
    """One thing to do, by key, by command or from the palette."""

    id: str
    group: str
    keys: tuple[str, ...]
    """As people write them: `G`, `[`, `enter`, `ctrl+d`; the first one is shown in the key line."""
    verb: str
    title: str
    help: str
    handler: Handler
    takes: str = ""
    """The argument of the command, for people; empty: none."""
    hint: str = ""
    """Its name in the key line at the bottom; empty: it isn't there."""
    gives: tuple[str, ...] = ()
    """The argument that each key gives, where they differ."""
    view: str = ""
    """The view in which its keys hold, before those of all views; empty: all views."""
    while_busy: bool = False
    """Whether it is performed at once while a step takes long."""
    adds_up: bool = False
    """Whether it performs several presses in a row as one: a held key doesn't fall behind."""
    can: Callable[[Any], bool] | None = None
    """Whether it does something at the cursor, for the key line; None: it always does."""
    cancels: bool = False
    """Whether it cancels a step that takes long, instead of waiting for it."""

    @property
    def command(self) -> str:
        return f":{self.verb} {self.takes}".rstrip()

    @property
    def key_names(self) -> str:
        return " ".join(map(key_name, self.keys))

    @property
    def bound(self) -> tuple[tuple[tuple[str, ...], str], ...]:
        """The keys that do the same, each group with the argument that it gives."""
        if self.gives:
            return tuple(((key,), given) for key, given in zip(self.keys, self.gives, strict=True))
        return ((self.keys, ""),) if self.keys else ()

    def perform(self, screen: Any, argument: str, presses: int = 1) -> Awaitable[None] | None:
        """Do it; as often as its key was pressed, if it adds up."""
        given = (presses,) if self.adds_up else ()
        return self.handler(screen, argument, *given)

    def with_keys(self, keys: Sequence[str] | None, owners: Mapping[str, str]) -> Action:
        """The action with a person's keys; None: its own, less those given to other actions."""
        if keys is not None:
            fixed = [key for key in self.keys if key in FIXED_KEYS]
            return replace(self, keys=tuple(dict.fromkeys((*keys, *fixed))), gives=())
        rest = [place for place, key in enumerate(self.keys) if key not in owners]
        return replace(
            self,
            keys=tuple(self.keys[place] for place in rest),
            gives=tuple(self.gives[place] for place in rest) if self.gives else (),
        )


_DECLARED: list[Action] = []


def action(group: str, *keys: str, title: str, verb: str = "", **options: Any) -> Callable[[H], H]:
    """Declare a function as an action: its docstring is the help, its name the verb unless given.

    Further options are the fields of `Action`.
    """

    def declare(handler: H) -> H:
        name = handler.__name__.rstrip("_")  # Names such as quit are taken.
        text = " ".join((handler.__doc__ or "").split())
        own = verb or name.replace("_", "-")
        _DECLARED.append(Action(name, group, keys, own, title, text, handler, **options))
        return handler

    return declare


def actions(group: str, **options: Any) -> Callable[[str], Callable[[V], V]]:
    """Declare actions that differ in a value, which the function gets with the screen.

    Each is a line `name: value | keys | title | hint`, a hint being optional, with the help set in
    below it; values are JSON. Further options are the fields of `Action`.
    """

    def declare(rows: str, handler: V) -> V:
        for head, text in listed_entries(rows):
            name, _, rest = head.partition(": ")
            value, keys, title, *hint = rest.split(" | ")
            own = action(group, *keys.split(), title=title, hint="".join(hint), **options)
            given = _given(handler, json.loads(value), options.get("adds_up", False))
            given.__name__, given.__doc__ = name, text
            own(given)
        return handler

    return lambda rows: partial(declare, rows)


def _given(handler: Handler, value: Any, adds_up: bool) -> Handler:
    if adds_up:
        return lambda screen, _, presses: handler(screen, value, presses)
    return lambda screen, _: handler(screen, value)


def declared_actions() -> tuple[Action, ...]:
    return tuple(sorted(_DECLARED, key=lambda each: GROUPS.index(each.group)))


_QUITS: Final = ("q!", "qa", "qa!", "wq", "x", "exit")
"""How people leave vim, k9s and a shell; nothing here has to be saved."""


def find_command(actions: Iterable[Action], text: str) -> tuple[Action, str]:
    """The action and the argument of a command; a verb may be cut where it stays unique. Raises
    UsageError for what is none."""
    whole = text.strip().removeprefix(":").strip()
    verb, _, argument = whole.partition(" ")
    known = tuple(actions)
    verbs = [each.verb for each in known]
    if verb in _QUITS and verb not in verbs:
        verb = whole = "quit"
    titled = {name: name for name in VIEWS} | {tab.title: name for name, tab in TABS.items()}
    exact = [name for word, name in titled.items() if bare(word) == bare(whole)]
    names = names_meant(verb, verbs)
    if verb not in verbs and exact:
        return next(each for each in known if each.verb == "view"), exact[0]
    if not names and len(begun := names_meant(whole, (), titled)) == 1:
        return next(each for each in known if each.verb == "view"), begun[0]
    if not names:
        near = [f":{each}" for each in near_names(verb, (*verbs, *titled))]
        hint = f"did you mean {' or '.join(near)}?" if near else "? lists the commands"
        raise UsageError(f"unknown command {verb!r}; {hint}")
    if len(names) > 1:
        raise UsageError(f"{verb!r} may be {', '.join(names)}")
    found = [each for each in known if each.verb == names[0]]
    if argument.strip() and not found[0].takes:
        raise UsageError(f":{found[0].verb} takes no argument")
    return found[0], argument.strip()


def key_table(actions: Iterable[Action]) -> list[tuple[str, str, str]]:
    """(keys, command, help) of every action, for `chopper keys` and the docs."""
    return [(each.key_names, each.command, each.help) for each in actions]


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
    return _NAMED.get(key, key)


def plain_key(name: str) -> str:
    """The name of a key without signs: `enter` for ⏎, `left` for ←."""
    signs = {sign: key for key, sign in _NAMED.items() if not sign.isascii()}
    return signs.get(name, name.replace("⇧", "shift+"))


def is_key(text: str) -> bool:
    """Whether a text names a key, as people write it: `G`, `[`, `enter`, `ctrl+d`, `f5`."""
    *modifiers, key = text.split("+") if len(text) > 1 else [text]
    if any(modifier not in ("ctrl", "alt", "shift") for modifier in modifiers):
        return False
    return key in _SPECIAL or (len(key) == 1 and key.isprintable() and key != " ")
