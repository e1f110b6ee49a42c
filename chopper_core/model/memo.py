"""Values that are computed once and shared by all threads: by any key, or of known keys; and what
keeps them for later processes."""

from __future__ import annotations

import gc
import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from threading import Lock
from time import monotonic
from types import FunctionType, ModuleType, NoneType
from typing import Any, Final, Protocol, TypeVar

import numpy as np
from msgspec import Struct, field

from chopper_core.util.progress import stop_unwanted

Key = TypeVar("Key", bound=Hashable)
T = TypeVar("T")
_MOST: Final = 4096
"""Values."""
_MOST_BYTES: Final = 1 << 30
_KEPT: Final = 0.9
"""Of either, once there are more: to measure all takes long."""
_QUICK_S: Final = 0.002
_QUICK_BYTES: Final = 1 << 18
"""What is made within that time is taken to hold so much, until all is measured."""
_LONG: Final = 256
"""Of a longer list, tuple or dict, the last value tells what all are."""
_SHARED: Final = (type, ModuleType, str, int, float, NoneType)


class _MemoEntry(Struct, eq=False):
    """One value, or a place for it."""

    value: Any = None
    is_done: bool = False
    lock: Lock = field(default_factory=Lock)
    """Held while the value is computed: other threads that need it wait."""


class Memo:
    """Values by key; those used last stay, as many as take so much memory at most."""

    def __init__(
        self, excluded: Iterable[object] = (), most_bytes: int = _MOST_BYTES, most: int = _MOST
    ) -> None:
        """What is `excluded`, such as the table that values are about, is no memory of theirs."""
        self._excluded = frozenset((id(self), *map(id, excluded)))
        self._most_bytes, self._most = most_bytes, most
        self._bytes, self._quick_bytes = 0, _QUICK_BYTES
        self._counted: Set[int] = self._excluded
        """What is excluded, and the large arrays of values that were measured: a value that shares
        them with those adds nothing."""
        self._lock = Lock()
        self._entries: OrderedDict[tuple[Hashable, ...], _MemoEntry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def has(self, key: tuple[Hashable, ...]) -> bool:
        entry = self._entries.get(key)
        return entry is not None and entry.is_done

    def values(self) -> Sequence[Any]:
        """Those that are there."""
        with self._lock:
            return [entry.value for entry in self._entries.values() if entry.is_done]

    def __call__(self, key: tuple[Hashable, ...], make: Callable[[], T]) -> T:
        """The value of a key, computed on first use; an error of `make` is not cached. Raises
        Cancelled in a thread whose work isn't wanted any more."""
        with self._lock:
            entry = self._entries.setdefault(key, _MemoEntry())
            self._entries.move_to_end(key)
        with entry.lock:
            if not entry.is_done:
                stop_unwanted()
                begun_s = monotonic()
                entry.value = make()
                entry.is_done = True
                is_quick = monotonic() - begun_s < _QUICK_S
                self._bytes += self._quick_bytes if is_quick else self._measure(entry.value)
                if self._bytes > self._most_bytes or len(self._entries) > self._most:
                    self.trim(int(_KEPT * self._most_bytes), least=1)
        value: T = entry.value
        return value

    def _measure(self, value: object) -> int:
        held = dict[int, int]()
        size = _bytes_held(value, self._counted, held)
        self._counted = self._counted | _large(held)
        return size

    def clear(self) -> None:
        """Drop all; to measure what it is takes long for thousands of ranks."""
        with self._lock:
            self._entries.clear()
            self._bytes, self._quick_bytes, self._counted = 0, _QUICK_BYTES, self._excluded

    def trim(self, most_bytes: int, least: int = 0) -> None:
        """Drop what was used the longest ago, but for the `least` latest values: values share
        arrays, and take some only later."""
        with self._lock:
            seen, counted, self._bytes = set(self._excluded), set(self._excluded), 0
            most = int(_KEPT * self._most)
            for place, (key, entry) in enumerate(reversed([*self._entries.items()])):
                # What only dropped values hold is none that a kept one shares.
                held = dict[int, int]()
                size = _bytes_held(entry.value, seen, held) if entry.is_done else 0
                is_much = place >= most or (size and self._bytes + size > most_bytes)
                if place >= least and is_much:
                    del self._entries[key]
                else:
                    self._bytes += size
                    seen |= held.keys()
                    counted |= _large(held)
            self._counted = counted
            room = self._most_bytes - self._bytes
            # Measured again once there are twice as many, at the latest.
            self._quick_bytes = min(max(room, 0) // max(len(self._entries), 1), _QUICK_BYTES)


def _bytes_held(value: object, seen: Set[int], held: dict[int, int]) -> int:
    """The memory of the arrays that a value holds, by variables of functions too, and that were
    not seen before; what is mapped from a file takes none. The bytes of each object that it holds
    are added to `held`."""
    left = [value]
    while left:
        each, size = left.pop(), 0
        if id(each) in seen or id(each) in held or isinstance(each, _SHARED):
            continue
        if isinstance(each, np.ndarray):
            size = each.nbytes if each.base is None else 0
            left.append(each.base)
        elif isinstance(each, list | tuple) and len(each) > _LONG and isinstance(each[-1], _SHARED):
            size = sys.getsizeof(each[-1]) * len(each)
        elif isinstance(each, dict) and len(each) > _LONG and _is_plain(last := _last_of(each)):
            size = sum(map(sys.getsizeof, last)) * len(each)
        elif isinstance(each, FunctionType):
            left += each.__closure__ or ()
        else:
            left += gc.get_referents(each)
        held[id(each)] = size
    return sum(held.values())


def _large(held: Mapping[int, int]) -> set[int]:
    return {each for each, size in held.items() if size > _QUICK_BYTES}


def _last_of(values: dict[object, object]) -> tuple[object, object]:
    return next(reversed(values.items()))


def _is_plain(values: tuple[object, object]) -> bool:
    return all(isinstance(each, _SHARED) for each in values)


WORTH_KEEPING_S: Final = 0.02
"""What takes less is worked out again as fast as it is read and verified."""


class DerivedValues(Protocol):
    """Values that were worked out of a run's files, for later processes (`store.kept`)."""

    def is_of(self, run: Any) -> bool:
        """Whether a run is the one that was opened, with nothing of it replaced."""

    def recall(self, key: tuple[Hashable, ...], kind: type[T]) -> T | None:
        """A value that was kept; None without."""

    def keep(self, key: tuple[Hashable, ...], value: Callable[[], object]) -> None:
        """Keep a value, in the background."""

    def wait(self) -> None:
        """Wait until all is written."""

    def remove_halves(self) -> None:
        """Remove what processes that have ended were writing."""


class LazyMap(Mapping[Key, T]):
    """The values of known keys, each made when it is first asked for; the latest ones are kept."""

    def __init__(self, keys: Iterable[Key], make: Callable[[Key], T]) -> None:
        self._keys = dict.fromkeys(keys)
        self._make = make
        self._memo = Memo(most_bytes=_MOST_BYTES >> 2, most=max(len(self._keys), _MOST))

    def __getitem__(self, key: Key) -> T:
        if key not in self._keys:
            raise KeyError(key)
        return self._memo((key,), lambda: self._make(key))

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def made(self) -> Iterable[T]:
        """The values that are there."""
        return self._memo.values()

    def __iter__(self) -> Iterator[Key]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)
