"""The mouse does what keys do: it presses the keys of the last line and the entries of help."""

from __future__ import annotations

from chopper_tui.widgets.footer import KeyLine
from chopper_tui.widgets.header import Position
from chopper_tui.widgets.reader import Reader
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


async def test_the_hint_opens_the_help_and_its_entries_are_buttons() -> None:
    async with explorer((120, 40), run=measured_run()) as at:
        await click(at, "? help", Position)
        assert isinstance(at.app.screen, Reader)
        await click(at, "3  kernels")
        assert at.frame.view.name == "kernels"
        await at.press("?")
        await at.type("/reverse the sort")
        await click(at, "Reverse the sort")
        assert at.frame.sort.startswith("-") is False and at.frame.sort
