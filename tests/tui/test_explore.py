"""The Explore screen under a pilot: keys in, views and screens out."""

from __future__ import annotations

from pathlib import Path

import pytest

from chopper_core.model.table import LEVELS
from chopper_core.model.view import Baseline, View, with_view
from chopper_core.render import as_text
from chopper_core.render.cells import column_texts
from chopper_core.render.text import as_markdown
from chopper_core.views.query import query
from chopper_tui.actions import ACTIONS
from chopper_tui.export import printed
from chopper_tui.screen import Explorer
from chopper_tui.steps import StepQueue
from chopper_tui.widgets.chart_panes import GpuPane
from chopper_tui.widgets.detail import DetailPane
from chopper_tui.widgets.dialogs import Chooser
from chopper_tui.widgets.footer import PromptLine, Status
from chopper_tui.widgets.reader import TextReader
from tests.support import Row, run_of
from tests.tui.explorer import explorer, measured_run, sample_run
from tests.wording import Wording

DEEP = ("3", "11", "backward", "2", "qkv_ip", "Cijk_Alik_Bljk_MT256x256", "0")
STAYING = [key for action in ACTIONS for key in action.keys if action.id != "quit"]


@pytest.mark.sweep
@pytest.mark.parametrize("depth", [0, 3, 5, 7])
async def test_every_key_from_the_run_to_an_activity(depth: int) -> None:
    async with explorer(view=View("sample.json", DEEP[:depth])) as at:
        for key in STAYING:
            await at.press(key)
            if not isinstance(at.app.screen, Explorer):
                await at.press("escape")
            if at.explore.query_one("Prompt").display:
                await at.press("escape")
        assert at.app.is_running
        assert "generated" in at.text()


async def test_in_and_up_restores_the_parent() -> None:
    async with explorer() as at:
        await at.press("o", "escape", "G", "enter", "j", ".", "r")
        await at.type("/!10")
        await at.press("enter", "j")
        before, label, offset = at.frame, at.label, at.explore.table.offset_of_cursor
        text = at.text()
        await at.press("enter", "j", "l", "escape", "h")
        assert at.frame.view == before.view
        assert (at.label, at.explore.table.offset_of_cursor) == (label, offset)
        assert at.text() == text


@pytest.mark.sweep
async def test_down_to_a_single_activity_and_no_farther() -> None:
    async with explorer() as at:
        for level in LEVELS:
            assert at.frame.level == level
            await at.press("enter")
        assert at.frame.level == "activity"
        await at.press("enter")
        assert at.frame.view.is_leaf
        await at.press("enter")
        assert "has no children" in at.status
        await at.press(*["left"] * 7)
        assert at.path == ()
        await at.press("h")
        assert "whole run" in at.status


@pytest.mark.sweep
async def test_levels_with_one_value_are_passed_through_both_ways() -> None:
    async with explorer(run=sample_run(gpus=1, iterations=1, layers=3)) as at:
        assert at.frame.level == "gpu"
        await at.press("enter")
        assert at.frame.level == "phase"
        (iteration,) = [label for level, label in at.frame.view.scope if level == "iteration"]
        assert f"step {iteration}" in at.text()
        assert "passed through step" in at.status
        await at.press("enter")
        assert at.frame.level == "layer"
        await at.press("escape")
        assert at.frame.level == "phase"
        await at.press("escape")
        assert at.path == ()
        # An address still leads to the level itself, and up from it goes level by level.
        await at.command(f"go {at.frame.view.run}:gpu=0")
        assert at.frame.level == "iteration"


async def test_levels_that_split_are_not_passed_through() -> None:
    async with explorer(run=sample_run(gpus=1, iterations=2)) as at:
        await at.press("enter")
        assert at.frame.level == "iteration"
        await at.press("enter")
        assert at.frame.level == "phase"


@pytest.mark.sweep
async def test_the_cursor_stays_within_the_rows() -> None:
    async with explorer(run=sample_run(gpus=1, iterations=1, layers=60)) as at:
        await at.press("enter", "enter")
        table = at.explore.table
        assert table.rows == 60
        await at.press("k")
        assert table.cursor == 0
        await at.press("pagedown")
        assert table.cursor == table.page and table.offset_of_cursor == 0
        await at.press("G", "j", "pagedown")
        assert table.cursor == 59 and table.offset_of_cursor == table.page - 1
        await at.press("pageup", "ctrl+u")
        assert 0 <= table.offset_of_cursor < table.page
        await at.press("g")
        assert (table.cursor, table.scroll_offset.y) == (0, 0)
        await at.press(*"j" * table.page)
        assert 0 < table.offset_of_cursor < table.page


@pytest.mark.sweep
async def test_siblings_follow_the_parents_order(wording: Wording) -> None:
    async with explorer() as at:
        await at.command("sort -time")
        order = list(at.frame.labels)
        await at.press("g", "enter")
        assert at.path == (order[0],)
        await at.press("[")
        wording(at.status, "first of its siblings")
        assert at.path == (order[0],)
        await at.press("]", "]")
        assert at.path == (order[2],)
        await at.press("escape")
        assert at.label == order[2]


@pytest.mark.sweep
async def test_the_same_scope_on_the_next_gpu() -> None:
    async with explorer(view=View("sample.json", ("0", "11", "backward"))) as at:
        await at.command("sort -time")
        await at.press("}")
        assert at.path == ("1", "11", "backward") and at.frame.sort == "-elapsed_ns"
        await at.press("{", "{")
        assert at.path == ("0", "11", "backward") and "first GPU" in at.status
        await at.press("escape", "escape", "escape")
        assert at.label == "0"


async def test_a_gpu_without_the_scope_shows_its_nearest_ancestor(wording: Wording) -> None:
    run = run_of([Row(0, 10, iteration=1, layer=3), Row(0, 10, iteration=1, layer=4, gpu=1)])
    async with explorer(run=run, view=View(run.name, ("0", "1", "forward", "3"))) as at:
        await at.press("}")
        assert at.path == ("1", "1", "forward")
        wording(at.status, "GPU 1", "no such layer")


@pytest.mark.sweep
async def test_the_last_view_and_back() -> None:
    async with explorer() as at:
        await at.press("H")
        assert "where you began" in at.status
        await at.press("j", "enter", "enter", "3", "H", "H")
        assert at.path == ("1",) and not at.frame.view.name
        await at.press("L")
        assert at.path == ("1", "10")
        await at.press("L")
        assert at.frame.view.name == "kernels"
        await at.press("L")
        assert "latest" in at.status
        await at.press("H", "H", "H")
        assert at.path == ()
        # A new step forgets what came after.
        await at.press("5", "L")
        assert "latest" in at.status


async def test_a_filter_works_while_it_is_typed() -> None:
    async with explorer(view=View("sample.json", DEEP[:4])) as at:
        await at.press("/")
        await at.type("mlp")
        assert list(at.frame.labels) == ["mlp_up"]
        await at.press("escape")
        assert at.frame.view.filter == "" and len(at.frame) == 5
        await at.press("/")
        await at.type("attn time>50us")
        await at.press("enter")
        assert list(at.frame.labels) == ["attn_fa"]
        assert "1 of 5 rows  4 hidden" in at.text()


@pytest.mark.parametrize("unit", ["", " ms", " µs"])
async def test_a_number_in_a_filter_is_in_the_unit_of_its_heading(unit: str) -> None:
    run = measured_run()
    async with explorer((120, 40), run, View("sample.json", name="kernels")) as at:
        heading, column = "", at.frame.values["kernel_ns"]
        heading = next(
            text.header for text in column_texts(at.frame) if "kernel time" in text.header
        )
        own = heading.removeprefix("kernel time ")
        divisor = {"µs": 1e3, "ms": 1e6}[(unit.strip() or own)]
        # Between the middle two, so that no rounding matters.
        known = sorted(column.numbers.tolist())
        bound = (known[len(known) // 2] + known[len(known) // 2 - 1]) / 2
        await at.press("/")
        at.paste(f"kernel time{unit}>{bound / divisor:.9f}")
        await at.press("enter")
        assert len(at.frame) == sum(number > bound for number in known)
        await at.press("/")
        at.explore.query_one(PromptLine).value = ""
        at.paste(f"kernel time{unit}>{max(known) * 2 / divisor:.9f}")
        await at.settle()
        # Nothing matches: the heading keeps its unit, and the range is said.
        assert not len(at.frame) and heading in at.text()
        assert "no row matches" in at.status and "kernel time is " in at.status


async def test_a_word_of_a_heading_on_the_screen_comes_before_other_columns() -> None:
    """`roof<57` compared the FLOP/s of the roof, which no table showed."""
    view = View("sample.json", name="kernels", columns=("kernel_ns", "mean_ns", "p95_ns"))
    async with explorer((120, 40), measured_run(), view) as at:
        await at.press("/", *"p95<0", "enter")
        assert not len(at.frame) and "no row matches p95" in at.status and "p95 is " in at.status
        await at.press("/")
        at.explore.query_one(PromptLine).value = ""
        await at.press(*"kernel<0", "enter")
        assert "kernel time is " in at.status


async def test_a_filter_that_cant_be_read_leaves_the_rows() -> None:
    async with explorer(view=View("sample.json", DEEP[:4])) as at:
        await at.press("/")
        await at.type("(attn")
        assert "invalid regular expression" in at.status and at.explore.query_one(Status).is_error
        assert len(at.frame) == 5
        await at.type(")")
        assert at.status == "" and len(at.frame) == 2


@pytest.mark.parametrize("keys", [("o", *"alphabetical", "enter"), ("r",), (",",)])
async def test_a_sort_keeps_the_cursor_on_its_row_and_in_sight(
    keys: tuple[str, ...],
) -> None:
    run = sample_run(gpus=1, iterations=1, layers=40)
    view = View("sample.json", ("0", "10", "forward"), sort="-elapsed_ns")
    async with explorer((80, 24), run, view) as at:
        table = at.explore.table
        await at.press("G", "k", "k")
        row, before = at.label, list(at.frame.labels)
        await at.press(*keys)
        labels = list(at.frame.labels)
        assert labels != before and sorted(labels) == sorted(before)
        # Enter acts on a row that is seen; the first one is seen, too, where a page has both.
        place = labels.index(str(row))
        assert at.label == row and 0 <= table.offset_of_cursor < table.page
        assert place >= table.page or table.scroll_offset.y == 0
        await at.press("j" if place < len(labels) - 1 else "k")
        assert abs(table.cursor - place) == 1
        assert 0 <= table.offset_of_cursor < table.page
        await at.press("pagedown" if place < table.page else "pageup")
        assert 0 <= table.offset_of_cursor < table.page


async def test_a_sort_shows_the_first_row_to_who_chose_none() -> None:
    run = sample_run(gpus=1, iterations=1, layers=40)
    async with explorer((80, 24), run, View("sample.json", ("0", "10", "forward"))) as at:
        before = at.label
        await at.press("r")
        assert at.label == at.frame.labels[0] != before
        await at.press("j", "r")
        assert at.label == at.frame.labels[-2] and at.explore.table.offset_of_cursor > 0


async def test_a_filter_brings_the_row_of_the_cursor_in_sight() -> None:
    run = sample_run(gpus=1, iterations=1, layers=40)
    async with explorer((80, 24), run, View("sample.json", ("0", "10", "forward"))) as at:
        table = at.explore.table
        await at.press("G", "/", *"time>0", "enter")
        assert table.cursor == len(at.frame) - 1 and 0 <= table.offset_of_cursor < table.page


async def test_the_cursor_follows_its_row_through_a_filter_beyond_the_page() -> None:
    run = sample_run(gpus=1, iterations=1, layers=40)
    async with explorer((80, 24), run, View("sample.json", ("0", "10", "forward"))) as at:
        await at.press("G", "k", "k")
        row, table = at.label, at.explore.table
        assert row is not None and table.cursor > table.page
        kept = f"layer:{row},1,2"
        await at.command(f"filter {kept}")
        assert at.label == row and len(at.frame) == 3
        await at.press("escape")
        assert at.label == row and len(at.frame) == 40
        assert 0 <= table.offset_of_cursor < table.page
        # A row that the filter hides leaves the cursor on the first one; Esc while typing restores.
        await at.press("/")
        await at.type("layer:1,2")
        assert at.label == "1"
        await at.press("escape")
        assert at.label == row and not at.frame.view.filter


async def test_sorting() -> None:
    async with explorer(view=View("sample.json", DEEP[:4])) as at:
        assert at.frame.sort == "-elapsed_ns"
        await at.press(".")
        assert at.frame.sort == "-share_pct"
        await at.press(",", ",")
        assert at.frame.sort == "name"
        await at.press("r")
        assert at.frame.sort == "-name"
        await at.press("o")
        assert isinstance(at.app.screen, Chooser)
        await at.press("down", "enter")
        # What needs attention comes first; the same again reverses.
        await at.command("sort idle")
        assert at.frame.sort == "-idle_ns"
        await at.command("sort busy")
        assert at.frame.sort == "busy_pct"
        await at.command("sort busy")
        assert at.frame.sort == "-busy_pct"
        await at.command("sort +idle")
        assert at.frame.sort == "idle_ns"
        await at.command("sort nonsense")
        assert "unknown column" in at.status and at.frame.sort == "idle_ns"


async def test_the_cursor_stays_on_its_row_when_the_order_changes() -> None:
    async with explorer(view=View("sample.json", DEEP[:4])) as at:
        await at.press("j", "j")
        label = at.label
        await at.press("r")
        assert at.label == label


async def test_pivot() -> None:
    async with explorer() as at:
        await at.press("p")
        assert isinstance(at.app.screen, Chooser)
        await at.press("down", "down", "enter")
        assert at.frame.level == "phase"
        await at.press("enter")
        assert at.frame.view.order[:2] == ("phase", "gpu")
        await at.command("pivot operation")
        assert at.frame.level == "operation"
        await at.command("pivot phase")
        assert "levels below" in at.status


@pytest.mark.sweep
async def test_going_to_an_address() -> None:
    async with explorer() as at:
        await at.command("go gpu=3/iteration=11")
        assert at.path == ("3", "11")
        await at.command("go sample.json:gpu=2?sort=-idle_ns")
        assert at.path == ("2",) and at.frame.sort == "-idle_ns"
        await at.command("go gpu=77")
        assert "no gpu 77" in at.status and at.path == ("2",)
        await at.command("go iteration=3")
        assert "have an order" in at.status
        await at.press("escape")
        assert at.label == "2"


@pytest.mark.sweep
async def test_commands_that_are_wrong_say_so() -> None:
    async with explorer() as at:
        for text in ("nonsense", "snapshot pdf", "pivot nonsense", "theme pink"):
            await at.command(text)
            assert at.explore.query_one(Status).is_error, text
        await at.command("theme light")
        assert at.app.theme == "light"


async def test_a_snapshot_is_what_show_prints(tmp_path: Path) -> None:
    async with explorer(view=View("sample.json", DEEP[:4])) as at:
        await at.press("P")
        await at.press("P")
        await at.command("snapshot markdown")
        await at.command("snapshot csv mine.csv")
        await at.command("snapshot mine.csv")
        assert "exists already" in at.status
        folder = tmp_path / "chopper-snapshots"
        stem = "sample.json-gpu3-iteration11-phasebackward-layer2"
        assert {path.name for path in folder.iterdir()} == {
            f"{stem}-1.txt",
            f"{stem}-2.txt",
            f"{stem}-1.md",
        }
        assert (folder / f"{stem}-1.txt").read_text() == printed(at.frame, charted=at.explore.run)
        assert (tmp_path / "mine.csv").read_text().startswith("name,elapsed_ns")


async def test_a_snapshot_finds_another_place(tmp_path: Path) -> None:
    (tmp_path / "chopper-snapshots").write_text("in the way")
    async with explorer() as at:
        await at.press("P")
        assert len(list((tmp_path / "state/chopper/chopper-snapshots").iterdir())) == 1


async def test_copying(monkeypatch: pytest.MonkeyPatch) -> None:
    async with explorer() as at:
        await at.press("y")
        heads, cells = (line.split("\t") for line in at.app.clipboard.split("\n"))
        assert heads[:2] == ["GPU", "time ms"] and len(heads) == len(cells)
        assert cells[0] == "0" and cells[-1] == "sample.json:gpu=0"
        elapsed = at.frame.row(0)["elapsed_ns"]
        assert float(cells[1]) == pytest.approx(elapsed / 1e6, rel=5e-4)
        assert len(cells[1].replace(".", "")) <= 4
        await at.press("Y")
        assert at.app.clipboard == as_markdown(at.frame)
        await at.command("issue")
        text = at.app.clipboard
        assert text.startswith("**step") and "### Findings" in text and "### Sources" in text
        assert as_markdown(at.frame) in text and "sample.json?view=" in text
        monkeypatch.setattr("chopper_tui.actions.program.CLIPBOARD_BYTES", 10)
        await at.press("Y")
        assert "too large" in at.status


@pytest.mark.sweep
async def test_detail_and_help_open_and_close() -> None:
    async with explorer() as at:
        for key, text in (("i", "sample.json:gpu=0"), ("?", "Places and their tabs")):
            await at.press(key)
            assert isinstance(at.app.screen, TextReader) and text in at.text()
            await at.press("j", "pagedown", "G", "g", "escape")
            assert isinstance(at.app.screen, Explorer)


async def test_the_wide_screen_tells_all_of_the_row() -> None:
    async with explorer((140, 40), view=View("sample.json", DEEP[:4])) as at:
        await at.press("j")
        detail = at.explore.query_one(DetailPane).detail
        assert detail is not None and detail.label == at.label
        figures = {figure.metric.name: figure.number for figure in detail.groups["time"]}
        assert figures["elapsed_ns"] == at.frame.row(1)["elapsed_ns"]
        pane = at.explore.query_one(GpuPane)
        shown = ["".join(text for text, _ in line).split() for line in pane.drawn]
        assert [row[0].strip("▌") or row[1] for row in shown[1:]] == ["0", "1", "2", "3"]
        assert [row[0][:1] == "▌" for row in shown[1:]] == [False, False, False, True]
        assert "on every GPU" in at.text()


async def test_the_screen_shows_the_cells_of_show() -> None:
    async with explorer((200, 60), view=View("sample.json", DEEP[:4])) as at:
        rows = as_text(at.frame).splitlines()[2 : 2 + len(at.frame)]
        lines = at.lines()
        first = next(row for row, line in enumerate(lines) if " ▌" in line)
        shown = lines[first : first + len(at.frame)]
        for row, expected in enumerate(rows):
            line = shown[row]
            assert expected.split()[0] in line
            for column in at.explore.table.layout_plan.columns:
                cell = column.text.scale.cell(at.frame.values[column.name].at(row))
                assert cell in expected.split() and cell in line.split()


@pytest.mark.sweep
async def test_resizing_keeps_the_cursor() -> None:
    async with explorer(run=sample_run(gpus=1, iterations=1, layers=60)) as at:
        await at.press("enter", "enter", "enter", "pagedown", "j")
        label = at.label
        for size in ((200, 60), (50, 12), (30, 8), (120, 40), (80, 24)):
            await at.pilot.resize_terminal(*size)
            await at.settle()
            assert at.label == label
            assert at.explore.table.offset_of_cursor >= 0
            text = at.text()
            assert "too small" in text if size == (30, 8) else f" ▌ {label} " in text


@pytest.mark.sweep
async def test_names_are_data() -> None:
    names = ["[bold]x[/bold]", "tab\there", "漢字カーネル" * 10, "x" * 500, "\x1b[31mred"]
    run = run_of([Row(n * 10, 10, operation=name, layer=1) for n, name in enumerate(names)])
    async with explorer(run=run, view=View(run.name, ("0", "none", "forward", "1"))) as at:
        text = at.text()
        assert "[bold]x[/bold]" in text and "tab\\x09here" in text and "\\x1b[31mred" in text
        for key in ("x", "i", "escape", "enter", "i", "escape"):
            await at.press(key)
        for size in ((200, 60), (60, 16)):
            await at.pilot.resize_terminal(*size)
            await at.settle()
            assert all(len(line) <= size[0] for line in at.lines())


async def test_keys_typed_ahead_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepQueue, "LONG_S", 60.0)  # keys don't wait for a long step
    async with explorer() as at:
        at.send("enter", "j", "enter", "j", "enter", "G")
        await at.settle()
        assert at.path == ("0", "11", "backward") and at.label == "3"


@pytest.mark.sweep
async def test_what_is_pasted_is_taken_before_the_keys_that_follow() -> None:
    async with explorer() as at:
        at.send(":", "s", "o", "r", "t", " ")
        at.paste("kernels\nquit")
        at.send("enter", "j")
        await at.settle()
        assert at.frame.sort == "-kernels" and at.explore.table.cursor == 1


async def test_the_frame_on_the_screen_is_the_cores() -> None:
    run = sample_run()
    async with explorer(run=run) as at:
        await at.press("j", "enter")
        await at.command("sort -idle")
        await at.command("filter !10")
        view = View("sample.json", ("1",), sort="-idle_ns", filter="!10")
        assert at.frame.view == view
        assert as_text(at.frame) == as_text(query(run, view))


@pytest.mark.few(1)
@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_the_chart_has_three_sizes(size: tuple[int, int]) -> None:
    async with explorer(size) as at:
        heights = []
        for _ in range(3):
            heights.append(sum("┤" in line or "│" in line for line in at.lines()))
            assert ("busy % of 4 GPUs" in at.text()) == (at.explore.chart != "off")
            await at.press("c")
        await at.press("z")
        assert "busy % of 4 GPUs" not in at.text()


@pytest.mark.sweep
async def test_a_baseline_goes_along_and_can_be_left() -> None:
    async with explorer((120, 40), view=View("sample.json", ("1", "11"))) as at:
        row = at.label
        assert row is not None
        await at.press("b")
        assert at.frame.view.baseline == Baseline("", ("1", "11", row))
        assert f"base {row}" in at.text() and "Δ time" in at.text()
        await at.press("}")
        assert at.frame.view.path == ("2", "11")
        assert at.frame.view.baseline == Baseline("", ("1", "11"))
        assert "base GPU 1" in at.text()
        await at.press("enter")
        assert at.frame.view.baseline == Baseline("", ("1", "11", at.frame.view.path[-1]))
        await at.press("i")
        await at.press("escape", "escape", "escape")
        assert at.frame.view.path == ("2",)
        assert at.frame.view.baseline == Baseline("", ("1",))
        await at.press("escape")
        # The table above compares with the row that it was entered by.
        assert at.frame.view.path == () and at.frame.view.baseline == Baseline("", ("1",))
        await at.press("b")
        assert at.frame.view.baseline == Baseline("", ("2",)) and at.label == "2"
        await at.press("b")
        assert at.frame.view.baseline is None
        await at.command("baseline gpu=2")
        assert at.frame.view.baseline == Baseline("", ("2",))
        await at.press("b")
        assert at.frame.view.baseline is None


async def test_each_row_is_compared_with_the_one_that_is_the_baseline() -> None:
    """Differences are those of the plain table; Enter compares what is in another row with it."""
    async with explorer((160, 40), measured_run(), View("sample.json")) as at:
        plain = {label: at.frame.row(row) for row, label in enumerate(at.frame.labels)}
        await at.press("j", "b")
        base = at.label
        assert base is not None
        for row, label in enumerate(at.frame.labels):
            cells = at.frame.row(row)
            expected = plain[label]["elapsed_ns"] - plain[base]["elapsed_ns"]
            assert cells["elapsed_ns_delta"] == pytest.approx(expected)
        assert len(at.frame) == len(plain) and not at.frame.partners
        await at.press("k", "k", "k", "enter")
        assert at.path[0] != base and at.frame.view.baseline == Baseline("", (base,))
        assert {*at.frame.labels} >= {"10", "11"}  # The steps of both.


@pytest.mark.parametrize("name", ["kernels", "ranks", "launch"])
async def test_a_row_of_any_table_of_places_becomes_the_baseline(name: str) -> None:
    view = with_view(View("sample.json"), name)
    async with explorer((120, 36), measured_run(), view) as at:
        await at.press("j")
        label, level = at.label, at.frame.level
        await at.press("b")
        assert not at.frame.view.name and at.frame.level == level and at.label == label
        assert at.frame.view.row_baseline == label
        row = list(at.frame.labels).index(str(label))
        assert at.frame.row(row)["elapsed_ns_delta"] == 0
        await at.press("H")
        assert at.frame.view.name == name and at.frame.view.baseline is None


@pytest.mark.sweep
async def test_a_statistic_is_chosen_and_stays(wording: Wording) -> None:
    async with explorer((120, 40)) as at:
        await at.press("s")
        assert isinstance(at.app.screen, Chooser)
        wording.among(at.text(), "instance per GPU, step")
        await at.press("down", "down", "enter")
        assert at.frame.view.stat == "median" and "median time" in at.text()
        assert at.frame.address == "sample.json?stat=median"
        await at.press("enter")
        assert at.frame.view.stat == "median"
        await at.command("stat spread gpu,layer")
        await at.press("escape")
        assert (at.frame.view.stat, at.frame.view.over) == ("spread", ("gpu", "layer"))
        await at.command("sort -time")
        assert at.frame.sort == "-elapsed_ns"
        await at.command("stat nonsense")
        assert "unknown statistic" in at.status
        await at.command("stat sum")
        assert at.frame.view == View("sample.json", sort="-elapsed_ns")


@pytest.mark.sweep
@pytest.mark.parametrize("size", [(80, 24), (200, 60)])
async def test_a_statistic_in_a_view_or_why_there_is_none(
    size: tuple[int, int], wording: Wording
) -> None:
    async with explorer(size) as at:
        await at.press("3", "s")
        assert isinstance(at.app.screen, Chooser) and "GPU, step, layer" in at.text()
        await at.press("down", "down", "enter")
        assert at.frame.address == "sample.json?view=kernels&stat=median"
        assert "median kern" in at.text()
        wording(at.status, "median per")
        await at.press("1")
        assert at.frame.view.stat == "median" and not at.frame.view.name
        await at.command("view ranks")
        assert " median " not in at.lines()[0]
        await at.press("s")
        wording(at.status, "view ranks")
        await at.command("stat max")
        assert "no statistic applies" in at.status and at.frame.view.stat == "median"
        await at.command("stat sum")
        assert at.status == "figures are sums" and at.frame.address == "sample.json?view=ranks"


async def test_the_cursor_follows_no_row_of_another_level() -> None:
    """The cursor on GPU 3 was on layer 3 once the scope was split by layer."""
    async with explorer(view=View("sample.json")) as at:
        await at.press("j", "j")
        assert at.label == "2"
        await at.command("pivot layer")
        assert "2" in at.frame.labels and at.explore.table.cursor == 0
        await at.press("escape", "3", "j", "j")
        await at.command("by class")
        assert at.frame.view.by == "class" and at.explore.table.cursor == 0
