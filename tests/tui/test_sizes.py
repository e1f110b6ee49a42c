"""Every screen at every size: it fills the terminal exactly, and the cursor stays on its row."""

from __future__ import annotations

import pytest
from rich.cells import cell_len
from textual._compositor import Compositor

from chopper_core.model.view import Baseline, View
from chopper_core.views import VIEWS
from tests.tui.explorer import Driven, explorer, measured_run

SIZES = [(40, 10), (60, 16), (119, 29), (160, 50), (400, 120)]
RESIZED = [(200, 60), (40, 10), (400, 12), (60, 120), (39, 9), (120, 40), (20, 5), (80, 24)]
SCREENS = ["", *VIEWS]


async def to(at: Driven, screen: str) -> None:
    """To a view of the scope; skips one that needs what the sample run lacks."""
    if screen:
        if screen == "compare":
            await at.command("baseline gpu=2")

        await at.command(f"view {screen}")
    if at.frame.view.name != screen:
        assert at.status
        pytest.skip(at.status)


def view_of(screen: str) -> View:
    baseline = Baseline("", ("2",)) if screen == "compare" else None
    return View("sample.json", ("1",), name=screen, baseline=baseline)


def check(at: Driven, size: tuple[int, int]) -> None:
    """The screen is filled, and shows the row of the cursor."""
    lines = at.lines()
    assert len(lines) == size[1]
    assert {cell_len(line) for line in lines} == {size[0]}
    table = at.explore.table
    if size >= (40, 10) and size[1] >= 10 and table.rows:
        top = int(table.scroll_offset.y)
        assert top <= table.cursor < top + table.page
        assert table.page >= 1


@pytest.mark.sweep
@pytest.mark.parametrize("screen", SCREENS)
async def test_a_screen_fits_every_size(screen: str) -> None:
    async with explorer((80, 24), measured_run(), view_of("")) as at:
        await to(at, screen)
        for size in SIZES:
            await at.pilot.resize_terminal(*size)
            await at.settle()
            check(at, size)
        for key in ("z", "z", "c", "c", "c"):
            await at.press(key)
            check(at, size)


@pytest.mark.sweep
@pytest.mark.parametrize("screen", ["", "kernels", "compare", "overheads", "heatmap"])
async def test_resizing_keeps_the_cursor_on_its_row(screen: str) -> None:
    async with explorer((80, 24), measured_run(), view_of(screen)) as at:
        await at.press("G", "k")
        label, view = at.label, at.frame.view
        for size in RESIZED:
            await at.pilot.resize_terminal(*size)
            await at.settle()
            assert at.label == label and at.frame.view == view
            check(at, size)
        assert f"▌ {label}"[:8] in at.text()


@pytest.mark.few(1)
@pytest.mark.parametrize(("size", "most"), [((80, 24), 1), ((200, 60), 1)])
async def test_another_scope_is_laid_out_once_where_a_part_comes_or_goes(
    size: tuple[int, int], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each layout paints: a table with another number of rows has other lines, at once."""
    layouts = []
    reflow = Compositor.reflow
    async with explorer(size) as at:
        monkeypatch.setattr(
            Compositor, "reflow", lambda self, *args: layouts.append(args) or reflow(self, *args)
        )
        for key in ("enter", "h"):
            layouts.clear()
            await at.press(key)
            assert len(layouts) <= most
        assert at.path == ()
        for key in ("2", "1"):
            layouts.clear()
            await at.press(key)
            assert len(layouts) == 1


async def test_the_prompt_opens_and_closes_without_painting_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = []
    paint = Compositor.render_full_update
    async with explorer() as at:
        monkeypatch.setattr(
            Compositor,
            "render_full_update",
            lambda self, **given: whole.append(given) or paint(self, **given),
        )
        for key in ("/", "escape", ":", "escape"):
            await at.press(key)
    assert not whole
