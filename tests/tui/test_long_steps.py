"""A step that takes long says so; the keys stay alive meanwhile, and Esc cancels it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from threading import Event
from time import monotonic, sleep
from typing import Any

import pytest

from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_tui import screen_data
from chopper_tui.steps import StepQueue
from tests.tui.explorer import Driven, explorer


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def waiting(monkeypatch: pytest.MonkeyPatch, answer: Event) -> AsyncIterator[Driven]:
    """An explorer that was sent into its first row, whose frame comes when it is let."""
    async with explorer() as at:
        look = screen_data.screen_data

        def held(run: Run, view: View, **given: Any) -> screen_data.ScreenData:
            answer.wait(20)
            return look(run, view, **given)

        monkeypatch.setattr(screen_data, "screen_data", held)
        monkeypatch.setattr(StepQueue, "LONG_S", 0.02)
        try:
            at.send("enter")
            await until(lambda: at.explore.steps.is_long)
            yield at
        finally:
            answer.set()


async def test_it_says_so_and_the_cursor_moves_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Event()
    async with waiting(monkeypatch, answer) as at:
        assert at.status.startswith("loading…") and "(Esc cancels)" in at.status
        at.send("j", "j", "k")
        await until(lambda: at.explore.table.cursor == 1)
        assert at.path == ()
        answer.set()
        await at.settle()
        assert at.path == ("0",)
        assert at.status == ""
        await at.press("h")
        assert at.path == () and at.label == "0"


async def test_what_a_step_says_last_stays_however_busy_the_loop_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The step's end holds the loop until the reminder is due: it is called before who waits for
    the step continues."""
    monkeypatch.setattr(StepQueue, "LONG_S", 0.02)
    said: list[str] = []
    begun: list[asyncio.Future[None]] = []
    queue = StepQueue(
        lambda text, _: said.append(text),
        lambda: said.append("loaded"),
        lambda work: begun.append(asyncio.ensure_future(work)),
    )

    async def step() -> None:
        await asyncio.sleep(0)
        sleep(0.1)
        said.append("opened")

    queue.add(step)
    await until(lambda: not queue.is_busy)
    assert said == ["opened"]


async def test_escape_cancels_it_with_what_waits_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer = Event()
    async with waiting(monkeypatch, answer) as at:
        at.send("r", "escape")
        await at.settle()
        assert (at.path, at.status) == ((), "cancelled")
        assert not at.explore.steps.is_busy and at.frame.sort == ""
        answer.set()
        await at.settle()
        assert at.path == ()
        await at.press("enter")
        assert at.path == ("0",)


async def test_a_key_after_escape_is_performed(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Event()
    async with waiting(monkeypatch, answer) as at:
        at.send("r", "escape", "?")
        await at.settle()
        assert at.path == () and at.frame.sort == "" and "─ Help" in at.text()


async def test_quitting_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Event()
    async with waiting(monkeypatch, answer) as at:
        begin = monotonic()
        at.send("r", "q")
        await until(lambda: not at.app.is_running)
        assert monotonic() - begin < 10, "the thread that loads is waited for"
        assert not answer.is_set() and at.app.return_code == 0 and at.app.crash is None
        assert at.app.screen_stack == [] or at.path == ()
