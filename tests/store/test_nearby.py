"""What a run is read with belongs to its key: files next to it that nobody named, and plugins."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import cache as once
from pathlib import Path

import pytest

from chopper_core.ingest import cache
from chopper_core.ingest.follow import Follower
from chopper_core.ingest.open import open_run
from chopper_core.ingest.watch import RunFiles
from chopper_core.render import info
from chopper_core.util.errors import ChopperError
from chopper_core.util.nearby import Look, file_nearby, noted_looks
from chopper_core.util.workers import read_all
from tests.programs.fuzz.seeds import SEEDS

_touched: list[str] = []
_is_watched: list[bool] = []


@once
def _watch() -> None:
    """Note what Python opens and lists from here on, while a test watches: a hook stays."""

    def note(event: str, given: tuple[object, ...]) -> None:
        if _is_watched and event in ("open", "os.listdir", "os.scandir", "sqlite3.connect"):
            with suppress(TypeError):
                _touched.append(os.fsdecode(given[0]))  # type: ignore[arg-type]

    sys.addaudithook(note)


@pytest.fixture
def touched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that were looked up, listed or opened."""
    _watch()
    stat = os.stat

    def noted(path: object, *rest: object, **options: object) -> os.stat_result:
        if isinstance(path, str | os.PathLike):
            _touched.append(os.fspath(path))
        return stat(path, *rest, **options)  # type: ignore[arg-type, call-overload, no-any-return]

    _touched.clear()
    monkeypatch.setattr(os, "stat", noted)
    _is_watched.append(True)
    return _touched


def _charllm(folder: Path) -> Path:
    """Whether it is the memory's activity or its use, files next to it tell."""
    other = folder / "other"
    other.mkdir()
    moved = SEEDS["charllm alone"](other).rename(folder / "mem_util_0.csv")
    rows = (row.partition(",") for row in moved.read_text().split())
    moved.write_text("".join(f"{at},{int(value) % 100}\n" for at, _, value in rows))
    return moved


FORMATS = {**SEEDS, "charllm by its neighbours": _charllm}


@pytest.mark.parametrize("name", FORMATS)
def test_every_look_next_to_a_named_file_is_noted(
    name: str, tmp_path: Path, touched: list[str]
) -> None:
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    path = FORMATS[name](folder)
    touched.clear()
    try:
        with noted_looks() as looks, suppress(ChopperError):
            open_run(str(path), jobs=1)
    finally:
        _is_watched.clear()
    names = {each.removeprefix("file:").partition("?")[0] for each in touched}
    beside = {each for each in names if each.startswith(f"{tmp_path}{os.sep}")}
    beside -= {each for each in beside if each == str(path) or each.startswith(f"{path}{os.sep}")}
    files = {each for each in beside if not os.path.isdir(each)}
    assert str(path) in names
    assert files <= {each for each, pattern in looks if not pattern}


def _text(content: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(content)


NEIGHBOURS = {
    "rocpd": ("{name}-wal", _text("rows to come")),
    "rpd": ("{name}-wal", _text("rows to come")),
    "nsys": ("{name}-journal", lambda path: path.write_bytes(bytes.fromhex("d9d505f920a163d7"))),
    "primus": ("config.json", _text('{"pp_size": 2, "vp_size": 2}')),
    "astra-sim log": ("workload.0.et", lambda path: SEEDS["chakra"](path.parent).rename(path)),
    "charllm by its neighbours": ("pcie_read_0.csv", _text("1\n")),
}


def _described(name: Path, opened: Callable[[str], object]) -> str:
    try:
        return info.info_json(opened(str(name)))  # type: ignore[arg-type]
    except ChopperError as error:
        return str(error)


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_a_file_is_read_again_once_what_lies_next_to_it_changes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes, changes and goes; meanwhile the run is read once."""
    path = FORMATS[name](tmp_path)
    spelled, write = NEIGHBOURS[name]
    neighbour = tmp_path / spelled.format(name=path.name)
    described = []

    def look() -> None:
        described.append(_described(path, lambda each: open_run(each, jobs=1)))
        with noted_looks() as looks:
            assert _described(path, lambda each: cache.open_cached(each, jobs=1)) == described[-1]
        assert str(neighbour) in _looked_for(looks)
        if (cache.directory() / cache.key_of(str(path))).exists():
            with monkeypatch.context() as patch, noted_looks() as again:
                patch.setattr(cache, "_read", None)
                assert _described(path, cache.open_cached) == described[-1]
            assert _looked_for(again) == _looked_for(looks)

    look()
    without = cache.key_of(str(path))
    write(neighbour)
    look()
    assert described[1] != described[0] and cache.key_of(str(path)) != without
    neighbour.unlink()
    look()
    assert described[2] == described[0]
    (entry,) = cache.entries() or [None]
    assert entry is None or entry.name == str(path)


def _looked_for(looks: Collection[Look]) -> set[str]:
    """The files that looks were for, each that a pattern may find here among them."""
    return {
        str(Path(path, spelled.format(name="")) if pattern else path)
        for path, pattern in looks
        for spelled, _ in NEIGHBOURS.values()
        if not pattern or Path(spelled).match(pattern)
    }


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_a_run_that_is_open_has_news_once_what_lies_next_to_it_changes(
    name: str, tmp_path: Path
) -> None:
    """A file comes, changes and goes."""
    path, (spelled, write) = FORMATS[name](tmp_path), NEIGHBOURS[name]
    neighbour = tmp_path / spelled.format(name=path.name)
    files = RunFiles(str(path))

    def read() -> None:
        before = files.state()
        with noted_looks() as looks:
            _described(path, lambda each: cache.open_cached(each, jobs=1))
        files.note(before, looks)
        assert files.news() == ""

    read()
    write(neighbour)
    assert files.news() in ("files changed", "new files")
    read()
    neighbour.write_bytes(neighbour.read_bytes() + b" ")
    assert files.news() == "files changed"
    read()
    neighbour.unlink()
    assert files.news().endswith(
        "-journal deleted" if name == "nsys" else f"{neighbour.name} deleted"
    )


@pytest.mark.parametrize("name", ["rocpd", "rpd"])
def test_a_run_that_is_watched_is_read_again_once_what_lies_next_to_it_changes(
    name: str, tmp_path: Path
) -> None:
    path, (spelled, write) = FORMATS[name](tmp_path), NEIGHBOURS[name]
    follower = Follower(str(path), jobs=1)
    try:
        before = follower.open()
        assert [follower.poll() for _ in range(3)] == [None] * 3
        write(tmp_path / spelled.format(name=path.name))
        for _ in range(2000):
            if (found := follower.poll()) is not None:
                break
            time.sleep(0.005)
        assert found is not None and follower.problem == ""
        assert info.info_json(found) == _described(path, lambda each: open_run(each, jobs=1))
        assert info.info_json(found) != info.info_json(before)
    finally:
        follower.close()


def test_rows_and_lists_of_runs_depend_on_what_lies_next_to_files_too(tmp_path: Path) -> None:
    path = SEEDS["rocpd"](tmp_path)

    def notes() -> list[str]:
        return [_described(path, lambda each: open_run(each, jobs=1))]

    def row() -> list[str]:
        return cache.worked_out("rows", str(path), list[str], notes)

    first = row()
    assert cache.recalled("rows", str(path), list[str]) == first
    log = path.with_name(f"{path.name}-wal")
    log.write_text("rows to come")
    assert cache.recalled("rows", str(path), list[str]) is None
    assert row() == notes() != first and cache.recalled("rows", str(path), list[str]) == notes()


def _looking(path: Path, _: object) -> int:
    return len(file_nearby(path.with_suffix(".log")).name)


@pytest.mark.parametrize("jobs", [1, 2])
def test_looks_of_worker_processes_are_noted(jobs: int, tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.json" for number in range(3)]
    for path in paths:
        path.write_text("{}")
    with noted_looks() as looks, noted_looks() as inner:
        assert read_all(paths, _looking, lambda *_: None, jobs) == [5, 5, 5]
    assert looks == inner and {*looks} == {(str(each.with_suffix(".log")), "") for each in paths}


def test_a_run_is_read_again_once_a_plugin_comes_or_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plugin may read the run's files, and models its operators while they are read."""
    path, site = SEEDS["trace"](tmp_path), tmp_path / "site"
    declared = site / "wattlog-1.dist-info"
    declared.mkdir(parents=True)
    monkeypatch.syspath_prepend(str(site))
    keys = [cache.key_of(str(path))]
    entry = "[chopper.operators]\ngate = wattlog_of_a_test:Gate\n"
    (declared / "entry_points.txt").write_text(entry)
    for text in ("", "x = 1\n"):
        (site / "wattlog_of_a_test.py").write_text(text)
        assert cache.key_of(str(path)) == keys[-1], "a process runs what it has imported"
        cache._plugins_in.cache_clear()
        keys.append(cache.key_of(str(path)))
    assert len({*keys}) == 3
    cache._plugins_in.cache_clear()
