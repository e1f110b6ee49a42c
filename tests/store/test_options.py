"""Whatever is asked, the answer of a kept run is that of `--no-cache`.

The keys of addresses and the options of commands are those of their parsers: a new one needs a
value here.
"""

from __future__ import annotations

import os
import shutil
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from chopper_core.answers.opening import ReadOptions, asked_view, open_view
from chopper_core.ingest import cache
from chopper_core.ingest import open as open_module
from chopper_core.model import run as run_module
from chopper_core.model.address import KEYS
from chopper_core.model.overrides import NO_OVERRIDES, Overrides
from chopper_core.model.run import Run
from chopper_core.render import render_frame
from chopper_core.store.kept import Derived
from chopper_core.util.errors import ChopperError
from chopper_core.views import VIEWS
from chopper_core.views.query import frame_of
from chopper_tui.cli import main
from chopper_tui.commands import COMMANDS, command_module
from chopper_tui.commands.arguments import add_options
from tests.demo import small_files

OF_KEYS = {
    "view": [*VIEWS],
    "by": ["operation", "gpu"],
    "of": ["clock=2000", "gpu:1 as peers"],
    "order": ["operation,gpu", "kernel"],
    "columns": ["+idle_ns", "busy_pct,gfx_mhz"],
    "sort": ["-idle_ns", "elapsed_ns"],
    "filter": ["gemm", "idle_ns>1"],
    "metric": ["power_w"],
    "base": ["gpu=1", "total", "{other}"],
    "stat": ["median", "p95"],
    "over": ["gpu", "gpu,iteration"],
    "cut": ["1", "0"],
    "clock": ["amd=+1.25s", "rank1=+0.001s"],
    "gpu": ["amd:0=1"],
    "hardware": ["MI250X", "{hardware}"],
    "parallel": ["tp=2"],
    "base_parallel": ["tp=2"],
    "set": ["gbs=128,seq=4096"],
    "name": ["{{model}}_{{tp}}"],
    "predicted": ["gpu:1 as peers", "clock=2000"],
    "from": ["0.1ms"],
    "to": ["1ms"],
    "at": ["0.5ms"],
    "mark": ["0.2ms"],
}
NEEDED = {
    "over": "stat=median",
    "of": "view=whatif",
    "base_parallel": "base={other}",
    **dict.fromkeys(("from", "to", "at", "mark"), "view=timeline"),
}
FEW_VIEWS = ("", "view=findings")
CHANGING = "of", "filter", "hardware", "base", "predicted"
"""Keys that change an answer in ways of their own, of which the others are like one; the sweep
tries all."""
OF_OPTIONS = {
    "--clock": "amd=+1.25s",
    "--gpu": "amd:0=1",
    "--hardware": "{hardware}",
    "--parallel": "tp=2",
    "--base-parallel": "tp=2",
    "--set": "gbs=128,seq=4096",
    "--name": "{{model}}_{{tp}}",
    "--columns": "+idle_ns",
    "--format": "json",
    "--limit": "2",
    "--brief": None,
    "--width": "70",
    "--pictures": None,
    "--sort": "-step_time_ns",
    "--filter": "a",
    "--of": "run_tokens_per_s",
    "--pareto": "run_tokens_per_s,j_per_token",
    "--sweep": "tp",
    "--ascii": None,
    "--jobs": "2",
    "--max-memory": "8G",
    "--verify": None,
    "--by": "gpu",
    "--fail-if": "step_time>+2%",
    "--base": "{other}",
    "--anyway": None,
    "--strict": None,
    "--allow-unchecked": None,
    "--iteration": "11",
    "--gaps": None,
    "--host": None,
    "--nodes": "5",
    "--force": None,
}
NO_ANSWER = {
    **dict.fromkeys(("--help", "--no-cache", "--output"), "is part of every call or of none"),
    **dict.fromkeys(("--into", "--finish", "--engine", "--scheduler"), "writes a store"),
    "--to": "is given",
    **dict.fromkeys(("--memory", "--write"), "names another run"),
    "--junit": "writes the results once more",
    **dict.fromkeys(("--play", "--size", "--no-mouse", "--speed"), "draws answers"),
    **dict.fromkeys(
        (
            "--watch",
            "--live",
            "--once",
            "--interval",
            "--scrape",
            "--alarm",
            "--export-metrics",
            "--exit-on-alarm",
        ),
        "is of a run that changes",
    ),
}
"""Options that change no answer of a run that is read, with the reason."""
CALLS = {
    "show": ["{run}"],
    "info": ["{run}"],
    "diff": ["{other}", "{run}"],
    "what-if": ["{run}", "clock=2000"],
    "report": ["{run}", "-o", "{out}/report.html"],
    "sql": ["{run}", "select gpu, count(*) from activities group by gpu order by gpu"],
    "export": ["{run}", "--to", "perfetto", "-o", "{out}/trace.json"],
    "runs": ["{several}"],
}
NO_CALL = {
    "": "the explorer, which prints what `show` does without a terminal",
    "demo": "the explorer of a run that is made",
    "live": "the GPUs of this node as they are now",
    "ingest": "writes a store, whose content tests/store/test_store.py compares",
    "mcp": "asks `open_view`, as each key here",
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("asked")
    several = folder / "several"
    for name in ("a", "b"):
        shutil.copytree(small_files(), several / name)
    hardware = folder / "peaks.toml"
    hardware.write_text("[MI300X]\nclock_mhz = 1000\n")
    paths = {
        "run": several / "a", "other": several / "b", "several": several, "hardware": hardware,
        "out": folder / "out",
    }  # fmt: skip
    return {name: str(path) for name, path in paths.items()}


@pytest.fixture(scope="module")
def readings() -> dict[str, Run]:
    return {}


@pytest.fixture
def read_once(readings: dict[str, Run], monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are read once with the same options, and all else is worked out anew each time."""
    read = open_module.open_run

    def opened(name: str, *rest: Any, overrides: Overrides = NO_OVERRIDES, **how: Any) -> Run:
        key = repr((name, overrides, *cache._specifications(overrides)))
        if key not in readings:
            readings[key] = read(name, *rest, overrides=overrides, **how)
        return replace(readings[key])  # It remembers nothing.

    monkeypatch.setattr(open_module, "open_run", opened)


@pytest.fixture(autouse=True)
def all_is_kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(run_module, "WORTH_KEEPING_S", 0.0)
    yield


def _answer(address: str, *, use_cache: bool) -> str:
    view = asked_view(address)
    try:
        run = open_view(view, ReadOptions(1, use_cache))
        frame = frame_of(run, view)
        opens = [frame.addresses(row) for row in range(len(frame))]
        text = render_frame(frame, "json", limit=10**9, has_pictures=True)
    except ChopperError as error:
        return f"{type(error).__name__}: {error}"
    if isinstance(run.derived, Derived):
        run.derived.wait()
    return "\n".join([text, *opens])


def _is_same(addresses: list[str]) -> None:
    """Each is asked in turn of a run in which the others are kept already."""
    expected = {each: _answer(each, use_cache=False) for each in addresses}
    assert any('"schema"' in each for each in expected.values()), expected
    for _ in range(2):
        for each in addresses:
            assert _answer(each, use_cache=True) == expected[each], each


def test_every_key_of_an_address_is_tried() -> None:
    assert {*OF_KEYS} == {*KEYS}


@pytest.mark.parametrize(
    "key",
    [
        each if each in CHANGING else pytest.param(each, marks=pytest.mark.sweep)
        for each in KEYS
        if each != "view"
    ],
)
def test_an_address_is_answered_as_without_a_cache(
    key: str, places: dict[str, str], read_once: None
) -> None:
    values = [each.format(**places) for each in OF_KEYS[key]]
    needed = NEEDED.get(key, "").format(**places)
    views = FEW_VIEWS if not needed.startswith("view") else ("",)
    addresses = []
    for view in views:
        for asked in ("", *(f"{key}={value}" for value in values)):
            options = "&".join(filter(None, (view, needed, asked)))
            addresses.append(f"{places['run']}?{options}")
    _is_same(addresses)


@pytest.mark.sweep
@pytest.mark.parametrize("view", VIEWS)
def test_every_view_with_every_key(view: str, places: dict[str, str], read_once: None) -> None:
    asked = [f"{key}={values[0]}" for key, values in OF_KEYS.items() if key not in ("view", "over")]
    _is_same([f"{places['run']}?view={view}&{each}".format(**places) for each in ("cut=0", *asked)])


def _options_of(command: str) -> list[str]:
    parser = ArgumentParser(add_help=False)
    add_options(parser, vars(command_module(command))["OPTIONS"])
    return [each.option_strings[-1] for each in parser._actions if each.option_strings]


def test_every_command_that_reads_runs_is_tried_with_every_option() -> None:
    reading = {each for each in COMMANDS if "--no-cache" in _options_of(each)}
    assert reading == {*CALLS} | {*NO_CALL} - {""}
    known = {option for command in reading for option in _options_of(command)}
    assert known - {*OF_OPTIONS} - {*NO_ANSWER} == set()


def _printed(call: list[str], out: Path, capsys: pytest.CaptureFixture[str]) -> str:
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    status, said = main(call), capsys.readouterr()
    written = [path.read_text("utf-8") for path in sorted(out.iterdir())]
    return "\n".join([str(status), said.out, said.err, *written])


@pytest.mark.sweep
@pytest.mark.parametrize("command", CALLS)
def test_options_of_commands_change_answers_as_without_a_cache(
    command: str, places: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    options = [each for each in _options_of(command) if each in OF_OPTIONS]
    asked = [[]]
    for option in options:
        value = OF_OPTIONS[option]
        asked.append([option if value is None else f"{option}={value.format(**places)}"])
    calls = [
        [command, *(part.format(**places) for part in CALLS[command]), *each] for each in asked
    ]
    out = Path(places["out"])
    expected = [_printed([*call, "--no-cache"], out, capsys) for call in calls]
    assert expected[0].startswith("0")
    for _ in range(2):
        for call, answer in zip(calls, expected, strict=True):
            assert _printed(call, out, capsys) == answer, call


def test_an_edited_specification_changes_the_answer(
    places: dict[str, str], read_once: None
) -> None:
    """That of `--hardware FILE` and the user's own."""
    own = Path(os.environ["XDG_CONFIG_HOME"]) / "chopper" / "hardware.toml"
    given = Path(places["hardware"])
    answers = set()
    for path, option in ((given, f"&hardware={given}"), (own, "")):
        for clock in (1000, 1001, 1000):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"[MI300X]\nclock_mhz = {clock}\n")
            address = f"{places['run']}?view=findings{option}"
            _is_same([address])
            answers.add(_answer(address, use_cache=True))
    own.unlink()
    assert len(answers) > 1


@pytest.mark.parametrize(
    "variable",
    [
        "LC_ALL=C",
        "NO_COLOR=1",
        "TZ=Asia/Kolkata",
        "COLUMNS=60",
        "TERM=dumb",
        "CHOPPER_GLYPHS=ascii",
    ],
)
def test_what_is_kept_is_drawn_for_the_terminal_of_who_asks(
    variable: str,
    places: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    read_once: None,
) -> None:
    name, _, value = variable.partition("=")
    views = "overview", "timeline"
    calls = [["show", f"{places['run']}?view={view}", "--chart"] for view in views]
    out = Path(places["out"])
    for call in calls:
        _printed(call, out, capsys)
    monkeypatch.setenv(name, value)
    for call in calls:
        assert _printed(call, out, capsys) == _printed([*call, "--no-cache"], out, capsys)
