"""The runs and views that commands open by their options."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from msgspec.structs import replace

from chopper_core.model.inputs import MEASURED
from chopper_core.model.overrides import Overrides, overrides_of
from chopper_core.model.view import View, with_view
from chopper_core.util import debug
from chopper_core.util.errors import UsageError
from chopper_core.util.escape import escape_lines
from chopper_core.util.plugins import extension_part
from chopper_core.util.progress import Progress, share_done, step_text
from chopper_core.views import OVERVIEW
from chopper_core.views.spec import SeveralRuns
from chopper_tui.terminal import guard_mapped_files

if TYPE_CHECKING:
    from chopper_core.model.run import Run

_BAR_CELLS: Final = 24


def against(name: str, base: str, path: str = "") -> str:
    """The address of a node of a run with the same node of another as its baseline."""
    return (
        f"{name}{f':{path}' if path else ''}?base={quote(base, safe='/', errors='surrogateescape')}"
    )


def view_of(address: str, options: Namespace) -> View:
    """The view of an address, read as the options say; a run whose path looks like one is a path.

    Options win over the address.
    """
    from chopper_core.model.address import parse

    view = View(address) if os.path.exists(address) else parse(address)
    given = (options.hardware, options.parallel, options.base_parallel)
    overrides = overrides_of(options.clock, options.gpu, view.overrides, *given)
    settings = (*overrides.settings, *options.set)
    return replace(view, overrides=replace(overrides, settings=settings))


def home_of(view: View) -> View:
    plain = View(view.run, baseline=view.baseline, overrides=view.overrides)
    if view != plain or (view.baseline is not None and view.baseline.path is not None):
        return view
    return with_view(view, OVERVIEW)


def open_with_progress(view: View, options: Namespace) -> Run:
    """The run of a view, with progress on standard error; of a set, once its runs are read."""
    with progress_line() as progress:
        return all_read(open_view(view, options, progress), progress)


def all_read(run: Run, progress: Progress) -> Run:
    if isinstance(run, SeveralRuns):
        count = len(run.others)
        while waiting := run.waiting(wait=True):
            progress(f"read {count - waiting} of {count} runs", count - waiting, count)
    return run


def holds_several(name: str, use_cache: bool) -> bool:
    """Whether a name is several runs, or directories that hold some; searched once for a state."""
    from chopper_core.ingest.cache import kept
    from chopper_core.store.format import is_store, paths_of

    paths = paths_of(name)
    if not all(path.exists() and not is_store(path) for path in paths) or paths[0].is_file() >= len(
        paths
    ):
        return False
    place = kept("sets", name)
    known = place.recall(bool) if use_cache else None
    if known is None:
        from chopper_core.ingest.discovery import holds_runs

        known = holds_runs(name)
        if use_cache:
            place.keep(known)
    return known


def open_view(
    view: View, options: Namespace, progress: Progress, *, is_verified: bool = True
) -> Run:
    """The run of a view, with that of its baseline; unless it `is_verified`, see `verify_view`."""
    if view.overrides.predicted and holds_several(view.run, not options.no_cache):
        raise UsageError(
            f"{view.run} holds several runs: ask predicted={view.overrides.predicted} of one"
        )
    run = opened_run(view.run, view.overrides, options, progress, is_verified=is_verified)
    # The baseline of a set is one of its runs.
    is_set = isinstance(run, SeveralRuns)
    if is_set:
        return run
    if name := _base_of(view):
        base = opened_run(name, view.overrides.of_base, options, progress, is_verified=is_verified)
        run = replace(run, others={name: base})
    if view.overrides.predicted:
        from chopper_core.views.whatif import run_of

        run = run_of(run, view)
    return run


def open_one(view: View, options: Namespace, progress: Progress) -> Run:
    """The run of a view, as `open_view`; raises DataError where its name is several runs."""
    if holds_several(view.run, not options.no_cache):
        from chopper_core.ingest.discovery import check_is_one

        check_is_one(view.run)
    return open_view(view, options, progress)


def _base_of(view: View) -> str:
    """The run to open that a view's is compared with; the measured one is there."""
    is_measured = view.overrides.predicted and view.base_run == MEASURED
    return "" if is_measured else view.base_run


def verify_view(view: View, progress: Progress) -> None:
    from chopper_core.ingest.cache import verify_run

    verify_run(view.run, view.overrides.of_run, progress)
    if name := _base_of(view):
        verify_run(name, view.overrides.of_base.of_run, progress)


def opened_run(
    name: str,
    overrides: Overrides,
    options: Namespace,
    progress: Progress,
    *,
    is_verified: bool = True,
) -> Run:
    guard_mapped_files()
    if holds_several(name, not options.no_cache):
        from chopper_core.model.settings import given_settings

        several = extension_part("runs", f"{name} holds several runs: to show them side by side")
        found: Run = several.open_runs(
            name,
            [name],
            given_settings(overrides.settings, overrides.names),
            jobs=options.jobs,
            use_cache=not options.no_cache,
            overrides=overrides.of_run,
        )
        return found
    run = _one_run(name, overrides.of_run, options, progress, is_verified=is_verified)
    if overrides.settings or overrides.names:
        from chopper_core.model.settings import given_settings

        given = given_settings(overrides.settings, overrides.names).of(name)
        # Settings change nothing that is read.
        run = replace(run, settings={**run.settings, **given})
    return run


def _one_run(
    name: str, overrides: Overrides, options: Namespace, progress: Progress, *, is_verified: bool
) -> Run:
    if options.no_cache:
        from chopper_core.ingest.open import open_run
        from chopper_core.store.format import is_store, paths_of
        from chopper_core.store.reader import large_files, verify

        run = open_run(name, progress, jobs=options.jobs, overrides=overrides)
        folder, *others = paths_of(name)
        if is_verified and not others and is_store(folder):
            # Opening doesn't verify large files, and there is no cache to note that they are.
            verify(folder, large_files(folder), progress)
        return run
    from chopper_core.ingest.cache import open_cached

    return open_cached(
        name, progress, jobs=options.jobs, overrides=overrides, is_verified=is_verified
    )


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
        line, share = escape_lines(step_text(step, done, total))[:48], share_done(done, total)
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
