"""Values that are computed once and shared by all threads: by any key, or of known keys."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from threading import Lock
from typing import Any, Final, TypeVar

from msgspec import Struct, field

from chopper_core.util.progress import stop_unwanted

Key = TypeVar("Key", bound=Hashable)
T = TypeVar("T")
_MOST: Final = 256


class _MemoEntry(Struct, eq=False):
    """One value, or a place for it."""

    value: Any = None
    is_done: bool = False
    lock: Lock = field(default_factory=Lock)
    """Held while the value is computed: other threads that need it wait."""


class Memo:
    """Values by key; the first item of a key names its owner."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._lock = Lock()
        self._entries: OrderedDict[tuple[Hashable, ...], _MemoEntry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def has(self, key: tuple[Hashable, ...]) -> bool:
        entry = self._entries.get(key)
        return entry is not None and entry.is_done

    def __call__(self, key: tuple[Hashable, ...], make: Callable[[], T], keep: int = 0) -> T:
        """The value of a key, computed on first use; an error of `make` is not cached. Raises
        Cancelled in a thread whose work isn't wanted any more.

        The most recently used values stay, and `keep` of the same owner; 0: any number.
        """
        with self._lock:
            is_known = key in self._entries
            entry = self._entries.setdefault(key, _MemoEntry())
            self._entries.move_to_end(key)
            if not is_known:
                dropped = [*self._entries][: -self._most]
                if keep:
                    dropped += [each for each in self._entries if each[0] == key[0]][:-keep]
                for each in dropped:
                    self._entries.pop(each, None)
        with entry.lock:
            if not entry.is_done:
                stop_unwanted()
                entry.value = make()
                entry.is_done = True
        value: T = entry.value
        return value


class LazyMap(Mapping[Key, T]):
    """The values of known keys, each made when it is first asked for; the latest ones are kept."""

    def __init__(self, keys: Iterable[Key], make: Callable[[Key], T]) -> None:
        self._keys = dict.fromkeys(keys)
        self._make = make
        self._memo = Memo()

    def __getitem__(self, key: Key) -> T:
        if key not in self._keys:
            raise KeyError(key)
        return self._memo((key,), lambda: self._make(key))

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[Key]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)
