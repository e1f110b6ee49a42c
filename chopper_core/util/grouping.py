"""Grouping of integer codes: order, runs of equal values, distinct values, quantiles per group.

Integers are sorted by radix, many times faster than by comparison. numpy's `unique`, `median` and
`quantile` are avoided: each imports masked arrays at its first call, which takes as long as
opening a store.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from itertools import pairwise
from typing import Any, Final, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray

from chopper_core.util.arrays import AnyArray, Codes, Float64, Index, Int64, Mask, Numbers

Array = TypeVar("Array", bound=NDArray[Any])
Member = TypeVar("Member")
Key = TypeVar("Key", bound=Hashable)
_EXACT: Final = 2.0**53
"""Integers below this are exact as doubles."""
_DIGIT: Final = 16
_MOST_BITS: Final = 48
"""More digits than this are no faster than a comparison of the whole."""
_FALLS: Final = 5
_FEW: Final = 16
"""Places of each of fewer codes are looked for in turn."""
_WIDEST: Final = 1 << 62
"""Codes within a wider range are numbered before they are packed."""
_MIN_RADIX: Final = 1 << 10
"""Fewer codes than this are compared."""
_MIN_DENSE: Final = 1 << 16
"""Fewer values than this are sorted."""
_MAX_SORTED_ONE_BY_ONE: Final = 4_096
"""Up to so many groups are sorted one by one, which is fastest where they are large."""
_MIN_HASHED: Final = 1 << 16
_HASH_BITS: Final = 18
_MIXER: Final = np.uint64(0x9E3779B97F4A7C15)
_FEW_WANTED: Final = 6
_SPARSE: Final = 4
"""So many places per code are looked up in an array of them all."""


def stable_order(codes: Codes) -> Index:
    """The same order as `argsort(codes, kind="stable")`.

    numpy sorts 16-bit integers by radix, so wider ones go digit by digit, from the lowest on.
    """
    if len(codes) < _MIN_RADIX:
        return np.argsort(codes, kind="stable")
    falls = codes[1:] < codes[:-1]
    if not falls.any():
        return np.arange(len(codes))
    low, high = int(codes.min()), int(codes.max())
    if high - low < _FEW:
        return np.concatenate([np.flatnonzero(codes == code) for code in range(low, high + 1)])
    bits = (high - low).bit_length()
    if codes.dtype.itemsize * 8 <= _DIGIT or bits > _MOST_BITS:
        return np.argsort(codes, kind="stable")
    if bits > 2 * _DIGIT and _FALLS * int(falls.sum()) < len(codes):
        # Merging long sorted runs is faster than three passes of a radix sort.
        return np.argsort(codes, kind="stable")
    left = codes.astype(np.int64) - low if bits > _DIGIT else codes - codes.dtype.type(low)
    order = np.argsort((left & 0xFFFF).astype(np.uint16), kind="stable")
    for shift in range(_DIGIT, bits, _DIGIT):
        digit = ((left >> shift) & 0xFFFF).astype(np.uint16)
        order = order[np.argsort(digit[order], kind="stable")]
    return order


def run_mask(*columns: AnyArray) -> Mask:
    """Whether each row begins a run: a row in which a column differs from the row before."""
    begins = np.zeros(len(columns[0]), np.bool_)
    begins[:1] = True
    for column in columns:
        begins[1:] |= column[1:] != column[:-1]
    return begins


def sorted_run_mask(*columns: AnyArray) -> Mask | None:
    """As `run_mask`; None where the rows are not in the order of the columns."""
    begins = np.ones(len(columns[0]), np.bool_)
    rest = begins[1:]
    rest[:] = False
    for column in columns:
        if ((column[1:] < column[:-1]) & ~rest).any():
            return None
        rest |= column[1:] != column[:-1]
    return begins


def run_starts(*columns: AnyArray) -> Index:
    return np.flatnonzero(run_mask(*columns))


def runs_of(codes: Codes) -> list[tuple[int, slice]]:
    bounds = [*run_starts(codes).tolist(), len(codes)]
    return [(int(codes[begin]), slice(begin, end)) for begin, end in pairwise(bounds)]


def places_by(codes: Codes) -> dict[int, Index]:
    """The places of each of the different codes, in rising order of both."""
    order = stable_order(codes)
    return {code: order[own] for code, own in runs_of(codes[order])}


def run_sizes(first: Index, count: int) -> Int64:
    """The number of values in each run, by where the runs begin among `count` values."""
    sizes = np.append(first[1:], count) - first
    return sizes.astype(np.int64, copy=False)


def ranked(codes: Codes) -> tuple[Index, Index]:
    """The different codes, in order, and the place of each code among them."""
    if not len(codes):
        return np.zeros(0, np.intp), np.zeros(0, np.intp)
    low = int(codes.min())
    width = int(codes.max()) - low + 1
    if width <= _SPARSE * len(codes) + _MIN_RADIX:
        left = codes.astype(np.intp)
        left -= low
        there = np.bincount(left, minlength=width) > 0
        return np.flatnonzero(there) + low, (np.cumsum(there) - 1)[left]
    if (few := _ranked_few(codes)) is not None:
        return few
    order = stable_order(codes)
    ordered = codes[order].astype(np.intp)
    is_new = run_mask(ordered)
    place = np.empty(len(codes), np.intp)
    place[order] = np.cumsum(is_new) - 1
    return ordered[is_new], place


def packed(columns: Sequence[Codes]) -> Int64:
    """A code for each row of columns of codes, in their order."""
    code = np.zeros(len(columns[0]), np.int64)
    for each in columns:
        low = int(each.min(initial=0))
        width = int(each.max(initial=0)) - low + 1
        if width > _WIDEST:
            each, low, width = ranked(each)[1], 0, len(each)
        if int(code.max(initial=0)) + 1 > np.iinfo(np.int64).max // width:
            code = ranked(code)[1].astype(np.int64)
        code *= width
        code += each
        code -= low
    return code


def numbered_rows(columns: Sequence[Codes]) -> Index:
    """A number for each row, from 0 on, equal for rows that are equal in all columns."""
    return ranked(packed(columns))[1]


def combined(columns: Sequence[Codes]) -> tuple[Int64, Index]:
    """The distinct rows of columns of codes, in order, and the position of each row's."""
    if len(columns) == 1:
        codes, owner = ranked(columns[0])
        return codes[:, None].astype(np.int64), owner
    codes, owner = ranked(packed(columns))
    first = np.empty(len(codes), np.intp)
    first[owner] = np.arange(len(owner))
    return np.stack([each[first] for each in columns], axis=1).astype(np.int64), owner


def _ranked_few(codes: Codes) -> tuple[Index, Index] | None:
    """As `ranked` of sparse codes, if they are few: by a hash that separates them all."""
    if len(codes) < _MIN_HASHED:
        return None
    hashed = (codes.astype(np.uint64) * _MIXER) >> np.uint64(64 - _HASH_BITS)
    place = hashed.astype(np.intp)
    values = np.zeros(1 << _HASH_BITS, codes.dtype)
    values[place] = codes
    there = np.zeros(len(values), np.bool_)
    there[place] = True
    if (values[place] != codes).any():
        return None
    used = np.flatnonzero(there)
    used = used[np.argsort(values[used])]
    rank = np.zeros(len(values), np.intp)
    rank[used] = np.arange(len(used))
    return values[used].astype(np.intp), rank[place]


def nth_of(*columns: Codes) -> Int64:
    """For each row the number of rows before it that are equal in all columns."""
    order = np.lexsort(columns)
    first = run_starts(*(column[order] for column in columns))
    found = np.empty(len(order), np.int64)
    found[order] = np.arange(len(order)) - np.repeat(first, run_sizes(first, len(order)))
    return found


def counted(codes: Codes) -> tuple[Index, Index]:
    """The different codes, in order, and how often each occurs."""
    found, place = ranked(codes)
    return found, np.bincount(place, minlength=len(found))


def counts_of(owner: Codes, count: int = 0) -> Int64:
    return np.bincount(owner, minlength=count).astype(np.int64, copy=False)


@overload
def sums_of(values: Float64, owner: Codes, count: int = 0) -> Float64: ...
@overload
def sums_of(values: Numbers | Mask, owner: Codes, count: int = 0) -> Int64: ...
def sums_of(values: AnyArray, owner: Codes, count: int = 0) -> AnyArray:
    """The sum of the values of each owner, in any order; exact for integers."""
    sums = np.bincount(owner, weights=values, minlength=count).astype(np.float64, copy=False)
    if values.dtype.kind == "f":
        return sums
    if np.abs(sums).max(initial=0.0) < _EXACT:
        return sums.astype(np.int64)
    exact = np.zeros(len(sums), np.int64)
    np.add.at(exact, owner, values)
    return exact


def means_of(values: AnyArray, owner: Codes, count: int = 0) -> Float64:
    """The mean of the values of each owner; NaN for one that has none."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(sums_of(values, owner, count) / counts_of(owner, count), np.float64)


def ratios(part: AnyArray, whole: AnyArray) -> Float64:
    """The part over the whole; NaN where the whole isn't above 0."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(whole > 0, part / whole, np.nan), np.float64)


def maxima_of(values: AnyArray, owner: Codes, count: int, least: int = 0) -> Int64:
    return _extremes(np.maximum, values, owner, np.full(count, least, np.int64))


def minima_of(values: AnyArray, owner: Codes, count: int, most: int) -> Int64:
    return _extremes(np.minimum, values, owner, np.full(count, most, np.int64))


def _extremes(more: np.ufunc, values: AnyArray, owner: Codes, found: Int64) -> Int64:
    """Neighbours of one owner come together first: one by one, of two types, takes 50 times as
    long."""
    if len(owner):
        first = run_starts(owner)
        more.at(found, owner[first], more.reduceat(values, first).astype(np.int64, copy=False))
    return found


def common_of(values: Array, owner: Codes, count: int, missing: float) -> Array:
    """The value that all rows of an owner have; `missing` where they differ, and without any."""
    low, high = np.full((2, count), missing, values.dtype)
    low[owner] = high[owner] = values
    np.minimum.at(low, owner, values)
    np.maximum.at(high, owner, values)
    return cast("Array", np.where(low == high, low, values.dtype.type(missing)))


def run_sums(values: Array, first: Index) -> Array:
    return cast("Array", np.add.reduceat(values, first)) if len(first) else values


def run_maxima(values: Array, first: Index) -> Array:
    return cast("Array", np.maximum.reduceat(values, first)) if len(first) else values


def run_minima(values: Array, first: Index) -> Array:
    return cast("Array", np.minimum.reduceat(values, first)) if len(first) else values


def first_equal(values: Codes, wanted: Codes) -> Index:
    """The position of the first of the values that equals each wanted one, -1 where none does."""
    if not len(values):
        return np.full(len(wanted), -1, np.intp)
    order = stable_order(values)
    nearest = np.minimum(np.searchsorted(values[order], wanted), len(values) - 1)
    return np.where(values[order[nearest]] == wanted, order[nearest], -1)


def last_equal(values: Codes, wanted: Codes) -> Index:
    """The position of the last of the values that equals each wanted one, -1 where none does."""
    found = first_equal(values[::-1], wanted)
    return np.where(found < 0, -1, len(values) - 1 - found)


def hashes(count: int) -> Int64:
    """As many numbers of 63 bits, whose sums differ where the numbers summed do (splitmix64).

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
    """
    mixed = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return ((mixed ^ mixed >> np.uint64(31)) >> np.uint64(1)).astype(np.int64)


def distinct(values: AnyArray) -> AnyArray:
    """The different values, none of them NaN, in order."""
    if len(values) > _MIN_DENSE and values.dtype.kind in "iu":
        values = values[run_mask(values)]
        low = int(values.min())
        width = int(values.max()) - low + 1
        if width > len(values):
            return ranked(values)[0].astype(values.dtype)
        there = np.zeros(width, np.bool_)
        there[values.astype(np.intp) - low if low else values] = True
        return (np.flatnonzero(there) + low).astype(values.dtype)
    ordered = np.sort(values)
    return ordered[run_mask(ordered)]


def isin(values: AnyArray, wanted: Sequence[int] | AnyArray) -> Mask:
    """As `np.isin`, which takes long to begin."""
    if len(wanted) > _FEW_WANTED:
        # Codes of levels come in long runs, which are looked up once each.
        first = run_starts(values)
        return np.repeat(np.isin(values[first], wanted), run_sizes(first, len(values)))
    found = np.zeros(len(values), np.bool_)
    for each in map(int, wanted):
        found |= values == each
    return found


def commonest(values: Codes) -> int:
    """The most frequent of some numbers, the lowest of several."""
    found, place = ranked(values)
    return int(found[np.bincount(place).argmax()])


def distinct_without(values: AnyArray, others: Sequence[int] | AnyArray) -> AnyArray:
    """The different values that aren't among others, in order."""
    found = distinct(values)
    return found[~isin(found, others)]


def grouped_by(members: Iterable[Member], of: Callable[[Member], Key]) -> dict[Key, list[Member]]:
    """The members by their key, in the order in which the keys come first."""
    found: dict[Key, list[Member]] = {}
    for each in members:
        found.setdefault(of(each), []).append(each)
    return found


def united(groups: Iterable[Collection[Member]]) -> list[set[Member]]:
    """Groups that share members as one, in the order in which they became what they are."""
    found: list[set[Member]] = []
    for group in groups:
        touching = [each for each in found if not each.isdisjoint(group)]
        found = [each for each in found if each.isdisjoint(group)]
        found.append(set(group).union(*touching))
    return found


def evenly(values: Sequence[Member], count: int) -> tuple[Member, ...]:
    """As many of some values, at equal distances; all of them where there are no more."""
    if count >= len(values):
        return tuple(values)
    places = np.linspace(0, len(values) - 1, count + 2)[1:-1].round().astype(np.intp)
    return tuple(values[place] for place in places.tolist())


def median_of(values: Numbers) -> float:
    """As `numpy.median` of all values; NaN without any, or with one that is NaN."""
    size = values.size
    if not size:
        return np.nan
    ends = ((size - 1) // 2, size // 2)
    ordered = np.partition(values.ravel(), (*ends, size - 1))
    low, high, last = (float(ordered[place]) for place in (*ends, -1))
    # NaN is last in the order.
    return last if np.isnan(last) else (low + high) / 2


def medians_along(values: Numbers, axis: int, *, keepdims: bool = False) -> Float64:
    """As `numpy.median` along an axis that isn't empty."""
    size = values.shape[axis]
    ends = sorted({(size - 1) // 2, size // 2})
    # NaN is last in the order: the result has it where any value is.
    ordered = np.partition(values, [*ends, size - 1], axis=axis)
    middle, last = (
        ordered.take(places, axis).mean(axis=axis, keepdims=keepdims, dtype=np.float64)
        for places in (ends, [-1])
    )
    return np.where(np.isnan(last), np.nan, middle)


def quantile_of(values: Numbers, shares: Sequence[float]) -> Float64:
    """As `numpy.quantile` of all values, which are known; there is one at least."""
    return quantile_within(values.flatten(), shares)


def quantile_within(values: Numbers, shares: Sequence[float]) -> Float64:
    """As `quantile_of`; the values are brought into another order, not copied."""
    places = np.asarray(shares) * (len(values) - 1)
    low, high = np.floor(places).astype(np.intp), np.ceil(places).astype(np.intp)
    # Of ten million values it takes a fifth of the time of a sort.
    values.partition(distinct(np.concatenate([low, high])))
    least, most = (values[at].astype(np.float64) for at in (low, high))
    found: Float64 = least + (most - least) * (places - low)
    return found


def quantiles_of(
    values: Numbers,
    owner: Codes,
    count: int,
    shares: tuple[float, ...],
) -> Float64:
    """Quantiles of the values of each owner, as owners x shares; NaN for one that has none."""
    sizes = np.bincount(owner, minlength=count)
    if not len(values):
        return np.full((len(sizes), len(shares)), np.nan)
    first = np.cumsum(sizes) - sizes
    numbers = np.asarray(values, np.float64)
    if (sorted_numbers := _sorted_by_owner(values, owner, sizes)) is not None:
        ordered = sorted_numbers
    elif count > _MAX_SORTED_ONE_BY_ONE:
        order = np.argsort(numbers)
        ordered = numbers[order[stable_order(owner[order])]]
    else:
        in_order = (owner[1:] >= owner[:-1]).all()
        ordered = numbers.copy() if in_order else numbers[stable_order(owner)]
        for begin, size in zip(first.tolist(), sizes.tolist(), strict=True):
            ordered[begin : begin + size].sort()
    places = first[:, None] + np.asarray(shares) * (np.maximum(sizes, 1) - 1)[:, None]
    low = np.floor(places).astype(np.intp)
    weight, last = places - low, len(ordered) - 1
    high = np.ceil(places).astype(np.intp).clip(max=last)
    found: Float64 = ordered[low.clip(max=last)] * (1 - weight) + ordered[high] * weight
    return np.where(sizes[:, None] > 0, found, np.nan)


def _sorted_by_owner(values: Numbers, owner: Codes, sizes: Int64) -> Float64 | None:
    """The values of one owner after the other, each owner's in rising order; None unless they are
    integers that fit into one number with their owner, which sorts many times faster."""
    if not len(values) or not np.can_cast(values.dtype, np.int64):
        return None
    low = int(values.min())
    width = int(values.max()) - low + 1
    if len(sizes) * width > _WIDEST:
        return None
    both = owner.astype(np.int64) * width
    both += np.asarray(values, np.int64) - low
    both.sort()
    both -= np.repeat(np.arange(len(sizes)) * width - low, sizes)
    return both.astype(np.float64)


def quantiles_along(numbers: Float64, shares: tuple[float, ...]) -> Float64:
    """Quantiles of the known values along the first axis; NaN without any."""
    ordered = np.sort(numbers, axis=0)
    known = np.isfinite(ordered).sum(axis=0, keepdims=True)
    found = []
    for share in shares:
        place = share * np.maximum(known - 1, 0)
        low, high = np.floor(place).astype(np.intp), np.ceil(place).astype(np.intp)
        below, above = (np.take_along_axis(ordered, at, 0) for at in (low, high))
        found.append((below + (above - below) * (place - low))[0])
    return np.stack(found)


def others_median(values: Numbers) -> Float64:
    """For each value the median of the others along the first axis, NaNs aside."""
    lines = np.asarray(values, np.float64).reshape(len(values), -1).T
    return _medians_of_others(np.ascontiguousarray(lines)).T.reshape(values.shape)


def others_median_of(values: Float64, owner: Index) -> Float64:
    """For each value the median of its owner's others, NaNs aside."""
    order = stable_order(owner)
    first = run_starts(owner[order])
    sizes = run_sizes(first, len(order))
    found = np.empty(len(values))
    for size in distinct(sizes).tolist():
        # Owners with as many values lie next to each other as the lines of a table.
        of_size = first[sizes == size]
        at = (
            order.reshape(-1, size)
            if len(of_size) == len(first)
            else order[of_size[:, None] + np.arange(size)]
        )
        found[at] = _medians_of_others(values[at])
    return found


def _medians_of_others(lines: Float64) -> Float64:
    """For each value the median of the others in its line, NaNs aside."""
    known = np.isfinite(lines)
    filled = lines if known.all() else np.where(known, lines, np.inf)
    ordered = np.sort(filled, axis=1)
    count = known.sum(axis=1)
    every = np.arange(len(lines))

    def nth(place: Int64) -> Float64:
        """The value at a place among the others: behind the value itself it is the next one."""
        low, high = (
            ordered[every, np.clip(at, 0, lines.shape[1] - 1)][:, None] for at in (place, place + 1)
        )
        return np.where(filled <= low, high, low)

    middle = (nth((count - 2) // 2) + nth((count - 1) // 2)) / 2
    middle[count < 2] = np.nan
    if filled is not lines:
        of_all = np.append(ordered, np.full((len(lines), 1), np.nan), axis=1)
        places = np.where(count > 0, [(count - 1) // 2, count // 2], lines.shape[1])
        middle = np.where(known, middle, of_all[every, places].mean(axis=0)[:, None])
    return middle


def medians_without(values: Float64, owner: Index, part: Codes) -> Float64:
    """For each value the median of its owner's values in other parts; NaN without any."""
    order = np.lexsort((values, owner))
    first = run_starts(owner[order])
    sizes = run_sizes(first, len(order))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order)) - np.repeat(first, sizes)
    cells, cell = combined([owner, part])
    whose = ranked(owner)[1]
    of_cell = np.empty(len(cells), np.intp)
    of_cell[cell] = whose
    others = sizes[of_cell] - counts_of(cell, len(cells))
    # Its own values come between those of the others: how many before one of these?
    in_cell = np.lexsort((rank, cell))
    before = np.empty(len(order), np.int64)
    before[in_cell] = rank[in_cell] - nth_of(cell[in_cell])
    ordered = values[order]

    def nth(place: Int64) -> Float64:
        skipped = counts_of(cell[before <= place[cell]], len(cells))
        return ordered.take(first[of_cell] + place + skipped, mode="clip")

    middle = (nth(np.maximum(others - 1, 0) // 2) + nth(others // 2)) / 2
    return np.where(others > 0, middle, np.nan)[cell]


def beyond_others(values: Numbers) -> Float64:
    return np.asarray(values, np.float64) - others_median(values)


def distinct_codes(codes: Codes) -> tuple[Int64, Int64]:
    """The first row of each distinct code, in ascending order, and the place among these of each
    row's."""
    found, place = ranked(codes)
    first = np.empty(len(found), np.int64)
    # Of several rows the last one that is written stays.
    first[place[::-1]] = np.arange(len(codes))[::-1]
    order = stable_order(first)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return first[order], rank[place]
