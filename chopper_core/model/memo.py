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


class _MemoEntry(Struct, eq=False):
    """One value, or a place for it."""

    value: Any = None
    is_done: bool = False
    bytes: int = 0
    lock: Lock = field(default_factory=Lock)
    """Held while the value is computed: other threads that need it wait."""


class Memo:
    """Values by key; the first item of a key names its owner."""

    def __init__(self, most_bytes: int = 0, outside: tuple[type, ...] = ()) -> None:
        """Empty, for so many bytes (0: any), to which instances of `outside` don't count.

        Beyond it the values that were not used for the longest time are dropped.
        """
        self._most_bytes, self._outside = most_bytes, outside
        self._lock = Lock()
        self._entries: OrderedDict[tuple[Hashable, ...], _MemoEntry] = OrderedDict()

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
                if self._most_bytes:
                    self._make_room_for(key[0], entry)
        value: T = entry.value
        return value

    def _make_room_for(self, owner: Hashable, entry: _MemoEntry) -> None:
        with self._lock:
            # A result computes parts of itself when they are first drawn: the last one has by now.
            alike = [each for key, each in self._entries.items() if key[0] == owner]
        for each in (entry, *alike[-2:]):
            each.bytes = bytes_of(each.value, self._outside) if each.is_done else 0
        with self._lock:
            held = sum(each.bytes for each in self._entries.values())
            for key, each in list(self._entries.items()):
                if held <= self._most_bytes:
                    break
                if each is not entry and each.bytes > _SMALL_BYTES:
                    del self._entries[key]
                    held -= each.bytes
