"""`chopper RUN`: the explorer; without a terminal, the view as text."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from chopper_core.answers.opening import home_of, verify_view
from chopper_core.answers.runner import against
from chopper_core.model.view import View, with_view
from chopper_core.util import debug
from chopper_core.util.escape import escape_lines
from chopper_tui.commands.options import (
    open_view_with,
    open_with_progress,
    read_options,
    view_of,
)
from chopper_tui.commands.output import glyphs, settings, tell, width, write
from chopper_tui.terminal import can_draw, glyphs_of

if TYPE_CHECKING:
    from chopper_core.answers.opening import ReadOptions
    from chopper_core.ingest.follow import Follower
    from chopper_core.model.run import Run
    from chopper_core.util.progress import Progress


def address_of(runs: list[str]) -> str:
    """The address for these names: traces of one run or of several, or a baseline and a run."""
    paths = [os.path.expanduser(name) for name in runs]
    if len(runs) == 2 and all(map(os.path.isdir, paths)):
        return against(runs[1], runs[0])
    address = ",".join(runs)
    if len(runs) > 1 and all(map(os.path.isfile, paths)):
        from chopper_core.ingest.discovery import find_runs

        found = find_runs([address])
        if len(found) == 2:
            found.sort(key=lambda each: runs[0] not in each.path.split(","))
            return against(found[1].path, found[0].path)
    return address


def explore(address: str, options: Namespace) -> int:
    view = view_of(address, options)
    if options.watch and (options.format or can_draw() is not None):
        from chopper_tui.commands.following import write_lines

        return write_lines(view, options)
    if options.play or can_draw() is None:
        view = home_of(view)
    if options.play:
        # Loaded first: processes can't be started under the app, which captures standard error.
        return play_keys(open_with_progress(view, options), view, options)
    if can_draw() is not None:
        from chopper_core.views.query import query
        from chopper_tui.export import printed

        frame = query(open_with_progress(view, options), view)
        write(printed(frame, width=width(), glyphs=glyphs(is_ascii=options.ascii)))
        return 0
    if options.watch:
        return _watch(view, options)
    return show_run(
        partial(open_view_with, view, options, is_verified=options.no_cache),
        view,
        check=None if options.no_cache else partial(verify_view, view),
        is_ascii=options.ascii,
        mouse=not options.no_mouse,
        reading=read_options(options),
    )


def _watch(view: View, options: Namespace) -> int:
    from chopper_tui.commands.following import follower_for

    follower = follower_for(view, options)
    is_plain = view == home_of(View(view.run)) and follower.load is None
    start = with_view(view, "live") if is_plain else view
    return show_run(
        follower.open,
        start,
        follower=follower,
        exits_on_alarm=options.exit_on_alarm,
        is_ascii=options.ascii,
        mouse=not options.no_mouse,
        reading=read_options(options),
    )


def play_keys(run: Run, view: View, options: Namespace) -> int:
    """Write the screen of a run after the keys in a file."""
    from chopper_core.render.glyphs import ASCII, UNICODE
    from chopper_tui.terminal import prepare_environment

    prepare_environment()
    from chopper_tui.app import ChopperApp
    from chopper_tui.play import keys_of, play

    keys = keys_of(options.play)
    shown = ASCII if options.ascii else UNICODE
    app = ChopperApp(lambda _: run, view, glyphs=shown, as_text=True)
    write(escape_lines(play(app, keys, options.size)))
    return 0


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
    from chopper_core.util.memory import share_one_heap
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
    share_one_heap()
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
