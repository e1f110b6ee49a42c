"""The explorer follows a run: the row keeps its name, space pauses, the newest step moves on."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from chopper_core.analyses.step_times import step_times
from chopper_core.extensions.runs import command as runs_command
from chopper_core.ingest import follow
from chopper_core.ingest.alarms import AlarmWatch, parse_alarm
from chopper_core.ingest.follow import Follower
from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.model.charts import Cards, GpuLanes, picked
from chopper_core.model.recent import NodeProcess, RecentSamples
from chopper_core.model.view import View, child_of
from chopper_core.record.hooks.step_ring import StepRing
from chopper_core.render.exchange import as_json
from chopper_core.util.errors import UsageError
from chopper_core.views.query import query
from chopper_core.views.shared.evidence import finding_cards
from chopper_tui.app import ChopperApp
from chopper_tui.cli import _parser, main
from chopper_tui.commands import start
from chopper_tui.commands.following import follower_for
from tests.demo import demo_run
from tests.ingest.test_follow import HEADING, row
from tests.ingest.test_run_sets import trace
from tests.ingest.test_windows import STEP_GAP_US, ranks_of, written
from tests.tui.explorer import Driven, explorer
from tests.wording import Wording


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("_SHARE", "_PAUSE"):
        monkeypatch.setattr(follow, name, 0)
    monkeypatch.setattr(follow, "_REST_S", -1.0)
    run = tmp_path / "run"
    write_window(run, 3, 0)
    lines = "".join(row(at, gpu) for at in range(4) for gpu in (0, 1))
    (run / "power.csv").write_text(f"{HEADING}\n{lines}")
    return run


def write_window(folder: Path, first: int, at_us: int) -> None:
    for rank in ranks_of(2, first, 3, at_us):
        written(folder, rank, 1000 * first + rank.rank)


@asynccontextmanager
async def following(
    folder: Path, where: str, size: tuple[int, int] = (80, 24)
) -> AsyncIterator[Driven]:
    follower = Follower(str(folder), jobs=1, every_s=0.005)
    app = ChopperApp(follower.open, parse(f"{folder}{where}"))
    app.POLL_S = 0.001  # type: ignore[misc]
    app.follower = follower
    async with explorer(size, app=app) as driven:
        yield driven


async def until(driven: Driven, text: str, seconds: float = 20.0) -> None:
    for _ in range(int(seconds / 0.02)):
        await asyncio.sleep(0.02)
        await driven.settle()
        if text in driven.text():
            return
    raise AssertionError(f"{text!r} never came:\n{driven.text()}")


def publish(folder: Path, first: int, end: int, ring: StepRing | None = None) -> StepRing:
    """Steps of rank 0 of 20 ms each, two longer ones among them."""
    ring = ring or StepRing(str(folder / "steps" / "n-0.ring"), time.time_ns())
    ring.name(0, 1)
    for number in range(first, end):
        ns = 60_000_000 if number in (7, 30) else 20_000_000
        ring.add((number, time.time_ns() - ns, ns, -1, 0, 0, 0))
    return ring


@pytest.mark.few(1)
@pytest.mark.parametrize("has_gpus", [True, False])
async def test_a_cursor_on_the_bars_of_steps_opens_those_that_were_traced(
    folder: Path, has_gpus: bool, wording: Wording
) -> None:
    """Steps 3 to 5 of those that the job published have traces."""
    if not has_gpus:
        (folder / "power.csv").unlink()
    ring = publish(folder, 1, 41)
    async with following(folder, "?view=live", size=(100, 34)) as driven:
        bars = driven.explore.picture_pane
        await until(driven, "of 40 steps")
        # Bars are as wide as the screen allows: the mark lies below three of forty.
        (marks,) = (line for line in driven.lines() if "━" in line and "traced" not in line)
        assert "━ traced" in driven.text() and marks.count("▲") == 0
        (axis,) = (line for line in driven.lines() if " 40 step " in line)
        left, right = axis.index("1"), axis.index("40 step") + len("40 step")
        begin, end = marks.index("━"), marks.rindex("━") + 1
        cell = (right - left) / 40
        assert abs(begin - left - 2 * cell) <= 1 and abs(end - left - 5 * cell) <= 1
        while driven.explore.listing is not bars:
            await driven.press("tab")
        assert driven.status == "step 40: 20 ms"
        publish(folder, 41, 43, ring)
        await until(driven, "of 42 steps")
        assert bars.has_keys and bars.cursor == 41
        await driven.press("up")
        assert driven.status == "step 41: 20 ms"
        await driven.press("enter")
        wording(driven.status, "step 41", "step 5")
        await driven.press("g", "down", "down", "down", "down")
        assert driven.status.startswith("step 5: 20 ms, traced (")
        publish(folder, 43, 45, ring)
        await until(driven, "of 44 steps")
        assert bars.has_keys and bars.cursor == 4
        # A click puts the cursor on a bar, another one on the same opens it.
        y = next(at for at, line in enumerate(driven.lines()) if " 44 step " in line) - 2
        x = left + int(3.5 * (right - left) / 44)
        await driven.pilot.click(offset=(x, y))
        await driven.settle()
        assert bars.cursor == 3 and driven.frame.view.name == "live"
        await driven.press("?")
        await driven.settle()
        assert "opens the step in its trace" in "".join(driven.lines())
        await driven.press("escape")
        await driven.pilot.click(offset=(x, y))
        await driven.settle()
        assert driven.frame.view.scope[-1] == ("iteration", "4")
        await driven.press("escape")
        assert driven.frame.view.name == "live"


async def test_what_comes_is_shown_and_the_row_keeps_its_name(folder: Path) -> None:
    where = ":gpu=1?sort=-elapsed_ns&cut=1"
    async with following(folder, where) as driven:
        driven.explore.table.move_to_label("4")
        write_window(folder, 20, STEP_GAP_US)
        await until(driven, "6 of 6 rows")
        assert driven.label == "4" and len(driven.frame) == 6
        found, wanted = driven.frame, query(open_run(str(folder), jobs=1), driven.frame.view)
        assert as_json(found) == as_json(wanted)


async def test_the_cursor_of_steps_stands_on_the_newest_until_it_is_moved(folder: Path) -> None:
    async with following(folder, ":gpu=0") as driven:
        assert driven.label == "5"
        write_window(folder, 20, STEP_GAP_US)
        # Between the files of the two ranks the run may be read without its newest steps.
        await until(driven, "▌ 22 ")
        assert driven.label == "22" and "6 of 6 rows" in driven.text()
        driven.explore.table.move_to_label("20")
        write_window(folder, 40, 2 * STEP_GAP_US)
        await until(driven, "9 of 9 rows")
        assert driven.label == "20"
    async with explorer(app=ChopperApp(lambda _: open_run(str(folder), jobs=1),
                                       parse(f"{folder}:gpu=0"))) as driven:  # fmt: skip
        assert driven.label == "3"


async def test_the_signals_of_a_gpu_have_the_lines_of_a_large_screen(folder: Path) -> None:
    async with following(folder, "?view=live&of=gpu:0", (160, 50)) as driven:
        assert driven.app.follower is not None
        driven.app.follower.recent.processes = (NodeProcess(0, 7, 1 << 30, "ada", "train.py"),)
        with (folder / "power.csv").open("a") as log:
            log.write(row(44, 0) + row(44, 1))
        await until(driven, "processes  1")
        text = driven.text()
        assert "gfx, MHz" in text and "power, W" in text and "hotspot, °C" in text, text
        processes = next(y for y, line in enumerate(driven.lines()) if "processes  1" in line)
        assert processes >= 44  # Only its own lines are left to it.


async def test_live_shows_samples_as_they_come_and_pauses(folder: Path) -> None:
    async with following(folder, "?view=live") as driven:
        await until(driven, "1697")
        assert "step ms" in driven.text() and "live" in driven.lines()[1]
        driven.explore.table.move_to_label("1")
        with (folder / "power.csv").open("a") as log:
            log.write(row(44, 0) + row(44, 1))
        await until(driven, "1656")
        assert driven.label == "1"
        await driven.press("space")
        assert "paused" in driven.lines()[1]
        before = driven.lines()[3:-3]
        with (folder / "power.csv").open("a") as log:
            log.write(row(45, 0) + row(45, 1))
        await asyncio.sleep(0.1)
        await driven.settle()
        assert driven.lines()[3:-3] == before
        await driven.press("space")
        await until(driven, "1655")


async def test_a_long_problem_leaves_the_age_of_data_on_the_line_and_opens_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = f"{folder}/{'rank' * 30}0.json and the one next to it have the same rank"
    async with following(folder, "?view=live") as driven:
        await until(driven, "1697")
        follower = driven.app.follower
        assert follower is not None
        monkeypatch.setattr(follower, "_noted", lambda *_: None)
        follower.problem = problem
        follower.recent.newest_s = time.time() - 100
        await until(driven, "… (!) · last data 10")
        line = driven.lines()[1]
        assert re.search(r"… \(!\) · last data 1\d\d s ago", line), line
        await driven.press("!")
        shown = "".join(re.findall(r"│ (.*?)[ ▁-█]*│", driven.text()))  # Beside a scroll bar.
        assert problem.replace(" ", "") in shown.replace(" ", "")
        await driven.press("escape")
        # A message that has more lines than the screen shows opens so, too.
        driven.explore.say(message := "no such step " * 60 + "at all", error=True)
        await driven.settle()
        assert "… (!)" in driven.text() and "at all" not in driven.text()
        await driven.press("!")
        shown = "".join(re.findall(r"│ (.*?)[ ▁-█]*│", driven.text()))  # Beside a scroll bar.
        assert message.replace(" ", "") in shown.replace(" ", "")


@pytest.mark.sweep
async def test_the_newest_step_is_followed_and_another_one_stays(folder: Path) -> None:
    async with following(folder, ":gpu=0/iteration=5") as driven:
        write_window(folder, 20, STEP_GAP_US)
        await until(driven, "step 22")
        assert driven.path[:2] == ("0", "22")
    async with following(folder, ":gpu=0/iteration=20") as driven:
        write_window(folder, 40, 2 * STEP_GAP_US)
        for _ in range(200):
            await asyncio.sleep(0.02)
            if len(driven.explore.run.sources) == 6:
                break
        assert len(driven.explore.run.sources) == 6 and driven.path[:2] == ("0", "20")


def test_alarms_of_signals_and_steps(folder: Path) -> None:
    follower = Follower(str(folder), jobs=1)
    try:
        run = follower.open()
        follower.tail()

        def found(text: str) -> list[int | None]:
            follower.recent.events.clear()
            AlarmWatch([parse_alarm(text)]).look(run, follower.recent)
            return [event.gpu for event in follower.recent.open_alarms]

        # Clocks of 1700 to 1697 MHz within three seconds, heat of 80 and 81 °C.
        assert found("gfx_mhz<1698") == [0, 1] and found("gfx_mhz<1697") == []
        assert found("gfx_mhz<1701 for 3s") == [0, 1] and found("gfx_mhz<1700 for 3s") == []
        assert found("gfx_mhz<1701 for 9s") == [] and found("hotspot_c>80") == [1]
        assert found("gfx_util_pct>98%") == [0, 1] and found("gfx_mhz<-5%") == []
        assert found("step_time>1") == [None] and found("step_time>+50%") == []
    finally:
        follower.close()
    for text in ("gfx_mhz", "speed>1", "step_time>x", "gfx_mhz<5 for 3"):
        with pytest.raises(UsageError, match="is none like"):
            parse_alarm(text)


@pytest.mark.parametrize("command", ["", "runs"])
async def test_a_directory_of_runs_shows_those_that_come(
    command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    sweep = tmp_path / "sweep"
    for name in ("tp1", "tp2"):
        trace(sweep / name)
    words = [str(sweep), "--watch", "--interval", "0.5", "--jobs", "1"]
    if command:
        shown: list[Follower] = []
        monkeypatch.setattr(runs_command, "can_draw", lambda: None)
        monkeypatch.setattr(
            start, "show_run", lambda load, view, *, follower, **_: shown.append(follower) or 0
        )
        assert main([command, *words]) == 0
        (follower,) = shown
    else:
        follower = follower_for(parse(str(sweep)), _parser().parse_args(words))
    monkeypatch.setattr(follow, "_PAUSE", 0)
    follower.every_s = 0.005
    app = ChopperApp(follower.open, parse(str(sweep)))
    app.POLL_S = 0.001  # type: ignore[misc]
    app.follower = follower
    async with explorer(app=app) as driven:
        await until(driven, "2 of 2 rows")
        driven.explore.table.move_to_label("tp2")
        trace(sweep / "tp0")
        await until(driven, "3 of 3 rows")
        assert command or driven.label == "tp2"


def test_runs_are_watched_on_a_screen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(tmp_path), "--watch"]) == 2
    assert "on a screen: standard" in capsys.readouterr().err


def test_a_rank_whose_window_is_late_has_no_less_work(folder: Path) -> None:
    window = ranks_of(2, 20, 3, STEP_GAP_US)
    first = written(folder, window[0], 20000)
    run = replace(open_run(str(folder), jobs=1), recent=RecentSamples())
    frame = query(run, View(run.name, name="live"))
    (text,), cards = frame.headline, frame.charts[-1]
    assert text.startswith("step 5: ") and isinstance(cards, Cards) and cards.cards
    assert not any("since step 20" in card.text for card in cards.cards)
    # What it says is what the iteration that both GPUs have says alone, where telemetry isn't
    # doubtful: it ends before the late window.
    first.unlink()
    left = replace(open_run(str(folder), jobs=1), recent=RecentSamples())
    alone = query(left, View(run.name, name="live"))
    assert "~" in text and alone.headline == (text.replace("~", ""),)
    assert cards == alone.charts[-1]


def test_findings_are_of_the_newest_step_while_a_run_goes_on_and_of_all_afterwards() -> None:
    ended = demo_run()
    whole = View(ended.name)
    step = child_of(whole, "iteration", str(max(step_times(ended, whole).iterations)))
    said = {}
    for run, scope in ((ended, whole), (replace(ended, recent=RecentSamples()), step)):
        cards = query(run, View(run.name, name="live")).charts[-1]
        assert isinstance(cards, Cards)
        found = [each for each in cards.cards if each.rule]
        assert found == [each for each in finding_cards(run, scope, 3) if each.text]
        said[scope] = found
    assert said[whole] != said[step]


def test_lanes_end_with_their_own_samples_where_another_source_goes_on() -> None:
    """A slower log of other signals goes on for seconds after the last clock of the demo."""
    lanes, *_ = query(demo_run(), View("demo_data/fsdp2", name="live")).charts
    assert isinstance(lanes, GpuLanes)
    last = [np.flatnonzero(np.isfinite(each.numbers).any(axis=0))[-1] for each in lanes.signals]
    assert max(last) == lanes.signals[0].numbers.shape[1] - 1


def test_lanes_and_what_is_too_high_in_them_follow_the_rows() -> None:
    view = View("demo_data/fsdp2", name="live", sort="-name")
    frame = query(demo_run(), view)
    lanes = frame.charts[0]
    assert isinstance(lanes, GpuLanes)
    assert [*frame.labels] == [*lanes.labels] == list("76543210")
    raised = replace(lanes, raised=((2,), *lanes.raised[1:]))
    few = picked(raised, [5, 2])
    assert isinstance(few, GpuLanes) and few.labels == ("2", "5") and few.raised[0] == (1,)


async def test_the_digit_of_live_opens_it_only_while_the_run_is_followed(folder: Path) -> None:
    # At 80 columns the line has that word for fresh samples only, which a slow machine may lack.
    async with following(folder, "?view=overview", size=(120, 36)) as driven:
        await until(driven, "live · summary · findings")
        await driven.press("0", "0")
        assert driven.frame.view.name == "live"
        await driven.press("0")
        assert driven.frame.view.name == "overview"
    async with explorer(run=open_run(str(folder), jobs=1)) as at:
        await at.press("0")
        assert at.frame.view.name == "overview"
        await at.command("view live")
        assert at.frame.view.name == "live" and "live" in at.lines()[1]
