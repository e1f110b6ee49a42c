"""The paths that a run's name stands for, and which of them are stores."""

from __future__ import annotations

from pathlib import Path
from typing import Final

STORE_INDEX: Final = "store.json"
"""The file that makes a directory a store."""


def paths_of(name: str) -> list[Path]:
    """The paths of a run: one, or several separated by commas."""
    path = Path(name).expanduser()
    if not path.exists() and "," in name:
        return [Path(part).expanduser() for part in name.split(",") if part]
    return [path]


def is_store(path: Path) -> bool:
    """Whether a directory is a store."""
    return (path / STORE_INDEX).is_file()
