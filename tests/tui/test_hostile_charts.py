"""Charts of hostile figures: drawing ends, takes memory by the canvas, and fits it exactly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Event
from typing import get_args

import numpy as np
import plotext
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from chopper_core.model.charts import (
    BarChart,
    Card,
    Cards,
    Chart,
    Composition,
    DataPath,
    Ghost,
    GpuLanes,
    GpuUnit,
    HeatMap,
    Icicle,
    IcicleRow,
    LaneCells,
    Lanes,
    LineChart,
    MemoryChart,
    Roofline,
    Series,
    SignalRows,
    Span,
    StepBars,
    Strip,
    UnitFigure,
)
from chopper_core.model.signals import Signal
from chopper_core.model.units import Unit
from chopper_core.model.view import Interval, View
from chopper_core.render.cells import cell_width
from chopper_core.render.glyphs import ASCII, UNICODE
from chopper_core.util.errors import UsageError
from chopper_core.util.progress import Cancelled
from chopper_core.views.shared.signal_charts import SignalChart
from chopper_tui.draw import signal_plot
from chopper_tui.draw.axes import Axis, labels, ticks
from chopper_tui.draw.canvas import Lens
from chopper_tui.draw.charts import (
    DRAWERS,
    as_lines,
    draw_below,
    drawer_of,
    lines_filled,
    lines_wanted,
    most_lines_below,
    seen,
    zoomed_lens,
)
from chopper_tui.draw.curves import Curve, plotted
from chopper_tui.draw.pieces import Line
from chopper_tui.widgets import chart_panes
from chopper_tui.widgets.chart_panes import PicturePane
from tests.limited import within
from tests.tui.explorer import explorer, measured_run

NAN, INF = float("nan"), float("inf")
MOST_BYTES = 256 << 20
"""More than any canvas needs, and the buffers of OpenBLAS; figures that set the size of a chart
took gigabytes."""
FIGURES = st.sampled_from(
    [
        *(NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 1e308, -1e308, 1e300, 5e-324, -1e-310, 1e18),
        *(1e18 + 128, 1e9, -1e9 + 1, 100.0, 1e-9),
    ]
)
TIMES = st.sampled_from([0, 1, 2, 99, 10**9, 10**12, 2**62])
TEXTS = st.sampled_from(["", "a", "GPU 3", "字" * 9, "x" * 300, "\x1b[31m", "n"])
SIZES = st.sampled_from([(1, 1), (7, 2), (20, 5), (80, 14), (200, 50), (500, 200)])


def floats(data: st.DataObject, *shape: int) -> np.ndarray:
    count = int(np.prod(shape))
    drawn = data.draw(st.lists(FIGURES, min_size=count, max_size=count))
    return np.array(drawn, np.float64).reshape(shape)


def texts(data: st.DataObject, count: int) -> tuple[str, ...]:
    return tuple(data.draw(st.lists(TEXTS, min_size=count, max_size=count)))


def series(data: st.DataObject, count: int, length: int) -> tuple[Series, ...]:
    return tuple(Series(name, floats(data, length)) for name in texts(data, count))


def lanes(data: st.DataObject, count: int) -> Lanes:
    begin, length = data.draw(TIMES), max(data.draw(TIMES), 1)
    at, mark = data.draw(TIMES), data.draw(st.none() | TIMES)

    def cells(row: int, bins: int) -> LaneCells:
        kinds = np.full((3, bins), length // bins)
        return LaneCells(kinds, kinds[0], kinds[0] // 2, (Span(0, min(bins, 9), "k" * 99),))

    numbers = floats(data, 4)
    low, high = floats(data, 2).tolist()
    return Lanes(
        title="lanes",
        lanes=texts(data, count),
        owners=("GPU 0",) * count,
        kinds=("compute", "comm", "copy"),
        seen=Interval(begin, begin + length, at, mark, begin + length),
        pointed=(),
        cells=cells,
        bands=lambda row, bins: (),
        strips=lambda row, bins: (Strip("s", Unit.MHZ, low, high, np.resize(numbers, bins)),),
        signals=1,
        missing="nothing",
        hosts=cells,
        ghosts=lambda row, bins: Ghost("base", cells(row, bins), begin),
    )


def icicle(data: st.DataObject, count: int) -> Icicle:
    ends = np.cumsum([min(data.draw(TIMES), 10**15) for _ in range(count)]).astype(np.int64)
    begins = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    parents = np.arange(count)
    rows = tuple(
        IcicleRow(
            level, texts(data, count), begins, ends, floats(data, count), parents, begins * 0.5
        )
        for level in ("phase", "layer")
    )
    return Icicle("i", "MHz", rows, lambda row, column: View("R"), data.draw(st.booleans()))


def signal_rows(data: st.DataObject, count: int, bins: int = 4) -> SignalRows:
    ends = tuple(floats(data, 2).tolist())
    drawn = texts(data, count), floats(data, count, bins), floats(data, count), (0,)
    return SignalRows("p", data.draw(st.sampled_from(["W", "%"])), "time", "ms", ends, *drawn)


def step_bars(data: st.DataObject, count: int) -> StepBars:
    places = st.lists(st.integers(0, count - 1), unique=True).map(tuple)
    marks = (data.draw(places) for _ in range(3))
    steps = np.arange(count) + data.draw(st.integers(0, 10**9))
    return StepBars("s", "ms", steps, floats(data, count), *marks, str, lambda place: View("R"))


def gpu_lanes(data: st.DataObject, count: int) -> GpuLanes:
    signals = tuple(signal_rows(data, count) for _ in range(2))
    known = data.draw(st.tuples(FIGURES, st.none()))
    steps = data.draw(st.none() | st.just(step_bars(data, 4)))
    last = Series("throttled", floats(data, count))
    names = texts(data, count), texts(data, count)
    return GpuLanes("g", *names, signals, known, known[::-1], ((0,), ()), last, steps)


def memory_chart(data: st.DataObject, count: int) -> MemoryChart:
    def figure() -> UnitFigure:
        share = data.draw(st.none() | st.floats(0, 1))
        return UnitFigure(*texts(data, 2), share, data.draw(st.booleans()))

    units = tuple(
        GpuUnit(text, data.draw(st.integers(0, 3)), tuple(figure() for _ in range(count)))
        for text in texts(data, count)
    )
    places = st.integers(0, max(count - 1, 0))
    paths = tuple(
        DataPath(data.draw(places), data.draw(places), figure(), data.draw(st.none()) or figure())
        for _ in range(count if units else 0)
    )
    return MemoryChart("m", units, paths)


KINDS: dict[type, Callable[[st.DataObject, int], Chart]] = {
    BarChart: lambda data, n: BarChart(
        "b", "ms", texts(data, n), series(data, 3, n), longest=data.draw(FIGURES)
    ),
    Cards: lambda data, n: Cards(
        "c", tuple(Card(texts(data, 2), text, "R:x") for text in texts(data, n))
    ),
    Composition: lambda data, n: Composition("s", "ms", texts(data, 2), series(data, n, 2)),
    HeatMap: lambda data, n: HeatMap(
        "h", "%", texts(data, n), texts(data, n), "layer", floats(data, n, n),
        signed=data.draw(st.booleans()), labels=texts(data, n), opens=lambda row, column: View("R"),
    ),
    Icicle: icicle,
    Lanes: lanes,
    LineChart: lambda data, n: LineChart(
        "c", "MHz", "time", "ms", (floats(data, 5),) * n, series(data, n, 5),
        points=data.draw(st.booleans()),
    ),
    Roofline: lambda data, n: Roofline(
        "r", texts(data, n), *(floats(data, n) for _ in range(5)), texts(data, n),
        data.draw(st.none() | FIGURES), (("fp16", abs(data.draw(FIGURES))),),
    ),
    GpuLanes: gpu_lanes,
    MemoryChart: memory_chart,
    SignalRows: signal_rows,
    StepBars: step_bars,
}  # fmt: skip


def assert_fits(lines: list[Line], width: int, height: int) -> None:
    assert len(lines) <= max(height, 0)
    assert all(sum(cell_width(text) for text, _ in line) <= max(width, 0) for line in lines)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.few(2)
@pytest.mark.parametrize("kind", DRAWERS, ids=lambda kind: kind.__name__)
@settings(report_multiple_bugs=False)
@given(data=st.data())
def test_any_figures_are_drawn_within_the_canvas(kind: type, data: st.DataObject) -> None:
    assert set(KINDS) == set(DRAWERS) == set(get_args(Chart))
    chart = KINDS[kind](data, data.draw(st.integers(1, 4)))
    width, height = data.draw(SIZES)
    glyphs = data.draw(st.sampled_from([UNICODE, UNICODE.coloured(True), ASCII]))
    lens = Lens(data.draw(st.sampled_from([1.0, 3.0, 1024.0])), data.draw(st.floats(0, 1)))
    with within(MOST_BYTES):
        part = seen(chart, lens)
        assert_fits(
            draw_below([part, part], width, height, glyphs, 0, data.draw(st.integers(0, 2))),
            width,
            height,
        )
        for count in (lines_wanted, most_lines_below):
            assert count([part, part], width, glyphs) > 0
        assert lines_filled([part], width, height, glyphs) <= height
        assert all(cell_width(line) <= width for line in as_lines([chart], width, glyphs))
        most = drawer_of(part).max_zoom(part)
        if most is None or most == 1.0:
            with pytest.raises(UsageError, match="maximum zoom" if most else "no scale to zoom"):
                zoomed_lens(Lens(), part, 2.0)
        else:
            assert zoomed_lens(Lens(), part, 2.0).factor > 1


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@settings(report_multiple_bugs=False)
@given(data=st.data())
def test_any_signal_is_drawn_within_its_pane(data: st.DataObject) -> None:
    begin, length = data.draw(TIMES), max(data.draw(TIMES), 1)
    unit = data.draw(st.sampled_from([Unit.PERCENT, Unit.MHZ, Unit.BYTES]))
    signal = Signal("s", "signal", unit, {}, 0.0, 100.0)
    gpus = data.draw(st.integers(0, 3))
    values = floats(data, gpus, 7)
    span = begin, begin + length
    chart = SignalChart(signal, *span, span, tuple(range(gpus)), values)
    width, height = data.draw(SIZES)
    for glyphs in (UNICODE, ASCII):
        lines = signal_plot.draw_signals(chart, width, height, glyphs)
        assert_fits(lines, width, height)
        assert cell_width(signal_plot.plot_headline(chart, width, glyphs)) <= max(width, 400)
        signal_plot.measured(chart, 0.25, 0.5)


@given(low=FIGURES, span=FIGURES, most=st.integers(0, 99))
def test_ticks_are_few_and_short(low: float, span: float, most: int) -> None:
    low, span = (0.0 if not abs(each) < 1e100 else each for each in (low, span))
    places = ticks(low, low + abs(span), most)
    assert len(places) <= max(most, 1) and all(len(text) <= 24 for text in labels(places))


def test_a_canvas_takes_as_many_points_as_it_can_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """plotext makes a point of each cell that a line crosses, outside of the canvas too."""
    given_to: list[tuple[list[float], list[float]]] = []
    signal = plotext.figure.signal

    def spied(x: list[float], y: list[float], **options: object) -> object:
        given_to.append((x, y))
        return signal(x, y, **options)

    monkeypatch.setattr(plotext.figure, "signal", spied)
    random = np.random.default_rng(0)
    x = np.arange(200_000.0)
    wild = np.where(x == 77_000, 1e60, random.normal(size=len(x)))
    shuffled = random.permutation(x)
    for places in (x, shuffled):
        ends = Axis(0.0, float(len(x)), (), ()), Axis(-1.0, 1.0, (), ())
        curve = Curve(places, wild, "accent", "hd", is_joined=True)
        plotted([curve], (60, 9), *ends, UNICODE, int)
    for xs, ys in given_to:
        assert len(xs) == len(ys) <= 8 * 60
        assert 0 <= min(xs) <= max(xs) <= 1 and 0 <= min(ys) <= max(ys) <= 1
    # The extremes are among those that are left.
    assert given_to[0][1].count(1.0) and given_to[0][1].count(0.0)


def test_a_draw_that_nobody_waits_for_stops_at_its_next_piece() -> None:
    calls: list[int] = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise Cancelled

    x = np.arange(9.0)
    chart = LineChart("c", "", "x", "", (x,) * 9, tuple(Series(str(n), x * n) for n in range(9)))
    with pytest.raises(Cancelled):
        draw_below([chart] * 3, 60, 40, UNICODE, check=check)
    assert len(calls) == 3


async def test_one_draw_of_a_pane_is_under_way_and_the_last_one_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with explorer((80, 24), measured_run(), View("sample.json", name="launch")) as at:
        pane = at.explore.query(PicturePane).first()
        chart = pane.pictures[0]
        began, go_on = Event(), Event()
        under_way, most, stopped = 0, 0, 0
        plain = chart_panes.drawing.draw_below

        def slow(*args: object) -> list[Line]:
            nonlocal under_way, most, stopped
            under_way += 1
            most = max(most, under_way)
            began.set()
            go_on.wait(20)
            under_way -= 1
            try:
                return plain(*args)
            except Cancelled:
                stopped += 1
                raise

        monkeypatch.setattr(chart_panes.drawing, "draw_below", slow)
        for number in range(5):
            pane.show([replace(chart, title=f"number {number}")])
            await asyncio.to_thread(began.wait, 20)
        go_on.set()
        await at.settle()
        assert (most, stopped) == (1, 1)
        assert "number 4" in "".join(text for line in pane.drawn for text, _ in line)
        began.clear()
        go_on.clear()
        pane.show([replace(chart, title="number 5")])
        await asyncio.to_thread(began.wait, 20)
        pane.display = False
        go_on.set()
        await at.settle()
        assert stopped == 2 and not pane.pictures
