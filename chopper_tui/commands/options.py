"""The runs and views that commands open by their options."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from chopper_core.answers import opening
from chopper_core.answers.opening import ReadOptions
from chopper_core.model.overrides import Overrides, overrides_of
from chopper_core.model.view import View
from chopper_core.util import debug
from chopper_core.util.escape import escape_lines
from chopper_core.util.progress import Progress, progress_text, share_done
from chopper_tui.terminal import guard_mapped_files

if TYPE_CHECKING:
    from chopper_core.model.run import Run

_BAR_CELLS: Final = 24


def view_of(address: str, options: Namespace) -> View:
    """The view of an address, read as the options say; they win over the address."""
    view = opening.asked_view(address)
    given = (options.hardware, options.parallel, options.base_parallel)
    overrides = overrides_of(options.clock, options.gpu, view.overrides, *given)
    settings = (*overrides.settings, *options.set)
    return replace(view, overrides=replace(overrides, settings=settings))


def read_options(options: Namespace) -> ReadOptions:
    return ReadOptions(options.jobs, not options.no_cache)


def open_with_progress(view: View, options: Namespace) -> Run:
    """The run of a view, with progress on standard error; of a set, once its runs are read."""
    with progress_line() as progress:
        return opening.all_read(open_view_with(view, options, progress), progress)


def open_view_with(
    view: View, options: Namespace, progress: Progress, *, is_verified: bool = True
) -> Run:
    guard_mapped_files()
    return opening.open_view(view, read_options(options), progress, is_verified=is_verified)


def open_one_with(view: View, options: Namespace, progress: Progress) -> Run:
    guard_mapped_files()
    return opening.open_one(view, read_options(options), progress)


def opened_run_with(name: str, overrides: Overrides, options: Namespace, progress: Progress) -> Run:
    guard_mapped_files()
    return opening.opened_run(name, overrides, read_options(options), progress)


@contextmanager
def progress_line() -> Iterator[Progress]:
    """One line on stderr that names the step and how far it is; silent without a terminal."""
    is_terminal = sys.stderr.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
    shown = noted = ""

    def report(step: str, done: int, total: int) -> None:
        nonlocal shown, noted
        if debug.target and step != noted:
            noted = step
            debug.note(step)
        line, share = escape_lines(progress_text(step, done, total))[:48], share_done(done, total)
        if share is not None:
            line += f"  [{'#' * int(share * _BAR_CELLS):.<{_BAR_CELLS}}] {share:4.0%}"
        if is_terminal and line != shown:
            write(f"\r{line}\x1b[K")
            shown = line

    def write(text: str) -> None:
        # A terminal may be closed while the command runs on.
        with suppress(OSError):
            sys.stderr.write(text)
            sys.stderr.flush()

    try:
        yield report
    finally:
        if shown:
            write("\r\x1b[K")
