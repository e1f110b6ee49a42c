"""Runs and the views of them, opened for whoever asks: the command line, Python, a server."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.inputs import MEASURED, FoundRun
from chopper_core.model.overrides import Overrides
from chopper_core.model.view import View, with_view
from chopper_core.util.errors import ChopperError, UsageError
from chopper_core.util.plugins import extension_part
from chopper_core.util.progress import Progress, silent
from chopper_core.views import OVERVIEW
from chopper_core.views.spec import SeveralRuns

if TYPE_CHECKING:
    from chopper_core.model.run import Run


def asked_view(text: str) -> View:
    """The view of an address; a run whose path looks like one is a path. Raises UsageError."""
    from chopper_core.model.address import parse

    return View(text) if os.path.exists(text) else parse(text)


def home_of(view: View) -> View:
    """The summary where a view names nothing but its run and a baseline, else the view itself."""
    plain = View(view.run, baseline=view.baseline, overrides=view.overrides)
    if view != plain or (view.baseline is not None and view.baseline.path is not None):
        return view
    return with_view(view, OVERVIEW)


class ReadOptions(Struct, frozen=True):
    """How files are read."""

    jobs: int | None = None
    """The processes that read traces; None: as many as pay."""
    use_cache: bool = True


def open_view(
    view: View,
    how: ReadOptions | None = None,
    progress: Progress = silent,
    *,
    is_verified: bool = True,
) -> Run:
    """The run of a view, with that of its baseline; unless it `is_verified`, see `verify_view`.

    Raises DataError where files can't be used, UsageError where the view can't be of such a run.
    """
    how = how or ReadOptions()
    if view.overrides.predicted and holds_several(view.run, how.use_cache):
        raise UsageError(
            f"{view.run} holds several runs: ask predicted={view.overrides.predicted} of one"
        )

    def opened(name: str, overrides: Overrides) -> Run:
        return opened_run(name, overrides, how, progress, is_verified=is_verified)

    run, base = opened(view.run, view.overrides), base_of_view(view)
    # The baseline of a set is one of its runs.
    if base and not isinstance(run, SeveralRuns) and base not in run.others:
        run = replace(run, others={**run.others, base: opened(base, view.overrides.of_base)})
    return as_asked(run, view)


def open_one(view: View, how: ReadOptions | None = None, progress: Progress = silent) -> Run:
    """The run of a view, as `open_view`; raises DataError where its name is several runs."""
    how = how or ReadOptions()
    if holds_several(view.run, how.use_cache):
        from chopper_core.ingest.discovery import check_is_one

        check_is_one(view.run)
    return open_view(view, how, progress)


def as_asked(run: Run, view: View) -> Run:
    """A run as measured, or as the questions of a view predict it; several as they are."""
    if view.overrides.predicted == run.overrides.predicted or isinstance(run, SeveralRuns):
        return run
    from chopper_core.views.whatif import run_with_changes

    return run_with_changes(run, view)


def base_of_view(view: View) -> str:
    """The run to open that a view's is compared with; the measured one is there."""
    is_measured = view.overrides.predicted and view.base_run == MEASURED
    return "" if is_measured else view.base_run


def opened_run(
    name: str,
    overrides: Overrides,
    how: ReadOptions,
    progress: Progress,
    *,
    is_verified: bool = True,
) -> Run:
    """A run, or several of a directory, by name."""
    if runs := runs_at(name, how.use_cache):
        from chopper_core.model.settings import given_settings

        several = extension_part("runs", f"{name} holds several runs: to show them side by side")
        found: Run = several.open_runs(
            name,
            [name],
            given_settings(overrides.settings, overrides.names),
            jobs=how.jobs,
            use_cache=how.use_cache,
            overrides=overrides.of_run,
            found=runs,
        )
        return found
    run = _one_run(name, overrides.of_run, how, progress, is_verified=is_verified)
    if overrides.settings or overrides.names:
        from chopper_core.model.settings import given_settings

        given = given_settings(overrides.settings, overrides.names).of(name)
        # Settings change nothing that is read.
        run = replace(run, settings={**run.settings, **given})
    return run


def _one_run(
    name: str, overrides: Overrides, how: ReadOptions, progress: Progress, *, is_verified: bool
) -> Run:
    if how.use_cache:
        from chopper_core.ingest.cache import open_cached

        return open_cached(
            name, progress, jobs=how.jobs, overrides=overrides, is_verified=is_verified
        )
    from chopper_core.ingest.open import open_run
    from chopper_core.store.format import is_store, paths_of
    from chopper_core.store.reader import large_files, verify

    run = open_run(name, progress, jobs=how.jobs, overrides=overrides)
    folder, *others = paths_of(name)
    if is_verified and not others and is_store(folder):
        # Opening doesn't verify large files, and there is no cache to note that they are.
        verify(folder, large_files(folder), progress)
    return run


def holds_several(name: str, use_cache: bool) -> bool:
    """Whether a name is several runs, or directories that hold some."""
    return bool(runs_at(name, use_cache))


def runs_at(name: str, use_cache: bool) -> Sequence[FoundRun]:
    """The runs that a name is, or that its directories hold; none where they are one."""
    from chopper_core.ingest.cache import found_runs
    from chopper_core.store.format import is_store, paths_of

    paths = paths_of(name)
    if not all(path.exists() and not is_store(path) for path in paths) or paths[0].is_file() >= len(
        paths
    ):
        return ()
    found = found_runs(name, use_cache=use_cache)
    return found if len(found) > 1 else ()


def verify_view(view: View, progress: Progress) -> None:
    """Verify the checksums of a view's runs; raises DataError where one is damaged."""
    from chopper_core.ingest.cache import verify_run

    verify_run(view.run, view.overrides.of_run, progress)
    if name := base_of_view(view):
        verify_run(name, view.overrides.of_base.of_run, progress)


def all_read(run: Run, progress: Progress = silent) -> Run:
    """A run; several of them once they are all read."""
    if isinstance(run, SeveralRuns):
        count = len(run.others)
        while waiting := run.waiting(wait=True):
            progress(f"read {count - waiting} of {count} runs", count - waiting, count)
    return run


_QUESTIONS: Final = "whatif"
_FIRST: Final = ("findings", "overview", "ranks")
"""What most look at first; the summary takes what the findings tell."""
_MOST_OF_ALL: Final = 1 << 26
"""Activities of a run up to which all places are worked out, in less memory than joining its ranks
takes: of more, each takes many seconds."""
_MOST_REPLAYED: Final = 1 << 19
"""Activities of the steps that what-if questions replay, up to which these are worked out: of more
each of a dozen replays takes seconds, and all of them gigabytes."""
_REMEMBERED: Final = 64 << 20
"""Bytes of what a place was made of that the next one can use."""


def work_out(store: str, progress: Progress = silent) -> None:
    """Work out the places of a store that was just written, and keep them there: it opens at once
    wherever it is sent. What can't be worked out is left to who asks for it."""
    from chopper_core.analyses.asked import activities_replayed
    from chopper_core.analyses.signal_changes import second_signal, worth_a_chart, worth_a_column
    from chopper_core.ingest.cache import open_cached
    from chopper_core.util.memory import keep_freed
    from chopper_core.views import VIEWS
    from chopper_core.views.query import query

    run = open_cached(store, is_verified=False)
    keep_freed(of_large=True)
    names = [*_FIRST]
    if len(run.table) <= _MOST_OF_ALL:
        # Questions replay the graph that findings have just made.
        names = [*dict.fromkeys((_FIRST[0], _QUESTIONS, *_FIRST, *VIEWS))]
        with suppress(ChopperError):
            if activities_replayed(run, View(store)) > _MOST_REPLAYED:
                names.remove(_QUESTIONS)
    for number, name in enumerate(names):
        what = "the summary" if name in _FIRST else name
        progress(f"work out {what}", number, len(names))
        with suppress(ChopperError):
            frame = query(run, with_view(View(store), name))
            # Columns are computed once they are asked for, as a screen does.
            for column in frame.columns:
                _ = frame.values[column.name], frame.total.get(column.name)
        # The first ones are made of the same; the others share little.
        if number >= names.index(_FIRST[-1]):
            run.memo.trim(_REMEMBERED)
    chosen = run.signal().name
    if len(run.signal_names) > 1:
        # As screens ask which signals to show.
        second = second_signal(run, chosen)
        worth_a_chart(run, chosen, second)
        worth_a_column(run, chosen, second)
    if run.derived is not None:
        run.derived.wait()
    progress("work out the summary", len(names), len(names))
