"""The chart of the tree along time: zoom, pan, the scope's part, and its window in the address."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.model.address import parse, render
from chopper_core.model.charts import HeatMap
from chopper_core.model.run import scope_of
from chopper_core.model.view import ALL_TIME, View, Window, enter, up
from chopper_core.render.glyphs import ASCII, UNICODE, Glyphs
from chopper_core.util.errors import UsageError
from chopper_core.views.query import query
from chopper_core.views.shared import signal_charts
from chopper_core.views.shared.signal_charts import signal_chart
from chopper_tui.draw import signal_plot as plot
from chopper_tui.screen import Explorer
from chopper_tui.widgets.chart_panes import SignalPane
from tests.tui.explorer import Driven, explorer, measured_run
from tests.wording import Wording

RUN = "sample.json"
SIZES = [(80, 24), (120, 40), (200, 60)]


def window(at: Driven) -> tuple[int, int]:
    view = at.frame.view
    begin, end = scope_of(at.explore.run, view)
    from_ns, to_ns = view.window.from_ns, view.window.to_ns
    return begin if from_ns is None else from_ns, end if to_ns is None else to_ns


def title(at: Driven) -> str:
    shown = next(each for each in at.explore.query(SignalPane) if each.is_shown)
    return "".join(text for text, _ in shown._title)


@pytest.mark.few(1)
@pytest.mark.parametrize("size", SIZES)
async def test_zoom_pan_and_the_whole_scope(size: tuple[int, int]) -> None:
    async with explorer(size, measured_run(), View(RUN, ("1", "11"))) as at:
        begin, end = window(at)
        before = at.text()
        await at.press("+")
        first, last = window(at)
        assert begin <= first < last <= end and abs((last - first) - (end - begin) / 2) <= 1
        assert " of " in title(at) and at.text() != before
        await at.press("a")
        assert window(at)[1] - window(at)[0] == last - first and window(at)[0] < first
        await at.press("d", "_")
        assert window(at)[1] - window(at)[0] == pytest.approx(end - begin, abs=4)
        await at.press("Z")
        assert at.frame.view.window == ALL_TIME and at.text() == before


@pytest.mark.sweep
async def test_zooming_goes_to_the_row_under_the_cursor() -> None:
    async with explorer((120, 40), measured_run(), View(RUN, ("1",))) as at:
        await at.press("j", "+", "+", "+")
        there = scope_of(at.explore.run, enter(at.frame.view, at.label or ""))
        begin, end = window(at)
        assert there[0] < end and begin < there[1] and end - begin < 3 * (there[1] - there[0])
        # The table, its cursor and its figures are those of the scope still.
        assert at.label == "11" and len(at.frame) == 3


@pytest.mark.sweep
async def test_out_of_the_scope_its_part_is_marked() -> None:
    async with explorer((80, 40), measured_run(), View(RUN, ("1", "11"))) as at:
        await at.press("c", "_", "_")
        begin, end = window(at)
        scope = scope_of(at.explore.run, at.frame.view)
        assert begin < scope[0] and scope[1] < end and "(scope " in title(at)
        axis = next(line for line in at.lines() if "━" in line)
        assert "─" in axis and axis.index("━") > axis.index("└")
        share = axis.count("━") + axis.count("┯") + axis.count("┷")
        cells = len(axis.strip()) - 1
        assert share / cells == pytest.approx((scope[1] - scope[0]) / (end - begin), abs=0.05)


@pytest.mark.sweep
async def test_it_says_where_there_is_no_more(wording: Wording) -> None:
    async with explorer((80, 24), measured_run()) as at:
        await at.press("_")
        wording(at.status, "all of the run's time")
        for _ in range(40):
            await at.press("+")
        assert at.status == "maximum zoom"
        await at.press("c", "c", "+")
        assert "no chart shown" in at.status
        await at.press("c", "9", "+")
        wording(at.status, "no chart")


async def test_pictures_of_views_are_zoomed_and_whole_again(wording: Wording) -> None:
    async with explorer((120, 40), measured_run()) as at:
        await at.command("view launch")
        whole = at.text()
        await at.press("+")
        assert "›│\n" in at.text().replace(" ", "") and at.text() != whole
        await at.press("Z")
        assert at.text() == whole
        await at.press("-")
        wording(at.status, "whole chart")


@pytest.mark.sweep
async def test_a_heat_map_is_zoomed_around_its_cursor() -> None:
    async with explorer((120, 40), measured_run(layers=12)) as at:
        await at.command("view heatmap")
        await at.press(*["l"] * 9)
        heat = at.explore.first_chart(HeatMap)
        assert heat is not None
        column, opens = heat.columns[at.explore.cell[1]], heat.opens
        assert opens is not None
        target = opens(0, at.explore.cell[1])
        await at.press("+", "+")
        near = at.explore.first_chart(HeatMap)
        assert near is not None and len(near.columns) < len(heat.columns)
        assert near.columns[at.explore.cell[1]] == column
        assert near.opens is not None and near.opens(0, at.explore.cell[1]) == target
        await at.press(*["l"] * 9)
        last = at.explore.first_chart(HeatMap)
        assert last is not None and last.columns[at.explore.cell[1]] == heat.columns[-1]


@pytest.mark.sweep
async def test_the_window_is_in_the_address_and_not_in_the_next_scope() -> None:
    async with explorer((80, 24), measured_run(), View(RUN, ("1",))) as at:
        await at.press("+")
        view = parse(at.frame.address)
        assert view.window == at.frame.view.window and "from=" in at.frame.address
        text = at.text()
        async with explorer((80, 24), measured_run(), view) as other:
            assert other.text() == text
        await at.press("m", "down", "enter")
        assert at.frame.view.window == view.window
        await at.press("}")
        assert at.path == ("2",) and at.frame.view.window == view.window
        await at.press("enter")
        assert at.frame.view.window == ALL_TIME
        await at.press("escape")
        assert at.frame.view.window == view.window


@pytest.mark.sweep
async def test_the_keys_of_the_timeline_stay_its_own() -> None:
    async with explorer((80, 24), measured_run(), View(RUN, ("1",))) as at:
        await at.press("2", "+")
        assert at.frame.view.name == "timeline" and at.frame.view.window
        await at.press("1")
        assert isinstance(at.app.screen, Explorer) and at.frame.view.window == ALL_TIME


def test_a_window_of_the_tree_as_an_address() -> None:
    view = View(RUN, ("1",), window=Window(1_000_000, 2_000_000))
    assert render(view) == f"{RUN}:gpu=1?from=1000000ns&to=2000000ns"
    assert parse(f"{RUN}:gpu=1?from=1ms&to=2ms") == view
    assert up(view).window == ALL_TIME
    with pytest.raises(UsageError, match="at= and mark= need a view along time"):
        parse(f"{RUN}?at=1ms")
    with pytest.raises(UsageError, match="after the end of the run"):
        query(measured_run(), replace(view, window=Window(10**12)))


def test_the_means_of_a_window_are_those_of_its_time() -> None:
    run, bins = measured_run(), 64
    view = View(RUN, ("1",))
    whole = signal_chart(run, view, bins)
    cut = whole.start_ns + (whole.end_ns - whole.start_ns) // 4
    part = signal_chart(run, replace(view, window=Window(whole.start_ns, cut)), bins // 4)
    assert part.is_zoomed and not whole.is_zoomed and part.scope_ns == whole.scope_ns
    np.testing.assert_allclose(part.values, whole.values[:, : bins // 4], rtol=1e-4)


def test_a_chart_of_very_many_gpus_shows_some_and_says_so(
    monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    run, view = measured_run(9), View(RUN, signal="busy_pct")
    every = signal_chart(run, view, 32)
    assert every.gpus == tuple(range(9)) and "busy % of 9 GPUs" in plot.plot_headline(
        every, 90, UNICODE
    )
    monkeypatch.setattr(signal_charts, "MOST_CHARTED_GPUS", 4)
    some = signal_chart(run, view, 32)
    assert len(set(some.gpus)) == 4 and set(some.gpus) < set(range(9))
    assert max(np.diff(sorted({-1, *some.gpus, 9}))) <= 3
    np.testing.assert_array_equal(some.values, every.values[list(some.gpus)])
    wording(plot.plot_headline(some, 90, UNICODE), "busy %", "4 of 9 GPUs")


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
@pytest.mark.parametrize("size", [(78, 3), (78, 12), (40, 6), (100, 30)])
def test_a_zoomed_plot_has_its_size(size: tuple[int, int], glyphs: Glyphs) -> None:
    run = measured_run()
    begin, end = scope_of(run, View(RUN, ("1", "11")))
    view = View(RUN, ("1", "11"), window=Window(max(begin - 500_000, 0), end + 500_000))
    signal = run.signal("")
    seen = signal_chart(run, view, plot.bins_for(signal, size[0]))
    lines = plot.draw_signals(seen, *size, glyphs)
    assert [sum(len(text) for text, _ in line) for line in lines] == [size[0]] * size[1]
    text = "".join(piece for line in lines for piece, _ in line)
    assert glyphs is UNICODE or text.isascii()
    ruler = "".join(piece for piece, _ in lines[-2])
    assert ("━" in ruler or (" +" in ruler and "=" in ruler)) == (size[1] >= 6)
    inks = {ink for line in lines for _, ink in line}
    assert {"dim", "good", "shade"} <= inks
