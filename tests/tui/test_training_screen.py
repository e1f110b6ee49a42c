"""The whole run by its log on the screen, at every size."""

from __future__ import annotations

from pathlib import Path

import pytest

from chopper_core.ingest.open import open_run
from chopper_core.model.view import View
from tests.ingest.test_training_runs import titan
from tests.tui.explorer import explorer
from tests.tui.test_sizes import check

SIZES = [(80, 24), (120, 40), (200, 60)]


@pytest.mark.few(1)
@pytest.mark.parametrize("size", SIZES)
async def test_a_log_fits_the_screen(size: tuple[int, int], tmp_path: Path) -> None:
    text, _ = titan(lambda step, rank: 1.2 if rank == 1 else 1.0, range(1, 301), ranks=4)
    (tmp_path / "train.log").write_text(text)
    run = open_run(str(tmp_path))
    async with explorer(size, run, View("R", name="overview")) as at:
        check(at, size)
        assert "300 steps" in at.text()
        await at.press("enter")
        assert at.frame.view.name == "training"
        check(at, size)
        await at.command("by rank")
        check(at, size)
        assert at.label == "1"
