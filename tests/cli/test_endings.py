"""Signals at any moment of a command: a sentence, 128 + signal, nothing half-written."""

from __future__ import annotations

import errno
import io
import mmap
import multiprocessing.util
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from chopper_core.model.run import Run
from chopper_core.store.reader import read_store
from chopper_core.store.writer import write_store
from chopper_tui import __main__, cli, terminal
from chopper_tui.commands import options
from tests.programs.fuzz.seeds import small_trace
from tests.support import sample_run
from tests.wording import Wording

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = {
    "export parquet": ("export", "{store}", "--to", "parquet", "-o", "{out}/a"),
    "export perfetto": ("export", "{store}", "--to", "perfetto", "-o", "{out}/a"),
    "export chakra": ("export", "{store}", "--to", "chakra", "--force", "-o", "{out}/a"),
    "ingest": ("ingest", "{run}", "-o", "{out}/a", "--jobs", "1"),
    "ingest with workers": ("ingest", "{run}", "-o", "{out}/a", "--jobs", "2"),
    "show": ("show", "{run}", "--format", "csv", "-o", "{out}/a"),
    "info": ("info", "{run}", "--no-cache", "--jobs", "1"),
    "diff": ("diff", "{store}", "{run}"),
}
MOST_EVENTS = {"ingest with workers": 400, "export parquet": 60}
SIGNALS = [each for each in terminal.FATAL_SIGNALS if each not in (signal.SIGTRAP, signal.SIGSYS)]


@pytest.fixture(scope="module")
def run_and_store(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("ended")
    run = folder / "run"
    run.mkdir()
    for rank in range(2):
        small_trace(rank).write(run / f"rank{rank}.json")
    write_store(sample_run(), folder / "store")
    return run, folder / "store"


def in_child(arguments: list[str], log: Path, disturb: Callable[[], None]) -> int:
    """The program in a process of its own, whose output goes to a file; its exit code."""
    pid = os.fork()
    if not pid:
        os.setsid()
        signal.alarm(600)
        with log.open("wb") as file:
            os.dup2(file.fileno(), 2)
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1)  # noqa: SIM115
        sys.argv = ["chopper", *arguments]
        code = 99
        try:
            for number in SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            disturb()
            code = __main__.main()
            # As at the end of a process that isn't a copy of this one.
            threading._shutdown()  # type: ignore[attr-defined]
            multiprocessing.util._run_finalizers()  # type: ignore[attr-defined]
        except BaseException as error:
            print(f"Traceback: {error!r}", file=sys.stderr)
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    with pytest.raises(ProcessLookupError):
        for _ in range(6_000):
            os.killpg(pid, 0)
            time.sleep(0.01)
    return os.waitstatus_to_exitcode(status)


@pytest.mark.few(6)
@pytest.mark.parametrize("seed", range(len(COMMANDS) * 40))
def test_a_signal_at_any_call_of_the_system_ends_a_command(
    seed: int, run_and_store: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    # A signal that comes much later is one of an impatient user: none is, however slow the machine.
    monkeypatch.setattr(terminal, "_PATIENCE_S", float("inf"))
    random = Random(seed)
    name = [*COMMANDS][seed % len(COMMANDS)]
    run, store = run_and_store
    out = tmp_path / "out"
    out.mkdir()
    arguments = [word.format(run=run, store=store, out=out) for word in COMMANDS[name]]
    number, event = random.choice(SIGNALS), random.randrange(MOST_EVENTS.get(name, 200))
    is_twice = random.random() < 0.5

    def disturb() -> None:
        seen, program = 0, os.getpid()

        def hook(*_: object) -> None:
            nonlocal seen
            seen += 1
            is_due = seen == event or (is_twice and seen == event + 7)
            # Its workers are copies of it, which a signal ends as SIGKILL does.
            if is_due and os.getpid() == program:
                signal.raise_signal(number)

        sys.addaudithook(hook)

    code = in_child(arguments, tmp_path / "log", disturb)
    text = (tmp_path / "log").read_text()
    assert "Traceback" not in text and "internal error" not in text, text
    assert code in (0, 128 + number), text
    if code:
        assert text.count(terminal.sentence(number)) == text.count("\n") == 1, text
    left = {path.name for path in out.iterdir()}
    assert left <= {"a", ".a.parts"} and not list(tmp_path.rglob("*.new")), left
    if "a" in left and name.startswith("ingest"):
        read_store(out / "a")
    elif "a" in left and name == "show":
        assert (out / "a").read_text().startswith("name,")


def test_a_signal_that_no_code_can_raise_comes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a finaliser an exception is printed and lost; C code makes errors of its own of one."""
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    before = terminal.take(terminal.end_program)
    try:
        with pytest.raises(terminal.Ended):
            _finalise(signal.SIGTERM)
            for _ in range(1000):
                time.sleep(0.01)
        with pytest.raises(terminal.Ended):
            terminal.raise_taken()
    finally:
        terminal.give_terminal_back(before)


def test_a_signal_while_python_compiles_a_module_is_raised() -> None:
    """Its compiler takes other exceptions than Ctrl-C for constants that it can't work out."""
    before = terminal.take(terminal.end_program)
    source = "\n".join(f"x = (2 ** 40 + {number}) * 2 ** 40" for number in range(20_000))
    try:
        with pytest.raises(terminal.Ended):
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            for _ in range(1000):
                compile(source, "a module", "exec")
                assert not terminal._taken, "lost"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        terminal.give_terminal_back(before)


@pytest.mark.parametrize("name", ["take", "give_terminal_back"])
def test_a_signal_between_handlers_ends_in_a_sentence(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is raised at the next call, which may be the one that sets or gives back handlers."""
    real, before = getattr(terminal, name), terminal.handlers()

    def with_a_signal(*arguments: Any) -> Any:
        found = real(*arguments) if name == "take" else None
        terminal.end_program(signal.SIGTERM)
        return found or real(*arguments)

    monkeypatch.setattr(terminal, name, with_a_signal)
    assert cli.main(["--version"]) == 128 + signal.SIGTERM
    assert capsys.readouterr().err == f"{terminal.sentence(signal.SIGTERM)}\n"
    assert terminal.handlers() == before


def _finalise(number: int) -> None:
    class Finalised:
        def __del__(self) -> None:
            signal.raise_signal(number)
            for _ in range(100):
                pass

    Finalised()


@pytest.mark.few(1)
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_are_no_error(
    closed: str, run_and_store: tuple[Path, Path], tmp_path: Path
) -> None:
    """A file that is opened next would take the place of the stream, and get what it is sent."""
    out = tmp_path / "out.chopper"
    command = f"exec {sys.executable} -m chopper_tui ingest {run_and_store[0]} -o {out} {closed}"
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0 and not re.search(rb"error|Trace", done.stderr + done.stdout)
    assert len(read_store(out).table)


def test_a_standard_error_that_takes_nothing_changes_no_exit_code(
    run_and_store: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_and_store[0]
    out = tmp_path / "out.md"

    class Full(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "stderr", Full())
    assert cli.main(["show", "nowhere"]) == 1
    assert cli.main(["show", f"{run}:gpu=9"]) == 3
    assert cli.main(["show", str(run), "-o", str(out)]) == 0 and out.exists()
    assert cli.main(["ingest", str(run), "-o", str(tmp_path / "s")]) == 0


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(3))
def test_a_terminal_that_is_closed_leaves_the_exit_code(
    seed: int, run_and_store: tuple[Path, Path]
) -> None:
    """The flush at the exit failed, which made 120 of it."""
    master, slave = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "chopper_tui", ["info", "show", "diff"][seed], "nowhere"],
        cwd=ROOT, stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    os.close(master)
    assert process.wait(30) == (2 if seed == 2 else 1)


def test_a_mapped_file_that_is_cut_short_ends_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """SIGBUS killed the explorer with the terminal in its hands; a copy over a store cuts it."""
    store = tmp_path / "store"
    write_store(sample_run(), store)

    def opened(*arguments: Any, **given: Any) -> Run:
        run = open_view(*arguments, **given)
        for path in store.iterdir():
            os.truncate(path, 9)
        return run

    open_view = options.open_view_with
    monkeypatch.setattr(options, "open_view_with", opened)
    code = in_child(["show", str(store)], tmp_path / "log", lambda: None)
    assert code == 128 + signal.SIGBUS
    wording((tmp_path / "log").read_text(), "SIGBUS")


def test_threads_that_read_a_file_cut_short_together_say_so_once(tmp_path: Path) -> None:
    path, together, lost = tmp_path / "file", threading.Barrier(8), threading.Barrier(8)
    path.write_bytes(bytes(mmap.PAGESIZE))

    def read_together(mapped: mmap.mmap) -> None:
        together.wait()
        mapped[0]

    def lose() -> None:
        terminal.guard_mapped_files()
        terminal.restore_with(lambda: lost.wait(0.3))
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        os.truncate(path, 0)
        readers = [threading.Thread(target=read_together, args=(mapped,)) for _ in range(8)]
        for each in readers:
            each.start()
        for each in readers:
            each.join()

    assert in_child(["--version"], tmp_path / "log", lose) == 128 + signal.SIGBUS
    assert (tmp_path / "log").read_text().count("\n") == 1


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        taken = terminal.take(terminal.end_program)
        assert signal.SIGHUP not in taken and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        terminal.give_terminal_back(taken)
    finally:
        with suppress(TypeError):
            signal.signal(signal.SIGHUP, before)


_EXPLORED = """
import _thread, sys, time
from chopper_tui import __main__, cli
class Last:
    def __del__(self):
        print("Python took itself down", flush=True)
last = Last()
def explored():
    import chopper_tui.app
    _thread.start_new_thread(time.sleep, (1000,))
    print("explored")
    return 3
cli.main = explored
sys.exit(__main__.main())
"""


def test_the_explorer_ends_before_native_code_could_wake_up_in_its_threads() -> None:
    found = subprocess.run(
        [sys.executable, "-c", _EXPLORED], capture_output=True, text=True, timeout=100
    )
    assert (found.returncode, found.stdout, found.stderr) == (3, "explored\n", "")
