"""Six columns in every table: headings as drawn, at 80 and at 120 cells."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from chopper_core.model.charts import lanes_of_rows
from chopper_core.model.view import View, with_view
from chopper_core.render.cells import cell_width, column_texts
from chopper_core.views import TABS, TREE
from chopper_tui.widgets.chart_panes import PicturePane
from tests.demo import demo_run
from tests.tui.explorer import Driven, explorer, measured_run

SIX = 6


def heading_lines(at: Driven) -> list[str]:
    """The lines of the table above its first row, as they are on the screen."""
    table = at.explore.table
    return [
        "".join(segment.text for segment in table.render_line(y))
        for y in range(table.heading_lines)
    ]


def headings(at: Driven) -> int:
    """How many columns are drawn: their headings are two cells apart, that of the rows is first."""
    last = re.sub(r"^ ?[<>]?", "", heading_lines(at)[-1])
    shown = [each for each in re.split(r"\s{2,}", last.strip()) if each]
    lanes = lanes_of_rows(at.frame.charts)
    layout = at.explore.table.layout_plan
    assert layout is not None
    # A lane's heading is its axis, that of sparklines is no figure.
    pictures = sum(cell_width(each.header) > 0 for each in layout.sparks)
    return len(layout.columns) + 2 if lanes and layout.sparks else len(shown) - pictures


def assert_six(at: Driven, where: str) -> None:
    # A unit of its own, for programs, repeats what stands behind a value.
    has = 1 + sum(text.metric.name != "figure_unit" for text in column_texts(at.frame))
    assert headings(at) >= min(SIX, has), (where, has, heading_lines(at))


@pytest.mark.few(1)
@pytest.mark.parametrize("size", [(80, 24), (120, 36)], ids=str)
@pytest.mark.parametrize("path", [(), ("3", "11", "backward")], ids=str)
async def test_every_table_of_the_demo_has_six_columns(
    size: tuple[int, int], path: tuple[str, ...]
) -> None:
    run = demo_run()
    async with explorer(size, run, View(run.name, path)) as at:
        seen = 0
        for name in TABS:
            view = with_view(View(run.name, path), "" if name == TREE else name)
            await at.explore.go(at.explore.trail_to(view))
            await at.settle()
            # Findings and live have panels of their own; some views need another run.
            if at.frame.view.name == view.name and at.explore.table.size.height:
                assert_six(at, name)
                seen += 1
            if name == "timeline":
                # Its lanes are never left out for its table.
                assert at.explore.query_one(PicturePane).size.height > len(run.gpus)
        assert seen >= len(TABS) * 2 // 3


@pytest.mark.parametrize("name", ["", "launch", "roofline", "ranks"])
async def test_a_heading_of_two_lines_reads_as_in_one(name: str) -> None:
    """Words are never cut in a heading, and both lines sort and explain as one."""
    run = measured_run()
    async with explorer((80, 24), run, replace(View(run.name), name=name)) as at:
        assert_six(at, name)
        layout = at.explore.table.layout_plan
        assert layout is not None
        texts = {text.metric.name: text.header for text in column_texts(at.frame)}
        for column in layout.columns:
            whole = f"{column.above} {column.header}".strip().rstrip("▲▼")
            assert whole in (texts[column.name], texts[column.name].replace("% of parent", "%"))
        lines = heading_lines(at)
        assert {cell_width(line) for line in lines} == {at.explore.table.size.width}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["kernels", "lost"])
async def test_names_of_kernels_are_not_cut_for_one_line_of_headings(name: str) -> None:
    """At 80 columns they had 16 cells: `ncclDevKer…neric`."""
    run = demo_run()
    async with explorer((80, 24), run, View(run.name, name=name)) as at:
        layout = at.explore.table.layout_plan
        assert layout is not None and layout.name_width >= 24
        assert len(layout.columns) >= 5
        assert "ncclDevKernel_Generic" in at.text() or name == "lost"
