"""The heat map's cursor: it walks the cells, says them, and enters what it points at."""

from __future__ import annotations

import pytest

from chopper_core.model.charts import HeatMap
from chopper_core.model.view import View
from chopper_core.render.glyphs import UNICODE
from tests.demo import demo_run
from tests.tui.explorer import explorer, measured_run

HEAT = View("sample.json", name="heatmap")


async def test_arrows_walk_the_cells_and_enter_goes_to_the_gpu_and_layer() -> None:
    async with explorer((80, 30), measured_run(), HEAT) as at:
        heat = at.explore.first_chart(HeatMap)
        assert heat is not None
        await at.press("down", "l", "right", "left", "l")
        row, column = 1, 2
        name = heat.columns[column]
        number = heat.numbers[row, column]
        assert f"GPU 1, layer {name}: {number:.3g} ms"[:24] in at.text()
        await at.press("enter")
        assert dict(at.frame.view.scope) == {"gpu": "1", "layer": name}
        assert at.frame.total["elapsed_ns"] == pytest.approx(number * 1e6)
        await at.press("escape")
        assert at.frame.view.name == "heatmap" and at.explore.cell[1] == column


async def test_the_cursor_stays_within_the_columns() -> None:
    async with explorer((80, 24), measured_run(), HEAT) as at:
        await at.press("h")
        assert at.explore.cell[1] == 0
        columns = len(at.explore.first_chart(HeatMap).columns)  # type: ignore[union-attr]
        await at.press(*["l"] * (columns + 2))
        assert at.explore.cell[1] == columns - 1


@pytest.mark.sweep
async def test_enter_takes_the_last_column_where_the_map_before_had_more() -> None:
    async with explorer((80, 24), measured_run(), HEAT) as at:
        await at.press(*["l"] * 4)
        await at.command("by step")
        heat = at.explore.first_chart(HeatMap)
        assert heat is not None and at.explore.cell[1] >= len(heat.columns)
        await at.press("enter")
        assert dict(at.frame.view.scope)["iteration"] == heat.columns[-1]


@pytest.mark.sweep
async def test_m_cycles_the_figures_that_the_run_has_and_comes_back() -> None:
    async with explorer((80, 24), measured_run(), HEAT) as at:
        seen = [at.frame.view.of]
        for _ in range(7):
            await at.press("m")
            seen.append(at.frame.view.of)
        assert seen[:4] == ["", "gfx_mhz", "gfx_util_pct", "power_w"]
        assert "hotspot_c" not in seen and "" in seen[1:]


@pytest.mark.sweep
async def test_points_and_commas_step_through_the_iterations() -> None:
    async with explorer((80, 24), measured_run(), HEAT) as at:
        totals = []
        for _ in range(3):
            await at.press(".")
            totals.append((dict(at.frame.view.scope)["iteration"], at.frame.parent_ns))
        assert [label for label, _ in totals] == ["10", "11", "12"]
        await at.press(".")
        assert at.frame.view.path == () and at.status == "all steps"
        assert at.frame.parent_ns == sum(time for _, time in totals)
        await at.press(",")
        assert dict(at.frame.view.scope) == {"iteration": "12"}


@pytest.mark.sweep
async def test_a_click_moves_the_cursor_and_a_second_one_enters() -> None:
    async with explorer((80, 30), measured_run(), HEAT) as at:
        line = next(y for y, text in enumerate(at.lines()) if text.startswith(" GPU 2"))
        spot = at.lines()[line].index("GPU 2") + 40
        await at.pilot.click(offset=(spot, line))
        await at.settle()
        assert at.label == "2" and at.explore.cell[1] > 0
        column = at.explore.cell[1]
        await at.pilot.click(offset=(spot, line))
        await at.settle()
        assert dict(at.frame.view.scope)["gpu"] == "2"
        assert at.explore.cell[1] == column


@pytest.mark.sweep
@pytest.mark.parametrize("by", ["operation", "kernel", "phase", "iteration"])
async def test_every_split_enters_its_cell(by: str) -> None:
    view = View("sample.json", name="heatmap", by=by)
    async with explorer((120, 40), measured_run(), view, UNICODE) as at:
        heat = at.explore.first_chart(HeatMap)
        assert heat is not None
        await at.press("l", "enter")
        assert dict(at.frame.view.scope) == {"gpu": "0", by: heat.columns[1]}


@pytest.mark.sweep
async def test_the_columns_of_who_waits_for_whom_have_whole_names() -> None:
    view = View("R", name="ranks")
    async with explorer((200, 60), demo_run(named="R"), view) as at:
        lines = at.lines()
        first = next(y for y, line in enumerate(lines) if "who waits (rows)" in line)
        axis = next(line for line in lines[first:] if line.lstrip("│ ").startswith("GPU 0    "))
        assert axis.strip("│ ").split("  last to")[0].split() == [
            word for gpu in range(8) for word in ("GPU", str(gpu))
        ]


async def test_a_cell_of_a_row_that_a_filter_took_away_has_no_row() -> None:
    async with explorer((80, 24), measured_run(), HEAT) as at:
        await at.command("filter nothing_is_called_so")
        assert at.explore.first_chart(HeatMap) is not None and not len(at.frame)
        at.explore.move_to_cell((0, 1))
        assert at.explore.cell == (0, 1)
