"""A store whose ranks several processes join: the same bytes, whatever happens to them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from chopper_core.ingest.batches import ingest_into, ingest_store
from chopper_core.model import cubes
from chopper_core.store import writer
from chopper_core.util import children, workers
from tests.demo import generated_files

RANKS = 6


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Some ranks of a small run and its telemetry."""
    made = generated_files("ranks", ranks=RANKS, iterations=2, layers=2, with_counters=False)
    folder = tmp_path / "run"
    folder.mkdir()
    for rank in range(RANKS):
        shutil.copy(made / f"rank{rank}.json.gz", folder)
    shutil.copytree(made / "telemetry", folder / "telemetry")
    return folder


@pytest.fixture(autouse=True)
def small_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have processes share what is small, and this one be copied whatever its threads are."""
    monkeypatch.setattr(children, "may_fork", lambda: True)
    monkeypatch.setattr(workers, "THREADS_FROM_ROWS", 1)
    monkeypatch.setattr(writer, "_MIN_SUMMED_ROWS", 1)
    monkeypatch.setattr(cubes, "_CHUNK", 300)


def content_of(store: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(store.iterdir()) if path.is_file()}


@pytest.mark.parametrize("jobs", [2, 4])
def test_a_store_is_the_same_of_any_number_of_processes(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    shared = []
    submitted = workers._submitted

    def noted(*given: object, **options: object) -> object:
        shared.append(options.get("inherited"))
        return submitted(*given, **options)  # type: ignore[arg-type]

    ingest_store(str(source), tmp_path / "one", jobs=1)
    ingest_into(str(source), tmp_path / "more", jobs=1)
    monkeypatch.setattr(workers, "_submitted", noted)
    ingest_store(str(source), tmp_path / "more", jobs=jobs)
    assert sum(map(callable, shared)) >= 2
    assert content_of(tmp_path / "one") == content_of(tmp_path / "more")
