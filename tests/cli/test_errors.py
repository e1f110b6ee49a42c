# ruff: noqa: E501
"""Every error that a user can cause: its sentence, its exit code, and no traceback.

The table in docs/internals/errors.md is what these say; `make docs` rewrites it.
"""

from __future__ import annotations

import os
import re
import shlex
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from chopper_tui.cli import main
from tests.conftest import ROOT
from tests.ingest.test_run_sets import trace
from tests.limited import NEEDS_LINUX
from tests.sources.telemetry.telemetry_texts import NVIDIA_CSV

PAGE: Final = ROOT / "docs" / "internals" / "errors.md"
CASES: Final = {
    "": [
        "nowhere", "shwo",
        "run --play nowhere.keys", "run --play odd.keys", "run --play bin.keys", "run --play text.keys", "run --size big", "--debug=text.json/x keys",
    ],
    "show": [
        "show", "show nowhere", "show empty", "show folder", "show text.json", "show zeros.json",
        "show cut.json", "show idle.json", "show run.pkl", "show other.db", "show run:gpu=9",
        "show run:layer=1", "show 'run:gpu=0/gpu=1'", "show 'run:colour=1'", "show 'run?view=magic'",
        "show 'run?by=magic&view=kernels'", "show 'run?sort=magic'", "show 'run?columns=magic'",
        "show 'run?filter=('", "show 'run?metric=magic'",
        "show 'run?stat=magic'", "show 'run?magic=1'", "show 'run?from=soon'", "show 'run?base=nowhere'",
        "show 'run?base=@nobody'", "show run --format pdf",
        "show run --limit many", "live --interval 0.1", "show run --clock x", "show run --gpu x",
        "show run --hardware magic",
        "show run --hardware odd.toml", "show run --parallel tp=x", "show run --jobs 0",
        "show run --max-memory 1M", "show run --max-memory much", "show run -o text.json/x.md",
        "show run --magic", "show run -o /dev/full", "show /dev/zero", "show gone.json", "show bomb.json",
        "show run -o rank0.json", "show 'run?cut=2'", "show run:gpu=",
        "show 'run?over=gpu'", "show 'run?at=1ms'", "show 'run:gpu=0?columns=magic&view=kernels'",
        "show 'run?view=icicle&order=magic'", "show 'run?filter=layer:1'",
        "show 'run?from=9s&view=timeline'", "show 'run?view=find'", "show 'run?from=200us&to=100us&view=timeline'",
    ],
    "views with nothing to show": [
        "show 'run?view=comms'", "show 'run?view=memory'", "show 'run?view=pipeline'", "show 'run?view=power'",
        "show 'run?view=cpu'", "show 'run?view=ranks'", "show 'run?view=overlap'", "show 'run?view=compare'",
        "show 'gpu.csv?view=kernels'", "show 'gpu.csv?by=iteration&view=power'", "show 'gpu.csv?view=heatmap&of=magic'",
        "show 'gpu.csv?base=run&view=determinism'", "show 'gpu.csv:gpu=0'", "show 'gpu.csv?columns=magic'",
        "show 'runs?view=findings&filter=run:nothing'", "show 'runs?view=kernels&columns=magic'",
        "show 'runs?view=kernels&by=run,magic'", "show 'run?view=runs'", "show 'run?view=sweep'", "show 'run?view=pareto'",
        "show 'runs?view=pareto&of=magic'", "show 'runs?view=icicle'",
    ],
    "diff": [
        "diff run", "diff run nowhere", "diff run other --fail-if magic",
        "diff run other --fail-if 'magic>+1%'", "diff run slow --fail-if 'step_time>+1%'",
    ],
    "runs": [
        "runs nowhere", "runs empty", "runs runs --of magic", "runs runs --max-memory 5", "runs runs --sort magic",
        "runs runs --sweep magic", "runs runs --set magic",
    ],
    "ingest": [
        "ingest", "ingest run", "ingest -o store", "ingest nowhere -o store", "ingest run -o text.json",
        "ingest run -o folder", "ingest --finish store", "ingest run --into store --clock x=+1s",
        "ingest run -o store --scheduler tcp://host:1", "ingest run -o store --engine dask",
        "ingest run -o text.json/store",
    ],
    "export": [
        "export run --to magic -o x", "export run --to parquet -o text.json", "export run --to parquet",
        "export run --to parquet -o x --iteration 99",
    ],
    "other commands": [
        "baseline set a/b run", "baseline set a nowhere", "info nowhere", "check nowhere", "check rank0.json", "baseline set one", "baseline remove one",
        "cache list --old", "cache burn", "keys --format pdf",
    ],
}  # fmt: skip
HEADING: Final = "| command | exit code | says |\n| :-- | --: | :-- |"
NOTHING_TO_SHOW: Final = CASES["views with nothing to show"]
SURROUNDINGS: Final = (
    "chopper show run > /dev/full",
    "cd gone && rmdir ../gone && chopper show .",
    "ulimit -f 0 && chopper ingest run -o store",
    "chopper ingest run -o store && chopper check store",
    "chopper ingest run -o store && truncate -s 9 store/*.* && chopper show store",
)
"""Commands for a shell: the error is in what surrounds them."""
"""Command → what is asked of it, where the files are those of `files`."""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs, and files that are none."""
    monkeypatch.chdir(tmp_path)
    for name, step in (("run", 100), ("other", 100), ("slow", 300)):
        trace(Path(name), step_us=step)
    trace(Path("runs/a"))
    trace(Path("runs/b"))
    trace(Path("."))
    Path("empty").mkdir()
    Path("folder").mkdir()
    Path("folder", "notes.txt").write_text("notes")
    Path("text.json").write_text("all is well")
    Path("zeros.json").write_bytes(bytes(4096))
    Path("cut.json").write_bytes(Path("rank0.json").read_bytes()[:120])
    Path("idle.json").write_text('{"traceEvents": []}')
    Path("run.pkl").write_bytes(b"\x80\x04.")
    sqlite3.connect("other.db").execute("create table t (x)").connection.close()
    Path("odd.keys").write_text("j\nhyper+x\n")
    Path("gone.json").symlink_to("nowhere")
    event = '{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":1,"args":{"device":0}},'
    Path("bomb.json").write_text('{"traceEvents":[' + event * 80_000)
    Path("odd.toml").write_text("peak = [")
    Path("gpu.csv").write_text(NVIDIA_CSV)
    Path("bin.keys").write_bytes(b"\x80")
    Path("text.keys").write_text('text "\\x"\n')
    return tmp_path


def provoked(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code and what standard error says, with paths as from the folder."""
    capsys.readouterr()
    try:
        code = main(shlex.split(command))
    except SystemExit as left:
        code = int(left.code or 0)
    captured = capsys.readouterr()
    # A view that has nothing to show is no error: its reason is the output.
    notes = [line for line in captured.out.splitlines() if line.startswith("note: ")]
    said = captured.err or ("".join(notes[:1]) if command in NOTHING_TO_SHOW else "")
    for name in ("STATE", "CONFIG", "CACHE"):
        said = said.replace(os.environ[f"XDG_{name}_HOME"], f"${name}")
    for path in (folder.resolve(), folder):
        said = said.replace(f"{path}{os.sep}", "").replace(str(path), ".")
    return code, re.sub(r"-[0-9a-f]{12}\.chopper", "-….chopper", said.strip())


@pytest.mark.golden
@pytest.mark.parametrize("group", CASES)
def test_every_error_is_a_sentence(
    group: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = []
    for command in CASES[group]:
        code, said = provoked(command, files, capsys)
        assert code in (0, 1, 2, 3, 4, 5), command
        assert "Traceback" not in said and "internal error" not in said, (command, said)
        assert len(said.splitlines()) <= 2, (command, said)
        # That a limit is exceeded, or isn't, is said on standard output.
        assert said or code in (0, 4), command
        if said:
            rows.append(f"| `chopper {command}` | {code} | {cell(said)} |")
    check(group or "the explorer", rows)


@NEEDS_LINUX
@pytest.mark.sweep
def test_surroundings_that_fail_are_sentences(files: Path) -> None:
    Path("gone").mkdir()
    rows = []
    for command in SURROUNDINGS:
        line = command.replace("chopper", f"{sys.executable} -m chopper_tui")
        done = subprocess.run(
            ["sh", "-c", line],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        said = " ".join(done.stderr.split("\r")[-1].splitlines()[-1:]).replace(
            f"{files}{os.sep}", ""
        )
        assert done.returncode == 1 and "Traceback" not in done.stderr, (command, done.stderr)
        said = re.sub(r"-[0-9a-f]{12}\.chopper", "-….chopper", said)
        rows.append(f"| `{command}` | 1 | {cell(said)} |")
    check("surroundings", rows)


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def check(group: str, rows: list[str], heading: str = HEADING) -> None:
    """The rows of a group in the page, or written into it."""
    name = group.replace(" ", "-")
    start, end = f"<!-- {name} -->\n", f"\n<!-- /{name} -->"
    expected = "\n".join([heading, *rows])
    page = PAGE.read_text(encoding="utf-8")
    if os.environ.get("CHOPPER_UPDATE_GOLDENS"):
        head, rest = page.split(start)
        PAGE.write_text(head + start + expected + end + rest.split(end)[1], encoding="utf-8")
        return
    assert page.split(start)[1].split(end)[0] == expected
