"""Walking the icicle by keys and mouse."""

from __future__ import annotations

import pytest

from chopper_core.model.charts import Icicle
from chopper_core.model.view import View
from tests.tui.explorer import explorer, measured_run

SCOPE = ("1", "11")


async def test_its_blocks_are_walked_and_entered() -> None:
    async with explorer((120, 40), measured_run(), View("sample.json", SCOPE)) as at:
        await at.press("1")
        icicle = at.explore.first_chart(Icicle)
        assert at.frame.view.name == "icicle" and icicle is not None
        await at.press("l")
        assert at.explore.cell == (0, 1) and at.label == icicle.rows[0].labels[1]
        await at.press("j")
        depth, block = at.explore.cell
        inside = icicle.rows[1]
        assert depth == 1 and inside.parents[block] == 1
        times = inside.ends_ns - inside.begins_ns
        assert times[block] == times[inside.parents == 1].max()
        await at.press("k", "h")
        assert at.explore.cell == (0, 0) and at.label == icicle.rows[0].labels[0]
        await at.press("G")
        assert at.explore.cell[1] == len(icicle.rows[0].labels) - 1
        await at.press("g", "enter")
        assert at.path == (*SCOPE, "forward") and at.frame.view.name == "icicle"
        await at.press("escape")
        assert at.path == SCOPE and at.frame.view.name == "icicle"
        await at.press("escape")
        assert at.path == SCOPE and not at.frame.view.name


async def test_its_colour_is_the_next_figure_and_its_order_another_level() -> None:
    async with explorer((120, 40), measured_run(), View("sample.json", SCOPE)) as at:
        await at.press("1")
        assert "colour gfx MHz" in at.text()
        await at.press("m")
        assert at.frame.view.of == "busy_pct" and "colour busy %" in at.text()
        await at.command("pivot layer")
        assert "by layer, phase" in at.text()


@pytest.mark.sweep
async def test_a_click_selects_a_block_and_opens_the_selected_one() -> None:
    async with explorer((120, 40), measured_run(), View("sample.json", SCOPE)) as at:
        await at.press("1")
        y, line = next((y, line) for y, line in enumerate(at.lines()) if "backward" in line)
        for _ in range(2):
            await at.pilot.click(offset=(line.index("backward"), y))
            await at.settle()
            if at.path == SCOPE:
                assert at.explore.cell == (0, 1)
        assert at.path == (*SCOPE, "backward")
