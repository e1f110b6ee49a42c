"""The files at the places that a person names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from chopper_core.util.errors import DataError

_DIGITS: Final = re.compile(r"(\d+)")


def files_at(paths: Sequence[Path]) -> Iterator[tuple[Path, Path]]:
    """Each file at the paths, or below them, once, after the path that it was found at.

    What lies below a path comes in natural order, without what is hidden. Raises DataError if a
    path doesn't exist.
    """
    seen: set[Path] = set()
    for root in paths:
        if not root.exists():
            raise DataError(f"{root} does not exist.")
        for file in _files_below(root) if root.is_dir() else [root]:
            if (resolved := file.resolve()) not in seen:
                seen.add(resolved)
                yield root, file


def _files_below(directory: Path) -> Iterator[Path]:
    found: list[Path] = []
    for folder, folders, names in os.walk(directory):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(folder, name) for name in names if not name.startswith(".")]
    yield from sorted(found, key=natural_key)


def natural_key(path: Path) -> list[tuple[int, str]]:
    """Return a key that sorts numbers in names by value."""
    parts = _DIGITS.split(path.as_posix())
    return [(int(part), "") if index % 2 else (0, part) for index, part in enumerate(parts)]
