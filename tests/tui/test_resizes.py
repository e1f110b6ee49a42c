"""Sizes that follow each other faster than screens are laid out."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest
from textual import events
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.geometry import Size
from textual.screen import Screen

from chopper_core.model.view import View
from chopper_tui.app import ChopperApp
from chopper_tui.textual_internals import ShownCells
from tests.tui.explorer import explorer, sample_run

SIZES = [Size(60, 20), Size(120, 40), Size(80, 24), Size(100, 30)]


@pytest.mark.few(1)
@pytest.mark.parametrize("opening", [[], ["?"], ["o"], ["ctrl+p"], ["loading"]], ids=str)
async def test_a_size_that_is_past_is_not_laid_out(
    opening: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each layout tells the screen its size: of two under way each would answer the other."""
    laid_out: list[Size | None] = []
    plain = Screen._refresh_layout

    def counted(screen: Screen[object], size: Size | None = None, scroll: bool = False) -> None:
        laid_out.append(size)
        plain(screen, size, scroll)

    monkeypatch.setattr(Screen, "_refresh_layout", counted)
    app = ChopperApp(lambda _: sample_run(), View("sample.json"))
    if opening == ["loading"]:
        app.PATIENCE = 0.0  # type: ignore[misc]
        opening = []
    async with explorer(app=app) as at:
        await at.press(*opening)
        for size in SIZES:
            at.app.post_message(_resize(size))
        await at.settle()
        laid_out.clear()
        for screen in at.app.screen_stack:
            for size in SIZES:
                screen.post_message(_resize(size))
                # Of messages right behind each other only the last is taken.
                screen.call_later(lambda: None)
        await asyncio.sleep(0.05)
        await at.settle()
        assert set(laid_out) <= {None, SIZES[-1]}
        assert {screen.size for screen in at.app.screen_stack} == {SIZES[-1]}


async def test_the_palette_is_laid_out_at_any_size() -> None:
    """Its list had no column left for its text, at which a text can't be folded."""
    async with explorer((4, 5)) as at:
        await at.press("ctrl+p")
        for size in (Size(1, 1), Size(5, 2), Size(4, 9)):
            at.app.post_message(_resize(size))
            await at.settle()
        assert at.app.is_running and at.app.crash is None


@pytest.mark.parametrize("cause", ["a resize", "a theme"])
async def test_a_layout_on_the_way_loses_no_other(cause: str) -> None:
    """It paused the timer that draws: what another part asked for waited for the next key."""
    async with explorer() as at:
        at.explore._layout_required = True
        if cause == "a resize":
            at.explore._screen_resized(at.app.size)
        else:
            at.app._styled = ""
            at.app.refresh_css(animate=False)
        for _ in range(100):
            await asyncio.sleep(0.01)
            if not at.explore._layout_required:
                return
        raise AssertionError("no layout came")


async def test_a_timer_that_starts_late_fires(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was skipped: a dialog that opened under load was never painted, nor anything after it."""
    async with explorer() as at:
        ticks = count()
        monkeypatch.setattr("textual._time.get_time", lambda: 10.0 * next(ticks))
        fired = asyncio.Event()
        at.app.set_timer(0.001, fired.set)
        await asyncio.wait_for(fired.wait(), 5)


def _resize(size: Size) -> events.Resize:
    return events.Resize(size, size)


async def test_a_cleared_screen_is_drawn_whole() -> None:
    """After a resize the row of a cursor that moved stood alone, until all was laid out."""
    async with explorer() as at:
        screen, shown = at.explore, ShownCells()

        def part() -> object:
            screen._compositor._dirty_regions.add(at.explore.table.region)
            return screen._compositor.render_update()

        assert isinstance(part(), ChopsUpdate)
        assert isinstance(shown.whole(screen, part()), LayoutUpdate)
        screen._compositor.size = Size(70, 20)
        assert shown.whole(screen, part()) is None
        screen._compositor.size = at.app.size
        shown.put([[("x" * at.app.size.width, "")]] * at.app.size.height)
        known = part()
        assert shown.whole(screen, known) is known
