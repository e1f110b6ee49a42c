"""Finding names, hits and outliers, hiding small rows: keys in, cursor and views out."""

from __future__ import annotations

import re

import pytest

from chopper_core.model.address import parse
from chopper_core.model.view import View
from chopper_core.views.query import query
from chopper_tui.widgets.dialogs import Chooser
from tests.demo import demo_run
from tests.support import Row, run_of
from tests.tui.explorer import explorer, sample_run
from tests.wording import Wording


async def test_find_goes_to_the_hit_and_n_goes_on(wording: Wording) -> None:
    async with explorer() as at:
        await at.press("f")
        await at.type("attn")
        await at.press("enter")
        assert isinstance(at.app.screen, Chooser)
        # One line for all places of a name; the next list has these.
        assert "2 names" in at.text() and len(at.app.screen._options) == 2
        await at.press("enter")
        assert "places of 1 name" in at.text()
        await at.press("enter")
        assert len(at.path) == 4 and at.label is not None and "attn" in at.label
        first = at.label
        await at.press("n")
        assert at.label != first and at.label is not None and "attn" in at.label
        assert "2 of 2" in at.status or "1 of 2" in at.status
        await at.press("N")
        assert at.label == first
        await at.press("escape", "n")
        wording(at.status, "attn")


@pytest.mark.sweep
async def test_the_places_are_told_apart_and_whole_where_the_screen_has_the_cells() -> None:
    """Two kernels whose names differ in the middle only, deep in the tree."""
    ends = ["bt256x128x32" + "_wt32" * 8, "bt128x256x32" + "_wt32" * 8]
    names = [f"igemm_wrw_gtcx3_nhwc_bf16_{end}_mh_gkgs" for end in ends]
    run = run_of(
        [
            Row(100 * row, 50 + row, operation="conv2d", kernel=name)
            for row, name in enumerate(names)
        ]
    )
    for size in ((80, 24), (120, 40), (200, 60)):
        async with explorer(size, run=run, view=View(run.name)) as at:
            await at.command("find igemm")
            assert isinstance(at.app.screen, Chooser)
            lines = [line for line in at.text().splitlines() if re.search(r"\d ns +igemm", line)]
            assert len(lines) == 2 and len({line.split("ns")[1].split()[0] for line in lines}) == 2
            parts = [[part.rstrip() for part in line.split("│")] for line in lines]
            assert all(any(part.endswith("conv2d") for part in each) for each in parts)
            if size[0] == 200:
                assert all(name in at.text() for name in names)


async def test_find_says_what_it_does_not_find(wording: Wording) -> None:
    async with explorer() as at:
        await at.command("find no_such_kernel")
        wording(at.status, "'no_such_kernel'")
        await at.press("n")
        assert "no search yet" in at.status


@pytest.mark.sweep
async def test_n_takes_the_filter_that_was_typed() -> None:
    async with explorer(view=View("sample.json", ("0", "10", "forward", "1"))) as at:
        await at.type("/mlp")
        await at.press("enter")
        await at.command("filter .")
        await at.press("g", "n")
        assert at.label == "mlp_up"


async def test_the_next_outlier() -> None:
    times = [100, 101, 99, 102, 98, 100, 400, 101, 20]
    run = run_of([Row(1000 * gpu, time, gpu=gpu) for gpu, time in enumerate(times)])
    async with explorer((120, 40), run=run, view=View(run.name)) as at:
        await at.press("e")
        assert at.label == "6"
        assert "outlier 1 of 2" in at.status and "median 100 ns" in at.status
        assert "3.5×1.4826×MAD" in at.status
        await at.press("e")
        assert at.label == "8"
        await at.press("e")
        assert at.label == "6"
        await at.press("E")
        assert at.label == "8"


@pytest.mark.sweep
async def test_hidden_rows_are_in_the_address() -> None:
    async with explorer(view=View("sample.json", ("0", "10", "forward", "1"))) as at:
        await at.command("hide 15%")
        shown = list(at.frame.labels)
        assert at.frame.hidden and f"{at.frame.hidden} hidden (" in at.status
        again = query(sample_run(), parse(at.frame.address))
        assert list(again.labels) == shown and again.hidden_ns == at.frame.hidden_ns
        await at.press("j")
        assert f"{at.frame.hidden} hidden (" in at.text()
        await at.press("%")
        assert at.frame.hidden == 0 and at.frame.view.filter == ""
        await at.press("%")
        assert at.frame.view.filter == "share_pct>=1%"
        await at.command("hide much")  # No share: words to search for.
        assert at.frame.view.filter == "share_pct>=1%"


async def test_a_filter_knows_the_heading_on_the_screen() -> None:
    run = demo_run()
    async with explorer((120, 36), run, View(run.name, name="kernels")) as at:
        # Its heading takes two lines.
        assert " roof " in at.text() and "% roof" not in at.text()
        await at.command("filter gemm % roof<57")
        shown = [at.frame.row(row)["model_roof_pct"] for row in range(len(at.frame))]
        assert shown and all(share is not None and share < 57 for share in shown)
