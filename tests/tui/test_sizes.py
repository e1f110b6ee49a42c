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


SMALL = [(40, 10), (40, 12), (49, 30), (56, 20), (60, 16), (80, 15)]


@pytest.mark.few(2)
@pytest.mark.parametrize("size", SMALL)
@pytest.mark.parametrize("gpus", [1, 8])
async def test_a_small_timeline_is_its_lanes(size: tuple[int, int], gpus: int) -> None:
    """The table gives way where both have no room: half of the screen was empty below it."""
    run = measured_run(gpus, 2, 2)
    async with explorer(size, run, View(run.name, name="timeline")) as at:
        lanes = at.explore.lanes
        assert at.explore.shows_picture and lanes is not None
        lines, name = at.lines(), lanes.lanes[0]
        assert sum(name in line and "▀" in line for line in lines) >= 1
        # Below the lanes only the line for the cursor is left to the table.
        assert not any(not line.strip() for line in lines[-4:-2])
        await at.press("end")
        assert lanes.lanes[-1] in at.text()


@pytest.mark.few(3)
@pytest.mark.parametrize("size", [(40, 10), (40, 12), (56, 20), (80, 15)])
@pytest.mark.parametrize("screen", ["", "overview", "timeline", "kernels", "losses", "ranks"])
async def test_a_small_screen_names_its_place_and_answers_first(
    size: tuple[int, int], screen: str
) -> None:
    run = measured_run(1, 3, 4)
    async with explorer(size, run, View(run.name, name=screen)) as at:
        lines, title = at.lines(), at.explore.tabs[screen or "explore"].title
        assert title in "\n".join(lines[:2])
        assert f"1/{len(at.frame)}" in "\n".join(lines[:2])
        if size[1] >= 12:
            first = at.frame.headline[0] if screen else "time"
            assert first[:20] in at.text()


async def test_all_lanes_of_a_node_come_before_a_second_band() -> None:
    run = measured_run(8, 2, 2)
    async with explorer((80, 24), run, View(run.name, name="timeline")) as at:
        lanes = at.explore.lanes
        assert lanes is not None
        drawn = [line for line in at.lines() if "▀" in line]
        assert all(any(name in line for line in drawn) for name in lanes.lanes)


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


@pytest.mark.few(3)
@pytest.mark.parametrize("size", [(50, 16), (56, 20), (60, 16), (80, 18)])
@pytest.mark.parametrize("screen", ["ranks", "overlap", "power"])
async def test_a_picture_has_three_lines_of_its_body_or_none(
    size: tuple[int, int], screen: str
) -> None:
    """Curves in one line were a rule between the headline and the table."""
    run = measured_run(4, 3, 4)
    async with explorer(size, run, View(run.name, name=screen)) as at:
        pane = at.explore.picture_pane
        assert not pane.display or pane.size.height >= 7
        assert at.explore.table.page >= 4
