"""The key line: each key that it lists does what it says, on the row under the cursor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from chopper_core.model.view import View, with_view
from chopper_core.views import TABS, TREE
from chopper_tui.history import Trail
from chopper_tui.screen import Explorer
from chopper_tui.widgets.dialogs import Chooser
from chopper_tui.widgets.footer import KeyLine, Prompt
from tests.tui.explorer import Driven, explorer, measured_run, sample_run
from tests.tui.test_runs_screen import set_of_runs
from tests.wording import Wording

OTHER_WAY = {"left": "right", "]": "[", "}": "{", ".": ",", "down": "up"}
LEFT_OUT = ("quit", "suspend", "snapshot", "view")
"""They end the program, write a file, or are played by another test."""


def keys_shown(at: Driven) -> dict[str, str]:
    """Action → its first key, as the key line names them now."""
    line = at.explore.query_one(KeyLine)
    (pieces,) = line.lines(at.app.size.width, 1)
    named = {ink.partition("@")[2] for _, ink in pieces if "@" in ink}
    return {each.id: each.keys[0] for each in line.able if each.id in named}


def state(at: Driven) -> tuple[Any, ...]:
    explore, table = at.explore, at.explore.table
    return (
        *(at.frame.view, table.cursor, explore.marks, explore.listing, explore.cell, explore.lens),
        *(explore.picture, at.app.screen is explore, explore.query_one(Prompt).display),
    )


def is_another_place(before: View, at: Driven) -> bool:
    """Whether the scope differs from the one before; a table may be of the same one."""
    return at.frame.view.path != before.path


SAYS: dict[str, Callable[[View, Driven], bool]] = {
    # What the word next to a key promises, as a person would see it.
    "enter": lambda before, at: at.frame.view != before or not isinstance(at.app.screen, Explorer),
    "up": lambda before, at: at.frame.view != before,
    "next_sibling": is_another_place,
    "next_gpu": lambda before, at: (
        is_another_place(before, at) or at.frame.view.baseline is not None
    ),
    "why": lambda _, at: not isinstance(at.app.screen, Explorer) and "Why" in at.text(),
    "what_if": lambda _, at: at.frame.view.name == "whatif",
    "filter": lambda _, at: at.explore.query_one(Prompt).display,
    "command": lambda _, at: at.explore.query_one(Prompt).display,
    "sort": lambda _, at: isinstance(at.app.screen, Chooser),
    "pivot": lambda _, at: isinstance(at.app.screen, Chooser),
    "baseline": lambda before, at: at.frame.view.baseline != before.baseline,
    "compare": lambda before, at: (
        at.frame.view.baseline is not None or at.frame.view.name == "compare"
    ),
    "mark": lambda _, at: bool(at.explore.marks),
}


async def does_something(at: Driven, action_id: str, key: str) -> None:
    before = state(at)
    await at.press(key)
    status = at.explore.status
    if status.is_error and (other := OTHER_WAY.get(key)):
        # A pair such as ← → at one end: the other one goes on.
        await at.press(other)
    assert not status.is_error, f"{key} ({action_id}) in {before[0].name}: {status.message}"
    assert state(at) != before or status.message, f"{key} ({action_id}) does nothing"
    if says := SAYS.get(action_id):
        assert says(before[0], at), f"{key} ({action_id}) in {before[0].name}: {status.message}"
    if not isinstance(at.app.screen, Explorer):
        await at.press("escape")
    if at.explore.query_one(Prompt).display:
        await at.press("escape")


Kind = tuple[int, int | None]
"""A row of the table, and the panel that has the keys; None: the main one."""


def kinds(at: Driven) -> list[Kind]:
    """What the cursor can be on: the first and the last row, one of each kind of row, which differ
    in the keys that are offered, and each other panel of the screen.
    """
    panels, table = at.explore.panels, at.explore.table
    seen: dict[tuple[str, ...], int] = {}
    for row in range(len(at.frame)):
        table.move_to(row)
        seen.setdefault(tuple(each.id for each in at.explore.query_one(KeyLine).able), row)
    table.move_to(0)
    rows = [(row, None) for row in sorted({0, max(len(at.frame) - 1, 0), *seen.values()})]
    return [*rows, *((0, number) for number in range(len(panels)) if not panels[number].has_keys)]


async def put(at: Driven, start: Trail, kind: Kind) -> None:
    """Put the cursor on a kind of row of a view, as if it had just been opened."""
    row, panel = kind
    explore = at.explore
    await explore.go(start)
    explore.marks, explore.entries = (), []
    explore.show_marks()
    explore.give_keys(None)
    explore.table.move_to(row)
    await at.settle()
    if panel is not None and panel < len(explore.panels):
        explore.give_keys(explore.panels[panel])
        await at.settle()


@pytest.mark.sweep
@pytest.mark.parametrize("name", TABS)
@pytest.mark.parametrize("path", [(), ("1", "11")], ids=str)
async def test_each_key_of_the_footer_does_what_it_says(name: str, path: tuple[str, ...]) -> None:
    """On each row and in each panel of each tab of each place."""
    view = with_view(View("sample.json", path), "" if name == TREE else name)
    async with explorer((120, 36), measured_run(), view) as at:
        if at.frame.view.name != view.name:
            pytest.skip("the run has none of this view")
        start = at.explore.here
        for kind in kinds(at):
            await put(at, start, kind)
            for action_id, key in keys_shown(at).items():
                if action_id in LEFT_OUT:
                    continue
                await put(at, start, kind)
                if key in keys_shown(at).values():
                    await does_something(at, action_id, key)


async def test_a_sample_of_the_keys_of_every_footer() -> None:
    """Of every other tab one key more, on a row or in a panel: all of them are in the sweep."""
    async with explorer((120, 36), measured_run(), View("sample.json")) as at:
        played: set[str] = set()
        for turn, name in enumerate([*TABS][::2]):
            view = with_view(View("sample.json"), "" if name == TREE else name)
            await at.explore.go(at.explore.trail_to(view))
            await at.settle()
            if at.frame.view.name != view.name:
                continue
            start, found = at.explore.here, kinds(at)
            await put(at, start, found[turn % len(found)])
            shown = [(id_, key) for id_, key in keys_shown(at).items() if id_ not in LEFT_OUT]
            shown.sort(key=lambda each: each[0] in played)
            action_id, key = shown[0]
            played.add(action_id)
            await does_something(at, action_id, key)
        assert len(played) > 5


async def test_each_key_of_the_footer_does_what_it_says_in_a_table_of_runs() -> None:
    async with explorer((120, 36), set_of_runs()) as at:
        start = at.explore.here
        for action_id, key in keys_shown(at).items():
            if action_id not in LEFT_OUT:
                await at.explore.go(start)
                at.explore.marks = ()
                await does_something(at, action_id, key)


async def test_live_without_a_figure_of_a_gpu_is_its_steps_and_findings() -> None:
    """The names of GPUs alone are no table; the keys are for what is there."""
    async with explorer((80, 24), sample_run(), View("sample.json", name="live")) as at:
        assert not at.explore.table.size.height and "step ms" in at.text(), at.text()
        start = at.explore.here
        for action_id, key in keys_shown(at).items():
            if action_id not in LEFT_OUT:
                await at.explore.go(start)
                await does_something(at, action_id, key)


async def test_what_a_row_cannot_do_is_not_listed() -> None:
    async with explorer((160, 40), measured_run(), View("sample.json")) as at:
        shown = keys_shown(at)
        assert {"enter", "mark", "why"} <= {*shown}
        assert not {"up", "next_sibling", "next_gpu", "compare"} & {*shown}
        await at.press("space")
        assert "compare" not in keys_shown(at)
        await at.press("j")
        assert "compare" in keys_shown(at)
        await at.press("enter")
        assert {"up", "next_sibling", "next_gpu"} <= {*keys_shown(at)}
        await at.press("escape", "escape", "escape")
        assert "up" not in keys_shown(at) and not at.explore.status.is_error


async def test_a_row_that_is_no_place_refuses_and_is_not_offered(wording: Wording) -> None:
    async with explorer((200, 60), measured_run(), View("sample.json", name="losses")) as at:
        assert not {"baseline", "mark"} & {*keys_shown(at)}
        await at.press("b")
        wording(at.status, "nothing to compare")
        await at.press("space")
        wording(at.status, "nothing to mark")


@pytest.mark.parametrize("name", ["kernels", "ranks", "losses", "overheads"])
async def test_space_marks_rows_of_every_table_of_places(name: str) -> None:
    by = "operation" if name == "losses" else ""
    view = replace(with_view(View("sample.json"), name), by=by)
    async with explorer((120, 36), measured_run(), view) as at:
        first = at.label
        await at.press("space", "j")
        assert at.explore.table.marked == {first} and len(at.explore.marks) == 1
        second = at.label
        await at.press("=")
        baseline = at.frame.view.baseline
        assert baseline is not None and baseline.path == (first,) and at.path == (second,)
