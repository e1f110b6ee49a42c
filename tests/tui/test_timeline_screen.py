"""The timeline in the explorer: zoom, pan, jumps, measuring, and the way to the tree and back."""

from __future__ import annotations

import re

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.model.address import parse, render
from chopper_core.model.charts import LaneCells, Lanes, Span
from chopper_core.model.table import Kind
from chopper_core.model.view import Baseline, Interval, View, Window
from chopper_core.render.glyphs import ASCII, UNICODE, Glyphs
from chopper_core.views.query import query
from chopper_tui.actions import ACTIONS
from chopper_tui.draw.charts import draw as draw_lanes
from chopper_tui.draw.timeline import bins_of
from chopper_tui.screen_data import ScreenData
from chopper_tui.widgets.chart_panes import PicturePane
from chopper_tui.widgets.footer import Status, pointed_text
from tests.support import Row, run_of
from tests.tui.explorer import Driven, explorer, measured_run
from tests.tui.test_goldens import compare
from tests.wording import Wording

SIZES = [(80, 24), (120, 40), (200, 60)]
SCOPE = ("3", "11")


def seen(at: Driven) -> Interval:
    picture = at.frame.charts[0]
    assert isinstance(picture, Lanes)
    return picture.seen


def pointed(at: Driven) -> str:
    return at.explore.query_one(Status).pointed


@pytest.mark.parametrize("keys", ["", "ccww"], ids=["whole", "near"])
@pytest.mark.golden
async def test_the_screen(keys: str) -> None:
    async with explorer((80, 24), measured_run(), View("sample.json", SCOPE)) as at:
        await at.press("2", *keys)
        compare(f"timeline-{'near' if keys else 'whole'}_80x24", at.text())


@pytest.mark.sweep
@pytest.mark.golden
async def test_the_screen_in_ascii_and_while_measuring() -> None:
    async with explorer((80, 24), measured_run(), View("sample.json", SCOPE), ASCII) as at:
        await at.press("2", "c", "w", "w", "v", "l", "l", "l", "l")
        assert at.text().isascii()
        compare("timeline-ascii_80x24", at.text())


@pytest.mark.parametrize(
    ("opened", "presses"),
    [
        ("2l+", "llllllll +dddd cccc"),
        ("jj", "[[[[[[[[ +--- ++aaa"),
        pytest.param("2l+", "hhhh +++++ .... ,,, CCC ----", marks=pytest.mark.sweep),
        pytest.param("jj", "]]]] MMM ++++ +dd", marks=pytest.mark.sweep),
    ],
)
async def test_presses_that_wait_lead_together_where_they_lead_one_by_one(
    opened: str, presses: str
) -> None:
    shown: list[View] = []
    async with explorer((120, 40), measured_run(), View("sample.json", SCOPE)) as at:
        await at.press(*opened)
        start, row, show = at.frame.view, at.label, at.explore.show

        def noted(data: ScreenData) -> None:
            shown.append(data.frame.view)
            show(data)

        async def back() -> None:
            await at.command(f"go {render(start)}")
            at.explore.table.move_to_label(row)
            shown.clear()

        at.explore.show = noted  # type: ignore[method-assign]
        for keys in presses.split():
            await back()
            await at.press(*keys)
            wanted, said, text = at.frame.view, at.status, at.text()
            await back()
            await at.type(keys)
            assert (at.frame.view, at.status, at.text()) == (wanted, said, text), keys
            assert 0 < len(shown) < len(keys), keys


@pytest.mark.few(1)
@pytest.mark.parametrize("size", SIZES)
async def test_zoom_pan_and_the_whole(size: tuple[int, int]) -> None:
    async with explorer(size, view=View("sample.json", SCOPE)) as at:
        await at.press("2")
        whole = seen(at)
        assert at.frame.view.window == Window(at_ns=whole.at_ns)
        await at.press("+")
        near = seen(at)
        assert abs(near.length_ns - whole.length_ns / 2) <= 1 and near.at_ns == whole.at_ns
        assert at.frame.view.window == near.window()
        await at.press("d")
        assert seen(at).from_ns == near.from_ns + round(near.length_ns / 2)
        await at.press("a")
        assert seen(at) == near
        await at.press("w", "s", "-")
        assert abs(seen(at).length_ns - whole.length_ns) <= 2
        await at.press("+", "+", "Z")
        assert (seen(at).from_ns, seen(at).to_ns) == (whole.from_ns, whole.to_ns)


@pytest.mark.sweep
async def test_the_cursor_goes_cell_by_cell_and_the_window_follows() -> None:
    async with explorer(view=View("sample.json", SCOPE)) as at:
        await at.press("2", "+")
        picture = at.frame.charts[0]
        assert isinstance(picture, Lanes)
        bins = bins_of(picture, at.explore.query(PicturePane).first().room)
        before = seen(at)
        await at.press("right")
        width = before.length_ns / bins
        assert 0 < seen(at).at_ns - before.at_ns <= 2 * width
        await at.press("h", "left", "l")
        assert abs(seen(at).at_ns - before.at_ns) <= width
        for _ in range(bins // 2 + 3):
            await at.press("l", "l")
        assert seen(at).from_ns > before.from_ns and seen(at).length_ns == before.length_ns


@pytest.mark.sweep
async def test_collectives_one_after_another_and_back(wording: Wording) -> None:
    run = measured_run()
    table = run.table
    async with explorer(run=run, view=View("sample.json", SCOPE)) as at:
        await at.press("2")
        first = seen(at).at_ns
        starts = table.start_ns[(table.kind == Kind.COMM) & (table.gpu == 3)] - run.origin_ns
        later = np.sort(starts[starts > first])
        assert first == run.tree().node((*SCOPE, "forward")).min("start_ns")[0] - run.origin_ns
        for number in range(2):
            await at.press("c")
            assert seen(at).at_ns == later[number] and at.label == "GPU 3 s11"
            assert pointed(at).startswith("all_gather  L")
        await at.press("C")
        assert seen(at).at_ns == later[0]
        await at.press(".")
        assert seen(at).at_ns == later[1]
        await at.press(",", ",")
        assert seen(at).at_ns == starts[starts < later[0]].max()
        for _ in range(len(later) + 1):
            await at.press("c")
        wording(at.status, "no collective")


@pytest.mark.sweep
async def test_measuring_from_a_mark_to_the_cursor() -> None:
    async with explorer((200, 60), measured_run(), View("sample.json", SCOPE)) as at:
        await at.press("2", "c", "v")
        mark = seen(at).at_ns
        await at.press("c")
        assert seen(at).mark_ns == mark and seen(at).at_ns > mark
        row = at.frame.labels.index("GPU 3 s11")
        # From one start to the next there is the one collective, whole.
        table = at.explore.run.table
        own = (table.kind == Kind.COMM) & (table.gpu == 3)
        own &= table.start_ns == mark + at.explore.run.origin_ns
        assert at.frame.values["between_ns"].at(row) == table.duration_ns[own].sum() > 0
        assert at.frame.values["between_activities"].at(row) == 1
        assert "after mark" in at.text()
        await at.press("v")
        assert seen(at).mark_ns is None and "after mark" not in at.text()


async def test_enter_goes_to_the_kernel_and_esc_leads_back_to_the_tree() -> None:
    async with explorer(view=View("sample.json", SCOPE)) as at:
        await at.press("down", "2", "c", "+")
        window = at.frame.view.window
        await at.press("enter")
        assert at.frame.view.name == "" and at.frame.view.is_leaf
        assert at.path[:2] == SCOPE and "all_gather" in at.path
        await at.press("escape")
        assert at.frame.view.name == "timeline" and at.frame.view.window == window
        await at.press("escape")
        assert at.frame.view.name == "" and at.path == SCOPE and not at.frame.view.window
        await at.press("2")
        assert at.frame.view.name == "timeline"


@pytest.mark.sweep
async def test_fitting_and_a_given_time(wording: Wording) -> None:
    async with explorer(view=View("sample.json", SCOPE)) as at:
        await at.press("2", "c", "F")
        assert seen(at).length_ns == 100_000 + 2 * (100_000 // 8)
        await at.command("at 2.5ms")
        assert seen(at).at_ns == 2_500_000
        assert seen(at).from_ns <= 2_500_000 <= seen(at).to_ns
        await at.command("at noon")
        wording(at.status, "time")


@pytest.mark.sweep
async def test_the_window_stays_on_another_gpu_and_not_in_another_iteration() -> None:
    async with explorer(view=View("sample.json", SCOPE)) as at:
        await at.press("2", "+", "{")
        window = at.frame.view.window
        assert window and at.path == ("2", "11")
        await at.press("]")
        assert at.path == ("2", "12") and not at.frame.view.window
        assert at.frame.view.name == "timeline"


@pytest.mark.sweep
async def test_keys_of_the_timeline_hold_there_alone() -> None:
    async with explorer(view=View("sample.json", SCOPE)) as at:
        await at.press("l")
        assert len(at.path) == 3
        await at.press("h", "c")
        assert at.path == SCOPE and at.status.startswith("chart")
        await at.command("zoom-in")
        assert "for the timeline" in at.status
        assert "zoom" not in at.lines()[-1]
        await at.press("2")
        assert "zoom" in at.lines()[-1]
        await at.press("-")
        assert at.frame.view.name == "timeline"


async def test_every_action_along_time_has_a_key_or_takes_something() -> None:
    for action in ACTIONS:
        assert not action.view or action.keys or action.takes


@pytest.mark.sweep
async def test_lanes_are_sorted_and_filtered_with_their_rows() -> None:
    async with explorer(view=View("sample.json", ("3",))) as at:
        await at.press("2")
        await at.command("sort -lane_comm_pct")
        await at.press("g")
        assert at.label == "GPU 3 s11"
        lines = [line[1:11] for line in at.lines()]
        assert lines.index("▌GPU 3 s11") < lines.index(" GPU 3 s0 ")
        await at.press("c")
        assert at.label == "GPU 3 s11" and "all_gather" in pointed(at)
        await at.command("filter s0")
        assert at.frame.labels == ["GPU 3 s0"] and "s11" not in at.text()
        await at.press("c", "C", "+")
        assert at.label == "GPU 3 s0"
        await at.command("filter nothing_at_all")
        assert not at.frame.labels
        await at.press("c", "F", "i", "enter")
        assert "no row" in at.status or "no lane" in at.status


@pytest.mark.sweep
async def test_another_signal_under_the_lanes() -> None:
    async with explorer((120, 40), measured_run(), View("sample.json", SCOPE)) as at:
        await at.press("2")
        assert "gfx MHz" in at.text() and "comm %" not in at.text().partition("lane ")[0]
        await at.command("metric comm_pct")
        assert "comm %" in at.text().partition("lane ")[0]


async def test_a_run_without_telemetry_says_so(wording: Wording) -> None:
    async with explorer(view=View("sample.json", SCOPE)) as at:
        await at.press("2")
        wording.among(at.text(), "no telemetry")


@pytest.mark.sweep
@pytest.mark.parametrize("size", [(60, 16), (50, 12), (40, 10)])
async def test_small_terminals(size: tuple[int, int]) -> None:
    async with explorer(size, view=View("sample.json", ())) as at:
        # Escape shows the other panels again before it goes back.
        await at.press("2", "+", "c", "z", "j", "enter", "escape", "escape")
        assert at.frame.view.name == "timeline"
        assert all(len(line) == size[0] for line in at.lines())


@pytest.mark.few(3)
@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
@pytest.mark.parametrize("height", [1, 4, 7, 12, 40])
def test_a_picture_fits_and_shows_the_selected_lane(height: int, glyphs: Glyphs) -> None:
    rows = [Row(10 * n, 9, stream=n % 20, layer=n % 3) for n in range(200)]
    run = run_of(rows)
    from chopper_core.views.query import query

    picture = query(run, parse("R?view=timeline")).charts[0]
    assert isinstance(picture, Lanes)
    for selected in (0, 11, 19):
        lines = draw_lanes(picture, 90, height, glyphs, selected)
        texts = ["".join(text for text, _ in line) for line in lines]
        assert len(texts) <= height and all(len(text) <= 90 for text in texts)
        if height > 3:
            assert any(text.startswith(glyphs.cursor + picture.lanes[selected]) for text in texts)


def one_lane(cells: LaneCells, seen: Interval, classes: tuple[str, ...] = ()) -> Lanes:
    """A picture of a stream of one GPU."""
    return Lanes(
        title="lanes",
        lanes=("GPU 0 s0",),
        owners=("GPU 0",),
        kinds=("compute", "comm", "copy"),
        seen=seen,
        pointed=(),
        signals=0,
        cells=lambda row, bins: cells,
        bands=lambda row, bins: (),
        strips=lambda row, bins: (),
        missing="nothing",
        classes=classes,
    )


def test_kinds_are_in_the_halves_of_a_lane_without_colours() -> None:
    kinds = np.array([[10, 60, 100, 0, 90, 0, 30], [0, 0, 0, 100, 80, 0, 40], [0] * 7])
    busy = np.array([10, 60, 100, 100, 95, 0, 70])
    cells = LaneCells(kinds, busy, np.full(7, 100), (Span(2, 3, "k"),))
    picture = one_lane(cells, Interval(0, 700, 550, None, 700))
    for glyphs, wanted in ((UNICODE, "·▀▏▄█│█"), (ASCII, '."|_#|#')):
        width = 17
        assert bins_of(picture, width) == 7
        texts = ["".join(t for t, _ in line) for line in draw_lanes(picture, width, 6, glyphs)]
        assert texts[3][-7:] == wanted
        assert texts[2][-7:].index("▼" if glyphs is UNICODE else "v") == 5


def test_an_address_opens_the_same_window() -> None:
    view = parse("sample.json:gpu=3?view=timeline&from=2ms&to=4.5ms&at=3ms&mark=2.5ms")
    assert view.window == Window(2_000_000, 4_500_000, 3_000_000, 2_500_000)


async def test_the_cursor_begins_at_the_row_of_the_tree() -> None:
    run = measured_run()
    async with explorer(run=run, view=View("sample.json", SCOPE)) as at:
        await at.press("down")
        start = run.tree().node((*SCOPE, at.label or "")).min("start_ns")[0] - run.origin_ns
        await at.press("2")
        assert seen(at).at_ns == start > seen(at).from_ns


@pytest.mark.sweep
async def test_a_name_is_found_along_time(wording: Wording) -> None:
    run = measured_run()
    table = run.table
    async with explorer(run=run, view=View("sample.json", ("3",))) as at:
        await at.press("2", "Z")
        code = table.operations.index("attn_fa")
        wanted = np.sort(table.start_ns[(table.gpu == 3) & (table.operation == code)])
        wanted -= run.origin_ns
        await at.press("f")
        await at.type("attn_f")
        await at.press("enter")
        assert seen(at).at_ns == wanted[0] and pointed(at).startswith("attn_fa")
        await at.press("n", "n", "N")
        assert seen(at).at_ns == wanted[1]
        await at.command("find nccl")
        assert pointed(at).startswith("all_gather") and at.label == "GPU 3 s11"
        await at.command("find no_such_kernel")
        wording(at.status, "'no_such_kernel'")


@pytest.mark.sweep
async def test_what_is_measured_fits_the_screen() -> None:
    async with explorer(view=View("sample.json", SCOPE)) as at:
        await at.press("2", "c", "v")
        low = seen(at).at_ns
        await at.press("c", "F")
        room = (seen(at).at_ns - low) // 8
        assert (seen(at).from_ns, seen(at).to_ns) == (low - room, seen(at).at_ns + room)


async def test_the_detail_is_that_of_what_is_under_the_cursor() -> None:
    async with explorer((120, 40), measured_run(), View("sample.json", SCOPE)) as at:
        await at.press("2", "c", "i")
        text = at.text()
        assert "kernel ncclDevKernel_Generic" in text and "power" in text and "launch" in text


@pytest.mark.few(1)
@pytest.mark.parametrize("size", SIZES)
async def test_the_mouse_points_and_zooms(size: tuple[int, int]) -> None:
    async with explorer(size, measured_run(), View("sample.json", SCOPE)) as at:
        await at.press("2")
        pane = at.explore.query(PicturePane).first()
        lines = at.lines()
        y = next(n for n, line in enumerate(lines) if "GPU 3 s11" in line[2:13])
        before = seen(at)
        await at.pilot.click(offset=(40, y))
        await at.settle()
        picture = at.frame.charts[0]
        assert isinstance(picture, Lanes)
        bins = bins_of(picture, pane.room)
        assert at.label == "GPU 3 s11"
        ruler = next(line for line in at.lines() if "▼" in line)
        assert ruler.index("▼") == 40
        at.explore.perform_at("zoom_in", bins // 4)
        await at.settle()
        assert abs(seen(at).length_ns - before.length_ns / 2) <= 1
        middle = before.from_ns + (bins // 4 + 0.5) * before.length_ns / bins
        share = (middle - seen(at).from_ns) / seen(at).length_ns
        assert abs(share - (bins // 4 + 0.5) / bins) < 1 / bins
        at.explore.perform_at("zoom_out", bins // 4)
        await at.settle()
        assert abs(seen(at).length_ns - before.length_ns) <= 2


def test_in_colours_kinds_and_classes_have_hues_and_names_stand_on_them() -> None:
    kinds = np.array([[100] * 12 + [90, 0, 0], [0] * 12 + [80, 100, 0], [0] * 14 + [50]])
    classes = np.zeros((6, 15), np.int64)
    classes[1, :12] = classes[0, 12] = 1
    busy = np.array([100] * 14 + [50])
    spans = (Span(0, 12, "attn_fwd"), Span(13, 14, "k"))
    cells = LaneCells(kinds, busy, np.full(15, 100), spans, classes)
    names = "GEMM", "attention", "elementwise", "copies", "optimizer", "other"
    picture = one_lane(cells, Interval(0, 1500, 1450, None, 1500), names)
    glyphs = UNICODE.coloured(True)
    lines = draw_lanes(picture, 25, 6, glyphs)
    _, *lane = lines[3]
    assert lane[0] == ("▏ attn_fwd  ", "text/attention")
    assert [ink for _, ink in lane[1:]] == ["gemm/hidden", "text/exposed", "cursor"]
    assert ("█", "attention") in lines[0] and "elementwise" not in [ink for _, ink in lines[0]]
    assert "attention" in "".join(text for text, _ in lines[0])


def test_an_idle_lane_names_how_much_later_the_next_activity_starts(wording: Wording) -> None:
    from chopper_core.views.query import query

    run = run_of([Row(0, 1_000), Row(9_000, 1_000)])
    frame = query(run, View("R", name="timeline", window=Window(0, 10_000, 2_000)))
    lanes = next(chart for chart in frame.charts if isinstance(chart, Lanes))
    text = pointed_text(frame, lanes, 0, 80, ASCII)
    wording(text, "idle", "7.000 µs")


def test_another_gpu_is_a_ghost_below_every_lane_but_its_own() -> None:
    view = View("sample.json", name="timeline", baseline=Baseline("", ("0",)))
    chart = query(measured_run(), view).charts[0]
    assert isinstance(chart, Lanes) and chart.ghosts is not None
    assert [chart.ghosts(row, 60) is not None for row in range(4)] == [False, True, True, True]


def test_lanes_have_their_clock_and_a_part_of_the_time_its_place_in_the_run() -> None:
    view = View("sample.json", name="timeline")
    glyphs = UNICODE.coloured(True)
    chart = query(measured_run(), view).charts[0]
    assert isinstance(chart, Lanes) and chart.clocks is not None
    lines = draw_lanes(chart, 120, 40, glyphs)
    texts = ["".join(text for text, _ in line) for line in lines]
    lanes = [text for text in texts if text[1:5] == "GPU "]
    assert len(lanes) == 4 and all(re.match(r".GPU \d +▼?\d{4} ", text) for text in lanes)
    # The last GPU's clock is lower; below each lane is a strip of it, on one scale.
    strips = [line for line in lines[1:] if any(ink.startswith("heat") for _, ink in line)]
    levels = [
        np.mean([int(ink[4:].partition("/")[0]) for text, ink in line[1:] for _ in text])
        for line in strips
    ]
    assert len(levels) == 4 and levels[3] < min(levels[:3])
    assert not any(text.startswith("run ") for text in texts)
    length = chart.seen.length_ns
    part = replace(view, window=Window(from_ns=length // 2, to_ns=3 * length // 4))
    first = draw_lanes(query(measured_run(), part).charts[0], 120, 40, glyphs)[0]
    assert first[0][0].startswith("run ")
    before, window, after = (len(text) for text, _ in first[1:])
    assert abs(before - 2 * window) <= 2 and abs(after - window) <= 2


async def test_without_a_gap_the_key_says_so(wording: Wording) -> None:
    async with explorer((80, 24), run_of([Row(0, 1_000)]), View("R")) as at:
        await at.command("next-gap")
        wording(at.status, "no GPU")
        await at.press("2", "J")
        wording(at.status, "GPU 0")
