"""The parts without a screen: steps between places, layouts, ASCII, the plot."""

from __future__ import annotations

import gc
from itertools import pairwise, product
from weakref import ref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len
from rich.color import Color, ColorType

from chopper_core.analyses.lanes import CLASS_NAMES
from chopper_core.columns import Values
from chopper_core.model.address import parse
from chopper_core.model.memo import LazyMap
from chopper_core.model.signals import Signal
from chopper_core.model.units import Unit
from chopper_core.model.view import View
from chopper_core.render.glyphs import ASCII, UNICODE
from chopper_core.render.palette import MEANINGS, NEUTRAL
from chopper_core.util.errors import ChopperError
from chopper_core.views import VIEWS
from chopper_core.views.query import query
from chopper_core.views.shared.signal_charts import SignalChart
from chopper_tui.draw import signal_plot as plot
from chopper_tui.draw.charts import chart_lines
from chopper_tui.draw.pieces import (
    _TIMES,
    CLASS_INKS,
    COPY,
    EXPOSED,
    HIDDEN,
    SERIES_INKS,
    WAITING,
    fit,
    series_inks,
    width_of,
)
from chopper_tui.draw.table import GAP, PREFIX, _cells, plan
from chopper_tui.draw.theme import GROUNDS, THEMES, inks, to_ascii
from chopper_tui.history import into_child, moved_row, parent_of, trail_to
from chopper_tui.widgets.header import path_pieces
from chopper_tui.widgets.pane import Room, divided_lines, size_classes
from tests.demo import demo_run
from tests.pipelines import pipeline_run
from tests.tui.explorer import explorer, measured_run, sample_run

INK_NAMES = [*inks("dark", "truecolor", no_color=False).styles]
LEVELS_OF_SCALES = [*(f"heat{n}" for n in range(16)), *(f"change{n}" for n in range(15))]
LABELS = st.lists(st.text(min_size=1), max_size=7)


@given(LABELS, st.text(min_size=1), st.integers(0, 50))
def test_up_undoes_in(labels: list[str], label: str, offset: int) -> None:
    trail = moved_row(trail_to(View("r", tuple(labels[:6]))), label, offset)
    assert parent_of(into_child(trail, label)) == trail


def test_the_root_has_no_parent() -> None:
    trail = trail_to(View("r"))
    assert parent_of(trail) == trail


@given(st.text(), st.integers(1, 60))
def test_a_text_fits_exactly(text: str, width: int) -> None:
    shown = "".join(char for char in text if cell_len(char) > 0)
    assert cell_len(fit(shown, width, UNICODE)) == width


@given(st.lists(st.text(min_size=1), min_size=1, max_size=8), st.integers(4, 200))
def test_a_path_fits_and_ends_where_one_is(steps: list[str], room: int) -> None:
    steps = ["".join(char for char in step if cell_len(char) > 0) or "x" for step in steps]
    pieces = path_pieces(steps, room, UNICODE)
    assert width_of(pieces) <= room
    whole = " › ".join(steps)
    if "".join(steps).isascii() and len(whole) <= room:
        assert "".join(text for text, _ in pieces) == whole.rstrip()


def test_a_long_name_gives_way_to_the_path_that_leads_there() -> None:
    steps = ["fsdp2", "GPU 5", "step 10", "backward", "L3", "mlp_dp", "Cijk_Ailk" + "_x" * 60]
    for room in range(75, 100):
        text = "".join(text for text, _ in path_pieces(steps, room, UNICODE))
        assert text.startswith("fsdp2 › GPU 5 › step 10 › backward › L3 › mlp_dp › Cijk_Ailk_")
        assert len(text) == room
    text = "".join(text for text, _ in path_pieces(steps, 50, UNICODE))
    assert text.startswith("… › L3 › mlp_dp › Cijk_Ailk_")


@given(st.text())
def test_ascii_takes_as_many_cells(text: str) -> None:
    assert to_ascii(text).isascii()
    shown = "".join(char for char in text if cell_len(char) > 0)
    assert len(to_ascii(shown)) == sum(cell_len(char) for char in shown)


@pytest.mark.few(15)
@pytest.mark.parametrize("width", range(20, 260, 16))
@pytest.mark.parametrize("depth", [0, 4, 6])
def test_a_layout_fits(width: int, depth: int) -> None:
    path = ("3", "11", "backward", "2", "qkv_ip", "Cijk_Alik_Bljk_MT256x256")[:depth]
    run = sample_run()
    frame = query(run, View("sample.json", path))
    signals = [run.signal("busy_pct"), run.signal("compute_pct")]
    for full, count in product((False, True), range(3)):
        layout = plan(frame, width, UNICODE, full, signals[:count])
        drawn = [[("▁" * spark.cells, "clock0")] for spark in layout.sparks]
        row = width_of(layout.row(0, drawn, False))
        assert width_of(layout.header()) == row <= width
        assert width_of(layout.row(0, drawn, True)) == row
        header = "".join(text for text, _ in layout.header())
        for number, spark in enumerate(layout.sparks):
            before = _cells(layout.columns, layout.sparks[:number])
            at = PREFIX + layout.name_width + before + GAP
            assert header[at:].startswith(spark.header)


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
@pytest.mark.parametrize("gpus", [1, 5])
def test_a_plot_has_its_size(gpus: int, glyphs: object) -> None:
    signal = Signal("busy_pct", "busy", Unit.PERCENT, {}, 0, 100)
    values = 100 * np.random.default_rng(0).random((gpus, 99))
    values[:, 40:50] = np.nan
    chart = SignalChart(signal, 0, 9_000_000, (0, 9_000_000), tuple(range(gpus)), values)
    for width, height in ((20, 2), (70, 3), (100, 12)):
        lines = plot.draw_signals(chart, width, height, glyphs)  # type: ignore[arg-type]
        assert len(lines) == height and {width_of(line) for line in lines} == {width}
        if glyphs is ASCII:
            assert all(text.isascii() for line in lines for text, _ in line)


def test_the_size_of_a_terminal_says_which_parts_it_has() -> None:
    def classes(width: int, height: int) -> set[str]:
        return {name for name, holds in size_classes(width, height).items() if holds}

    assert not classes(39, 24) and not classes(80, 9)
    assert classes(49, 24) == classes(80, 15) == {"-fits"}
    assert classes(50, 16) == classes(80, 24) == {"-fits", "-lines"}
    assert classes(120, 36) == {"-fits", "-lines", "-tall", "-panels", "-wide"}
    assert classes(200, 60) == {*classes(120, 36), "-large"}


def test_parts_below_one_another_share_the_lines() -> None:
    rooms = Room("table", 5, 9, 9), Room("picture", 4, 6, 99), Room("evidence", 7, 12, 12)
    assert divided_lines(20, *rooms) == {"table": 9, "picture": 4, "evidence": 7}
    assert divided_lines(27, *rooms) == {"table": 9, "picture": 6, "evidence": 12}
    assert divided_lines(40, *rooms) == {"table": 9, "picture": 19, "evidence": 12}
    # Where not all have their least, the last are left out.
    assert divided_lines(12, *rooms) == {"table": 8, "picture": 4, "evidence": 0}
    assert divided_lines(3, *rooms) == {"table": 3, "picture": 0, "evidence": 0}
    assert divided_lines(20, rooms[0], Room("picture", 0, 0)) == {"table": 9, "picture": 0}


@given(st.integers(0, 200), st.lists(st.tuples(*[st.integers(0, 60)] * 3), min_size=1, max_size=5))
def test_shared_lines_are_those_there_are(lines: int, sizes: list[tuple[int, int, int]]) -> None:
    rooms = [Room(str(at), *sorted(each)) for at, each in enumerate(sizes)]
    given_ = divided_lines(lines, *rooms)
    assert [*given_] == [room.part for room in rooms] and sum(given_.values()) <= lines
    assert all(0 <= given_[room.part] <= room.most for room in rooms)
    if sum(given_.values()) < lines:
        shown = [room for room in rooms if given_[room.part]]
        assert all(given_[room.part] == room.most for room in shown)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("colours", [None, "standard", "256", "truecolor"])
def test_every_theme_tells_the_cursor_and_the_alerts_apart(theme: str, colours: str | None) -> None:
    drawn = inks(theme, colours, no_color=colours is None)
    for ink in ("cursor", "warning", "alarm", "chosen", "header"):
        assert drawn.of(ink) != drawn.of("text")
    if colours is None:
        names = (*INK_NAMES, *LEVELS_OF_SCALES, "text/heat3", "heat1/heat2")
        assert all(drawn.of(name).color is drawn.of(name).bgcolor is None for name in names)
        assert not drawn.has_colours
    if colours == "standard":
        styles = [drawn.of(name) for name in (*INK_NAMES, *LEVELS_OF_SCALES, "strong/heat3")]
        found = {each.type for style in styles for each in (style.color, style.bgcolor) if each}
        assert found <= {ColorType.STANDARD}


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_a_scale_of_magnitude_has_even_steps_and_its_text_can_be_read(theme: str) -> None:
    drawn = inks(theme, "truecolor", no_color=False)
    light = [_luminance(drawn.of(f"heat{level}").bgcolor) for level in range(16)]
    # CIE L*, which eyes take as even.
    steps = np.diff([116 * (y ** (1 / 3)) - 16 for y in light])
    assert abs(steps).max() < 2 * abs(steps).min() and len(set(np.sign(steps))) == 1
    for level in range(16):
        style = drawn.of(f"text/heat{level}")
        assert _contrast(_luminance(style.color), _luminance(style.bgcolor)) >= 4.5


_BLINDNESS = {
    "none": np.eye(3),
    "protanopia": [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.052]],
    "deuteranopia": [[0.3673, 0.8606, -0.228], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]],
    "tritanopia": [[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]],
}
"""Machado, Oliveira, Fernandes (2009), severity 1, on linear RGB."""
_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_series_without_a_meaning_have_no_hue_and_are_told_apart(theme: str) -> None:
    """The chroma of greys is below what takes a name; their lightness is 8 apart on CIE L*."""
    drawn = inks(theme, "truecolor", no_color=False)
    linear = np.array([_linear(drawn.of(name).color) for name in NEUTRAL])
    lab = np.cbrt(linear @ _XYZ.T @ np.transpose(_LMS)) @ np.transpose(_OKLAB)
    assert np.hypot(lab[:, 1], lab[:, 2]).max() < 0.03
    light = np.sort(116 * np.cbrt((linear @ _XYZ.T)[:, 1]) - 16)
    assert np.diff(light).min() > 8 and set(SERIES_INKS) < set(NEUTRAL)


_LMS = [[0.8190, 0.3619, -0.1289], [0.0330, 0.9293, 0.0361], [0.0482, 0.2644, 0.6338]]
_OKLAB = [[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]]
"""Ottosson (2020): from XYZ, and from the cube roots of that."""


@pytest.mark.parametrize("blindness", _BLINDNESS)
@pytest.mark.parametrize(("theme", "least"), [("dark", 0.0755), ("light", 0.0615)])
def test_every_meaning_has_a_colour_of_its_own(theme: str, least: float, blindness: str) -> None:
    drawn = inks(theme, "truecolor", no_color=False)
    colours = np.array([_linear(drawn.of(name).color) for name in MEANINGS])
    seen = np.clip(colours @ np.transpose(_BLINDNESS[blindness]), 0, 1)
    lab = np.cbrt(seen @ _XYZ.T @ np.transpose(_LMS)) @ np.transpose(_OKLAB)
    apart = np.linalg.norm(lab[:, None] - lab, axis=2) + 1e9 * np.eye(len(lab))
    assert apart.min() > least


def test_a_name_of_time_has_one_ink_whatever_stands_next_to_it() -> None:
    named = {name: ink for ink, names in _TIMES.items() for name in names}
    assert set(_TIMES) <= set(MEANINGS)
    for first, second in product(named, named):
        again = named[second] + "~" * (named[first] == named[second])
        assert series_inks([first, "GPU 5", second]) == [named[first], "accent", again]
    assert not set(MEANINGS) & set(SERIES_INKS)


_LANES = dict(zip(CLASS_NAMES, CLASS_INKS, strict=True)) | {
    "exposed comm": EXPOSED,
    "hidden comm": HIDDEN,
    "copy": COPY,
    "waiting": WAITING,
}


@pytest.mark.parametrize("name", VIEWS)
def test_no_colour_has_two_meanings(name: str) -> None:
    """In the pictures of every view, the word next to a hue is what the hue means."""
    phases = ("forward ", "backward ", "prefill ", "decode ")
    for run in (demo_run(), sample_run(), pipeline_run()[0]):
        try:
            charts = query(run, parse(f"R?view={name}")).charts
        except ChopperError:
            continue
        for line in chart_lines(charts, 140, UNICODE.coloured(True)):
            for (mark, ink), (text, _) in pairwise(line):
                hue, word = ink.partition("/")[0], text.strip()
                if hue in MEANINGS and mark.strip() in [*"█▓▒░▀▄■"] and text[:1] == " " and word:
                    word = next((word.removeprefix(p) for p in phases if word.startswith(p)), word)
                    assert word in _TIMES.get(hue, ()) or _LANES.get(word) == hue, (word, hue)


@pytest.mark.parametrize(("theme", "ground"), [("dark", "#000000"), ("light", "#ffffff")])
def test_every_text_and_tint_can_be_read(theme: str, ground: str) -> None:
    """WCAG's 4.5:1 on the terminal's ground, and of the cursor's row on its bar."""
    drawn = inks(theme, "truecolor", no_color=False)
    inked = ("dim", "accent", "header", "warning", "alarm", "good")
    pairs = [(drawn.of(name).color, Color.parse(ground)) for name in inked]
    pairs.append((drawn.of("cursor").color, drawn.of("cursor").bgcolor))
    for name, (one, other) in zip((*inked, "cursor"), pairs, strict=True):
        assert _contrast(_luminance(one), _luminance(other)) >= 4.5, name


@pytest.mark.parametrize("theme", GROUNDS)
def test_a_painted_background_is_under_every_ink_and_its_text_can_be_read(theme: str) -> None:
    drawn = inks(theme, "truecolor", no_color=False, is_painted=True)
    ground = Color.parse(GROUNDS[theme][1])
    for name in ("text", "strong", "dim", "header", "chosen"):
        style = drawn.of(name)
        assert style.bgcolor == ground
        contrast = _contrast(_luminance(style.color), _luminance(ground))
        assert contrast >= (4.5 if name in ("text", "strong") else 3.0), (name, contrast)
    assert drawn.of("gemm").bgcolor == ground and drawn.of("cursor").bgcolor != ground
    assert inks(theme, "truecolor", no_color=False).of("text").bgcolor is None
    assert inks(theme, None, no_color=True, is_painted=True).of("text").bgcolor is None


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_text_on_every_fill_can_be_read(theme: str) -> None:
    drawn = inks(theme, "truecolor", no_color=False)
    for ground in (*NEUTRAL, *MEANINGS, *LEVELS_OF_SCALES):
        style = drawn.of(f"text/{ground}")
        assert _contrast(_luminance(style.color), _luminance(style.bgcolor)) >= 4.5, ground


def _linear(colour: object) -> list[float]:
    assert isinstance(colour, Color)
    parts = [part / 255 for part in colour.get_truecolor()]
    return [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]


def _luminance(colour: object) -> float:
    return float(np.dot(_linear(colour), (0.2126, 0.7152, 0.0722)))


def _contrast(one: float, other: float) -> float:
    """The ratio of two luminances as WCAG has it."""
    front, back = sorted((one, other))
    return (back + 0.05) / (front + 0.05)


def test_high_contrast_dims_nothing() -> None:
    drawn = inks("contrast", "truecolor", no_color=False)
    assert not any(drawn.of(name).dim for name in INK_NAMES)


def test_a_column_without_room_is_not_computed() -> None:
    frame = query(measured_run(), View("R", sort="-kernel_ns"))
    asked = set()

    def values(name: str) -> Values:
        asked.add(name)
        return frame.values[name]

    lazy = replace(frame, values=LazyMap(frame.values, values))
    layout = plan(lazy, 60, UNICODE)
    assert layout.after and "kernel_ns" in [each.name for each in layout.columns]
    assert {each.name for each in layout.columns} <= asked < set(frame.values)
    plan(lazy, 400, UNICODE)
    assert asked == set(frame.values)


def test_the_sorted_and_the_added_column_are_always_in_sight() -> None:
    run = measured_run()
    names = ("elapsed_ns", "kernels", "busy_pct", "gfx_mhz", "power_w", "idle_ns", "kernel_ns")
    view = View("R", columns=names, sort="-kernel_ns")
    signals = [run.signal("gfx_mhz"), run.signal("gfx_util_pct")]
    layout = plan(query(run, view), 60, UNICODE, signals=signals)
    assert layout.sparks == () and "kernel_ns" in [each.name for each in layout.columns]
    layout = plan(query(run, replace(view, sort="")), 60, UNICODE, signals=signals, added="idle_ns")
    assert "idle_ns" in [each.name for each in layout.columns]
    assert layout.after and len(layout.columns) < len(names)
    moved = plan(query(run, replace(view, sort="")), 60, UNICODE, first=3)
    assert moved.columns[0].name == "gfx_mhz" and moved.before == 3
    assert moved.header()[0][0].startswith("<")
    # Where all have room, sparklines stay.
    assert len(plan(query(run, view), 200, UNICODE, signals=signals).sparks) == 2


@pytest.mark.sweep
async def test_a_closed_dialog_leaves_nothing_behind() -> None:
    async with explorer() as at:
        await at.press("?")
        drawn = ref(at.app.screen._styles_cache)
        await at.press("escape")
        gc.collect()
        assert drawn() is None


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("?sort=-idle_host_ns", "idle_host_ns"),
        ("?columns=kernels&sort=-idle_host_ns", "idle_host_ns"),
        ("gpu=1?base=gpu=0&sort=-idle_host_ns_delta", "idle_host_ns_delta"),
        ("?view=kernels&sort=-idle_host_ns", "idle_host_ns"),
        ("?view=ranks&sort=-starts_last_pct", "starts_last_pct"),
    ],
)
def test_what_rows_are_sorted_by_is_a_column_at_every_width(text: str, name: str) -> None:
    run = measured_run()
    frame = query(run, parse(f"{run.name}{'' if text[0] == '?' else ':'}{text}"))
    assert name in [column.name for column in frame.columns]
    for width in (60, 80, 200):
        assert name in {column.name for column in plan(frame, width, UNICODE).columns}
