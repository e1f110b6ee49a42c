"""Dialogs, choosers, help, palette and prompts on terminals of a few cells."""

from __future__ import annotations

from typing import Final

import pytest

from chopper_tui.widgets.footer import Prompt
from tests.tui.explorer import Driven, explorer, measured_run

TINY: Final = [(1, 1), (5, 2), (10, 3), (20, 5), (40, 10)]
OPENERS: Final = {
    "help": ("?",), "palette": ("ctrl+p",), "sort": ("o",), "columns": ("C",), "metric": ("m",),
    "statistic": ("s",), "pivot": ("p",), "detail": ("i",), "notes": ("!",), "why": ("W",),
    "command": (":",), "filter": ("/",), "find": ("f",), "address": ("ctrl+g",),
    "tour": (":tour", "enter"),
    "view": (":view", "enter"),
    "help sought": ("?", "/", "x"), "palette sought": ("ctrl+p", "th"), "column sought": ("o", "e"),
    "completed": (":", "so", "tab", "tab"),
}  # fmt: skip


async def opened(at: Driven, keys: tuple[str, ...]) -> None:
    for key in keys:
        if key.startswith(":") and len(key) > 1:
            await at.press(":")
            await at.type(key[1:])
        elif len(key) > 1 and key not in ("ctrl+p", "ctrl+g", "enter", "tab"):
            await at.type(key)
        else:
            await at.press(key)


def _prompting(at: Driven) -> bool:
    return at.explore.query_one(Prompt).display


async def closed(at: Driven) -> None:
    """Close what is open by Esc alone."""
    for _ in range(4):
        if at.app.screen is at.explore and not _prompting(at):
            return
        await at.press("escape")
    raise AssertionError(f"{at.app.screen} stays open")


@pytest.mark.sweep
@pytest.mark.parametrize("name", OPENERS)
async def test_what_opens_on_a_few_cells_is_resized_and_closed(name: str) -> None:
    async with explorer((80, 24), measured_run()) as at:
        for size in TINY:
            for opening, after in ((size, (80, 24)), ((80, 24), size)):
                await at.pilot.resize_terminal(*opening)
                await at.settle()
                await opened(at, OPENERS[name])
                assert at.app.screen is not at.explore or _prompting(at)
                await at.pilot.resize_terminal(*after)
                await at.settle()
                assert len(at.lines()) == after[1]
                await at.press("down", "end", "up", "pagedown")
                await at.pilot.resize_terminal(*opening)
                await at.settle()
                await closed(at)
