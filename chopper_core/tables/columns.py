"""Columns that grow in place while rows are read, and values converted to columns.

Rows are held once, without a list of chunks to be concatenated.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike

from chopper_core.tables.losses import ABSENT
from chopper_core.util.arrays import AnyArray, Float64, Int64, Mask
from chopper_core.util.patterns import late

Columns = dict[str, AnyArray]

MAX_NAME: Final = 1 << 14
"""Characters of the longest name; those of templates in templates have some 10,000."""
_AT: Final = " object at 0x"
_ADDRESS: Final = late(_AT + "[0-9a-fA-F]+")
_INT64_LIMIT: Final = 2**63
MAX_BYTES: Final = 1 << 42
"""No GPU has more memory, so none moves more at once."""
MAX_FLOPS: Final = 1 << 60
"""No GPU computes more in ten minutes, so no kernel does."""
MAX_DURATION_NS: Final = 1 << 53
"""Nothing on a GPU takes 104 days."""
MAX_RANKS: Final = 1 << 20
"""No job has more GPUs; a larger number is damaged, or the date in a name."""
FLOAT_EXACT_BELOW_US: Final = float(2**43)
"""A float holds microseconds with three decimals to the nanosecond below this value."""
_LATEST_US: Final = 2**52
"""142 years; leaves room to add the base time within int64."""
LATEST_NS: Final = 1000 * _LATEST_US
_WRAP: Final = 1 << 32
_LARGEST_STEP_SHARE: Final = 8
"""A fall is a wrap only if the step is below this part of the counter's range, else a reset."""

_EXACT_TOTAL: Final = 2.0**62
"""Sums below it fit into int64."""
_ROWS_AT_ONCE: Final = 1 << 14
"""Of growing columns, of which each of few rows would cost as much."""


class GrowingColumn:
    """A growing array, in memory that the system enlarges without a copy where it can.

    With `least`, a narrower type of integers, it is of that type as long as this holds all of them.
    """

    def __init__(self, kind: DTypeLike, least: DTypeLike | None = None) -> None:
        self._kind = np.dtype(kind)
        self._stored = np.dtype(kind if least is None else least)
        self._bytes = bytearray()

    def __len__(self) -> int:
        return len(self._bytes) // self._stored.itemsize

    def append(self, values: AnyArray) -> None:
        if self._stored != self._kind and not _fits(self._stored, values):
            whole, self._stored = self.whole(), self._kind
            self._bytes = bytearray(whole.astype(self._kind).data)
        more = np.ascontiguousarray(values, self._stored).data
        try:
            self._bytes += more
        except BufferError:  # A view keeps what it shows.
            self._bytes = self._bytes + more

    def whole(self) -> AnyArray:
        """Return a view of all numbers, which shows no later ones."""
        return np.frombuffer(self._bytes, self._stored)


class GrowingColumns:
    """Growing columns of equal length; rows are added to them once there are many."""

    def __init__(
        self, types: Mapping[str, DTypeLike], least: Mapping[str, DTypeLike] | None = None
    ) -> None:
        self._columns = {
            name: GrowingColumn(kind, (least or {}).get(name)) for name, kind in types.items()
        }
        self._waiting: dict[str, list[AnyArray]] = {name: [] for name in types}
        self._rows = self._waiting_rows = 0

    def __len__(self) -> int:
        return self._rows

    def add(self, columns: Columns) -> None:
        """Add rows, whose arrays the caller no longer changes."""
        for name, waiting in self._waiting.items():
            waiting.append(columns[name])
        rows = len(waiting[-1])
        self._rows += rows
        self._waiting_rows += rows
        if self._waiting_rows >= _ROWS_AT_ONCE:
            self._append_waiting()

    def append(self, name: str, values: AnyArray) -> None:
        """Add rows to one column, as the caller does to the others."""
        self._columns[name].append(values)
        self._rows = max(self._rows, len(self._columns[name]))

    def column(self, name: str) -> AnyArray:
        """Return the rows of one column; later ones aren't in it."""
        self._append_waiting()
        return self._columns[name].whole()

    def joined(self) -> Columns:
        self._append_waiting()
        return {name: self._columns.pop(name).whole() for name in list(self._columns)}

    def _append_waiting(self) -> None:
        for name, waiting in self._waiting.items():
            if waiting:
                self._columns[name].append(
                    np.concatenate(waiting) if len(waiting) > 1 else waiting[0]
                )
                waiting.clear()
        self._waiting_rows = 0


class Interner(dict[Any, int]):
    """Numbers distinct keys from 0, in the order of their first use."""

    def __missing__(self, key: Any) -> int:
        code = self[key] = len(self)
        return code


def codes_of(ids: Sequence[Any], code_of: Callable[[Any], int]) -> Int64:
    """The code of each id, found once for each, in the order of their first use."""
    codes = {one: code_of(one) for one in dict.fromkeys(ids)}
    return np.fromiter(map(codes.__getitem__, ids), np.int64, len(ids))


class NameInterner(Interner):
    """Numbers distinct names; a longer one than compilers write is cut, with a digest of it all.

    The address of an object, which differs from process to process, is no part of a name.
    """

    def __missing__(self, key: Any) -> int:
        if isinstance(key, str):
            if len(key) > MAX_NAME:
                return self[cut_name(key)]
            if _AT in key and (name := _ADDRESS.sub("", key)) != key:
                return self[name]
        return super().__missing__(key)


def cut_name(name: str) -> str:
    """The name, or as much of a longer one than compilers write, with a digest of it all."""
    if len(name) <= MAX_NAME:
        return name
    from hashlib import blake2b

    digest = blake2b(name.encode("utf-8", "replace"), digest_size=6).hexdigest()
    return f"{name[: MAX_NAME - 64]}… ({len(name):,} characters, {digest})"


def packed_values(values: Sequence[Any]) -> Int64:
    """Integers as a column, twice as fast as numpy does; raises struct.error for others."""
    return np.frombuffer(struct.pack(f"={len(values)}q", *values), np.int64)


def int_column(values: Sequence[Any]) -> Int64:
    """Return the values as int64; ABSENT for missing values and for anything but integers."""
    with suppress(struct.error):
        return packed_values(values)
    with suppress(struct.error):
        return packed_values([ABSENT if value is None else value for value in values])
    found = [integer(value) for value in values]
    return np.array([ABSENT if value is None else value for value in found], np.int64)


def float_column(values: Sequence[Any]) -> Float64:
    """Return the values as float64; NaN for missing values and for anything but finite numbers."""
    try:
        found = np.frombuffer(struct.pack(f"={len(values)}d", *values), np.float64)
    except (struct.error, OverflowError):
        found = np.fromiter(map(_float, values), np.float64, len(values))
    return np.where(np.isfinite(found), found, np.nan)


def narrowed(values: AnyArray, kind: type[np.signedinteger[Any]] = np.int32) -> AnyArray:
    """The values as integers of fewer bytes, where these hold them."""
    return values.astype(kind) if _fits(np.dtype(kind), values) else values


def _fits(kind: np.dtype[Any], values: AnyArray) -> bool:
    """Whether a type of integers holds all values."""
    limits = np.iinfo(kind)
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    return bool(limits.min <= low and high <= limits.max)


def bounded(values: Int64, limit: int) -> Int64:
    """Return the values with ABSENT for those that are negative or not below the limit."""
    return np.where((values >= 0) & (values < limit), values, ABSENT)


def are_timed(start_ns: Int64, end_ns: Int64) -> Mask:
    took_ns = end_ns - start_ns
    is_timed = (start_ns >= 0) & (start_ns < LATEST_NS)
    return is_timed & (took_ns >= 0) & (took_ns < MAX_DURATION_NS)


def integer(value: Any) -> int | None:
    """Return the value as an integer, also from text like "7" or "0x0"; None if it isn't one."""
    try:
        number = int(value, 0) if isinstance(value, str) else int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if -_INT64_LIMIT <= number < _INT64_LIMIT else None


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def nanoseconds(values_us: Sequence[Any]) -> tuple[Int64, Mask]:
    """Return the values as nanoseconds, and which of them are valid times.

    Values are int, float, Decimal or text; more than three decimals are rounded to the nearest
    nanosecond. Invalid ones are 0.
    """
    count = len(values_us)
    try:
        as_float = np.frombuffer(struct.pack(f"={count}d", *values_us), np.float64)
    except (struct.error, OverflowError):
        return _one_by_one(values_us)
    if np.abs(as_float).max(initial=0) < FLOAT_EXACT_BELOW_US:
        whole = np.floor(as_float)
        part_ns = np.rint((as_float - whole) * 1000)
        return whole.astype(np.int64) * 1000 + part_ns.astype(np.int64), np.ones(count, np.bool_)
    usable = np.abs(as_float) < _LATEST_US
    types = set(map(type, values_us))
    if types == {int}:
        return np.where(usable, as_float, 0.0).astype(np.int64) * 1000, usable
    if types <= {int, Decimal} and usable.all():
        whole_us = np.fromiter(map(int, values_us), np.int64, count)
        fraction_us = np.fromiter((value % 1 for value in values_us), np.float64, count)
        return whole_us * 1000 + np.rint(fraction_us * 1000).astype(np.int64), usable
    return _one_by_one(values_us)


def _one_by_one(values_us: Sequence[Any]) -> tuple[Int64, Mask]:
    exact = [_exact_nanoseconds(value) for value in values_us]
    usable = np.fromiter((value is not None for value in exact), np.bool_, len(exact))
    return np.fromiter((value or 0 for value in exact), np.int64, len(exact)), usable


def _exact_nanoseconds(value_us: Any) -> int | None:
    """Return whole nanoseconds; None for an invalid time."""
    if isinstance(value_us, int):
        return value_us * 1000 if abs(value_us) < _LATEST_US else None
    try:
        exact = Decimal(value_us)
    except (InvalidOperation, TypeError, ValueError):
        return None
    return round(exact * 1000) if exact.is_finite() and abs(exact) < _LATEST_US else None


def array_steps(readings: AnyArray, bits: int = 0) -> tuple[AnyArray, Mask]:
    """Return the differences between neighbours along the first axis, 0 over a reset, and where
    resets are.

    Integer counters of 32 bits may wrap between two readings. One of a known number of `bits` wraps
    wherever it falls, however far. Readings are not negative: int64, or float64.
    """
    amounts = np.diff(readings, axis=0)
    falls = amounts < 0
    if not falls.any():
        return amounts, falls
    if bits:
        return np.where(falls, amounts + (1 << bits), amounts), np.zeros_like(falls)
    is_whole = np.floor(readings) == readings
    wrapped = amounts + _WRAP
    is_wrap = falls & is_whole[:-1] & is_whole[1:] & (readings[:-1] < _WRAP)
    is_wrap &= wrapped < _WRAP // _LARGEST_STEP_SHARE
    is_reset = falls & ~is_wrap
    return np.where(is_reset, 0, np.where(is_wrap, wrapped, amounts)), is_reset


def array_unwrapped(readings: AnyArray, bits: int = 0) -> tuple[Float64, int]:
    """Return the amounts since the first reading, and the number of resets.

    The amount over a reset is unknown, so nothing is added.
    """
    amounts, is_reset = array_steps(readings, bits)
    if float(amounts.sum(dtype=np.float64)) >= _EXACT_TOTAL:
        amounts = amounts.astype(np.float64)
    totals = np.append(np.zeros(1, amounts.dtype), np.cumsum(amounts))
    return totals.astype(np.float64), int(is_reset.sum())
