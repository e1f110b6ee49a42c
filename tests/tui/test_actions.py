"""The registry: nothing in it is without a handler, a way to call it, or a help."""

from __future__ import annotations

import subprocess
import sys
from inspect import signature
from pathlib import Path

import pytest
from msgspec.structs import replace
from textual import events

from chopper_core.analyses.outliers import RULE
from chopper_core.model.address import parse
from chopper_core.model.view import View
from chopper_core.util import demo
from chopper_core.util.errors import DataError, UsageError
from chopper_tui.actions import ACTIONS
from chopper_tui.keymap import GROUPS, Action, find_command, key_table
from chopper_tui.screen import Explorer, bindings_of
from chopper_tui.screen_data import same_on_gpu
from chopper_tui.widgets.dialogs import Chooser
from tests.support import Row, run_of
from tests.tui.explorer import explorer, sample_run
from tests.tui.test_runs_screen import set_of_runs
from tests.wording import Wording


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.id)
def test_an_action_is_complete(action: Action) -> None:
    assert len(signature(action.handler).parameters) == 2 + action.adds_up
    assert action.verb and action.title and action.help.endswith(".")
    assert action.group in GROUPS
    assert not action.hint or action.keys
    assert not action.gives or len(action.gives) == len(action.keys)


async def test_what_keys_add_up_is_done_once_by_a_command() -> None:
    async with explorer(view=View("sample.json", ("2", "11"))) as at:
        for number, action in enumerate(each for each in ACTIONS if each.adds_up):
            await at.press("2" if number % 2 else "1")
            await at.command(action.verb)
            await at.command(f":{action.verb}")
            assert not at.explore.prompt.display


def test_the_help_of_outliers_has_the_rule() -> None:
    [next_outlier] = [action for action in ACTIONS if action.id == "next_outlier"]
    assert RULE.partition(" over ")[2] in next_outlier.help


def test_the_screen_has_no_actions_of_its_own() -> None:
    assert not [name for name in dir(Explorer) if name.startswith("do_")]


def test_the_registry_needs_no_textual() -> None:
    code = "import sys, chopper_tui.actions; print([m for m in sys.modules if m in %r])"
    found = subprocess.run(
        [sys.executable, "-c", code % (["textual", "rich", "pandas", "asyncio.events"],)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "textual" not in found.stdout and "rich" not in found.stdout


def test_names_and_keys_are_unique() -> None:
    for view in {action.view for action in ACTIONS}:
        keys = [key for action in ACTIONS if action.view == view for key in action.keys]
        assert len(set(keys)) == len(keys)
    assert len({action.id for action in ACTIONS}) == len(ACTIONS)
    assert len({action.verb for action in ACTIONS}) == len(ACTIONS)


def test_every_key_is_bound_once() -> None:
    bound = [key for binding in bindings_of(ACTIONS) for key in binding.key.split(",")]
    assert len(bound) == sum(len(action.keys) for action in ACTIONS)
    # Keys of a view come first, so that they are not those of all views there.
    own = [(action.view, key) for action in ACTIONS if action.view for key in action.keys]
    assert len(set(own)) == len(own)
    assert len(set(bound[len(own) :])) == len(bound) - len(own)
    assert all(key == key.strip() and (len(key) == 1 or key.islower()) for key in bound)


def test_the_key_table_names_all() -> None:
    table = key_table(ACTIONS)
    assert [row[1].split()[0] for row in table] == [f":{action.verb}" for action in ACTIONS]
    assert all(keys or verb for keys, verb, _ in table)


@pytest.mark.parametrize(
    ("text", "action_id", "argument"),
    [
        ("sort time", "sort", "time"),
        (":sort -time", "sort", "-time"),
        ("q", "quit", ""),
        ("snap csv out.csv", "snapshot", "csv out.csv"),
        ("go gpu=3/iteration=11", "go", "gpu=3/iteration=11"),
        ("up", "up", ""),
        ("in", "enter", ""),
    ],
)
def test_a_command_is_parsed(text: str, action_id: str, argument: str) -> None:
    action, rest = find_command(ACTIONS, text)
    assert (action.id, rest) == (action_id, argument)


@pytest.mark.parametrize("text", ["", "nonsense", "s", "quit now"])
def test_a_wrong_command_is_an_error(text: str) -> None:
    with pytest.raises(UsageError):
        find_command(ACTIONS, text)


async def test_the_palette_offers_all() -> None:
    async with explorer() as at:
        await at.press("ctrl+p")
        assert isinstance(at.app.screen, Chooser)
        offered = [title for _, title, _ in at.app.screen._options]
        # What people look for comes first: the seven places, then files and comparing.
        assert [title[0] for title in offered[:7]] == [*"0123456"] and offered[0] == "0  Summary"
        assert offered[7] == "Open another run"
        assert {"Snapshot", "Report as a page", "Compare the marked rows"} <= {*offered[7:15]}
        places = [f"{tab.place}  {tab.name}" for tab in at.explore.tabs.values()]
        others = {action.title for action in ACTIONS if action.id != "palette"}
        assert others | {*places} <= {*offered}
        assert all(offered.count(each) == 1 for each in places)
        for kind in ("Theme: ", "Signal: "):
            assert any(title.startswith(kind) for title in offered[len(places) :]), kind
        # Figures are many: they are found, not listed.
        await at.type("figure")
        found = [title for _, title, _ in at.app.screen._shown]
        assert sum(title.startswith("Figure: ") for title in found) > 20


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "turn",
    [events.MouseScrollDown, events.MouseScrollUp, events.MouseDown],
    ids=lambda t: t.__name__,
)
async def test_the_mouse_takes_a_message_back_as_a_key_does(turn: type[events.MouseEvent]) -> None:
    """Over the status line, where nothing else takes the event, and over the table."""
    async with explorer() as at:
        for y in (at.app.size.height - 2, 4):
            await at.command("nonsense")
            assert "unknown command" in at.text()
            button = int(turn is events.MouseDown)
            at.app.post_message(turn(None, 5, y, 0, 0, button, False, False, False))
            await at.settle()
            assert not at.status and "rows" in at.text()


@pytest.mark.sweep
async def test_a_theme_replaces_the_one_before() -> None:
    async with explorer() as at:
        for name in ("ansi", "contrast", "ansi"):
            await at.command(f"theme {name}")
            assert at.app.theme == name and at.status == f"theme {name}"


REFUSALS: dict[str, list[tuple[str, str]]] = {
    "": [
        (":of power_w", "this view has no selectable figure"),
        (":ascend 99", "the path has the depths 0 to 0"),
        (":columns elapsed_ns", ""),
        (":columns -elapsed_ns", "a table needs a column"),
        (":go {run}:gpu=0?clock=a=+1s", "this address needs other --clock/--gpu options"),
        (":filter nothing", ""),
        ("y", "there is no row to copy"),
        ("i", "there is no row"),
        ("space", "there is no row to mark"),
        ("enter", "there is no row to enter"),
    ],
    "timeline": [
        (":at", "missing time: :at 12.5ms"),
        (":measure 5ms", "two times are missing"),
        ("n", "no search yet: f finds a name"),
        ("a", "this is all of the run's time"),
        (":at 99s", ""),
        (".", "there is no activity on this lane after the cursor"),
        ("F", "nothing runs on this lane at the cursor"),
        (":find attn_n", ""),
        (":at 99s", ""),
        ("n", "no activity after the cursor matches"),
        (":filter nothing", ""),
        (".", "there is no lane"),
    ],
    "heatmap": [
        ("h", "this is the first column"),
        (":filter nothing", ""),
        ("enter", "there is no cell to enter"),
    ],
    "heatmap&by=iteration": [(".", "the heat map has no steps to step through")],
    "icicle": [
        ("h", "this is the first block of its level"),
        *[("j", "")] * 6,
        ("j", "this is the last level"),
    ],
    "whatif": [("space", "this row is no place of the tree: nothing to mark")],
    "findings": [(">", "there are no columns to scroll"), (":live", ""), ("space", "paused")],
}


@pytest.mark.few(2)
@pytest.mark.parametrize("view", REFUSALS)
async def test_an_action_that_has_nothing_to_act_on_says_so(view: str) -> None:
    run = sample_run()
    address = f"{run.name}?view={view}" if view else run.name
    async with explorer((120, 40), run, parse(address)) as at:
        for given, says in REFUSALS[view]:
            if given[0] == ":":
                await at.command(given[1:].format(run=run.name))
            else:
                await at.press(given)
            assert says in at.status, (given, at.status)


async def test_a_view_of_a_package_has_no_tab_before_it(
    monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    run = sample_run()
    async with explorer((120, 40), run, parse(f"{run.name}?view=whatif")) as at:
        monkeypatch.setattr(type(at.explore), "tabs", {})
        await at.press("shift+tab")
        wording(at.status, "no place")


async def test_what_cannot_be_copied_or_written_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
    wording: Wording,
) -> None:
    monkeypatch.setattr("chopper_tui.actions.program.has_clipboard", lambda: False)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("chopper_tui.export.publish", full)
    async with explorer((80, 24)) as at:
        await at.press("y")
        wording(at.status, "clipboard", "P writes a file")
        await at.press("P")
        wording(at.status, "snapshot")


@pytest.mark.sweep
async def test_one_run_that_is_marked_is_not_compared(wording: Wording) -> None:
    run = set_of_runs()
    async with explorer((100, 30), run, View(run.name, name="runs")) as at:
        await at.press("space", "=")
        wording(at.status, "one run is marked")
        await at.press("space")
        await at.command("filter nothing")
        await at.press("=")
        wording(at.status, "divide by")


def test_a_demo_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_FOLDER", Path("nowhere"))
    with pytest.raises(DataError, match="the demo run is missing"):
        demo.demo_path()


def test_a_gpu_without_activities_is_refused() -> None:
    run = run_of([Row(0, 5, gpu=0)])
    run = replace(run, gpus=(*run.gpus, replace(run.gpus[0], index=1)))
    with pytest.raises(UsageError, match="GPU 1 has nothing of this scope"):
        same_on_gpu(run, View(run.name, ("0",)), 1)
