"""Crashes: the file of one, its secrecy, its keys; errors of commands; `--debug`."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from textual import events

from chopper_core.model.view import View
from chopper_core.util import debug
from chopper_tui import config as crash
from chopper_tui.app import ChopperApp
from chopper_tui.cli import main
from chopper_tui.config import state_directory, write_crash
from chopper_tui.play import keys_of, play
from tests.ingest.test_run_sets import trace
from tests.tui.explorer import explorer, sample_run
from tests.wording import Wording


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_file_is_private_and_tells_nothing_of_the_machine(
    umask: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    monkeypatch.setattr("sys.argv", ["chopper", "--hardware", "my-prototype"])
    before = os.umask(umask)
    try:
        path = write_crash(ValueError("x"), "run", ["j"])
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
def test_names_in_a_file_are_no_keys_and_inert(name: str) -> None:
    """A directory's name with line breaks put its own commands among the keys to repeat."""
    path = write_crash(ValueError(name), name, ["j"])
    assert path is not None and keys_of(str(path)) == ["j"]
    assert all(map(str.isprintable, path.read_text("utf-8").split("\n")))


def test_old_files_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crash, "_MAX_FILES", 2)
    state_directory().mkdir(parents=True)
    for day in range(10, 14):
        (state_directory() / f"crash-202001{day}-000000-1.log").touch()
    path = write_crash(ValueError("x"))
    files = sorted(each.name for each in state_directory().glob("crash-*.log"))
    assert path is not None and files == ["crash-20200113-000000-1.log", path.name]


async def test_every_key_that_was_typed_is_read_again() -> None:
    async with explorer() as at:
        for event in (
            *(events.Key("j", "j"), events.Key("number_sign", "#"), events.Key("space", " ")),
            *(events.Key("hyper+x", None), events.Key("ctrl+at", "\x00"), events.Key("f5", None)),
            *(events.Key("shift+tab", None), events.Paste('a"b')),
        ):
            at.app.post_message(event)
        await at.settle()
        path = at.app.write_crash(ValueError("x"))
    assert path is not None
    assert keys_of(str(path)) == ["j", "#", " ", "f5", "shift+tab", *'a"b']


@pytest.mark.sweep
def test_a_crash_is_repeated_from_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> str:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("chopper_core.render.info.info_text", broken)
    keys = ["j", "enter", "!"]
    for _ in range(2):
        app = ChopperApp(lambda _: sample_run(), View("sample.json"))
        with pytest.raises(ZeroDivisionError) as raised:
            play(app, keys, (80, 24))
        path = app.write_crash(raised.value)
        assert path is not None and "# address: sample.json:gpu=1" in path.read_text()
        assert "raise ZeroDivisionError" in path.read_text()
        keys = keys_of(str(path))


def test_an_error_of_a_command_is_a_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(*_: object, **__: object) -> int:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("chopper_tui.commands.keys.run", broken)
    assert main(["keys"]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "ZeroDivisionError: planted" in said
    (log,) = state_directory().glob("crash-*.log")
    assert str(log) in said and "raise ZeroDivisionError" in log.read_text()
    assert main(["keys", "--debug"]) == 1
    assert "raise ZeroDivisionError" in capsys.readouterr().err
    notes = tmp_path / "notes"
    assert main(["keys", f"--debug={notes}"]) == 1
    assert "raise ZeroDivisionError" not in capsys.readouterr().err
    assert "raise ZeroDivisionError" in notes.read_text()
    assert stat.S_IMODE(notes.stat().st_mode) == 0o600


def test_a_directory_that_is_gone_is_a_sentence(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    wording: Wording,
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main(["show", "."]) == 1
    wording(capsys.readouterr().err, "working directory")
    assert not list(state_directory().glob("crash-*.log"))


def test_a_full_disk_is_a_sentence(wording: Wording) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "chopper_tui", "keys"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    wording(done.stderr, "No space left on device")


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
    wording: Wording,
) -> None:
    for command in ("show", "ingest", "keys"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        assert "--debug" in capsys.readouterr().out
    assert main(["--debug=/nowhere/x", "keys"]) == 2
    wording(capsys.readouterr().err, "/nowhere/x")
    assert main(["show", "--", "--debug"]) == 1
    assert "--debug" in capsys.readouterr().err
