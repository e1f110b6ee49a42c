"""The screen of a set of runs: into a run and back, marks, baselines, views of several runs."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event, Timer

import pytest
from msgspec.structs import replace

from chopper_core.extensions.runs.figures import figures_of_run, with_settings
from chopper_core.extensions.runs.run_rows import FAILED, Reading, RunRow
from chopper_core.extensions.runs.run_set import RunSet, SetReader
from chopper_core.model.inputs import FoundRun
from chopper_core.model.table import empty_table
from chopper_core.model.view import Baseline
from chopper_core.views import RUNS, SET_VIEWS, VIEWS
from chopper_tui.actions import ACTIONS
from tests.tui.explorer import explorer, measured_run, sample_run
from tests.wording import Wording

SIZES = ((80, 24), (120, 40), (200, 60))


def set_of_runs() -> RunSet:
    others = {
        "all/tp2": replace(sample_run(2), name="all/tp2"),
        "all/tp4": replace(measured_run(4), name="all/tp4"),
        "all/tp8": replace(sample_run(2, 2), name="all/tp8"),
    }
    rows = []
    for path, run in others.items():
        settings = {"tp": int(path[-1])}
        found = with_settings(figures_of_run(run), settings)
        rows.append(replace(found, name=path[4:], path=path, status="ok", reason=""))
    rows.append(RunRow("tp16", "all/tp16", {"tp": 16}, FAILED, "It ran out of memory."))
    reading = Reading(tuple(rows))
    return RunSet(
        "all", empty_table(), (), (), others=others, generated="a test",
        reading=lambda wait: reading,
    )  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("size", SIZES)
async def test_a_set_opens_with_its_runs(size: tuple[int, int]) -> None:
    async with explorer(size, set_of_runs()) as at:
        assert at.frame.view.name == RUNS
        assert list(at.frame.labels) == ["tp2", "tp4", "tp8", "tp16"]
        text = at.text()
        assert "4 runs: 3 ok, 1 failed" in text and "step" in text and "tp16" in text


@pytest.mark.sweep
async def test_enter_opens_a_run_and_esc_comes_back() -> None:
    async with explorer((120, 40), set_of_runs()) as at:
        await at.press("j", "enter")
        assert at.frame.view.run == "all/tp4" and at.frame.view.name == "overview"
        assert at.explore.run.name == "all/tp4"
        await at.press("escape")
        assert at.frame.view.run == "all" and at.label == "tp4"
        # From deep in its tree, level by level.
        await at.press("enter", "1", "enter", "enter")
        assert at.frame.view.run == "all/tp4" and at.path
        for _ in range(6):
            if at.frame.view.run == "all":
                break
            await at.press("escape")
        assert at.frame.view.run == "all" and at.label == "tp4"
        # The history leads through runs, too.
        await at.press("H")
        assert at.frame.view.run == "all/tp4"
        await at.press("L")
        assert at.frame.view.run == "all"


async def test_a_failed_run_says_why() -> None:
    async with explorer((120, 40), set_of_runs()) as at:
        await at.press("G", "enter")
        assert at.frame.view.run == "all" and "all/tp16" in at.status


@pytest.mark.sweep
async def test_the_cards_of_a_set_have_no_outliers_and_no_columns_of_its_table(
    wording: Wording,
) -> None:
    async with explorer((120, 40), set_of_runs()) as at:
        await at.command("view findings")
        await at.press("e")
        wording(at.status, "numbers")
        await at.press("C")
        assert "Columns of tables" in at.text() and "step time" not in at.text()


@pytest.mark.sweep
async def test_two_marks_are_compared() -> None:
    async with explorer((120, 40), set_of_runs()) as at:
        await at.press("space", "j", "space", "=")
        assert at.frame.view.run == "all/tp4" and at.frame.view.name == "compare"
        assert at.frame.view.baseline == Baseline("all/tp2")
        await at.press("escape")
        assert at.frame.view.run == "all"
        assert len(at.explore.marks) == 2


@pytest.mark.sweep
async def test_marks_choose_the_runs_of_a_view() -> None:
    async with explorer((120, 40), set_of_runs()) as at:
        await at.press("space", "j", "j", "space", "4")
        assert at.frame.view.name == "losses"
        assert list(at.frame.labels) == ["tp2", "tp8"]
        await at.press("3")
        assert at.frame.view.name == "kernels" and list(at.frame.labels) == ["tp2", "tp8"]
        await at.command("by class")
        assert [column.name for column in at.frame.columns] == ["tp2", "tp8"]
        await at.press("escape")
        assert len(at.frame) == 4
        # More than two marks: alone.
        await at.press("g", "j", "space", "=")
        assert list(at.frame.labels) == ["tp2", "tp4", "tp8"]


@pytest.mark.sweep
async def test_figures_are_divided_by_a_row_then_the_best() -> None:
    async with explorer((120, 40), set_of_runs()) as at:
        await at.press("j", "=")
        assert at.frame.view.baseline == Baseline("tp4")
        assert at.frame.row(1)["step_time_ns_x"] == 1.0
        await at.press("=")
        assert at.frame.view.baseline == Baseline("best")
        await at.press("=")
        assert at.frame.view.baseline is None
        await at.press("b")
        assert at.frame.view.baseline == Baseline("tp4")
        await at.press("j", "b")
        assert at.frame.view.baseline == Baseline("tp8")
        await at.press("b")
        assert at.frame.view.baseline is None
        await at.command("by tp")
        assert at.frame.view.by == "tp"


@pytest.mark.sweep
async def test_sweep_and_front() -> None:
    async with explorer((120, 40), set_of_runs()) as at:
        await at.press("6")
        assert at.frame.view.name == "sweep" and list(at.frame.labels) == ["2", "4", "8", "16"]
        await at.command("of exposed_comm_pct")
        assert at.frame.view.of == "exposed_comm_pct"
        await at.press("j", "enter")
        assert at.frame.view.name == RUNS and list(at.frame.labels) == ["tp4"]
        await at.command("go all?view=pareto&of=step_time_ns,exposed_comm_pct")
        assert at.frame.view.name == "pareto" and len(at.frame) == 4
        await at.command("go all/tp2:gpu=0")
        assert at.frame.view.run == "all/tp2" and at.path == ("0",)


async def test_rows_come_while_others_are_read() -> None:
    whole = set_of_runs()
    rows = whole.reading(False).rows
    gates = [Event() for _ in rows]

    def slowly() -> Iterator[tuple[int, RunRow]]:
        for place, row in enumerate(rows):
            gates[place].wait(10)
            yield place, row

    found = [FoundRun(row.name, row.path) for row in rows]
    for place, gate in enumerate(gates):
        Timer(0.05 * place, gate.set).start()
    runs = replace(whole, reading=SetReader(found, slowly()))
    async with explorer((120, 40), runs) as at:
        assert len(at.frame) == 4 and not at.frame.is_pending


def test_rows_that_are_there_at_once_are_waited_for_together() -> None:
    """As those of thousands of runs whose figures are cached."""
    rows = set_of_runs().reading(False).rows * 500
    found = [FoundRun(f"{place}", f"all/{place}") for place in range(len(rows))]
    reader, seen = SetReader(found, enumerate(rows)), [len(rows)]
    while seen[-1]:
        seen.append(reader(True).waiting)
    assert len(seen) < len(rows) / 10 and seen == sorted(seen, reverse=True)
    assert len(reader(True).rows) == len(rows)


def test_an_error_of_reading_ends_the_wait() -> None:
    def broken() -> Iterator[tuple[int, RunRow]]:
        yield 0, set_of_runs().reading(False).rows[0]
        raise ZeroDivisionError

    reader = SetReader([FoundRun("a", "a"), FoundRun("b", "b")], broken())
    with pytest.raises(ZeroDivisionError):
        while reader(True).waiting:
            pass


@pytest.mark.sweep
@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_no_key_fails_in_a_set(size: tuple[int, int]) -> None:
    keys = [key for action in ACTIONS for key in action.keys if action.id not in ("quit_", "quit")]
    keys = [key for key in keys if key not in ("q", "ctrl+c", "ctrl+z", "P", "ctrl+l")]
    async with explorer(size, set_of_runs()) as at:
        for name in (RUNS, "sweep", "overheads"):
            await at.command(f"go all?view={name}")
            for key in keys:
                await at.press(key)
                await at.press("escape")
                if at.frame.view.run != "all" or at.frame.view.name != name:
                    await at.command(f"go all?view={name}")
            assert at.app.is_running


@pytest.mark.sweep
async def test_every_view_of_a_set_is_shown() -> None:
    async with explorer((120, 40), set_of_runs()) as at:
        for name in (*SET_VIEWS, *VIEWS):
            await at.command(f"view {name}")
            assert at.app.is_running and at.frame.view.run in ("all", "all/tp4")
