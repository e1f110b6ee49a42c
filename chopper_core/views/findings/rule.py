"""What a rule module of the findings offers: thresholds, and decorated functions that find things.

A module of rules defines its `Threshold`s and one or more functions decorated with `@rule`; their
docstrings say what they look for. It is registered by its name in `findings.MODULES`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from inspect import cleandoc
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from chopper_core.model.view import View

if TYPE_CHECKING:
    from chopper_core.views.findings.context import FindingsContext


class Threshold(Struct, frozen=True):
    """A limit that a rule goes by."""

    name: str
    value: float
    unit: str
    why: str

    @property
    def share(self) -> float:
        """The value of a threshold in %, as a share from 0 to 1."""
        return self.value / 100


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
    """One sentence with its numbers, what it costs, how sure it is, and where to look."""

    sentence: str
    evidence: View
    """The view that shows it."""
    confidence: Confidence
    saving_ns: float | None = None
    """By how much an iteration would be shorter without it, at most; None where none can say."""
    total_ns: float | None = None
    """The GPU time in it, summed over the GPUs and the counted iterations."""


Find = Callable[["FindingsContext"], list[Finding]]


class FindingRule(Struct, frozen=True):
    """A way to find something: a pure function over the context."""

    name: str
    looks_for: str
    saving: str
    """How the potential saving is estimated."""
    needs: str
    """What a run must have for the rule to find anything; empty: a trace."""
    thresholds: tuple[Threshold, ...]
    find: Find


def rule(
    name: str, *, saving: str, needs: str = "", thresholds: tuple[Threshold, ...] = ()
) -> Callable[[Find], FindingRule]:
    """Make a rule of a function; the first paragraph of its docstring says what it looks for."""

    def decorate(find: Find) -> FindingRule:
        paragraph = cleandoc(find.__doc__ or "").partition("\n\n")[0]
        return FindingRule(name, " ".join(paragraph.split()), saving, needs, thresholds, find)

    return decorate
