"""File systems that can do less than others, or fail: a store is whole, the older one or none."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chopper_core.ingest.cache import entries, open_cached
from chopper_core.ingest.open import open_run
from chopper_core.model.run import Run
from chopper_core.store import reader as store
from chopper_core.store.writer import write_store
from chopper_core.util import atomic as folders
from chopper_core.util.errors import DataError
from chopper_tui.last_screen import LastScreen, states_now
from tests.programs import faults
from tests.support import sample_run

NO_SUCH_THING = (errno.EINVAL, errno.ENOTSUP)
FAILURES = (errno.ESTALE, errno.EPERM, errno.ENOSPC, errno.EDQUOT, errno.ENOLCK)


@pytest.fixture
def older(tmp_path: Path) -> Path:
    folder = tmp_path / "stores" / "a.chopper"
    write_store(sample_run(gpus=1), folder)
    return folder


@pytest.fixture(scope="module")
def newer() -> Run:
    return sample_run(gpus=2)


class Failing:
    """Calls of a function, of which one fails, and all after it where `for_good`."""

    def __init__(self, call: Callable[..., Any], at: int, number: int, *, for_good: bool) -> None:
        self.calls = 0
        self._call, self._at, self._number, self._for_good = call, at, number, for_good

    def __call__(self, *args: Any, **named: Any) -> Any:
        self.calls += 1
        if self.calls == self._at or (self._for_good and self.calls > self._at):
            raise OSError(self._number, os.strerror(self._number))
        return self._call(*args, **named)


def whole(folder: Path) -> int:
    """How many GPUs the store at a name has; all of it is read."""
    store.verify(folder)
    return len(store.read_store(folder).gpus)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("number", "for_good", "can_exchange"),
    [
        *((errno.EIO, for_good, can) for for_good in (False, True) for can in (True, False)),
        *((number, True, False) for number in FAILURES),
    ],
)
@pytest.mark.parametrize("name", ["rename", "fsync", "open", "mkdir"])
def test_whatever_fails_the_store_is_whole(
    older: Path,
    newer: Run,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    name: str,
    for_good: bool,
    can_exchange: bool,
) -> None:
    failed = 0
    for at in range(1, 30):
        shutil.rmtree(older.parent)
        write_store(sample_run(gpus=1), older)
        failing = Failing(getattr(os, name), at, number, for_good=for_good)
        with monkeypatch.context() as patched:
            patched.setattr(os, name, failing)
            if not can_exchange:
                patched.setattr(folders, "_exchange", lambda *_: False)
            try:
                write_store(newer, older)
            except DataError as error:
                failed += 1
                assert os.strerror(number) in str(error)
        if older.exists():
            assert whole(older) in (1, 2)
        else:
            # Not even its own name was given back to the older one: it lies beside.
            (aside,) = older.parent.glob(".a.chopper.*.old")
            assert whole(aside) == 1 and name == "rename" and for_good and not can_exchange
        if failing.calls < at:
            assert whole(older) == 2
            break
    else:
        raise AssertionError("it never went through")
    assert failed or (name == "rename" and can_exchange)


def test_a_rename_that_was_done_though_it_says_no(
    older: Path, newer: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As NFS does where the answer to a request is lost and the request is sent again."""
    plain = os.rename

    def done_twice(source: Path, target: Path) -> None:
        plain(source, target)
        plain(source, target)

    monkeypatch.setattr(folders, "_exchange", lambda *_: False)
    monkeypatch.setattr(folders.os, "rename", done_twice)
    with pytest.raises(DataError, match="No such file"):
        write_store(newer, older)
    assert whole(older) == 2
    assert [path.name for path in older.parent.iterdir()] == ["a.chopper"]


@pytest.mark.parametrize("number", NO_SUCH_THING)
def test_folders_that_cannot_be_synced_are_no_failure(
    older: Path, newer: Run, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    plain = os.fsync

    def of_files(handle: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{handle}"):
            raise OSError(number, os.strerror(number))
        plain(handle)

    monkeypatch.setattr(os, "fsync", of_files)
    write_store(newer, older)
    assert whole(older) == 2


def test_without_maps_files_are_read(
    older: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped = store.read_store(older)

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    monkeypatch.setattr("mmap.mmap", refused)
    read = open_run(str(older))
    for name in ("start_ns", "duration_ns", "kernel", "operation"):
        assert (read.table.column(name) == mapped.table.column(name)).all()


def test_a_file_that_changes_within_a_second_of_a_coarse_clock_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where files have whole seconds (older NFS, ext3, FAT) another one of the same size and second
    has the same state: what was read of it is kept once it is older."""
    changed_s, plain = int(time.time()) + 60, folders.file_state

    def coarse(path: str | Path) -> folders.FileState:
        size, written_ns, _, *inode = plain(path)
        if written_ns < 0:
            return -1, -1, -1, -1, -1
        return size, changed_s * 10**9, changed_s * 10**9, inode[0], inode[1]

    monkeypatch.setattr(folders, "file_state", coarse)
    run, screen = tmp_path / "run", LastScreen(["run"])
    for state in "aba":
        faults.write_source(run, state)
        assert faults.state_of(open_cached(str(run), jobs=1)) == state
        assert not entries()
        screen.keep([[("shown", "")]], states_now([run / "rank0.json"]))
        assert not LastScreen(["run"]).lines
    changed_s -= 120
    assert faults.state_of(open_cached(str(run), jobs=1)) == "a"
    assert len(entries()) == 1
    screen.keep([[("shown", "")]], states_now([run / "rank0.json"]))
    assert LastScreen(["run"]).lines == [[("shown", "")]]
