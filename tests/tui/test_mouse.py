"""The mouse does what keys do: it presses the keys of the last line and the entries of help."""

from __future__ import annotations

import re

import numpy as np
import pytest
from textual import events

from chopper_core.model.view import View
from chopper_tui.widgets.chart_panes import PicturePane, SignalPane
from chopper_tui.widgets.footer import KeyLine
from chopper_tui.widgets.header import PlaceLine
from chopper_tui.widgets.reader import TextReader
from tests.tui.explorer import Driven, explorer, measured_run


async def click(at: Driven, text: str, widget: type | None = None) -> None:
    """Click on a text of the screen, or of one of its parts."""
    top = at.app.screen.query_one(widget).region.y if widget else 0
    y, line = next((y, line) for y, line in enumerate(at.lines()) if y >= top and text in line)
    await at.pilot.click(offset=(line.index(text), y))
    await at.settle()


async def test_the_keys_of_the_last_line_are_buttons() -> None:
    async with explorer((120, 40), run=measured_run()) as at:
        await click(at, "⏎ in", KeyLine)
        assert at.path == ("0",)
        await click(at, "] sibling", KeyLine)
        assert at.path == ("1",)
        await click(at, "[ ] sibling", KeyLine)
        assert at.path == ("0",)
        await click(at, "esc up", KeyLine)
        assert at.path == ()


@pytest.mark.sweep
async def test_the_hint_opens_the_help_and_its_entries_are_buttons() -> None:
    async with explorer((120, 40), run=measured_run()) as at:
        await click(at, "? help", PlaceLine)
        assert isinstance(at.app.screen, TextReader)
        await at.type("/by name")
        await click(at, "3  Kernels")
        assert at.frame.view.name == "kernels"
        await at.press("?")
        await at.type("/reverse the sort")
        await click(at, "Reverse the sort")
        assert at.frame.sort.startswith("-") is False and at.frame.sort


@pytest.mark.parametrize("size", [(80, 24), (120, 36)])
async def test_the_column_at_the_pointer_or_sorted_by_is_explained_under_the_table(
    size: tuple[int, int],
) -> None:
    async with explorer(size, run=measured_run()) as at:
        column = at.frame.columns[1]
        words = " ".join(column.definition.split())[:20]
        heading = next(each.header for each in at.explore.table.layout_plan.columns[1:])
        y = at.explore.table.region.y + at.explore.table.gutter.top
        before = at.text()
        assert words not in before
        await at.pilot.hover(offset=(at.lines()[y].index(f" {heading}") + 1, y))
        await at.settle()
        assert f"{column.title}: {words}" in at.text()
        await at.pilot.hover(offset=(5, y + 1))
        await at.settle()
        assert at.text() == before
        # By keys the sorted column is the one at the cursor: it stays explained.
        await at.command(f"sort -{column.name}")
        await at.press("j", "k")
        assert not at.status and words in at.lines()[at.explore.status.region.y]


async def drag(at: Driven, begin: tuple[int, int], end: tuple[int, int]) -> None:
    await at.pilot.mouse_down(offset=begin)
    for x in range(begin[0] + 1, end[0] + 1):
        await at.pilot.hover(offset=(x, end[1]))
    await at.settle()
    await at.pilot.mouse_up(offset=end)
    # A terminal's button that goes down and up over one widget clicks it, also after a drag.
    pane = at.app.screen.get_widget_at(*end)[0]
    x, y = end[0] - pane.region.x, end[1] - pane.region.y
    pane.post_message(events.Click(pane, x, y, 0, 0, 1, False, False, False))
    await at.settle()


@pytest.mark.sweep
async def test_a_drag_measures_in_the_timeline() -> None:
    view = View("sample.json", ("3", "11"), name="timeline")
    async with explorer((120, 40), measured_run(), view) as at:
        lanes = at.explore.lanes
        assert lanes is not None
        y = next(y for y, line in enumerate(at.lines()) if lanes.lanes[0] in line)
        await drag(at, (40, y), (60, y))
        now = at.explore.lanes
        assert now is not None and now.seen.mark_ns is not None
        cell_ns = now.seen.length_ns / at.explore.time_cells
        assert (now.seen.at_ns - now.seen.mark_ns) / cell_ns == pytest.approx(20, abs=1)
        assert "after mark" in at.text()


@pytest.mark.parametrize("line", [-2, 99])
async def test_a_button_released_outside_the_timeline_clicks_nothing(
    line: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = View("sample.json", ("3",), name="timeline")
    async with explorer((80, 24), measured_run(), view) as at:
        pane = at.explore.query(PicturePane).first()
        posted: list[object] = []
        with monkeypatch.context() as patched:
            patched.setattr(pane, "drawn", ())
            patched.setattr(pane, "post_message", posted.append)
            pane.on_click(events.Click(pane, 40, line, 0, 0, 1, False, False, False))
        assert not posted


@pytest.mark.sweep
async def test_a_drag_measures_in_a_chart() -> None:
    async with explorer((80, 24), measured_run(), View("sample.json", ("3",))) as at:
        y = next(y for y, line in enumerate(at.lines()) if "┤" in line)
        await drag(at, (20, y), (50, y))
        assert re.fullmatch(
            r"[\d.]+ to [\d.]+ ms: [\d.]+ ms, gfx mean over time \d+, min \d+, max \d+ MHz",
            at.status,
        )
        low, high = map(float, re.findall(r"[\d.]+", at.status)[:2])
        signal = at.explore.run.signal("gfx_mhz").curves[3]
        edges = np.array([low, high]) * 1e6 + at.explore.run.origin_ns
        mean = float(re.findall(r"mean over time (\d+)", at.status)[0])
        assert signal.means(edges)[0] == pytest.approx(mean, rel=0.02)
        pane = next(each for each in at.explore.query(SignalPane) if each.is_shown)
        marked = sum(len(text) for text, ink in [*pane.lines(*pane.size)][1] if ink == "cursor")
        assert marked == 31
        await at.pilot.click(offset=(30, y))
        await at.settle()
        assert not any(ink == "cursor" for _, ink in [*pane.lines(*pane.size)][1])


async def test_a_drag_before_the_first_drawing_measures_and_marks_nothing() -> None:
    async with explorer((120, 40), run=measured_run()) as at:
        pane = at.explore.query(SignalPane).first()
        pane.drawn = ()
        pane.dragged(20, 50)
        assert not any(pane.lines(80, 6))


async def test_the_wheel_moves_the_cursor_of_the_table() -> None:
    async with explorer((80, 24), measured_run(40), View("sample.json")) as at:
        turn = {
            kind: kind(None, 5, 15, 0, 0, 0, False, False, False)
            for kind in (events.MouseScrollDown, events.MouseScrollUp)
        }
        at.app.post_message(turn[events.MouseScrollDown])
        await at.settle()
        down = at.explore.table.cursor
        assert down > 0
        at.app.post_message(turn[events.MouseScrollUp])
        await at.settle()
        assert at.explore.table.cursor == 0
