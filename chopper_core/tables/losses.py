"""Gaps of a source: values that it doesn't give, and parts that couldn't be used."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from msgspec import Struct, field

from chopper_core.util.errors import DataError
from chopper_core.util.patterns import late

ABSENT: Final = -1
"""Stands for an integer that the file doesn't give."""

_SAYS_LOST: Final = late(
    r"(?i)\b(?:lost|los[ei]ng|dropp|drops?\b|discard|missing|miss(?:ed|es)\b|overflow|incomplete"
    r"|truncat|terminating|exceed|out of (?:memory|space|buffer)|not all .{0,40}(?:collect|record)"
    r"|might (?:have been|be) lost|unable to (?:collect|record|flush))"
)


class Losses(Struct):
    """The parts of a source that couldn't be used, counted in events unless the name says bytes."""

    truncated: bool = False
    repaired_pieces: int = 0
    """Pieces of the file with invalid JSON that were decoded after repair."""
    lost_bytes: int = 0
    """Bytes that no repair could decode."""
    unreadable_events: int = 0
    bad_times: int = 0
    """Events without a usable time or with a negative duration."""
    bad_host_times: int = 0
    """Those of them that are of the host."""
    notes: list[str] = field(default_factory=list)
    """One sentence per loss."""
    said: list[str] = field(default_factory=list)
    """What the profiler itself says that it lost."""
    jumps: list[str] = field(default_factory=list)
    """One sentence for each time at which the clock of its stamps was set."""
    newer: str = ""
    """The version of the file's schema, where it is newer than the reader knows."""

    def heard(self, profiler: str, text: str) -> None:
        """Note what a profiler says of its recording: what it lost is in doubt."""
        self.notes.append(f"{profiler} says: {text}")
        if _SAYS_LOST.search(text):
            self.said.append(text)

    def note(self, count: int, one: str, what: str) -> None:
        """Add a sentence that so many of something have been lost, unless it is none."""
        if count:
            self.notes.append(f"{number_of(count, one)} {what}.")


def number_of(count: int, one: str) -> str:
    """`1 row`, `1,200 rows`, `2 dispatches`."""
    return f"{count:,} {one}{('es' if one.endswith('ch') else 's') if count != 1 else ''}"


class Repeats:
    """Counts the rows of blocks in which all is of one time, and refuses a file with very many.

    A small file may unpack to such rows without number, and they say no more than one does.
    """

    MOST: Final = 1 << 16
    _PER_TIME: Final = 1 << 10

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows = 0
        """Of blocks in which all is of one time."""

    def add(self, rows: int, different: int) -> None:
        """Add a block of rows with so many different times; raises DataError."""
        if rows >= self._PER_TIME * different:
            self.rows += rows
        if self.rows > self.MOST:
            raise DataError(
                f"{self._path} repeats the same time in more than {self.MOST:,} rows, as no "
                "profiler or sampler writes."
            )


def newer_than(version: object, newest: int) -> str:
    """A schema's version where its first number is beyond the newest known one, else ''."""
    first = str(version).partition(".")[0]
    return str(version) if first.isdecimal() and int(first) > newest else ""


def merged_losses(one: Losses, other: Losses) -> Losses:
    return Losses(
        truncated=one.truncated or other.truncated,
        repaired_pieces=one.repaired_pieces + other.repaired_pieces,
        lost_bytes=one.lost_bytes + other.lost_bytes,
        unreadable_events=one.unreadable_events + other.unreadable_events,
        bad_times=one.bad_times + other.bad_times,
        bad_host_times=one.bad_host_times + other.bad_host_times,
        notes=list(dict.fromkeys((*one.notes, *other.notes))),
        said=list(dict.fromkeys((*one.said, *other.said))),
        jumps=list(dict.fromkeys((*one.jumps, *other.jumps))),
        newer=one.newer or other.newer,
    )
