"""The real traces, opened once; skipped where they are not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from chopper_core.ingest.open import open_run
from chopper_core.model.run import Run

FOLDER = Path(
    os.environ.get("CHOPPER_REALDATA") or Path(__file__).resolve().parents[3] / "shared/realdata"
)


@pytest.fixture(scope="session")
def realdata() -> Path:
    if not FOLDER.is_dir():
        pytest.skip(f"no real traces at {FOLDER}; $CHOPPER_REALDATA says where they are")
    return FOLDER


@pytest.fixture(scope="session")
def opened(realdata: Path) -> Iterator[Callable[[str], Run]]:
    """Opens a trace or a directory of the folder by its name, once."""

    @cache
    def open_once(name: str) -> Run:
        path = realdata / name
        if not path.exists():
            pytest.skip(f"no {path}")
        return open_run(str(path), jobs=1)

    yield open_once
    open_once.cache_clear()
