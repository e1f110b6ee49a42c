"""What the screen looks like beyond its text: panels, the cursor's bar, what lies under dialogs."""

from __future__ import annotations

from typing import Any

import pytest
from rich.color import ColorSystem
from rich.style import Style
from textual.strip import Strip

from chopper_core.model.view import View
from chopper_tui.app import ChopperApp
from chopper_tui.widgets.chart_panes import SignalPane
from tests.demo import demo_run
from tests.tui.explorer import explorer, measured_run

RUN = "sample.json"


def coloured() -> ChopperApp:
    app = ChopperApp(lambda _: measured_run(), View(RUN))
    app.console._color_system = ColorSystem.TRUECOLOR
    return app


def styles(strip: Strip) -> set[Style]:
    return {segment.style for segment in strip if segment.style and segment.text}


@pytest.mark.parametrize("size", [(80, 24), (200, 60)])
async def test_the_cursors_bar_reaches_over_the_table(size: tuple[int, int]) -> None:
    async with explorer(size, app=coloured()) as at:
        await at.press("j")
        table = at.explore.table
        rows = [table.render_line(1 + row) for row in range(3)]
        assert all(strip.cell_length == table.size.width for strip in rows)
        cursor = at.app.inks.of("cursor").bgcolor
        plain = [each.text for each in rows[1] if each.style and each.style.bgcolor != cursor]
        # A move sends no picture again: each keeps its ground.
        assert set("".join(plain)) <= set("▁▂▃▄▅▆▇█")
        assert at.app.inks.of("cursor").bgcolor not in {s.bgcolor for s in styles(rows[0])}


@pytest.mark.parametrize(("size", "has_panels"), [((99, 40), False), ((100, 30), True)])
async def test_parts_are_titled_panels_where_there_is_room(
    size: tuple[int, int], has_panels: bool
) -> None:
    view = View(RUN, name="overview")
    async with explorer(size, measured_run(), view) as at:
        title = next(line for line in at.lines() if line.startswith(("╭─ findings", "  findings")))
        assert title.startswith("╭─ findings") is has_panels
        bottom = next(line for line in at.lines() if "per step and GPU" in line)
        assert bottom.startswith("╰") is has_panels


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("size", "is_beside"), [((80, 24), False), ((120, 28), False), ((120, 36), True)]
)
async def test_curves_stand_above_the_table_and_as_panels_next_to_each_other(
    size: tuple[int, int], is_beside: bool
) -> None:
    async with explorer(size, measured_run(), View(RUN)) as at:
        panes = [pane.region for pane in at.explore.query(SignalPane) if pane.is_shown]
        table = at.explore.table.region
        assert all(pane.bottom <= table.y for pane in panes) and table.height > 4
        assert len(panes) == 1 + is_beside
        assert (len({pane.y for pane in panes}) < len(panes)) is is_beside


async def test_what_lies_under_a_dialog_is_dim() -> None:
    async with explorer((120, 40), app=coloured()) as at:
        before: list[Any] = at.app.screen._compositor.render_strips()
        await at.press("o")
        under = at.app.screen._compositor.render_strips()
        bright = {style.color for style in styles(before[0])}
        dim = {style.color for style in styles(under[0])}
        assert under[0].text == before[0].text and bright.isdisjoint(dim)


async def test_the_colours_of_a_chart_are_named_in_a_narrow_terminal() -> None:
    async with explorer((80, 24), run=demo_run()) as at:
        await at.command("view compare")
        await at.settle()
        assert "(GPU 5, median shaded)" in at.text()
