"""`U` switches every place of the trail between figures per step and GPU and totals."""

from __future__ import annotations

import pytest

from tests.support import sample_run
from tests.tui.explorer import explorer
from tests.wording import Wording


@pytest.mark.parametrize("size", [(80, 24), (120, 36)])
async def test_the_key_switches_to_totals_and_back(size: tuple[int, int], wording: Wording) -> None:
    run = sample_run()
    async with explorer(size, run=run) as at:
        steps = len(set(run.table.iteration.tolist()))
        each = at.frame.total["elapsed_ns"]
        assert at.frame.base in at.text()
        wording(at.frame.base, "per step and GPU")
        await at.press("U")
        gpus = len(run.gpus)
        assert at.frame.address.endswith("?base=total")
        assert at.frame.total["elapsed_ns"] == pytest.approx(each * gpus * steps)
        where = at.text() if size[0] < 120 else at.text().splitlines()[1]
        assert f"total of {gpus} GPUs × {steps} steps" in where
        await at.press("enter")
        assert at.frame.base == f"total of {steps} steps"
        await at.press("escape", "U")
        assert at.frame.total["elapsed_ns"] == each
        assert "total of" not in at.text().splitlines()[1]
