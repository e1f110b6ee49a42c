"""Fields of files that nothing is read from: a renamed one is seen among them.

Names of fields within objects are joined by dots: `dispatch_info.kernel_id`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, get_args, get_origin

import msgspec

from chopper_core.tables.json_stream import DECODE_ERRORS

MOST_NAMES: Final = 1_000
"""No tool writes more fields; a file can hold any number."""
MOST_LETTERS: Final = 80
"""Of a name."""


def not_used(names: Iterable[str], kind: str = "columns") -> list[str]:
    """A note on fields that nothing is read from; none without any."""
    listed = [*names]
    return [f"{kind} not used: {', '.join(listed)}."] if listed else []


def unread_fields(record: type[msgspec.Struct]) -> frozenset[str]:
    """The names of all fields of a record, and of those within it."""
    return frozenset(_fields_of(record))


def _fields_of(record: type[msgspec.Struct], before: str = "") -> Iterator[str]:
    for field in msgspec.structs.fields(record):
        name = before + field.encode_name
        kinds = [each for each in (field.type, *get_args(field.type)) if isinstance(each, type)]
        inner = [each for each in kinds if issubclass(get_origin(each) or each, msgspec.Struct)]
        if inner:
            yield from _fields_of(inner[0], f"{name}.")
        else:
            yield name


class UnreadNames:
    """The names of fields that nothing is read from, of the records that were looked at."""

    def __init__(self, read: Iterable[str]) -> None:
        self._read = frozenset(read)
        self._outer = {
            name[:at] for name in self._read for at, mark in enumerate(name) if mark == "."
        }
        self.names: dict[str, None] = {}

    def look_at(self, record: object, before: str = "") -> None:
        """Add the fields of a decoded record; of a list within it, those of its first element."""
        for key, value in record.items() if isinstance(record, Mapping) else ():
            name = f"{before}{key}"
            if name in self._outer:
                is_list = isinstance(value, Sequence) and not isinstance(value, str)
                self.look_at(next(iter(value), None) if is_list else value, f"{name}.")
            elif name not in self._read and len(self.names) < MOST_NAMES:
                self.names[name[:MOST_LETTERS]] = None

    def look_at_text(self, text: bytes | str) -> None:
        """Add the fields of a record in JSON, or of each of a list."""
        with suppress(*DECODE_ERRORS, ValueError):
            found: Any = msgspec.json.decode(text)
            for each in found if isinstance(found, list) else [found]:
                self.look_at(each)
