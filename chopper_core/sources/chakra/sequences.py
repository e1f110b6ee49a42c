"""The sequences of collectives of the members of a process group, and where they first differ.

A simulator starts a collective once every member has come to it: one that a member lacks, or does
in another order, stops all of them for good.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from chopper_core.sources.chakra.schema import CommType

Step = tuple[str, ...]
"""A collective: its type, and its size where that is known and must be the same on all members."""

SAME_SIZE: Final = (CommType.ALL_REDUCE, CommType.ALL_GATHER, CommType.REDUCE_SCATTER)
"""Collectives that move as many bytes on every member."""
MESSAGE: Final = "message"
_MISSING: Final[Step] = ("missing",)


def step(kind: CommType, size: int | None) -> Step:
    """A collective for comparison with those of other members."""
    known = size is not None and kind in SAME_SIZE
    return (kind.name.lower(), f"{size:,} B") if known else (kind.name.lower(),)


def message(size: int | None) -> Step:
    """A send or receive for comparison with its other end."""
    return ("a message",) if size is None else ("a message", f"{size:,} B")


def first_difference(
    ranks: Sequence[int], sequences: Sequence[Sequence[Step]], what: str = "collective"
) -> str:
    """The first collective that isn't the same on all ranks, in a sentence; '' without any."""
    for place in range(max(map(len, sequences), default=0)):
        steps = [own[place] if place < len(own) else _MISSING for own in sequences]
        for at, other in enumerate(steps):
            first = next((k for k, one in enumerate(steps[:at]) if _differ(one, other)), None)
            if first is not None:
                return (
                    f"{what} {place + 1} is {' of '.join(steps[first])} on rank "
                    f"{ranks[first]} and {' of '.join(other)} on rank {ranks[at]}"
                )
    return ""


def _differ(one: Step, other: Step) -> bool:
    if _MISSING in (one, other):
        return one != other
    return any(a != b for a, b in zip(one, other, strict=False))
