"""Small things of the screen that were wrong once."""

from __future__ import annotations

import re

import numpy as np
import pytest
from msgspec.structs import replace
from rich.color import ColorSystem, ColorType
from textual import events
from textual.css.query import NoMatches
from textual.widgets import OptionList

from chopper_core.columns import METRICS
from chopper_core.model.charts import Composition, HeatMap, Series
from chopper_core.model.view import ALL_TIME, View
from chopper_core.render import info
from chopper_core.render.cells import column_texts, wrapped
from chopper_core.render.glyphs import ASCII, UNICODE
from chopper_core.render.text import as_text
from chopper_core.util.errors import ChopperError
from chopper_core.views import VIEWS, view_spec
from chopper_core.views.query import query
from chopper_tui.app import ChopperApp
from chopper_tui.draw.charts import draw
from chopper_tui.draw.theme import THEMES, textual_theme, to_ascii
from chopper_tui.screen.parts import ScreenParts
from chopper_tui.widgets.chart_panes import SignalPane
from chopper_tui.widgets.detail import DetailPane
from chopper_tui.widgets.footer import Status
from tests.demo import demo_run
from tests.tui.explorer import explorer, measured_run, sample_run
from tests.wording import Wording

RUN = "sample.json"


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["", *VIEWS])
async def test_no_two_entries_of_the_sort_look_alike(name: str) -> None:
    try:
        query(measured_run(), View(RUN, name=name))
    except ChopperError:
        pytest.skip("the run has no such view")
    async with explorer((120, 40), measured_run(), View(RUN, name=name)) as at:
        await at.press("o")
        titles = [title for _, title, _ in at.app.screen._options]
        assert len(titles) == len(set(titles)) == at.app.screen.query_one(OptionList).option_count


def test_counted_tokens_have_no_decimals() -> None:
    frame = query(measured_run(), View(RUN, name="throughput", of="tokens:8192"))
    text = as_text(frame, width=200)
    assert "8192" in text and "8192.0" not in text
    column = next(each for each in column_texts(frame) if each.metric.name == "step_tokens")
    assert column.scale.decimals == 0


@pytest.mark.parametrize("width", [80, 120])
async def test_a_heat_map_by_kernel_has_its_columns_and_names_them(width: int) -> None:
    run = demo_run()
    view = View(run.name, name="heatmap", by="kernel")
    async with explorer((width, 24), run, view) as at:
        heat = at.frame.charts[0]
        assert isinstance(heat, HeatMap) and len(heat.columns) > 20
        first = next(line for line in at.lines() if "GPU 0" in line)
        assert sum(char in "▁▂▃▄▅▆▇█▀[]–" for char in first) > 20
        await at.press("l", "l")
        cell = next(line for line in at.lines() if "▌ GPU 0, kernel " in line)
        assert "_" in cell or ":" in cell
        assert "��" not in at.text() and "__ " not in cell


def test_every_sign_of_a_title_has_a_stand_in() -> None:
    titles = "".join(f"{each.title} {each.unit}" for each in METRICS.values())
    assert to_ascii(titles + "µ±×·→").count("?") == 0 and ASCII.spelled(titles).isascii()


@pytest.mark.sweep
async def test_titles_in_ascii_are_words() -> None:
    view = View("demo_data/fsdp2", name="overview")
    async with explorer((120, 40), demo_run(), view, ASCII) as at:
        text = to_ascii(at.text())
        assert text.isascii()
        assert "hot  C" in text and "hot ?C" not in text
        assert "lost msv" not in text and "lag ms" in text
        await at.press("4", "o", "j", "j", "enter")
        assert not re.search(r"\b[mn]sv", to_ascii(at.text()))
        assert not re.search(r"sort \w.*[a-z]v$", to_ascii(at.lines()[-2]).rstrip())
        last = to_ascii(at.lines()[-1])
        assert "enter in" in last and "< in" not in last


@pytest.mark.sweep
async def test_a_signal_is_computed_once_per_step(monkeypatch: pytest.MonkeyPatch) -> None:
    from chopper_core.views.shared import signal_charts

    asked: list[tuple[object, ...]] = []
    computed = signal_charts.signal_chart

    def counted(run, view, bins, *rest):  # type: ignore[no-untyped-def]
        made = computed(run, view, bins, *rest)  # One that nothing waits for any more ends here.
        asked.append((view.path, view.signal))
        return made

    monkeypatch.setattr(signal_charts, "signal_chart", counted)
    async with explorer((196, 58), measured_run(), View(RUN)) as at:
        for key in ("enter", "enter", "enter", "h"):
            await at.press(key)
        # The way back shows what the run remembers.
        assert len(asked) == len(set(asked)) == 2 * 4
        assert [pane for pane in at.explore.query(SignalPane) if pane.is_shown]


def test_parts_of_a_step_have_marks_of_their_own() -> None:
    """Eleven parts without a meaning, of which two are too small to be seen."""
    numbers = [305.0, 4.3, 25.0, 24.0, 2.7, 139.0, 0.02, 175.0, 61.0, 0.008, 1.5]
    series = tuple(Series(f"part {n}", np.array([each])) for n, each in enumerate(numbers))
    picture = Composition("step", "ms", ("a",), series)
    lines = draw(picture, 120, 20, UNICODE.coloured(True))
    marks = [piece for line in lines[2:] for piece in line if piece[0].strip() in ("█", "▓", "▒")]
    assert len(marks) == len(set(marks)) == 9
    drawn = {(text[0], ink) for text, ink in lines[1][:-1] if text}
    assert drawn <= set(marks) and len(drawn) > 5


@pytest.mark.parametrize("width", range(20, 44))
def test_no_line_begins_with_the_unit_of_a_number(width: int) -> None:
    text = "idle for 24.09 ms: 25.47 µs outside, 48.9 % of 2.219 GB; 134.0 TFLOP/s in 3 GPUs"
    lines = wrapped(text, width)
    assert " ".join(lines) == text and max(map(len, lines)) <= width
    units = ("ms", "µs", "%", "GB", "TFLOP/s")
    assert not any(line.startswith(units) for line in lines)


@pytest.mark.parametrize("size", [(80, 24), (40, 10)])
async def test_a_reason_takes_the_lines_that_it_needs(size: tuple[int, int]) -> None:
    async with explorer(size, demo_run(), View(demo_run().name, name="overlap")) as at:
        await at.press("4")
        reason = "no pipeline: the traces have no sends and receives between stages, and no"
        assert reason in " ".join(at.text().split()) and "microbatches" in at.text()
        # The key went on to the next tab, whose table gives lines to the reason until the next key.
        table = at.explore.table.size.height
        await at.press("j")
        assert at.frame.view.name == "losses" and at.explore.table.size.height > table


def test_a_reason_of_many_words_ends_with_a_mark() -> None:
    status = Status()
    status.message = "word " * 200
    assert status.lines_wanted(80) == 4
    status.message = ""
    assert status.lines_wanted(80) == 1


@pytest.mark.sweep
async def test_causes_and_explanations_are_whole_sentences(wording: Wording) -> None:
    async with explorer((80, 24), demo_run(), View(demo_run().name, name="overview")) as at:
        await at.press("W")
        lines = [line for line in at.text().splitlines() if "│" in line[:3]]
        text = " ".join(" ".join(line.split("│")[1] for line in lines).split())
        assert "…" not in text
        wording(text, "other seven GPUs", "GPU 6")
        await at.press("escape", ":")
        await at.type("view")
        await at.press("enter")
        options = at.app.screen.query_one(OptionList)
        options.highlighted = list(at.explore.tabs).index("icicle")
        await at.settle()
        assert view_spec("icicle").question in at.text()


def test_tables_of_the_description_have_blocks_that_fit() -> None:
    run = demo_run()
    wide, narrow = info.info_text(run).splitlines(), info.info_text(run, 71).splitlines()
    assert max(map(len, wide)) > 100
    tables = narrow[narrow.index("") : narrow.index("sources")]
    assert max(map(len, tables)) <= 71
    whole = {word for line in wide for word in line.split()}
    assert whole == {word for line in narrow for word in line.split()}


async def test_a_run_that_knows_nothing_over_time_has_no_empty_chart() -> None:
    run = sample_run()
    table = run.table
    at_once = replace(table, start_ns=table.start_ns * 0, duration_ns=table.duration_ns * 0)
    still = replace(run, table=at_once)
    async with explorer((80, 24), still, View(RUN)) as at:
        assert not at.explore.signal_panes and not at.explore.table.sparks
        assert "GPU" in at.lines()[3] and "not known here" not in at.text()


@pytest.mark.parametrize("width", [80, 120])
async def test_a_long_name_leaves_the_strip_of_views_its_place(width: int) -> None:
    run = replace(sample_run(), name="mi300x_resnet_act_ckpt_rank0of8.json.gz")
    async with explorer((width, 24), run, View(run.name, name="overview")) as at:
        assert "summary" in at.lines()[1] and "mi300x_resn" in at.lines()[1]


@pytest.mark.parametrize("theme", THEMES)
def test_scrollbars_are_no_brighter_than_frames(theme: str) -> None:
    variables = textual_theme(theme).variables
    assert {variables[f"scrollbar{state}"] for state in ("", "-hover", "-active")} == {
        "ansi_bright_black"
    }


async def test_a_screen_that_loses_its_parts_while_the_app_ends_is_no_crash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A terminal that is closed during mount: some parts have gone before the layout."""
    fit, failures = ScreenParts.fit_parts, []

    def half_mounted(screen: ScreenParts) -> None:
        screen.app.exit()
        for part in screen.query("#last"):
            part._parent._nodes._remove(part)  # type: ignore[union-attr]
        try:
            fit(screen)
        except NoMatches as error:
            failures.append(error)
            raise

    monkeypatch.setattr(ScreenParts, "fit_parts", half_mounted)
    crashes: list[BaseException] = []
    monkeypatch.setattr(ChopperApp, "write_crash", lambda _, error: crashes.append(error))
    app = ChopperApp(lambda _: sample_run(), View(RUN))
    await app.run_async(headless=True, size=(80, 24))
    assert failures and not crashes and app._exception is None


@pytest.mark.few(1)
@pytest.mark.parametrize("size", [(40, 10), (60, 16), (80, 24), (120, 40), (200, 60)])
async def test_every_column_that_is_offered_has_words_beside_its_title(
    size: tuple[int, int],
) -> None:
    async with explorer(size, measured_run(), View(RUN, name="kernels")) as at:
        await at.press("C")
        options = at.app.screen.query_one(OptionList)
        for place, metric in enumerate(at.app.screen._offered):  # type: ignore[attr-defined]
            prompt = str(options.get_option_at_index(place).prompt)
            words = prompt.partition(metric.title)[2].strip()
            assert words.strip("… ") and "\n" not in prompt


@pytest.mark.sweep
async def test_zooming_in_and_out_comes_back_to_the_scope() -> None:
    async with explorer((120, 40), measured_run(), View(RUN, ("1",))) as at:
        text = at.text()
        for cursor in ("home", "end"):
            await at.press(cursor)
            text = at.text()
            await at.press("+", "+", "-", "-")
            assert at.frame.view.window == ALL_TIME and at.text() == text


@pytest.mark.few(1)
@pytest.mark.parametrize("key", ["j", "2", "enter", "+", "tab", "?"])
async def test_a_message_is_gone_with_the_next_key(key: str) -> None:
    async with explorer((120, 40), measured_run(), View(RUN)) as at:
        await at.press("u")
        said = at.status
        assert said
        await at.press(key)
        assert at.status != said


async def test_a_message_is_gone_with_a_click() -> None:
    async with explorer((120, 40), measured_run(), View(RUN)) as at:
        await at.press("u")
        assert at.status
        down = events.MouseDown(None, 5, 30, 0, 0, 1, False, False, False)
        at.app.post_message(down)
        await at.settle()
        assert not at.status


async def test_a_word_in_the_detail_leaves_its_title() -> None:
    async with explorer((120, 60), demo_run(), View("demo_data/fsdp2", name="overheads")) as at:
        pane = at.explore.query_one(DetailPane)
        assert pane.detail is not None
        words = [each for group in pane.detail.groups.values() for each in group if each.word]
        assert words
        beside = "\n".join(line.partition("│")[2] for line in at.lines())
        assert all(each.metric.title in beside for each in words)


async def test_the_smallest_overview_shows_the_finding_that_has_the_cursor() -> None:
    async with explorer((40, 10), measured_run(), View(RUN, name="overview")) as at:
        assert at.explore.cards.has_keys and at.explore.cards.card is not None
        words = at.explore.cards.card.text.split()[:3]
        assert " ".join(words) in at.text() and "▌" in at.text()


@pytest.mark.parametrize("size", [(40, 10), (120, 40)])
async def test_keys_are_never_for_cards_that_are_hidden(size: tuple[int, int]) -> None:
    async with explorer(size, measured_run(), View(RUN, name="overview")) as at:
        while at.explore.listing is not at.explore.table:
            await at.press("tab")
        await at.press("z")
        assert not at.explore.cards.display and not at.explore.cards.has_keys
        second = at.frame.labels[1]
        await at.press("j", "enter")
        assert at.path == (second,)


@pytest.mark.sweep
async def test_a_theme_named_after_another_is_shown() -> None:
    """After `:theme ansi` much of the screen kept its colours until a key changed it."""
    view = View(RUN, name="overview")
    app = ChopperApp(lambda _: measured_run(), view)
    app.console._color_system = ColorSystem.TRUECOLOR
    async with explorer(app=app) as at:
        shown: dict[str, set[object]] = {}
        for theme in ("dark", "contrast", "ansi", "light", "contrast", "ansi"):
            await at.command(f"theme {theme}")
            strips = at.app.screen._compositor.render_strips()
            styles = {segment.style for strip in strips for segment in strip}
            assert shown.setdefault(theme, {*styles}) == styles
        colours = {style.color for style in shown["ansi"] if style and style.color}
        assert colours and all(each.type is not ColorType.TRUECOLOR for each in colours)
        assert len({frozenset(map(str, styles)) for styles in shown.values()}) == 4


@pytest.mark.sweep
async def test_the_palette_finds_the_command_that_is_typed() -> None:
    """`theme` compared the marked rows."""
    async with explorer() as at:
        await at.press("ctrl+p")
        await at.type("theme")
        listed = at.app.screen.query_one(OptionList)
        assert "Theme" in str(listed.get_option_at_index(0).prompt)
        await at.press("enter")
        assert at.app.theme != "dark" and at.frame.view == View(at.frame.view.run)


async def test_a_headline_is_cut_at_its_end() -> None:
    """`runs at ...6.2 % lower clock`: a sentence without its middle says something else."""
    run = demo_run()
    async with explorer((56, 20), run, View(run.name, name="ranks")) as at:
        lines = at.lines()
        cut = next(line.rstrip() for line in lines[2:7] if line.rstrip().endswith("…"))
        whole = " ".join(" ".join(at.frame.headline).split())
        assert cut.removesuffix("…").strip() in whole
