"""`chopper record -- COMMAND`: runs a command with the hooks, and the sampler of this node."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree, which
from tempfile import gettempdir
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.units import Unit, scaled_text
from chopper_core.record import counters, device, manifest
from chopper_core.record.hooks.state import (
    PRIVATE,
    TRIGGER,
    VARIABLE,
    start_sampler,
    write_json,
)
from chopper_core.record.states import (
    count_text,
    overhead,
    recording_problems,
    state_summary,
    windows_of,
)
from chopper_core.util.atomic import is_own, is_running
from chopper_core.util.children import python_command
from chopper_core.util.errors import DataError, UsageError

_INJECT: Final = Path(__file__).parent / "inject"
_SAMPLER: Final = tuple(python_command("chopper_core.record.sampler"))
_PASSED_ON: Final = {
    getattr(signal, f"SIG{name}")
    for name in ("INT", "TERM", "HUP", "QUIT", "USR1", "USR2", "CONT", "WINCH")
}
_POLL_S: Final = 0.5
_FIRST_REPORT_S: Final = 10.0
"""From the start to the first line on progress; twice that to the second one, and so on."""
_SAMPLER_END_S: Final = 5.0
_JOIN_S: Final = 600.0
"""A directory that another node began to record into less than this ago is that of the same job."""
_MOST_PARTS: Final = 1000
_SLOW_PCT: Final = 50.0
"""A window that slows steps by more isn't what the job does."""
_TRIGGER_S: Final = 3.0
"""From a trigger to its window: all ranks have to see it before they reach its first step."""
_PASSES_S: Final = 60.0
"""So long nodes wait for each other before a counter pass."""
_BY_SIGNAL: Final = 128
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
"""As shells exit."""
Say = Callable[[str], None]


class RecordOptions(Struct, frozen=True):
    """What to record, and where."""

    run: Path
    skip: int = 10
    steps: int = 3
    every: int = 0
    step_on: str = ""
    counters: str = ""
    """Sets of counters and counters, with commas between them."""
    device: str = ""
    """The same, to sample while kernels run."""

    is_light: bool = False
    """Whether windows are without shapes and modules, which slow steps that wait for the host."""
    joins: bool = False
    """Whether a directory that has a recording gets a numbered part, and training always starts."""

    def options(self) -> dict[str, Any]:
        """The options that choose steps."""
        names = ("skip", "steps", "every", "step_on")
        light = {"light": True} if self.is_light else {}
        return {name: getattr(self, name) for name in names} | light

    def check(self) -> None:
        if self.skip < 1 or self.steps < 0:
            raise UsageError("--skip is at least 1: the profiler warms up in a step")
        if self.every and self.every <= self.steps:
            raise UsageError(f"--every {self.every} leaves no step between windows of {self.steps}")


def default_run() -> Path:
    return Path(time.strftime("chopper-%Y%m%d-%H%M%S"))


def hook_environment(
    recording: RecordOptions, base: Mapping[str, str], **more: Any
) -> dict[str, str]:
    """The environment of a recorded command, with more options for its hooks."""
    paths = [str(_INJECT), *filter(None, [base.get("PYTHONPATH")])]
    quiet = {"KINETO_LOG_LEVEL": "99"}
    options = json.dumps({"run": str(recording.run.absolute()), **recording.options(), **more})
    return {**quiet, **base, "PYTHONPATH": os.pathsep.join(paths), VARIABLE: options}


def record(
    recording: RecordOptions, command: Sequence[str], say: Say, *, is_terminal: bool = False
) -> int:
    """Run a command, recorded; returns its exit code, that of shells where a signal ended it.

    Raises UsageError and DataError before the command is started.
    """
    recording.check()
    joins = recording.joins or _is_requeued(os.environ)
    if joins:
        recording = replace(recording, run=_next_part(recording.run))
    run, passes = recording.run, []
    if recording.counters:
        counters.check_tool(run)
        passes = counters.accepted(counters.planned(recording.counters), say)
    if passes and _is_recorded(run, command):
        say(f"{run} has its trace already: only counter passes that it lacks are run")
        return _counted(recording, command, passes, say)
    sampled = device.groups(recording.device) if recording.device else []
    sampler = device.check_sampler() if sampled else ""
    if which(command[0]) is None:
        is_there = Path(command[0]).is_file()
        say(f"{command[0]}: {'not executable' if is_there else 'not found'}")
        return _NOT_EXECUTABLE if is_there else _NOT_FOUND
    try:
        is_first = _prepare(run, command)
    except (UsageError, DataError) as error:
        if not joins:
            raise
        say(f"nothing is recorded: {error}")
        return run_command(command, os.environ)
    more = {"sampler": _SAMPLER, "host": manifest.name_of_host()}
    environ = hook_environment(recording, os.environ, **more)
    ticks: list[Callable[[], None]] = [_ProgressLines(run, say)] if is_terminal else []
    begins = device.Begins(run, 1, lambda _: _has_step(run))
    if sampled and is_first:
        environ = device.environment(environ, sampler, run, 1, sampled[0])
        ticks.append(begins)
    with sampling(run):
        try:
            code = run_command(command, environ, lambda: [each() for each in ticks])
        except OSError as error:
            say(f"{command[0]}: {error.strerror}")
            code = _NOT_EXECUTABLE
    with suppress(OSError):
        manifest.end_node(run, code)
    if is_first:
        try:
            end_manifest(recording, code)
        except (OSError, DataError) as error:
            say(f"{run}: its manifest can't be written: {getattr(error, 'strerror', '') or error}")
    found = _described(run)
    if (longer := found.overhead.get("pct", 0)) >= _SLOW_PCT and not recording.is_light:
        say(
            f"steps take {longer:.0f} % longer in a window: the host is the limit there, and "
            "--light records without shapes and modules, which slow it most"
        )
    for process in found.processes if code else ():
        # It may have been killed during an export.
        if process.host == manifest.name_of_host() and not is_running(process.pid):
            _remove_private(run, process)
    for problem in recording_problems(run, found.processes, has_windows=recording.steps > 0):
        say(problem)
    if sampled and is_first:
        _sample_device(run, command, sampled, sampler, begins, code, say)
    if passes and is_first and code < _BY_SIGNAL:
        return _counted(recording, command, passes, say)
    if passes and code < _BY_SIGNAL:
        _take_part(recording, command, passes, say)
    say(state_summary(run, found))
    return code


def _remove_private(run: Path, process: manifest.RecordedProcess) -> None:
    """Remove the uncompressed traces of a process that is gone, where they can be nothing else."""
    for folder in (Path(window.private) for window in process.windows if window.private):
        is_there = folder.parent in (Path(gettempdir()), run.absolute())
        if is_there and folder.name.startswith(PRIVATE) and is_own(folder):
            rmtree(folder, ignore_errors=True)


def _is_recorded(run: Path, command: Sequence[str]) -> bool:
    """Whether a directory has the ended recording of the same command."""
    found = _described(run)
    return found.ended_ns is not None and found.command == list(command)


def _counted(
    recording: RecordOptions, command: Sequence[str], passes: counters.Passes, say: Say
) -> int:
    """Run the counter passes of a recording; returns the exit code of its traced run."""
    run, found = recording.run, _described(recording.run)
    until_s = time.monotonic() + _PASSES_S
    while (lacking := manifest.without_passes(run)) and time.monotonic() < until_s:
        time.sleep(_POLL_S)
    if lacking:
        say(
            f"counters are not collected: a pass needs all nodes, and {', '.join(lacking)} runs a "
            "command of its own without --counters; give it there too, or start the job by srun"
        )
    else:
        environ = _pass_environment(recording)
        if environ is None:
            say("rocprofv3 has no roctx next to it: kernels of all steps are counted")
        try:
            counters.run_passes(run, command, passes, environ or os.environ, say)
        except (OSError, DataError) as error:
            say(f"{run}: counters can't be recorded: {error}")
    say(state_summary(run, _described(run)))
    return found.returncode or 0


def _pass_environment(recording: RecordOptions) -> dict[str, str] | None:
    """The environment in which a command ends with its window; None without roctx."""
    library = counters.marker_library()
    if not library:
        return None
    states = str((recording.run / counters.STATES).absolute())
    more = {"run": states, "markers": library, "ends": True}
    return hook_environment(recording, os.environ, **more)


def _take_part(
    recording: RecordOptions, command: Sequence[str], passes: counters.Passes, say: Say
) -> None:
    """Run the command of this node in each pass that the first node counts."""
    run = recording.run
    environ = _pass_environment(recording) or os.environ
    try:
        manifest.take_part(run)
        for names in passes:
            if not _is_counting(run, names):
                continue
            say(f"counter pass of the first node: {' '.join(names)}")
            run_command(command, environ)
        manifest.take_part(run, is_over=True)
    except OSError as error:
        say(f"{run}: this node takes part in no counter pass: {error.strerror}")


def _is_counting(run: Path, names: Sequence[str]) -> bool:
    """Wait for the first node to begin a pass; False where it is over, or doesn't come."""
    until_s = time.monotonic() + _PASSES_S
    while time.monotonic() < until_s:
        own = [each for each in _described(run).passes.values() if each.counters == list(names)]
        if own and own[-1].state != "running":
            return False
        if own:
            return True
        time.sleep(_POLL_S)
    return False


def _has_step(run: Path) -> bool:
    return any(process.step >= 0 for process in _described(run).processes)


def _sample_device(
    run: Path,
    command: Sequence[str],
    sampled: counters.Passes,
    sampler: str,
    first: device.Begins,
    code: int,
    say: Say,
) -> None:
    """Note what was sampled in the traced execution, and sample each further group in its own."""
    seconds = time.monotonic() - first.started_s
    for group, names in enumerate(sampled, 1):
        if group > 1:
            if code >= _BY_SIGNAL or not first.after_s:
                break
            say(f"device sampling {group} of {len(sampled)}: {' '.join(names)}")
            begins = device.Begins(run, group, lambda passed: passed >= first.after_s)
            environ = device.environment(os.environ, sampler, run, group, names)
            code = run_command(command, environ, begins)
            seconds = time.monotonic() - begins.started_s
        reason = device.ended(run, group, names, seconds, code)
        if reason and not first.after_s:
            reason = "no process had a step, from which on it samples"
        if reason:
            say(f"device sampling {group} of {len(sampled)} failed: {reason}")


def end_manifest(options: RecordOptions, code: int) -> None:
    """Write what the processes know at the end; raises OSError and DataError."""
    about = overhead(_described(options.run).processes)
    manifest.update(options.run, overhead=about, options=options.options())
    manifest.finish_manifest(options.run, code)


def _described(run: Path) -> manifest.Manifest:
    """The manifest of a run as far as it can be read, with the states of processes and nodes."""
    with suppress(DataError):
        return manifest.read_manifest(run) or manifest.Manifest()
    return manifest.Manifest()


def _prepare(run: Path, command: Sequence[str]) -> bool:
    """Make the directory of a run; False where another node of the same job has."""
    try:
        if run.exists() and (not run.is_dir() or any(run.iterdir())):
            if not run.is_dir():
                raise UsageError(f"{run} is a file; -o takes the directory to record into")
            found = manifest.read_manifest(run)
            if found is None or not _has_just_begun(found):
                raise UsageError(f"{run} exists and isn't empty; give another directory with -o")
            if found.host == manifest.name_of_host():
                raise UsageError(f"{run} is being recorded into; give another directory with -o")
            manifest.join_node(run)
            return False
        manifest.start_manifest(run, command)
    except OSError as error:
        raise DataError(f"{run} can't be written: {error.strerror}") from error
    return True


def _is_requeued(environ: Mapping[str, str]) -> bool:
    """Whether Slurm has started this job before."""
    return environ.get("SLURM_RESTART_COUNT", "0").strip("0") != ""


def _next_part(run: Path) -> Path:
    """Where a recording into a directory goes: into it, or into its next numbered part.

    A part that another node of the same job has just begun is joined.
    """
    parts = [run, *(run / f"{manifest.PART}{number}" for number in range(2, _MOST_PARTS))]
    for part in parts:
        if not part.exists() or (part.is_dir() and not any(part.iterdir())):
            return part
        with suppress(DataError):
            found = manifest.read_manifest(part) if part.is_dir() else None
            if found and _has_just_begun(found) and found.host != manifest.name_of_host():
                return part
    return parts[-1]


def _has_just_begun(found: manifest.Manifest) -> bool:
    """Whether a recording is so fresh that another node's may be of the same job."""
    return not found.ended_ns and time.time() - found.started_ns / 1e9 < _JOIN_S


@contextmanager
def sampling(run: Path) -> Iterator[None]:
    sampler = None
    with suppress(OSError):
        sampler = start_sampler([*_SAMPLER, str(run.absolute()), "--parent", str(os.getpid())])
    try:
        yield
    finally:
        if sampler is not None:
            counters.end_process(sampler, _SAMPLER_END_S)


def run_command(
    command: Sequence[str], environ: Mapping[str, str], tick: Callable[[], object] | None = None
) -> int:
    """Run a command in this process's place in the terminal; returns its exit code.

    Signals sent to this process are passed on. Those of the terminal reach the command without.
    Raises OSError if it can't be started.
    """
    waited = _PASSED_ON | {signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    try:
        defaults = [signal.SIGPIPE, signal.SIGXFSZ]  # Which Python ignores.
        child = os.posix_spawnp(
            command[0], list(command), dict(environ), setsigmask=before, setsigdef=defaults
        )
        while True:
            found = signal.sigtimedwait(waited, _POLL_S)
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                break
            # Sent by a process, and not by the terminal to all of its processes.
            if found is not None and found.si_signo in _PASSED_ON and found.si_code <= 0:
                os.kill(child, found.si_signo)
            if tick is not None:
                tick()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


class _ProgressLines:
    """Says in whole lines how far a recording is, as the command writes to the same terminal."""

    def __init__(self, run: Path, say: Say) -> None:
        self._run, self._say = run, say
        self._began_s = self._looked_s = time.monotonic()
        self._due_s = _FIRST_REPORT_S
        self._known: list[tuple[int, int, int, int]] = []

    def __call__(self) -> None:
        now_s = time.monotonic()
        if now_s - self._looked_s < 2 * _POLL_S:
            return
        self._looked_s = now_s
        states = [state for state in _described(self._run).processes if state.step >= 0]
        windows, ranks = windows_of(states), count_text(len(states), "rank")
        for first, last, written, size in windows:
            if (first, last, written, size) not in self._known and written in (0, len(states)):
                how = f"wrote {scaled_text(size, Unit.BYTES)} of" if written else "record"
                self._say(f"{ranks}: {how} steps {first}–{last}")
        self._known = windows
        if now_s - self._began_s >= self._due_s:
            self._due_s *= 2
            files = (self._run / manifest.PROCESSES).glob("*.json")
            age_s = time.time() - max((path.stat().st_mtime for path in files), default=0.0)
            late = f", last news {age_s:.0f} s ago" if states and age_s >= _FIRST_REPORT_S else ""
            step = f"step {max(state.step for state in states)}" if states else "no step so far"
            self._say(f"{ranks}: {step}{late}")


def trigger(run: Path) -> str:
    """Ask the running job of a directory for a window; returns which. Raises DataError."""
    ranks = [state for state in _described(run).processes if state.step >= 0]
    running = [state for state in ranks if state.state == "running"]
    if not running:
        raise DataError(f"{run} has no running process with Chopper's hooks and a step")
    step_ns = max((state.step_times.get("outside_ns", 0) for state in running), default=0)
    margin = max(2, round(_TRIGGER_S * 1e9 / step_ns)) if step_ns else 2
    first = max(state.step for state in running) + margin
    try:
        write_json(str(run / TRIGGER), {"first": first})
    except OSError as error:
        raise DataError(f"{run / TRIGGER} can't be written: {error.strerror}") from error
    return f"{count_text(len(running), 'rank')}: recording from step {first} on"
