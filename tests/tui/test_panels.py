"""Panels of a screen: Tab walks them, each has its own cursor, and together they fill it."""

from __future__ import annotations

import asyncio
import re
from threading import Event
from typing import Any

import pytest
from msgspec.structs import replace

from chopper_core.model.run import Run
from chopper_core.model.table import STATE_TITLES
from chopper_core.model.view import Baseline, View
from chopper_core.views import TABS, TREE, VIEWS
from chopper_core.views.frame import Frame
from chopper_core.views.query import query
from chopper_tui.draw.figures import Detail, detail
from chopper_tui.screen import parts
from chopper_tui.screen_data import run_shown
from chopper_tui.widgets.chart_panes import EvidencePane, PicturePane
from chopper_tui.widgets.detail import DetailPane
from tests.demo import demo_run
from tests.support import Row
from tests.support import run_of as run_of_rows
from tests.tui.explorer import Driven, explorer, measured_run
from tests.wording import Wording

RUN = "sample.json"
MOST_BLANK = 8
"""Lines below each other without anything, as between the points of a chart."""


def focused(at: Driven) -> list[str]:
    """The titles of the panels with a bright border: one."""
    return [type(each).__name__ for each in at.explore.query(".-focused")]


@pytest.mark.parametrize(
    ("size", "walk"),
    [
        ((80, 24), ["FrameTable"]),
        ((120, 36), ["FrameTable", "DetailPane", "PicturePane"]),
        ((200, 60), ["FrameTable", "DetailPane", "ScopeTree", "PicturePane"]),
    ],
)
async def test_tab_walks_the_panels_in_reading_order(
    size: tuple[int, int], walk: list[str]
) -> None:
    async with explorer(size, measured_run(), View(RUN)) as at:
        for name in walk:
            assert focused(at) == [name]
            await at.press("tab")
        assert focused(at) == walk[:1]
        await at.command("previous-pane")
        assert focused(at) == walk[-1:] and not at.explore.status.is_error


async def test_the_tree_at_the_left_is_a_second_cursor_at_another_level() -> None:
    """The tree's keys make its node the scope, while the table has the rows of that scope."""
    async with explorer((200, 60), demo_run(), View(demo_run().name, ("5", "11"))) as at:
        tree, table = at.explore.scope_tree, at.explore.table
        await at.press("j")
        await at.command("previous-pane")
        await at.command("previous-pane")
        assert focused(at) == ["ScopeTree"] and tree.place == View(demo_run().name, ("5", "11"))
        assert table.cursor == 1 and "▌" in at.text()
        await at.press("j", "j", "enter")
        assert at.path == ("5", "11", "backward") and focused(at) == ["ScopeTree"]
        assert tree.place is not None and tree.place.path == at.path
        await at.press("g", "enter")
        assert at.path == () and at.frame.level == "gpu"
        await at.press("tab", "tab", "j", "enter")
        assert focused(at) == ["FrameTable"] and at.path == (at.frame.view.path[0],)


async def test_places_of_the_tree_are_opened_and_closed_with_the_scope_as_it_is() -> None:
    async with explorer((200, 60), demo_run(), View(demo_run().name, ("5", "11"))) as at:
        tree = at.explore.scope_tree

        def names() -> list[str]:
            return [line.split("│")[1][:24].strip() for line in at.lines() if "│" in line]

        await at.command("previous-pane")
        await at.command("previous-pane")
        await at.press("g", "j")
        assert tree.place is not None and tree.place.path == ("0",)
        closed = names()
        await at.press("right")
        assert any("▾ GPU 0" in name for name in names()) and at.path == ("5", "11")
        await at.press("right", "right")
        assert tree.place.path == ("0", "none") and any("▾ outside" in name for name in names())
        await at.press("left", "left", "left")
        assert tree.place.path == ("0",) and names() == closed
        await at.press("G")
        await at.press("left")
        assert tree.place.path == ()


async def test_a_click_in_the_tree_goes_there() -> None:
    async with explorer((200, 60), measured_run(), View(RUN)) as at:
        tree = at.explore.scope_tree
        y = next(y for y, line in enumerate(at.lines()) if "▾ GPU 2" in line)
        await at.pilot.click(offset=(tree.region.x + 8, y))
        await at.settle()
        assert at.path == ("2",) and focused(at) == ["ScopeTree"]


async def test_what_the_tree_has_no_lines_for_is_indented_as_its_siblings() -> None:
    view = View(RUN, ("1", "11"))
    async with explorer((200, 60), measured_run(iterations=60), view) as at:
        (more,) = (found for line in at.lines() if (found := re.search(r"\d+ more ", line)))
        (sibling,) = (line for line in at.lines() if "▸ step 12 " in line)
        assert more.start() == sibling.index("step 12")


async def test_the_states_of_a_node_add_up_and_sort_its_rows() -> None:
    async with explorer((120, 36), demo_run(), View(demo_run().name, ("5",))) as at:
        (bar,) = at.explore.data.states
        total = sum(float(each.numbers[0]) for each in bar.series)
        elapsed = query(demo_run(), View(demo_run().name)).values["elapsed_ns"].at(5)
        assert [each.name for each in bar.series] == [*STATE_TITLES.values()]
        assert elapsed is not None and total == pytest.approx(elapsed / 1e6)
        await at.command("previous-pane")
        assert focused(at) == ["PicturePane"]
        await at.press("j", "j", "?")
        assert "exposed communication" in at.text() and "[exposed_comm_ns]" in at.text()
        await at.press("escape", "enter")
        assert at.path == ("5",) and at.frame.sort == "-exposed_comm_ns"
        shown = at.frame.values["exposed_comm_ns"].known(0.0).tolist()
        assert shown == sorted(shown, reverse=True)


@pytest.mark.few(2)
@pytest.mark.parametrize("view", ["comms", "kernels", "grid", "whatif"])
async def test_below_a_table_are_the_first_rows_that_its_row_leads_to(view: str) -> None:
    async with explorer((200, 60), demo_run(), View(demo_run().name, name=view)) as at:
        pane = at.explore.query_one(EvidencePane)
        assert pane.display
        for _ in range(2):
            target = at.frame.target(at.explore.table.cursor)
            below = at.text().partition(f"evidence  {TABS[target.name or TREE].name}")[2]
            rows = query(run_shown(demo_run(), target), target)
            label = next(each for each in rows.labels if each != "none")
            first = re.split(r"[…(<]", label)[0][:12]
            assert below and first in below
            await at.press("j")


@pytest.mark.sweep
@pytest.mark.parametrize("size", [(120, 36), (200, 60)])
@pytest.mark.parametrize("view", ["", *VIEWS])
async def test_large_screens_are_filled(size: tuple[int, int], view: str) -> None:
    run: Run = demo_run()
    async with explorer(size, run, View(run.name, name=view)) as at:
        if at.frame.view.name != view or view == "live":  # of two steps the chart is short
            pytest.skip(at.status)
        lines = [re.sub(r"[│╭╰╮╯─]", " ", line) for line in at.lines()]
        empty = [y for y, line in enumerate(lines) if not line.strip()]
        assert not [y for y in empty if {*range(y, y + MOST_BLANK)} <= {*empty}]


async def test_a_click_on_a_part_of_the_states_sorts() -> None:
    async with explorer((120, 36), demo_run(), View(demo_run().name)) as at:
        picture = at.explore.query_one(PicturePane)
        y, line = next((y, line) for y, line in enumerate(at.lines()) if "exposed comm" in line)
        assert picture.region.y < y < picture.region.bottom
        await at.pilot.click(offset=(line.index("exposed comm") + 2, y))
        await at.settle()
        assert at.frame.sort == "-exposed_comm_ns" and at.path == ()


async def test_the_cursor_stays_on_a_bar_of_fewer_parts() -> None:
    async with explorer((120, 36), demo_run(), View(demo_run().name)) as at:
        await at.command("previous-pane")
        await at.press("j", "j", "tab")
        assert focused(at) == ["FrameTable"]
        (bar,) = at.explore.data.states
        at.explore.query_one(PicturePane).show([replace(bar, series=bar.series[:1])])
        await at.command("previous-pane")
        await at.press("enter")
        assert at.frame.sort == "-" + next(iter(STATE_TITLES))


async def test_limits_say_from_where_figures_are_marked(wording: Wording) -> None:
    view = View(demo_run().name, name="overview")
    async with explorer((120, 36), demo_run(), view) as at:
        assert "▲98" in at.text() and at.text().count("▲98") == 1
        try:
            await at.command("limits hot_c 120 130")
            assert "▲98" not in at.text() and "hot_c 120 130  power_pct 90 100" in at.status
            await at.command("limits hot_c 80 130")
            assert len(re.findall("▲87", at.text())) == 7
            await at.command("limits heat 1 2")
            wording(at.status, "NAME WARNING ALARM", "hot_c 90 95")
            await at.command("limits hot_c nan 2")
            wording(at.status, "NAME WARNING ALARM")
        finally:
            await at.command("limits default")
        assert "▲98" in at.text() and "hot_c 90 95" in at.status


async def test_the_tree_opens_as_deep_as_all_places_fit() -> None:
    rows = [Row(20 * n, 10, iteration=0, layer=n) for n in range(-1, 30)]
    run = run_of_rows(rows)
    async with explorer((200, 60), run, View(run.name)) as at:
        names = [line.split("│")[1][:24].strip() for line in at.lines() if "│" in line]
        assert "▾ forward" in names and {"▸ unlabelled", "▸ L0", "▸ L29"} <= {*names}
    many = run_of_rows([replace(row, gpu=gpu) for row in rows for gpu in range(8)])
    async with explorer((200, 60), many, View(many.name)) as at:
        names = [line.split("│")[1][:24].strip() for line in at.lines() if "│" in line]
        assert "▾ GPU 7" in names and "▸ forward" in names and "▸ L0" not in names


async def test_a_row_that_the_baseline_alone_has_leads_to_the_baseline() -> None:
    """Its evidence was an empty box without a title, and Enter asked the other run for it."""
    base = measured_run()
    names = [f"{name}_fused" if at else name for at, name in enumerate(base.table.operations)]
    run = replace(
        base,
        name="after",
        table=replace(base.table, operations=names).take(slice(0, len(base.table) // 2)),
        others={RUN: replace(base, name=RUN)},
    )
    view = View("after", name="compare", baseline=Baseline(RUN, ()), by="gpu")
    async with explorer((120, 36), run, view) as at:
        words = [at.frame.row(row)["partner"] for row in range(len(at.frame))]
        assert "removed" in words
        removed = words.index("removed")
        await at.press(*["j"] * removed)
        label = at.label
        await until_drawn(at)
        evidence = at.explore.query_one(EvidencePane)
        assert evidence.display and "none" not in str(evidence.border_title)
        assert evidence.content[1].run == RUN and evidence.drawn
        await at.press("enter")
        assert at.frame.view.run == RUN and at.path == (label,)
        wanted = query(replace(base, name=RUN), View(RUN, (str(label),)))
        assert at.frame.total["elapsed_ns"] == wanted.total["elapsed_ns"]
        await at.press("escape")
        assert (at.frame.view, at.label) == (replace(view, sort=at.frame.view.sort), label)


async def test_rows_that_have_no_room_below_each_other_are_side_by_side() -> None:
    """The operations of a replayed step have two columns: half the panel was empty."""
    rows = [
        Row(10 * at, 8, gpu=gpu, iteration=1 + at // 90, operation=f"op_{at % 90:02}")
        for gpu in range(2)
        for at in range(270)
    ]
    run = run_of_rows(rows)
    async with explorer((200, 60), run, View(run.name, name="whatif", of="compute x0.8")) as at:
        await until_drawn(at)
        pane = at.explore.query_one(EvidencePane)
        target = at.frame.target(at.explore.table.cursor)
        labels = query(run_shown(run, target), target).labels
        lines = ["".join(text for text, _ in line) for line in pane.drawn]
        assert len(lines) <= pane.size.height and max(map(len, lines)) <= pane.size.width
        body = [re.findall(r"op_\d\d", line) for line in lines if "op_" in line]
        # Down the first column, then down the next one.
        shown = [row[at] for at in range(len(body[0])) for row in body if len(row) > at]
        assert len(body[0]) > 1 and shown == labels[: len(shown)]
        rest = len(labels) - len(shown)
        assert rest == 0 or lines[-1].strip() == f"{rest} more"


async def test_the_detail_of_another_place_is_not_next_to_this_ones_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the detail of a row of millions of activities is made, that of another place was
    there."""
    go_on = Event()

    def detail_later(run: Run, frame: Frame, row: int) -> Detail:
        go_on.wait(60)
        return detail(run, frame, row)

    async with explorer((120, 36), measured_run(), View(RUN, name="losses")) as at:
        pane = at.explore.query_one(DetailPane)
        await at.settle()
        assert pane.detail is not None and pane.detail.level == "part"
        monkeypatch.setattr(parts, "detail_of", detail_later)
        at.send("3")
        async with asyncio.timeout(60):
            while at.frame.level != "kernel" or pane.detail is not None:
                await at.pilot.pause(0.02)
        assert "part" not in str(pane.border_title)
        go_on.set()
        await at.settle()
        assert pane.detail is not None and pane.detail.level == "kernel"


async def until_drawn(at: Driven) -> None:
    async with asyncio.timeout(60):
        while not at.explore.query_one(EvidencePane).drawn:
            await at.pilot.pause(0.02)


async def test_no_picture_of_one_view_is_over_the_table_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawing, go_on = PicturePane.drawing, Event()
    async with explorer((100, 30), measured_run(), View(RUN, name="timeline")) as at:
        before = at.explore.picture_pane.drawn
        assert before

        def drawn_later(pane: PicturePane, *given: Any) -> Any:
            go_on.wait(60)
            return drawing(pane, *given)

        monkeypatch.setattr(PicturePane, "drawing", drawn_later)
        at.send("5")
        async with asyncio.timeout(60):
            while at.explore.view.name != "ranks":
                await at.pilot.pause(0.02)
        assert at.explore.picture_pane.drawn == ()
        go_on.set()
        await at.settle()
        assert at.explore.picture_pane.drawn not in ((), before) or not at.explore.shows_picture


@pytest.mark.parametrize("width", [80, 66])
async def test_a_summary_of_one_operation_has_its_row_below_its_headings(width: int) -> None:
    """Where headings take two lines, the only row had none."""
    name = "an_operation_with_a_name"
    run = run_of_rows([Row(0, 1_760, iteration=1, operation=name, launch=0)])
    async with explorer((width, 24), run, View(run.name, name="overview")) as at:
        assert any(re.search("▌? *an_", line) for line in at.lines()), at.text()


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["losses", "roofline", "overlap", "compare", "whatif"])
async def test_on_a_large_screen_rows_come_before_curves(name: str) -> None:
    """Curves of signals had half of the screen below tables that were cut."""
    run = demo_run()
    async with explorer((200, 60), run, View(run.name, name=name)) as at:
        screen = at.explore
        evidence, curves = screen.evidence, screen.query_one("#last")
        assert evidence.region.y == curves.region.y and not evidence.region.overlaps(curves.region)
        assert evidence.size.width > curves.size.width
        has_all = screen.table.page >= screen.table.rows
        assert has_all or evidence.size.height <= 8, "what the table needs is its own first"
        rows = len(evidence.drawn) - 1
        assert rows == evidence.size.height - 1 or "more" not in str(evidence.drawn[-1])


@pytest.mark.few(2)
@pytest.mark.parametrize("size", [(80, 24), (120, 36)])
@pytest.mark.parametrize("name", ["kernels", "lost", "losses", "compare"])
async def test_curves_cut_no_table(name: str, size: tuple[int, int]) -> None:
    """Of 40 kernels ten were shown above a curve of the clock."""
    run = demo_run()
    async with explorer(size, run, View(run.name, name=name)) as at:
        table, curves = at.explore.table, at.explore.query_one("#last")
        assert not curves.size.height or table.page >= table.rows
