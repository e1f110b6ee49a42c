"""Pictures show what is: areas from zero, inks and patterns that differ, lanes that matter."""

from __future__ import annotations

import re
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.analyses.leads import leads
from chopper_core.analyses.step_times import gap_of_programs
from chopper_core.model import groups
from chopper_core.model.charts import BarChart, LaneCells, LineChart, Roofline, Series
from chopper_core.model.inputs import Source
from chopper_core.model.run import interval_of
from chopper_core.model.signals import Signal, nearest_values
from chopper_core.model.units import Unit
from chopper_core.model.view import Baseline, View
from chopper_core.render.glyphs import ASCII, UNICODE
from chopper_core.render.palette import MEANINGS, again
from chopper_core.views import view_specs
from chopper_core.views.query import query
from chopper_core.views.shared.signal_charts import signal_chart
from chopper_tui.app import ChopperApp
from chopper_tui.config import DEFAULTS
from chopper_tui.draw import signal_plot
from chopper_tui.draw.canvas import Canvas
from chopper_tui.draw.charts import as_lines, chart_lines
from chopper_tui.draw.pieces import series_fills, series_inks
from chopper_tui.draw.theme import GROUNDS, THEMES, inks
from chopper_tui.draw.timeline import LanesDrawer, lane_line
from tests.support import Row, run_of
from tests.tui.explorer import explorer, measured_run, sample_run

SECOND = 10**9
ORDER = ("iteration", "gpu", "phase", "layer", "operation", "kernel")


def headline(low: float, high: float, unit: str) -> tuple[str, float]:
    """The title and the lower end of the chart of a signal between two values."""
    run = sample_run()
    end = int((run.table.start_ns + run.table.duration_ns).max())
    times = np.linspace(run.origin_ns, end, 40).astype(np.int64)
    curve = nearest_values(times, np.linspace(low, high, 40), 1_000_000)
    signal = Signal("x", "x", Unit(unit), {0: curve}, low, high)
    chart = signal_chart(replace(run, measured={"x": signal}), View(run.name, signal="x"), 20)
    return signal_plot.plot_headline(chart, 200, UNICODE), signal_plot.value_range(chart)[0]


@pytest.mark.parametrize(
    ("low", "high", "unit"), [(1576.0, 1680.0, "MHz"), (300.0, 700.0, "W"), (75.0, 99.0, "%")]
)
def test_an_area_begins_at_zero_or_says_where(low: float, high: float, unit: str) -> None:
    text, begin = headline(low, high, unit)
    said = re.search(r", axis from ([\d.]+)", text)
    assert begin == (0.0 if said is None else pytest.approx(float(said[1]), rel=0.01))
    # Where most of it would be below the axis' first value, it is shown from zero.
    assert (said is None) == (low < 0.6 * high)


def test_a_curve_alone_begins_at_zero_or_says_where() -> None:
    for low, is_said in ((90.0, True), (20.0, False)):
        numbers = np.linspace(low, 100.0, 30)
        chart = LineChart.over("queue", "MB", "time", "ms", np.arange(30.0), {"q": numbers})
        first, *rest = as_lines([chart], 80, UNICODE)
        assert (f"from {low:.0f}" in first) == is_said
        assert is_said or any(line.lstrip().startswith("0") for line in rest)


NAMES = ("forward GEMM", "forward vector", "backward GEMM", "backward vector", "communication")


def test_parts_of_one_meaning_differ_without_dither() -> None:
    used = series_inks(NAMES)
    assert len(set(used)) == len(NAMES)
    assert set(series_fills(used, UNICODE.coloured(True))) == {UNICODE.bar[-1]}
    for glyphs in (UNICODE, ASCII, UNICODE.coloured(True, has_few=True)):
        fills = series_fills(used, glyphs)
        pairs = [*zip(used, fills, strict=True)]
        own = [(ink.rstrip("~") if glyphs.has_few else "", fill) for ink, fill in pairs]
        assert len(set(own)) == len(NAMES)


def oklab(colour: str) -> np.ndarray:
    """Ottosson's OKLab of an sRGB colour."""
    rgb = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    lms = np.cbrt(np.array([[0.4122214708, 0.5363325363, 0.0514459929],
                            [0.2119034982, 0.6806995451, 0.1073969566],
                            [0.0883024619, 0.2817188376, 0.6299787005]]) @ linear)  # fmt: skip
    return np.array([[0.2104542553, 0.7936177850, -0.0040720468],
                     [1.9779984951, -2.4285922050, 0.4505937099],
                     [0.0259040371, 0.7827717662, -0.8086757660]]) @ lms  # fmt: skip


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_a_meaning_once_more_is_told_from_what_is_in_its_picture(theme: str) -> None:
    place, ground = ("dark", "light").index(theme), GROUNDS[theme][1]
    first = ("gemm", "attention", "elementwise")
    colours = {name: MEANINGS[name][place] for name in (*first, "optimizer", "copy", "exposed")}
    colours |= {f"{name}~": again(MEANINGS[name][place], ground) for name in first}
    shown = inks(theme, "truecolor", no_color=False)
    for name, colour in colours.items():
        drawn = shown.of(name).color
        assert drawn is not None and drawn.get_truecolor().hex == colour
    for one, other in combinations(colours, 2):
        distance = np.linalg.norm(oklab(colours[one]) - oklab(colours[other]))
        assert distance > 0.05, (one, other, distance)


def test_the_parts_of_a_launch_are_no_three_greys() -> None:
    used = series_inks(("before launch", "after launch, under communication", "after launch, else"))
    colours = [inks("dark", "truecolor", no_color=False).of(ink).color for ink in used]
    assert len({*map(str, colours)}) == 3
    assert used[1] == "waiting"


@pytest.mark.parametrize("at", [(900.0, 600.0), (3.0, 8.0), (0.5, 1.0)])
def test_no_half_of_a_roofline_is_empty(at: tuple[float, float]) -> None:
    """Points near one place, a roof at 1,307 TFLOP/s and a memory of 5.3 TB/s."""
    count, (intensity, tflops) = 4, at
    spread = np.linspace(0.8, 1.2, count)
    none = np.full(count, np.nan)
    chart = Roofline(
        "roofline", tuple("abcd"), intensity * spread, tflops * spread, np.full(count, 0.05),
        none, none, tuple("abcd"), 5.3, (("bf16", 1307.0),),
    )  # fmt: skip
    lines = ["".join(text for text, _ in line) for line in chart_lines([chart], 100, UNICODE)][1:]
    body = [line.partition("│")[2] or line.partition("┤")[2] for line in lines]
    drawn = [[x for x, char in enumerate(line) if not char.isspace()] for line in body if line]
    half, width = len(drawn) // 2, max(map(len, body)) // 2
    assert any(drawn[:half]) and any(drawn[half:])
    columns = [x for line in drawn for x in line]
    assert min(columns) < width <= max(columns)


def cells(waits: bool) -> LaneCells:
    """Compute and communication in every cell, which waits or transfers."""
    kind = np.full((3, 8), 100, np.int64)
    kind[2] = 0
    width = np.full(8, 100, np.int64)
    return LaneCells(kind, kind[0], width, (), waiting_ns=kind[1] * waits)


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
def test_lanes_without_colours_differ_by_what_communication_does(glyphs: Any) -> None:
    chart = query(sample_run(), View("sample.json", name="timeline")).charts[0]
    texts = []
    for waits in (False, True):
        drawn = lane_line(replace(chart, cells=lambda *_, w=waits: cells(w)), 0, 8, glyphs)
        texts.append("".join(text for text, _ in drawn))
    assert texts[0] != texts[1] and all(len(set(text)) == 1 for text in texts)


@pytest.mark.few(3)
@pytest.mark.parametrize("name", ["", *(each.name for each in view_specs())])
async def test_no_figure_touches_a_border(name: str) -> None:
    run = measured_run()
    baseline = Baseline("", ("0",)) if name == "compare" else None
    view = View(run.name, ("1",), name=name, baseline=baseline)
    for size in ((120, 36), (200, 60)):
        async with explorer(size, run, view) as at:
            touching = [line for line in at.lines() if re.search(r"[0-9%–]│|│[0-9]", line)]
            assert not touching, (size, touching)


def timeline_lines(chart: Any, width: int, height: int, row: int = 0) -> list[str]:
    on = Canvas(width, height, UNICODE.coloured(True), row=row)
    LanesDrawer().body(chart, on)
    return ["".join(text for text, _ in line) for line in on.lines]


def test_the_stragglers_lane_is_never_the_one_that_is_cut() -> None:
    run = sample_run(8)
    chart = query(run, View(run.name, name="timeline")).charts[0]
    late = leads(run, View(run.name))[0].stragglers
    assert chart.late == (f"GPU {late[0].place}" if late else "")
    for straggler in ("GPU 7", "GPU 4"):
        for row in (0, 3, 5):
            lines = timeline_lines(replace(chart, late=straggler), 80, 9, row)
            shown = re.findall(r"GPU \d", "\n".join(lines))
            assert straggler in shown and f"GPU {row}" in shown and len(shown) < 8
            assert len(set(shown)) == len(shown)


@pytest.mark.parametrize("height", [14, 20, 40])
def test_a_ghost_is_below_each_lane(height: int) -> None:
    run = sample_run(8)
    view = View(run.name, ("11",), ORDER, name="timeline", baseline=Baseline("", ("10",)))
    chart = query(run, view).charts[0]
    lines = timeline_lines(chart, 120, height)
    lanes = [place for place, line in enumerate(lines) if re.match(r"[ ▌]GPU \d", line)]
    assert len(lanes) >= min((height - 5) // 2, len(chart.lanes))
    for place in lanes:
        assert re.match(r" ?▏", lines[place + 1]), lines[place : place + 2]
    assert len(lines) <= height


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["overview", "timeline", "heatmap", "power"])
async def test_a_theme_redraws_everything(name: str) -> None:
    """The screen after `:theme light` is that of an explorer that began in it."""
    run, shown = measured_run(), []
    for began in ("light", "dark"):
        config = replace(DEFAULTS, theme=began)
        view = View(run.name, name=name)
        app = ChopperApp(lambda _: run, view, glyphs=UNICODE, config=config)
        async with explorer((120, 36), run, app=app) as at:
            await at.command("theme light")
            strips = at.app.screen._compositor.render_strips()
            shown.append([[(each.text, each.style) for each in strip] for strip in strips])
    assert shown[0] == shown[1] and "light" in THEMES


def two_programs(gap_s: int) -> list[Row]:
    """Half a second of work, and the same that much later."""
    first = [Row(place * SECOND // 10, SECOND // 20, iteration=-1) for place in range(5)]
    return [*first, *(replace(row, start=row.start + gap_s * SECOND) for row in first)]


@pytest.mark.parametrize("piece", [groups._PIECE, 3])
def test_the_time_between_two_programs_is_cut(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    """70 hours between two programs of 450 ms each, of which 250 ms compute."""
    monkeypatch.setattr(groups, "_PIECE", piece)
    run = run_of(two_programs(70 * 3600))
    frame = query(run, View(run.name))
    assert frame.row(0)["elapsed_ns"] == 2 * 450_000_000
    assert frame.row(0)["idle_ns"] == 2 * 200_000_000
    # Eight pauses of 50 ms are before a start, that between the programs is before none.
    assert query(run, View(run.name, name="launch")).total["launch_overhead_ns"] == 8 * 50_000_000
    seen = interval_of(run, View(run.name, name="timeline"))
    assert seen.length_ns == 450_000_000
    # The run has no step: live shows its GPU, and no bars of steps.
    assert query(run, View(run.name, name="live")).labels == ["0"]
    gap, is_cut = gap_of_programs(run)
    assert (gap, is_cut) == (70 * 3600 * SECOND - 450_000_000, True)
    [headline] = [line for line in query(run, View(run.name, name="overview")).headline
                  if "between two programs left out" in line]  # fmt: skip
    assert "70.00 h" in headline or "70 h" in headline
    busy = run.signal("busy_pct").curves[0]
    whole = np.array([run.origin_ns, run.end_ns], np.float64)
    assert busy.means(whole)[0] == pytest.approx(100 * 250 / 450)


def test_a_pause_of_one_program_is_its_idle_time() -> None:
    run = run_of(two_programs(50))
    row = query(run, View(run.name)).row(0)
    assert row["elapsed_ns"] == 50 * SECOND + 450_000_000
    assert gap_of_programs(run) == (50 * SECOND - 450_000_000, False)


def test_a_pause_that_no_trace_spans_is_cut_from_the_time_axis_of_steps() -> None:
    """Of two programs with steps the axis shows one; a hang of one program stays on it."""
    rows = [replace(row, iteration=place // 5) for place, row in enumerate(two_programs(70 * 3600))]
    run = run_of(rows)
    view, ends = View(run.name, name="timeline"), (run.origin_ns, run.end_ns)

    def trace_of(span_ns: tuple[int, int]) -> Source:
        return Source("rank0.json", 1, 0, "", {}, {}, {}, (), "", {}, span_ns=span_ns)

    one = trace_of(ends)
    assert interval_of(replace(run, sources=(one,)), view).length_ns == ends[1] - ends[0]
    apart = (ends[0], ends[0] + 450_000_000), (ends[1] - 450_000_000, ends[1])
    parts = tuple(map(trace_of, apart))
    assert interval_of(replace(run, sources=parts), view).length_ns == 450_000_000


def test_bars_of_two_phases_are_drawn_in_full_cells() -> None:
    parts = tuple(Series(name, np.array([10.0])) for name in NAMES)
    chart = BarChart("time per token", "µs", ("GPU 0",), parts)
    [*_, row] = as_lines([chart], 100, UNICODE.coloured(True))
    assert not set(row) & set("░▒▓")
