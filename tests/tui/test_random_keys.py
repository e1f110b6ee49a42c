"""Keys faster than the screen: dialogs open and close once, and no key is lost or misplaced."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from rich.style import Style
from textual import events
from textual.widgets import OptionList

from chopper_core.analyses.signal_changes import second_signal
from chopper_core.ingest.open import open_run
from chopper_core.model.view import View
from chopper_tui.actions import ACTIONS
from chopper_tui.screen import Explorer
from chopper_tui.widgets.dialogs import Chooser
from chopper_tui.widgets.reader import TextReader
from tests.charllm import directory
from tests.programs.monkey.__main__ import play
from tests.tui.explorer import Driven, explorer, measured_run

LEAVING = ("q", "ctrl+c", "ctrl+z")
KEYS = [key for action in ACTIONS for key in action.keys if key not in LEAVING]
OPENING = ["m", "o", "s", "p", "C", "?", "i", "ctrl+p", ":", "/", "f", "ctrl+g", "0", "8"]
ANSWERING = ["enter", "enter", "escape", "escape", "j", "end", "tab", "space", "backspace"]
VIEW = View("sample.json", ("3", "11", "backward"))


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(4))
async def test_fast_keys_crash_nothing(seed: int) -> None:
    random = Random(seed)
    async with explorer((100, 30), measured_run(), VIEW) as at:
        for _ in range(12):
            burst = random.choices(KEYS + 4 * OPENING + 8 * ANSWERING, k=random.randint(2, 8))
            at.send(*burst)
            if random.random() < 0.3:
                click(at, random.randrange(100), random.randrange(30))
            if random.random() < 0.2:
                await at.pilot.resize_terminal(random.choice([20, 60, 100]), 30)
            if random.random() < 0.5:
                await at.settle()
        await at.settle()
        assert at.app.is_running and at.app.crash is None, burst
        at.send(*["escape"] * 4)
        await at.settle()
        assert isinstance(at.app.screen, Explorer)


@pytest.mark.sweep
def test_a_minute_of_random_input() -> None:
    outcomes = play(seed=1000, seconds=60)
    assert [each.crash for each in outcomes if each.crash] == []


def click(at: Driven, x: int, y: int) -> None:
    for kind in (events.MouseDown, events.MouseUp):
        event = kind(None, x, y, 0, 0, 1, False, False, False, x, y)
        event.set_sender(at.app)
        at.app.post_message(event)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "keys",
    [
        ["o", "j", "enter", "j"],
        ["m", "end", "enter"],
        ["enter", "o", "end", "enter", "j", "enter"],
        ["s", "j", "j", "enter", "enter"],
        [":", *"sort name", "enter", "j", "enter", "escape"],
        ["/", "t", "enter", "r"],
        ["?", "q", "j", "j"],
        ["i", "escape", "p", "enter", "G"],
    ],
    ids="".join,
)
async def test_keys_do_the_same_however_fast_they_come(keys: list[str]) -> None:
    async with explorer((100, 30), measured_run(), VIEW) as slow:
        await slow.press(*keys)
        expected = (slow.frame.view, slow.label, type(slow.app.screen))
    async with explorer((100, 30), measured_run(), VIEW) as fast:
        fast.send(*keys)
        await fast.settle()
        assert (fast.frame.view, fast.label, type(fast.app.screen)) == expected


@pytest.mark.sweep
@pytest.mark.parametrize("closing", ["escape", "q", "enter"])
async def test_a_dialog_closes_once(closing: str) -> None:
    async with explorer() as at:
        await at.press("?")
        dialog = at.app.screen
        assert isinstance(dialog, TextReader)
        dialog.action_cancel()
        dialog.action_cancel()
        await at.settle()
        assert isinstance(at.app.screen, Explorer) and at.app.is_running
        await at.press("o")
        at.send("escape" if closing == "q" else closing, closing if closing != "q" else "escape")
        await at.settle()
        assert at.app.is_running and at.app.crash is None


@pytest.mark.parametrize("opening", [("3", "p"), ("o",), ("s",), ("C",), ("m",), ("ctrl+p",)])
async def test_nothing_that_is_typed_in_a_chooser_is_a_key(opening: tuple[str, ...]) -> None:
    """`layer` closed it at its `l` and performed the other letters on the table."""
    async with explorer((100, 30), measured_run(), VIEW) as at:
        await at.press(*opening)
        chooser, view = at.app.screen, at.frame.view
        assert isinstance(chooser, Chooser)
        at.send(*"layer hjkloq%:/0")
        await at.settle()
        assert at.app.screen is chooser and "/layer" in at.text()
        await at.press("escape")
        at.paste("Layer hjkl")
        await at.settle()
        assert at.app.screen is chooser and chooser.search_text == "layer hjkl"
        await at.press("escape", "escape")
        assert at.app.screen is at.explore and at.frame.view == view


@pytest.mark.sweep
async def test_the_palette_opens_once_and_over_the_explorer_alone() -> None:
    async with explorer() as at:
        at.send("ctrl+p", "ctrl+p")
        await at.settle()
        assert [type(screen) for screen in at.app.screen_stack[1:]] == [Chooser]
        at.send("escape", "ctrl+p", "escape", "?", "ctrl+p")
        await at.settle()
        assert isinstance(at.app.screen, TextReader) and len(at.app.screen_stack) == 2


@pytest.mark.few(1)
@pytest.mark.parametrize("typed", ["[: a", "[/", "[red]x", "\\[", "]["])
async def test_help_searches_for_markup(typed: str) -> None:
    """A search for `[:` ended the explorer in a MarkupError: the title shows it."""
    async with explorer() as at:
        await at.press("?", "/")
        await at.type(typed)
        assert at.app.crash is None and isinstance(at.app.screen, TextReader)
        assert typed.rstrip() in at.text()


async def test_a_click_on_an_option_that_is_gone_does_nothing() -> None:
    async with explorer() as at:
        await at.press("o")
        options = at.app.screen.query_one(OptionList)
        for number in (options.option_count, 10**6):
            style = Style(meta={"option": number})
            options.post_message(
                events.Click(options, 1, 1, 0, 0, 1, False, False, False, style=style)
            )
        await at.settle()
        assert at.app.screen.query_one(OptionList) is options and at.app.crash is None


async def test_options_with_the_same_answer_are_offered() -> None:
    async with explorer() as at:
        answers: list[str | None] = []
        chooser = Chooser("Why", [("a", "one", ""), ("a", "two", ""), ("b", "three", "")])
        at.app.push_screen(chooser, answers.append)
        await at.settle()
        await at.press("down", "down", "enter")
        assert answers == ["b"]


@pytest.mark.sweep
async def test_a_run_of_samples_refuses_what_needs_a_trace(tmp_path: Path) -> None:
    """Random keys ended these in a KeyError and in an array of nothing."""
    run = open_run(str(directory(tmp_path, ranks=2, samples=30)), jobs=1)
    async with explorer((200, 60), run, View(run.name)) as at:
        # Without activities nothing is busy: the second curve is of something known.
        assert second_signal(run, run.signal().name) in run.measured
        for command in (
            "filter share_pct>1",
            "sort -elapsed_ns",
            "pivot step",
            "columns kernels",
        ):
            await at.command(command)
            await at.press("enter", "escape", "M")
            assert at.app.crash is None and at.app.is_running, command
