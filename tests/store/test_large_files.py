"""Files of a store that are too large to verify while they are opened: verified once, in time."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest

from chopper_core.ingest import cache
from chopper_core.model.overrides import NO_OVERRIDES
from chopper_core.model.view import View
from chopper_core.store import reader
from chopper_core.store.format import KERNELS, MEASURED
from chopper_core.store.writer import write_store
from chopper_core.util.errors import DataError
from chopper_core.util.progress import Progress
from chopper_tui.app import ChopperApp
from chopper_tui.cli import main
from tests.programs.fuzz.seeds import small_trace
from tests.support import sample_run
from tests.tui.explorer import measured_run


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store whose columns count as large."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(reader, "_LARGE_BYTES", 1)
    write_store(measured_run(2, 2, 2), tmp_path / "a.chopper")
    return tmp_path / "a.chopper"


def flip(path: Path) -> None:
    """Flip a bit in the middle of a file, which takes no other's size or place."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize("name", [KERNELS, MEASURED])
def test_a_flipped_bit_of_a_large_file_is_refused(
    name: str, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(store)]) == 0
    flip(store / name)
    for command in (["show"], ["info"], ["info", "--verify"], ["diff", str(store)]):
        assert main([*command, str(store)]) == 1
        assert "checksum mismatch" in capsys.readouterr().err


def test_a_state_of_a_store_is_verified_once(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    verified: list[object] = []
    monkeypatch.setattr(cache, "verify", lambda *given: verified.append(given[1]))
    for _ in range(2):
        cache.open_cached(str(store))
    assert len(verified) == 1
    write_store(sample_run(), store)
    cache.open_cached(str(store))
    assert len(verified) == 2
    assert main(["info", str(store), "--verify"]) == 0
    assert len(verified) == 3
    cache.clear()
    cache.open_cached(str(store))
    assert len(verified) == 4


def test_a_cached_run_that_is_damaged_is_read_again(store: Path) -> None:
    trace = small_trace().write(store.parent / "rank0.json")
    rows = len(cache.open_cached(str(trace)).table)
    (entry,) = cache.entries()
    flip(entry.path / KERNELS)
    with pytest.raises(DataError, match="its cached run was damaged; open it again"):
        cache.verify_run(str(trace), NO_OVERRIDES)
    assert len(cache.open_cached(str(trace)).table) == rows
    (entry,) = cache.entries()
    flip(entry.path / KERNELS)
    assert len(cache.open_cached(str(trace)).table) == rows
    cache.verify_run(str(trace), NO_OVERRIDES)


@pytest.mark.parametrize("is_damaged", [False, True])
async def test_the_explorer_ends_once_it_finds_damage(is_damaged: bool, store: Path) -> None:
    """Its first screen doesn't wait for all of a store."""
    if is_damaged:
        flip(store / KERNELS)
    run = cache.open_cached(str(store), is_verified=False)
    app = ChopperApp(lambda _: run, View(str(store)))
    checked = Event()

    def check(progress: Progress) -> None:
        try:
            cache.verify_run(str(store), NO_OVERRIDES, progress)
        finally:
            checked.set()

    app.check = check
    async with app.run_test(size=(80, 24)) as pilot:
        for _ in range(300):
            await pilot.pause(0.01)
            if checked.is_set() and (not is_damaged or not app.is_running):
                break
    assert checked.is_set() and app.return_code == (1 if is_damaged else None)
    assert ("checksum mismatch" in str(app.failure)) == is_damaged
