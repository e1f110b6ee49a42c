"""One session of random input: what is typed, and what is watched meanwhile."""

from __future__ import annotations

import asyncio
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from threading import Event, Thread, get_ident
from typing import Final
from unittest.mock import patch

from msgspec import Struct
from msgspec.structs import replace
from textual import events
from textual.geometry import Size

from chopper_core.extensions.runs.run_set import RunSet
from chopper_core.model.run import Run
from chopper_core.model.view import View, with_view
from chopper_core.render.glyphs import ASCII, UNICODE
from chopper_core.views import SET_VIEWS, VIEWS
from chopper_tui.actions import ACTIONS
from chopper_tui.app import ChopperApp
from chopper_tui.config import DEFAULTS
from chopper_tui.screen import Explorer
from tests.tui.explorer import Driven

LEAVING: Final = ("q", "ctrl+c", "ctrl+z")
KEYS: Final = [key for action in ACTIONS for key in action.keys if key not in LEAVING]
EDITING: Final = ["enter", "escape", "tab", "shift+tab", "backspace", "delete", "home", "end"]
OPENING: Final = ["m", "o", "s", "p", "C", "?", "i", "ctrl+p", ":", "/", "f", "ctrl+g", "0", "8"]
ODD_KEYS: Final = [
    *("f1", "f12", "ctrl+a", "ctrl+w", "ctrl+u", "insert", "ctrl+@", "é", "界", "\u202e")
]
COMMANDS: Final = [
    *(f"view {name}" for name in (*VIEWS, *SET_VIEWS)),
    *(f"{action.verb}" for action in ACTIONS if action.verb not in ("quit", "suspend")),
    *("sort -kernel_ns", "go gpu=1/iteration=11", "baseline gpu=0", "width 3", "filter [", "(((",
      "by operation", "pivot operation", "by tp", "sweep tp", "of step_time_ns", "from 1ms",
      "go ?view=graph", "go ?base=nowhere", "metric power_w", "stat mean", "over gpu"),
]  # fmt: skip
_USES: Final[list[list[list[str]]]] = [
    [["j"], ["k"], ["j"] * 5, ["pagedown"], ["pageup"], ["G"], ["g"]],
    [["enter"], ["enter", "enter"], ["escape"], ["escape"] * 3, ["H"], ["L"]],
    [[digit] for digit in "0123456789"],
    [["]"], ["["], ["}"], ["{"], [","], ["."], ["+"], ["-"], ["Z"], ["M"], ["r"], ["x"], ["z"]],
    [["?", "escape"], ["i", "escape"], ["o", "j", "enter"], ["p", "j", "enter"], ["tab"], ["c"],
     ["/", "a", "t", "enter"], ["/", "backspace", "enter"], ["f", "g", "e", "m", "m", "enter"]],
]  # fmt: skip
_USE_WEIGHTS: Final = (50, 20, 8, 12, 10)
_USER_COMMANDS: Final = ["theme dark", "theme light", "theme contrast", "go ", "filter", "baseline"]
PASTES: Final = ["[red]bold", "\x1b[31m", "a\nb\n\n", "x" * 5000, "\u202egpu", "", " "]
SIZES: Final = [
    Size(*size)
    for size in ((1, 1), (2, 3), (20, 5), (39, 9), (40, 10), (80, 24), (120, 40), (200, 60))
]
LARGEST: Final = Size(500, 200)
BURSTS: Final = (1, 2, 5, 13, 34, 89, 233)
"""Inputs without a pause: of fast typists, of pastes, of keys that repeat."""
PACES: Final = (1.0, 0.2, 0.04)
"""Of the moments that the app waits before it draws."""
MAX_GROWTH_MB: Final = 1500
"""Of the process within a session: far more than any view of these runs needs."""
MAX_HANG_S: Final = 2.0
"""Of the processor: others share it, and what they take is no hang."""
MAX_WAIT_S: Final = 30.0
"""Of wall time: nothing waits so long for another."""
_BEAT_S: Final = 0.05


class Outcome(Struct):
    """A session: what ended it, how many inputs it took, and the longest silence of the loop."""

    seed: int
    kind: str
    inputs: int = 0
    longest_s: float = 0.0
    silence: str = ""
    """Where the loop was when it was silent for too long."""
    growth: str = ""
    """Where the threads were when the process had grown too much."""
    crash: str = ""
    last: tuple[str, ...] = ()


class Stuck(Exception):
    """The screen never becomes quiet, or keys are not performed."""


async def session(seed: int, kind: str, run: Run, start: View, inputs: int) -> Outcome:
    """One session of random input; crashes and silences are in the outcome."""
    random = Random(seed)
    outcome = Outcome(seed, kind)
    recent: list[str] = []
    names = SET_VIEWS if isinstance(run, RunSet) else ("", *VIEWS)
    first = with_view(start, random.choice(names))
    if first.name == "compare" and first.baseline is None:
        first = start
    size = random.choice([(80, 24), (80, 24), (120, 40), (200, 60), (40, 10), (20, 5)])
    config = replace(DEFAULTS, is_first=random.random() < 0.1)
    glyphs = ASCII if random.random() < 0.1 else UNICODE
    app = ChopperApp(lambda _: run, first, glyphs=glyphs, config=config)
    pace = random.choice(PACES)
    app.SETTLING = pace * ChopperApp.SETTLING  # type: ignore[misc]
    try:
        async with app.run_test(size=size) as pilot:
            at = Driven(app, pilot)
            with _watched(outcome) as beat, _errors_of_memory_are_crashes():
                watch = asyncio.create_task(beat)
                await quiet(at)
                at.explore.DETAIL_DELAY *= pace  # type: ignore[misc]
                while outcome.inputs < inputs and app.is_running:
                    outcome.inputs += _burst(at, random, recent)
                    del recent[:-60]
                    if random.random() < 0.3:
                        await quiet(at)
                    else:
                        await asyncio.sleep(random.choice([0, 0, 0, 0.001, 0.01]))
                if app.is_running:
                    await quiet(at)
                    at.send(*["escape"] * 8)
                    await quiet(at)
                    if app.is_running and not isinstance(app.screen, Explorer):
                        raise Stuck(f"Esc leaves {type(app.screen).__name__} open")
                watch.cancel()
        if app.crash is not None:
            raise app.crash
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        # Of a worker's error Textual tells the text alone.
        outcome.crash = "".join(traceback.format_exception(app.crash or error))
    outcome.last = tuple(recent)
    return outcome


async def use(run: Run, start: View, actions: int, note: Callable[[int], None]) -> None:
    """Work in one explorer as a person does; `note` is called after each tenth of the actions.

    The same places are seen again and again, so that what is kept of them is bounded.
    """
    random = Random(actions)
    app = ChopperApp(lambda _: run, start)
    app.SETTLING = 0.001  # type: ignore[misc]
    async with app.run_test(size=(120, 40)) as pilot:
        at = Driven(app, pilot)
        await quiet(at)
        at.explore.DETAIL_DELAY = 0.001  # type: ignore[misc]
        for done in range(1, actions + 1):
            kind = random.random()
            if kind < 0.94:
                at.send(*random.choice(random.choices(_USES, _USE_WEIGHTS)[0]))
            elif kind < 0.98:
                at.send("escape", "escape", ":")
                at.paste(random.choice(_USER_COMMANDS))
                at.send("enter")
            else:
                size = random.choice([Size(80, 24), Size(120, 40), Size(200, 60)])
                event = events.Resize(size, size)
                event.set_sender(app)
                app.post_message(event)
            if done % 4 == 0:
                await quiet(at)
            if done % (actions // 10) == 0:
                note(done)
    if app.crash is not None:
        raise app.crash


async def quiet(at: Driven) -> None:
    """Wait until all input is performed and nothing is left to draw; raises Stuck."""
    app = at.app
    now, used, waited = time.monotonic(), time.process_time(), 0.0
    calm, left = 0, 0
    while app.is_running and calm < 3:
        await asyncio.sleep(0 if calm else 0.002)
        pending = [worker for worker in app.workers if not worker.is_finished]
        queued = [each for each in app._registry if not each._message_queue.empty()]
        drawing = bool(app._batch_count) or at._has_more_to_draw()
        waits = pending or queued or drawing or app._keys
        calm = 0 if waits else calm + 1
        before, left = left, len(app._keys) + app._message_queue.qsize()
        if left < before:  # A long burst is no hang while its keys are performed.
            used, waited = time.process_time(), 0.0
        # A machine that stood still, or gave the processor to others, is no hang.
        waited, now = waited + min(time.monotonic() - now, 1.0), time.monotonic()
        spent = time.process_time() - used
        if spent > 5 * MAX_HANG_S or (waited > 5 * MAX_WAIT_S and spent > 1):
            screen = app.screen
            raise Stuck(
                f"never quiet: {len(app._keys)} keys, {app._batch_count} batches, {pending=}, "
                f"{queued=}, {drawing=}, "
                f"{app.screen_stack}, size {app.size}, dirty {screen._dirty_widgets}, "
                f"layout {screen._layout_required} {list(screen._layout_widgets)}, "
                f"timer {screen._update_timer._active.is_set()}, "
                f"{getattr(app.screen_stack[0], 'frame', None) and at.frame.view}\n{_threads()}"
            )


def _threads() -> str:
    """Where the other threads are."""
    frames = sys._current_frames().items()
    stacks = (
        "".join(traceback.format_stack(frame, 12))
        for ident, frame in frames
        if ident != get_ident()
    )
    return "\n".join(stacks)


def resident_mb() -> float:
    """Memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextmanager
def _errors_of_memory_are_crashes() -> Iterator[None]:
    """The explorer says that a view needs too much memory, which no view of these runs does."""
    with patch("chopper_tui.steps.is_out_of_memory", lambda _: False):  # noqa: SIM117
        with patch("chopper_tui.app.is_out_of_memory", lambda _: False):
            yield


@contextmanager
def _watched(outcome: Outcome) -> Iterator[object]:
    """Note the longest time in which the event loop did nothing else, and where it was then."""
    ident, over = get_ident(), Event()
    last = [time.monotonic(), time.process_time()]

    def silent_s() -> float:
        wall, used = time.monotonic() - last[0], time.process_time() - last[1]
        return wall if wall > MAX_WAIT_S else min(wall, used)

    async def beat() -> None:
        while True:
            outcome.longest_s = max(outcome.longest_s, silent_s())
            last[:] = [time.monotonic(), time.process_time()]
            await asyncio.sleep(_BEAT_S)

    most_mb = resident_mb() + MAX_GROWTH_MB

    def look() -> None:
        while not over.wait(0.1):
            if silent_s() > MAX_HANG_S and not outcome.silence:
                frame = sys._current_frames().get(ident)
                outcome.silence = "".join(traceback.format_stack(frame))
            if (now := resident_mb()) > most_mb and not outcome.growth:
                outcome.growth = f"{now:.0f} MB, {MAX_GROWTH_MB} more than before\n{_threads()}"

    Thread(target=look, daemon=True).start()
    try:
        yield beat()
    finally:
        over.set()


def _burst(at: Driven, random: Random, recent: list[str]) -> int:
    """Inputs one after another, or a key that is held; their number."""
    count = random.choice(BURSTS)
    if random.random() < 0.2:
        key, count = random.choice(KEYS + 4 * EDITING), min(count, 89)
        at.send(*[key] * count)
        recent.append(f"{key} x{count}")
    else:
        recent += [_input(at, random) for _ in range(count)]
    return count


def _input(at: Driven, random: Random) -> str:
    """Put one random input into the app's queue; its description."""
    kind = random.random()
    width, height = at.app.size
    if kind < 0.80:
        key = random.choice(
            random.choices(
                [KEYS, OPENING, EDITING, ODD_KEYS, list("agjkx019 .*")], [6, 3, 6, 1, 2]
            )[0]
        )
        at.send(key)
        return key
    if kind < 0.93:
        x, y = random.randrange(-1, width + 2), random.randrange(-1, height + 2)
        down, up, move = events.MouseDown, events.MouseUp, events.MouseMove
        chosen = random.choice(
            [[down, up], [down, up, down, up], [move], [events.MouseScrollDown],
             [events.MouseScrollUp], [down, move], [down, move, move, up]]
        )  # fmt: skip
        button, shift = random.choice([0, 1, 1, 1, 2, 3]), random.random() < 0.1
        for each in chosen:
            if each is move:
                x, y = x + random.randrange(-9, 10), y + random.randrange(-3, 4)
            dx, dy = random.randrange(-3, 4), random.randrange(-3, 4)
            event = each(None, x, y, dx, dy, button, shift, False, False, x, y)
            event.set_sender(at.app)
            at.app.post_message(event)
        return f"mouse {x},{y} {len(chosen)}"
    if kind < 0.98:
        text = random.choice(COMMANDS if random.random() < 0.8 else PASTES)
        if random.random() < 0.9:
            at.send(":")
        at.paste(text)
        if random.random() < 0.7:
            at.send("enter")
        return f"paste {text[:30]!r}"
    new = LARGEST if random.random() < 0.01 else random.choice(SIZES)
    event = events.Resize(new, new)
    event.set_sender(at.app)
    at.app.post_message(event)
    return f"resize {new.width}x{new.height}"


def handles() -> int:
    """Open file handles of this process."""
    return len(os.listdir("/proc/self/fd"))
