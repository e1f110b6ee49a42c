"""Memory and the causes of idle time on the screen, at every size, and from row to evidence."""

from __future__ import annotations

import pytest

from chopper_core.model.view import View
from tests.allocating import allocating_run
from tests.tui.explorer import explorer
from tests.tui.test_sizes import check
from tests.wording import Wording

SIZES = [(80, 24), (120, 40), (200, 60)]


@pytest.mark.few(1)
@pytest.mark.parametrize("size", SIZES)
async def test_memory_fits_the_screen(size: tuple[int, int], wording: Wording) -> None:
    async with explorer(size, allocating_run(), View("R", name="memory")) as at:
        check(at, size)
        text = at.text()
        wording.among(text, "23.07 MB", "peak of GPU 1")
        wording.among(text, "before the trace")
        assert at.label == "mlp_up"
        await at.press("enter")
        assert at.frame.view.name == "" and at.path == ("mlp_up",)
        await at.press("escape")
        await at.command("by operator")
        check(at, size)
        await at.press("enter")
        assert at.frame.view.name == "timeline" and at.path == ("1",)
        assert "alloc" in at.text()
        check(at, size)


@pytest.mark.few(1)
@pytest.mark.parametrize("size", SIZES)
async def test_causes_of_idle_time_lead_to_their_moment(size: tuple[int, int]) -> None:
    async with explorer(
        size, allocating_run(), View("R", name="launch", by="host", is_total=True)
    ) as at:
        check(at, size)
        assert at.label == "data loading (enumerate(DataLoader)#X.__next__)"
        assert "474 µs" in at.text() or "474.000" in at.text()
        await at.press("enter")
        assert at.frame.view.name == "timeline" and at.path == ("0",)
        check(at, size)


async def test_memory_is_a_signal_of_the_tree() -> None:
    async with explorer((120, 40), allocating_run(), View("R", signal="allocated_bytes")) as at:
        assert "allocated" in at.text()
        await at.command("view memory")
        assert at.frame.view.name == "memory"
