"""Watch the files of a run by polling: no notification crosses NFS."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Final

from chopper_core.model.phrases import facts
from chopper_core.store.format import paths_of
from chopper_core.util.atomic import FileState, file_state, walk_once
from chopper_core.util.errors import DataError
from chopper_core.util.nearby import Look, States, found_by

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
        self._looks: Collection[Look] = ()
        """What was looked for next to them when they were read, as the log of a database is."""
        self.nearby: Set[str] = frozenset()
        """The files among the state that aren't the runs' own."""
        self._unused: dict[str, FileState] = {}
        """New files that nothing reads."""
        self._unread: Mapping[str, FileState] = {}
        """The files that aren't among the state, as of the last look: hidden ones, too."""

    def state(self) -> Mapping[str, FileState]:
        """The state of each file and of those that readers look for next to them; of files that
        came later only those that runs are read from."""
        try:
            paths = [path for name in filter(None, self._names) for path in paths_of(name)]
        except DataError:
            return {}
        every = {path: file_state(path) for path in files_below(paths)}
        found = {path: each for path, each in every.items() if not _is_hidden(path)}
        for path in [path for path in found if self._known and path not in self._known]:
            if not self._is_used(path, found[path]):
                del found[path]
        nearby = dict(each for look in self._looks for each in found_by(look))
        self.nearby = nearby.keys() - every.keys()
        found |= nearby
        self._unread = {path: each for path, each in every.items() if path not in found}
        return found

    def renamed(
        self, gone: Mapping[str, FileState], now: Mapping[str, FileState]
    ) -> dict[str, str]:
        """The new names of files that are gone, by the state that they had.

        A file keeps its inode, size and time; another one may be given the inode of a deleted one.
        """
        names = {_identity(each): path for path, each in [*now.items(), *self._unread.items()]}
        found = ((path, names.get(_identity(each), "")) for path, each in gone.items())
        return {path: name for path, name in found if name and name not in gone}

    @property
    def known(self) -> Mapping[str, FileState]:
        """The state of each file when it was last read."""
        return self._known

    def folders(self) -> Iterator[str]:
        """The folders of the runs and those that readers search, which change when a file joins
        them."""
        for name in filter(None, self._names):
            for path in filter(Path.is_dir, paths_of(name)):
                yield from (folder for folder, _, _ in walk_once(path))
        yield from (folder for folder, pattern in self._looks if pattern)

    def note(
        self, state: Mapping[str, FileState], looks: Mapping[Look, States] | None = None
    ) -> None:
        """Take the state that files had before they were read as known, and what reading them
        looked for next to them; without looks those of the last time."""
        if looks is None:
            nearby = {path: self._known[path] for path in self.nearby if path in self._known}
        else:
            self._looks = tuple(looks)
            nearby = dict(each for states in looks.values() for each in states)
            self.nearby = nearby.keys() - state.keys()
        self._known = {**nearby, **state}

    def news(self) -> str:
        """What changed since, in a few words; '' for nothing."""
        now, known = self.state(), self._known
        gone = {path: each for path, each in known.items() if each[0] >= 0 > file_state(path)[0]}
        if gone:
            return gone_text(gone, self.renamed(gone, now))
        if any(now.get(path, state) != state for path, state in known.items()):
            return "files changed"
        return "new files" if any(path not in known for path in now) else ""

    def _is_used(self, path: str, state: FileState) -> bool:
        if self._unused.get(path) == state:
            return False
        # Readers take long to import.
        from chopper_core.ingest.inputs import describes_runs
        from chopper_core.sources.registry import family_of

        if family_of(Path(path)) is not None or describes_runs(Path(path)):
            return True
        self._unused[path] = state
        return False


def gone_text(gone: Collection[str], renamed: Mapping[str, str]) -> str:
    """That files are gone, in a few words; '' for none. `renamed` has their new names."""
    own = [path for path in gone if path in renamed]
    deleted = [path for path in gone if path not in renamed]
    return facts(
        f"{_named(own)} renamed to {_named([renamed[own[0]]])}" if own else "",
        f"{_named(deleted)} deleted" if deleted else "",
    )


def _named(paths: Sequence[str]) -> str:
    """The name of the first file, and how many more there are."""
    name, more = os.path.basename(paths[0]), f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    if len(name) > _MOST_CHARACTERS:
        name = f"{name[: _MOST_CHARACTERS // 2]}…{name[-_MOST_CHARACTERS // 2 :]}"
    return f"{name}{more}"


def _identity(state: FileState) -> tuple[int, ...]:
    """What stays when a file is renamed: size, time of its content, inode and device."""
    size, changed_ns, _, *inode = state
    return size, changed_ns, *inode


def _is_hidden(path: str) -> bool:
    return os.path.basename(path).startswith(".")
