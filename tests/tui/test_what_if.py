"""The key that replays the steps without what the cursor's row shows."""

from __future__ import annotations

from tests.tui.explorer import explorer


async def test_the_row_becomes_the_question() -> None:
    async with explorer() as app:
        label = app.label
        await app.press("I")
        assert app.explore.view.name == "whatif"
        assert app.explore.view.of == f"gpu:{label} as peers"
        await app.command("what-if gpu:1 x0.5")
        assert app.explore.view.of == "gpu:1 x0.5"
        await app.command("what-if faster")
        assert "is not a question" in app.status
