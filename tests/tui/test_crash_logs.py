"""Crashes: the log, its secrecy, its replay, the offer at the next start; `--debug`."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from textual import events
from textual.geometry import Size

from chopper_core.model import address
from chopper_core.model.view import Baseline, View
from chopper_core.util import debug
from chopper_core.util.errors import DataError
from chopper_tui import crash
from chopper_tui.app import ChopperApp
from chopper_tui.cli import main
from chopper_tui.config import DEFAULTS, state_directory
from chopper_tui.crash import Journal, latest, logs, new_crash_log, read_log, write_log
from chopper_tui.play import keys_of, played
from tests.ingest.test_run_sets import trace
from tests.tui.explorer import explorer, sample_run


def key(name: str, character: str | None = None) -> events.Key:
    return events.Key(name, character)


def mouse(kind: type[events.MouseEvent], x: int, y: int, *, shift: bool = False) -> events.Event:
    return kind(None, x, y, 0, 0, 1, shift, False, False, x, y)


def journal_of(*inputs: events.Event) -> Journal:
    journal = Journal()
    for event in (events.Resize(Size(100, 30), Size(100, 30)), *inputs):
        journal.take(event)
    return journal


INPUTS = (
    key("j", "j"), key("number_sign", "#"), key("enter", "\r"), key("space", " "),
    key("quotation_mark", '"'), key("ctrl+d", "\x04"), events.Paste("a\n\u202eb"),
    mouse(events.MouseMove, 1, 1), mouse(events.MouseMove, 4, 5), mouse(events.MouseDown, -1, 5),
    mouse(events.MouseUp, 4, 5, shift=True), mouse(events.MouseScrollDown, 4, 5),
    events.Resize(Size(80, 24), Size(80, 24)), key("é", "é"),
)  # fmt: skip
LINES = [
    'text "j#"', "enter", 'text " \\""', "ctrl+d", 'paste "a\\n\\u202eb"', "mouse move 4,5 1",
    "mouse down -1,5 1", "mouse up 4,5 1 shift", "mouse scroll_down 4,5 1", "resize 80x24",
    'text "\\u00e9"',
]  # fmt: skip


def test_a_journal_holds_what_was_typed() -> None:
    journal = journal_of(*INPUTS)
    assert journal.size == (100, 30) and journal.is_whole
    assert journal.lines() == LINES


def test_a_pause_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crash, "_PAUSE_S", -1.0)
    assert journal_of(*INPUTS[:2]).lines() == ['text "j"', "wait", 'text "#"']


def test_a_log_reads_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path)
    start = View("run", name="kernels", baseline=Baseline("@main"))
    try:
        raise KeyError("gpu\n# address: /etc/passwd")
    except KeyError as error:
        path = write_log(error, journal_of(*INPUTS), start, View("run", ("1",)), is_ascii=True)
    assert path is not None
    log = read_log(path)
    assert log.start.run == str(tmp_path / "run") and log.start.name == "kernels"
    assert log.start.baseline == Baseline("@main")
    assert log.at == f"{tmp_path}/run:gpu=1"
    assert (log.size, log.is_ascii) == ((100, 30), True)
    assert keys_of(str(path)) == [
        "j", "#", "enter", " ", '"', "ctrl+d", *LINES[4:10], "é"
    ]  # fmt: skip
    assert "raise KeyError" in path.read_text()


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_log_is_private_and_tells_nothing_of_the_machine(
    umask: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    monkeypatch.setattr("sys.argv", ["chopper", "--hardware", "my-prototype"])
    before = os.umask(umask)
    try:
        path = write_log(ValueError("x"), journal_of(), View("run"))
    finally:
        os.umask(before)
    assert path is not None
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    text = path.read_text()
    for secret in ("hunter2", "my-prototype", os.uname().nodename):
        assert secret not in text


@pytest.mark.parametrize(
    "name",
    ["x\n:snapshot text owned", "\x1b[2J\u202e", '"x"', "\u2028q", "\udcff", "a:gpu=1", "a?b=1"],
)
def test_names_in_a_log_are_no_keys_and_inert(name: str) -> None:
    """A directory's name with line breaks put its own commands among the keys to replay."""
    path = write_log(ValueError(name), journal_of(key("j", "j")), View(name), View(name))
    assert path is not None
    assert keys_of(str(path)) == ["j"]
    log = read_log(path)
    assert log.start.run == address.parse(log.at).run == name
    assert all(map(str.isprintable, path.read_text("utf-8").split("\n")))


def test_old_logs_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crash, "_MAX_LOGS", 2)
    state_directory().mkdir(parents=True)
    for day in range(10, 14):
        (state_directory() / f"crash-202001{day}-000000-1.log").touch()
    path = write_log(ValueError("x"))
    assert [each.name for each in logs()] == ["crash-20200113-000000-1.log", path and path.name]


@pytest.mark.parametrize(
    "text",
    [
        *("", "j\n", "# address: a\n", "# address: a\n# size: 0y3\n", "\x80", "# size: 80x24\n"),
        *("# address: a?magic=1\n# size: 80x24\n", "# address: :gpu=1\n# size: 80x24\n"),
    ],
)
def test_another_file_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=r"x\.log"):
        read_log(path)
    assert main(["--replay", str(path)]) == 1


def test_a_log_of_another_version_and_a_damaged_note_keep_nobody_from_starting() -> None:
    """Each start ended in a usage error, until the log was removed by hand."""
    state_directory().mkdir(parents=True)
    log = state_directory() / "crash-20200101-000000.0-1.log"
    log.write_text("# address: run?magic=1\n# size: 80x24\n")
    (state_directory() / "crash-offered").write_bytes(b"\x80")
    assert new_crash_log() is None
    log.write_text("# address: run\n# size: 80x24\n")
    assert new_crash_log() is None
    (state_directory() / "crash-offered").unlink()
    assert new_crash_log() == log


@pytest.mark.parametrize("option", ["--replay", "--play", "--hardware"])
def test_files_without_an_end_are_refused(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace(tmp_path)
    endless = tmp_path / "endless.toml"
    endless.symlink_to("/dev/zero")
    arguments = {"--hardware": ["show", str(tmp_path)], "--play": [str(tmp_path)]}
    assert main([*arguments.get(option, []), option, str(endless)]) != 0
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and str(endless) in said and len(said) < 999


async def test_the_next_start_offers_to_return(monkeypatch: pytest.MonkeyPatch) -> None:
    run = sample_run()
    path = write_log(ValueError("x"), journal_of(), View(run.name), View(run.name, ("1", "11")))
    assert latest() == path and new_crash_log() == path
    assert new_crash_log() is None
    from msgspec.structs import replace

    app = ChopperApp(lambda _: run, View(run.name), config=replace(DEFAULTS, crashed=path))
    async with explorer((100, 24), app=app) as at:
        assert ":replay" in at.status
        await at.command("replay")
        assert at.path == ("1", "11") and f"chopper --replay {path}" in at.status
        await at.press("H")
        assert at.path == ()
    write_log(ValueError("x"), journal_of(), View("other"), View("other", ("1",)))
    for log in logs():
        if log != latest():
            log.unlink()
    async with explorer((100, 24)) as at:
        await at.command("replay")
        assert "chopper 'other:gpu=1'" in at.status


async def test_without_a_crash_there_is_nothing_to_return_to() -> None:
    async with explorer() as at:
        await at.command("replay")
        assert "no crash of the explorer is logged" in at.status


def test_a_crash_is_repeated_from_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same keys on the same run end in the same error, and without the defect in none."""
    run = sample_run()

    def broken(*_: object) -> str:
        raise ZeroDivisionError("planted")

    def app() -> ChopperApp:
        return ChopperApp(lambda _: run, View(run.name))

    keys = ["j", "enter", "wait", "i", "resize 90x30", "wait", "escape", "0", "0", "wait", "j"]
    with monkeypatch.context() as patch:
        patch.setattr("chopper_core.render.info.as_text", broken)
        first = app()
        done = played(first, keys, (80, 24))
        assert isinstance(done.crash, ZeroDivisionError)
        path = first.write_crash(done.crash)
        assert path is not None
        again = played(app(), keys_of(str(path)), read_log(path).size)
        assert isinstance(again.crash, ZeroDivisionError) and again.inputs <= 9
    assert read_log(path).at.startswith("sample.json:gpu=1")
    mended = played(app(), keys_of(str(path)), read_log(path).size)
    assert mended.crash is None and mended.screen


def test_the_command_replays_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace(tmp_path / "fsdp2")
    trace(tmp_path / "fsdp2", 1)
    start = View(str(tmp_path / "fsdp2"))
    journal = journal_of(key("j", "j"), key("enter", "\r"), key("P", "P"))
    path = write_log(ValueError("x"), journal, start, start)
    assert main(["--replay"]) == 0
    printed = capsys.readouterr()
    assert (
        "fsdp2  GPU 1" in printed.out.replace(" > ", "  ").replace(" › ", "  ")
        and "3 inputs" in printed.err
        and str(path) in printed.err
    )
    assert len(printed.out.splitlines()) == 30
    assert not list(Path.cwd().glob("*.svg")) and not list(Path.cwd().glob("*.txt"))


def test_an_error_of_a_command_is_a_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(*_: object) -> int:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("chopper_tui.commands.keys.run", broken)
    assert main(["keys"]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "ZeroDivisionError: planted" in said
    (log,) = logs()
    assert str(log) in said and "raise ZeroDivisionError" in log.read_text()
    assert main(["keys", "--debug"]) == 1
    assert "raise ZeroDivisionError" in capsys.readouterr().err
    notes = tmp_path / "notes"
    assert main(["keys", f"--debug={notes}"]) == 1
    assert "raise ZeroDivisionError" not in capsys.readouterr().err
    assert "raise ZeroDivisionError" in notes.read_text()
    assert stat.S_IMODE(notes.stat().st_mode) == 0o600


def test_a_directory_that_is_gone_is_a_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main(["show", "."]) == 1
    assert "the working directory no longer exists" in capsys.readouterr().err
    assert not logs()


def test_a_full_disk_is_a_sentence() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "chopper_tui", "keys"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "chopper: the output can't be written: No space left on device\n"


def test_debug_adds_timings_and_the_traceback_of_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace(tmp_path)
    address = f"{tmp_path}:gpu=99"
    assert main(["info", str(tmp_path)]) == 0
    capsys.readouterr()
    assert main(["show", address]) == 3
    plain = capsys.readouterr()
    assert plain.err.count("\n") == 1
    assert main(["--debug", "show", address]) == 3
    full = capsys.readouterr()
    assert full.err.endswith(plain.err) and "NoSuchNode" in full.err and full.out == plain.out
    assert re.search(r"\d\.\d{3}  \d+  (open|read) .*: took \d+\.\d ms", full.err)
    assert not debug.target


def test_notes_on_a_full_disk_are_lost_and_nothing_else(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--debug=/dev/full", "keys"]) == 0
    assert capsys.readouterr().err == ""


def test_debug_is_an_option_of_every_command_and_of_none_behind_dashes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for command in ("show", "ingest", "keys"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        assert "--debug" in capsys.readouterr().out
    assert main(["--debug=/nowhere/x", "keys"]) == 2
    assert "/nowhere/x can't be written" in capsys.readouterr().err
    assert main(["show", "--", "--debug"]) == 1
    assert "--debug" in capsys.readouterr().err
