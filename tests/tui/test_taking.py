"""What is taken along from every view and level is what `chopper show` prints of its address."""

from __future__ import annotations

import asyncio
import csv
import html
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from textual import events
from textual.app import App
from textual.widgets import Static

from chopper_core.model.address import parse
from chopper_core.model.view import Baseline, View
from chopper_core.render.glyphs import UNICODE
from chopper_core.views import view_specs
from chopper_core.views.query import query
from chopper_tui.app import ChopperApp
from chopper_tui.export import printed
from chopper_tui.play import played
from chopper_tui.textual_internals import (
    is_holding_back,
    key_of_character,
    messages_done,
    screen_text,
)
from tests.tui.explorer import Driven, explorer, measured_run

DEEP = ("3", "11", "backward", "2", "qkv_ip", "Cijk_Alik_Bljk_MT256x256", "0")
PLACES = [
    *(View("sample.json", DEEP[:depth]) for depth in range(len(DEEP) + 1)),
    View("sample.json", DEEP[:2], baseline=Baseline("", ("0", "11")), filter="time>1us"),
    View("sample.json", stat="median", sort="-elapsed_ns"),
    *(
        View(
            "sample.json",
            ("1",),
            name=known.name,
            baseline=Baseline("", ("0",)) if known.compares else None,
        )
        for known in view_specs()
    ),
]
SIZES = [(80, 24), (200, 60)]


def name_of(view: View) -> str:
    more = "-base" * bool(view.baseline) + "-stat" * bool(view.stat)
    return view.name or f"level{len(view.path)}{more}"


def text_of(picture: str) -> str:
    """The words of an SVG, in the order in which they are drawn."""
    return "".join(
        html.unescape(each) for each in re.findall(r"<text[^>]*>([^<]*)</text>", picture)
    )


async def taken(at: Driven, format_name: str) -> str:
    path = Path(f"taken.{format_name}")
    await at.command(f"snapshot {format_name} {path}")
    assert at.status.endswith(f": {path}")
    return path.read_text(encoding="utf-8")


@pytest.mark.sweep
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("view", PLACES, ids=name_of)
async def test_what_is_taken_is_what_show_prints(view: View, size: tuple[int, int]) -> None:
    async with explorer(size, measured_run(), view) as at:
        frame = query(measured_run(), parse(at.frame.address))
        assert frame.view == at.frame.view
        screen = at.text()
        # What is written knows no size.
        for format_name in ("text", "md", "csv", "json") if size == SIZES[0] else ("text",):
            whole = "markdown" if format_name == "md" else format_name
            text = printed(frame, whole, charted=measured_run())
            assert await taken(at, format_name) == text
            assert view.name or whole in ("csv", "json") or ("┤" in text and " MHz" in text)
        await at.press("Y")
        assert at.app.clipboard == printed(frame, "markdown")
        if len(frame):
            await at.press("y")
            headings, row = at.app.clipboard.split("\n")
            name, *cells, address = row.split("\t")
            figures = frame.row(at.explore.table.cursor)
            known = [each for each in figures.values() if each is not None]
            assert name == at.label and len(known) <= len(cells) <= len(figures)
            assert len(headings.split("\t")) == len(cells) + 2
            assert address == frame.addresses(at.explore.table.cursor)
        picture = await taken(at, "svg")
        assert "".join(screen.split("\n")[0].split()) in "".join(text_of(picture).split())
        assert_cells(at)


def assert_cells(at: Driven) -> None:
    """The cells of the table on the screen are those of the frame in every format."""
    frame, table = at.frame, at.explore.table
    plan = table.layout_plan
    assert plan is not None
    text = printed(frame)
    rows = list(csv.DictReader(io.StringIO(printed(frame, "csv"))))
    document = json.loads(printed(frame, "json"))
    top = int(table.scroll_offset.y)
    lines = at.lines()
    for row in range(top, min(top + table.page, len(frame))):
        figures = frame.row(row)
        for column in plan.columns:
            values = frame.values[column.name]
            if values.words is None:
                cell = column.text.scale.cell(values.at(row))
                assert cell in text and any(cell in line for line in lines), (column.name, cell)
            kept, exact = rows[row][column.name], figures[column.name]
            assert kept == ("" if exact is None else str(exact))
            assert document["rows"][row][column.name] == exact


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("view", "size"), [*((view, SIZES[0]) for view in PLACES[4:]), (PLACES[8], SIZES[1])]
)
async def test_a_replay_ends_on_the_screen_that_a_person_sees(
    view: View, size: tuple[int, int]
) -> None:
    async with explorer(size, measured_run(), view) as at:
        await at.press("j")
        expected = at.text()
    app = ChopperApp(lambda _: measured_run(), view, glyphs=UNICODE)
    assert await played(app, ["j"], size) == expected


async def test_the_screen_as_text_is_that_of_textuals_own_picture() -> None:
    """Tells where an upgrade of Textual changes what is not promised."""
    async with explorer((100, 30), measured_run()) as at:
        await at.press("?")
        words = "".join(screen_text(at.app).split())
        assert words and "".join(text_of(at.app.export_screenshot()).split()).endswith(words)
        assert not is_holding_back(at.app)
        with at.app.batch_update():
            assert is_holding_back(at.app)
    assert [key_of_character(key) for key in "a[{-"] == [
        "a", "left_square_bracket", "left_curly_bracket", "minus",
    ]  # fmt: skip


async def test_messages_are_done_once_those_that_they_bring_are_too() -> None:
    handled: list[str] = []

    class Slow(Static):
        async def on_key(self, event: events.Key) -> None:
            await asyncio.sleep(0.05 if event.key == "a" else 0)
            handled.append(event.key)
            if event.key == "a":
                self.post_message(events.Key("b", "b"))

    class Plain(App[None]):
        def compose(self) -> Iterator[Slow]:
            yield Slow()

    async with Plain().run_test() as pilot:
        for _ in range(3):
            pilot.app.query_one(Slow).post_message(events.Key("a", "a"))
        await messages_done(pilot)
        await messages_done(pilot)
        assert sorted(handled) == [*"aaabbb"]
