"""Views by digits: the scope and the cursor survive, rows lead to their evidence and back."""

from __future__ import annotations

import asyncio
from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import replace

from chopper_core.ingest.open import open_run
from chopper_core.model.view import ALL_TIME, Baseline, View, with_view
from chopper_core.views import VIEWS
from chopper_tui.actions import ACTIONS
from chopper_tui.keymap import MOVE, SCREENS
from chopper_tui.screen import Explorer
from chopper_tui.widgets.footer import PromptLine
from tests.support import Row, run_of
from tests.tui.explorer import explorer, measured_run
from tests.wording import Wording

SIZES = [(80, 24), (120, 40), (200, 60)]


@pytest.mark.few(1)
@pytest.mark.parametrize("size", SIZES)
async def test_a_digit_asks_another_question_and_back(size: tuple[int, int]) -> None:
    async with explorer(size, view=View("sample.json", ("1",))) as at:
        await at.press("down", "down")
        label = at.explore.table.label
        await at.press("3")
        assert at.frame.view.name == "kernels" and at.path == ("1",)
        assert at.frame.level == "kernel" and at.explore.trail[-1].view.path == ("1",)
        await at.press("down")
        kernel = at.explore.table.label
        await at.press("1")
        assert at.frame.view.name == "" and at.explore.table.label == label
        await at.press("3")
        assert at.explore.table.label == kernel
        await at.press("escape")
        assert at.frame.view.name == "" and at.path == ("1",)


async def test_a_row_leads_to_its_evidence_and_the_way_up_leads_back() -> None:
    async with explorer() as at:
        await at.press("3", "down")
        kernel = at.explore.table.label
        await at.press("enter")
        assert at.frame.view.name == "" and at.path == (kernel,)
        assert at.frame.view.order[0] == "kernel"
        await at.press("enter", "escape", "escape")
        assert at.frame.view.name == "kernels" and at.explore.table.label == kernel


async def test_the_scope_moves_under_a_view() -> None:
    async with explorer(view=View("sample.json", ("0",))) as at:
        await at.press("3", "}")
        assert at.path == ("1",) and at.frame.view.name == "kernels"
        await at.press("[")
        assert at.path == ("0",) and at.frame.view.name == "kernels"
        await at.press("H")
        assert at.path == ("1",)


async def test_a_view_is_split_by_what_it_takes() -> None:
    async with explorer() as at:
        await at.press("3", "p")
        await at.press("down", "enter")
        assert at.frame.view.by == "class"
        await at.command("by operation")
        assert at.frame.view.by == "operation"
        await at.command("by nonsense")
        assert "unknown split 'nonsense'" in at.status and at.frame.view.by == "operation"
        await at.press("space")
        assert len(at.explore.marks) == 1 and at.explore.table.marked == {at.label}


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "digit"), [(name, tab.place) for name, tab in VIEWS.items()])
async def test_every_view_opens_by_name_and_by_digit(name: str, digit: str) -> None:
    assert name in SCREENS[digit]
    async with explorer((100, 30)) as at:
        await at.command(f"view {name}")
        shown = replace(at.frame.view, window=ALL_TIME)
        assert shown == with_view(View("sample.json"), name) or at.status
        await at.press("1")
        for _ in SCREENS[digit]:
            await at.press(digit)


async def test_the_sources_are_a_panel_that_no_digit_opens() -> None:
    async with explorer() as at:
        await at.press("0", "0")
        assert at.frame.view.name == "findings" and at.app.screen is at.explore
        await at.command("view info")
        assert "ources" in at.text()
        await at.press("escape", *SCREENS, *SCREENS)
        assert at.app.screen is at.explore


async def test_escape_at_the_top_stays_there(wording: Wording) -> None:
    async with explorer(view=View("sample.json", name="kernels")) as at:
        for key, name in (("0", "overview"), ("3", "kernels"), ("1", "")):
            await at.press(key, "escape", "escape")
            assert at.frame.view.name == name
            wording(at.status, "whole run")
        await at.press("5", "escape")
        assert at.frame.view.name == ""
    async with explorer(view=View("sample.json", ("1",), name="kernels")) as at:
        await at.press("escape")
        assert at.frame.view == View("sample.json", ("1",))


@pytest.mark.sweep
async def test_keys_typed_ahead_of_a_filter_are_its_text() -> None:
    async with explorer() as at:
        at.send("enter", *"/!10", "enter", "G")
        await at.settle()
        assert at.path == ("0",) and at.frame.view.filter == "!10"
        assert at.label == at.frame.labels[-1]
        at.send("escape", "escape", *":sort name", "enter", *"/3", "escape", "3")
        await at.settle()
        assert at.path == () and at.frame.view.name == "kernels"


@pytest.mark.sweep
async def test_keys_of_a_prompt_do_not_overtake_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    delete = PromptLine.action_delete_left

    async def late(line: PromptLine) -> None:
        await asyncio.sleep(0.05)
        delete(line)

    monkeypatch.setattr(PromptLine, "action_delete_left", late)
    async with explorer() as at:
        await at.press("/")
        await at.type("ab")
        assert isinstance(at.app.focused, PromptLine)
        at.send("backspace", *"cd", "left", "x", "home", "!", "enter", *":sort name", "enter")
        await at.settle()
        assert at.frame.view.filter == "!acxd" and at.frame.view.sort == "name"


@pytest.mark.sweep
async def test_findings_lead_to_their_evidence() -> None:
    async with explorer((80, 24)) as at:
        await at.press("9")
        assert at.frame.view.name == "findings" and len(at.frame) > 0
        sentence = at.explore.table.label
        assert sentence is not None and sentence[:30] in at.text()
        evidence = at.frame.target(0)
        await at.press("enter")
        assert at.frame.view == evidence
        await at.press("escape")
        assert at.frame.view.name == "findings" and at.explore.table.label == sentence


opened = cache(open_run)


@pytest.mark.sweep
@pytest.mark.parametrize("size", [(60, 18), (80, 24), (100, 30)])
async def test_the_finding_under_the_cursor_is_read_in_full(
    demo: Path, size: tuple[int, int]
) -> None:
    async with explorer(size, opened(str(demo)), View("demo", name="findings")) as at:
        for row in (0, 1, 2):
            label = at.frame.labels[row]
            assert at.explore.table.label == label
            # The figures of its card stand beside its lines.
            assert set(label.split()) <= set(at.text().split())
            await at.press("j")


async def test_a_tab_that_cannot_be_shown_is_passed_and_says_why() -> None:
    run = run_of([Row(0, 10, iteration=1, layer=3), Row(20, 10, iteration=1, layer=4)])
    async with explorer((160, 40), run=run, view=View(run.name)) as at:
        shown: list[str] = []
        for _ in range(2 * len(SCREENS["4"])):
            await at.press("4")
            shown.append(at.frame.view.name)
            if "comms" not in shown and "communication: no collectives" in at.status:
                # The key went on to the next one, and the tab is in brackets from then on.
                assert "(communication)" in at.text() and "passed" in at.status
        able = [each for each in SCREENS["4"] if each in shown]
        assert len(able) > 1 and shown == [able[i % len(able)] for i in range(len(shown))]
        assert "comms" not in shown and at.explore.reason_against("comms").startswith("no coll")
        # Back through the same ones, with the reasons again.
        said = []
        for name in reversed(able[:-1]):
            await at.press("shift+tab")
            said.append(at.status)
            assert at.frame.view.name == name
        assert any("communication: no collectives" in each for each in said)


async def test_any_tab_is_four_keys_away() -> None:
    """The digit again for those after the first, shift+tab for those before it."""
    async with explorer((80, 24), measured_run(), View("sample.json")) as at:
        for place, names in SCREENS.items():
            reached: set[str] = set()
            for keys in ([place] * 4, [place, *["shift+tab"] * 3]):
                # From another place.
                await at.command("view explore" if place != "1" else "view timeline")
                for key in keys:
                    await at.press(key)
                    reached.add(at.frame.view.name or "explore")
            able = {each for each in names if not at.explore.reason_against(each)}
            assert able <= reached | {"live"}, (place, able - reached)


@pytest.mark.sweep
@pytest.mark.parametrize("name", VIEWS)
async def test_every_key_in_every_view(name: str) -> None:
    """None of them ends the program or leaves the view without a word or a way back."""
    view = View("sample.json", ("1", "11"))
    async with explorer((100, 30), measured_run(), view) as at:
        asked = with_view(view, name)
        there = [action for action in ACTIONS if action.view in ("", name) and action.group != MOVE]
        for action in there:
            for key in action.keys[:1] if action.id not in ("quit", "suspend") else ():
                if at.frame.view != asked:
                    await at.explore.go(at.explore.trail_to(asked))
                await at.press(key)
                if not isinstance(at.app.screen, Explorer):
                    await at.press("escape")
                if at.explore.query_one("Prompt").display:
                    await at.press("escape")
                assert at.app.is_running and isinstance(at.app.screen, Explorer), key
        assert "generated" in at.text()


async def test_a_view_offers_its_own_columns() -> None:
    async with explorer((120, 40), view=View("sample.json", ("1",), name="kernels")) as at:
        before = [column.name for column in at.frame.columns]
        hidden = at.frame.more[0].name
        assert hidden not in before
        # Registered columns answer in rows of activities, too.
        assert "median_ns" in {column.name for column in at.frame.more}
        await at.press("C")
        assert at.frame.more[0].title in at.text()
        await at.press("escape")
        await at.command(f"columns +{hidden}")
        assert [column.name for column in at.frame.columns][-1] == hidden
        await at.command("columns default")
        assert [column.name for column in at.frame.columns] == before


_FA = ("11", "forward", "1", "attn_fa")


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("asked", "path", "base", "split"),
    [
        ("heatmap", (), None, "layer"),
        ("heatmap", ("0", "11", "forward", "1"), None, "operation"),
        ("compare", ("1",), ("0",), "operation"),
        ("compare", ("1", *_FA), ("0", *_FA), "kernel"),
        ("kernels", (), None, "name"),
    ],
)
async def test_the_splits_that_are_offered_begin_at_that_on_the_screen(
    asked: str, path: tuple[str, ...], base: tuple[str, ...] | None, split: str
) -> None:
    baseline = None if base is None else Baseline("", base)
    view = View("sample.json", path, name=asked, baseline=baseline)
    async with explorer(view=view) as at:
        await at.press("p")
        assert at.app.screen.key == split
