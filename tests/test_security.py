"""The promises of docs/security.md that no other test covers."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import re
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from chopper_core.extensions.chakra.et import EtFile
from chopper_core.extensions.runs.run_set import open_runs
from chopper_core.ingest import cache
from chopper_core.ingest.open import open_run
from chopper_core.model.address import parse
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.render import FORMATS, render_frame
from chopper_core.render.exports import EXPORTS, ExportOptions, export
from chopper_core.render.glyphs import UNICODE
from chopper_core.render.info import info_json as info_json
from chopper_core.render.info import info_text as info_text
from chopper_core.render.names import row_names
from chopper_core.render.text import as_html, show_command
from chopper_core.store.format import RUN, STORE_INDEX
from chopper_core.store.reader import read_store
from chopper_core.store.writer import write_store
from chopper_core.util.atomic import file_state
from chopper_core.util.errors import DataError, UsageError
from chopper_core.util.escape import clean
from chopper_core.views import VIEWS
from chopper_core.views.query import frame_of, query
from chopper_tui.cli import _parser, main
from chopper_tui.commands.following import follower_for
from chopper_tui.export import issue_text
from tests.programs.fuzz.seeds import SEEDS
from tests.support import Row, place_of_row, run_of, sample_run
from tests.tui.explorer import explorer, measured_run
from tests.wording import Wording

ROOT = Path(__file__).resolve().parent.parent
HOSTILE = [
    "\x1b]0;owned\x07\x1b[2J",
    "[bold red]text[/]",
    "=cmd|' /C calc'!A0",
    "+1",
    "-1",
    "@SUM(1)",
    "\u202egnp.exe",
    "zero\u200bwidth",
    "zerowidth",
    "<script>alert(1)</script>",
    "a|b",
    "`<img src=x>`",
    "a\nb",
    "../../etc/passwd",
]


ACTING = [
    *("\x9b31mC1", "\x9d0;t\x9c", "[@click=app.quit]x[/]", "\t=1+1", "\r=2", "C:\\x", "a/b"),
    *("[l](http://e)", "![i](http://e)", "\x00nul", "e" + 300 * "\u0301", "é", "e\u0301"),
    *("\u2066iso\u2069", "\ufeffbom", "\u2028ls", "\U000e0041tag", "a\ufe0f", "\u3164", "", " "),
    *("--help", "$(reboot)", "%s%n", "k" * 20_000),
]
"""More names that a terminal, a spreadsheet, a browser or a reader may take for something else."""
UNSEEN = re.compile(
    "[\\x00-\\x09\\x0b-\\x1f\\x7f-\\x9f\\u00ad\\u034f\\u061c\\u115f\\u180e\\u200b-\\u200f\\u2028-\\u202e"
    "\\u2060-\\u206f\\u3164\\ufe00-\\ufe0f\\ufeff\\ufff9-\\ufffb\\ud800-\\udfff\\U000e0000-\\U000e01ef]"
)
_FLOOD = re.compile("[\\u0300-\\u036f]{3}")
"""What no output has: it would act on a terminal, or hide or turn the text around it."""


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_caches_are_private_whatever_the_umask(
    umask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    trace = _trace(tmp_path)
    before = os.umask(umask)
    try:
        cache.open_cached(str(trace))
    finally:
        os.umask(before)
    (entry,) = cache.entries()
    assert _mode(cache.directory()) == _mode(entry.path) == 0o700
    for above in (tmp_path / "cache", cache.directory().parent):
        assert not _mode(above) & 0o022, "others could put a folder of theirs there"
    assert {_mode(path) for path in entry.path.iterdir()} == {0o600}


def test_a_run_moved_into_the_place_of_another_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # Two files of one tick of the clock: moving a folder changes no time of a file in it.
    monkeypatch.setattr(
        cache.atomic, "file_state", lambda path: (*file_state(path)[:2], 0, *file_state(path)[3:])
    )
    runs = [tmp_path / "run", tmp_path / "other"]
    for run, name in zip(runs, "ab", strict=True):
        run.mkdir()
        trace = _trace(run)
        trace.write_text(trace.read_text().replace('"k"', f'"{name}"'))
        os.utime(trace, (1, 1))
    assert cache.open_cached(str(runs[0])).table.names == ("a",)
    runs[0].rename(tmp_path / "old")
    runs[1].rename(runs[0])
    assert cache.open_cached(str(runs[0])).table.names == ("b",)


def test_a_cache_that_others_can_write_to_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    trace = _trace(tmp_path)
    cache.open_cached(str(trace))
    (entry,) = cache.entries()
    write_store(sample_run(), entry.path, origin="planted")
    assert len(cache.open_cached(str(trace)).table) == len(sample_run().table)
    cache.directory().chmod(0o777)
    assert len(cache.open_cached(str(trace)).table) == 1
    assert _mode(cache.directory()) == 0o700
    elsewhere = tmp_path / "elsewhere"
    cache.directory().rename(elsewhere)
    cache.directory().symlink_to(elsewhere)
    stores = sorted(elsewhere.iterdir())
    assert len(cache.open_cached(str(trace)).table) == 1
    assert sorted(elsewhere.iterdir()) == stores


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_figures_that_are_kept_are_private_and_those_of_others_are_not_read(
    umask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    trace = _trace(tmp_path)
    before = os.umask(umask)
    try:
        place_of_row(trace).keep([1, 2])
    finally:
        os.umask(before)
    kept = place_of_row(trace)
    assert kept.recall(list[int]) == [1, 2]
    assert _mode(kept.file.parent) == 0o700
    assert _mode(kept.file) == 0o600
    kept.file.parent.chmod(0o777)
    assert kept.recall(list[int]) is None
    kept.keep([3])
    assert _mode(kept.file.parent) == 0o700 and kept.recall(list[int]) == [3]
    # Planted while others could write: it is theirs still.
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert kept.recall(list[int]) is None


def test_figures_are_kept_for_one_state_of_the_files_and_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    trace = _trace(tmp_path)
    kept = place_of_row(trace)
    kept.keep([1, 2])
    whole = kept.file.read_bytes()
    kept.file.write_bytes(whole.replace(b"2", b"3"))
    assert kept.recall(list[int]) is None
    kept.file.write_bytes(whole)
    assert kept.recall(list[int]) == [1, 2]
    os.utime(trace, ns=(1, 1))
    later = place_of_row(trace)
    assert later.recall(list[int]) is None
    later.keep([4])
    assert [later.file] == list(later.file.parent.iterdir())
    assert cache.clear() and later.recall(list[int]) is None


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "other.arrow"])
def test_a_store_names_its_own_files_alone(name: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    write_store(sample_run(), store)
    index = json.loads((store / STORE_INDEX).read_bytes())
    index["files"][name] = index["files"].pop(RUN)
    (store / STORE_INDEX).write_bytes(msgspec.json.encode(index))
    with pytest.raises(DataError, match="names other files"):
        read_store(store)


def test_a_store_has_no_links(tmp_path: Path) -> None:
    store = tmp_path / "store"
    write_store(sample_run(), store)
    (store / RUN).rename(tmp_path / RUN)
    (store / RUN).symlink_to(tmp_path / RUN)
    with pytest.raises(DataError, match="is a link"):
        read_store(store)


@pytest.mark.parametrize("format_name", ["text", "markdown", "csv", "json"])
def test_hostile_names_are_inert_and_stay_apart(format_name: str) -> None:
    rows = [Row(i * 10, 5, operation=name, kernel=name) for i, name in enumerate(HOSTILE)]
    run = run_of(rows)
    frame = query(run, View(run.name, order=("operation", "kernel")))
    assert len(set(frame.labels)) == len(HOSTILE)
    text = render_frame(frame, format_name, width=200)
    if format_name == "json":
        assert {row["name"] for row in json.loads(text)["rows"]} == set(frame.labels)
        return
    if format_name == "csv":
        cells = [row[0] for row in csv.reader(io.StringIO(text))][1:]
        assert len(set(cells)) == len(HOSTILE)
        assert not [cell for cell in cells if cell[:1] in "=+-@\t\r"]
        assert not {"\x1b", "\x07", "\u202e", "\u200b"} & set(text)
        return
    for bad in ("\x1b", "\x07", "\u202e", "\u200b"):
        assert bad not in text
    if format_name == "markdown":
        assert "<script>" not in text
    shown = [line for line in text.splitlines() if line.strip()]
    assert len(set(shown)) == len(shown)


def hostile_run(name: str = "run") -> Run:
    """Operations and kernels with hostile names, in a run whose own name may be one too."""
    rows = [Row(i * 10, 5, operation=name, kernel=name) for i, name in enumerate(HOSTILE)]
    return replace(run_of(rows), name=name)


def test_html_and_issues_show_hostile_names_as_text() -> None:
    run = hostile_run("<b>run</b>|\x1b[2J")
    frame = query(run, View(run.name, order=("operation", "kernel")))
    html = as_html(frame)
    assert "<script" not in html and "<b>run" not in html and "&lt;script&gt;" in html
    assert not re.search(r"<[^>]*(?:src=|href=|url\()|@import", html), "nothing is loaded"
    issue = issue_text(run, frame)
    # Code spans show anything as it is.
    outside = re.sub(r"```.*?```|`[^`]*`", "", issue, flags=re.DOTALL)
    assert not re.search(r"(?<!\\)<(?!/?(?:details|pre)>)", outside)
    for text in (html, issue):
        assert not {"\x1b", "\x07", "\u202e", "\u200b"} & set(text)


@pytest.mark.parametrize("to", ["parquet", "perfetto", "chakra"])
def test_exported_files_keep_hostile_names_apart_and_stay_where_they_are_asked(
    to: str, tmp_path: Path
) -> None:
    run = hostile_run("../../a/../b\x1b[31m.x/..")
    outside = tmp_path / "outside"
    outside.mkdir()
    out = outside / {"parquet": "a.parquet", "perfetto": "a.json", "chakra": "a"}[to]
    export(run, to, out, ExportOptions(force=to == "chakra"))
    assert [path.name for path in tmp_path.iterdir()] == ["outside"]
    assert [path.name for path in outside.iterdir()] == [out.name]
    if to == "parquet":
        names = pq.read_table(out)["kernel"].to_pylist()
    elif to == "perfetto":
        events = json.loads(out.read_text("utf-8"))["traceEvents"]
        names = [event["name"] for event in events if event.get("cat") == "kernel"]
    else:
        (trace,) = out.glob("*.et")
        names = [node.name for node in EtFile(trace)]
    assert set(HOSTILE) <= set(names)


def test_names_of_runs_are_inert_in_a_table_of_runs(tmp_path: Path) -> None:
    names = ["\x1b[2Jone", "[red]two", "=three", "\u202efour", "five\nsix", "<i>seven"]
    for name in names:
        (tmp_path / name).mkdir()
        _trace(tmp_path / name)
    (tmp_path / names[0] / "manifest.json").write_text('{"model": "\\u001b[31m=1+1<script>"}')
    runs = open_runs("R", [str(tmp_path)], jobs=1, use_cache=False)
    while runs.reading(False).waiting:
        runs.reading(True)
    frame = query(runs, View(runs.name))
    assert len(set(frame.labels)) == len(names)
    for format_name in ("text", "markdown", "csv"):
        text = render_frame(frame, format_name, width=200)
        assert not {"\x1b", "\u202e"} & set(text)
        assert format_name != "markdown" or not re.search(r"(?<!\\)<(?:script|i)", text)
        assert format_name != "csv" or not [line for line in text.splitlines() if line[0] == "="]


async def test_exports_hold_nothing_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = ("in-the-environment", "on-the-command-line", "name-of-the-host", "home-of-the-user")
    for name, text in zip(("CHOPPER_SECRET", "USER", "HOSTNAME", "HOME"), secrets, strict=True):
        monkeypatch.setenv(name, text)
    monkeypatch.setattr("sys.argv", ["chopper", secrets[1]])
    monkeypatch.setattr("socket.gethostname", lambda: secrets[2])
    monkeypatch.setattr("os.uname", lambda: os.uname_result((secrets[2],) * 5))
    run = measured_run(gpus=2, iterations=2, layers=2)
    frame = query(run, View(run.name))
    texts = [render_frame(frame, format_name, width=120) for format_name in FORMATS]
    texts += [as_html(frame), issue_text(run, frame), info_text(run), info_json(run)]
    for to in EXPORTS:
        export(run, to, tmp_path / to, ExportOptions(force=to == "chakra"))
    write_store(run, tmp_path / "store")
    async with explorer((80, 24), run) as driven:
        texts += [driven.app.export_screenshot()]
    made = [path for path in tmp_path.rglob("*") if path.is_file()]
    contents = [*map(str.encode, texts), *(path.read_bytes() for path in made)]
    assert len(made) > 8 and not [each for each in secrets if each.encode() in b"".join(contents)]


def test_no_output_replaces_an_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = _trace(tmp_path)
    assert main(["ingest", str(tmp_path), "-o", str(tmp_path / "store")]) == 0
    for path in (trace, tmp_path / "store" / RUN):
        before = path.read_bytes()
        for arguments in (["show", str(trace), "-o", str(path)], [f"--debug={path}", "keys"]):
            assert main(arguments) == 2
            assert "no output replaces" in capsys.readouterr().err
        assert path.read_bytes() == before
    for format_name in FORMATS * 2:
        out = str(tmp_path / "out.json")
        assert main(["show", str(trace), "-o", out, "--format", format_name]) == 0


_ACTS = ("socket.", "urllib.", "http.", "os.system", "os.exec", "os.posix_spawn", "os.spawn")
_ACTS += ("subprocess.", "pickle.", "webbrowser.", "sqlite3.load_ext", "sqlite3.enable_load_ext")
_acts: list[str] | None = None


def _watch(event: str, arguments: tuple[object, ...]) -> None:
    """Note what a process does beyond reading and writing files; a hook can't be removed."""
    if _acts is not None and event.startswith(_ACTS):
        _acts.append(f"{event} {arguments}")


def test_opening_any_input_executes_and_contacts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sys.addaudithook(_watch)
    acts: list[str] = []
    monkeypatch.setattr(f"{__name__}._acts", acts)
    for seed in ("packed trace", "rocpd", "chakra", "amd-smi csv", "job yaml"):
        (tmp_path / seed).mkdir()
        SEEDS[seed](tmp_path / seed)
        list(_outputs(tmp_path / seed, ["overview"]))
    (tmp_path / "gpu.pkl").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    assert main(["show", str(tmp_path / "gpu.pkl")]) == 1
    trace = str(_trace(tmp_path))
    for arguments in (
        *(["show", trace, "--jobs", "1"], ["info", trace], ["diff", trace, trace]),
        ["export", trace, "--to", "parquet", "-o", str(tmp_path / "out")],
    ):
        assert main(arguments) == 0
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    watched = ["--watch", "--jobs", "1", "--alarm", "gfx_mhz<1500", str(tmp_path / "amd-smi csv")]
    follower = follower_for(View(watched[-1]), _parser().parse_args(watched))
    try:
        assert follower.open().gpus and not follower.poll() and not follower.tail()
    finally:
        follower.close()
    assert acts == []


INPUTS: dict[str, Callable[[Path], Path]] = {
    "trace": lambda folder: _trace(folder),
    "telemetry": lambda folder: _seeded(folder, "amd-smi csv", "*.csv"),
    "file of a store": lambda folder: _stored(folder) / RUN,
    "manifest": lambda folder: _written(folder / "manifest.json", '{"model": "m"}'),
    "job": lambda folder: _written(folder / "job.yaml", "model: m"),
    "specifications": lambda folder: _written(folder / "gpu.toml", "[gpus.X]"),
    "recording": lambda folder: _seeded(folder, "recorded run.json", "run.json"),
    "node of a recording": lambda folder: _seeded(folder, "recorded run.json", "nodes/*.json"),
    "process of a recording": lambda folder: _seeded(
        folder, "recorded run.json", "processes/*.json"
    ),
    "damaged trace": lambda folder: _written(folder / "rank0.json.gz", "\x1f\x8b\x08cut"),
}
"""Files that runs are read from, as they lie in a directory."""


def _written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="latin-1")
    return path


def _seeded(folder: Path, seed: str, name: str) -> Path:
    SEEDS[seed](folder)
    return next(iter(folder.rglob(name)))


def _stored(folder: Path) -> Path:
    write_store(sample_run(), folder / "store")
    return folder / "store"


@pytest.mark.parametrize("what", INPUTS)
def test_no_output_replaces_an_input_by_another_name(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name, a link, a link to a link or a hard link: what lies there counts."""
    folders = [tmp_path / name for name in ("run", "shown", "out")]
    for folder in folders:
        folder.mkdir()
    path, shown, out = INPUTS[what](folders[0]), _trace(folders[1]), folders[2]
    (out / "link").symlink_to(path)
    (out / "link.md").symlink_to(out / "link")
    os.link(path, out / "hard.txt")
    before = path.read_bytes()
    names = [path, out / "link", out / "link.md"]
    # The name of a manifest says what it is; a hard link has none of it.
    names += [out / "hard.txt"] if "trace" in what or what == "telemetry" else []
    for name in names:
        for arguments in (
            *(["show", str(shown), "-o", str(name)], ["diff", str(shown), "-o", str(name)]),
            *(["report", str(shown), "-o", str(name)], [f"--debug={name}", "keys"]),
        ):
            if arguments[0] == "diff":
                arguments.insert(2, str(shown))
            assert main(arguments) == 2, arguments
            assert "no output replaces" in capsys.readouterr().err
            assert path.read_bytes() == before and (out / "link").is_symlink()
    for name in ("dangling", "empty"):
        (out / name).symlink_to(out / "new") if name == "dangling" else (out / name).touch()
        assert main(["show", str(shown), "-o", str(out / name)]) == 0
        assert (out / name).stat().st_size


def test_the_live_demo_is_mixed_with_no_telemetry(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wording: Wording
) -> None:
    telemetry = tmp_path / "amd_smi_monitor.csv"
    telemetry.write_text("mine\n")
    assert main(["demo", "--live", "--write", str(tmp_path)]) == 1
    wording(capsys.readouterr().err, "exists")
    assert telemetry.read_text() == "mine\n"


def test_names_are_inert_in_lists_and_notes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = tmp_path / "\x1b]0;t\x07\x9b31m\u202e"
    for each in (run, other := run.with_name(f"{run.name}\udcff")):
        each.mkdir()
        _trace(each)
    notes = tmp_path / "notes"
    for arguments in (
        *(["info", str(run)], ["baseline", "set", "main", str(other)], [], ["baseline"]),
        *(["cache"], [f"--debug={notes}", "show", f"{run}:gpu=9"], ["--debug", "info", str(run)]),
    ):
        main(arguments)
        printed = capsys.readouterr()
        assert "\\x1b" in printed.out + printed.err or f"--debug={notes}" in arguments
        assert not UNSEEN.search(printed.out.replace("\t", " ") + printed.err)
    assert "\\x1b" in notes.read_text() and not UNSEEN.search(notes.read_text())


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _trace(folder: Path) -> Path:
    event = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2, "pid": 0, "tid": 7}
    path = folder / "rank0.json"
    path.write_text(json.dumps({"traceEvents": [{**event, "args": {"device": 0, "stream": 7}}]}))
    return path


@pytest.mark.parametrize(
    "arguments",
    [["show"], ["info"], ["check"], ["diff", "x"], ["export", "--to", "parquet", "-o", "x"]],
)
def test_names_in_errors_are_inert(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "\x1b]0;t\x07\x9b31m\u202e\nchopper: "
    folder.mkdir()
    (folder / "rank0\x1b[2J.json").write_text("{")
    # An unknown command or a missing argument ends in argparse.
    with suppress(SystemExit):
        main([*arguments, str(folder)])
    printed = capsys.readouterr()
    assert "\\x1b" in printed.err and not UNSEEN.search(printed.err + printed.out)
    assert len(printed.err.splitlines()) == 1


def _renamed(path: Path, random: Random) -> None:
    """Replace names in a file by hostile ones, in a way that suits its format."""

    def other(text: str, odds: float = 0.3) -> str:
        is_name = len(text) > 2 and text.isascii() and not text[0].isdigit()
        return random.choice(HOSTILE + ACTING) if is_name and random.random() < odds else text

    def walked(value: Any) -> Any:
        if isinstance(value, dict):
            kept = ("ph", "cat", "schema")
            return {other(k, 0.01): v if k in kept else walked(v) for k, v in value.items()}
        return [*map(walked, value)] if isinstance(value, list) else _if_text(value, other)

    data = path.read_bytes()
    if path.suffix in (".db", ".rpd"):
        with closing(sqlite3.connect(path)) as db, db:
            tables = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            for (table,) in tables:
                for column in [row[1] for row in db.execute(f'PRAGMA table_info("{table}")')]:
                    change = f'UPDATE OR IGNORE "{table}" SET "{column}" = ? '
                    change += f'WHERE typeof("{column}") = "text" AND rowid % 3 = 1'
                    if random.random() < 0.3:
                        db.execute(change, (other("name", 1.0).encode("utf-8", "replace"),))
    elif path.suffix == ".json" or path.name.endswith(".json.gz"):
        packed = path.suffix == ".gz"
        text = json.dumps(walked(json.loads(gzip.decompress(data) if packed else data)))
        path.write_bytes(gzip.compress(text.encode(), mtime=0) if packed else text.encode())
    elif path.suffix in (".csv", ".txt", ".log", ".prom"):
        lines = [re.split("([,;{}= ])", line) for line in data.decode().split("\n")]
        for cells in lines:
            odds = 0.02 if cells is lines[0] else 0.3
            cells[:] = [other(cell, odds).replace("\n", " ") for cell in cells]
        path.write_text("\n".join(map("".join, lines)), "utf-8", "surrogatepass")
    else:
        # A binary format: names of the same number of bytes.
        for word in set(re.findall(rb"[a-z_]{4,12}", data)):
            if random.random() < 0.3:
                data = data.replace(word, b"\x1b[2J\xc2\x9bab\xe2\x80\xae"[: len(word)])
        path.write_bytes(data)


def _if_text(value: Any, change: Callable[[str], str]) -> Any:
    return change(value) if isinstance(value, str) else value


def _outputs(folder: Path, views: Sequence[str]) -> Iterator[tuple[str, str]]:
    """All that can be printed, copied or pasted of a run: where it is, and its text."""
    try:
        run = open_run(str(folder), jobs=1)
    except (DataError, UsageError) as error:
        yield "error", clean(str(error))
        return
    yield "info", info_text(run)
    yield "info as JSON", info_json(run)
    for name in views:
        try:
            frame = frame_of(run, parse(f"R?view={name}&cut=1"))
        except UsageError as error:
            yield f"error of {name}", clean(str(error))
            continue
        for format_name in FORMATS:
            kind = "JSON" if format_name == "json" else format_name
            yield f"{name} as {kind}", render_frame(frame, format_name, width=120)
        if not run.is_sampled_only:
            yield f"{name} in an issue", issue_text(run, frame)
        yield f"{name} as HTML", as_html(frame)


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", SEEDS)
def test_names_of_every_source_are_inert_in_every_output(seed: str, tmp_path: Path) -> None:
    for number in range(3):
        random = Random(f"{seed} {number}")
        folder = tmp_path / f"{number} \x1b[31m\u202e[red]`|"
        folder.mkdir()
        _renamed(SEEDS[seed](folder), random)
        for where, text in _outputs(folder, random.sample([*VIEWS, "explore"], 4)):
            # A program that reads JSON is to get the name as it is.
            found = UNSEEN.search(text) or ("JSON" not in where and _FLOOD.search(text))
            assert not found, (where, text[max(found.start() - 60, 0) : found.end() + 30])
            if where.endswith("HTML"):
                assert "<script" not in text and "<img" not in text


TWINS = ["a\nb", "a\\x0ab", "a\\x5cx0ab", "\x1b[2J", "\\x1b[2J", "\u202ex", "\\u202ex", "'=1", "=1"]
"""Names that are the same once their characters are escaped carelessly."""
_TWICE = re.compile(r"\\x5c(?:x(?!0ab|5cx0ab|1b\[2J)|u(?!202ex)|U)")
"""An escape that was escaped: the name was cleaned twice, and is shown as another one."""


@pytest.mark.parametrize("format_name", [*FORMATS, "html", "issue"])
def test_a_character_and_a_text_that_looks_like_its_escape_are_told_apart(format_name: str) -> None:
    run = run_of([Row(i * 10, 5, operation=name, kernel=name) for i, name in enumerate(TWINS)])
    frame = query(run, View(run.name, order=("operation", "kernel")))
    texts = {
        clean(name): [line for line in _printed_in(format_name, run, name) if line]
        for name in TWINS
    }
    assert len(texts) == len({tuple(each) for each in texts.values()}) == len(TWINS)
    assert len(set(row_names(frame, UNICODE))) == len(TWINS)


def _printed_in(format_name: str, run: Run, name: str) -> str:
    """An output of the node with this name."""
    frame = query(run, View(run.name, (name,), order=("operation", "kernel")))
    if format_name == "html":
        return as_html(frame)
    return issue_text(run, frame) if format_name == "issue" else render_frame(frame, format_name)


def test_a_command_that_is_printed_opens_the_hostile_name(tmp_path: Path) -> None:
    for name in ["a\nb", "it's \x1b[2J \\x1b", "\u202e\u5b57", "\udcff"]:
        path = tmp_path / name
        line = show_command(str(path))
        assert not UNSEEN.search(line)
        words = subprocess.run(
            ["bash", "-c", line.replace("chopper show", "printf %s", 1)],
            capture_output=True,
            check=True,
        )
        assert words.stdout == os.fsencode(path)


def hostile_sample() -> Run:
    """A sample run with everything measured, whose operations and kernels have hostile names."""
    run = measured_run(gpus=2, iterations=2, layers=2)
    names = [name for name in HOSTILE + ACTING if name and "\\" not in name and len(name) < 99]

    def hostile(texts: Sequence[str]) -> tuple[str, ...]:
        return tuple((names[i] if i < len(names) else "") + text for i, text in enumerate(texts))

    table = run.table
    changed = replace(table, names=hostile(table.names), operations=hostile(table.operations))
    return replace(run, name="R \x1b[31m\u202e[red]`|", table=changed)


@pytest.mark.few(1)
@pytest.mark.parametrize("view", [*VIEWS, "explore"])
async def test_hostile_names_are_inert_on_every_screen_and_copied_so(
    view: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chopper_tui.actions.program.has_clipboard", lambda: True)
    run = hostile_sample()
    async with explorer((120, 40), run, parse_in(run, view)) as driven:
        copied: list[str] = []
        monkeypatch.setattr(driven.app, "copy_to_clipboard", copied.append)

        def inert(where: str, text: str) -> None:
            found = UNSEEN.search(text) or _FLOOD.search(text) or _TWICE.search(text)
            assert not found, (where, text[max(found.start() - 60, 0) : found.end() + 30])

        inert("start", driven.text())
        for key in ["j", "i", "f", "C", "o", "p", "m", "/", ":", "?", "=", "b", "y", "Y", "P"]:
            await driven.press(key)
            if key in "/f:":
                await driven.type("a")
            inert(key, driven.text())
            if key not in "jyY=b":
                await driven.press("escape")
        inert("picture", driven.app.export_screenshot())
        await driven.command("issue")
        inert("status", driven.text())
        for text in copied:
            inert("clipboard", text.replace("\t", " "))


def parse_in(run: Run, view: str) -> View:
    """A view of a run whose name an address may not spell."""
    return replace(parse(f"R?view={view}&cut=1" if view != "explore" else "R?cut=1"), run=run.name)
