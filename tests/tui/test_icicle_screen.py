"""Walking the icicle by keys and mouse."""

from __future__ import annotations

import pytest

from chopper_core.model.charts import Icicle
from chopper_core.model.view import View
from chopper_core.render.glyphs import ASCII, UNICODE, Glyphs
from chopper_core.views.query import query
from chopper_tui.draw.canvas import Canvas
from chopper_tui.draw.heat import IcicleDrawer
from tests.tui.explorer import explorer, measured_run

SCOPE = ("1", "11")


async def test_its_blocks_are_walked_and_entered() -> None:
    async with explorer((120, 40), measured_run(), View("sample.json", SCOPE)) as at:
        await at.press("T")
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


@pytest.mark.sweep
async def test_its_colour_is_the_next_figure_and_its_order_another_level() -> None:
    async with explorer((120, 40), measured_run(), View("sample.json", SCOPE)) as at:
        await at.press("T")
        assert "colour gfx MHz" in at.text()
        await at.press("m")
        assert at.frame.view.of == "busy_pct" and "colour busy %" in at.text()
        await at.command("pivot layer")
        assert "by layer, phase" in at.text()


@pytest.mark.sweep
async def test_a_click_selects_a_block_and_opens_the_selected_one() -> None:
    async with explorer((120, 40), measured_run(), View("sample.json", SCOPE)) as at:
        await at.press("T")
        y, line = next((y, line) for y, line in enumerate(at.lines()) if "backward" in line)
        for _ in range(2):
            await at.pilot.click(offset=(line.index("backward"), y))
            await at.settle()
            if at.path == SCOPE:
                assert at.explore.cell == (0, 1)
        assert at.path == (*SCOPE, "backward")


@pytest.mark.sweep
async def test_it_is_zoomed_around_its_cursor_and_moved() -> None:
    async with explorer((120, 40), measured_run(), View("sample.json", SCOPE)) as at:
        await at.press("T", "l", "j")
        cell, whole = at.explore.cell, at.text()
        await at.press("+", "+")
        icicle = at.explore.first_chart(Icicle)
        assert icicle is not None and at.explore.cell == cell
        row = icicle.rows[cell[0]]
        total = int(icicle.rows[0].ends_ns[-1])
        middle = (row.begins_ns[cell[1]] + row.ends_ns[cell[1]]) / 2 / total
        begin, end = icicle.seen
        assert end - begin == pytest.approx(0.25) and begin <= middle <= end
        await at.press("a")
        moved = at.explore.first_chart(Icicle)
        assert moved is not None and moved.seen[0] < begin
        await at.press("Z")
        assert at.text() == whole


@pytest.mark.few(3)
@pytest.mark.parametrize("width", [20, 60, 200])
@pytest.mark.parametrize("glyphs", [UNICODE, UNICODE.coloured(True), ASCII])
def test_the_cursor_is_seen_on_blocks_narrower_than_a_cell(width: int, glyphs: Glyphs) -> None:
    frame = query(measured_run(), View("sample.json", name="icicle"))
    icicle = next(chart for chart in frame.charts if isinstance(chart, Icicle))
    drawer = IcicleDrawer()
    for depth, row in enumerate(icicle.rows):
        for block in range(0, len(row.labels), max(len(row.labels) // 5, 1)):
            on = Canvas(width, 30, glyphs, depth, block)
            drawer.body(icicle, on)
            *levels, _, _ = on.lines
            text = "".join(piece for line in levels for piece, _ in line)
            assert ("[" if glyphs.is_ascii else glyphs.cursor) in text
