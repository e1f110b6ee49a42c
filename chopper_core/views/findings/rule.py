"""A rule of the findings: its thresholds, and a decorated function that finds things.

A rule module defines `Threshold`s and functions decorated with `@rule`, whose docstrings say what
they look for. It is registered by its name in `findings.MODULES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from inspect import cleandoc
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from chopper_core.model.view import View

if TYPE_CHECKING:
    from chopper_core.views.findings.context import FindingsContext


class Threshold(Struct, frozen=True):
    """A limit above or below which something becomes a finding."""

    name: str
    value: float
    unit: str
    why: str

    @property
    def share(self) -> float:
        """The value of a threshold in %, as a share from 0 to 1."""
        return self.value / 100


class Confidence(IntEnum):
    """How sure a finding is; `MEANING` explains each."""

    LOW = 1
    MEDIUM = 2
    HIGH = 3

    @property
    def text(self) -> str:
        """The confidence as a word."""
        return self.name.lower()


MEANING: Final = {
    Confidence.HIGH: "measured in the traces, in several iterations or on several GPUs",
    Confidence.MEDIUM: "measured but seen once, or seen several times but estimated by comparison",
    Confidence.LOW: "seen once, and estimated by comparison",
}


def confidence(*, measured: bool, repeated: bool) -> Confidence:
    """The confidence of a time that was measured or estimated, once or repeatedly."""
    return Confidence(1 + measured + repeated)


class Finding(Struct, frozen=True):
    """A sentence with its numbers, the potential saving, and the view that shows the evidence."""

    sentence: str
    evidence: View
    confidence: Confidence
    saving_ns: float | None = None
    """The most by which an iteration would be shorter without it; None if it can't be estimated."""
    total_ns: float | None = None
    """GPU time affected, summed over GPUs and analysed iterations."""


Find = Callable[["FindingsContext"], Iterable[Finding]]


class FindingRule(Struct, frozen=True):
    """A pure function from the context to findings, with its description."""

    name: str
    looks_for: str
    saving: str
    """How the potential saving is estimated."""
    needs: str
    """The data it needs beyond a trace."""
    thresholds: tuple[Threshold, ...]
    find: Find


def rule(
    name: str, *, saving: str, needs: str = "", thresholds: tuple[Threshold, ...] = ()
) -> Callable[[Find], FindingRule]:
    """Turn a function into a rule; the first paragraph of its docstring says what it looks for."""

    def decorate(find: Find) -> FindingRule:
        paragraph = cleandoc(find.__doc__ or "").partition("\n\n")[0]
        return FindingRule(name, " ".join(paragraph.split()), saving, needs, thresholds, find)

    return decorate
