"""Values worked out once per run and shared by all threads that ask for them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, TypeVar

from msgspec import Struct, field

T = TypeVar("T")


class _Entry(Struct, eq=False):
    """One value, once it is there."""

    value: Any = None
    is_done: bool = False
    lock: Lock = field(default_factory=Lock)
    """Held while the value is worked out: another thread that asks meanwhile waits for it."""


class Memo:
    """Values by key; a key is a tuple whose first item names what keeps the value here."""

    def __init__(self) -> None:
        """Empty."""
        self._lock = Lock()
        self._entries: OrderedDict[tuple[Hashable, ...], _Entry] = OrderedDict()

    def __len__(self) -> int:
        """How many values are kept or being made."""
        return len(self._entries)

    def __call__(
        self,
        key: tuple[Hashable, ...],
        make: Callable[[], T],
        keep: int = 0,
        *,
        keep_large: int = 0,
        is_large: Callable[[T], bool] | None = None,
    ) -> T:
        """The value of a key, made if nobody asked before; whatever `make` raises is not kept.

        Of the keys with the same first item the `keep` that were asked for last stay; 0: all.
        With `is_large`, at most `keep_large` of them are large or still being made.
        """
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
            alike = [each for each in self._entries if each[0] == key[0]] if keep else []
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
        value: T = entry.value
        return value
