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
    """By how much an iteration would be shorter without it; None if it can't be estimated."""
    low_ns: float | None = None
    """The least that it would be shorter; None: the part of the estimate that the rule states."""
    high_ns: float | None = None
    """The most that it would be shorter; likewise."""
    gpu: int | None = None
    """The one GPU that it is about."""
    total_ns: float | None = None
    """GPU time affected, summed over GPUs and analysed iterations."""


Find = Callable[["FindingsContext"], Iterable[Finding]]


class FindingRule(Struct, frozen=True):
    """A pure function from the context to findings, with its description."""

    name: str
    looks_for: str
    saving: str
    """How the potential saving is estimated."""
    holds: tuple[float, float]
    """The range of the saving, in parts of the estimate, which holds what was planted."""
    needs: str
    """The data it needs beyond a trace."""
    thresholds: tuple[Threshold, ...]
    explains: tuple[str, ...]
    """Rules whose findings about the same GPU a finding of this one replaces, as the cause of
    most of what they say."""
    find: Find
    of_durations: bool = False
    """Whether durations alone show it, also where times are reconstructed."""


def rule(
    name: str,
    *,
    saving: str,
    holds: tuple[float, float] = (0.5, 1.3),
    needs: str = "",
    thresholds: tuple[Threshold, ...] = (),
    explains: tuple[str, ...] = (),
    of_durations: bool = False,
) -> Callable[[Find], FindingRule]:
    """Turn a function into a rule; the first paragraph of its docstring says what it looks for."""

    def decorate(find: Find) -> FindingRule:
        paragraph = cleandoc(find.__doc__ or "").partition("\n\n")[0]
        looks_for = " ".join(paragraph.split())
        return FindingRule(
            name, looks_for, saving, holds, needs, thresholds, explains, find, of_durations
        )

    return decorate
