"""A replay: keys from a file into an explorer without a terminal, its last screen as text."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from textual.worker import WorkerCancelled

from chopper_core.util.errors import DataError, UsageError
from chopper_tui.keymap import is_key
from chopper_tui.textual_internals import is_holding_back, messages_done, press, screen_text

if TYPE_CHECKING:
    from textual.pilot import Pilot

    from chopper_tui.app import ChopperApp

_ROUNDS: Final = 200


def keys_of(path: str) -> list[str]:
    """The keys of a replay: per line a key, `text "..."` or `:command`; `#` begins a comment."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
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
                raise UsageError(f"{path}:{number}: {line} lacks a quoted text") from error
        elif line.startswith(":") and len(line) > 1:
            keys += [*line, "enter"]
        elif is_key(line) and line != "#":
            keys.append(line)
        elif line and not line.startswith("#"):
            raise UsageError(f'{path}:{number}: invalid key {line!r}; `text "..."` types a text')
    return keys


def play(app: ChopperApp, keys: list[str], size: tuple[int, int]) -> str:
    """The screen after the keys, as text without colours."""
    return asyncio.run(_play(app, keys, size))


async def _play(app: ChopperApp, keys: list[str], size: tuple[int, int]) -> str:
    async with app.run_test(size=size) as pilot:
        shown = await _settled(app, pilot)
        for key in keys:
            if not app.is_running:
                break
            press(app, key)
            shown = await _settled(app, pilot) or shown
    if app.failure is not None:
        raise app.failure
    return shown


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
