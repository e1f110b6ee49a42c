"""Gaps of a source: values that it doesn't give, and parts that couldn't be used."""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field

ABSENT: Final = -1
"""Stands for an integer that the file doesn't give."""


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
    notes: list[str] = field(default_factory=list)
    """One sentence per loss."""


def merged_losses(one: Losses, other: Losses) -> Losses:
    """Return the losses of both."""
    return Losses(
        truncated=one.truncated or other.truncated,
        repaired_pieces=one.repaired_pieces + other.repaired_pieces,
        lost_bytes=one.lost_bytes + other.lost_bytes,
        unreadable_events=one.unreadable_events + other.unreadable_events,
        bad_times=one.bad_times + other.bad_times,
        notes=list(dict.fromkeys((*one.notes, *other.notes))),
    )
