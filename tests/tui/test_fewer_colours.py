"""Every view and level with 16 colours, with none, and in ASCII: nothing is lost but beauty."""

from __future__ import annotations

import re

import pytest
from rich.console import ColorSystem

from chopper_core.analyses.lanes import CLASS_NAMES
from chopper_core.model.view import Baseline, View
from chopper_core.render.glyphs import ASCII, UNICODE, Glyphs
from chopper_core.views import VIEWS, view_spec
from chopper_tui.app import ChopperApp
from tests.tui.explorer import explorer, measured_run
from tests.tui.terminal_harness import Terminal

SIZE = (120, 40)
DEEP = ("3", "11", "backward", "2", "qkv_ip", "Cijk_Alik_Bljk_MT256x256", "0")
NAMES = list(VIEWS)
NOTHING_TO_SHOW = ("pipeline", "memory")
"""Views that the sample run has nothing for."""
PLACES = [
    *(View("sample.json", DEEP[:depth]) for depth in (0, 1, 5, 7)),
    View("sample.json", ("3", "11"), baseline=Baseline("", ("0", "11"))),
    *(
        View("sample.json", ("1",), name=name, baseline=Baseline("", ("0",)))
        for name in NAMES
    ),
]  # fmt: skip
RICH, SIXTEEN, NONE = ColorSystem.TRUECOLOR, ColorSystem.STANDARD, None
_SGR = re.compile(r"\x1b\[([\d;:]*)m")
_ATTRIBUTES = frozenset((*range(10), *range(21, 30), 39, 49))
_BASIC = _ATTRIBUTES | {*range(30, 38), *range(40, 48), *range(90, 98), *range(100, 108)}
_CODES = {SIXTEEN: _BASIC, NONE: _ATTRIBUTES}


async def shown(
    view: View, colours: ColorSystem | None, glyphs: Glyphs, *keys: str
) -> tuple[str, str]:
    """The screen as text, and as what a terminal with these colours is sent."""
    run = measured_run()
    app = ChopperApp(lambda _: run, view, glyphs=glyphs)
    app.console._color_system = colours
    async with explorer(SIZE, app=app) as at:
        if glyphs is ASCII:
            await at.press("z", "x")
            assert at.text().isascii()
            await at.press("z", "x")
        await at.press("space", *keys)
        strips = at.app.screen._compositor.render_strips()
        for style in (segment.style for strip in strips for segment in strip):
            if style is not None:
                # Styles, which outlive an app, remember their codes for the colours that it had.
                style._ansi = None
        return at.text(), "\n".join(strip.render(at.app.console) for strip in strips)


def codes(sent: str) -> set[int]:
    return {int(code or 0) for found in _SGR.findall(sent) for code in re.split("[;:]", found)}


def words(text: str) -> list[str]:
    # The legend has classes behind blocks of their colours, or kinds behind patterns.
    names = (*CLASS_NAMES, "compute", "both", "hidden comm", "exposed comm", "waiting", "comm")
    text = re.sub("|".join(rf"[^\w\s] {name}" for name in names), "", text)
    return sorted(re.findall(r"[A-Za-z]{2,}|\d+(?:\.\d+)?", text))


def plain_fills(text: str) -> str:
    """Some kinds share one of 16 colours, in patterns; a fill can be the color behind a blank."""
    return text.translate(str.maketrans("█▓▒░", "    "))


def name_of(view: View) -> str:
    base = "-base" * bool(view.baseline and not view.name)
    return view.name or f"level{len(view.path)}{base}"


@pytest.mark.sweep
@pytest.mark.parametrize("view", PLACES, ids=name_of)
async def test_fewer_colours_and_ascii_show_the_same(
    view: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    rich, _ = await shown(view, RICH, UNICODE)
    plain, _ = await shown(view, RICH, ASCII)
    assert plain.isascii()
    # The last line has the keys, some of whose names are longer in ASCII.
    for line, kept in list(zip(rich.splitlines(), plain.splitlines(), strict=True))[:-1]:
        if re.fullmatch(r"[ \d.]+ (?:[mµ]?s)?", line.rstrip()):
            continue  # A time axis has fewer ticks in ASCII, whose charts have fewer cells.
        if "█ GEMM" in line:
            continue  # Lanes without halves of cells have one ink in each, and name those alone.
        if "▼" in line or "▲" in line:
            continue  # The mark of the sorted column is wider: another column may not fit.
        if "evidence " in line or "losses · " in line:
            break  # Its columns are those that fit, and the mark of the sorted one is wider.
        # The mark of a cut name is wider, which leaves less of it.
        whole = re.sub(r"\S*…\S*", "", line)
        assert all(word in kept for word in re.findall(r"[A-Za-z]{4,}|\d+\.\d+", whole)), line
    for colours in (SIXTEEN, NONE):
        if colours is NONE:
            monkeypatch.setenv("NO_COLOR", "1")
        text, sent = await shown(view, colours, UNICODE)
        # Without colours patterns tell kinds apart, too few for the classes of the timeline's
        # legend; every other word and figure is the same.
        same = plain_fills(text) == plain_fills(rich)
        assert same if colours else words(text) == words(rich)
        assert codes(sent) <= _CODES[colours]
        # What alerts and the cursor stand out without a colour; on cards and lanes it is a mark.
        assert codes(sent) & {1, 4}
        assert codes(sent) & {7} or view.name in ("overview", "timeline", "findings")
        assert "▌" in text and (view.name or "●" in text)


async def test_lanes_say_what_their_cells_mean_without_colours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the border of the summary's GPUs as in the timeline."""
    monkeypatch.setenv("NO_COLOR", "1")
    text, _ = await shown(next(each for each in PLACES if each.name == "overview"), NONE, UNICODE)
    (border,) = [line for line in text.splitlines() if "─ GPUs" in line]
    assert "▀ compute" in border and "▄ comm" in border


@pytest.mark.sweep
@pytest.mark.parametrize("keys", [["o"], ["C"], ["?"], ["i"], [":", "s"], ["ctrl+g"]])
async def test_what_opens_takes_fewer_colours(
    keys: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    view = PLACES[1]
    rich, _ = await shown(view, RICH, UNICODE, *keys)
    for colours in (SIXTEEN, NONE):
        if colours is NONE:
            monkeypatch.setenv("NO_COLOR", "1")
        text, sent = await shown(view, colours, UNICODE, *keys)
        same = plain_fills(text) == plain_fills(rich)
        assert same if colours else words(text) == words(rich)
        assert codes(sent) <= _CODES[colours]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("environment", "allowed"),
    [
        ({"NO_COLOR": "1"}, _ATTRIBUTES),
        ({"LC_ALL": "C", "TERM": "linux", "COLORTERM": ""}, _BASIC),
    ],
    ids=["none", "16-C"],
)
def test_what_a_terminal_is_sent_by_every_view(
    environment: dict[str, str], allowed: frozenset[int]
) -> None:
    with Terminal("views", SIZE, **environment) as terminal:
        terminal.until_text("4 of 4 rows")
        terminal.send("\r:baseline gpu=0\r")
        for name in NAMES:
            if name in NOTHING_TO_SHOW:
                continue
            terminal.send(f":view {name}\r")
            # Its tab among those of its place.
            tab = view_spec(name).title.rpartition(" · ")[2].lower()
            terminal.until(lambda tab=tab: tab in terminal.screen.display[1].lower())
            terminal.quiet(0.1)
        terminal.send("1o")
        terminal.until_text("Sort by")
        terminal.send("\x1b")
        terminal.until(lambda: "Sort by" not in "".join(terminal.screen.display))
        terminal.send("?")
        terminal.until_text("searches, esc closes")
        output = terminal.output.decode()
    assert codes(output) <= allowed
    if "LC_ALL" in environment:
        assert output.isascii() and "\\u" not in output


async def test_the_margin_of_a_detail_is_blank_in_16_colours() -> None:
    async with explorer((120, 36), measured_run(), View("sample.json")) as at:
        await at.command("theme ansi")
        side = at.explore.side
        strips = [side.render_line(y) for y in range(side.size.height)]
        assert side.display and any(strip.text.strip() for strip in strips)
        blank = [each for strip in strips for each in strip if not each.text.strip()]
        assert not any(each.style.underline for each in blank if each.style is not None)
