"""The whole run by its log on the screen, at every size."""

from __future__ import annotations

from pathlib import Path

import pytest

from chopper_core.ingest.open import open_run
from chopper_core.model.view import View
from tests.ingest.test_training_runs import titan
from tests.sources.test_memory_snapshot import Allocator, written
from tests.tui.explorer import explorer
from tests.tui.test_sizes import check
from tests.wording import Wording

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


async def test_snapshots_and_experts_fit_the_screen(tmp_path: Path, wording: Wording) -> None:
    """A memory snapshot opens with what holds the peak; a log with lists of tokens has experts."""
    made = Allocator()
    made.run(60)
    made.entry("oom", 0, 4608 << 20, "no frame", device_free=1 << 30)
    run = open_run(str(written(tmp_path / "memory_rank0.json", made.snapshot())))
    async with explorer((80, 24), run, View("R", name="overview")) as at:
        check(at, (80, 24))
        wording.among(at.text(), "peak of GPU 0")
        await at.press("enter")
        assert at.frame.view.name == "memory"
        check(at, (80, 24))
        await at.command("by phase")
        check(at, (80, 24))
        assert {"forward", "optimizer"} <= {*at.frame.labels}
        await at.command("view findings")
        wording(at.label, "memory", "rank 0")
        await at.command("view kernels")
        check(at, (80, 24))
    text, _ = titan(lambda *_: 1.0, range(1, 31))
    (tmp_path / "train.log").write_text(text + "layer 1 tokens_per_expert: [10, 90, 20]\n")
    run = open_run(str(tmp_path / "train.log"))
    async with explorer((80, 24), run, View("R", name="experts", by="expert")) as at:
        check(at, (80, 24))
        assert at.label == "1" and "2.25 times the mean" in at.text()
