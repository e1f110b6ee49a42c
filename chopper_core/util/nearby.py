"""Files that a reader looks for next to the one it was given, such as the log of a database.

What it reads depends on them, whether they are there or not, so each look is noted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from chopper_core.util.atomic import FileState, file_state

Look = tuple[str, str]
"""A folder and the pattern of the names that were looked for there; '' for the file of a path."""
States = tuple[tuple[str, FileState], ...]
"""The files that a look finds, with their states."""

_noting: list[dict[Look, States]] = []
"""Those of all threads: helpers of a reader have threads of their own."""


def file_nearby(path: Path) -> Path:
    """A path that wasn't given; the look is noted."""
    note_looks([(str(path.absolute()), "")])
    return path


def files_nearby(folder: Path, pattern: str) -> list[Path]:
    """The files of a folder that wasn't given whose names match, sorted; the look is noted."""
    note_looks([(str(folder.absolute()), pattern)])
    return sorted(folder.glob(pattern))


def note_looks(looks: Iterable[Look] | Mapping[Look, States]) -> None:
    """Note looks, by their states where a worker process has made them."""
    for noted in _noting:
        for look in looks:
            if look not in noted:
                noted[look] = looks[look] if isinstance(looks, Mapping) else found_by(look)


@contextmanager
def noted_looks() -> Iterator[dict[Look, States]]:
    """The looks until the end of the block, with what the first of each found."""
    noted: dict[Look, States] = {}
    _noting.append(noted)
    try:
        yield noted
    finally:
        # By identity: two of them may be equal.
        _noting[:] = [each for each in _noting if each is not noted]


def found_by(look: Look) -> States:
    """What a look finds now; of a file that isn't there its path alone."""
    path, pattern = look
    found = [path]
    if pattern:
        found = []
        with suppress(OSError):
            found = sorted(map(str, Path(path).glob(pattern)))
    return tuple((each, file_state(each)) for each in found)
