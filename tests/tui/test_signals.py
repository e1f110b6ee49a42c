"""Signals over time: which ones are shown where, how they are chosen, and what is held."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from threading import Event

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.analyses.signal_changes import second_signal
from chopper_core.columns import METRICS
from chopper_core.model.run import Run
from chopper_core.model.table import LEVELS
from chopper_core.model.view import View
from chopper_core.render.glyphs import UNICODE
from chopper_core.util.progress import Cancelled
from chopper_core.views.query import query
from chopper_core.views.shared.signal_charts import SignalChart
from chopper_tui import screen_data as looks
from chopper_tui.draw.figures import Figure, detail, figures_shown
from chopper_tui.draw.pieces import Pieces
from chopper_tui.screen_data import on_every_gpu
from chopper_tui.widgets import chart_panes as track_chart
from chopper_tui.widgets import frame_table
from chopper_tui.widgets.chart_panes import GpuPane, SignalPane
from chopper_tui.widgets.detail import _groups, full_detail
from chopper_tui.widgets.dialogs import Chooser
from tests.tui.explorer import Driven, explorer, measured_run, sample_run

DEEP = ("3", "11", "backward", "2")


def charts(at: Driven) -> list[str]:
    """The signals of the charts on the screen."""
    return [
        chart.content[1].signal
        for chart in at.explore.query(SignalPane)
        if chart.is_shown and chart.content
    ]


def test_the_second_signal_is_use_else_busy_else_another() -> None:
    assert second_signal(measured_run(), "gfx_mhz") == "gfx_util_pct"
    assert second_signal(measured_run(), "gfx_util_pct") == "busy_pct"
    assert second_signal(sample_run(), "comm_pct") == "busy_pct"
    # Where nothing else runs, busy and compute are one curve.
    assert second_signal(sample_run(), "busy_pct") == "comm_pct"


def test_the_means_of_the_second_signal_are_of_the_same_rows() -> None:
    run = measured_run()
    view = View("sample.json", DEEP, sort="-idle_ns", filter="!mlp", columns=("kernels",))
    seen = looks.screen_data(run, view)
    rows = np.arange(len(seen.frame))
    for signal in seen.signals:
        frame = query(run, replace(view, signal=signal.signal.name))
        np.testing.assert_array_equal(signal.means(rows, 7), frame.means(rows, 7))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("size", "signals", "sparks"),
    [
        ((80, 24), ["gfx_mhz"], 1),
        ((99, 40), ["gfx_mhz"], 2),
        ((120, 40), ["gfx_mhz", "gfx_util_pct"], 2),
        ((160, 50), ["gfx_mhz", "gfx_util_pct"], 1),
        ((200, 60), ["gfx_mhz", "gfx_util_pct"], 2),
    ],
)
async def test_how_many_signals_are_shown(
    size: tuple[int, int], signals: list[str], sparks: int
) -> None:
    async with explorer(size, measured_run()) as at:
        assert charts(at) == signals
        assert len(at.explore.table.sparks) == sparks
        drawn = at.explore.table.sparks[-1].drawn
        assert set(drawn) == set(range(4)) and all(
            "".join(text for text, _ in line) in at.text() for line in drawn.values()
        )
        await at.press("M")
        assert charts(at) == ["gfx_util_pct", "busy_pct"][: len(signals)]


def _text(pieces: Pieces) -> str:
    return "".join(text for text, _ in pieces).strip()


def in_sight(at: Driven) -> set[str]:
    """The signals that the screen shows: in charts, and in columns of sparklines."""
    shown = {
        chart.content[1].signal
        for chart in at.explore.query(SignalPane)
        if chart.content and chart.region.height > 1 and chart.drawn
    }
    for column in at.explore.table.sparks:
        drawn = column.drawn.get(at.explore.table.cursor)
        if isinstance(column, looks.Sparks) and drawn and _text(drawn) in at.text():
            shown.add(column.signal.signal.name)
    return shown


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "size",
    [
        *((60, 16), (80, 24), (120, 40), (60, 60), (72, 20), (100, 16), (119, 29)),
        *((120, 16), (120, 24), (140, 30), (160, 50), (200, 60), (300, 20), (400, 120)),
    ],
)
async def test_clock_and_utilisation_are_in_sight_at_every_level(size: tuple[int, int]) -> None:
    async with explorer(size, measured_run(), View("sample.json")) as at:
        for level in LEVELS:
            await at.settle()
            shown = in_sight(at)
            if level == "kernel":
                # Names of kernels leave tables room for figures alone.
                shown |= {each.name for each in at.explore.table.layout_plan.columns}
            assert {"gfx_mhz", "gfx_util_pct"} <= shown, f"{level}:\n{at.text()}"
            await at.press("enter")


@pytest.mark.sweep
async def test_the_table_adapts_when_the_terminal_grows() -> None:
    async with explorer((80, 24), measured_run()) as at:
        await at.pilot.resize_terminal(160, 50)
        await at.settle()
        assert len(at.explore.table.sparks) == 1 and charts(at) == ["gfx_mhz", "gfx_util_pct"]
        await at.pilot.resize_terminal(80, 24)
        await at.settle()
        assert len(at.explore.table.sparks) == 1 and charts(at) == ["gfx_mhz"]


@pytest.mark.sweep
async def test_the_next_signal_comes_round() -> None:
    async with explorer(run=measured_run()) as at:
        seen = []
        for _ in at.explore.run.signal_names:
            await at.press("M")
            seen.append(at.frame.signal.name)
        assert seen == [*at.explore.run.signal_names[1:], at.explore.run.signal_names[0]]
        assert at.status == "chart gfx 1400-1850 MHz"


@pytest.mark.sweep
async def test_the_chosen_signal_stays_everywhere() -> None:
    async with explorer(run=measured_run(), view=View("sample.json", DEEP[:2])) as at:
        await at.press("m")
        assert isinstance(at.app.screen, Chooser)
        await at.press("down", "down", "enter")
        assert at.frame.signal.name == "power_w"
        for key in ("enter", "]", "{", "p", "escape", "escape", "escape", "escape", "H", "H"):
            await at.press(key)
            assert at.frame.signal.name == "power_w", key
        await at.command("pivot operation")
        assert at.frame.signal.name == "power_w" and charts(at) == ["power_w"]


async def test_a_signal_that_the_run_lacks() -> None:
    async with explorer() as at:
        await at.command("metric power_w")
        assert "unknown signal 'power_w'" in at.status and at.frame.signal.name == "busy_pct"


@pytest.mark.sweep
async def test_held_values_are_marked_everywhere() -> None:
    async with explorer((160, 50), measured_run(), View("sample.json", DEEP)) as at:
        held = at.frame.values["gfx_mhz"].extrapolated
        assert held is not None and held.any() and not held.all()
        row = int(np.flatnonzero(held)[0])
        await at.press(*"j" * row)
        clock = next(
            figure
            for figure in detail(at.explore.run, at.frame, row).groups["telemetry"]
            if figure.metric.name == "gfx_mhz"
        )
        assert clock.held
        text = clock.text(UNICODE).removesuffix(" MHz")
        line = next(line for line in at.lines() if f" ▌ {at.label}" in line)
        assert text.startswith("~") and text in line
        assert any("gfx MHz " in line and f" {text}" in line for line in at.lines()[5:])


def test_a_detail_tells_figures_then_zeros_then_reasons() -> None:
    run = measured_run()
    frame = query(run, View("sample.json", DEEP))
    seen = detail(run, frame, frame.labels.index("all_gather"))
    assert list(seen.groups)[:2] == ["time", "telemetry"]
    of_view = detail(run, query(run, View("sample.json", name="determinism")), 0)
    assert "GPUs · steadiness" in of_view.groups and "determinism" not in of_view.groups
    shown = [figure for figures in seen.groups.values() for figure in figures]
    assert all(figure.number or figure.word for figure in shown)
    assert "compute_ns" in {metric.name for metric in seen.zeros}
    assert {"hotspot_c", "theoretical_ns"} <= {metric.name for metric in seen.missing}
    lines = ["".join(text for text, _ in line) for line in full_detail(seen, 10_000, UNICODE)]
    assert all(metric.missing_because for metric in seen.missing)
    told = {metric.name for metrics in seen.reasons.values() for metric in metrics}
    told |= {metric.name for metrics in seen.lacking.values() for metric in metrics}
    assert told == {metric.name for metric in seen.missing}
    for reason, metrics in seen.reasons.items():
        line = next(line for line in lines if line.endswith(f": {reason}"))
        assert line.startswith("– ") and metrics[0].title in line


@pytest.mark.parametrize("width", range(38, 100, 5))
def test_no_title_beside_a_table_is_cut(width: int) -> None:
    run = measured_run()
    figures = tuple(Figure(metric, 1234.5) for metric in METRICS.values())
    words = (Figure(METRICS["kernels"], 0.0, word="communication"),)
    seen = replace(
        detail(run, query(run, View("sample.json", DEEP)), 0), groups={"time": figures + words}
    )
    lines = [
        "".join(text for text, _ in line) for line in _groups(seen, width, UNICODE, short=True)
    ]
    assert max(map(len, lines)) <= width + 2
    for figure in figures:
        assert any(f"{figure.metric.title} " in line for line in lines), figure.metric.title
    assert any("communication" in line for line in lines)


async def test_the_row_on_every_gpu_says_so_after_a_long_name() -> None:
    path = ("3", "11", "backward", "2", "qkv_ip")
    async with explorer((120, 40), measured_run(), View("sample.json", path)) as at:
        assert " on every GPU " in at.text() and at.label is not None and len(at.label) > 20


@pytest.mark.parametrize("width", [60, 80, 120])
async def test_key_figures_give_way(width: int) -> None:
    async with explorer((width, 24), measured_run(), View("sample.json", DEEP)) as at:
        line = at.lines()[2]
        values = figures_shown(
            at.explore.run, at.frame.view, ("gfx_mhz", "gfx_util_pct", "power_w")
        )
        assert values["gfx_mhz"].text(UNICODE) in line
        assert (values["power_w"].text(UNICODE) in line) == (width >= 80)
        assert ("kernels" in line) == (width >= 120)


async def test_the_times_and_clocks_of_a_row_on_every_gpu() -> None:
    run = measured_run()
    async with explorer((160, 50), run, View("sample.json", DEEP[:1])) as at:
        view = on_every_gpu(run, at.frame.view, at.label or "")
        assert (
            view is not None
            and view.path == (at.label,)
            and view.order[:2]
            == (
                "iteration",
                "gpu",
            )
        )
        frame, own = query(run, view), query(run, View("sample.json"))
        assert frame.labels == own.labels and frame.values["elapsed_ns"].known().sum() > 0
        lines = _lines(at.explore.query_one(GpuPane))
        for row, line in enumerate(lines[1:]):
            clock = frame.values["gfx_mhz"].at(row)
            assert clock is not None and f"{clock:.0f}" in line
        slowest = int(np.argmax(frame.values["elapsed_ns"].known()))
        assert slowest == 3 and "▲" in lines[1 + slowest]


async def test_a_run_without_telemetry_has_no_word_of_it() -> None:
    async with explorer((160, 50), view=View("sample.json", DEEP)) as at:
        assert not any("MHz" in line.partition("│")[0] for line in at.lines())
        assert charts(at) == ["busy_pct", "comm_pct"]


async def test_a_signal_that_some_gpus_lack(size: tuple[int, int] = (160, 50)) -> None:
    run = measured_run()
    signal = run.measured["gfx_mhz"]
    partial: Run = replace(run, measured={"gfx_mhz": replace(signal, curves={0: signal.curves[0]})})
    async with explorer(size, partial, View("sample.json", ("1",))) as at:
        assert "not known here" in at.text() and charts(at) == ["gfx_mhz", "busy_pct"]


@pytest.mark.few(1)
@pytest.mark.parametrize("width", [120, 160, 220])
async def test_the_row_on_every_gpu_has_its_signal(width: int) -> None:
    run = measured_run()
    view = View("sample.json", ("3", "11", "backward", "2"))
    async with explorer((width, 50), run, view) as at:
        lines = _lines(at.explore.query_one(GpuPane))
        assert len(lines) == 5 and "gfx" in lines[0]
        assert all(set(line) & set("▁▂▃▄▅▆▇█─") for line in lines[1:])
        there = on_every_gpu(run, view, at.label or "")
        assert there is not None
        frame = query(run, there)
        own = at.frame.values["elapsed_ns"].at(0)
        assert frame.values["elapsed_ns"].at(3) == own and frame.values["gfx_mhz"].at(3) is not None


def _lines(pane: GpuPane) -> list[str]:
    return ["".join(text for text, _ in line) for line in pane.drawn]


@pytest.mark.sweep
async def test_a_chart_that_is_hidden_meanwhile_is_drawn_when_it_is_shown_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began, go_on = Event(), Event()
    given_up: list[bool] = []
    plain = track_chart.kept_signal_chart

    def slow(run: Run, view: View, bins: int, check: Callable[[], None]) -> SignalChart:
        if view.path == ("1",) and not given_up:
            began.set()
            go_on.wait(20)
            with suppress(Cancelled):
                check()
                given_up.append(False)
            given_up.append(True)
        return plain(run, view, bins, check)

    monkeypatch.setattr(track_chart, "kept_signal_chart", slow)
    # A run of its own: of another test's the chart may be known.
    async with explorer(run=measured_run.__wrapped__()) as at:
        at.send("j", "enter")
        while not began.is_set():
            await asyncio.sleep(0.01)
        at.send("3")
        while at.frame.view.name != "kernels":
            await asyncio.sleep(0.01)
        go_on.set()
        await at.settle()
        assert given_up and all(given_up)
        await at.press("1")
        assert at.path == ("1",)
        drawn = at.explore.query(track_chart.SignalPane).first()
        assert drawn.display and drawn.drawn and "MHz" in drawn._title[1][0]


@pytest.mark.sweep
async def test_sparklines_of_a_cancelled_worker_are_painted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its thread draws them all the same: the worker after it finds nothing missing."""
    async with explorer((120, 40), measured_run()) as at:
        shown, table = at.text(), at.explore.table

        async def drawn_and_cancelled(work: Callable[..., None], *given: object) -> None:
            work(*given)
            raise asyncio.CancelledError

        for sparks in table.sparks:
            sparks.drawn.clear()
        table.refresh()
        await at.settle()
        assert at.text() != shown
        monkeypatch.setattr(frame_table, "run_in_thread", drawn_and_cancelled)
        table._fill_sparks()
        await at.settle()
        assert at.text() != shown and all(sparks.drawn for sparks in table.sparks)
        monkeypatch.undo()
        table._fill_sparks()
        await at.settle()
        assert at.text() == shown
