"""The tour: each stop is a screen that the run has, and a text about it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from chopper_core.model.view import View
from chopper_core.views import PLACES, TABS
from chopper_tui.actions.program import STOPS
from chopper_tui.app import ChopperApp
from chopper_tui.config import DEFAULTS, is_first_start
from chopper_tui.widgets.dialogs import TourBox
from tests.tui.explorer import explorer, measured_run, sample_run


def test_it_follows_the_seven_places() -> None:
    numbered = [stop for stop in STOPS if stop.title[:1].isdigit()]
    assert [*dict.fromkeys(stop.title[0] for stop in numbered)] == [*PLACES]
    for stop in numbered:
        place = TABS[stop.view or "explore"].place if stop.title[0] != "6" else "6"
        assert place == stop.title[0], stop.title


@pytest.mark.few(1)
@pytest.mark.parametrize("size", [(80, 24), (120, 40), (60, 16)])
async def test_it_goes_through_screens_of_the_run_and_back(size: tuple[int, int]) -> None:
    async with explorer(size, measured_run()) as at:
        await at.command("tour")
        seen = []
        while isinstance(at.app.screen, TourBox):
            seen.append(at.frame.view.name)
            number = int(at.text().partition("tour ")[2].partition("/")[0])
            stop = STOPS[number - 1]
            assert stop.view == at.frame.view.name and len(at.path) == stop.depth
            words = " ".join(at.text().replace("│", " ").split())
            assert stop.text.split(".")[0][:30] in words
            await at.press("enter")
        assert seen[0] == "overview" and {"", "icicle", "timeline", "ranks"} <= set(seen)
        assert at.status == ""


@pytest.mark.sweep
async def test_what_is_said_of_the_table_leaves_it_in_sight() -> None:
    async with explorer((80, 24), measured_run()) as at:
        await at.command("tour")
        await at.press("enter", "enter")
        lines = at.lines()
        assert any("shaping the table" in line for line in lines[:4])
        heading = next(y for y, line in enumerate(lines) if line.startswith(" > phase"))
        assert all(label in lines[heading + 1 + row] for row, label in enumerate(at.frame.labels))


@pytest.mark.sweep
async def test_it_can_be_left_and_taken_back() -> None:
    async with explorer((120, 40), sample_run()) as at:
        await at.command("tour")
        await at.press("enter", "enter")
        assert "tour 3/" in at.text()
        await at.press("left")
        assert "tour 2/" in at.text()
        await at.press("escape")
        assert not isinstance(at.app.screen, TourBox) and at.frame.view.name == ""
        await at.press("j")
        assert at.explore.table.cursor == 1


async def test_the_first_start_offers_it_once() -> None:
    assert is_first_start() and not is_first_start()
    app = ChopperApp(
        lambda _: sample_run(), View("sample.json"), config=replace(DEFAULTS, is_first=True)
    )
    async with explorer(app=app) as at:
        assert ":tour" in at.status
        await at.press("j")
        assert at.status == ""
