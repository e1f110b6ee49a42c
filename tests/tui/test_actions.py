"""The registry: nothing in it is without a handler, a way to call it, or a help."""

from __future__ import annotations

from inspect import signature

import pytest
from textual.binding import Binding

from chopper_core.util.errors import UsageError
from chopper_tui.actions import ACTIONS, key_table, parse_command
from chopper_tui.actions.action import GROUPS, Action
from chopper_tui.screens.explore import ExploreScreen
from tests.tui.explorer import explorer


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.id)
def test_an_action_is_complete(action: Action) -> None:
    handler = getattr(ExploreScreen, f"do_{action.id}", None)
    assert handler is not None and len(signature(handler).parameters) == 2
    assert action.verb and action.title and action.help.endswith(".")
    assert action.group in GROUPS
    assert not action.hint or action.keys


def test_every_handler_is_an_action() -> None:
    handlers = {name.removeprefix("do_") for name in dir(ExploreScreen) if name.startswith("do_")}
    assert handlers == {action.id for action in ACTIONS}


def test_names_and_keys_are_unique() -> None:
    for view in {action.view for action in ACTIONS}:
        keys = [key for action in ACTIONS if action.view == view for key in action.keys]
        assert len(set(keys)) == len(keys)
    assert len({action.id for action in ACTIONS}) == len(ACTIONS)
    assert len({action.verb for action in ACTIONS}) == len(ACTIONS)


def test_every_key_is_bound_once() -> None:
    bound = [
        key
        for binding in ExploreScreen.BINDINGS
        if isinstance(binding, Binding)
        for key in binding.key.split(",")
    ]
    assert len(bound) == sum(len(action.keys) for action in ACTIONS)
    # Keys of a view come first, so that they are not those of all views there.
    own = sum(len(action.keys) for action in ACTIONS if action.view)
    assert len(set(bound[:own])) == own and len(set(bound[own:])) == len(bound) - own
    assert all(key == key.strip() and (len(key) == 1 or key.islower()) for key in bound)


def test_the_key_table_names_all() -> None:
    table = key_table()
    assert [row[1].split()[0] for row in table[:-1]] == [f":{action.verb}" for action in ACTIONS]
    assert all(keys or verb for keys, verb, _ in table)


@pytest.mark.parametrize(
    ("text", "action_id", "argument"),
    [
        ("sort time", "sort", "time"),
        (":sort -time", "sort", "-time"),
        ("q", "quit", ""),
        ("snap csv out.csv", "snapshot", "csv out.csv"),
        ("go gpu=3/iteration=11", "go", "gpu=3/iteration=11"),
        ("up", "leave", ""),
    ],
)
def test_a_command_is_parsed(text: str, action_id: str, argument: str) -> None:
    action, rest = parse_command(text)
    assert (action.id, rest) == (action_id, argument)


@pytest.mark.parametrize("text", ["", "nonsense", "s", "quit now"])
def test_a_wrong_command_is_an_error(text: str) -> None:
    with pytest.raises(UsageError):
        parse_command(text)


async def test_the_palette_offers_all() -> None:
    async with explorer() as at:
        offered = [command.title for command in at.app.get_system_commands(at.explore)]
        assert offered == [action.title for action in ACTIONS]
