"""Keys as Textual names them."""

from __future__ import annotations

from collections.abc import Iterable

from textual.binding import Binding

from chopper_tui.actions import bound
from chopper_tui.actions.action import Action
from chopper_tui.textual_internals import key_of_character


def textual_keys(keys: Iterable[str]) -> str:
    """Keys of an action as the keys of a binding."""
    return ",".join(_textual_key(key) for key in keys)


def bindings_of(actions: Iterable[Action]) -> list[Binding]:
    """The bindings of actions: their keys perform them."""
    return [
        Binding(
            textual_keys(keys),
            f"perform('{action.id}', '{given}')" if given else f"perform('{action.id}')",
            action.title,
            show=False,
            id=action.id + given,
            tooltip=action.help,
        )
        # The keys of a view come before those of all views: the first that holds is performed.
        for action in sorted(actions, key=lambda each: not each.view)
        for keys, given in bound(action)
    ]


def _textual_key(key: str) -> str:
    *modifiers, last = key.split("+") if len(key) > 1 else [key]
    return "+".join([*modifiers, key_of_character(last) if len(last) == 1 else last])
