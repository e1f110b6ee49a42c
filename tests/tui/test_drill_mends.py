"""Keys that act on the row that one sees, and words that say what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.analyses.gaps import gap_to_stop_at
from chopper_core.model.address import parse
from chopper_core.model.charts import BarChart, Lanes
from chopper_core.model.view import Baseline, View
from chopper_core.render.cells import cell_width
from chopper_core.render.glyphs import UNICODE
from chopper_core.views.frame import Frame
from chopper_core.views.query import query
from chopper_tui.widgets.footer import pointed_text
from tests.demo import demo_run
from tests.support import Row, run_of
from tests.tui.explorer import explorer, measured_run, sample_run
from tests.tui.test_footer import keys_shown
from tests.tui.test_runs_screen import set_of_runs
from tests.wording import Wording


async def test_the_footer_says_that_the_colon_asks_and_the_digit_goes_on() -> None:
    async with explorer((80, 24), measured_run(), View("sample.json")) as at:
        await at.press("3")
        line = at.lines()[-1]
        assert ": ask" in line and "3 next tab" in line
        await at.press("3")
        after = at.frame.view.name
        assert after != "kernels" and not at.explore.status.is_error
        # Where no panel takes the keys, tab is the next tab, too, instead of a refusal.
        await at.press("0", "3", "tab")
        assert at.frame.view.name == after and not at.explore.status.is_error
        await at.press("shift+tab")
        assert at.frame.view.name == "kernels"


async def test_an_export_is_of_the_step_under_the_cursor(wording: Wording) -> None:
    run = sample_run()
    async with explorer((120, 30), view=View(run.name, ("1",))) as at:
        at.explore.table.move_to_label("11")
        await at.command("export perfetto")
        wording(at.status, "step 11")
        await at.press("escape")
        await at.command("export perfetto row.json")
        wording(at.status, "step 11", "perfetto", "row.json")
        await at.press("ctrl+p")
        await at.type("export as perfetto")
        assert "Write step 11" in at.text()
        await at.press("escape")
    events = json.loads(Path("row.json").read_bytes())["traceEvents"]
    own = (run.table.iteration == 11) & (run.table.kind != 2)
    assert sum(each.get("cat") == "kernel" for each in events) == int(own.sum())


async def test_the_baseline_leaves_the_rows_where_they_are() -> None:
    async with explorer((120, 30), measured_run(), View("sample.json")) as at:
        before = list(at.frame.labels)
        await at.press("j", "b")
        assert list(at.frame.labels) == before and at.label == before[1]
        await at.press("j", "enter")
        assert at.path == (before[2],)
        assert at.frame.sort == "-elapsed_ns_delta", "what differs most comes first within a row"
        await at.press("escape", "b", "b")
        assert list(at.frame.labels) == before


async def test_a_baseline_is_named_in_words(wording: Wording) -> None:
    async with explorer((120, 30), measured_run(), View("sample.json", ("1",))) as at:
        await at.command("baseline 11")
        assert at.frame.view.baseline == Baseline("", ("1", "11")) and at.path == ("1",)
        await at.command("baseline gpu 2")
        assert at.path == ("1",) and at.frame.view.baseline == Baseline("", ("2",))
        await at.command("baseline nowhere")
        wording(at.status, "baseline nowhere")
    async with explorer((120, 30), measured_run(), View("sample.json", name="overview")) as at:
        await at.command("baseline step 11")
        assert at.frame.level == "iteration" and at.label is not None
        assert at.frame.view.baseline == Baseline("", ("11",))


async def test_a_table_of_runs_names_the_keys_that_compare(wording: Wording) -> None:
    async with explorer((80, 24), set_of_runs()) as at:
        assert {"mark", "compare"} <= {*keys_shown(at)}
        await at.press("I")
        wording(at.status, "space marks two", "= compares")


def _timeline() -> tuple[Frame, Lanes]:
    run = sample_run()
    frame = query(run, View(run.name, name="timeline"))
    return frame, next(chart for chart in frame.charts if isinstance(chart, Lanes))


@pytest.mark.parametrize("width", range(60, 120, 7))
def test_figures_of_the_line_below_the_lanes_are_whole(width: int) -> None:
    frame, lanes = _timeline()
    host = "reading_a_value_back_in_a_long_name 806.512 µs, launch calls 727.712 µs"
    gap = replace(lanes.pointed[0], kernel=None, gap_ns=1_547_000, host=host, queue=0)
    kernel = replace(
        lanes.pointed[0], kernel="a_kernel_with_a_name" * 9, operation="attn_fa" * 8, layer=3,
        duration_ns=5_250_127, start_ns=515_123_456, mhz=1680.0, queue=1809, gap_ns=None,
    )  # fmt: skip
    for pointed in (gap, kernel):
        shown = replace(lanes, pointed=(pointed, *lanes.pointed[1:]))
        text = pointed_text(frame, shown, 0, width, UNICODE)
        assert cell_width(text) <= width - 2
        whole = {"1.547", "806.512", "727.712", "5.250", "515.123", "1680", "1809", "0"}
        figures = re.findall(r"(?<![\w.…])\d[\d.]*", text)
        assert {*figures} <= whole, text
        assert (
            ("1.547" in figures) if pointed is gap else {"5.250", "515.123", "1680"} <= {*figures}
        )


@pytest.mark.parametrize("width", range(10, 60, 10))
def test_a_line_without_room_for_the_host_tells_the_gap_alone(width: int) -> None:
    frame, lanes = _timeline()
    host = "reading_a_value_back 806.512 µs, launch calls 727.712 µs"
    gap = replace(lanes.pointed[0], kernel=None, gap_ns=1_547_000, host=host, queue=0)
    shown = replace(lanes, pointed=(gap, *lanes.pointed[1:]))
    text = pointed_text(frame, shown, 0, width, UNICODE)
    assert text == f"{frame.labels[0]}: idle 1.547 ms, 0 in queue"


async def test_the_lane_that_is_drawn_first_is_reached_by_up() -> None:
    run = demo_run()
    async with explorer((80, 20), run, View(run.name, name="timeline")) as at:
        at.explore.table.move_to(0)
        await at.settle()
        lanes = at.explore.lanes
        assert lanes is not None and lanes.late and at.explore.table.cursor == 0
        assert at.explore.picture_pane.is_above(lanes.late)
        await at.press("up")
        assert at.label == lanes.late
    async with explorer((120, 60), measured_run(4), View("sample.json", name="timeline")) as at:
        await at.press("up")
        assert at.explore.table.cursor == 0, "each lane stands at its own place"


def test_gaps_between_launches_are_passed_and_the_longest_never() -> None:
    """99 gaps of 2 µs, one of 100 µs after the fifth, one of 30 µs after the tenth kernel."""
    gaps_us = [2] * 99
    gaps_us[5], gaps_us[10] = 100, 30
    starts = np.concatenate(([0], np.cumsum(np.array(gaps_us) + 10)))
    run = run_of([Row(int(start) * 1_000, 10_000) for start in starts])
    found, at = [], run.origin_ns
    while (gap := gap_to_stop_at(run, 0, at, 1, 10**12)) is not None and len(found) < 5:
        found.append(gap.length_ns // 1_000)
        at = gap.middle_ns
    assert found[:2] == [100, 30] and found[2] == 2, "then the longest that is left"
    assert gap_to_stop_at(run, 0, run.origin_ns, -1, 10**12) is None
    near = gap_to_stop_at(run, 0, run.origin_ns, 1, 100_000)
    assert near is not None and near.length_ns == 2_000, "close by, short ones too"


def test_a_layer_and_what_has_none_are_named_in_a_sentence() -> None:
    frame = query(demo_run(), parse("demo:gpu=5?view=compare&by=layer&base=gpu=3"))
    said = " ".join(frame.headline)
    assert "none " not in said and re.search(r"(layer \d+|unlabelled) [+-]", said)
    (chart, *_) = frame.charts
    assert isinstance(chart, BarChart) and "none" not in chart.labels


@pytest.mark.parametrize("is_moved", [False, True])
async def test_findings_that_arrive_take_no_keys_from_a_row_that_was_chosen(is_moved: bool) -> None:
    run = demo_run()
    async with explorer((120, 36), run, View(run.name, name="overview")) as at:
        explore = at.explore
        assert explore.cards.takes_keys and explore.listing is explore.cards
        explore.cards.display = False  # As before they are there.
        explore._arranged = {}
        explore.mark_panels()
        assert explore.listing is explore.table
        explore.table.move_to(2 if is_moved else 0)
        explore._fill_in()
        await at.settle()
        assert explore.cards.takes_keys
        assert explore.listing is (explore.table if is_moved else explore.cards)
        marked = [each for each in explore.panels if each.has_keys]
        assert marked == [explore.listing]


def test_processors_without_ranks_say_so(wording: Wording) -> None:
    notes = query(measured_run(), View("sample.json", name="cpu")).notes
    wording.among(notes, "rank or thread")


async def test_after_the_last_gap_the_key_names_the_longest(wording: Wording) -> None:
    run = run_of([Row(0, 1_000_000), Row(9_000_000, 1_000_000)], name="R")
    async with explorer((80, 24), run, View("R")) as at:
        await at.press("2", "J", "J")
        wording(at.status, "GPU 0", "gap, 8")


async def test_what_is_not_there_is_refused_wherever_it_is_typed() -> None:
    async with explorer((120, 36), demo_run(), View(demo_run().name, name="losses")) as at:
        for command, why in (
            ("baseline nowhere", "the baseline nowhere is not open"),
            ("go view=krenels", "did you mean kernels?"),
            ("go ?view=krenels", "did you mean kernels?"),
            ("why 99", "no gpu 99 here; available: 0, 1"),
        ):
            before = at.frame.view
            await at.command(command)
            assert at.explore.status.is_error and why in at.explore.status.message
            assert at.frame.view == before


async def test_the_options_of_a_view_go_without_a_question_mark() -> None:
    async with explorer((120, 36), demo_run(), View(demo_run().name)) as at:
        await at.command("go view=Kernels&by=class")
        assert (at.frame.view.name, at.frame.view.by) == ("kernels", "class")
        await at.command("go gpu=5")
        assert at.path == ("5",) and not at.frame.view.name
