"""Titles of findings: one line of who, what and how much."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from chopper_core.findings.rule import FindingsContext
from chopper_core.model.phrases import by_number, percent
from chopper_core.util.escape import clean

MAX_TITLE: Final = 72
"""Characters of a title, at most: it fits into a line of 80 cells with its mark."""
MAX_NAME: Final = 32
"""Characters of a name of the trace within a title, at most."""
_MOSTLY: Final = 2 / 3
"""A smaller part isn't most of it in a reader's eyes."""
_MAX_LISTED: Final = 3
"""Numbers of a list within a title, at most."""


def one_line(core: str, *more: str) -> str:
    """A title: its core, with a capital, and of what follows as much as fits."""
    return of_name(core[:1].upper() + core[1:], *more)


def of_name(core: str, *more: str) -> str:
    """A title that begins with a name of the trace, which stays as it is."""
    text = core
    for part in more:
        text += part if len(text) + len(part) <= MAX_TITLE else ""
    return shortened(text, MAX_TITLE)


def shortened(text: str, most: int = MAX_NAME) -> str:
    """A text of at most so many characters, cut in the middle, without control characters."""
    text = clean(text)
    if len(text) <= most:
        return text
    tail = (most - 1) // 3
    return f"{text[: most - 1 - tail]}…{text[-tail:] if tail else ''}"


def largest_part(name: str, part: float, whole: float) -> str:
    """The end of a title: what most of it is, or what the largest part is and how much."""
    if part >= _MOSTLY * whole:
        return f", mostly {name}"
    return f", {percent(part / whole)} of it {name}"


def up_to_clock(mhz: float) -> str:
    """What the cost and the saving of a low clock are measured against, in a sentence."""
    return f"cost and saving are those up to {mhz:,.0f} MHz"


def gpus_in_short(context: FindingsContext, gpus: Sequence[int]) -> str:
    """GPUs by at most three numbers, else by what they are all of, else how many they are."""
    if len(gpus) == len(context.gpus) > 1:
        return "all GPUs"
    text = context.gpus_text(gpus)
    return text if "GPUs of" in text else in_short("GPU", gpus)


def in_short(word: str, numbers: Sequence[int]) -> str:
    """Things by at most three numbers or ranges: `layers 3 and 10 to 12`, else `7 layers`."""
    text = by_number(word, numbers)
    is_short = text.count(",") + text.count(" and ") < _MAX_LISTED
    return text if is_short else f"{len(numbers)} {word}s"
