"""Pictures as text: what is drawn is what the numbers say, and nothing is wider than it may be."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final, get_args

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.analyses.step_account import PARTS, TITLES
from chopper_core.analyses.step_parts import PARTS as STEP_PARTS
from chopper_core.model.charts import (
    BarChart,
    Chart,
    Composition,
    HeatMap,
    Icicle,
    IcicleRow,
    Lanes,
    LineChart,
    MemoryChart,
    Roofline,
    Series,
    SignalRows,
)
from chopper_core.model.table import STATES, Kind
from chopper_core.model.units import Unit, moment_text
from chopper_core.model.view import View
from chopper_core.render.cells import cell_width
from chopper_core.render.glyphs import ASCII, UNICODE, Glyphs, SparkScale
from chopper_core.render.palette import MEANINGS, NEUTRAL
from chopper_core.util.errors import ChopperError
from chopper_core.views import VIEWS
from chopper_core.views.query import query
from chopper_tui.draw.axes import time_step
from chopper_tui.draw.bars import BarParts
from chopper_tui.draw.canvas import WHOLE, Canvas, Lens, area, stack
from chopper_tui.draw.charts import (
    DRAWERS,
    _drawer,
    cell_at,
    chart_lines,
    draw,
    draw_below,
    lines_filled,
    lines_wanted,
    most_lines_below,
    seen,
)
from chopper_tui.draw.heat import IcicleDrawer
from chopper_tui.draw.pieces import series_fills, series_inks
from chopper_tui.draw.timeline import KIND_INKS
from tests.demo import demo_run
from tests.support import Row, run_of
from tests.wording import Wording

NAN = float("nan")


def text(picture: Chart, width: int = 80, height: int = 12, glyphs: Glyphs = UNICODE) -> list[str]:
    return ["".join(piece for piece, _ in line) for line in draw(picture, width, height, glyphs)]


def bars(parts: int, labels: int = 3) -> BarChart:
    numbers = np.arange(1.0, parts * labels + 1).reshape(parts, labels)
    series = tuple(Series(f"part number {n}", row) for n, row in enumerate(numbers))
    return BarChart("time", "ms", tuple(f"row {n}" for n in range(labels)), series)


def heat(numbers: object, columns: int) -> HeatMap:
    rows = np.array(numbers, np.float64)
    return HeatMap(
        "time",
        "ms",
        tuple(f"GPU {n}" for n in range(len(rows))),
        tuple(str(n) for n in range(columns)),
        "layer",
        rows,
    )


@pytest.mark.parametrize("parts", [2, 6, 10])
def test_every_part_of_a_bar_has_its_own_mark_in_a_legend_that_is_whole(parts: int) -> None:
    lines = text(bars(parts), height=20)
    legend = " ".join(lines[: next(n for n, line in enumerate(lines) if line.startswith("row"))])
    marks = [legend[legend.index(f"part number {n}") - 2] for n in range(parts)]
    assert len(set(marks)) == parts and "…" not in legend
    longest = lines[-1]
    assert [mark for mark in marks if mark in longest] == marks


def test_a_curve_of_two_places_is_no_chart() -> None:
    def curve(places: int) -> LineChart:
        at = np.arange(float(places))
        return LineChart("step", "ms", "iteration", "", (at,), (Series("all", at),))

    assert [curve(places).has_course for places in (0, 2, 3)] == [False, False, True]
    assert replace(curve(1), points=True).has_course


def test_axes_have_even_ticks() -> None:
    x = np.linspace(0.0, 1770.0, 90)
    chart = LineChart("clock", "MHz", "time", "ms", (x,), (Series("GPU 0", 1668 + x / 25),))
    lines = text(chart, width=100, height=12)
    ticks = [line.split("┤")[0].strip() for line in lines if "┤" in line]
    assert ticks == ["1720", "1700", "1680"]
    numbers = re.findall(r"\d+", lines[-1])
    assert numbers == [str(time) for time in range(0, 1601, 200)] and "1600 ms" in lines[-1]


def test_curves_have_the_inks_of_their_legend() -> None:
    x = np.arange(20.0)
    series = (Series("up", x), Series("down", 20 - x))
    chart = LineChart("c", "ms", "step", "", (x, x), series)
    title, *lines = draw(chart, 80, 12, COLOURED)
    legend = {after.strip(): ink for (_, ink), (after, _) in pairwise(title)}
    assert (legend["up"], legend["down"]) == ("accent", "third")
    assert {ink for line in lines for _, ink in line} == {"dim", "accent", "third"}
    # The second falls: it is above the first at the left.
    inks = [ink for line in lines for text, ink in line if ink != "dim" and text.strip()]
    assert inks[0] in ("accent", "third") and lines[-1][0][0].split()[0] == "0"


def test_a_band_is_above_the_least_and_below_the_most_with_its_median() -> None:
    shares = np.array([[0.2, 0.5], [0.6, 0.5], [1.0, 0.5]])
    lines = area(shares, 4, ["clock1", "use1"], COLOURED)
    left = [line[0] for line in lines]
    assert [ink for _, ink in left] == ["shade", "strong/shade", "shade", "clock1/shade"]
    assert [text[0] for text, _ in left] == ["█", "─", "█", "▇"]
    # Where all agree there is no band.
    assert [line[1][1] for line in lines[2:]] == ["text/use1"] * 2
    plain = area(shares, 4, ["clock1", "use1"], UNICODE)
    assert plain[0][0] == ("░ ", "shade")
    unknown = area(np.full((1, 2), NAN), 3, ["clock1"] * 2, UNICODE)
    assert all(not "".join(text for text, _ in line).strip() for line in unknown)


def test_a_bar_beyond_the_end_of_a_zoomed_axis_is_cut_and_marked() -> None:
    chart = BarChart("t", "ms", ("a", "b"), (Series("x", np.array([100.0, 10.0])),))
    near = seen(chart, Lens(factor=4.0))
    long, short = text(near)[1:]
    assert long.endswith("›") and not short.endswith("›")
    assert short.count("█") == pytest.approx(4 * text(chart)[2].count("█"), abs=4)


@pytest.mark.parametrize("factor", [2.0, 4.0])
def test_what_is_seen_closer_is_a_part_of_the_whole(factor: float) -> None:
    x = np.linspace(0.0, 100.0, 101)
    chart = LineChart("clock", "MHz", "time", "ms", (x,), (Series("GPU 0", x),))
    lens = Lens(factor, centre=0.9)
    near = seen(chart, lens)
    assert isinstance(near, LineChart)
    kept = near.x[0]
    assert kept.max() == 100 and kept.min() == pytest.approx(100 - 100 / factor, abs=1)
    wide = heat(np.arange(40.0)[None, :], 40)
    part = seen(wide, lens)
    assert isinstance(part, HeatMap)
    assert part.columns == wide.columns[40 - round(40 / factor) :]
    assert part.numbers.tolist() == wide.numbers[:, 40 - round(40 / factor) :].tolist()


def test_parts_are_as_long_as_they_are_large() -> None:
    chart = BarChart(
        "t", "ms", ("a",), (Series("x", np.array([30.0])), Series("y", np.array([10.0])))
    )
    line = text(chart)[-1]
    assert line.count("█") == pytest.approx(3 * line.count("▓"), abs=3)
    assert " 40 " in line


def test_a_cell_of_a_bar_is_the_part_that_has_most_of_it() -> None:
    drawn = stack(np.array([1.5, 0.2, 0.9, 0.4]), "abcd", ["w", "x", "y", "z"])
    assert drawn == [("aa", "w"), ("c", "y")]
    assert stack(np.array([0.1, 0.2]), "ab", ["w", "x"]) == []


def test_a_short_legend_of_a_table_names_the_largest_parts() -> None:
    series = [Series(name, np.array([size])) for name, size in (("aa", 3.0), ("bb", 1), ("cc", 2))]
    parts = BarParts.of(BarChart("t", "ms", ("row",), tuple(series)), ("row",))
    named = "".join(text for text, _ in parts.legend(UNICODE, 13))
    assert "aa" in named and "cc" in named and "bb" not in named


def test_a_waterfall_has_the_names_of_its_steps_alone() -> None:
    sums = [Series("reached", np.array([0.0, 2.0])), Series("adds", np.array([2.0, 1e-5]))]
    (head, *_) = text(BarChart("up to", "ms", ("ideal", "idle"), tuple(sums)))
    assert head == "up to, ms"
    steps = [Series("reached", np.array([0.0, 2, 2])), Series("adds", np.array([2.0, 1, 1]))]
    rows = text(BarChart("up to", "ms", ("ideal", "idle", "measured"), tuple(steps)))[1:4]
    # A step has what it adds: the ends have what is reached.
    assert [row.split()[1] for row in rows] == ["2", "+1", "3"]
    small = BarChart("t", "ms", ("a", "b"), (Series("x", np.array([3.0, 7.2e-5])),))
    assert "<0.001" in text(small)[-1]


def test_a_heat_map_of_few_columns_has_its_numbers() -> None:
    lines = text(heat([[0.0, 850.5], [66.2, NAN]], 2))
    assert "▁ 0" in lines[1] and "█ 850.5" in lines[1]
    assert "66.2" in lines[2] and lines[2].rstrip().endswith("–")
    assert lines[-1].split() == ["0", UNICODE.spark, "850.5", "ms"]


COLOURED = UNICODE.coloured(True)


def test_in_colours_a_map_has_a_background_per_cell_and_tall_rows() -> None:
    picture = heat([[1.0, 2.0, 3.0], [4.0, NAN, 16.0]], 3)
    lines = draw(picture, 20, 10, COLOURED)
    assert [ink for _, ink in lines[1][1:]] == ["heat0", "heat1", "heat2"]
    assert [ink for _, ink in lines[4][1:]] == ["heat3", "dim", "heat15"]
    assert lines[1] != lines[2] and lines[1][1:] == lines[2][1:] == lines[3][1:]
    # Of wide cells the number is on the colour.
    assert (" 16      ", "text/heat15") in draw(picture, 33, 10, COLOURED)[5]


def test_where_rows_do_not_fit_a_line_holds_two_by_half_blocks() -> None:
    picture = heat(np.arange(16.0).reshape(16, 1).repeat(3, axis=1), 3)
    lines = draw(picture, 20, 11, COLOURED)
    assert len(lines) == 11 and lines[1][1] == ("▀" * 13, "heat0/heat1")
    assert lines[8][1] == ("▀" * 13, "heat14/heat15")
    # Without colours, and in ASCII, a line can't hold two.
    for glyphs in (UNICODE, ASCII.coloured(True)):
        assert text(picture, 20, 11, glyphs)[8].startswith("9 more rows")


def test_differences_have_a_scale_around_zero_that_noise_does_not_fill() -> None:
    picture = replace(heat([[-40.0, 0.0, 0.1], [40.0, 1.0, NAN]], 3), signed=True, unit="%")
    line, other = draw(picture, 20, 5, COLOURED)[1:3]
    assert [ink for _, ink in line[1:]] == ["change0", "change7", "change7"]
    assert other[1][1] == "change14"
    small = draw(replace(picture, numbers=picture.numbers / 1000), 20, 5, COLOURED)
    assert {ink for _, ink in small[1][1:]} == {"change7"}


@pytest.mark.parametrize("wide", [40, 60, 79, 120, 200])
@pytest.mark.parametrize("columns", [1, 7, 33, 64, 250])
def test_ticks_are_at_even_distances_under_their_columns(wide: int, columns: int) -> None:
    picture = heat(np.arange(2.0 * columns).reshape(2, columns), columns)
    lines = text(picture, wide, 6)
    room = wide - len("GPU 0 ")
    used = min(room, 48 * columns)
    places = {int(m[0]): m.start() - 6 for m in re.finditer(r"\d+", lines[3])}
    numbers = sorted(places)
    assert numbers[0] == 0 and len({b - a for a, b in pairwise(numbers)}) <= 1
    bins = min(columns, room)
    assert all(
        begin == -(-(number * bins // columns) * used // bins) for number, begin in places.items()
    )
    wide_enough = draw(picture, wide, 6, COLOURED)[1]
    assert sum(len(piece) for piece, _ in wide_enough) == len("GPU 0 ") + used


def test_the_cursor_is_in_the_map_and_in_words() -> None:
    picture = replace(heat([[1.0, 2.0], [3.0, 4.5]], 2), opens=lambda row, column: View("r"))
    for glyphs in (UNICODE, COLOURED, ASCII):
        lines = draw(picture, 24, 8, glyphs, 1, 1)
        shown = ["".join(piece for piece, _ in line) for line in lines]
        mark = "4.5" if glyphs.in_colour else " 4.5"
        own = next(line for line in shown if line.startswith("GPU 1"))
        assert ("[" if glyphs.is_ascii else glyphs.cursor) + mark in own
        assert shown[-1].endswith("GPU 1, layer 1: 4.5 ms")
        assert shown[-3].split()[:2] == ["0", "1"] and ("1", "strong") in lines[-3]


@pytest.mark.few(1)
@pytest.mark.parametrize("size", [(30, 7), (80, 12), (120, 40)])
def test_a_click_finds_the_cell_that_is_drawn_there(size: tuple[int, int]) -> None:
    numbers = np.arange(40.0).reshape(8, 5)
    picture = replace(heat(numbers, 5), opens=lambda row, column: View("r"))
    width, height = size
    for y, line in enumerate(draw_below([picture], width, height, COLOURED)):
        x = 0
        for piece, ink in line:
            cell = cell_at([picture], width, height, COLOURED, x, y)
            if ink.startswith("heat") and "GPU" in line[0][0]:
                assert cell is not None
                level = round(numbers[cell] / 39 * 15)
                assert ink.split("/")[0] in (f"heat{level}", f"heat{level}")
            elif "GPU" in piece:
                assert cell is None
            x += cell_width(piece)


@pytest.mark.parametrize(
    ("longest_ms", "unit"), [(0.05, "µs"), (9_000.0, "ms"), (200_000.0, "s"), (2.5e8, "h")]
)
def test_charts_have_the_unit_that_suits_their_times(longest_ms: float, unit: str) -> None:
    x = np.linspace(0.0, longest_ms, 9)
    line = LineChart("depth", "", "time", "ms", (x,), (Series("a", np.arange(9.0)),))
    drawn = "\n".join(text(seen(line, WHOLE), 80))
    assert f" {unit}" in drawn and "e+" not in drawn


def test_bars_of_hours_and_of_milliseconds_have_each_their_unit() -> None:
    numbers = np.array([251_576_581.0, 131.5, 0.0338])
    waits = BarChart("before compute", "ms", ("a", "b", "c"), (Series("idle", numbers),))
    title, *rows = text(seen(waits, WHOLE), 80)
    assert title == "before compute"
    assert [" ".join(row.split()[1:3]) for row in rows[:3]] == ["69.88 h", "131.5 ms", "33.8 µs"]


@pytest.mark.parametrize("cells", [40, 70, 150])
@pytest.mark.parametrize("end_ns", [90 * 10**9, 2 * 10**11, 251_576_809_737_000, 10**16])
def test_ticks_of_time_have_room_and_are_round(cells: int, end_ns: int) -> None:
    step, decimals = time_step(0, end_ns, cells)
    label = moment_text(end_ns, decimals, end_ns)
    assert len(label) < step * cells / end_ns <= 12 * len(label)
    if step >= 60 * 10**9 and end_ns >= 10**11:
        assert step % (60 * 10**9) == 0


def test_what_lies_far_out_does_not_flatten_a_heat_map_and_is_said() -> None:
    rows = np.tile(np.linspace(10, 20, 40), (8, 1))
    rows[0, 0] = 5000
    lines = text(heat(rows, 40), width=60)
    assert set(UNICODE.spark) <= set("".join(lines[2:-2]))
    assert ">=" in lines[-1] and "all: 10 to 5000" in lines[-1]


def test_a_few_far_out_on_both_sides() -> None:
    rows = np.tile(np.linspace(10, 20, 40), (8, 1))
    rows[0, 0], rows[1, 3] = 5000, -4000
    assert "<=" in text(heat(rows, 40), width=60)[-1]


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=lambda glyphs: glyphs.name)
@pytest.mark.parametrize("size", [(20, 4), (40, 10), (80, 14), (200, 30)])
def test_nothing_is_wider_or_higher_than_it_may_be(size: tuple[int, int], glyphs: Glyphs) -> None:
    width, height = size
    x = np.arange(50.0)
    pictures: list[Chart] = [
        bars(10, 30),
        heat(np.full((20, 50), NAN), 50),
        heat(np.arange(1000.0).reshape(20, 50), 50),
        heat(np.zeros((0, 0)), 0),
        LineChart("c", "MHz", "time", "ms", (x, x), (Series("a", x), Series("b", x * NAN))),
        rows_of(8),
        rows_of(100),
    ]
    for picture in pictures:
        lines = text(picture, width, height, glyphs)
        assert len(lines) <= height
        assert all(cell_width(line) <= width for line in lines)
        if glyphs is ASCII:
            assert all(line.isascii() for line in lines)


def rows_of(count: int) -> SignalRows:
    """As many GPUs, the fourth of which draws more and the third of which says nothing once."""
    numbers = np.tile(np.linspace(400.0, 700.0, 60), (count, 1))
    numbers[3] += 100.0
    numbers[2, :10] = NAN
    labels = tuple(f"GPU {row}" for row in range(count))
    means = np.nanmean(numbers, axis=1)
    return SignalRows("power", "W", "time", "ms", (0.0, 90.0), labels, numbers, means, (3,))


def test_rows_share_a_scale_that_is_stated_and_what_stands_out_is_marked() -> None:
    lines = text(rows_of(8), 60, 9)
    assert lines[0] == "power, W  400 ▁▂▃▄▅▆▇█ 800"
    assert len(lines) == 9 and lines[4].startswith("GPU 3 ")
    assert lines[4].endswith("650 ▲+18.2%") and "▲" not in lines[1]
    assert lines[4].split()[2].endswith("█") and lines[1].split()[2].endswith("▆")
    assert lines[1].split()[2].startswith("▁") and lines[3][6:13].isspace()


def test_rows_are_beside_each_other_where_they_are_too_many() -> None:
    lines = text(rows_of(8), 80, 6)
    assert len(lines) == 6 and lines[5].split()[0] == "0"
    assert "GPU 0" in lines[1] and "GPU 4" in lines[1] and "GPU 7" in lines[4]


def test_of_rows_that_do_not_fit_what_stands_out_is_shown(wording: Wording) -> None:
    lines = text(rows_of(100), 80, 4)
    wording(lines[-1], "96 more")
    assert any("GPU 3 " in line for line in lines)


def test_below_rows_is_the_axis_of_time() -> None:
    lines = text(rows_of(8), 60, 20)
    assert len(lines) == 10 and lines[-1].split() == ["0", "20", "40", "60", "80", "ms"]


def test_parts_below_nothing_go_to_the_left_from_where_the_others_begin() -> None:
    more = Series("more", np.array([30.0, 0.0, 5.0]))
    less = Series("less", np.array([0.0, -20.0, -10.0]))
    lines = text(BarChart("difference", "ms", ("a", "b", "c"), (more, less)))[1:]
    zero = lines[0].index("█")
    assert lines[1].rindex("▓") == zero - 1 and lines[2].rindex("▓") == zero - 1
    assert lines[2].index("█") == zero
    assert lines[1].count("▓") == pytest.approx(2 * lines[2].count("▓"), abs=1)
    assert lines[0].count("█") == pytest.approx(1.5 * lines[1].count("▓"), abs=1)
    assert " -5 " in lines[2]


def test_pictures_stand_below_each_other_where_they_have_room() -> None:
    x = np.arange(50.0)
    curve = LineChart("curve", "", "x", "", (x,), (Series("a", x),))
    few, tall = bars(1, 3), bars(1, 16)
    drawn = draw_below((few, curve, tall), 60, 30, UNICODE)
    lines = ["".join(part for part, _ in line) for line in drawn]
    assert lines[: len(text(few, 60))] == text(few, 60) and lines[len(text(few, 60))] == ""
    assert lines.index("curve") == len(text(few, 60)) + 1 and len(lines) == 30
    assert lines[-1].split() == ["0", "10", "20", "30", "40", "x"]
    wanted = lines_wanted((few,), 60, UNICODE) + lines_wanted((tall,), 60, UNICODE) + 10
    whole = draw_below((few, curve, tall), 60, wanted, UNICODE)
    assert "".join(part for part, _ in whole[-1]).startswith("row 15")
    assert len(whole) == wanted and lines_wanted((), 60, UNICODE) == 0
    alone = draw_below((tall, few), 60, 20, UNICODE)
    assert ["".join(part for part, _ in line) for line in alone] == text(tall, 60, 20)


def test_every_kind_of_chart_has_a_drawer() -> None:
    assert set(DRAWERS) == set(get_args(Chart))
    assert all(callable(_drawer(kind).draw) for kind in DRAWERS)


@pytest.mark.parametrize("height", [6, 9, 14, 23, 40])
@pytest.mark.parametrize("glyphs", [UNICODE, UNICODE.coloured(True), ASCII])
def test_no_line_below_the_pictures_of_a_screen_is_left_blank(height: int, glyphs: Glyphs) -> None:
    x = np.arange(50.0)
    curve = LineChart("curve", "", "x", "", (x,), (Series("a", x),))
    points = LineChart("points", "", "x", "", (x[:2],), (Series("a", x[:2]),))
    for charts in ((bars(3, 4), points), (points, curve), (rows_of(8),)):
        used = lines_filled(charts, 80, height, glyphs)
        assert used <= height
        drawn = ["".join(text for text, _ in line) for line in draw_below(charts, 80, used, glyphs)]
        blank = next((n for n, line in enumerate(reversed(drawn)) if line.strip()), 0)
        assert len(drawn) <= used and used - len(drawn) + blank <= 1, "\n".join(drawn)


def test_thick_bars_are_of_screens_alone() -> None:
    assert len(text(bars(1, 3), 60, 14)) == 4
    drawn = draw_below((bars(1, 3),), 60, 14, UNICODE)
    filled = [line for line in drawn if any("█" in text for text, _ in line)]
    assert len(filled) == 6


def test_series_that_are_too_small_to_be_seen_take_no_hue() -> None:
    sizes = [10.0] * 5 + [1e-4] + [10.0] * 5
    chart = BarChart(
        "t", "ms", ("a",), tuple(Series(f"p{n}", np.array([s])) for n, s in enumerate(sizes))
    )
    legend, bar = draw(chart, 200, 3, UNICODE.coloured(True))[:2]
    marks = [(text.strip(), ink) for text, ink in legend if text.strip() in ("█", "▓", "▒")]
    assert len(marks) == len(set(marks)) == 10 and "p5" not in "".join(text for text, _ in legend)
    assert marks == [(text[0], ink) for text, ink in bar if text[:1] in ("█", "▓", "▒")]


def test_a_kind_of_time_has_one_hue_in_every_bar_and_in_lanes() -> None:
    names, state_names = ([TITLES[each] for each in kinds] for kinds in (PARTS, STATES))
    parts, states = series_inks(names), series_inks(state_names)
    of = dict(zip(names, parts, strict=True))
    # A low clock that is sure and one that may be share a hue, the second fainter; so do
    # instructions beyond those of the model, which were recomputed or are the kernels'.
    hues = {ink.removesuffix("~") for ink in parts}
    assert len(hues) == len(parts) - 2 and len(set(states)) == len(states)
    assert len({*zip(parts, series_fills(parts, UNICODE.coloured(True)), strict=True)}) == len(
        parts
    )
    for name, ink in zip(state_names, states, strict=True):
        assert of.get(name, ink) == ink
    assert (states[0], of["exposed communication"], of["exposed copies"]) == KIND_INKS
    steps = series_inks([*STEP_PARTS[:3], *STEP_PARTS[-6:]])
    assert len(set(steps)) >= len(steps) - 1
    assert [each.removesuffix("~") for each in steps[-3:-1]] == list(KIND_INKS[1:])
    # Those left out leave the others' hues and patterns as they are.
    few = series_inks(["idle", "mine", "exposed communication"])
    assert few[::2] == [of["idle"], of["exposed communication"]] and few[1] not in few[::2]
    for glyphs in (UNICODE, ASCII):
        assert len(set(series_fills(parts, glyphs))) == min(len(parts), 11)
    assert series_fills(few, UNICODE)[2] == series_fills(parts, UNICODE)[-3]


def test_a_legend_is_cut_after_its_picture_and_says_so() -> None:
    lines = text(bars(10, 8), 60, 8)
    assert sum(line.startswith("row") for line in lines) >= 2
    assert all(f"part number {n}" in " ".join(lines) for n in range(10))
    assert any(line.endswith("…") for line in text(bars(10, 8), 60, 5))


def test_a_sparkline_at_its_top_is_a_line_there_not_a_wall() -> None:
    scale = SparkScale(99.0, 100.0)
    means = np.full(15, 100.0)
    means[7] = 99.1
    assert scale.line(means, Unit.PERCENT, UNICODE) == "▔" * 7 + "▂" + "▔" * 7
    means[0] = 99.9
    assert scale.line(means, Unit.PERCENT, UNICODE) == "▔" * 7 + "▂" + "▔" * 7
    # On a wide scale a level is worth seeing.
    wide = np.array([90.0, 100, 100, 100, 100, 20, 100, 100, 100, 100])
    shown = SparkScale(0.0, 100.0).line(wide, Unit.PERCENT, UNICODE)
    assert shown == "▇▔▔▔▔▂▔▔▔▔"
    means[3:12] = 99.5
    assert "▔" not in scale.line(means, Unit.PERCENT, UNICODE)


@pytest.mark.few(3)
@pytest.mark.parametrize("width", range(40, 200, 20))
def test_blocks_of_an_icicle_have_names_that_say_something(width: int) -> None:
    run = demo_run()
    (chart, *_) = query(run, View(run.name, name="icicle")).charts
    names = {name for row in chart.rows for name in row.labels}
    for height in (13, 16, 40):
        for line in draw(chart, width, height, UNICODE.coloured(True), 0, 0)[1:-2]:
            for text, _ in line:
                name = text.strip("▏▌ ▀")
                assert "…" not in name or len(name) >= 6
                assert "…" in name or not name or any(name in each for each in names)
        on = Canvas(width, height, UNICODE.coloured(True), 0, 0)
        IcicleDrawer().body(chart, on)
        assert len(on.lines) == min(height, 42)


def test_short_blocks_of_an_icicle_do_not_set_the_scale_of_a_long_one() -> None:
    ends = np.array([500, *range(510, 1001, 10)])
    busy = np.array([0.2, *[100.0] * (len(ends) - 1)])
    rows = [
        IcicleRow("phase", ("all",), np.zeros(1, int), ends[-1:], np.array([50.0]),
                  np.full(1, -1), np.ones(1)),
        IcicleRow("layer", tuple(map(str, range(len(ends)))), np.append(0, ends[:-1]), ends, busy,
                  np.zeros(len(ends), int), np.ones(len(ends))),
    ]  # fmt: skip
    chart = Icicle("time by phase, layer; colour busy %", "%", tuple(rows), lambda *_: View("R"))
    *_, scale, words = (
        "".join(text for text, _ in line) for line in draw(chart, 80, 12, UNICODE, 0, 0)
    )
    assert scale.startswith("0.2 ") and scale.rstrip().endswith("100 %")
    assert words.endswith("100.0 %, busy 50 %")


NONE = np.zeros(0)
EMPTY: list[Chart] = [
    BarChart("b", "ms", (), ()),
    BarChart("b", "ms", (), (Series("a", NONE),)),
    Composition("step", "ms", ("step",), ()),
    Composition("step", "ms", (), (Series("a", NONE),)),
    Composition("step", "ms", ("step",), (Series("a", np.zeros(1)),)),
    HeatMap("h", "ms", (), (), "x", np.zeros((0, 0))),
    HeatMap("h", "ms", ("a",), (), "x", np.zeros((1, 0))),
    HeatMap("h", "ms", (), ("a",), "x", np.zeros((0, 1))),
    LineChart("c", "MHz", "time", "ms", (), ()),
    LineChart("c", "MHz", "time", "ms", (NONE,), (Series("a", NONE),)),
    MemoryChart("m", (), ()),
    Roofline("r", (), NONE, NONE, NONE, NONE, NONE, (), None, ()),
    SignalRows("s", "W", "time", "ms", (0.0, 1.0), (), np.zeros((0, 4)), NONE, ()),
    SignalRows(
        "s", "W", "time", "ms", (1.0, 1.0), ("a",), np.full((1, 1), NAN), np.full(1, NAN), ()
    ),
]


@pytest.mark.parametrize("chart", EMPTY, ids=lambda chart: type(chart).__name__)
def test_a_chart_of_nothing_is_drawn(chart: Chart) -> None:
    """Random keys found a composition without parts, and a pane that is being hidden."""
    for width, height in ((-1, 4), (4, 0), (1, 1), (8, 3), (80, 14)):
        for glyphs in (UNICODE, ASCII):
            assert len(draw_below([chart, chart], width, height, glyphs)) <= max(height, 0)
            lines = text(chart, width, height, glyphs)
            assert len(lines) <= max(height, 0)
            most_lines_below([chart], width, glyphs)
            lines_wanted([chart, chart], width, glyphs)
            lines_filled([chart], width, height, glyphs)


_NAMES: Final = {
    "gemm": {"compute", "GEMM", "forward GEMM", "backward GEMM"},
    "attention": {"attention", "forward attention", "backward attention"},
    "elementwise": {"elementwise", "forward vector", "backward vector"},
    "norm": {"norm, softmax"},
    "copy": {"copy", "copies", "copy kernels", "sharding copies", "exposed copies", "memory"},
    "optimizer": {"optimizer", "optimizer, other"},
    "hidden": {"hidden comm", "compute during communication"},
    "exposed": {"exposed comm", "exposed communication", "communication", "collective"},
    "waiting": {"waiting", "after launch, under communication"},
    "idle": {"idle", "launch"},
    "useful": {"ideal"},
    "low_clock": {"low clock", "possibly low clock"},
    "matrix": {"idle matrix units"},
    "vector": {"vector work"},
    "extra": {"extra instructions", "recomputation"},
    "contention": {"contention"},
    "unknown": {"not explained", "other compute"},
}
"""What a legend may call each ink: the table of colours."""


def test_a_colour_means_the_same_in_every_view() -> None:
    run, seen, used = demo_run(), set[str](), set[str]()
    for name in VIEWS:
        try:
            frame = query(run, View(run.name, name=name))
        except ChopperError:
            continue
        for line in chart_lines(frame.charts, 140, UNICODE.coloured(True)):
            used |= {part for _, ink in line for part in ink.split("/")}
            for (mark, ink), (word, about) in pairwise(line):
                if mark.strip() in ("█", "▓", "▒", "░") and about == "dim" and word.strip():
                    ink = ink.removesuffix("~")
                    assert ink not in MEANINGS or word.strip() in _NAMES[ink], (name, ink, word)
                    seen.add(ink)
    roles = {"text", "dim", "strong", "header", "chosen", "cursor"}
    scales = {*(f"heat{n}" for n in range(16)), *(f"change{n}" for n in range(15))}
    used = {each.removesuffix("~") for each in used}
    assert used <= {*MEANINGS, *NEUTRAL, *roles, *scales} and {*_NAMES} - seen <= {"hidden"}


def test_tall_lanes_have_names_over_compute_and_communication_below() -> None:
    """Where lines are left, as on a screen; in text each lane has one."""
    comm = {"kind": Kind.COMM, "stream": 8, "operation": "all_reduce"}
    rows = [
        Row(0, 10, stream=7, operation="tiny"),
        Row(100, 400, stream=9, kernel="gemm_kernel", operation="mlp_up"),
        Row(300, 500, kernel="ncclDevKernel_Generic", **comm),
    ]
    run = run_of(rows)
    chart = query(run, View(run.name, name="timeline", by="gpu")).charts[0]
    colours = UNICODE.coloured(True)
    drawn = draw_below((chart,), 100, 30, colours)
    texts = ["".join(text for text, _ in line) for line in drawn]
    top = next(y for y, text in enumerate(texts) if "GPU 0" in text)
    lane, below = texts[top], texts[top + 4]
    assert "gemm_kernel" in lane and "all_reduce" in below and "all_reduce" not in lane
    inks = [{part for _, ink in line for part in ink.split("/")} for line in drawn[top : top + 5]]
    assert all("gemm" in each and not {"hidden", "exposed"} & each for each in inks[:4])
    assert {"hidden", "exposed"} <= inks[4] and "gemm" not in inks[4]
    assert sum("GPU 0" in "".join(text for text, _ in line) for line in drawn) == 1
    plain = ["".join(text for text, _ in line) for line in chart_lines((chart,), 100, colours)]
    at = next(y for y, text in enumerate(plain) if "GPU 0" in text)
    assert "█" not in plain[at + 1] and "▀" not in plain[at + 1]
    streams = query(run, View(run.name, name="timeline", by="stream")).charts[0]
    assert isinstance(streams, Lanes)
    assert streams.lanes == ("GPU 0 s9", "GPU 0 s7", "GPU 0 s8"), "what computes most is first"


def test_nested_curves_are_areas_and_a_line_in_front() -> None:
    x = np.arange(10.0)
    lines = {"all": x + 20, "some": x + 10, "few": x}
    chart = LineChart.over("title", "", "time", "ms", x, lines)
    drawn = draw(replace(chart, is_nested=True), 60, 12, UNICODE.coloured(True))
    inks = {part for line in drawn[1:] for _, ink in line for part in ink.split("/")}
    assert {"shade", "third", "strong"} <= inks
    legend = "".join(text for line in drawn[:2] for text, _ in line)
    assert all(name in legend for name in lines)


def test_a_schedule_has_three_fills_and_round_times() -> None:
    numbers = np.tile([100.0, -100.0, 0.0], (2, 10))
    at = tuple(str(20 * place) for place in range(30))
    kinds = ("backward", "idle", "forward")
    chart = HeatMap("along time", "%", ("stage 0", "stage 1"), at, "ms", numbers, kinds=kinds)
    drawn = draw(chart, 60, 12, UNICODE.coloured(True))
    inks = {part for line in drawn[1:3] for _, ink in line for part in ink.split("/")}
    assert {"second", "idle", "third"} <= inks and not any(ink.startswith("change") for ink in inks)
    text = "\n".join("".join(text for text, _ in line) for line in drawn)
    assert all(kind in text for kind in kinds) and "%" not in text
    assert text.startswith("along time, ms")
    times = [int(word) for word in re.findall(r"\b\d+\b", text.split("stage 1")[1])]
    assert len(times) > 2 and len(set(np.diff(times).tolist())) == 1


def test_places_that_are_counted_have_steps_and_whole_ticks() -> None:
    x, glyphs = np.arange(4.0), UNICODE.coloured(True)
    for several in (1, 5):
        lines = {str(n): np.array([1.0, 9.0, 1.0, 9.0]) for n in range(several)}
        drawn = draw(LineChart.over("t", "ms", "turn", "", x, lines), 100, 12, glyphs)
        rows = ["".join(text for text, _ in line) for line in drawn]
        assert rows[-1].split() == ["0", "1", "2", "3", "turn"]
        tops = {row.index(word) for row in rows[1:-2] if (word := row.strip("│┤ 0123456789.")[:3])}
        assert len(tops) <= 3, "a slope has as many beginnings as lines"


def test_the_legend_of_a_timeline_has_the_host_and_the_scale_of_the_clocks() -> None:
    (chart,) = query(demo_run(), View("fsdp2", name="timeline")).charts
    drawn = draw_below((chart,), 190, 50, UNICODE.coloured(True))
    line = next(line for line in drawn if any("GEMM" in text for text, _ in line))
    legend = "".join(text for text, _ in line)
    assert "host ▀ operators  ▄ runtime calls" in legend
    assert re.search(r"clock 1\d{3} ▀+ 1\d{3} MHz", legend)
    assert {f"heat{n}/text" for n in range(16)} <= {ink for _, ink in line}


def test_a_map_of_one_number_has_no_scale() -> None:
    lines = text(heat([[49.9], [49.9]], 1))
    assert "all 49.9 ms" in lines[-1] and "▁▂" not in lines[-1]


@pytest.mark.parametrize("width", range(40, 120, 3))
def test_the_entries_of_a_timeline_s_legend_are_whole(width: int) -> None:
    (chart,) = query(demo_run(), View("fsdp2", name="timeline")).charts
    drawn = draw_below((chart,), width, 24, UNICODE.coloured(True))
    line = next(line for line in drawn if any("GEMM" in text for text, _ in line))
    legend = "".join(text for text, _ in line)
    assert "…" not in legend and len(legend) <= width and legend == legend.rstrip()
