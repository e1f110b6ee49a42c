"""From nothing to the first view, and the ways in which that ends early."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from textual import events
from textual.pilot import Pilot

from chopper_core.ingest.open import open_run
from chopper_core.model.run import Run
from chopper_core.model.view import View, with_view
from chopper_core.render.glyphs import UNICODE
from chopper_core.util.errors import DataError, NothingToShow
from chopper_core.util.progress import Progress, ShowingProgress, progress_text, share_done
from chopper_core.views import OVERVIEW
from chopper_core.views.query import query
from chopper_tui.app import ChopperApp
from chopper_tui.opening import Opening
from chopper_tui.screen import Explorer
from chopper_tui.widgets.dialogs import LoadingPane
from chopper_tui.widgets.footer import PromptLine
from tests.demo import DEMO, small_files
from tests.ingest.test_run_sets import trace
from tests.tui.explorer import Driven, explorer, sample_run
from tests.tui.terminal_harness import Terminal


async def test_the_progress_is_shown_and_cancelled() -> None:
    go_on, ended = Event(), Event()

    def load(progress: Progress) -> Run:
        progress("reading rank 3", 25, 100)
        try:
            while True:
                go_on.wait(0.01)
                progress("reading rank 3", 50, 100)
        finally:
            ended.set()

    app = ChopperApp(load, View("a/run"), glyphs=UNICODE)
    async with app.run_test(size=(80, 24)) as pilot:
        while app.screen.query_one(LoadingPane).total == 0:
            await pilot.pause()
        driven = Driven(app, pilot)
        text = driven.text()
        assert "a/run" in text and "reading rank 3" in text and " %" in text
        pane = app.screen.query_one(LoadingPane)
        pane.put(step="match telemetry", done=1, total=2)
        text = "".join(part for line in pane.lines(80, 24) for part, _ in line)
        assert "match telemetry, 2 of 2" in text and "%" not in text
        said = "the generated run of Chopper: its traces are read once"
        for name in ("demo", str(DEMO / "fsdp2"), "a/run"):
            pane._run_name = name
            text = "".join(part for line in pane.lines(80, 24) for part, _ in line)
            assert (said in text) == (name != "a/run")
        await pilot.press("q")
    assert app.return_code == 130
    assert ended.wait(5)


def loading(go_on: Event) -> ChopperApp:
    """An app whose run opens once it may."""

    def load(progress: Progress) -> Run:
        while not go_on.wait(0.01):
            progress("read rank 3", 25, 100)
        return sample_run()

    return ChopperApp(load, View("sample.json"), glyphs=UNICODE)


async def until_open(app: ChopperApp, pilot: Pilot[None]) -> None:
    while not isinstance(app.screen, Explorer):
        assert app.return_code is None
        await pilot.pause(0.01)


async def test_keys_that_are_typed_while_a_run_loads_act_once_it_is_open() -> None:
    go_on = Event()
    app = loading(go_on)
    async with app.run_test(size=(80, 24)) as pilot:
        for key in ("j", "enter", "slash", "q", "escape"):
            app.post_message(events.Key(key, {"slash": "/"}.get(key)))
        app.post_message(events.Key("colon", ":"))
        app.post_message(events.Paste("sort kernels"))
        await pilot.pause(0.1)
        assert app.return_code is None and not isinstance(app.screen, Explorer)
        go_on.set()
        await until_open(app, pilot)
        at = Driven(app, pilot)
        await at.settle()
        assert at.path == ("1",)
        assert isinstance(app.focused, PromptLine) and app.focused.value == "sort kernels"


@pytest.mark.parametrize("keys", [("escape",), ("q",), ("j", "ctrl+c")])
async def test_loading_is_cancelled_by_the_first_key_or_by_ctrl_c(keys: tuple[str, ...]) -> None:
    go_on = Event()
    app = loading(go_on)
    async with app.run_test(size=(80, 24)) as pilot:
        for key in keys:
            app.post_message(events.Key(key, None))
        await pilot.pause(0.1)
    go_on.set()
    assert app.return_code == 130


async def test_an_error_ends_the_app() -> None:
    def load(progress: Progress) -> Run:
        raise DataError("x.json is no trace; give a Kineto trace")

    app = ChopperApp(load, View("x.json"), glyphs=UNICODE)
    async with app.run_test(size=(80, 24)) as pilot:
        while app.failure is None:
            await pilot.pause()
    assert app.return_code == 1 and isinstance(app.failure, DataError)


async def test_a_view_that_is_not_there_ends_the_app() -> None:
    app = ChopperApp(lambda progress: sample_run(), View("x", ("99",)), glyphs=UNICODE)
    async with app.run_test(size=(80, 24)) as pilot:
        while app.failure is None:
            await pilot.pause()
    assert app.return_code == 3 and "no gpu 99" in str(app.failure)


async def test_what_comes_after_the_last_screen_finds_nothing_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "get_terminal_size", lambda number: os.terminal_size((90, 30)))
    app = ChopperApp(lambda progress: sample_run(), View("x"), glyphs=UNICODE)
    app.fit_terminal()
    await app.on_event(events.Key("j", "j"))
    assert app.screen_stack == []


async def test_a_view_with_nothing_to_show_opens_the_tree_and_says_why() -> None:
    async with explorer((120, 24), sample_run(), View("sample.json", name="memory")) as at:
        assert at.frame.view.name == "" and at.explore.status.is_error
        assert at.status and at.frame.labels[0] == "0"


def test_a_step_of_unknown_length_has_no_share() -> None:
    assert share_done(0, 0) is None and share_done(0, 1) is None and share_done(1, 1) is None
    assert share_done(25, 50) == 0.5 and share_done(60, 50) == 1.0


def test_a_step_of_few_units_names_the_one_it_is_at() -> None:
    """One of two files may take all of the time: 50 % would stand there meanwhile."""
    assert (
        share_done(1, 2) is None
        and progress_text("match telemetry", 1, 2) == "match telemetry, 2 of 2"
    )
    assert (
        progress_text("read", 0, 1)
        == progress_text("read", 0, 0)
        == progress_text("read", 2, 50)
        == "read"
    )


@pytest.mark.sweep
def test_counters_and_telemetry_are_matched_in_steps_of_their_own() -> None:
    steps: dict[str, list[float]] = {}

    def progress(step: str, done: int, total: int) -> None:
        steps.setdefault(step, []).append(share_done(done, total) or 0.0)

    open_run(str(DEMO / "fsdp2"), progress, jobs=1)
    for step in ("match counters", "match telemetry", "join telemetry with kernels"):
        assert steps[step][0] == 0.0 and max(steps[step]) < 1.0


@pytest.mark.few(1)
@pytest.mark.parametrize("size", [(80, 24), (120, 36), (200, 60)])
async def test_counters_and_telemetry_join_the_run_of_the_traces_where_it_stands(
    size: tuple[int, int],
) -> None:
    """The first screen doesn't wait for them; no panel and no column moves, and the cursor stays on
    its row."""
    name = str(small_files())
    start, go_on = with_view(View(name), OVERVIEW), Event()
    shown: list[Run] = []

    def load(progress: Progress) -> Run:
        assert isinstance(progress, ShowingProgress)
        show = progress.show

        def show_and_wait(run: Run) -> None:
            shown.append(run)
            show(run)
            go_on.wait(60)

        return open_run(name, ShowingProgress(progress, show_and_wait), jobs=1)

    app = ChopperApp(Opening(load, start, {}), start, glyphs=UNICODE)
    async with app.run_test(size=size) as pilot:
        await until_open(app, pilot)
        driven = Driven(app, pilot)
        await driven.settle()
        parts = app.screen.query("PicturePane, FrameTable, CardsPane")
        places = [(part.region.y, part.region.height) for part in parts]
        assert (
            "still reading the run's telemetry" in driven.text()
            and "placing counters" in driven.text()
        )
        headings = next(line for line in driven.text().split("\n") if "gfx MHz" in line)
        await driven.press("j")
        row = driven.label
        go_on.set()
        while "counters and telemetry are in" not in driven.text():
            await pilot.pause(0.05)
        assert "still reading" not in driven.text() and "placing" not in driven.text()
        joined = next(line for line in driven.text().split("\n") if "gfx MHz" in line)
        assert joined.partition("forward")[0] == headings.partition("forward")[0]
        assert driven.label == row
        assert places[:2] == [(part.region.y, part.region.height) for part in parts][:2]
        assert places[2][0] == parts[2].region.y
    (first,), whole = shown, app._opening.whole.result()
    for view, kind in (("power", "telemetry"), ("memchart", "hardware counters")):
        with pytest.raises(NothingToShow, match=f"still reading the run's {kind}"):
            query(first, View(name, name=view))
    told = query(first, View(name, name="findings")).labels
    assert not [each for each in told if "counters" in each or "telemetry" in each]
    assert not first.counters and not first.telemetry and whole.counters and whole.telemetry
    assert np.array_equal(first.table.idle_ns, whole.table.idle_ns)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def opening(error: Exception, go_on: Event) -> Opening:
    """A run whose counters and telemetry can't be read once the run of the traces is there."""
    start = with_view(View(str(small_files())), OVERVIEW)

    def load(progress: Progress) -> Run:
        assert isinstance(progress, ShowingProgress)
        show = progress.show

        def show_and_fail(run: Run) -> None:
            show(run)
            go_on.wait(60)
            raise error

        return open_run(start.run, ShowingProgress(progress, show_and_fail), jobs=1)

    return Opening(load, start, {})


def test_a_run_is_whole_before_a_first_screen_that_nothing_joins() -> None:
    start, whole = View(sample_run().name), []
    begun = Opening(lambda _: sample_run(), start, {})
    begun._opened.add_done_callback(lambda _: whole.append(begun.whole.done()))
    begun.begin()
    begun._thread.join()
    assert begun.whole.result() is begun.result()[0] and whole == [True]


@pytest.mark.parametrize(
    "error",
    [DataError("power.csv changed while it was read"), FileNotFoundError(2, "gone", "power.csv")],
)
async def test_a_file_that_changes_behind_the_first_screen_leaves_it_there(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A file that changed is read again; it has changed each time.
    monkeypatch.setattr("chopper_core.ingest.open._MAX_ATTEMPTS", 1)
    go_on = Event()
    app = ChopperApp(opening(error, go_on), with_view(View(str(small_files())), OVERVIEW))
    async with app.run_test(size=(120, 36)) as pilot:
        await until_open(app, pilot)
        driven = Driven(app, pilot)
        await driven.settle()
        assert "placing counters" in driven.text()
        go_on.set()
        await until(lambda: "R reloads" in driven.text() or not app.is_running)
        assert app.failure is None
        assert "power.csv" in driven.status and "placing" not in driven.text()
        await driven.press("3")
        assert driven.frame.view.name == "kernels" and app.is_running and app.failure is None


@pytest.mark.parametrize("has_changed", [True, False])
async def test_a_check_that_fails_ends_the_app_unless_files_changed(
    has_changed: bool, tmp_path: Path
) -> None:
    trace(tmp_path, 0, world=1)
    checked = Event()

    def check(_: Progress) -> None:
        if has_changed:
            trace(tmp_path, 0, step_us=200, world=1)
        checked.set()
        raise DataError(f"{tmp_path}: a file is gone")

    app = ChopperApp(lambda _: open_run(str(tmp_path), jobs=1), View(str(tmp_path)))
    app.check = check
    async with app.run_test(size=(80, 24)) as pilot:
        await until(checked.is_set)
        driven = Driven(app, pilot)
        await until(lambda: not app.is_running or (has_changed and "files ch" in driven.text()))
    assert (app.failure is None) == has_changed


async def test_an_error_behind_the_screen_is_one_of_the_app() -> None:
    """It was lost: what the work was to say never came."""
    async with explorer() as at:
        at.app._behind(lambda: [][0])
        await until(lambda: at.app.crash is not None)
        assert isinstance(at.app.crash, IndexError)
        at.app._exception = None  # It is meant.


@pytest.mark.few(1)
@pytest.mark.parametrize("keys", ["R", ":reload\r"])
def test_a_reload_while_the_first_screen_settles(keys: str) -> None:
    """It waited for ever for a first screen that nobody made any more."""
    with Terminal("brief") as terminal:
        terminal.until_text("reading sample.json")
        terminal.send(keys)
        terminal.until_text("reloaded")
        terminal.send("\x03")
        assert terminal.wait() == 0 and terminal.is_restored()
