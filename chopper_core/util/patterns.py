"""Patterns that are compiled when they are first used: at import they take a
tenth of the time of `chopper show`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast


class _LatePattern:
    """Stands for a compiled pattern, whose methods it takes over one by one."""

    def __init__(self, text: str, flags: int) -> None:
        self._given = text, flags

    def __getattr__(self, name: str) -> object:
        """A method or a fact of the pattern; from then on an attribute like any other."""
        found: object = getattr(re.compile(*self._given), name)
        setattr(self, name, found)
        return found


def late(text: str, flags: int = 0) -> re.Pattern[str]:
    """A regular expression, compiled at its first use; raises `re.error` only then."""
    return cast("re.Pattern[str]", _LatePattern(text, flags))


def matched_group(pattern: re.Pattern[str], text: str, group: int | str = 1) -> str:
    """A group of the first match of a pattern in a text; empty without one."""
    match = pattern.search(text)
    return (match[group] or "") if match else ""


_ENTRY = late(r"\n    (?! )")


def listed_entries(text: str) -> Iterator[tuple[str, str]]:
    """The entries of a declaration: lines, each with the words that are set in below it."""
    for entry in _ENTRY.split(text.rstrip())[1:]:
        head, _, words = entry.partition("\n")
        yield head, " ".join(words.split())


_DIGITS: Final = late(r"(\d+)")


def shape_of_name(name: str) -> str:
    """A name without its numbers: `llama_1_mbs4` and `llama_2_mbs8` have the same."""
    return _DIGITS.sub("#", name)


def natural_key(name: Path | str) -> list[tuple[int, str]]:
    """Return a sort key that orders numbers within names by value."""
    parts = _DIGITS.split(str(name))
    # Of two numbers the one with more digits is larger; some have more than int() takes.
    digits = [part.lstrip("0") for part in parts[1::2]]
    parts[1::2] = digits
    return [(len(part) if index % 2 else 0, part) for index, part in enumerate(parts)]
