"""The person's own settings and the columns that are remembered between sessions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from chopper_core.model.view import View
from chopper_core.util.errors import UsageError
from chopper_core.views.query import query
from chopper_tui.actions import ACTIONS
from chopper_tui.actions.shape import shown_columns
from chopper_tui.app import ChopperApp
from chopper_tui.cli import main
from chopper_tui.config import (
    DEFAULTS,
    Config,
    config_path,
    read_config,
    save_columns,
    saved_columns,
    state_path,
)
from chopper_tui.keymap import FIXED_KEYS
from chopper_tui.widgets.dialogs import ColumnChooser
from tests.tui.explorer import explorer, measured_run, sample_run
from tests.wording import Wording

LAYER = ("3", "11", "backward", "2")


def written(text: str) -> Config:
    path = config_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return read_config(lambda: ACTIONS)


def keys(config: Config, verb: str) -> tuple[str, ...]:
    return next(action.keys for action in config.actions or ACTIONS if action.verb == verb)


def test_without_a_file_it_is_as_it_comes() -> None:
    assert read_config(lambda: ACTIONS) == DEFAULTS and not DEFAULTS.actions


def test_what_a_file_may_say() -> None:
    config = written(
        '[explorer]\ntheme = "light"\nglyphs = "ascii"\nchart = "off"\nmouse = false\n'
        'full_names = true\n[columns]\noperation = ["elapsed_ns", "SQ_WAVES"]\n'
        '[keys]\nfilter = ["F", "ctrl+o"]\nsnapshot = []\nmark = "f5"\n'
    )
    assert (config.theme, config.glyphs, config.chart) == ("light", "ascii", "off")
    assert (config.mouse, config.full_names, config.warnings) == (False, True, ())
    assert config.columns == {"operation": ("elapsed_ns", "SQ_WAVES")}
    assert keys(config, "filter") == ("F", "ctrl+o")
    assert keys(config, "snapshot") == () and keys(config, "mark") == ("f5",)
    assert keys(config, "in") == keys(DEFAULTS, "in")


def test_a_key_is_taken_from_what_had_it() -> None:
    config = written('[keys]\nfilter = "f"\nquit = "Q"\n')
    assert keys(config, "filter") == ("f",) and keys(config, "find") == ()
    assert keys(config, "quit") == ("Q", "ctrl+c")
    bound = [key for action in config.actions or ACTIONS if not action.view for key in action.keys]
    assert len(set(bound)) == len(bound) and set(FIXED_KEYS) - {"ctrl+p"} <= set(bound)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("theme = \n", r"is invalid TOML: .*line 1"),
        (
            '[explorer]\ntheme = "pink"',
            r"explorer.theme: invalid enum value 'pink'; choose",
        ),
        ("[explorer]\nmouse = 1", r"explorer.mouse: expected `bool`, got `int`"),
        ("explorer = 3", r"explorer: expected a section"),
        ("[columns]\ngpu = 3", r"columns.*: expected `str \| array`, got `int`"),
        ('[columns]\ngpu = ["tiem"]', r"columns.gpu has the unknown column 'tiem'"),
        ('[keys]\nfilter = "hyper+x"', r"keys.filter has the invalid key 'hyper\+x'"),
        ('[keys]\nfilter = "ctrl+c"', r"keys.filter has ctrl\+c, which can't be reassigned"),
        ('[keys]\nfilter = "F"\nfind = "F"', r"keys.find has 'F', which keys.filter has too"),
        ("[keys]\nfilter = [1]", r"keys.*: expected `str`, got `int`"),
    ],
)
def test_what_is_wrong_is_a_sentence(
    text: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match=rf"config\.toml.*{says}"):
        written(text)
    assert main(["keys"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("chopper: ") and "config.toml" in error and "Traceback" not in error


def test_what_is_not_known_is_said_and_left(capsys: pytest.CaptureFixture[str]) -> None:
    config = written('[explorer]\nthem = "x"\n[kyes]\n[columns]\nrow = "x"\n[keys]\nflter = "F"\n')
    said = " ".join(config.warnings)
    assert len(config.warnings) == 4
    for name in ("'explorer.them'", "'kyes'", "'columns.row'", "'keys.flter'"):
        assert name in said
    assert replace(config, warnings=()) == DEFAULTS
    assert main(["keys"]) == 0
    assert capsys.readouterr().err.count("config.toml") == 4


def test_the_keys_and_the_doctor_tell(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor"])
    assert f"none; {config_path()} would be used" in capsys.readouterr().out
    written('[keys]\nfilter = "F"\n')
    main(["keys"])
    line = next(line for line in capsys.readouterr().out.splitlines() if ":filter" in line)
    assert line.split()[0] == "F"
    main(["doctor"])
    assert f"{config_path()} is used" in capsys.readouterr().out
    config_path().write_text("x = ", encoding="utf-8")
    save_columns("gpu", ("elapsed_ns",))
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "not used: " in out and f"of gpu, in {state_path('columns')}" in out


def test_the_doctor_tells_what_a_bug_report_needs(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    wording: Wording,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("LC_ALL", "xx_YY.UTF-8")
    log = tmp_path / "state" / "chopper" / "crash-1-2.log"
    log.parent.mkdir(parents=True)
    log.write_text("Traceback", encoding="utf-8")
    assert main(["doctor"]) == 0
    facts = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    wording(facts["colours"], "none", "NO_COLOR")
    assert facts["cache"] == f"0 runs, 0.0 MB in {tmp_path / 'chopper' / 'runs'}"
    wording(facts["crashes"], "1, ", str(log))
    wording(facts["encoding"], "LC_ALL=xx_YY.UTF-8")
    assert {"chopper", "python", "system", "terminal", "textual", "characters"} <= set(facts)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    main(["doctor"])
    assert "cache" in capsys.readouterr().out


@pytest.mark.sweep
async def test_the_persons_keys_are_those_of_the_screen() -> None:
    config = written('[keys]\nin = "w"\nfilter = "!"\n[explorer]\ntheme = "light"\nchart = "off"\n')
    app = ChopperApp(lambda progress: sample_run(), View("sample.json"), config=config)
    async with explorer(app=app) as at:
        assert at.app.theme == "light" and at.explore.chart == "off"
        assert "w in" in at.text() and "! filter" in at.text()
        await at.press("enter")
        assert at.path == ()
        await at.press("w")
        assert at.path == ("0",)
        await at.press("!")
        await at.type("11")
        await at.press("enter")
        assert list(at.frame.labels) == ["11"]
        await at.press("?")
        assert " w " in at.text() or "w  " in at.text()


async def test_what_is_said_in_vain_is_shown() -> None:
    config = written('[explorer]\nthem = "x"\n')
    app = ChopperApp(lambda progress: sample_run(), View("sample.json"), config=config)
    async with explorer(app=app) as at:
        assert "'explorer.them'" in at.status


async def test_columns_are_chosen_for_a_level_and_kept() -> None:
    config = Config(remember=True)
    run = sample_run()
    app = ChopperApp(lambda progress: run, View("sample.json"), config=config)
    async with explorer(app=app) as at:
        await at.command("columns idle,time")
        assert [column.name for column in at.frame.columns] == ["idle_ns", "elapsed_ns"]
        assert at.frame.address == "sample.json?columns=idle_ns,elapsed_ns"
        await at.press("enter")
        assert at.frame.view.columns == ()
        await at.command("columns +kerneltime")
        await at.command("columns -%")
        names = [column.name for column in at.frame.columns]
        assert names[-1] == "kernel_ns" and "share_pct" not in names and "elapsed_ns" in names
        await at.press("escape", "G", "enter")
        assert [column.name for column in at.frame.columns] == names
        await at.command("columns nonsense")
        assert "unknown column" in at.status
        await at.command("columns default")
        assert at.frame.view.columns == ()
        await at.command("columns busy_pct")
    assert saved_columns() == {"gpu": ("idle_ns", "elapsed_ns"), "iteration": ("busy_pct",)}


@pytest.mark.sweep
async def test_saved_columns_are_those_of_the_next_session() -> None:
    columns = {"gpu": ("idle_ns",), "layer": ("SQ_NOT_THERE",), "phase": ("kernels", "gone")}
    app = ChopperApp(
        lambda progress: sample_run(), View("sample.json", ("1",)), config=Config(columns=columns)
    )
    async with explorer(app=app) as at:
        assert at.frame.view.columns == ()
        await at.press("enter")
        assert at.frame.view.columns == ("kernels",)
        await at.press("enter")
        assert at.frame.view.columns == () and len(at.frame.columns) > 5
        await at.press("escape", "escape", "escape")
        assert at.frame.view.columns == ("idle_ns",)
        await at.press("b")
        assert [c.name for c in at.frame.columns] == ["idle_ns", "idle_ns_delta"]
        await at.press("b", "p", "down", "down", "enter")
        assert at.frame.level == "phase" and at.frame.view.columns == ("kernels",)


async def test_columns_of_an_address_go_along() -> None:
    view = View("sample.json", ("1", "11"), columns=("kernels", "idle_ns"))
    config = Config(columns={"layer": ("busy_pct",)})
    app = ChopperApp(lambda progress: sample_run(), view, config=config)
    async with explorer(app=app) as at:
        assert at.frame.view.columns == ("kernels", "idle_ns")
        await at.press("enter")
        assert at.frame.level == "layer" and at.frame.view.columns == ("busy_pct",)
        await at.press("escape", "escape")
        assert at.frame.view.columns == ("kernels", "idle_ns")


@pytest.mark.sweep
async def test_every_column_to_choose_takes_one_line() -> None:
    for width in (60, 80, 120):
        async with explorer((width, 40), measured_run(), View("sample.json", LAYER)) as at:
            await at.press("C")
            inner = [line.partition("│")[2].partition("│")[0].strip() for line in at.lines()]
            assert sum(line.endswith("…") for line in inner) > 2
            assert "…" not in inner


@pytest.mark.sweep
async def test_columns_are_chosen_from_a_list() -> None:
    async with explorer(run=measured_run(), view=View("sample.json", LAYER)) as at:
        await at.press("C")
        assert isinstance(at.app.screen, ColumnChooser) and "● time" in at.text()
        await at.press("down", "space")
        assert "● %" not in at.text()
        shown = shown_columns(at.explore)
        await at.press(*["down"] * len(shown))
        await at.press("space", "enter")
        names = [column.name for column in at.frame.columns]
        assert "share_pct" not in names and len(names) == len(shown) and names[0] == "elapsed_ns"
        frame = query(measured_run(), at.frame.view)
        assert [column.name for column in frame.columns] == names
        await at.press("C", "escape")
        assert [column.name for column in at.frame.columns] == names
    assert saved_columns() == {}


@pytest.mark.sweep
async def test_columns_are_sought_by_typing() -> None:
    async with explorer(run=measured_run(), view=View("sample.json", LAYER)) as at:
        before = len(at.frame.columns)
        await at.press("C")
        await at.type("overlap")
        assert "/overlap" in at.text() and "Number of kernels" not in at.text()
        await at.press("space")
        assert "● overlap" in at.text()
        await at.press("escape")
        assert isinstance(at.app.screen, ColumnChooser) and "Number of kernels" in at.text()
        await at.press("enter")
        assert at.frame.columns[-1].name == "overlap_ns" and len(at.frame.columns) != before


@pytest.mark.parametrize("text", ["", "[]", "{", '{"schema": "chopper.columns/1"}', '{"a": 1}'])
def test_a_damaged_memory_is_none(text: str) -> None:
    path = state_path("columns")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    assert saved_columns() == {}
    save_columns("gpu", ("kernels",))
    assert saved_columns() == {"gpu": ("kernels",)}
    save_columns("gpu", ())
    assert json.loads(path.read_text())["columns"] == {}


def test_a_memory_that_cant_be_written_is_a_sentence(tmp_path: Path) -> None:
    state_path("columns").parent.parent.mkdir(parents=True, exist_ok=True)
    state_path("columns").parent.write_text("in the way", encoding="utf-8")
    from chopper_core.util.errors import DataError

    with pytest.raises(DataError, match=r"can't be saved in .*columns\.json"):
        save_columns("gpu", ("kernels",))
