"""The committed demo runs and generated ones, read once for all tests in all workers.

They are kept under build/, by the digest of Chopper's own files and theirs: whatever changes how
they are made or read has them read anew.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

import pytest
from msgspec.structs import replace

from chopper_core.ingest.cache import open_cached
from chopper_core.model.overrides import overrides_of
from chopper_core.model.run import Run
from chopper_core.model.table import COLUMNS
from tests.align.generated import load_generator

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "demo_data"
KEPT = ROOT / "build" / "tests"
_SMALL: Final = {"ranks": 2, "iterations": 3, "layers": 2}
_OTHER_PASSES: Final = (2, 3)


@cache
def demo_run(name: str = "fsdp2", *, named: str = "") -> Run:
    """A demo run, named as from the repository's root or as asked; its arrays can't be changed.

    What one test has worked out of it, others find as the screens of a session do.
    """
    return _shared(opened(f"demo_data/{name}"), named or f"demo_data/{name}")


@cache
def generated_run(name: str, **options: object) -> Run:
    """A run of the demo data's generator with such options, made once for all workers."""
    return _shared(opened(str(generated_files(name, **options))), name)


def _shared(run: Run, name: str) -> Run:
    return replace(run, name=name, others=MappingProxyType({}))


def generated_files(name: str, **options: object) -> Path:
    """The files of such a run; whoever changes them copies them first."""
    return kept_files(name, options, lambda folder: load_generator().generate(folder, **options))


def small_files() -> Path:
    """Two ranks like the demo's with telemetry and one pass of counters, for what reads a run anew:
    that takes an eighth of the time."""

    def make(folder: Path) -> None:
        load_generator().generate(folder, **_SMALL)
        for number in _OTHER_PASSES:
            shutil.rmtree(folder / "counters" / f"pass_{number}")

    return kept_files("small", _SMALL, make)


@cache
def small_run() -> Run:
    """The run of those files."""
    return _shared(opened(str(small_files())), "small")


def kept_files(name: str, options: object, make: Callable[[Path], object]) -> Path:
    """A folder that is made once for all workers, and anew where the generator changed."""
    made = "\n".join([repr(options), *(path.read_text("utf-8") for path in _generator_files())])
    folder = KEPT / f"{name}@{hashlib.sha256(made.encode()).hexdigest()[:12]}"
    with _one_at_a_time():
        if not folder.exists():
            for older in KEPT.glob(f"{name}@*"):
                shutil.rmtree(older)
            make(KEPT / name)
            (KEPT / name).rename(folder)
    return folder


def _generator_files() -> list[Path]:
    return [DEMO / "generate.py", *sorted((DEMO / "generator").glob("*.py"))]


@cache
def opened(source: str, parallel: str = "") -> Run:
    """A run that is read once for all workers; its arrays can't be changed."""
    with _one_at_a_time(), pytest.MonkeyPatch.context() as patch:
        as_kept(patch)
        run = open_cached(source, jobs=1, overrides=overrides_of(parallel=parallel))
    for name in COLUMNS:
        run.table.column(name).flags.writeable = False
    return run


def as_kept(patch: pytest.MonkeyPatch) -> None:
    """Have runs looked for where they are kept, with the names that they have there.

    What is said of sources names them as the run was named.
    """
    patch.setenv("XDG_CACHE_HOME", str(KEPT))
    patch.chdir(ROOT)


def copy_kept(folder: Path) -> Path:
    """A cache of its own with what is kept of runs that were read, while no worker reads one."""
    with _one_at_a_time():
        # What has a temporary name (`temporary_path`) is being written.
        shutil.copytree(KEPT / "chopper", folder / "chopper", ignore=shutil.ignore_patterns(".*.*"))
    return folder


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    KEPT.mkdir(parents=True, exist_ok=True)
    with (KEPT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
