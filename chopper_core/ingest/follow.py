"""A run that is followed while it is written: traces as they are whole, telemetry line by line."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Final

from msgspec.structs import replace

from chopper_core.ingest import cache
from chopper_core.ingest.alarms import STALL, STEP_TIME, AlarmWatch
from chopper_core.ingest.batches import read_again
from chopper_core.ingest.discovery import find_runs
from chopper_core.ingest.feeds import Feed, FeedCall, LibraryFeed, ToolFeed
from chopper_core.ingest.log_tail import LogTails
from chopper_core.ingest.open import inputs_of
from chopper_core.ingest.other_runs import OtherRuns, of_manifests
from chopper_core.ingest.recorded import RecordedRun, recorded_at
from chopper_core.ingest.step_tails import StepTails
from chopper_core.ingest.tail import FeedSamples, FollowedSamples, Tail
from chopper_core.ingest.watch import RunFiles, gone_text
from chopper_core.model.overrides import NO_OVERRIDES, Overrides
from chopper_core.model.recent import OtherRun, RecentSamples
from chopper_core.model.run import Run
from chopper_core.record.manifest import MANIFEST, is_ring
from chopper_core.sources.registry import (
    Failures,
    Family,
    FoundFiles,
    discover,
    family_of,
)
from chopper_core.sources.signals import Telemetry
from chopper_core.store.format import is_store, paths_of
from chopper_core.tables.bytes import ByteSource
from chopper_core.tables.text import FileHead
from chopper_core.util import atomic
from chopper_core.util.atomic import FileState
from chopper_core.util.compression import COMPRESSED_ENDINGS, has_ending
from chopper_core.util.errors import ChopperError, DataError
from chopper_core.util.memory import give_back, internal_error
from chopper_core.util.nearby import Look, States, noted_looks
from chopper_core.util.patterns import natural_key
from chopper_core.util.progress import Progress, silent

UNFINISHED_S: Final = 30.0
"""A trace without an end that hasn't changed for so long has no writer any more: it is read."""
_REST_S: Final = 3.0
"""Telemetry that hasn't grown for so long is read as a whole with the traces."""
_SHARE: Final = 200
"""Reading telemetry again as a whole takes at most one part in so many of the time."""
_PAUSE: Final = 2
"""Between two readings is at least so many times as long as one takes."""
_FEED_S: Final = 0.5
"""So long a look waits for a library or an exporter."""
_END_BYTES: Final = 1 << 10
_NEAR_NS: Final = 6 * 10**9
"""A sample a second holds for up to five."""
_PIECE: Final = 1 << 20


class Follower:
    """Reads a run again as its files change: only new traces, and new lines of telemetry."""

    def __init__(
        self,
        name: str,
        overrides: Overrides = NO_OVERRIDES,
        *,
        jobs: int | None = None,
        every_s: float = 1.0,
    ) -> None:
        self.name = name
        self.every_s = every_s
        self.recent = RecentSamples()
        self.load: Callable[[Progress], Run] | None = None
        """Reads several runs side by side."""
        self.alarms = AlarmWatch(())
        self.feeds: tuple[Feed, ...] = ()
        self._feeding: dict[int, FeedCall] = {}
        self._other_runs = OtherRuns()
        self._overrides, self._jobs = overrides, jobs
        self._files = RunFiles(name)
        folder = cache.directory()
        atomic.make_private(folder)
        self._folder = atomic.temporary_path(folder / "followed", "new")
        self._tails: dict[Path, FollowedSamples] = {}
        self._logs = LogTails()
        self._stale: frozenset[tuple[str, int]] = frozenset()
        """Signals of GPUs without news, as of the last look."""
        self._steps = StepTails()
        self._families: dict[tuple[object, ...], Family] = {}
        """The families of files, by path and inode: their start stays as it is."""
        self._read: Mapping[str, FileState] = {}
        """The state of the files when they were read last."""
        self._late: set[str] = set()
        """Traces that were still being written then."""
        self._before: Mapping[str, FileState] = {}
        self._inputs: set[str] = set()
        """The files that the run was read from."""
        self._gone: Mapping[str, FileState] = {}
        """Inputs that are gone, and their last state."""
        self._recorded: RecordedRun | None = None
        self._read_s, self._cost_s = 0.0, 0.0
        self._unsettled: set[str] = set()
        """Files that changed between the last two looks."""
        self._pool = ThreadPoolExecutor(1)
        self._lock = Lock()
        self._reading: Future[None] | None = None
        self.others: Mapping[str, Run] = {}
        """The runs that it is compared with."""
        self.run: Run | None = None

    @property
    def problem(self) -> str:
        """Why the run can't be read as its files are now."""
        return self.recent.problem

    @problem.setter
    def problem(self, text: str) -> None:
        self.recent.problem = text

    @property
    def beside(self) -> str:
        """That the directory holds other runs, too."""
        count = len(self.recent.others)
        return f"newest of {count + 1} runs here" if count else ""

    @property
    def folder(self) -> Path:
        """A place for telemetry that no tool writes."""
        folder = self._folder / "feeds"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _feed(self) -> None:
        """Have each feed add what is new; one that hangs is waited for an instant."""
        problems = []
        for number, feed in enumerate(self.feeds):
            call = self._feeding.get(number)
            if call is None or call.is_done:
                call = self._feeding[number] = FeedCall(feed)
            problems.append(call.problem_after(_FEED_S))
            if isinstance(feed, LibraryFeed | ToolFeed):
                self.recent.gpus, self.recent.processes = feed.gpus, feed.processes
                self.recent.lacks, self.recent.silent = feed.lacks, feed.silent
        if self.feeds:
            self.problem = "; ".join(filter(None, problems))

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def open(self, progress: Progress = silent) -> Run:
        """The run, once there is data in its directory; raises ChopperError without a directory."""
        while True:
            self._feed()
            try:
                self._read_run(progress)
            except DataError as error:
                if not any(path.is_dir() and not is_store(path) for path in paths_of(self.name)):
                    raise
                recorded = recorded_at(paths_of(self.name))
                is_recording = recorded is not None and not recorded.has_ended
                why = "the first step" if is_recording else f"data: {self.problem or error}"
                progress(f"waiting for {why}", 0, 0)
                time.sleep(self.every_s)
            else:
                self.tail()
                assert self.run is not None
                return self.run

    def poll(self) -> Run | None:
        """The run as its files are now, once they changed and were read again.

        Telemetry that grows is read as a whole once it rests, and its new lines by `tail`.
        """
        if self._reading is not None:
            if not self._reading.done():
                return None
            reading, self._reading = self._reading, None
            error = reading.exception()
            if error is None:
                return self.run
            self.problem = str(error)
            if isinstance(error, Exception) and not isinstance(error, ChopperError):
                self.problem = internal_error(error)
            return None
        state = self._files.state()
        known = {path: self._read[path] for path in self._inputs if path in self._read}
        self._gone = {k: each for k, each in {**known, **self._gone}.items() if k not in state}
        renamed = self._files.renamed(self._gone, state)
        # Under a name that is read its rank is shown as before.
        self._gone = {k: each for k, each in self._gone.items() if renamed.get(k) not in state}
        self.recent.gone = gone_text(sorted(self._gone), renamed)
        before, self._before = self._before, state
        both = {*state, *self._read}
        changed = {path for path in both if state.get(path) != self._read.get(path)} | self._late
        own = (changed & state.keys()) - self._files.nearby
        growing = {path for path in own if is_ring(path) or self._is_tailed(path, state)}
        logs = {path for path in changed - growing if self._is_log(path, state)}
        others = {path for path in changed - growing - logs if not self._is_status(path)}
        self._unsettled = {path for path in others if state.get(path) != before.get(path)}
        since_s = time.monotonic() - self._read_s
        if others:
            is_whole = any(not self._is_late(Path(path)) for path in others)
            is_due = is_whole and since_s > _PAUSE * self._cost_s
        elif logs:
            # Only their new lines are read.
            is_due = since_s > _PAUSE * self._cost_s
        else:
            is_at_rest = time.time() - self.recent.newest_s > _REST_S
            is_wanted = is_at_rest or self.run is None or self.run.is_sampled_only
            is_due = bool(growing) and is_wanted and since_s > _SHARE * self._cost_s
        if is_due:
            self._read = state
            self._reading = self._pool.submit(self._read_run, silent)
        return None

    def tail(self) -> bool:
        """Read new lines of telemetry; False where there are none."""
        if self.run is None or self.load is not None:
            return False
        before = self.problem
        self._feed()
        has_come = self.problem != before
        if self.feeds:
            for path in self.folder.iterdir():
                self._follow(path)
        came = [tail.read(self.recent, self.run) for tail in [*self._tails.values()]]
        came.append(self._tail_steps())
        self.alarms.look(self.run, self.recent)
        stale, self._stale = self._stale, self.recent.stale(time.time())
        return has_come or any(came) or stale != self._stale

    def _follow(self, path: Path) -> None:
        """Read what comes to a telemetry file from now on."""
        if path not in self._tails:
            own = (each for each in self.feeds if isinstance(each, LibraryFeed))
            feed = next((each for each in own if each.path == path), None)
            self._tails[path] = Tail(path) if feed is None else FeedSamples(feed)

    def _tail_steps(self) -> bool:
        """Read new steps; False without any, and without news of a stall."""
        recent, now_s = self.recent, time.time()
        has_come = self._steps.read(self._before or self._read, recent.steps, now_s)
        if has_come:
            recent.newest_s = now_s
        text = "" if recent.has_ended else recent.steps.stall(now_s)
        before = [event.text for event in recent.open_alarms if event.alarm == STALL]
        recent.note(STALL, STEP_TIME, None, text, holds=bool(text))
        return has_come or before != ([text] if text else [])

    @property
    def is_reading(self) -> bool:
        return self._reading is not None

    def _read_run(self, progress: Progress) -> None:
        with self._lock:
            self._read_once(progress)

    def _read_once(self, progress: Progress) -> None:
        state, began = self._files.state(), time.monotonic()
        others: list[OtherRun] = []
        if self.load is not None:
            with noted_looks() as looks:
                self.run = self.load(progress)
            self._noted(state, looks, began)
            return
        paths = paths_of(self.name)
        with noted_looks() as looks:
            try:
                run = self._read_again(self.name, progress)
            except DataError:
                newest, others = self._newest_run(state)
                if not newest:
                    raise
                run = replace(self._read_again(newest, progress), name=self.name)
        # Tails that begin belong to the new run: another thread may read them at once.
        before, self.run = self.run, replace(run, recent=self.recent, others=self.others)
        if before and not (before.gpus == run.gpus and {*before.identities} <= {*run.identities}):
            # Devices belong to other GPUs, or to some at last: what was dropped is read again.
            self._tails, self.recent.series = {}, {}
        for file in discover(paths, Family.TELEMETRY).files:
            self._follow(file.path)
        self._recorded, self._inputs = recorded_at(paths), {*inputs_of(run)}
        if self._recorded is not None and len(paths) == 1:
            others += of_manifests(self._recorded.manifests)
        self.recent.others = tuple(sorted(others, key=lambda each: -each.newest_s))
        self.recent.has_ended = self._recorded is not None and self._recorded.has_ended
        self._late = {path for path, _ in run.failed if self._is_late(Path(path))}
        self._noted(state, looks, began)

    def _read_again(self, name: str, progress: Progress) -> Run:
        return read_again(
            name,
            self._folder / "run",
            progress,
            jobs=self._jobs,
            overrides=self._overrides,
            waits=self._is_late,
            read_samples=self._read_samples,
            read_logs=self._logs.read,
        )

    def _newest_run(self, state: Mapping[str, FileState]) -> tuple[str, list[OtherRun]]:
        """The files without the traces of all runs but the one that was written last, and these
        other runs; '' for a single one."""
        try:
            runs = find_runs([self.name])
        except ChopperError:
            return "", []
        if len(runs) < 2 or not all(path in state for run in runs for path in run.path.split(",")):
            return "", []
        runs.sort(key=lambda run: max(state[path][1] for path in run.path.split(",")))
        earlier = {path for run in runs[:-1] for path in run.path.split(",")}
        others = self._other_runs.found(self.name, runs[:-1], state)
        return ",".join(path for path in state if path not in earlier), others

    def _read_samples(
        self, found: FoundFiles, run: Run | None, progress: Progress
    ) -> tuple[list[Telemetry], Failures]:
        """Of large files only what is near activities, and the end: memory stays flat for days."""
        spans = sorted({each.span_ns for each in run.sources} if run else ())
        near = [(begin - _NEAR_NS, end + _NEAR_NS) for begin, end in spans]
        parts = {file.path: Tail(file.path).excerpt(near) for file in found.files}
        whole = [file for file in found.files if parts[file.path] is None]
        read, failed = replace(found, files=whole).read("telemetry", progress)
        read += filter(None, parts.values())
        return sorted(read, key=lambda each: natural_key(each.path)), failed

    def _noted(
        self, state: Mapping[str, FileState], looks: Mapping[Look, States], began_s: float
    ) -> None:
        newest_ns = max((each[1] for each in state.values()), default=0)
        self.recent.newest_s = max(self.recent.newest_s, newest_ns * 1e-9)
        self._files.note(state, looks)
        self._read, self.problem = self._files.known, ""
        self._read_s, self._cost_s = time.monotonic(), time.monotonic() - began_s
        give_back()

    def _is_tailed(self, path: str, state: Mapping[str, FileState]) -> bool:
        if Path(path) not in self._tails and self._family(path, state) is Family.TELEMETRY:
            self._follow(Path(path))
        return Path(path) in self._tails

    def _is_log(self, path: str, state: Mapping[str, FileState]) -> bool:
        return self._family(path, state) is Family.TRAINER

    def _family(self, path: str, state: Mapping[str, FileState]) -> Family | None:
        """The family of a file; of one that is gone, what it was."""
        *_, inode, device = state.get(path) or self._read.get(path) or (0, 0)
        key = path, inode, device
        if key not in self._families:
            family = family_of(Path(path))
            if family is None:  # A log is known by its first step, which may not have come yet.
                return None
            self._families[key] = family
        return self._families[key]

    def _is_status(self, path: str) -> bool:
        """Whether a recording writes the file again and again; its end is in its manifest."""
        is_part = self._recorded is not None and self._recorded.is_part(path)
        return is_part and os.path.basename(path) != MANIFEST

    def _is_late(self, trace: Path) -> bool:
        """Whether a trace is still being written."""
        if str(trace) in self._unsettled:
            return True
        try:
            is_fresh = time.time() - trace.stat().st_mtime < UNFINISHED_S
        except OSError:
            return False
        return (
            is_fresh
            and has_ending(trace.name, (".json", *COMPRESSED_ENDINGS))
            and not has_end(trace)
        )


def has_end(trace: Path) -> bool:
    """Whether a trace in JSON is whole: half of a compressed one ends early."""
    tail = b""
    try:
        if FileHead(trace).compression is None:
            with trace.open("rb") as file:
                size = file.seek(0, 2)
                file.seek(max(size - _END_BYTES, 0))
                tail = file.read()
        else:
            with ByteSource(trace, _PIECE) as source:
                while piece := source.read():
                    tail = (tail + piece)[-_END_BYTES:]
            if source.problem:
                return False
    except (OSError, DataError):
        return False
    return tail.rstrip()[-1:] in (b"}", b"]")
