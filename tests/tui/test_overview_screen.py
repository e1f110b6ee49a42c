"""The first screen: its cards and rows lead on, it fills in without moving, and fits every size."""

from __future__ import annotations

import functools
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from threading import Event

import numpy as np
import pytest
from msgspec.structs import replace
from textual.strip import Strip
from textual.widgets import OptionList

from chopper_core.answers.opening import home_of
from chopper_core.columns import METRICS
from chopper_core.findings import RULES
from chopper_core.model import address
from chopper_core.model.charts import Composition, Series
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.render.glyphs import UNICODE
from chopper_core.views import PLACES, TABS, TREE, view_module
from chopper_core.views.query import query
from chopper_tui.app import ChopperApp
from chopper_tui.config import Config, saved_splits
from chopper_tui.draw.charts import draw
from chopper_tui.keymap import SCREENS
from chopper_tui.terminal import is_old, prepare_environment
from chopper_tui.widgets.cards_pane import CardsPane
from chopper_tui.widgets.chart_panes import EvidencePane, SignalPane
from chopper_tui.widgets.dialogs import Chooser
from chopper_tui.widgets.footer import Prompt, Status
from chopper_tui.widgets.frame_table import FrameTable
from chopper_tui.widgets.header import Crumbs, PlaceLine, strip_of_tabs
from tests.demo import demo_run
from tests.tui.explorer import Driven, explorer, measured_run
from tests.wording import Wording

VIEW = View("sample.json", name="overview")


@functools.cache
def demo() -> Run:
    return demo_run()


@pytest.mark.sweep
async def test_the_first_card_leads_to_its_evidence_and_back() -> None:
    view = replace(VIEW, run=demo().name)
    async with explorer((120, 40), demo(), view) as at:
        pane = at.explore.query_one(CardsPane)
        assert pane.has_keys and pane.cursor == 0 and pane.rows >= 5
        await at.press("j")
        assert pane.card is not None
        there = address.parse(pane.card.address)
        await at.press("enter")
        assert (at.frame.view.name, at.path) == (there.name, there.path)
        assert at.frame.view.name not in ("", "overview")
        await at.press("escape")
        assert at.frame.view.name == "overview"
        assert pane.has_keys and pane.cursor == 1


async def test_the_cursor_walks_from_the_cards_to_the_gpus_and_back() -> None:
    async with explorer((120, 40), measured_run(), VIEW) as at:
        pane = at.explore.query_one(CardsPane)
        await at.press("k")
        *_, before, last = at.frame.labels
        assert not pane.has_keys and at.label == last
        await at.press("k", "enter")
        assert at.path == (before,) and not at.frame.view.name
        await at.press("escape")
        assert at.frame.view.name == "overview" and at.label == before
        assert not pane.has_keys
        await at.press("G", "j")
        assert pane.has_keys and pane.cursor == 0


async def test_one_key_leads_into_the_tree() -> None:
    async with explorer((80, 24), measured_run(), VIEW) as at:
        await at.press("1")
        assert at.frame.view == View("sample.json")


@asynccontextmanager
async def with_late_findings(
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[tuple[Driven, Event]]:
    """The first screen of a run whose findings take until they may go."""
    module, may_go = view_module("overview"), Event()
    answer = module.answer

    def late(run: Run, view: View) -> object:
        may_go.wait(60)
        return answer(run, view)

    monkeypatch.setattr(module, "answer", late)
    run = replace(measured_run())
    app = ChopperApp(lambda progress: run, VIEW, glyphs=UNICODE)
    async with app.run_test(size=(80, 24)) as pilot:
        at = Driven(app, pilot)
        for _ in range(100):
            await pilot.pause(0.02)
            if "computing" in at.text() and "▏" in at.text():
                break
        yield at, may_go


async def test_keys_are_answered_before_there_are_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    async with with_late_findings(monkeypatch) as (at, may_go):
        table, before = at.explore.table, at.text()
        row = table.label
        at.send("j")
        await at.pilot.pause(0.1)
        chosen = table.label
        assert at.frame.is_pending and chosen != row and table.has_keys
        assert "computing" in at.text() != before
        may_go.set()
        await at.settle()
        assert not at.frame.is_pending and (table.label, table.has_keys) == (chosen, True)


async def test_the_rest_fills_in_and_nothing_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    async with with_late_findings(monkeypatch) as (at, may_go):
        before = at.text()
        assert "computing" in before and at.frame.is_pending
        may_go.set()
        await at.settle()
        after = at.text()
        assert "computing" not in after and not at.frame.is_pending
        lines = zip(before.splitlines(), after.splitlines(), strict=True)
        titles = [(one, other) for one, other in lines if "GPU " in one or "findings" in one]
        assert titles and all(one.split()[0] == other.split()[0] for one, other in titles)


@pytest.mark.few(1)
@pytest.mark.parametrize("size", [(40, 10), (60, 16), (80, 24), (120, 40), (200, 60)])
@pytest.mark.parametrize("gpus", [1, 8, 80])
async def test_it_fits(size: tuple[int, int], gpus: int) -> None:
    async with explorer(size, measured_run(gpus, 2, 2), VIEW) as at:
        text = at.text()
        assert ("operation" if gpus == 1 else "GPU") in text
        if size >= (80, 24):
            assert "step" in text.splitlines()[2] and "findings" in text
            assert "MHz" in text or gpus == 1


async def test_of_many_gpus_the_one_that_lags_most_is_on_the_first_line() -> None:
    async with explorer((80, 24), measured_run(80, 2, 2), VIEW) as at:
        lags = at.frame.values["lag_ns"].numbers
        assert lags[0] == np.nanmax(lags) and at.explore.table.cursor == 0
        titles = next(y for y, line in enumerate(at.lines()) if "lag" in line and "forward" in line)
        assert at.lines()[titles + 1].split()[0].strip("▌") == at.frame.labels[0]
        await at.press("k")
        assert at.label == at.frame.labels[-1]


def test_an_address_that_says_more_than_a_run_stays_as_it_is() -> None:
    assert home_of(View("run")) == View("run", name="overview")
    for view in (View("run", ("0",)), View("run", sort="-kernels"), View("run", name="ranks")):
        assert home_of(view) == view


@pytest.mark.parametrize("size", [(120, 40), (200, 60)])
async def test_the_border_of_the_lanes_names_their_colours(size: tuple[int, int]) -> None:
    view = View(demo().name, name="overview")
    async with explorer(size, demo(), view, glyphs=UNICODE.coloured(True)) as at:
        lines = [line.strip("│ ") for line in at.lines()]
        border = next(line for line in lines if "─ GPUs" in line)
        names = {each.split(" ─")[0].strip() for each in border.split("█")[1:]}
        assert names >= {
            *("GEMM", "norm, softmax", "optimizer, other"),
            *("waiting", "hidden comm", "exposed comm"),
        }
        head = next(line for line in lines if "backward" in line and "lag" in line)
        assert "█" not in head and head.rstrip().endswith(" ms")


async def test_findings_are_cards_with_the_cursor_of_the_table() -> None:
    async with explorer((80, 24), demo(), View(demo().name, name="findings")) as at:
        pane = at.explore.query_one(CardsPane)
        assert pane.rows == len(at.frame) and "●●" in at.text()
        await at.press("j", "j")
        assert pane.cursor == 2 and at.label == at.frame.labels[2]
        assert pane.card is not None and pane.card.text.removeprefix("└ ") == at.label
        await at.press("enter")
        assert at.frame.view.name != "findings"
        await at.press("escape")
        assert at.frame.view.name == "findings" and pane.cursor == 2
        await at.command("filter high")
        assert pane.rows == len(at.frame) < 8


@pytest.mark.few(1)
@pytest.mark.parametrize("size", [(120, 40), (200, 60)])
async def test_the_lines_below_the_findings_are_the_evidence_of_one(size: tuple[int, int]) -> None:
    async with explorer(size, demo(), View(demo().name, name="findings")) as at:
        for _ in range(3):
            target = at.frame.target(at.explore.table.cursor)
            evidence = query(demo(), target)
            below = at.text().partition(f"evidence  {TABS[target.name or TREE].name}")[2]
            name = evidence.sort.removeprefix("-")
            assert any(each.title in below for each in evidence.columns if each.name == name)
            # The row that the finding is about comes first.
            rows = [line.strip("│ ").partition("  ")[0] for line in below.splitlines()]
            assert evidence.labels[0] in rows
            await at.press("j")
        target = at.frame.target(at.explore.table.cursor)
        await at.pilot.click(EvidencePane)
        await at.settle()
        assert at.frame.view == target
        await at.press("escape")
        assert at.frame.view.name == "findings" and "evidence" in at.text()
        await at.press("z")
        assert "evidence" not in at.text()


async def test_findings_that_fill_the_screen_leave_no_lines_for_evidence() -> None:
    async with explorer((80, 24), demo(), View(demo().name, name="findings")) as at:
        assert "evidence" not in at.text()
        await at.command("filter nominal")
        assert len(at.frame) == 1 and "evidence" in at.text()


@pytest.mark.sweep
async def test_tab_scrolls_the_detail_at_the_right() -> None:
    async with explorer((120, 30), demo(), View(demo().name)) as at:
        side = at.explore.side
        await at.press("tab", "j", "j", "j")
        assert side.has_keys and at.explore.table.cursor == 0
        assert f"4-{3 + side.size.height} of {side.rows}" in at.text()
        await at.press("G")
        await at.command("previous-pane")
        await at.press("j")
        assert not side.has_keys and at.explore.table.cursor == 1


async def test_the_line_between_chart_and_table_moves_and_is_kept() -> None:
    config = Config(remember=True)
    app = ChopperApp(lambda _: measured_run(), View("sample.json"), glyphs=UNICODE, config=config)
    async with explorer((80, 24), app=app) as at:
        before = at.explore.table.size.height
        await at.press("(")
        assert at.explore.table.size.height == before + 2
        assert saved_splits() == {"": -2}
        await at.press(")", ")")
        assert at.explore.table.size.height == before - 2


async def test_columns_scroll_sideways_under_the_name() -> None:
    async with explorer((60, 24), measured_run(), View("sample.json")) as at:
        await at.command("columns elapsed_ns,kernels,busy_pct,gfx_mhz,power_w,idle_ns,kernel_ns")
        await at.press("<")
        assert "first columns" in at.status
        plan = at.explore.table.layout_plan
        assert plan is not None
        first = {column.name for column in plan.columns}
        await at.press(">")
        plan = at.explore.table.layout_plan
        assert plan is not None and plan.columns[0].name not in first
        await at.press(*">>>>>")
        plan = at.explore.table.layout_plan
        assert plan is not None and plan.columns[-1].name == "kernel_ns" and not plan.after
        assert "last columns" in at.status and " 0 " in at.text()


@pytest.mark.few(1)
@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_a_digit_means_its_first_tab_and_again_the_next(size: tuple[int, int]) -> None:
    async with explorer(size, measured_run(), View("sample.json")) as at:
        for name, title in zip(SCREENS["5"][:3], ("ranks", "grid", "heat map"), strict=True):
            await at.press("5")
            place, tabs = at.lines()[:2]
            assert "0 Summary  1 Tree  2 Timeline  3 Kernels" in place and title in tabs
            if at.frame.view.name != name:  # One that can't be shown says why, and is skipped.
                assert at.explore.reason_against(name) in at.status and f"({title})" in tabs
        await at.press("shift+tab")
        assert at.frame.view.name == "grid"
        await at.press("1", "1")
        assert at.frame.view.name == "icicle"


@pytest.mark.parametrize("width", [60, 66, 80, 200])
def test_places_have_one_order_at_every_width(width: int) -> None:
    line = PlaceLine()
    line.place = "3"
    (pieces,) = line.lines(width, 1)
    text = "".join(piece for piece, _ in pieces)
    assert len(text) <= width
    assert re.findall(r"(\d) (\w{3})", text) == [(key, name[:3]) for key, name in PLACES.items()]
    assert [piece for piece, ink in pieces if ink.startswith("chosen")] == [
        "3 Kernels" if width > 60 else "3 Kern"
    ]


@pytest.mark.parametrize("digit", SCREENS)
@pytest.mark.parametrize("room", [22, 40, 60, 140])
def test_the_tabs_of_a_place_are_named_around_the_current_one(digit: str, room: int) -> None:
    tabs = [(name, TABS[name].title, name != "grid") for name in SCREENS[digit]]
    for place, (name, title, can) in enumerate(tabs):
        strip = strip_of_tabs(name, room, tabs)
        text = "".join(piece for piece, _ in strip)
        assert len(text) <= room
        lit = [piece for piece, ink in strip if ink.startswith("chosen")]
        assert lit == [title if can else f"({title})"]
        for _, other, _ in tabs if room == 140 else tabs[place : place + 1]:
            assert other in text
        assert room < 140 or [ink for _, ink in strip if "@view" in ink] == [
            f"{'chosen' if each == name else 'dim'}@view {each}" for each, _, _ in tabs
        ]


@pytest.mark.sweep
async def test_a_digit_goes_on_after_a_view_that_the_scope_lacks() -> None:
    run = replace(measured_run(), cpu=(), measured={})
    async with explorer((80, 24), run, View("sample.json")) as at:
        await at.press("7")
        assert at.status and at.frame.view.name == ""
        assert at.explore.reason_against("power") in at.status
        for _ in SCREENS["5"]:
            await at.press("5")
            assert at.frame.view.name not in ("power", "cpu")


@pytest.mark.sweep
async def test_digits_hold_under_info() -> None:
    async with explorer((80, 24), measured_run(), View("sample.json")) as at:
        await at.press("0", "!")
        assert "ources" in at.text()
        await at.press("3")
        assert at.frame.view.name == "kernels" and "ources" not in at.text()
        await at.press("0")
        assert at.frame.view.name == "overview" and at.app.screen is at.explore


@pytest.mark.sweep
async def test_the_baseline_stays_when_another_view_is_opened() -> None:
    async with explorer((120, 30), measured_run(), View("sample.json")) as at:
        await at.press("3", "1", "j", "enter", "b", "}")
        baseline = at.frame.view.baseline
        assert baseline is not None
        await at.press("8", "1", "3", "1")
        assert at.frame.view.baseline == baseline


@pytest.mark.sweep
async def test_an_invalid_filter_stays_open_with_its_text() -> None:
    async with explorer((80, 24), measured_run(), View("sample.json")) as at:
        await at.press("/")
        await at.type("gemm(")
        await at.press("enter")
        assert at.explore.query_one(Prompt).display and "gemm(" in at.text()
        assert "invalid" in at.status
        await at.press("escape")
        assert at.frame.view.filter == ""


@pytest.mark.parametrize(("size", "text"), [((30, 8), "needed"), ((15, 5), "40x10 needed")])
async def test_too_small_a_terminal_says_so_whole(size: tuple[int, int], text: str) -> None:
    async with explorer(size) as at:
        assert text in at.text() and "…" not in at.text()


@pytest.mark.sweep
async def test_a_click_on_the_strip_or_on_a_step_goes_there() -> None:
    view = View("sample.json", ("3", "11", "backward"))
    async with explorer((200, 50), measured_run(), view) as at:
        crumbs = at.explore.query_one(Crumbs)
        line = at.text().splitlines()[0]
        await at.pilot.click(offset=(line.index("3 Kernels") + 1, 0))
        await at.settle()
        assert at.frame.view.name == "kernels" and at.path == view.path
        await at.press("1")
        await at.pilot.click(Crumbs, offset=(at.text().splitlines()[1].index("step 11"), 0))
        await at.settle()
        assert at.path == ("3", "11") and crumbs.display


@pytest.mark.sweep
async def test_notes_and_ranges_have_units() -> None:
    async with explorer((120, 40), demo(), View(demo().name)) as at:
        await at.press("!")
        assert "Notes" in at.text() and "generated" in at.text()
        await at.press("escape", "m")
        assert "158548885504" not in at.text() and "GB" in at.text()


@pytest.mark.sweep
async def test_why_names_each_cause_and_leads_to_its_evidence() -> None:
    async with explorer((120, 40), demo(), replace(VIEW, run=demo().name)) as at:
        await at.press("W")
        text = at.text()
        assert "Why GPU 5" in text and "% longer" in text
        assert "its clock is 1,5" in text and "throttled" in text and "98 °C" in text
        await at.press("down", "down", "enter")
        assert at.frame.sort == "gfx_mhz" and at.frame.labels[0] == "5"
        await at.press("escape")
        assert at.frame.view.name == "overview"
        await at.press("k", "W")
        assert "Why GPU 0" in at.text() and "keeps pace" in at.text()


@pytest.mark.sweep
async def test_every_line_of_why_leads_somewhere() -> None:
    async with explorer((120, 40), demo(), replace(VIEW, run=demo().name)) as at:
        seen = set()
        for line in range(9):
            await at.press("W", *["down"] * line)
            assert "Why GPU 5" in at.text()
            await at.press("enter")
            if at.app.screen is not at.explore or at.frame.view.name == "overview":
                break
            assert len(at.frame) and not at.explore.query_one(Status).is_error
            seen.add(at.frame.address)
            await at.press("escape")
            assert at.frame.view.name == "overview"
        assert len(seen) >= 3


async def test_a_click_on_a_title_sorts(wording: Wording) -> None:
    async with explorer((120, 40), measured_run(), View("sample.json")) as at:
        table = at.explore.table
        for sort in ("-gfx_mhz", "gfx_mhz"):
            header = "".join(segment.text for segment in table.render_line(0))
            x, y = header.index("gfx MHz") + 3, 1  # in the border
            await at.pilot.click(FrameTable, offset=(x, y))
            await at.settle()
            assert at.frame.sort == sort
            wording(at.status, "gfx MHz: ")


async def test_the_first_paint_has_the_columns_and_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is painted first is whole, but for lanes and what takes long."""
    first: list[str] = []
    plain = FrameTable.render_line

    def render_line(table: FrameTable, y: int) -> Strip:
        strip = plain(table, y)
        if y == 0:
            first.append(strip.text)
        return strip

    monkeypatch.setattr(FrameTable, "render_line", render_line)
    async with explorer((80, 24), measured_run(), VIEW):
        assert "MHz" in first[0] and "…" not in first[0]


@pytest.mark.sweep
async def test_a_chooser_shows_what_matches_the_typed_text() -> None:
    async with explorer((80, 24), measured_run(), View("sample.json")) as at:
        await at.press("o")
        chooser = at.app.screen
        assert isinstance(chooser, Chooser)
        options = chooser.query_one(OptionList)
        count = options.option_count
        await at.press("down", "ctrl+n", "ctrl+n", "up", "ctrl+p")
        assert options.option_count == count and options.highlighted == 1
        await at.press(*"power")
        assert 0 < options.option_count < count and "/power" in at.text()
        await at.press(*"xyz", "pagedown", "enter")
        assert "nothing matches" in at.text() and at.app.screen is chooser
        await at.press("backspace", "escape")
        assert options.option_count == count and at.app.screen is chooser
        await at.press("/", *"kernels", "enter")
        assert at.frame.sort == "-kernels"


@pytest.mark.sweep
async def test_help_shows_the_entries_that_match() -> None:
    async with explorer((80, 24), measured_run(), View("sample.json")) as at:
        await at.press("?", "/", *"breadcrumb")
        text = at.text()
        assert ":ascend" in text and ":filter" not in text and "/breadcrumb" in text
        await at.press("escape")
        assert ":ascend" not in at.text() and "Help" in at.text()
        await at.press("q")
        assert at.app.screen is at.explore


@pytest.mark.sweep
async def test_the_palette_has_views_themes_columns_signals_and_recent_addresses() -> None:
    async with explorer((80, 24), measured_run(), View("sample.json")) as at:
        await at.press("enter")
        for typed, title in (
            ("light", "Theme: light"),
            ("signal: pow", "Signal: power"),
            ("gpus · ranks", "5  GPUs · ranks"),
        ):
            await at.press("ctrl+p", *typed)
            assert title in at.text()
            await at.press("escape", "escape")
        await at.press("ctrl+p", *"ranks", "enter")
        assert at.frame.view.name == "ranks"
        await at.press("ctrl+p", *"recent", "down", "enter")
        assert at.frame.view == View("sample.json")


@pytest.mark.parametrize("term", ["vt100", "vt220"])
def test_a_terminal_without_colours_gets_none(term: str) -> None:
    environment = {"TERM": term, "COLORTERM": "truecolor"}
    prepare_environment(environment)
    assert environment["NO_COLOR"] == "1"


def test_gnu_screen_has_256_colours() -> None:
    inherited = {"TERM": "screen", "COLORTERM": "truecolor"}
    prepare_environment(inherited)
    assert inherited["TEXTUAL_COLOR_SYSTEM"] == "256"
    within = {**inherited, "TMUX": "x", "STY": "1.pts-0.node"}
    assert is_old(within)
    prepare_environment(within)
    assert within["TEXTUAL_COLOR_SYSTEM"] == "256"
    tmux = {"TERM": "screen", "COLORTERM": "truecolor", "TMUX": "x"}
    prepare_environment(tmux)
    assert "TEXTUAL_COLOR_SYSTEM" not in tmux


async def test_the_lanes_of_the_gpus_are_zoomed_and_moved() -> None:
    async with explorer((120, 40), demo(), replace(VIEW, run=demo().name)) as at:

        def lanes() -> list[object]:
            return [at.explore.table.sparks[0].drawn[row] for row in range(8)]

        whole, top = lanes(), at.text()
        assert "734.9 ms" in top and len(whole) == 8
        await at.press("+", "+")
        near = lanes()
        assert near != whole and "183.7 ms" in at.text()
        await at.press("d")
        assert lanes() != near
        await at.press("-", "-")
        assert lanes() == whole and at.status == ""
        await at.press("-")
        assert "whole chart" in at.status


async def test_a_low_terminal_shows_gpus_and_a_finding() -> None:
    async with explorer((60, 16), demo(), replace(VIEW, run=demo().name)) as at:
        lines = at.lines()
        assert sum(line.split()[:1] == [str(gpu)] for line in lines for gpu in range(8)) >= 2
        assert "ideal" in at.text() and "GPU 5 is hot" in at.text()


async def test_charts_take_the_lines_that_the_findings_leave() -> None:
    run = measured_run(1, 3, 4)
    async with explorer((100, 40), run, View(run.name, name="overview")) as at:
        shown = [pane for pane in at.explore.query(SignalPane) if pane.is_shown]
        assert shown and "gfx MHz" in at.text()
        assert not at.lines()[-3].isspace()


@pytest.mark.parametrize("height", [2, 3, 4, 6])
def test_of_parts_without_room_the_largest_are_listed(height: int) -> None:
    sizes = [305.0, 4.3, 25.0, 24.0, 2.7, 139.0, 175.0, 61.0]
    series = tuple(Series(f"part{n}", np.array([size])) for n, size in enumerate(sizes))
    picture = Composition("step", "ms", ("a",), series)
    lines = ["".join(text for text, _ in line) for line in draw(picture, 60, height, UNICODE)]
    listed = [n for n in range(len(sizes)) if any(f"part{n} " in line for line in lines)]
    assert len(lines) <= height and "part0" in " ".join(lines)
    left_out = set(range(len(sizes))) - set(listed)
    assert not left_out or max(sizes[n] for n in left_out) <= min(sizes[n] for n in listed)


async def test_a_part_of_the_bar_explains_itself_and_opens_its_operations() -> None:
    """Tab leads from the findings to the bar's parts, then to the GPUs; a click opens a part."""
    view = replace(VIEW, run=demo().name)
    async with explorer((80, 24), demo(), view) as at:
        await at.press("tab")
        assert METRICS["theoretical_ns"].definition.split(".")[0] in " ".join(at.text().split())
        await at.press("j", "j", "?")
        assert " idle matrix units " in at.text() and "[mfma_loss_ns]" in at.text()
        await at.press("escape", "enter")
        assert at.frame.view.name == "overheads" and at.frame.sort == "-mfma_loss_ns"
        figures = at.frame.values["mfma_loss_ns"].known(0.0).tolist()
        assert figures == sorted(figures, reverse=True) and figures[0] > 0
        await at.press("escape", "tab", "tab")
        assert at.explore.listing is at.explore.table and at.explore.part is None
        await at.press("enter")
        assert at.path == ("5",)
    async with explorer((120, 36), demo(), view) as at:
        lines = at.lines()
        y = next(y for y, line in enumerate(lines) if "vector work" in line)
        await at.pilot.click(offset=(lines[y].index("vector work") + 2, y))
        await at.settle()
        assert at.frame.view.name == "overheads" and at.frame.sort == "-vector_ns"
        await at.press("escape")
        y = next(y for y, line in enumerate(at.lines()) if line.startswith("│ ███"))
        await at.pilot.click(offset=(at.lines()[y].index("█") + 1, y))
        await at.settle()
        assert at.frame.sort == "-theoretical_ns"


async def test_help_explains_the_finding_at_the_cursor() -> None:
    view = replace(VIEW, run=demo().name)
    async with explorer((120, 36), demo(), view) as at:
        await at.press("?")
        text = " ".join(at.text().replace("│", " ").split())
        rule = next(each for each in RULES if each.name == "straggler")
        assert "rule straggler" in text and rule.looks_for in text
        for each in rule.thresholds:
            assert f"{each.value:g} {each.unit}" in text
