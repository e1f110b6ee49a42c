"""The explorer without a terminal: start it, press keys, read its screen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache

import numpy as np
from msgspec.structs import replace
from textual import events
from textual.keys import _character_to_key
from textual.pilot import Pilot
from textual.worker import WorkerCancelled

from chopper_core.align.telemetry import telemetry_columns
from chopper_core.model.run import Run
from chopper_core.model.signals import CpuSamples, Signal, nearest_values
from chopper_core.model.units import Unit
from chopper_core.model.view import View
from chopper_core.render.glyphs import UNICODE, Glyphs
from chopper_core.views.frame import Frame
from chopper_tui.app import ChopperApp
from chopper_tui.screen import Explorer
from chopper_tui.textual_internals import messages_done
from chopper_tui.widgets.footer import Status
from tests.support import sample_run as make_sample_run

sample_run = cache(make_sample_run)
"""A run is never changed, so that tests may share it."""
PERIOD_NS = 150_000


@cache
def measured_run(gpus: int = 4, iterations: int = 3, layers: int = 4) -> Run:
    """A sample run with clock, use and power sampled every 150 µs; the last GPU's are lower."""
    run = sample_run(gpus, iterations, layers)
    end = int((run.table.start_ns + run.table.duration_ns).max())
    times = np.arange(run.origin_ns, end + PERIOD_NS, PERIOD_NS)
    wave = np.sin(np.arange(len(times)) / 4)

    def signal(name: str, title: str, unit: str, mean: float, swing: float) -> Signal:
        values = {
            gpu.index: mean + swing * wave - (swing if gpu == run.gpus[-1] else 0)
            for gpu in run.gpus
        }
        curves = {gpu: nearest_values(times, own, 2 * PERIOD_NS) for gpu, own in values.items()}
        low = 0.0 if unit == "%" else float(min(own.min() for own in values.values()))
        high = 100.0 if unit == "%" else float(max(own.max() for own in values.values()))
        return Signal(name, title, Unit(unit), curves, low, high)

    measured = {
        "gfx_mhz": signal("gfx_mhz", "gfx", "MHz", 1700, 150),
        "gfx_util_pct": signal("gfx_util_pct", "gfx util", "%", 80, 15),
        "power_w": signal("power_w", "power", "W", 600, 90),
    }
    table = run.table.with_measured(telemetry_columns(run.table, measured))
    return replace(run, table=table, measured=measured, cpu=(_cpu_samples(times),))


def _cpu_samples(times: np.ndarray) -> CpuSamples:
    """Four cores with two processors each; the first is always busy, the others now and then."""
    cpus = np.arange(8)
    percent = 50 + 50 * np.sin(np.arange(len(times))[:, None] / 3 + cpus)
    percent[:, 0] = 100.0
    percent[percent < 20] = 0.0
    percent[2, 5] = np.nan
    return CpuSamples(
        "cpu.csv", "csv", "epoch", 0, 1_000, "by the clock", len(times), (), cpus, cpus % 4,
        times, percent,
    )  # fmt: skip


@dataclass
class Driven:
    """An app under a pilot."""

    app: ChopperApp
    pilot: Pilot[None]

    @property
    def explore(self) -> Explorer:
        screen = next(s for s in self.app.screen_stack if isinstance(s, Explorer))
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

    def paste(self, text: str) -> None:
        """Put a text into the queue as from the clipboard, without waiting."""
        event = events.Paste(text)
        event.set_sender(self.app)
        self.app.post_message(event)

    async def type(self, text: str) -> None:
        self.send(*text)
        await self.settle()

    async def command(self, text: str) -> None:
        """Give a command, in one go as from the clipboard: tests of typing type."""
        await self.press(":")
        self.paste(text)
        await self.press("enter")

    async def settle(self) -> None:
        """Wait until nothing is under way: no worker, no message, nothing left to draw."""
        calm = 0
        for _ in range(200):
            await messages_done(self.pilot)
            pending = [worker for worker in self.app.workers if not worker.is_finished]
            for worker in pending:
                with suppress(WorkerCancelled):
                    await worker.wait()
            await asyncio.sleep(0.002 if self.app._batch_count else 0)
            if not self.app.is_running:
                return
            busy = pending or self.app._batch_count or self._has_more_to_draw()
            self.app.screen._on_timer_update()
            calm = 0 if busy else calm + 1
            if calm == 2:
                return

    def _has_more_to_draw(self) -> bool:
        screen = self.app.screen
        return bool(
            screen._layout_required
            or screen._scroll_required
            or screen._repaint_required
            or screen._recompose_required
            or screen._dirty_widgets
            or screen._compositor._dirty_regions
            or screen._callbacks
        )

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
    app: ChopperApp | None = None,
) -> AsyncIterator[Driven]:
    """An explorer of a run, settled on its first view."""
    shown = run or sample_run()
    if app is None:
        app = ChopperApp(lambda progress: shown, view or View(shown.name), glyphs=glyphs)
    async with app.run_test(size=size) as pilot:
        driven = Driven(app, pilot)
        await driven.settle()
        yield driven
