"""Starting the explorer on a run that is opened at the same time."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from chopper_core.model.view import View
from chopper_core.util import debug
from chopper_tui.commands.output import settings, tell
from chopper_tui.terminal import glyphs_of

if TYPE_CHECKING:
    from chopper_core.answers.opening import ReadOptions
    from chopper_core.ingest.follow import Follower
    from chopper_core.model.run import Run
    from chopper_core.util.progress import Progress


def show_run(
    load: Callable[[Progress], Run],
    view: View,
    *,
    check: Callable[[Progress], None] | None = None,
    follower: Follower | None = None,
    exits_on_alarm: bool = False,
    is_ascii: bool = False,
    mouse: bool = True,
    reading: ReadOptions | None = None,
) -> int:
    """Show a view in the explorer; `check` then verifies what its run was read from.

    `reading` is how `:open` reads other runs.
    """
    from chopper_core.render.glyphs import ASCII, UNICODE
    from chopper_core.util.memory import keep_freed
    from chopper_tui.config import is_first_start, saved_columns, saved_splits
    from chopper_tui.last_screen import own_screen
    from chopper_tui.opening import HEAD_START_S, Opening
    from chopper_tui.terminal import keys_kept, prepare_environment

    prepare_environment()
    config = settings()
    config = replace(
        config,
        columns={**config.columns, **saved_columns()},
        splits=saved_splits(),
        remember=True,
        is_first=is_first_start(),
    )
    log = debug.to_file(_debug_path) if debug.target == debug.STDERR else ""
    wanted = {"ascii": ASCII, "unicode": UNICODE}.get("ascii" if is_ascii else config.glyphs)
    # Where Textual draws.
    glyphs = wanted or glyphs_of(sys.__stderr__ or sys.stderr)
    keep_freed(of_large=True)
    with keys_kept():
        opening = Opening(load, view, config.columns)
        opening.begin()
        # Two threads that import take turns, which costs more than one after the other.
        opening.is_there(HEAD_START_S)
        try:
            from chopper_tui.app import ChopperApp
            from chopper_tui.play import run_app

            app = ChopperApp(opening, view, glyphs=glyphs, config=config)
            app.check, app.follower, app.exits_on_alarm = check, follower, exits_on_alarm
            app.reading = reading or app.reading
            last = own_screen()
            if last is not None and check is not None:
                app.draw_over(last)
            code = run_app(app, mouse=config.mouse and mouse)
            if app.alarm:
                tell(app.alarm)
            return code
        finally:
            opening.cancel()
            if follower is not None:
                follower.close()
            if log:
                tell(f"the notes of --debug are in {log}")


def _debug_path() -> str:
    """A file for what standard error can't take, where the explorer draws."""
    from chopper_core.util.atomic import make_private
    from chopper_tui.config import state_directory

    make_private(state_directory())
    return str(state_directory() / f"debug-{os.getpid()}.log")
