"""Keys that act on the row that one sees, and words that say what is refused."""

from __future__ import annotations

import json
from pathlib import Path

from chopper_core.model.view import Baseline, View
from tests.tui.explorer import explorer, measured_run, sample_run
from tests.tui.test_footer import keys_shown


async def test_the_footer_says_that_the_colon_asks_and_the_digit_goes_on() -> None:
    async with explorer((80, 24), measured_run(), View("sample.json")) as at:
        await at.press("3")
        line = at.lines()[-1]
        assert ": ask" in line and "3 ⇧tab tabs" in line
        await at.press("tab")
        assert at.status.endswith("; press 3 again for the next tab")
        await at.press("3")
        assert at.frame.view.name != "kernels" and not at.explore.status.is_error
        assert "previous_tab" in keys_shown(at)


async def test_an_export_is_of_the_step_under_the_cursor() -> None:
    run = sample_run()
    async with explorer((120, 30), view=View(run.name, ("1",))) as at:
        at.explore.table.move_to_label("11")
        await at.command("export perfetto")
        assert "the file to write step 11 to" in at.status
        await at.press("escape")
        await at.command("export perfetto row.json")
        assert at.status.startswith("wrote step 11 as perfetto: row.json")
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


async def test_a_baseline_is_named_in_words() -> None:
    async with explorer((120, 30), measured_run(), View("sample.json", ("1",))) as at:
        await at.command("baseline 11")
        assert at.frame.view.baseline == Baseline("", ("1", "11")) and at.path == ("1",)
        await at.command("baseline gpu 2")
        assert at.path == ("1",) and at.frame.view.baseline == Baseline("", ("2",))
        await at.command("baseline nowhere")
        assert "the baseline nowhere is not open" in at.status
    async with explorer((120, 30), measured_run(), View("sample.json", name="overview")) as at:
        await at.command("baseline step 11")
        assert at.frame.level == "iteration" and at.label is not None
        assert at.frame.view.baseline == Baseline("", ("11",))
