"""The registry of actions: what a person can do, by which key and by which command."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from chopper_core.util.errors import UsageError
from chopper_tui.actions.action import Action
from chopper_tui.actions.along_time import ALONG_TIME
from chopper_tui.actions.key_names import PALETTE_KEY, key_name
from chopper_tui.actions.shaping import SHAPING
from chopper_tui.actions.taking import TAKING
from chopper_tui.actions.walking import WALKING

ACTIONS: Final = (*WALKING, *ALONG_TIME, *SHAPING, *TAKING)

TYPED: Final = ("filter", "find", "go", "command")
"""What opens the prompt where nothing is given."""


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
