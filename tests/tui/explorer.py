"""The explorer without a terminal: start it, press keys, read its screen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache

from textual import events
from textual.keys import _character_to_key
from textual.pilot import Pilot
from textual.worker import WorkerCancelled

from chopper_core.frame import Frame
from chopper_core.render.glyphs import UNICODE, Glyphs
from chopper_core.run import Run
from chopper_core.view import View
from chopper_tui.app import ChopperApp
from chopper_tui.screens.explore import ExploreScreen
from chopper_tui.widgets.status import Status
from tests.support import sample_run as make_sample_run

sample_run = cache(make_sample_run)
"""A run is never changed, so that tests may share it."""


@dataclass
class Driven:
    """An app under a pilot."""

    app: ChopperApp
    pilot: Pilot[None]

    @property
    def explore(self) -> ExploreScreen:
        screen = next(s for s in self.app.screen_stack if isinstance(s, ExploreScreen))
        return screen

    @property
    def frame(self) -> Frame:
        return self.explore.frame

    @property
    def path(self) -> tuple[str, ...]:
        return self.frame.view.path

    @property
    def status(self) -> str:
        return self.explore.query_one(Status).message

    @property
    def label(self) -> str | None:
        return self.explore.table.label

    async def press(self, *keys: str) -> None:
        for key in keys:
            self.send(key)
            await self.settle()

    def send(self, *keys: str) -> None:
        """Put keys into the queue, as the terminal does, without waiting."""
        for key in keys:
            char = key if len(key) == 1 else None
            event = events.Key(_character_to_key(key) if char else key, char)
            event.set_sender(self.app)
            self.app.post_message(event)

    async def type(self, text: str) -> None:
        self.send(*text)
        await self.settle()

    async def command(self, text: str) -> None:
        await self.press(":")
        await self.type(text)
        await self.press("enter")

    async def settle(self) -> None:
        """Wait until nothing is under way: no worker, no message, no change of the screen."""
        before = None
        for _ in range(100):
            await self.pilot._wait_for_screen()
            pending = [worker for worker in self.app.workers if not worker.is_finished]
            for worker in pending:
                with suppress(WorkerCancelled):
                    await worker.wait()
            await asyncio.sleep(0.002 if self.app._batch_count else 0)
            if not self.app.is_running:
                return
            self.app.screen._on_timer_update()
            now = (self.app.screen, self.lines())
            if not pending and not self.app._batch_count and now == before:
                return
            before = now

    def lines(self) -> list[str]:
        """The screen as text, line by line."""
        strips = self.app.screen._compositor.render_strips()
        return ["".join(segment.text for segment in strip) for strip in strips]

    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.lines()) + "\n"


@asynccontextmanager
async def explorer(
    size: tuple[int, int] = (80, 24),
    run: Run | None = None,
    view: View | None = None,
    glyphs: Glyphs = UNICODE,
) -> AsyncIterator[Driven]:
    """An explorer of a run, settled on its first view."""
    shown = run or sample_run()
    app = ChopperApp(lambda progress: shown, view or View(shown.name), glyphs=glyphs)
    async with app.run_test(size=size) as pilot:
        driven = Driven(app, pilot)
        await driven.settle()
        yield driven
