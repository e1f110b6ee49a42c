"""Runs and the views of them, opened for whoever asks: the command line, Python, a server."""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.inputs import MEASURED, FoundRun
from chopper_core.model.overrides import Overrides
from chopper_core.model.view import View, with_view
from chopper_core.util import debug
from chopper_core.util.errors import ChopperError, UsageError
from chopper_core.util.plugins import extension_part
from chopper_core.util.progress import Progress, silent
from chopper_core.views import OVERVIEW
from chopper_core.views.spec import SeveralRuns

if TYPE_CHECKING:
    from chopper_core.model.run import Run


def asked_view(text: str) -> View:
    """The view of an address; a run whose path looks like one is a path. Raises UsageError."""
    from chopper_core.views import parsed_view

    return View(text) if os.path.exists(text) else parsed_view(text)


def home_of(view: View) -> View:
    """The summary where a view names nothing but its run and a baseline, else the view itself."""
    plain = View(view.run, baseline=view.baseline, overrides=view.overrides)
    if view != plain or (view.baseline is not None and view.baseline.path is not None):
        return view
    return with_view(view, OVERVIEW)


class ReadOptions(Struct, frozen=True):
    """How files are read."""

    jobs: int | None = None
    """The processes that read traces, join them and work out answers; None: as many as pay."""
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
_TOGETHER: Final = (("findings", _QUESTIONS, "overview", "ranks", "live"), ("graph", "comms"))
"""Places that are made of the same, in turn: the summary and what is live tell findings, questions
replay the graph that these have made, paths and communication match all collectives. Those that
take longest are first."""
_SIGNALS: Final = ("",)
"""Which signals are worth a chart, as screens ask."""
_MOST_OF_ALL: Final = 1 << 26
"""Activities of a run up to which all places are worked out, in less memory than joining its ranks
takes: of more, each takes many seconds."""
_MOST_REPLAYED: Final = 1 << 19
"""Activities of the steps that what-if questions replay, up to which these are worked out: of more
each of a dozen replays takes seconds, and all of them gigabytes."""
_BYTES_OF_EACH: Final = 40
"""Of an activity, that a process takes for places: findings of thousands of ranks twice as many,
most others less."""


def work_out(store: str, progress: Progress = silent, jobs: int | None = None) -> None:
    """Work out the places of a store that was just written, and keep them there: it opens at once
    wherever it is sent. What can't be worked out is left to who asks for it.

    So many processes share the places (None: one per processor), as memory allows: without enough
    for one, none is worked out.
    """
    from mmap import mmap

    from chopper_core.ingest.cache import open_cached
    from chopper_core.util import memory
    from chopper_core.util.workers import in_processes, shared_by

    run = open_cached(store, is_verified=False)
    fitting = memory.jobs_fitting(jobs, _BYTES_OF_EACH * len(run.table))
    if not fitting:
        return
    memory.keep_freed(of_large=True)
    parts = _parts(run)
    is_done, here = mmap(-1, len(parts)), os.getpid()
    left, given = os.pipe()
    # Whoever has nothing to do takes the next; what one took that died is left to who asks.
    os.write(given, bytes(range(len(parts))))
    os.close(given)

    def report(_: int = 0) -> None:
        number = is_done.find(b"\0")
        name = parts[number][0]
        what = "the summary" if name in _FIRST or number < 0 else name or "signals"
        progress(f"work out {what}", sum(is_done[:]), len(parts))

    def work(_: int) -> None:
        while taken := os.read(left, 1):
            if os.getpid() == here:
                report()
            for name in parts[taken[0]]:
                _answer(run, name)
            if run.derived is not None:
                run.derived.wait()
            run.memo.clear()  # Other places share little of it.
            gc.collect()  # Frames hold themselves, and with them megabytes.
            memory.give_back()
            is_done[taken[0]] = 1

    try:
        with shared_by(fitting):
            for _ in in_processes(work, range(len(parts)), len(run.table), report):
                pass
        report()
    finally:
        os.close(left)
        if run.derived is not None:
            run.derived.remove_halves()  # A process that is left, or killed, ends at any moment.


def _parts(run: Run) -> list[tuple[str, ...]]:
    """The places to work out, those that share most of what they are made of together."""
    from chopper_core.analyses.asked import activities_replayed
    from chopper_core.views import VIEWS

    if len(run.table) > _MOST_OF_ALL:
        return [_FIRST, _SIGNALS]
    left_out = set[str]()
    with suppress(ChopperError):
        if activities_replayed(run, View(run.name)) > _MOST_REPLAYED:
            left_out.add(_QUESTIONS)
    together = [tuple(name for name in part if name not in left_out) for part in _TOGETHER]
    left_out |= {name for part in _TOGETHER for name in part}
    return [*together, *((name,) for name in VIEWS if name not in left_out), _SIGNALS]


def _answer(run: Run, name: str) -> None:
    """Answer one place, or which signals are worth a chart; what can't be is left."""
    from chopper_core.analyses.signal_changes import second_signal, worth_a_chart, worth_a_column
    from chopper_core.util.memory import is_out_of_memory
    from chopper_core.views.query import query

    try:
        if name:
            frame = query(run, with_view(View(run.name), name))
            # Columns are computed once they are asked for, as a screen does.
            for column in frame.columns:
                _ = frame.values[column.name], frame.total.get(column.name)
        elif len(run.signal_names) > 1:
            chosen = run.signal().name
            second = second_signal(run, chosen)
            worth_a_chart(run, chosen, second)
            worth_a_column(run, chosen, second)
    except Exception as error:
        if not isinstance(error, ChopperError) and not is_out_of_memory(error):
            raise
        debug.note(f"{name} is not worked out: {error}")
