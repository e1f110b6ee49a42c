"""Replays: keys of a file in, the last screen out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chopper_core.model.view import View
from chopper_core.render.glyphs import UNICODE
from chopper_core.util.errors import ChopperError
from chopper_tui.app import ChopperApp
from chopper_tui.cli import main
from chopper_tui.play import keys_of, play, played
from tests.cli.test_cli import TRACE
from tests.tui.explorer import explorer, sample_run

SCRIPT = '# a comment\n\ndown\nenter\n:sort -time\n/\ntext "1[01]"\nenter\n'


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "keys.txt"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_the_keys_of_a_file(tmp_path: Path) -> None:
    keys = keys_of(written(tmp_path, SCRIPT))
    assert keys == ["down", "enter", *":sort -time", "enter", "/", *"1[01]", "enter"]


@pytest.mark.parametrize("line", ["hyper+x", "text gemm", 'text "a'])
def test_a_line_that_is_no_key_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(ChopperError, match=r"keys\.txt:2"):
        keys_of(written(tmp_path, f"j\n{line}\n"))


@pytest.mark.sweep
def test_the_last_screen(tmp_path: Path) -> None:
    keys = keys_of(written(tmp_path, SCRIPT))
    app = ChopperApp(lambda progress: sample_run(), View("sample.json"), glyphs=UNICODE)
    text = play(app, keys, (100, 20))
    assert len(text.splitlines()) == 20
    assert "GPU 1" in text and "2 of 3 rows" in text and "filter 1[01]" in text


@pytest.mark.sweep
async def test_it_is_the_screen_that_a_person_sees() -> None:
    async with explorer((100, 20)) as at:
        await at.press("enter", "j")
        expected = at.text()
    app = ChopperApp(lambda progress: sample_run(), View("sample.json"), glyphs=UNICODE)
    assert await played(app, ["enter", "j"], (100, 20)) == expected


def test_a_table_of_runs_takes_keys_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rank0.json").write_text(json.dumps(TRACE), encoding="utf-8")
    keys = written(tmp_path, "down\n")
    assert main(["runs", str(tmp_path), "--play", keys, "--size", "100x20"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 20 and any("▌ two" in line for line in lines)


@pytest.mark.usefixtures("demo_kept")
def test_a_wrong_file_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--play", str(tmp_path / "none.txt")]) == 1
    assert "none.txt" in capsys.readouterr().err


@pytest.mark.sweep
@pytest.mark.usefixtures("demo_kept")
def test_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = written(tmp_path, "1\ndown\nenter\n")
    assert main(["demo", "--play", script, "--size", "70x18", "--jobs", "2"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) == 18 and "GPU 1" in lines[1]
