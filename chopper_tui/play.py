"""Running the app: in a terminal until it is left, or without one on keys from a file."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from textual.worker import WorkerCancelled

from chopper_core.util import debug
from chopper_core.util.atomic import read_small
from chopper_core.util.errors import DataError, UsageError
from chopper_core.util.memory import is_out_of_memory, memory_error
from chopper_tui.config import crash_summary
from chopper_tui.keymap import is_key
from chopper_tui.terminal import give_terminal_back, handlers, remark
from chopper_tui.textual_internals import is_holding_back, messages_done, press, screen_text

if TYPE_CHECKING:
    from textual.pilot import Pilot

    from chopper_tui.app import ChopperApp

_CRASHED: Final = 1
_SWITCH_INTERVAL_S: Final = 0.001
"""After which a thread gives the screen the interpreter, instead of after 5 ms."""
_ROUNDS: Final = 200
_MAX_SHOWN: Final = 60


def run_app(app: ChopperApp, *, mouse: bool = True) -> int:
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        asyncio.run(_run(app, mouse))
        crash = app.crash
    except Exception as error:
        crash = error
    if crash is not None and is_out_of_memory(crash):
        remark(f"chopper: {memory_error('the explorer', crash)}")
        debug.note_error(crash)
        return _CRASHED
    if crash is not None:
        path = app.write_crash(crash)
        where = f"{path} has the traceback and the keys" if path else "no file could be written"
        remark(f"chopper: internal error ({crash_summary(crash)}); {where}")
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

    before = handlers()
    for number in before:
        loop.add_signal_handler(number, end, signal.Signals(number))
        # The loop learns of signals from a pipe, whatever is called here.
        signal.signal(number, app.hurry)
    try:
        await app.run_async(mouse=mouse)
    finally:
        for number in before:
            loop.remove_signal_handler(number)
        give_terminal_back(before)


def keys_of(path: str) -> list[str]:
    """The keys in a file: per line a key, `text "..."` or `:command`; `#` begins a comment."""
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
        elif is_key(line) and line != "#":
            keys.append(line)
        elif line and not line.startswith("#"):
            raise UsageError(
                f'{path}:{number}: invalid key {_short(line)!r}; `text "..."` types a text'
            )
    return keys


def _short(line: str) -> str:
    return line if len(line) <= _MAX_SHOWN else f"{line[:_MAX_SHOWN]}…"


def play(app: ChopperApp, keys: list[str], size: tuple[int, int]) -> str:
    try:
        screen = asyncio.run(played(app, keys, size))
    except Exception as error:
        raise (app.crash or error) from None
    if app.failure is not None:
        raise app.failure
    return screen


async def played(app: ChopperApp, keys: list[str], size: tuple[int, int]) -> str:
    async with app.run_test(size=size) as pilot:
        screen = await _settled(app, pilot)
        for key in keys:
            if app.is_running:
                press(app, key)
                screen = await _settled(app, pilot) or screen
    return screen


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
