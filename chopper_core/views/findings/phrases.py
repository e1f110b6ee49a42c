"""Numbers as the sentences say them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def time(ns: float) -> str:
    """A time in ms, or in µs where that says more: `14.1 ms`, `318 µs`."""
    size = abs(ns)
    if size >= 1e8:
        return f"{ns / 1e6:,.0f} ms"
    if size >= 1e6:
        return f"{ns / 1e6:.1f} ms"
    return f"{ns / 1e3:.0f} µs" if size >= 1e4 else f"{ns / 1e3:.1f} µs"


def percent(share: float) -> str:
    """A share from 0 to 1: `6.2 %`."""
    return f"{100 * share:.1f} %"


def count(number: int, word: str) -> str:
    """A number of things: `1 layer`, `3 layers`."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


_SMALL = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def others(number: int) -> str:
    """The other GPUs of a run: `the other seven`, `the other GPU`."""
    if number == 1:
        return "the other GPU"
    return f"the other {_SMALL[number] if number < len(_SMALL) else number}"


def ranges(numbers: Sequence[int]) -> str:
    """Numbers with neighbours brought together: `3`, `10 to 12`, `1, 4 and 7 to 9`."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1].append(number)
        else:
            ranges.append([number])
    words: list[str] = []
    for each in ranges:
        words += map(str, each) if len(each) < 3 else [f"{each[0]} to {each[-1]}"]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def gpus_named(numbers: Sequence[int]) -> str:
    """Some GPUs: `GPU 3`, `GPUs 0 to 7`."""
    return f"GPU{'s' if len(numbers) > 1 else ''} {ranges(numbers)}"


def listed(names: Iterable[str], most: int = 4) -> str:
    """Some names as a list in a sentence."""
    every = list(names)
    shown = ", ".join(every[:most])
    return shown if len(every) <= most else f"{shown} and {len(every) - most} more"
