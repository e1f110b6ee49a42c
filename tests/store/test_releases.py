"""Stores, cached runs and tables of earlier releases, and of a later one: refused in one sentence.

`releases` holds what Chopper of those days wrote of `SEEDS["trace"]`: `chopper ingest` and
`chopper show --format json`.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import pytest

import chopper_core
from chopper_core.ingest import cache
from chopper_core.util import atomic
from chopper_core.util.errors import DataError
from chopper_tui.cli import main
from tests.programs.fuzz.seeds import SEEDS
from tests.wording import Wording

PLACE = Path(__file__).parent / "releases"
EARLIER = sorted(path.name.removesuffix(".tar.gz") for path in PLACE.glob("*.tar.gz"))
LATER = ("another schema", "other fields")
DOORS = (
    ("{store}",),
    ("show", "{store}"),
    ("show", "{store}?view=findings", "--no-cache"),
    ("show", "{run}?base={store}"),
    ("info", "{store}"),
    ("info", "{store}", "--verify"),
    ("diff", "{store}", "{run}"),
    ("diff", "{run}", "{store}"),
    ("what-if", "{store}"),
    ("report", "{store}", "-o", "{out}"),
    ("ingest", "{store}", "-o", "{out}"),
    ("check", "{store}"),
    ("sql", "{store}", "select 1"),
    ("export", "{store}", "--to", "perfetto", "-o", "{out}"),
)


def _unpacked(release: str, folder: Path) -> Path:
    """A store of a release, with the table that it printed next to it."""
    name = EARLIER[-1] if release in LATER else release
    with tarfile.open(PLACE / f"{name}.tar.gz") as packed:
        packed.extractall(folder, filter="data")
    store = folder / "run.chopper"
    index = json.loads((store / "store.json").read_text())
    if release in LATER:
        is_other = release == LATER[0]
        schema = "chopper.store/4" if is_other else index["schema"]
        index = {**index, "schema": schema, "fingerprint": "00", "parts": [["a", 4]]}
        del index["files" if is_other else "of"]
        (store / "store.json").write_text(json.dumps(index))
    return store


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return _unpacked(request.param, tmp_path)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return SEEDS["trace"](tmp_path / "run")


def _sentence(store: Path) -> str:
    again = f"re-create it with: chopper ingest RUN -o {store}"
    return f"{store} was written by another version of Chopper; {again}"


def test_three_releases_are_kept() -> None:
    schemas = set()
    for release in EARLIER:
        with tarfile.open(PLACE / f"{release}.tar.gz") as packed:
            files = (packed.extractfile(name) for name in ("run.chopper/store.json", "frame.json"))
            schemas |= {json.load(file)["schema"] for file in files if file is not None}
    assert len(EARLIER) >= 3
    assert schemas >= {"chopper.store/1", "chopper.store/3", "chopper.frame/1", "chopper.frame/2"}


@pytest.mark.parametrize("store", (*EARLIER, *LATER), indirect=True)
def test_each_door_refuses_a_store_of_another_release_in_one_sentence(
    store: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"store": str(store), "run": str(run), "out": str(tmp_path / "out")}
    before = {path: path.read_bytes() for path in store.iterdir() if path.is_file()}
    for door in DOORS:
        asked = [each.format(**places) for each in door]
        assert main(asked) == 1, asked
        said = capsys.readouterr()
        assert (said.out, said.err) == ("", f"chopper: {_sentence(store)}\n"), asked
    for use_cache in (True, False):
        with pytest.raises(DataError) as refused:
            chopper_core.open(str(store), cache=use_cache)
        assert str(refused.value) == _sentence(store)
    assert {path: path.read_bytes() for path in store.iterdir() if path.is_file()} == before
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("store", EARLIER, indirect=True)
def test_next_to_other_runs_it_fails_alone_and_says_why(
    store: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    several = tmp_path / "several"
    several.mkdir()
    for name in ("a", "b"):
        shutil.copytree(run.parent, several / name)
    shutil.copytree(store, several / "old.chopper")
    assert main(["runs", str(several)]) == 0
    shown = capsys.readouterr().out
    assert "2 ok, 1 failed" in shown
    assert f"note: old.chopper is failed: {_sentence(several / 'old.chopper')}" in shown


@pytest.mark.parametrize("store", EARLIER[-1:], indirect=True)
@pytest.mark.parametrize("command", ["open {store}", "open {run}?base={store}"])
def test_the_explorer_stays_with_its_run(
    command: str,
    store: Path,
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # Each letter that is typed is drawn.
    keys = tmp_path / "keys"
    keys.write_text(f":{command.format(store=store.name, run=run.relative_to(tmp_path))}\n")
    assert main([str(run), "--play", str(keys), "--size", "200x50"]) == 0
    shown = capsys.readouterr().out
    assert "was written by another version of Chopper" in shown and "operations" in shown


@pytest.mark.parametrize("store", EARLIER, indirect=True)
def test_a_cached_run_of_another_release_is_read_again(
    store: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It had another name in the cache, or has today's."""
    atomic.make_private(cache.directory())
    for name in ("72fdcbc01458406d7521d808", cache.key_of(str(run))):
        shutil.copytree(store, cache.directory() / name)
    assert main(["cache"]) == 0
    assert capsys.readouterr().out.count("(of another version of Chopper)") == 2
    shown = []
    for option in ((), (), ("--no-cache",)):
        assert main(["show", str(run), "--format", "json", *option]) == 0
        shown.append(capsys.readouterr().out)
    assert len({*shown}) == 1 and "chopper.frame/2" in shown[0]
    assert [entry.is_old for entry in cache.entries()] == [False, True]
    assert cache.clear(old_only=True)[0] == 1
    (entry,) = cache.entries()
    assert entry.name == str(run) and not entry.is_old


def test_a_run_that_is_cached_twice_is_listed_with_what_it_was_read_with(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for options in ((), ("--hardware", "MI250X"), ("--clock", "rank0=+1s")):
        assert main(["show", str(run), *options]) == 0
    capsys.readouterr()
    assert main(["cache"]) == 0
    listed = [line.partition(str(run))[2] for line in capsys.readouterr().out.splitlines()]
    read = [about.partition(" (with")[0] for about in listed[:3]]
    assert sorted(read) == ["", " read with hardware MI250X", " read with rank0=+1s"]


@pytest.mark.parametrize("store", EARLIER, indirect=True)
def test_a_printed_table_is_no_run(
    store: Path, run: Path, capsys: pytest.CaptureFixture[str], wording: Wording
) -> None:
    """Next to a trace it is left out."""
    totals, table = [], run.parent / "frame.json"
    for _ in range(2):
        assert main(["show", str(run.parent), "--format", "json"]) == 0
        totals.append(json.loads(capsys.readouterr().out)["total"])
        shutil.copy(store.parent / "frame.json", table)
    assert totals[0] == totals[1] and totals[0]["kernels"]
    for door in (("show", str(table)), ("info", str(table)), ("diff", str(run), str(table))):
        assert main(door) == 1
        wording(capsys.readouterr().err, str(table), "address")


@pytest.mark.parametrize("command", ["info", "metrics"])
def test_other_json_that_chopper_prints_is_no_run_either(
    command: str, run: Path, capsys: pytest.CaptureFixture[str], wording: Wording
) -> None:
    """Not telemetry of its GPUs, say: next to a trace it is left out, and no damaged file."""
    named = [str(run)] if command == "info" else []
    assert main([command, *named, "--format", "json"]) == 0
    printed = run.parent / "printed.json"
    printed.write_text(capsys.readouterr().out)
    assert main(["show", str(printed)]) == 1
    wording(capsys.readouterr().err, str(printed), "Chopper printed")
    assert chopper_core.open(str(run.parent)).run.failed == ()


def test_the_sentence_names_the_run_where_it_is_still_there(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, moved = _unpacked(EARLIER[-1], tmp_path), run.parent.rename(tmp_path / "a run")
    index = json.loads((store / "store.json").read_text())
    for name, given in ((str(moved), f"'{moved}'"), (str(run), "RUN")):
        (store / "store.json").write_text(json.dumps({**index, "name": name}))
        assert main(["show", str(store)]) == 1
        assert capsys.readouterr().err.endswith(f"chopper ingest {given} -o {store}\n")
