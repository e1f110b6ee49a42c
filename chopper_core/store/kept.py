"""What was worked out once, in files: verified when it is read, worked out again where it can't be.

A file holds one value: the first line is a digest of the state that the value was worked out in and
of the value itself, as msgpack, follows. A value of another state, a torn one or one of another
type is none. Values are decoded as the types that they are asked for; nothing in a file is run.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG
from threading import Lock, Thread
from time import time
from typing import Any, Final, TypeVar, cast, get_args, get_origin

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model import address
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.util import atomic, debug, memory
from chopper_core.util.errors import ChopperError

T = TypeVar("T")
_MOST_FILES: Final = 256
_MOST_BYTES: Final = 1 << 27
"""Of what is derived from one run; what was written the longest ago goes."""
_DIGEST_LENGTH: Final = 64
"""Characters of a digest, at the beginning of a file."""
_DAY_S: Final = 24 * 3600.0
_KINDS: Final = "biuf"
"""The kinds of numbers in arrays."""
_UNREADABLE: Final = (OSError, ValueError, TypeError, RecursionError, msgspec.MsgspecError)


_LATER: Final = "worked out again"


def later(*_: object) -> Any:
    """Stands in a value that was read for a function, which no file holds."""
    raise NotImplementedError


class Kept(Struct, frozen=True):
    """A value in one state of what it was worked out from."""

    file: Path
    """The same for every state: a later value replaces an older one."""
    state: str
    is_private: bool = True
    """Whether it is of no use in a folder that others can write to."""

    def recall(self, kind: type[T]) -> T | None:
        """The value that was kept in this state; None without."""
        try:
            status = self.file.lstat()
            # Nothing else holds a value, and a pipe would be waited for.
            if not S_ISREG(status.st_mode) or (self.is_private and not self._is_own(status)):
                return None
            # Values can be megabytes: none is copied.
            whole = memoryview(self.file.read_bytes())
            content = whole[_DIGEST_LENGTH + 1 :]
            if whole[: _DIGEST_LENGTH + 1] != self._digest(content) + b"\n":
                return None
            found = decoded(content, kind)
            self._note_use()
            return found
        except _UNREADABLE:
            return None

    def keep(self, value: object) -> None:
        """Keep a value, unless its folder can't be written or belongs to another user, or it has a
        name that is no UTF-8."""
        # Names of files that are no UTF-8 are worked out again.
        with suppress(OSError, UnicodeEncodeError):
            content = encoded(value)
            folder = self.file.parent
            if self.is_private:
                # A store that was removed meanwhile stays so.
                atomic.make_private(folder, is_inner=folder.name == atomic.DERIVED)
            else:
                folder.mkdir(exist_ok=True)
            # A torn file isn't of its digest, and costs working it out again.
            whole = self._digest(content) + b"\n" + content
            mode = 0o600 if self.is_private else 0o666
            atomic.publish(self.file, whole, mode=mode, is_synced=False)

    def _note_use(self) -> None:
        """What is used stays in the cache, however long ago it was written."""
        with suppress(OSError):
            if self.is_private and time() - self.file.stat().st_mtime > _DAY_S:
                os.utime(self.file)

    def _is_own(self, status: os.stat_result) -> bool:
        return atomic.is_private(self.file.parent) and status.st_uid == os.geteuid()

    def _digest(self, content: bytes | memoryview) -> bytes:
        found = hashlib.sha256(self.state.encode("utf-8", "surrogateescape") + b"\n")
        found.update(content)
        return found.hexdigest().encode()


def encoded(value: object) -> bytes:
    """A value as msgpack; raises TypeError where it can't be kept."""
    return msgspec.msgpack.encode(value, enc_hook=_encodable)


def decoded(content: bytes | memoryview, kind: type[T]) -> T:
    """A value of a type; raises ValueError, TypeError or a MsgspecError where it isn't one."""
    return msgspec.msgpack.decode(content, type=kind, dec_hook=_decoded)


def _encodable(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind in _KINDS:
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return dict(value)
    if callable(value):
        return _LATER
    raise TypeError(f"{type(value)} can't be kept")


def _decoded(kind: Any, value: Any) -> Any:
    if get_origin(kind) is not np.ndarray:
        if value == _LATER:
            return later
        raise ValueError(f"{kind} can't be kept")
    element, shape, content = value
    found = np.dtype(element)
    declared = get_args(get_args(kind)[1])[0]
    is_declared = isinstance(declared, type) and np.issubdtype(found, declared)
    if found.kind not in _KINDS or not (is_declared or declared is Any):
        raise ValueError(f"an array of {found} for one of {declared}")
    # A copy, since some add to what they worked out.
    return np.frombuffer(content, found).reshape(shape).copy()


def _renamed(value: T, old: str, new: str) -> T:
    """A value in which views, by their field `run`, and addresses are those of a run of another
    name."""
    was, now = (address.render(View(name)) for name in (old, new))
    begin, fresh = was.removesuffix("?"), now.removesuffix("?")
    beginnings = f"{begin}:", f"{begin}?"

    def renamed(each: Any) -> Any:
        if isinstance(each, str):
            if each == was:
                return now
            return fresh + each[len(begin) :] if each.startswith(beginnings) else each
        if isinstance(each, tuple):
            return tuple(map(renamed, each))
        if not isinstance(each, Struct):
            return each
        own = {name: getattr(each, name) for name in each.__struct_fields__}
        given = {name: renamed(field) for name, field in own.items()}
        if own.get("run") == old:
            given["run"] = new
        is_same = all(given[name] is field for name, field in own.items())
        return each if is_same else replace(each, **given)

    return cast("T", renamed(value))


class Derived:
    """What was derived from a run as it was opened, kept in its store or cached run.

    Values are keyed by what they are, the checksums of the run's files, its options and the version
    of the program and its plugins.
    """

    def __init__(
        self,
        folders: Mapping[Path, bool],
        whose: Run,
        state: Callable[[], str],
        is_as_started: Callable[[], bool],
    ) -> None:
        """Look for it in folders, which are private or not, and keep it in the first of them.

        `state` tells what it depends on, once something is needed, and `is_as_started` whether the
        program's files are still those that this process imported.
        """
        self._folders = folders
        self._whose = whose
        self._name = whose.name
        self._state_of = state
        self._is_as_started = is_as_started
        self._state = ""
        self._lock = Lock()
        self._writers: list[Thread] = []

    def is_of(self, run: Run) -> bool:
        """Whether a run is the one that was opened: not one with other times, say."""
        return all(
            getattr(run, name) is getattr(self._whose, name)
            for name in Run.__struct_fields__
            if name not in ("others", "derived")
        )

    def recall(self, key: tuple[object, ...], kind: type[T]) -> T | None:
        of: type[tuple[str, T]] = tuple[str, kind]  # type: ignore[valid-type]
        recalled = (self._at(key, folder).recall(of) for folder in self._folders)
        found = next((each for each in recalled if each is not None), None)
        debug.note(f"{key[0]}: {'kept' if found is not None else 'worked out'}")
        if found is None:
            return None
        named, value = found
        return value if named == self._name else _renamed(value, named, self._name)

    def keep(self, key: tuple[object, ...], value: Callable[[], object]) -> None:
        """Keep a value, in a thread, if there is memory for one: the answer doesn't wait for it.
        The process does, at its end.

        What can't be kept is worked out again.
        """

        def write() -> None:
            with self._lock:
                try:
                    place, worked_out = self._at(key, next(iter(self._folders))), value()
                    # The files of the program or of a plugin were replaced: by which was it?
                    if not self._is_as_started() or self._state_of() != self._state:
                        debug.note(f"{key[0]} is not kept: Chopper's files have changed")
                        return
                    place.keep((self._name, worked_out))
                    _forget(place.file.parent)
                except (*_UNREADABLE, OverflowError, MemoryError, ChopperError) as error:
                    debug.note(f"{key[0]} is not kept: {error}")

        if not memory.may_start_thread():
            write()
            return
        writer = Thread(target=write)
        writer.start()
        self._writers = [*(each for each in self._writers if each.is_alive()), writer]

    def wait(self) -> None:
        """Wait until what was derived is written."""
        for each in self._writers:
            each.join()

    def remove_halves(self) -> None:
        """Remove what processes that have ended were writing."""
        for folder in self._folders:
            atomic.remove_abandoned(folder)

    def _at(self, key: tuple[object, ...], folder: Path) -> Kept:
        self._state = self._state or self._state_of()
        is_private = self._folders[folder]
        # A store answers under any name; texts of a cached run name its files.
        own = self._name if is_private else ""
        text = repr((own, *_renamed(key, self._name, "")))
        name = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:24]
        return Kept(folder / f"{key[0]}-{name}", f"{self._state}\n{text}", is_private)


def _forget(folder: Path) -> None:
    """Remove what was written the longest ago, where there is more than a run may have."""
    with suppress(OSError), os.scandir(folder) as entries:
        files = sorted(((each.stat().st_mtime, each.stat().st_size, each.path)
                        for each in entries if each.name[0] != "."), reverse=True)  # fmt: skip
        size = 0
        for number, (_, own, path) in enumerate(files):
            size += own
            if number >= _MOST_FILES or (number and size > _MOST_BYTES):
                os.unlink(path)
