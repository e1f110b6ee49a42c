"""What every test may use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

from tests.demo import as_kept, demo_run

ROOT = Path(__file__).resolve().parent.parent

settings.register_profile(
    "chopper", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.load_profile("chopper")


_SLOW: Final = ("tui", "cli", "store", "ingest", "align", "realdata", "sources")
"""Rooms whose tests take longer than `make check` may."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of slow rooms, and those beside the rooms, as slow."""
    for item in items:
        place = item.path.relative_to(ROOT / "tests").parts
        if place[0] in _SLOW or len(place) == 1:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def demo() -> Path:
    """The committed demo run."""
    return ROOT / "demo_data" / "fsdp2"


@pytest.fixture
def demo_kept(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, for a command that finds it read before."""
    run = demo_run()
    as_kept(monkeypatch)
    return Path(run.name)


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what a test writes out of the person's own directories."""
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    for name in ("NO_COLOR", "COLUMNS", "LINES"):
        if name in os.environ:
            monkeypatch.delenv(name)
