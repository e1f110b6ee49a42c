"""Numbers and names as the sentences of findings have them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from chopper_core.model.units import Unit, scaled_text, significant, time_text

time: Final = time_text
_LEAST_CHANGE: Final = 0.05
"""Of a change in %: less has no digit."""
_TWICE: Final = 2.0
_LARGE: Final = 1000
"""A mean number of things without decimals."""

_SMALL: Final = [
    "no",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
]


BETWEEN_FACTS: Final = " · "


def level_title(level: str) -> str:
    """A level as people say it: `GPU`, `step`, `layer`."""
    return {"gpu": "GPU", "iteration": "step"}.get(level, level)


def facts(*parts: str) -> str:
    """A line of figures, the one to read first: `739.9 ms · 41.2 % of peak`."""
    return BETWEEN_FACTS.join(filter(None, parts))


def differs(one: float, other: float, least: float = 0.01) -> bool:
    """Whether two figures differ enough for a sentence: 1 % of the larger."""
    return abs(one - other) > least * max(abs(one), abs(other))


def percent(share: float) -> str:
    """A share from 0 to 1: `6.2 %`."""
    return scaled_text(100 * share, Unit.PERCENT)


def change_text(change: float, base: float) -> str:
    """A change in % of what it is from, with its sign; one too small for a digit says so."""
    share = 100 * change / base
    return f"{share:+.1f} %" if abs(share) >= _LEAST_CHANGE else "below 0.1 %" if share else "0 %"


def longer_by(factor: float) -> str:
    """How much longer something takes: `6.2 % longer`, from twice on `9.1 times as long`."""
    if factor < _TWICE:
        return f"{percent(factor - 1)} longer"
    return f"{factor:.1f} times as long" if factor < 10 else f"{factor:,.0f} times as long"


def than_or_as(factor: float) -> str:
    """The word that follows `longer_by`, before what something is compared with."""
    return "than" if factor < _TWICE else "as"


def with_article(text: str) -> str:
    """A number with the article that it is read with: `a 6.2 %`, `an 8.4 %`, `an 11 %`."""
    is_vowel = text.startswith("8") or text.partition(" ")[0].partition(".")[0] in ("11", "18")
    return f"{'an' if is_vowel else 'a'} {text}"


def age_text(age_s: float) -> str:
    """An age in whole tens of seconds, minutes, hours or days: text that changes seldom."""
    if age_s < 120:
        return f"{max(age_s, 0.0) // 10 * 10:.0f} s"
    for size_s, name, most in ((60, "min", 120), (3600, "h", 48)):
        if age_s < most * size_s:
            return f"{age_s // size_s:.0f} {name}"
    return f"{age_s // 86_400:,.0f} days"


def of_one(words: str) -> str:
    """What counts several things as it counts one: `launch calls without …` → `launch call …`."""
    noun = next((word for word in words.split(" ") if word.endswith("s")), "")
    if noun in ("", "µs"):
        return words
    ends = {"ies": "y", "ches": "ch", "s": ""}
    plural, singular = next(each for each in ends.items() if noun.endswith(each[0]))
    one = words.replace(noun, noun.removesuffix(plural) + singular, 1)
    return one.replace("that start before their", "that starts before its")


def count(number: int, word: str) -> str:
    """A number of things: `1 layer`, `3 layers`, `2 classes`, `5 activities`."""
    if number != 1:
        word = (
            f"{word[:-1]}ies"
            if word.endswith("ity")
            else f"{word}{'e' if word[-1] == 's' else ''}s"
        )
    return f"{number:,} {word}"


def how_often(number: int) -> str:
    """How many times a thing happens: `once`, `twice`, `3 times`."""
    return ("once", "twice")[number - 1] if 1 <= number <= 2 else f"{number:,} times"


def small(number: int) -> str:
    """A number in words if it is small: `seven`, `12`."""
    return _SMALL[number] if number < len(_SMALL) else str(number)


def others(number: int) -> str:
    """The other GPUs of a run: `the other seven GPUs`, `the other GPU`."""
    return "the other GPU" if number == 1 else f"the other {small(number)} GPUs"


def amount(number: float) -> str:
    """A mean number of things: `99`, `64.5`, `33,040`."""
    return f"{number:,.0f}" if number >= _LARGE or number % 1 == 0 else significant(number)


_MOST_RANGES: Final = 16


def by_number(word: str, numbers: Sequence[int]) -> str:
    """Things by their numbers: `layer 3`, `layers 10 to 12`, `GPUs 1, 4 and 7 to 9`; of many the
    first, and how many more there are."""
    ranges = in_a_row(numbers)
    texts = [text for each in ranges[:_MOST_RANGES] for text in range_texts(each, " to ")]
    if more := sum(map(len, ranges[_MOST_RANGES:])):
        texts.append(f"{more:,} more")
    return f"{word}{'s' if len(numbers) > 1 else ''} {enumerated(texts)}"


def in_a_row(numbers: Iterable[int]) -> list[list[int]]:
    """Numbers by size, those that follow each other together."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return found


def range_texts(numbers: Sequence[int], to: str) -> list[str]:
    """Numbers that follow each other: `10 to 12`, but `4` and `5`."""
    return [*map(str, numbers)] if len(numbers) < 3 else [f"{numbers[0]}{to}{numbers[-1]}"]


def enumerated(texts: Sequence[str]) -> str:
    """All of some texts in a sentence: `a`, `a and b`, `a, b and c`; empty without any."""
    return " and ".join(filter(None, (", ".join(texts[:-1]), *texts[-1:])))


def listed(names: Iterable[str], limit: int = 4) -> str:
    """The first of some names, and how many more there are."""
    every = list(names)
    shown = ", ".join(every[:limit])
    return shown if len(every) <= limit else f"{shown} and {len(every) - limit} more"


def in_every(number: int) -> str:
    """That a thing is in all of some steps, as the end of a phrase; empty for one step."""
    return "" if number < 2 else ", in both steps" if number == 2 else f", in all {number} steps"


_MIN_PERIODIC: Final = 3
"""Recurrences from which on equal distances are a period."""
_MOST_NAMED: Final = 5
"""Of more steps a sentence names so many."""


def recurrence(when: Sequence[int], iterations: Sequence[int]) -> str:
    """When a thing happens that is seen in some of the steps, as the end of a phrase.

    `when` are places in `iterations`, in order. Empty where it is in all of them.
    """
    count, numbers = len(iterations), [iterations[place] for place in when]
    steps = set(np.diff(when).tolist())
    if len(when) >= count or not numbers:
        return ""
    if len(when) == 1:
        return f" in step {numbers[0]}"
    if steps == {1} and when[-1] == count - 1:
        return f" since step {numbers[0]}"
    if steps == {1} and when[0] == 0:
        return f" until step {numbers[-1]}"
    if len(when) >= _MIN_PERIODIC and len(steps) == 1 and steps != {1}:
        return f" every {steps.pop()} steps, from step {numbers[0]} on"
    if len(numbers) > _MOST_NAMED:
        named = ", ".join(map(str, numbers[:_MOST_NAMED]))
        more = len(numbers) - _MOST_NAMED
        return f" in {len(numbers)} of {count} steps: {named} and {more} more"
    return f" in steps {enumerated([*map(str, numbers)])}"
