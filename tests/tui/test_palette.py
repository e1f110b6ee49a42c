"""The palette finds places, figures and names of the run, and understands what a person types."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import numpy as np
import pytest
from msgspec.structs import replace
from textual.widgets import Label, OptionList

from chopper_core.columns import METRICS
from chopper_core.model.view import Baseline, View
from chopper_core.views import VIEWS, columns_of_view
from chopper_tui.widgets.dialogs import Chooser
from tests.tui.explorer import Driven, explorer, measured_run
from tests.wording import Wording


def found(at: Driven) -> list[str]:
    assert isinstance(at.app.screen, Chooser)
    chooser = at.app.screen
    ids = [option.id for option in chooser.query_one(OptionList).options if option.id is not None]
    return [chooser._shown[int(each)][1] for each in ids]


async def search(at: Driven, text: str) -> list[str]:
    await at.press("ctrl+p")
    at.paste(text)
    await at.settle()
    return found(at)


FIRST: Final = (
    ("1900", "What if the clock were 1,900 MHz"),
    ("1,900 MHz", "What if the clock were 1,900 MHz"),
    ("1.9 ghz", "What if the clock were 1,900 MHz"),
    ("1.5 ms", "Timeline at 1.5 ms"),
    ("gpu 3 at 1.5 ms", "Timeline of GPU 3 at 1.5 ms"),
    ("step 11", "Go to step 11"),
    ("Iteration=11", "Go to step 11"),
    ("gpu 2 layer 3", "Go to GPU 2, L3"),
    ("gpu2/L3/backward", "Go to GPU 2, L3, backward"),
    ("backward", "Go to backward"),
    ("gpu 3 vs 1", "GPU 3 vs GPU 1"),
    ("rank 3 and gpu 1", "GPU 3 vs GPU 1"),
    ("mfu", "Figure: MFU"),
    ("tokens/s", "Figure: tokens/s"),
    ("critical path", "2  Timeline · critical path"),
    ("gemm", "Kernels of class gemm"),
    ("slowest layer gpu 2", "Layers of GPU 2, slowest first"),
    (
        "which layer of the backward pass is slowest on gpu 2?",
        "Layers of backward, GPU 2, slowest first",
    ),
    ("gpu 2 backward layer", "Layers of GPU 2, backward, slowest first"),
    ("fastest step", "Steps, fastest first"),
    ("step 11 as the baseline", "step 11 as the baseline"),
    ("iteration 11 baseline", "step 11 as the baseline"),
    ("12 vs 11", "step 12 vs step 11"),
    ("compare gpu 3 with 1", "GPU 3 vs GPU 1"),
    ("p95 gemm", "p95 of gemm"),
    ("worst gemm shape", "gemm shapes, slowest first"),
    ("gpu 2 launch", "Losses · launch of GPU 2"),
    ("gpu 2 host", "Longest gap of GPU 2"),
    ("host gap", "Longest gap of the run"),
    ("frequency drop", "When the clock of GPU 3 is low"),
    ("energy per token", "Power: energy of a token and of a step"),
    ("tokens per second", "Throughput: tokens/s in all and per GPU"),
)
"""What is typed, and the first entry then."""


async def test_the_palette_understands_what_is_typed() -> None:
    # One of which nothing is known yet: findings come before figures once they are.
    async with explorer((100, 30), replace(measured_run())) as at:
        found = {}
        for typed, _ in FIRST:
            found[typed] = (await search(at, typed))[0]
            await at.press("escape")
        wrong = {typed: found[typed] for typed, first in FIRST if found[typed] != first}
        assert wrong == {}, wrong


async def test_what_a_run_lacks_is_no_place_and_no_clock() -> None:
    async with explorer((100, 30), measured_run()) as at:
        for typed in ("step 99", "gpu 77 layer 3", "12 34", "1900 volts", "gpu", "vs"):
            for title in await search(at, typed):
                assert not title.startswith(("Go to", "What if the", "Time at")), typed
            await at.press("escape")


async def test_a_heading_of_another_place_leads_there() -> None:
    async with explorer((100, 30), measured_run()) as at:
        own = [name for name in VIEWS if columns_of_view(name)]
        for name in own[:3]:
            tab, column = at.explore.tabs[name], columns_of_view(name)[0]
            assert f"{tab.name}: {column.title}" in await search(at, column.title)
            await at.press("escape", "escape")
        # A column of every table is added to this one.
        assert "Column: caused wait" in await search(at, "caused wait")


async def test_a_place_without_an_answer_comes_last_and_says_why() -> None:
    """The run has no trainer's log, no events of memory, and nobody follows it."""
    async with explorer((100, 30), measured_run()) as at:
        for typed, title, why in (
            ("peak memory", "Compare · training: peak memory", "no log of a trainer"),
            ("memory", "5  GPUs · memory", "no events of GPU memory"),
            ("J/out token", "Column: J/out token", "telemetry"),
        ):
            titles = await search(at, typed)
            assert title in titles, titles
            whys = {each: why for _, each, why in at.app.screen._shown}
            lacking = [whys[each].startswith("not in this run: ") for each in titles]
            assert lacking == sorted(lacking) and lacking[titles.index(title)]
            assert why in whys[title]
            await at.press("escape", "escape")


async def test_words_that_no_entry_has_are_named_in_those_that_have_most(wording: Wording) -> None:
    async with explorer((100, 30), measured_run()) as at:
        titles = await search(at, "critical path spaghetti")
        assert titles[0] == "2  Timeline · critical path"
        wording(at.app.screen._shown[0][2], "“spaghetti”")
        await at.press("escape", "escape")
        # As an unknown command these words are searched for, too.
        await at.command("critical path spaghetti")
        assert found(at)[0] == titles[0]


async def test_a_phase_shows_its_slowest_layer_first() -> None:
    """Whoever names a phase of a GPU and no step means the mean over steps."""
    run = measured_run()
    async with explorer((80, 24), run) as at:
        await search(at, "gpu 2 backward")
        await at.press("enter")
        table = run.table
        whole = ~np.isin(table.iteration, [-1, *run.cut_iterations])
        own = whole & (table.gpu == 2) & (table.phase == table.code_of("phase", "backward"))
        charged: dict[str, int] = defaultdict(int)
        for row in np.flatnonzero(own):
            parts = ("compute_ns", "overlap_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns")
            ns = sum(int(table.column(part)[row]) for part in parts)
            charged[table.text_of("layer", int(table.layer[row]))] += ns
        assert at.frame.level == "layer"
        assert at.label == at.frame.labels[0] == max(charged, key=lambda layer: charged[layer])


@pytest.mark.few(2)
@pytest.mark.parametrize("typed", ["p95", "median", "caused wait", "spread"])
async def test_a_column_that_was_chosen_is_on_the_screen(typed: str) -> None:
    """Also next to the lanes of the summary, and where others were scrolled to."""
    async with explorer((80, 24), measured_run(), View("measured", name="overview")) as at:
        for key in ((), "1", "3"):
            await at.press(*key)
            titles = await search(at, typed)
            wanted = {f"Column: {typed}", f"Sort by: {typed}"}
            place = next(place for place, each in enumerate(titles) if each in wanted)
            await at.press(*["down"] * place, "enter")
            assert typed in [
                each.text.metric.title for each in at.explore.table.layout_plan.columns
            ]


async def test_rankings_and_statistics_lead_where_they_say() -> None:
    async with explorer((100, 30), measured_run()) as at:
        for typed, name, by, sort in (
            ("p95 gemm", "kernels", "name", "-p95_ns"),
            ("worst gemm shape", "roofline", "", ""),
            ("slowest gemm", "kernels", "name", "-kernel_ns"),
        ):
            await search(at, typed)
            await at.press("enter")
            view = at.frame.view
            assert (view.name, view.by, view.sort) == (name, by, sort) and "gemm" in view.filter
        await search(at, "12 vs 11")
        await at.press("enter")
        assert dict(at.frame.view.scope) == {"iteration": "12"}
        assert at.frame.view.baseline == Baseline("", ("11",))
        await at.press("0")
        await search(at, "gemm under 90 % busy")
        # The column by its heading, as a person reads it, not by its name in addresses.
        heading = METRICS["busy_pct"].title
        assert heading != "busy_pct" and found(at)[0].startswith(f"gemm with {heading} <90")


async def test_nothing_that_matches_has_no_explanation() -> None:
    async with explorer((100, 30), measured_run()) as at:
        await at.press("ctrl+p")
        about = at.app.screen.query_one("#about", Label)
        assert str(about.render()).strip()
        await at.type("zzzz")
        assert "nothing matches" in at.text() and not str(about.render()).strip()


async def test_entries_lead_where_they_say() -> None:
    run = measured_run()
    async with explorer((100, 30), run) as at:
        await search(at, "step 11")
        await at.press("down", "enter")
        # The steps next to step 11, compared with it.
        assert at.frame.level == "iteration" and at.frame.view.baseline == Baseline("", ("11",))
        await search(at, "gpu 3 layer 2")
        await at.press("enter")
        assert dict(at.frame.view.scope) == {"gpu": "3", "layer": "2"}
        # From within a place it is the same place elsewhere.
        await search(at, "gpu 1")
        await at.press("enter")
        assert dict(at.frame.view.scope) == {"gpu": "1", "layer": "2"}
        await search(at, "gpu 3 vs 1")
        await at.press("enter")
        view = at.frame.view
        assert (view.name, view.path) == ("compare", ("3", "2"))
        assert view.baseline == Baseline("", ("1", "2"))
        await at.press("0")
        await search(at, "1.5 ms")
        await at.press("enter")
        assert at.explore.lanes is not None and at.explore.lanes.seen.at_ns == 1_500_000
        await at.press("0")
        await search(at, "gpu 3 at 2 ms")
        await at.press("enter")
        assert dict(at.frame.view.scope)["gpu"] == "3" and at.explore.lanes is not None
        assert at.explore.lanes.seen.at_ns == 2_000_000
        await search(at, "1650 mhz")
        await at.press("enter")
        assert (at.frame.view.name, at.frame.view.of) == ("whatif", "clock=1650")
        name = run.table.operations[0]
        await search(at, name)
        assert f"Find {name}" in found(at)


async def test_other_words_at_the_colon_are_searched_for() -> None:
    async with explorer((100, 30), measured_run()) as at:
        await at.command("step 12")
        assert found(at)[0] == "Go to step 12"
        await at.press("escape", "escape")
        await at.command("caused wait")
        assert "Column: caused wait" in found(at)
        await at.press("escape", "escape")
        await at.command("qwertz")
        assert at.app.screen is at.explore and "unknown command 'qwertz'" in at.status


async def test_a_tab_is_opened_by_its_title_at_the_colon(wording: Wording) -> None:
    async with explorer((80, 24), measured_run()) as at:
        for typed, name in (("communication", "comms"), ("critical path", "graph")):
            await at.command(typed)
            assert at.frame.view.name == name
        # One that has nothing to show in this run says why.
        await at.command("lost")
        assert at.frame.view.name == "graph"
        wording(at.status, "no roof")


async def test_a_filter_that_no_row_matches_searches_the_run(wording: Wording) -> None:
    async with explorer((100, 30), measured_run()) as at:
        # The rows are GPUs.
        await at.press("/", *"attn")
        wording(at.status, "2 names", "attn")
        await at.press("enter")
        assert len(at.app.screen.query_one(OptionList).options) == 2
        await at.press("escape")
        assert at.frame.view.filter == "" and len(at.frame) == 4
        await at.press("/", *"zzz", "enter")
        # It stays open for another text; Esc shows all rows again.
        assert at.explore.prompt.display
        wording(at.status, "zzz")
        await at.press("escape")
        assert at.frame.view.filter == "" and len(at.frame) == 4


async def test_splits_are_offered_by_their_names_on_the_screen() -> None:
    async with explorer((100, 40), measured_run()) as at:
        await at.command("view launch")
        await at.press("p")
        titles = found(at)
        assert {"step", "GPU"} <= {*titles} and "iteration" not in titles
