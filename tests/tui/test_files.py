"""Exports, reports, other runs and triggers from the explorer; what messages say of them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from chopper_core.answers.opening import asked_view, home_of
from chopper_core.ingest.follow import Follower
from chopper_core.ingest.open import open_run
from chopper_core.model.view import View
from chopper_core.record.manifest import RecordedProcess, name_of_host, publish_part, start_manifest
from chopper_core.views.query import query
from chopper_tui.app import ChopperApp
from chopper_tui.widgets.dialogs import Chooser
from tests.align.traces import TinyTrace
from tests.tui.explorer import Driven, explorer, sample_run
from tests.wording import Wording


def written(path: str, *durations_us: int) -> str:
    """A trace of kernels with these durations, in a directory of its own."""
    trace = TinyTrace()
    for number, duration in enumerate(durations_us):
        trace.gpu(f"kernel_{number}", 1_000 * number, duration)
    os.makedirs(path, exist_ok=True)
    Path(path, "rank0.json").write_text(json.dumps({"traceEvents": trace.events}))
    return path


async def wait_for(at: Driven, condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, at.status
        await at.settle()


async def test_an_export_is_written_and_named(wording: Wording) -> None:
    async with explorer((120, 30)) as at:
        await at.command("export parquet all.parquet")
        wording(at.status, "parquet", "all.parquet")
        await at.command("export perfetto all.parquet")
        wording(at.status, "all.parquet", "exists")
        await at.command("export nonsense x")
        assert "unknown format 'nonsense'" in at.status
        await at.command("export perfetto")
        assert at.explore.typed == "export perfetto "
        await at.press("escape")
        await at.command("export parquet all.parquet/below")
        assert "can't be written" in at.status


async def test_within_a_step_the_export_is_of_that_step_on_all_gpus(wording: Wording) -> None:
    run = sample_run()
    async with explorer((120, 30), view=View(run.name, ("1", "11"))) as at:
        await at.command("export perfetto step.json")
        wording(at.status, "step 11", "perfetto", "step.json")
        events = json.loads(Path("step.json").read_bytes())["traceEvents"]
        kernels = [each for each in events if each.get("cat") == "kernel"]
        table = run.table
        own = (table.iteration == 11) & (table.kind != 2)  # copies have a category of their own
        assert len(kernels) == int(own.sum())
        assert {each["pid"] for each in kernels} == set(table.gpu.tolist())


async def test_a_report_is_of_the_scope_and_never_replaces_a_file(wording: Wording) -> None:
    async with explorer((120, 30), view=View("sample.json", ("3",))) as at:
        await at.command("report")
        wording(at.status, "GPU 3", "HTML", "chopper-snapshots/sample.json-gpu3-report-1.html")
        page = Path("chopper-snapshots/sample.json-gpu3-report-1.html").read_text("utf-8")
        assert page.startswith("<!doctype html>") and "sample.json:gpu=3" in page
        Path("mine.html").write_text("kept")
        await at.command("report mine.html")
        wording(at.status, "mine.html", "exists")
        assert Path("mine.html").read_text() == "kept"


async def test_another_run_takes_the_place_of_this_one() -> None:
    first, second = written("first", 10, 20), written("second", 400)
    app = ChopperApp(lambda _: open_run(first, jobs=1), View(first))
    app.POLL_S = 60.0  # type: ignore[misc]
    async with explorer((120, 30), app=app) as at:
        await at.press("space", "enter")
        app.follower = Follower(first)
        await at.command(f"open {second}")
        await wait_for(at, lambda: at.explore.run.name == second)
        explore = at.explore
        await wait_for(at, lambda: at.status == "opened second")
        assert (at.path, explore.home.name) == ((), second)
        assert not (explore.marks or explore.past or explore.entries or app.follower)
        head = "".join(at.lines()[:2]).split()
        assert "second" in head and "first" not in head
        await at.command("view kernels")
        assert at.frame.labels == query(open_run(second, jobs=1), at.frame.view).labels
        # Reloading reads the run that is on the screen.
        written("second", 400, 700)
        await at.press("R")
        await wait_for(at, lambda: len(at.explore.run.table) == 2)
        assert at.explore.run.name == second
        # An address opens its view; what can't be opened leaves this run where it is.
        await at.command(f"open {first}:gpu=0?view=kernels")
        await wait_for(at, lambda: at.explore.run.name == first)
        assert (at.path, at.frame.view.name, len(at.frame)) == (("0",), "kernels", 2)
        # As on the command line, a run with a baseline opens its summary.
        await at.command(f"open {first}?base={second}")
        await wait_for(at, lambda: at.explore.view.baseline is not None)
        assert at.explore.view == home_of(asked_view(f"{first}?base={second}"))
        assert at.explore.view.name == "overview"
        await at.command("open missing/run")
        await wait_for(at, lambda: at.explore.status.is_error)
        assert "missing/run" in at.status and at.explore.run.name == first


async def test_an_opened_file_is_completed_by_its_name() -> None:
    written("first", 10)
    written("fir st", 10)
    Path("fir\x1bst").mkdir()
    async with explorer((100, 30)) as at:
        await at.press(":")
        at.paste("open fir")
        await at.press("tab")
        assert at.explore.typed == "open fir st/"
        await at.press("tab")
        assert at.explore.typed == "open first/"


async def test_a_window_of_the_running_job_is_recorded(wording: Wording) -> None:
    run = replace(sample_run(), name=written("job", 10))
    async with explorer((120, 30), run) as at:
        await at.command("record")
        wording(at.status, "job ", "no running process")
        start_manifest(Path("job"), ["train"])
        (Path("job") / "processes").mkdir()
        publish_part(
            Path("job"),
            RecordedProcess(name_of_host(), os.getpid(), rank=0, state="running", step=40,
                            step_times={"outside_ns": 10**9}),
        )  # fmt: skip
        await at.command("record")
        first = json.loads(Path("job/trigger.json").read_bytes())["first"]
        assert first > 40
        wording(at.status, "1 rank", f"step {first}", ":watch")


async def test_the_palette_offers_them_and_asks_for_what_they_need() -> None:
    async with explorer((100, 30)) as at:
        for title, typed in (
            ("Open another run", "open "),
            ("Export for", "export "),
            ("chakra", "export chakra "),
        ):
            await at.press("ctrl+p")
            await at.type(title)
            await at.press("enter")
            if isinstance(at.app.screen, Chooser):  # There are directories next to this one.
                await at.press("up", "enter")
            assert at.explore.typed == typed
            await at.press("escape")


async def test_runs_next_to_this_one_are_offered() -> None:
    first = str(Path("runs") / "b1")
    for name in ("a10", "a9", ".hidden", "b1"):
        Path("runs", name).mkdir(parents=True)
    Path("runs/notes.txt").write_text("no run")
    written("runs/b1", 10)
    written("runs/a9", 10)
    app = ChopperApp(lambda _: open_run(first, jobs=1), View(first))
    async with explorer((100, 30), app=app) as at:
        await at.command("open")
        assert isinstance(at.app.screen, Chooser)
        titles = [title for _, title, _ in at.app.screen._shown]
        assert titles == ["a9", "a10", "another path …"]
        await at.press("enter")
        await wait_for(at, lambda: at.explore.run.name.endswith("a9"))


async def test_a_copy_says_in_which_form(monkeypatch: pytest.MonkeyPatch, wording: Wording) -> None:
    monkeypatch.setattr("chopper_tui.actions.program.has_clipboard", lambda: True)
    async with explorer((120, 30)) as at:
        for key, says in (("y", "copied the row as text with tabs ("),
                          ("Y", "copied the view as Markdown ("),
                          (":issue", "copied the text for an issue as Markdown (")):  # fmt: skip
            await (at.command(key[1:]) if key[0] == ":" else at.press(key))
            assert at.status.startswith(says), at.status
        await at.command("snapshot csv x.csv")
        wording(at.status, "CSV", "x.csv")
