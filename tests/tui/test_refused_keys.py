"""Keys that have nothing to do: each says why, as docs/internals/errors.md lists it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from chopper_core.model.view import View
from chopper_tui.screen import Explorer
from tests.tui.explorer import explorer, sample_run
from tests.tui.test_runs_screen import set_of_runs


async def test_a_table_without_notes() -> None:
    """Below the notes are the sources: a run always has some."""
    run = replace(sample_run(), generated=None)
    async with explorer(run=run) as at:
        await at.press("!")
        assert "Sources" in at.text() and "Notes" not in at.text()
    async with explorer(run=set_of_runs(), view=View(set_of_runs().name)) as at:
        await at.press("!")
        assert at.frame.notes or "there are no notes on this table" in at.status


async def test_evidence_in_a_run_that_is_not_open(monkeypatch: pytest.MonkeyPatch) -> None:
    async with explorer(view=View("sample.json", name="findings")) as at:
        monkeypatch.setattr(Explorer, "target", View("elsewhere"))
        await at.press("enter")
        assert "the row belongs to another run: elsewhere" in at.status
