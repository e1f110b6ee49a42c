"""What every test may use."""

from __future__ import annotations

import gc
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

from tests.demo import as_kept, demo_run
from tests.realdata.conftest import FOLDER
from tests.wording import Wording

ROOT = Path(__file__).resolve().parent.parent

# As in the Makefile: without bytecode each of some hundred processes compiles Chopper anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Collecting garbage takes a tenth of the time of all tests, so it waits until a worker has grown.
gc.set_threshold(0)  # Not gc.disable(): the explorer would enable it.

settings.register_profile(
    "quick",
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("thorough", settings.get_profile("quick"), max_examples=200)
settings.load_profile("quick")

_SLOW: Final = ("tui", "cli", "store", "ingest", "align", "realdata", "sources")
"""Rooms whose tests take longer than `make check` may."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no module whose tests are deselected: that takes longer than many a test."""
    return True if "not slow" in config.option.markexpr and _is_slow(collection_path) else None


def _is_slow(path: Path) -> bool:
    """Whether a room or a module of tests is one of the slow ones."""
    room = path.relative_to(ROOT / "tests").parts[:1]
    return room in [(name,) for name in _SLOW] or room[-1:] == (f"{path.stem}.py",)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Iterator[None]:
    """Make no items of the cases that are deselected: three of four are those of sweeps."""
    yield
    calls, few = metafunc._calls, metafunc.definition.get_closest_marker("few")
    if "not sweep" not in metafunc.config.option.markexpr or not calls:
        return
    if metafunc.definition.get_closest_marker("sweep"):
        metafunc._calls = calls[:1]  # without any the test itself would be one
        return
    chosen = [each for each in calls if not any(mark.name == "sweep" for mark in each.marks)]
    kept = range(len(chosen)) if few is None else _kept(chosen, few)
    metafunc._calls = [each for i, each in enumerate(chosen) if i in kept] or calls[:1]


def _kept(cases: Sequence[object], few: pytest.Mark) -> set[int]:
    """The places of the cases of `few(n)` that aren't of the sweep."""
    (number,) = few.args
    return {len(cases) * i // number for i in range(number)}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests as slow by their room, and cases beyond a few as those of the sweep; where
    goldens are written, run those tests alone.
    """
    if os.environ.get("CHOPPER_UPDATE_GOLDENS"):
        others = [each for each in items if not _has_golden(each)]
        config.hook.pytest_deselected(items=others)
        items[:] = [each for each in items if _has_golden(each)]
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if _is_slow(item.path):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("few") and not item.get_closest_marker("sweep"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for alike in cases.values():
        kept = _kept(alike, alike[0].get_closest_marker("few"))
        for i, item in enumerate(alike):
            if i not in kept:
                item.add_marker(pytest.mark.sweep)


def _has_golden(item: pytest.Item) -> bool:
    return "wording" in getattr(item, "fixturenames", ()) or bool(item.get_closest_marker("golden"))


def pytest_collection_finish() -> None:
    """Keep the garbage collector off what stays until the end: modules and thousands of tests."""
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish() -> None:
    """Collect it between two tests once the worker has grown."""
    global _collect_from
    if _resident_bytes() > _collect_from:
        gc.collect()
        _collect_from = _resident_bytes() + _GROWTH_BYTES


def pytest_sessionfinish() -> None:
    """Leave what is left to the system."""
    gc.freeze()


_GROWTH_BYTES: Final = 1 << 29
_collect_from = 3 * _GROWTH_BYTES


def _resident_bytes() -> int:
    """The memory of this process; 0 where the system doesn't tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0


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


@pytest.fixture
def wording(request: pytest.FixtureRequest, _own_state: None) -> Wording:
    """What checks the sentences of a test."""
    places = {os.environ[name]: f"${name}" for name in _OWN}
    places |= {str(ROOT): "REPO", str(FOLDER): "REALDATA"}
    if "tmp_path" in request.fixturenames:
        folder = request.getfixturevalue("tmp_path")
        places = {str(folder): "TMP", folder.name: "TMP"} | places
    golden = request.path.parent / "golden" / f"{request.path.stem}.json"
    return Wording(golden, request.node.name, places)


_NUMBERS: Final = count()
_OWN: Final = ("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")
"""The directories of a person, of which each test has its own."""


@pytest.fixture(scope="session")
def _states(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("states")


@pytest.fixture(autouse=True)
def _own_state(_states: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what a test writes out of the person's own directories."""
    own = _states / str(next(_NUMBERS))  # not tmp_path: most tests write nothing
    for name in _OWN:
        monkeypatch.setenv(name, str(own / name.lower()))
    for name in ("NO_COLOR", "COLUMNS", "LINES"):
        if name in os.environ:
            monkeypatch.delenv(name)
