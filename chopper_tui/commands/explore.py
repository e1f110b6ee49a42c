"""`chopper RUN`: the explorer; without a terminal, the view as text."""

from __future__ import annotations

import os
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from chopper_core.answers.opening import home_of, verify_view
from chopper_core.answers.runner import against
from chopper_core.model.view import View, with_view
from chopper_core.store.format import name_of, store_of
from chopper_core.util.escape import escape_lines
from chopper_tui.commands.options import (
    open_view_with,
    open_with_progress,
    read_options,
    view_of,
)
from chopper_tui.commands.output import glyphs, width, write
from chopper_tui.terminal import can_draw

if TYPE_CHECKING:
    from chopper_core.model.run import Run
from chopper_tui.commands.start import show_run


def address_of(runs: list[str]) -> str:
    """The address for these names: traces of one run or of several, or a baseline and a run."""
    runs = _folded(runs)
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


def _folded(names: list[str]) -> list[str]:
    """The names as a person meant them before a shell expanded `STORE/*` or `RUN/*`.

    The files of a store are the store; all that is in a directory, files and directories, is it.
    """
    paths = {name: Path(os.path.expanduser(name)) for name in names}
    stores = {name: store_of(path) for name, path in paths.items()}
    names = [*dict.fromkeys(
        name if stores[name] == path else name_of(stores[name]) for name, path in paths.items()
    )]  # fmt: skip
    folders = {os.path.dirname(os.path.expanduser(name)) for name in names}
    are_mixed = len({os.path.isdir(os.path.expanduser(name)) for name in names}) > 1
    if len(folders) > 1 or not are_mixed:
        return names
    folder = folders.pop()
    try:
        entries = {entry for entry in os.listdir(folder or ".") if not entry.startswith(".")}
    except OSError:
        return names
    return [name_of(folder or ".")] if entries == {*map(os.path.basename, names)} else names


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
