"""A cache of values that are computed once and shared by all threads, bounded by its bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, Final, TypeVar

from msgspec import Struct, field

from chopper_core.util.memory import bytes_of

T = TypeVar("T")
_SMALL_BYTES: Final = 1 << 14
"""Values up to this size stay: some are marks, and dropping them frees nothing."""
_MOST_UNCOUNTED: Final = 16
"""Counting the bytes of a value takes milliseconds: it waits for a rest, or for so many values."""


class _MemoEntry(Struct, eq=False):
    """One value, or a place for it."""

    value: Any = None
    is_done: bool = False
    bytes: int = 0
    """0 until they are counted."""
    lock: Lock = field(default_factory=Lock)
    """Held while the value is computed: other threads that need it wait."""


class Memo:
    """Values by key; the first item of a key names its owner."""

    def __init__(self, most_bytes: int = 0, outside: tuple[type, ...] = ()) -> None:
        """Empty, for so many bytes (0: any), to which instances of `outside` don't count.

        Beyond it `make_room` drops values.
        """
        self._most_bytes, self._outside = most_bytes, outside
        self._lock = Lock()
        self._entries: OrderedDict[tuple[Hashable, ...], _MemoEntry] = OrderedDict()
        self._uncounted = 0

    def __len__(self) -> int:
        """Number of values cached or being computed."""
        return len(self._entries)

    def has(self, key: tuple[Hashable, ...]) -> bool:
        """Whether the value of a key is computed already."""
        with self._lock:
            entry = self._entries.get(key)
        return entry is not None and entry.is_done

    def __call__(
        self,
        key: tuple[Hashable, ...],
        make: Callable[[], T],
        keep: int = 0,
        *,
        keep_large: int = 0,
        is_large: Callable[[T], bool] | None = None,
    ) -> T:
        """The value of a key, computed on first use; an error of `make` is not cached.

        Of the keys with the same first item the `keep` most recently used stay; 0: all.
        With `is_large`, at most `keep_large` of them are large or still being made.
        """
        with self._lock:
            is_known = key in self._entries
            entry = self._entries.setdefault(key, _MemoEntry())
            self._entries.move_to_end(key)
            # Only another key can make them too many.
            bounded = keep and not is_known
            alike = [each for each in self._entries if each[0] == key[0]] if bounded else []
            dropped = alike[:-keep]
            if is_large is not None:
                known = [(each, self._entries[each]) for each in alike]
                large = [each for each, e in known if not e.is_done or is_large(e.value)]
                dropped += large[:-keep_large]
            for each in dropped:
                self._entries.pop(each, None)
        with entry.lock:
            if not entry.is_done:
                entry.value = make()
                entry.is_done = True
                self._uncounted += 1
        if self._uncounted > _MOST_UNCOUNTED:
            self.make_room()
        value: T = entry.value
        return value

    def make_room(self) -> None:
        """Drop values beyond the bound, but the last used: first the largest, if they take more
        than half of it and would push out all others, then those unused for the longest time."""
        self._uncounted = 0
        if not self._most_bytes:
            return
        with self._lock:
            entries = list(self._entries.items())
        for _, each in entries:
            if each.is_done and not each.bytes:
                each.bytes = bytes_of(each.value, self._outside)
        half = self._most_bytes // 2
        others = sorted(entries[:-1], key=lambda of: -of[1].bytes if of[1].bytes > half else 0)
        held = sum(each.bytes for _, each in others)
        with self._lock:
            for key, each in others:
                if held > self._most_bytes and each.bytes > _SMALL_BYTES:
                    self._entries.pop(key, None)
                    held -= each.bytes
