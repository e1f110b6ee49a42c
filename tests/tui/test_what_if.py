"""The key that replays the steps without what the cursor's row shows."""

from __future__ import annotations

from tests.demo import demo_run
from tests.tui.explorer import explorer


async def test_the_row_or_the_finding_becomes_the_question() -> None:
    async with explorer(size=(120, 36), run=demo_run("fsdp1")) as app:
        await app.command("go demo_data/fsdp1?view=findings")
        remedies = app.frame.values["remedy"]
        row = app.explore.table.cursor
        await app.press("I")
        assert app.explore.view.name == "whatif"
        assert app.explore.view.of == remedies.cell(row)
        await app.press("backspace")
        await app.command("go demo_data/fsdp1")
        label = app.label
        await app.press("I")
        assert app.explore.view.of == f"gpu:{label} as peers"
        await app.command("what-if no contention")
        assert app.explore.view.of == "no contention"
        await app.command("what-if faster")
        assert "is not a question" in app.status
