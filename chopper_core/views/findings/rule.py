"""A finding: one sentence with its numbers, what it costs, how sure it is, and where to look."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from msgspec import Struct

from chopper_core.model.view import View


class Confidence(IntEnum):
    """How sure a finding is; the meaning is in `MEANING`."""

    LOW = 1
    MEDIUM = 2
    HIGH = 3

    @property
    def text(self) -> str:
        """The confidence as a word."""
        return self.name.lower()


MEANING: Final = {
    Confidence.HIGH: "the time is read from the traces, and it is seen again in other iterations "
    "or on other GPUs",
    Confidence.MEDIUM: "one of both: the time is read but seen once, or it is seen again but its "
    "size follows from a comparison",
    Confidence.LOW: "neither: seen once, and its size follows from a comparison",
}
"""What each confidence means."""


def confidence(*, read: bool, repeated: bool) -> Confidence:
    """The confidence of a time that was read, or follows from a comparison, once or repeatedly."""
    return Confidence(1 + read + repeated)


class Finding(Struct, frozen=True):
    """What a rule found."""

    sentence: str
    evidence: View
    """The view that shows it."""
    confidence: Confidence
    stake_ns: float | None = None
    """By how much an iteration would be shorter without it, at most; None where none can say."""
    total_ns: float | None = None
    """The GPU time in it, summed over the GPUs and the counted iterations."""
