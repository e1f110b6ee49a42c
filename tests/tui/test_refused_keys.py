"""Keys that have nothing to do: each says why, as docs/internals/errors.md lists it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from chopper_core.extensions.runs.run_rows import Reading
from chopper_core.model.view import View
from chopper_tui.screen import Explorer
from tests.tui.explorer import explorer, sample_run
from tests.tui.test_runs_screen import set_of_runs
from tests.wording import Wording


async def test_a_table_without_notes(wording: Wording) -> None:
    """Below the notes are the sources: a run always has some."""
    run = replace(sample_run(), generated=None)
    async with explorer(run=run) as at:
        await at.press("!")
        assert "Sources" in at.text() and "Notes" not in at.text()
    rows = [row for row in set_of_runs().reading(True).rows if row.status == "ok"]
    runs = replace(set_of_runs(), reading=lambda wait: Reading(tuple(rows)))
    async with explorer(run=runs, view=View("all", name="runs", columns=("tp",))) as at:
        await at.press("!")
        assert not at.frame.notes
        wording(at.status, "no notes")


async def test_evidence_in_a_run_that_is_not_open(
    monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    async with explorer(view=View("sample.json", name="findings")) as at:
        monkeypatch.setattr(Explorer, "target", View("elsewhere"))
        await at.press("enter")
        wording(at.status, "another run: elsewhere")
