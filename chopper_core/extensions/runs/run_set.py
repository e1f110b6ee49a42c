"""Several runs as one thing to look at: a row of settings and figures for each.

Settings are from the command line, a run's manifest, its job's file or its name, in this order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Condition, Thread
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.extensions.runs.by_run import dispatch_frame
from chopper_core.extensions.runs.figures import (
    HIGHER,
    RUN_COLUMNS,
    figures_of_run,
    is_better,
    with_settings,
)
from chopper_core.extensions.runs.run_rows import FAILED, Reading, RunRow, RunRows
from chopper_core.extensions.runs.speed import speed_of
from chopper_core.ingest.cache import SMALL_BYTES, found_runs, open_cached, recalled, worked_out
from chopper_core.ingest.discovery import find_runs
from chopper_core.ingest.watch import files_below
from chopper_core.model.inputs import FoundRun
from chopper_core.model.memo import LazyMap
from chopper_core.model.overrides import NO_OVERRIDES, Overrides
from chopper_core.model.parallel import DIMENSIONS
from chopper_core.model.run import Run
from chopper_core.model.settings import NOT_GIVEN, Given, Setting, in_name, in_sweep
from chopper_core.model.table import empty_table
from chopper_core.model.view import View
from chopper_core.sources.settings import read_settings
from chopper_core.store.format import paths_of
from chopper_core.util.atomic import file_state
from chopper_core.util.errors import DataError
from chopper_core.util.progress import Progress, silent
from chopper_core.util.workers import read_as_done
from chopper_core.views.frame import Frame

_WAIT_S: Final = 1.0
_TOGETHER_S: Final = 0.02
"""Rows that come so soon one after the other are news together."""
_FEW_RUNS: Final = 32
"""So many small runs are read before a worker process has started."""
_NOTHING: Final = (
    "It has no trace and no telemetry: the job wrote none, stopped early or ran out of memory."
)


class RunSet(RunRows, frozen=True, eq=False):
    """Runs side by side, with a frame for each view."""

    def frame(self, view: View, *, wait: bool) -> Frame:
        return dispatch_frame(self, view, wait=wait)

    def figures(self) -> list[tuple[str, str, str]]:
        rows = self.reading(False).rows
        return [
            (name, each.metric.title, each.metric.definition)
            for name, each in RUN_COLUMNS.items()
            if any(isinstance(row.figures.get(name), float) for row in rows)
        ]

    def by_speed(self) -> tuple[str, dict[str, float]]:
        speed = speed_of(self.reading(False).rows)
        if speed is None:
            return "", {}
        order = f"-{speed.figure}" if is_better(speed.figure) == HIGHER else speed.figure
        names = (row.name for row in speed.rows)
        return order, dict(zip(names, (speed.values / speed.values[0]).tolist(), strict=True))


class ReadFigures(Struct, frozen=True):
    """Reads a run and returns its figures, from the cache where it can; may be sent to a worker."""

    jobs: int | None = None
    use_cache: bool = True
    overrides: Overrides = NO_OVERRIDES

    def open(self, path: str, progress: Progress = silent, *, may_cache: bool = True) -> Run:
        from chopper_core.ingest.open import open_run

        opened = open_cached if self.use_cache and may_cache else open_run
        return opened(path, progress, jobs=self.jobs, overrides=self.overrides)

    def __call__(self, path: Path, progress: Progress) -> RunRow:
        name = str(path)

        def row() -> RunRow:
            is_small = _size_of(name) <= SMALL_BYTES
            return figures_of_run(self.open(name, progress, may_cache=not is_small))

        if not self.use_cache:
            return row()
        return worked_out("rows", name, RunRow, row, self.overrides)


def _size_of(path: str) -> int:
    """The bytes of a run's files."""
    return sum(file_state(file)[0] for file in files_below(paths_of(path)))


def read_rows(
    found: Sequence[FoundRun],
    given: Given = NOT_GIVEN,
    *,
    jobs: int | None = None,
    use_cache: bool = True,
    overrides: Overrides = NO_OVERRIDES,
) -> Iterator[tuple[int, RunRow]]:
    """Read runs in parallel and yield the place and row of each once it is there.

    Runs whose figures are cached come first; nothing of them is opened. Then come the newest.
    """
    rest: list[int] = []
    for place, each in enumerate(found):
        if each.is_empty:
            yield place, _failed(each, given, _NOTHING)
            continue
        known = recalled("rows", each.path, RunRow, overrides) if use_cache else None
        if known is None:
            rest.append(place)
        else:
            yield place, row_of(each, known, given)
    rest.sort(key=lambda place: -file_state(found[place].path)[1])
    paths = [Path(found[place].path) for place in rest]
    if len(rest) <= _FEW_RUNS and all(_size_of(found[at].path) <= SMALL_BYTES for at in rest):
        jobs = jobs or 1
    # Workers share the processors; of a single run, its ranks do.
    reader = ReadFigures(1 if len(rest) > 1 else jobs, use_cache, overrides)
    for number, outcome in read_as_done(paths, reader, jobs):
        each = found[rest[number]]
        if isinstance(outcome, RunRow):
            yield rest[number], row_of(each, outcome, given)
        else:
            yield rest[number], _failed(each, given, str(outcome))


def row_of(each: FoundRun, found: RunRow, given: Given) -> RunRow:
    whole = with_settings(found, {**found.settings, **_settings(each, given)})
    return replace(whole, name=each.name, path=each.path)


def _failed(each: FoundRun, given: Given, reason: str) -> RunRow:
    return RunRow(each.name, each.path, _settings(each, given), FAILED, reason)


def _settings(each: FoundRun, given: Given) -> dict[str, Setting]:
    path = Path(each.path)
    named: dict[str, Setting] = {}
    for part in Path(each.name).parts:
        named |= in_name(part)
    stated = read_settings(path) if path.is_dir() else {}
    stated |= given.of(each.name)
    if not any(name in DIMENSIONS for name in (*named, *stated)):
        # Its directories may be above that of the set.
        named |= in_sweep(path.absolute().parts)
    return named | stated


class SetReader:
    """Reads the rows of a set in a thread, and reports its progress."""

    def __init__(self, found: Sequence[FoundRun], rows: Iterator[tuple[int, RunRow]]) -> None:
        self._rows: list[RunRow | None] = [None] * len(found)
        self._waiting = len(found)
        self._seen = self._waiting
        """How many were still to read when the rows were last asked for."""
        self._news = Condition()
        self._error: BaseException | None = None
        self._source = rows
        Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        try:
            for place, row in self._source:
                with self._news:
                    self._waiting -= self._rows[place] is None
                    self._rows[place] = row
                    # Of thousands that are there at once, each would be waited for.
                    if not self._waiting or self._waiting == self._seen - 1:
                        self._news.notify_all()
        except BaseException as error:
            with self._news:
                self._error = error
                self._news.notify_all()

    def __call__(self, wait: bool) -> Reading:
        """The rows so far; if it is to wait, once there are more than were seen."""
        with self._news:
            if wait:
                self._news.wait_for(lambda: self._waiting < self._seen or self._is_over, _WAIT_S)
                self._news.wait_for(lambda: self._is_over, _TOGETHER_S)
            self._seen = self._waiting
            if self._error is not None:
                raise self._error
            known = [row for row in self._rows if row is not None]
            return Reading(known, self._waiting)

    @property
    def _is_over(self) -> bool:
        return not self._waiting or self._error is not None


def open_runs(
    name: str,
    paths: Sequence[str],
    given: Given = NOT_GIVEN,
    *,
    jobs: int | None = None,
    use_cache: bool = True,
    overrides: Overrides = NO_OVERRIDES,
    found: Sequence[FoundRun] = (),
) -> RunSet:
    """The runs at and below paths as a set of this name, whose rows are read in a thread; those
    that were found there need no other search.

    Raises DataError if there is none.
    """
    if not found:
        is_one = len(paths) == 1
        found = found_runs(paths[0], use_cache=use_cache) if is_one else find_runs(paths)
    if not found:
        raise DataError(
            f"{', '.join(paths)} holds no runs: directories with traces or telemetry below it."
        )
    rows = read_rows(found, given, jobs=jobs, use_cache=use_cache, overrides=overrides)
    read = ReadFigures(jobs, use_cache, overrides)
    others = LazyMap((each.path for each in found), read.open)
    return RunSet(name, empty_table(), (), (), others=others, reading=SetReader(found, rows))
