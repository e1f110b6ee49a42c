"""Watch the files of a run by polling: no notification crosses NFS."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from chopper_core.store.format import paths_of
from chopper_core.util.atomic import FileState, file_state, walk_once
from chopper_core.util.errors import DataError

_MOST_CHARACTERS: Final = 20
"""Of a name that is shown in the first line of the screen."""


def files_below(paths: Sequence[Path]) -> Iterator[str]:
    """The files at and below paths, hidden ones too."""
    for path in paths:
        walked = walk_once(path) if path.is_dir() else [("", (), (str(path),))]
        yield from (os.path.join(folder, name) for folder, _, names in walked for name in names)


class RunFiles:
    """The files of runs, and their state when they were last read."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self._known: Mapping[str, FileState] = {}
        self._unused: dict[str, FileState] = {}
        """New files that no format reads."""

    def state(self) -> Mapping[str, FileState]:
        """The state of each file; of files that came later only those that some format reads."""
        try:
            paths = [path for name in filter(None, self._names) for path in paths_of(name)]
        except DataError:
            return {}
        found = {path: file_state(path) for path in files_below(paths) if not _is_hidden(path)}
        for path in [path for path in found if self._known and path not in self._known]:
            if not self._is_used(path, found[path]):
                del found[path]
        return found

    @property
    def known(self) -> Mapping[str, FileState]:
        """The state of each file when it was last read."""
        return self._known

    def folders(self) -> Iterator[str]:
        """The folders of the runs, which change when a file joins them."""
        for name in filter(None, self._names):
            for path in filter(Path.is_dir, paths_of(name)):
                yield from (folder for folder, _, _ in walk_once(path))

    def note(self, state: Mapping[str, FileState]) -> None:
        """Take the state that files had before they were read as known."""
        self._known = state

    def news(self) -> str:
        """What changed since, in a few words; '' for nothing."""
        now, known = self.state(), self._known
        gone = [path for path, state in known.items() if state[0] >= 0 > file_state(path)[0]]
        if gone:
            return deleted_text(gone)
        if any(now.get(path, state) != state for path, state in known.items()):
            return "files changed"
        return "new files" if any(path not in known for path in now) else ""

    def _is_used(self, path: str, state: FileState) -> bool:
        if self._unused.get(path) == state:
            return False
        # Readers take long to import.
        from chopper_core.sources.registry import family_of

        if family_of(Path(path)) is not None:
            return True
        self._unused[path] = state
        return False


def deleted_text(paths: Sequence[str]) -> str:
    """That files are gone, in a few words; '' for none."""
    if not paths:
        return ""
    name, more = os.path.basename(paths[0]), f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    if len(name) > _MOST_CHARACTERS:
        name = f"{name[: _MOST_CHARACTERS // 2]}…{name[-_MOST_CHARACTERS // 2 :]}"
    return f"{name}{more} deleted"


def _is_hidden(path: str) -> bool:
    return os.path.basename(path).startswith(".")
