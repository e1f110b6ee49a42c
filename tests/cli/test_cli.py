"""The command line as a user and a script meet it: output, exit codes, messages."""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from chopper_core.columns import METRICS, OTHER_COLUMNS
from chopper_core.ingest.cache import open_cached
from chopper_core.model.address import KEYS, parse
from chopper_core.render import FORMATS
from chopper_core.views import view_specs
from chopper_core.views.query import query
from chopper_tui.cli import main
from chopper_tui.commands import COMMANDS
from chopper_tui.commands.arguments import TABLE
from chopper_tui.export import write_snapshot
from tests.tui.terminal_harness import Terminal
from tests.wording import Wording

ROOT = Path(__file__).resolve().parents[2]
TRACE = {
    "schemaVersion": 1,
    "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},
    "traceEvents": [
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "pid": 1, "tid": 1,
         "ts": 0, "dur": 90, "args": {"External id": 1}},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 5, "dur": 20,
         "args": {"External id": 2, "Input Dims": [[4, 4], [4, 4]]}},
        {"ph": "X", "cat": "cuda_runtime", "name": "hipLaunchKernel", "pid": 1, "tid": 1,
         "ts": 10.5, "dur": 5, "args": {"External id": 2, "correlation": 7}},
        {"ph": "X", "cat": "kernel", "name": "Cijk_MT\u001b[31m16x16", "pid": 2, "tid": 0,
         "ts": 30.123, "dur": 10.002,
         "args": {"External id": 2, "device": 2, "stream": 0, "correlation": 7}},
        {"ph": "X", "cat": "kernel", "name": "lonely", "pid": 2, "tid": 0, "ts": 50, "dur": 1,
         "args": {"device": 2, "stream": 0, "correlation": 8}},
    ],
}  # fmt: skip


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(gzip.compress(json.dumps(TRACE).encode()))
    return path


def chopper(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "chopper_tui.cli", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("release", [1, 2])
def test_json_that_chopper_printed_is_refused_in_a_sentence(
    release: int, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], wording: Wording
) -> None:
    """Also next to a trace, where it is no part of the run."""
    printed = shown(capsys, "show", str(trace), "--format", "json")
    path = tmp_path / "frame.json"
    path.write_text(printed.replace("chopper.frame/2", f"chopper.frame/{release}"))
    assert main(["show", str(path)]) == 1
    wording(capsys.readouterr().err, str(path))
    beside = trace.parent / "frame.json"
    beside.write_text(path.read_text())
    assert len(json.loads(shown(capsys, "show", str(trace.parent), "--format", "json"))["rows"])


def test_show_json_is_exact(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(shown(capsys, "show", f"{trace}:gpu=0", "--format", "json"))
    assert document["total"]["elapsed_ns"] == 90_000
    assert document["total"]["compute_ns"] == 11_002
    assert document["total"]["idle_ns"] == 78_998
    assert document["total"]["kernels"] == 2


def test_show_takes_columns_a_limit_and_a_file(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.csv"
    address = f"{trace}?order=kernel"
    arguments = ["show", address, "--columns", "kernels,mean_ns", "--limit", "1", "-o", str(out)]
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert str(out) in captured.err
    lines = out.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "name,kernels,mean_ns,address,base"
    assert len(lines) == 2


def test_every_address_in_json_shows_its_row(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    addresses = [str(trace)]
    seen = 0
    while addresses:
        document = json.loads(shown(capsys, "show", addresses.pop(), "--format", "json"))
        for row in document["rows"]:
            if row["address"] != document["address"]:
                below = json.loads(shown(capsys, "show", row["address"], "--format", "json"))
                for name in ("elapsed_ns", "kernel_ns", "idle_ns", "kernels"):
                    assert below["total"][name] == row[name]
                addresses.append(row["address"])
                seen += 1
    assert seen == 10


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["show", "{trace}:gpu=7"], 3, "no gpu 7 here; available: 0"),
        (["show", "{trace}:gpu=0/iteration=99"], 3, "no iteration 99"),
        (["show", "{trace}:layer=1"], 2, "expected gpu, got 'layer'"),
        (["show", "{trace}?sort=speed"], 2, "unknown column 'speed'"),
        (["show", "{trace}", "--columns", "elapsed"], 2, "did you mean elapsed_ns"),
        (["show", "{trace}?filter=("], 2, "regular expression"),
        (["show", "missing/run"], 1, "missing/run does not exist"),
        (["info", "{folder}/empty"], 1, "empty"),
        (["show", "{folder}/text.json"], 1, "text.json"),
        (["show", "{folder}/nogpu.json"], 1, "no GPU activity"),
        (["show", "{trace}", "-o", "{folder}/no/such/file"], 1, "can't be written"),
        (
            ["show", "{trace}", "--clock", "amd=1s"],
            2,
            "'amd' matches no telemetry, trace or host",
        ),
        ([], 2, "no run given"),
        (["sohw", "{trace}"], 2, "did you mean `chopper show`?"),
    ],
)
def test_errors_are_a_sentence_and_a_code(
    trace: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    says: str,
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.json").write_text("this is no JSON")
    host_only = {"traceEvents": TRACE["traceEvents"][:2]}  # type: ignore[index]
    (tmp_path / "nogpu.json").write_text(json.dumps(host_only))
    given = [text.format(trace=trace, folder=tmp_path) for text in arguments]
    assert main(given) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("chopper: ")
    assert says in captured.err
    assert "Traceback" not in captured.err
    assert len(captured.err.splitlines()) == 1


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_every_command_has_help_for_each_of_its_options(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main([*command.split(), "--help"])
    assert left.value.code == 0
    told = capsys.readouterr().out
    lines = told.splitlines()
    assert max(map(len, lines)) <= 80
    for number, line in enumerate(lines):
        if line.startswith("  -"):
            below = lines[number + 1 : number + 2]
            assert "  " in line.strip() or (below and below[0].startswith(" " * 20)), line
    if command in ("", "show"):
        assert all(re.search(rf"\b{key}\b", told) for key in KEYS)
    else:
        assert command in told


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["show"], "chopper show: the following arguments are required: ADDRESS; "),
        (["show", "x", "--format", "xml"], "chopper show: --format: invalid choice: 'xml'"),
        (["--jobs", "0", "x"], "chopper: --jobs: '0' is not a positive number; `chopper --help` "),
    ],
)
def test_what_is_given_wrongly_is_told_in_a_sentence(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(says) and line.endswith("--help` lists its options")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        # Not taken for `--base-parallel`, as an abbreviation would be.
        (["RUN", "--base", "other"], "unknown option --base; in an address it is 'RUN?base=other'"),
        (["show", "RUN", "--view=kernels"], "in an address it is 'RUN?view=kernels'"),
        (["show", "RUN", "--colums", "x"], "unknown option --colums; did you mean --columns?"),
        (["show", "RUN", "--magic"], "chopper show: unknown option --magic; `chopper show --help`"),
        (["info", "RUN", "second"], "unexpected argument second"),
    ],
)
def test_an_unknown_option_names_the_one_that_is_meant(
    words: list[str], said: str, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(trace) if word == "RUN" else word for word in words])
    assert ended.value.code == 2 and said in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [["RUN?view=kernels&by=class"], ["RUN", "?view=kernels&by=class"],
     ["RUN", "--width", "90", "?view=kernels", "?by=class"], ["RUN?view=kernels", "?by=class"]],
)  # fmt: skip
@pytest.mark.parametrize("command", [[], ["show"]])
def test_an_address_may_be_two_words(
    words: list[str], command: list[str], trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not command and "--width" in words:
        words = [words[0], "--jobs", "1", *words[3:]]
    given = [word.replace("RUN", str(trace)) for word in words]
    assert main([*command, *given]) == 0
    shown = capsys.readouterr().out
    assert "kernels by class" in shown and "gemm" in shown


@pytest.mark.parametrize("shift", ["+1.5s", "=1s", "x=inf", "x=nan", "x=soon"])
def test_a_clock_shift_needs_a_name_and_a_time(
    trace: Path, capsys: pytest.CaptureFixture[str], shift: str, wording: Wording
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["info", str(trace), "--clock", shift])
    assert left.value.code == 2
    wording(capsys.readouterr().err, "SOURCE=+SECONDS")


@pytest.mark.parametrize(
    ("columns", "width"),
    [
        *(("90", 90), ("abc", 120), ("-5", 120), ("", 120), ("99999", 1000)),
        *(("9" * 5000, 1000), ("²", 120)),
    ],
)
def test_a_pipe_is_as_wide_as_columns_says_where_that_is_a_number(
    trace: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    columns: str,
    width: int,
) -> None:
    expected = shown(capsys, "show", str(trace), "--width", str(width))
    monkeypatch.setenv("COLUMNS", columns)
    assert shown(capsys, "show", str(trace)) == expected


def test_one_broken_rank_does_not_hide_the_others(
    trace: Path, capsys: pytest.CaptureFixture[str], wording: Wording
) -> None:
    broken = trace.parent / "rank1.json.gz"
    broken.write_bytes(trace.read_bytes()[:60])
    document = json.loads(shown(capsys, "info", str(trace.parent), "--format", "json"))
    assert [gpu["rank"] for gpu in document["gpus"]] == [0]
    assert [Path(item["path"]).name for item in document["failed"]] == ["rank1.json.gz"]
    wording.among(shown(capsys, "show", str(trace.parent)), "1 file")


def test_a_file_that_lost_data_says_so_on_every_view(
    trace: Path, capsys: pytest.CaptureFixture[str], wording: Wording
) -> None:
    text = json.dumps(TRACE)
    cut = trace.parent / "cut.json"
    cut.write_text(text[: text.rindex('"lonely"')])
    wording.among(shown(capsys, "show", str(cut)), "the file lost data")
    wording.among(shown(capsys, "info", str(cut)), "LOST", "cut.json")


def test_two_files_of_one_rank_are_two_runs(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rank has one trace of a run, in a directory and where both are named together."""
    twin = trace.parent / "again.json.gz"
    twin.write_bytes(trace.read_bytes())
    table = shown(capsys, "show", str(trace.parent))
    assert "2 runs: 2 ok" in table and "again" in table and "rank0" in table
    named = shown(capsys, "show", f"{trace},{twin}")
    assert "2 runs: 2 ok" in named and "again" in named and "rank0" in named


def test_info_says_what_was_found_and_what_not(
    trace: Path, capsys: pytest.CaptureFixture[str], wording: Wording
) -> None:
    text = shown(capsys, "info", str(trace))
    assert "rank from: distributedInfo" in text
    wording.among(text, "1 kernel", "launch record")
    assert "unlabelled" in text
    assert "no telemetry" in text
    document = json.loads(shown(capsys, "info", str(trace), "--format", "json"))
    assert document["schema"] == "chopper.info/1"
    assert document["gpus"][0]["kernels_without_launch"] == 1
    for level in ("iteration", "phase", "layer", "operation"):
        assert sum(document["coverage"][level]["rules"].values()) == pytest.approx(100)


@pytest.mark.sweep
def test_diff_is_the_view_that_sets_iteration_against_iteration(
    demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = (str(demo / f"rank{rank}.json.gz") for rank in (0, 5))
    text = shown(capsys, "diff", one, other)
    assert text == shown(capsys, "show", f"{other}?view=compare&base={one}")
    assert " vs " in text and "partner" in text


@pytest.mark.sweep
def test_info_says_once_what_is_true_of_all_ranks(
    demo_kept: Path, capsys: pytest.CaptureFixture[str], wording: Wording
) -> None:
    text = shown(capsys, "info", str(demo_kept))
    document = json.loads(shown(capsys, "info", str(demo_kept), "--format", "json"))
    lines = text.splitlines()
    assert len([line for line in lines if "distributedInfo" in line]) == 1
    for source in document["sources"]:
        (line,) = (line for line in lines if line.endswith(source["path"]))
        events, unused = (sum(source[key].values()) for key in ("events", "unused_events"))
        assert line.split()[0] == str(source["rank"])
        assert line.split()[2:4] == [str(events), str(events - unused)]
    flows = [source["unused_events"]["ac2g"] for source in document["sources"]]
    least, most = (f"{count} (rank {flows.index(count)})" for count in (min(flows), max(flows)))
    assert f"    {least} to {most} ac2g" in lines
    wording.among(lines, "no counters", "GPU 1-4, 6-7")


def test_info_lists_collectives_by_process_group(
    demo_kept: Path, capsys: pytest.CaptureFixture[str], wording: Wording
) -> None:
    document = json.loads(shown(capsys, "info", str(demo_kept), "--format", "json"))
    found = {(item["operation"], item["group"]): item for item in document["collectives"]}
    known = found["all_gather", "0 (default_pg) of 8"]
    frame = json.loads(
        shown(
            capsys,
            "show",
            f"{demo_kept}?order=operation&columns=collectives,bytes&cut=1&base=total",
            "--format",
            "json",
        )
    )
    (row,) = (row for row in frame["rows"] if row["name"] == "all_gather")
    assert (
        sum(item["count"] for key, item in found.items() if key[0] == "all_gather")
        == (row["collectives"])
    )
    assert known["bytes"] == row["bytes"]
    wording.among(
        shown(capsys, "info", str(demo_kept)), "1168 all_gather", "group 0 (default_pg) of 8"
    )


def test_metrics_lists_every_column(capsys: pytest.CaptureFixture[str]) -> None:
    """In a process of its own: nothing else has imported the columns of analyses and views."""
    document = json.loads(chopper("metrics", "--format", "json").stdout)
    view_specs()
    listed = [*document["metrics"], *document["columns_of_other_rows"]]
    assert all(entry["definition"] and entry["source"] for entry in listed)
    names = [entry["name"] for entry in listed]
    known = {**METRICS, **OTHER_COLUMNS}
    assert {*names} <= {*known} and len({*names}) == len(names)
    unlisted = {name for name, each in known.items() if not each.source.startswith("runs")}
    extra = sorted(unlisted - {*names})
    assert not extra, extra
    of_rows = {entry["name"]: entry["rows"] for entry in document["columns_of_other_rows"]}
    assert of_rows["held_bytes"] == "what holds memory" and of_rows["part_ns"] == "parts of a step"
    for format_name in ("text", "markdown"):
        text = shown(capsys, "metrics", "--format", format_name)
        assert all(name in text for name in names)


def test_show_with_the_chart_is_what_a_snapshot_holds(
    trace: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plain, charted = (
        shown(capsys, "show", f"{trace}:gpu=0", "--width", "0", *more)
        for more in ((), ("--chart",))
    )
    assert "time" in charted and "┤" in charted and "┤" not in plain
    # The table is the same; the command at the end brings all of it back.
    table = plain.splitlines()[1:-1]
    assert charted.splitlines()[-1 - len(table) : -1] == table
    *_, command = charted.splitlines()
    assert shown(capsys, *shlex.split(command)[1:], "--width", "0") == charted
    run = open_cached(str(trace))
    path, _ = write_snapshot(run, query(run, parse(f"{trace}:gpu=0")), f"text {tmp_path / 's.txt'}")
    assert path.read_text(encoding="utf-8") == charted


def test_keys_and_doctor_print(capsys: pytest.CaptureFixture[str]) -> None:
    assert ":snapshot" in shown(capsys, "keys")
    assert shown(capsys, "keys", "--format", "markdown").startswith("| keys")
    assert "textual" in shown(capsys, "doctor")


def test_without_a_run_those_opened_last_are_listed(
    trace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(trace.parent / "cache"))
    gone = trace.with_name("two words.json.gz")
    for path in (trace, gone):
        path.write_bytes(trace.read_bytes())
        shown(capsys, "show", str(path))
    assert shown(capsys) == f"chopper '{gone}'\nchopper {trace}\n"
    gone.unlink()
    assert shown(capsys) == f"chopper {trace}\n"


@pytest.mark.usefixtures("demo_kept")
def test_demo_without_a_terminal_prints_the_view(wording: Wording) -> None:
    done = chopper("demo")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    wording.among(done.stdout, "generated data")
    assert len([line for line in done.stdout.splitlines() if line[:1].isdigit()]) == 8
    assert "\x1b" not in done.stdout


def test_a_run_without_a_terminal_prints_what_show_prints(trace: Path) -> None:
    assert chopper(f"{trace}:gpu=0").stdout == chopper("show", f"{trace}:gpu=0").stdout


def test_names_cannot_steer_the_terminal(trace: Path) -> None:
    text = chopper("show", f"{trace}?order=kernel").stdout
    assert "\x1b" not in text
    assert "\\x1b[31m" in text


@pytest.mark.few(1)
@pytest.mark.parametrize("locale", ["C", "POSIX", "C.UTF-8", "en_US.ISO-8859-1"])
def test_every_locale_gets_a_table(trace: Path, locale: str) -> None:
    done = chopper("show", str(trace), LC_ALL=locale)
    assert done.returncode == 0, done.stderr
    assert "time" in done.stdout
    if locale in ("C", "POSIX"):
        assert done.stdout.isascii()


@pytest.mark.parametrize("view", ["", "?view=overview", "?view=kernels", "?view=timeline"])
def test_ascii_prints_ascii(trace: Path, view: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert not shown(capsys, "show", f"{trace}{view}").isascii()
    text = shown(capsys, "show", f"{trace}{view}", "--ascii")
    assert text.isascii() and "?" not in text.replace("?view=", "")


def test_a_closed_pipe_is_quiet() -> None:
    done = subprocess.run(
        f"{sys.executable} -m chopper_tui.cli metrics --format json | head -1",
        shell=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.stdout == "{\n"
    assert done.stderr == ""


@pytest.mark.parametrize(
    "module", ["chopper_core.ingest.open", "chopper_core.render", "chopper_tui.cli"]
)
def test_the_core_starts_without_what_it_does_not_need(module: str) -> None:
    script = (
        f"import sys, {module}; "
        "print([name for name in ('textual', 'pandas', 'plotext', 'rich', 'pyarrow') "
        "if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    assert done.stdout.strip() == "[]"


_READING = ("chopper_core.ingest.open", "chopper_core.align.rank", "chopper_core.sources.kineto")
_LATER = ("pandas", "dask", "plotext", "pyarrow", "numpy.ma")
_DRAWING = ("textual", "rich", "asyncio", "multiprocessing", "concurrent.futures")
_OPENED = (
    "markdown_it",
    "pygments",
    "tree_sitter",
    "textual.widgets._markdown",
    "importlib.metadata",
    "multiprocessing",
)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("opens", "without"),
    [
        (
            "from chopper_tui.cli import main; main(['show', sys.argv[1]])",
            _READING + _LATER + _DRAWING,
        ),
        (
            "from chopper_core.ingest.cache import open_cached; "
            "from chopper_core.model.view import View; "
            "from chopper_tui.app import ChopperApp; from chopper_tui.opening import Opening; "
            "opening = Opening(lambda progress: open_cached(sys.argv[1]), "
            "View(sys.argv[1], name='overview'), {}); "
            "opening.begin(); opening.result()",
            _READING + _LATER + _OPENED,
        ),
    ],
    ids=["show", "explorer"],
)
def test_a_store_opens_without_what_only_reading_or_drawing_needs(
    trace: Path, tmp_path: Path, opens: str, without: tuple[str, ...]
) -> None:
    store = tmp_path / "store"
    assert main(["ingest", str(trace), "-o", str(store)]) == 0
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {opens}; print(*sys.modules)", str(store)],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    imported = done.stdout.splitlines()[-1].split()
    assert "chopper_core.store.reader" in imported
    assert [name for name in without if name in imported] == []


def test_a_cached_run_opens_without_any_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = tmp_path / "run"
    run.mkdir()
    (run / "rank0.json").write_text(json.dumps(TRACE))
    assert main(["show", str(run)]) == 0
    script = "import sys; from chopper_tui.cli import main; main(sys.argv[1:]); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script, "show", str(run)],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    imported = done.stdout.splitlines()[-1].split()
    assert "chopper_core.store.reader" in imported
    assert not [name for name in imported if name.startswith("chopper_core.sources")]


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_help_needs_no_numpy(option: str) -> None:
    script = (
        "import sys; from chopper_tui.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print(*sys.modules)"
    )
    command = [sys.executable, "-c", script, option]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", check=True)
    imported = done.stdout.splitlines()[-1].split()
    assert "chopper_tui.cli" in imported and "numpy" not in imported


def test_formats_of_tables_are_those_that_render_has() -> None:
    assert f"--format {{{','.join(FORMATS)}}} |" in TABLE


def test_reading_a_run_with_all_that_lies_beside_it_needs_no_pandas(tmp_path: Path) -> None:
    """It takes 0.4 s and 45 MB to import, in every process, and pyarrow does it unasked."""
    run = tmp_path / "run"
    run.mkdir()
    for name in ("rank0.json.gz", "counters", "telemetry"):
        (run / name).symlink_to(ROOT / "demo_data" / "fsdp2" / name)
    script = (
        "import sys; from chopper_tui.cli import main; "
        "main(['ingest', *sys.argv[1:]]); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(run), "-o", str(tmp_path / "store"), "--jobs", "1"],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    imported = done.stdout.splitlines()[-1].split()
    assert "chopper_core.tables.csv_stream" in imported
    assert [name for name in imported if name in ("pandas", "textual", "rich")] == []


def test_a_table_of_runs_needs_no_pandas(trace: Path, tmp_path: Path) -> None:
    """It takes as long to import as all else until the first screen of thousands of runs."""
    for name in ("tp1", "tp2", "tp2_again"):
        (tmp_path / "set" / name).mkdir(parents=True)
        (tmp_path / "set" / name / trace.name).symlink_to(trace)
    script = (
        "import sys; from chopper_tui.cli import main; "
        "[main(['show', f'{sys.argv[1]}?view={view}']) for view in ('runs&by=tp&base=best', "
        "'sweep', 'pareto')]; print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "set")],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    assert done.stdout.count("tp2_again") > 1
    imported = done.stdout.splitlines()[-1].split()
    assert "chopper_core.extensions.runs.sweep" in imported and "pandas" not in imported


def test_reading_one_trace_needs_no_worker_and_no_masked_arrays(trace: Path) -> None:
    """They take a quarter of the start; `numpy.unique` imports the latter at its first call."""
    script = (
        "import sys; from chopper_core.ingest.open import open_run; "
        "open_run(sys.argv[1], jobs=1); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(trace)],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    imported = done.stdout.splitlines()[-1].split()
    assert "chopper_core.align.rank" in imported
    unneeded = ("multiprocessing", "concurrent.futures", "numpy.ma", "pyarrow", "ssl", "hashlib")
    assert [name for name in unneeded if name in imported] == []


@pytest.mark.sweep
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc")
def test_printing_a_view_starts_no_thread(trace: Path) -> None:
    script = (
        "import os, sys; from chopper_tui.cli import main; "
        "main(['show', sys.argv[1], '--no-cache', '--jobs', '1']); "
        "print(len(os.listdir('/proc/self/task')))"
    )
    environment = {key: value for key, value in os.environ.items() if "THREADS" not in key}
    done = subprocess.run(
        [sys.executable, "-c", script, str(trace)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "1"


def test_interrupting_exits_with_130(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("chopper_core.ingest.open.open_run", interrupted)
    assert main(["show", str(trace)]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_run_is_kept_shown_and_forgotten(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = shown(capsys, "show", str(trace))
    listed = shown(capsys, "cache")
    assert str(trace) in listed
    assert "at most 20 GB (CHOPPER_CACHE_GB)" in listed
    assert shown(capsys, "show", str(trace)) == first
    assert shown(capsys, "cache", "clear").startswith("removed 1 run, ")
    assert shown(capsys, "show", "--no-cache", str(trace)) == first
    assert str(trace) not in shown(capsys, "cache", "list")


def test_the_cache_says_why_small_runs_of_a_table_are_no_stores(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        shutil.copy(trace, tmp_path / "runs" / name / "rank0.json")
    shown(capsys, "runs", str(tmp_path / "runs"))
    listed = shown(capsys, "cache")
    assert (
        "2 rows of tables of runs (runs of up to 131 kB have no store: they are quick to read)"
        in listed
    )
    assert str(tmp_path / "runs" / "one") not in listed


def test_a_question_leaves_the_run_as_measured(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], wording: Wording
) -> None:
    """Neither its cached run nor the rows of a set are predicted ones afterwards."""
    asked, mark = f"{trace}?predicted=host%20x0", "predicted times"
    out = str(tmp_path / "perfetto.json")
    shown(capsys, "export", asked, "--to", "perfetto", "-o", out)
    assert mark not in shown(capsys, "show", str(trace)) + shown(capsys, "info", str(trace))
    for options in ((), ("--no-cache",)):
        shown(capsys, "cache", "clear")
        assert "in measured" in shown(
            capsys, "show", f"{asked}&view=compare&base=measured", *options
        )
    assert main(["show", f"{trace},{tmp_path}?view=runs&predicted=host%20x0"]) == 2
    wording(capsys.readouterr().err, "predicted=host x0", " one")


def test_a_store_is_a_run(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], wording: Wording
) -> None:
    store = tmp_path / "kept.chopper"
    assert shown(capsys, "ingest", str(trace), "-o", str(store)) == ""
    ours = json.loads(shown(capsys, "show", f"{store}:gpu=0", "--format", "json"))
    theirs = json.loads(shown(capsys, "show", f"{trace}:gpu=0", "--format", "json"))
    assert ours["total"] == theirs["total"]
    assert ours["address"] == f"{store}:gpu=0"
    assert main(["ingest", str(trace), "-o", str(tmp_path)]) == 2
    wording(capsys.readouterr().err, "store")
    (store / "kernels.arrow").write_bytes(b"short")
    assert main(["show", str(store)]) == 1
    assert "corrupt" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["show RUN", "info RUN", "doctor", "show RUN --hardware ~x"])
def test_a_user_without_a_home(
    command: str, trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in containers whose user has no entry: `~` stands for nothing."""
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    code = main([str(trace) if word == "RUN" else word for word in command.split()])
    said = capsys.readouterr()
    assert (code == 0) == ("~x" not in command) and "Traceback" not in said.err
    assert said.err.count(". ") <= 1
    assert not Path("~").exists()


def test_no_cache_writes_nothing_to_the_cache(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, cached = tmp_path / "store", tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cached))
    assert main(["ingest", str(trace), "-o", str(store), "--no-cache"]) == 0
    # As of a large store, whose files are verified once for each state.
    monkeypatch.setattr("chopper_core.store.reader._LARGE_BYTES", 1)
    runs = str(tmp_path)
    for arguments in (
        *(["show", str(trace)], ["show", str(store)], ["info", str(store), "--verify"], [runs]),
        *(["runs", runs], ["diff", str(trace), str(store)], ["show", f"{runs}?view=runs"]),
    ):
        main([*arguments, "--no-cache"])
        assert not cached.exists(), arguments
    with Terminal(
        command=[sys.executable, "-m", "chopper_tui", str(store), "--no-cache"],
        XDG_CACHE_HOME=str(cached),
    ) as terminal:
        terminal.until_text("step 90")
        terminal.quiet(0.5)
        terminal.send("q")
        assert terminal.wait() == 0
    assert not cached.exists()
