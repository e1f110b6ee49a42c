"""Running the app: in a terminal until it is left, or without one on inputs from a file.

The last screen of a replay is printed as text.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from textual import events
from textual.geometry import Size
from textual.worker import WorkerCancelled

from chopper_core.util import debug
from chopper_core.util.atomic import read_small
from chopper_core.util.errors import DataError, UsageError
from chopper_tui.crash import WAIT, summary
from chopper_tui.endings import FATAL_SIGNALS, give_back
from chopper_tui.keymap import is_key
from chopper_tui.terminal import remark
from chopper_tui.textual_internals import is_holding_back, messages_done, press, screen_text

if TYPE_CHECKING:
    from textual.pilot import Pilot

    from chopper_tui.app import ChopperApp

_CRASHED: Final = 1
_SWITCH_INTERVAL_S: Final = 0.001
"""After which a thread gives the screen the interpreter, instead of after 5 ms."""
_ROUNDS: Final = 200
_MAX_SHOWN: Final = 60
_MOUSE: Final = re.compile(r"mouse (\w+) (-?\d{1,4}),(-?\d{1,4}) (\d)((?: (?:shift|meta|ctrl))*)")
_RESIZE: Final = re.compile(r"resize (\d{1,4})x(\d{1,4})")
_PASTE: Final = re.compile(r'paste (".*")')
_MOUSE_EVENTS: Final = {
    "down": events.MouseDown,
    "up": events.MouseUp,
    "move": events.MouseMove,
    "scroll_down": events.MouseScrollDown,
    "scroll_up": events.MouseScrollUp,
}


def run_app(app: ChopperApp, *, mouse: bool = True) -> int:
    """Run the explorer until it ends; the exit code. Errors are printed on stderr."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        asyncio.run(_run(app, mouse))
        crash = app.crash
    except Exception as error:
        crash = error
    if crash is not None:
        path = app.write_crash(crash)
        where = f"repeat it with: chopper --replay {path}" if path else "no log could be written"
        remark(f"chopper: internal error ({summary(crash)}); {where}")
        debug.note_error(crash)
        return _CRASHED
    if app.failure is not None:
        remark(f"chopper: {app.failure}")
    if app.ended_by is not None:
        remark(f"chopper: ended by {app.ended_by.name}")
    return app.return_code or 0


async def _run(app: ChopperApp, mouse: bool) -> None:
    loop = asyncio.get_running_loop()

    def end(number: signal.Signals) -> None:
        app.ended_by = number
        app.exit(return_code=128 + number)

    # `nohup` ignores SIGHUP: what is ignored stays so.
    before = {number: signal.getsignal(number) for number in FATAL_SIGNALS}
    caught = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in caught:
        loop.add_signal_handler(number, end, number)
        # The loop learns of signals from a pipe, whatever is called here.
        signal.signal(number, app.hurry)
        signal.siginterrupt(number, False)
    try:
        await app.run_async(mouse=mouse)
    finally:
        for number in caught:
            loop.remove_signal_handler(number)
        give_back({number: before[number] for number in caught})


class Played(Struct):
    """The outcome of a replay."""

    screen: str = ""
    """The last screen, as text without colours."""
    inputs: int = 0
    """How many were given."""
    crash: BaseException | None = None


def keys_of(path: str) -> list[str]:
    """The inputs of a replay: per line a key, `text "..."` or `:command`; `#` begins a comment.

    Logs of crashes have `paste "..."`, `mouse ...` and `resize WxH` too, and `wait` where a person
    did; these lines stay as they are.
    """
    try:
        lines = read_small(path).decode("utf-8").splitlines()
    except OSError as error:
        raise DataError(f"the replay {path} can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"the replay {path} is not UTF-8 text") from error
    keys: list[str] = []
    for number, line in enumerate(map(str.strip, lines), 1):
        if typed := re.fullmatch(r'text\s+(".*")', line):
            try:
                keys += json.loads(typed[1])
            except ValueError as error:
                raise UsageError(f"{path}:{number}: {_short(line)} lacks a quoted text") from error
        elif line.startswith(":") and len(line) > 1:
            keys += [*line, "enter"]
        elif (is_key(line) and line != "#") or line == WAIT or _is_input(line):
            keys.append(line)
        elif line and not line.startswith("#"):
            raise UsageError(
                f'{path}:{number}: invalid key {_short(line)!r}; `text "..."` types a text'
            )
    return keys


def _short(line: str) -> str:
    return line if len(line) <= _MAX_SHOWN else f"{line[:_MAX_SHOWN]}…"


def _is_input(line: str) -> bool:
    """Whether a line of a log is an input other than a key."""
    if mouse := _MOUSE.fullmatch(line):
        return mouse[1] in _MOUSE_EVENTS
    if paste := _PASTE.fullmatch(line):
        with suppress(ValueError):
            return isinstance(json.loads(paste[1]), str)
    return _RESIZE.fullmatch(line) is not None


def play(app: ChopperApp, keys: list[str], size: tuple[int, int]) -> str:
    """The screen after the keys, as text without colours; raises what ends the app."""
    done = played(app, keys, size)
    if done.crash is not None:
        raise done.crash
    return done.screen


def played(app: ChopperApp, keys: list[str], size: tuple[int, int]) -> Played:
    """Give inputs to an app; raises the error that it couldn't open its run with.

    It waits until the screen is quiet after each, or where a log has pauses, there alone.
    """
    done = Played()
    try:
        asyncio.run(_play(app, keys, size, done))
    except Exception as error:
        done.crash = app.crash or error
    if app.failure is not None:
        raise app.failure
    return done


async def _play(app: ChopperApp, keys: list[str], size: tuple[int, int], done: Played) -> None:
    has_pauses = WAIT in keys
    async with app.run_test(size=size) as pilot:
        done.screen = await _settled(app, pilot)
        for key in keys:
            if not app.is_running:
                break
            if key != WAIT:
                _give(app, key)
                done.inputs += 1
            if key == WAIT or not has_pauses:
                done.screen = await _settled(app, pilot) or done.screen
        done.screen = await _settled(app, pilot) or done.screen


def _give(app: ChopperApp, line: str) -> None:
    """Put an input into the app's queue, as the terminal does."""
    event: events.Event
    if mouse := _MOUSE.fullmatch(line):
        x, y, button = int(mouse[2]), int(mouse[3]), int(mouse[4])
        shift, meta, ctrl = (name in mouse[5].split() for name in ("shift", "meta", "ctrl"))
        event = _MOUSE_EVENTS[mouse[1]](None, x, y, 0, 0, button, shift, meta, ctrl, x, y)
    elif paste := _PASTE.fullmatch(line):
        event = events.Paste(json.loads(paste[1]))
    elif resize := _RESIZE.fullmatch(line):
        size = Size(int(resize[1]), int(resize[2]))
        event = events.Resize(size, size)
    else:
        press(app, line)
        return
    event.set_sender(app)
    app.post_message(event)


async def _settled(app: ChopperApp, pilot: Pilot[None]) -> str:
    """The screen, once no worker, message or change is under way; empty if the app has left."""
    before = ""
    for _ in range(_ROUNDS):
        await messages_done(pilot)
        pending = [worker for worker in app.workers if not worker.is_finished]
        for worker in pending:
            with suppress(WorkerCancelled):
                await worker.wait()
        await asyncio.sleep(0.002 if is_holding_back(app) else 0)
        if not app.is_running:
            return ""
        now = screen_text(app)
        if not pending and not is_holding_back(app) and now == before:
            break
        before = now
    return before
