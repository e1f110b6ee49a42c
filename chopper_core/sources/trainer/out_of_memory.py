"""Allocations that failed, as PyTorch's and XLA's messages in a job's output say it."""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from chopper_core.tables.losses import ABSENT
from chopper_core.util.patterns import late

_MARKER: Final = "ut of memory"
_SIZE: Final = r"([\d.]{1,20}) ?([KMGT]?i?B|bytes)\b"
_ASKED: Final = late(rf"(?:[Tt]ried to allocate|trying to allocate|memory allocating) {_SIZE}")
_CAPACITY: Final = late(rf"total capac\w*ty of {_SIZE}|{_SIZE} total capacity")
_FREE: Final = late(rf"of which {_SIZE} is free|{_SIZE} free")
_ALLOCATED: Final = late(rf"{_SIZE} (?:is allocated by PyTorch|already allocated)")
_UNALLOCATED: Final = late(rf"{_SIZE} is reserved by PyTorch but unallocated")
_RESERVED: Final = late(rf"{_SIZE} (?:reserved in total|cached)")
_DEVICE: Final = late(r"\bGPU (\d{1,6})\b")
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_MOST_BYTES: Final = 1 << 60
MOST_FAILED: Final = 1 << 14
"""Messages of a file that are kept."""


class AllocationMessage(Struct, frozen=True):
    """What a message says; sizes in bytes, ABSENT where it lacks them."""

    device: int
    asked_bytes: int
    capacity_bytes: int
    free_bytes: int
    allocated_bytes: int
    unallocated_bytes: int


class FailedLine(Struct, frozen=True):
    """A failed allocation at its place in a log."""

    rank: int
    rows: int
    """The rows of the log before it."""
    failed: AllocationMessage


def may_have_failed(block: str) -> bool:
    """Whether a text may have such a message."""
    return _MARKER in block


def failed_in(line: str) -> tuple[str, AllocationMessage] | None:
    """What stands before a message in a line, and what it says; None without one."""
    begin = line.find(_MARKER)
    asked = _ASKED.search(line) if begin >= 0 else None
    if asked is None:
        return None
    sizes = [
        _bytes(pattern.search(line))
        for pattern in (_CAPACITY, _FREE, _ALLOCATED, _UNALLOCATED, _RESERVED)
    ]
    capacity, free, allocated, unallocated, reserved = sizes
    if unallocated == ABSENT and ABSENT not in (reserved, allocated):
        unallocated = max(reserved - allocated, 0)
    device = _DEVICE.search(line, begin)
    number = int(device[1]) if device else ABSENT
    known = number, _bytes(asked), capacity, free, allocated, unallocated
    return line[:begin], AllocationMessage(*known)


def _bytes(match: re.Match[str] | None) -> int:
    """The size in the two groups of a match that have a text: a number and its unit."""
    if match is None:
        return ABSENT
    number, unit = (each for each in match.groups() if each is not None)
    try:
        size = float(number) * _UNITS["" if unit in ("B", "bytes") else unit[0].lower()]
    except (ValueError, KeyError):
        return ABSENT
    return round(size) if 0 <= size < _MOST_BYTES else ABSENT
