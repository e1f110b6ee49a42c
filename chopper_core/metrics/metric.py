"""What a metric is: a name with its unit, a definition, and how it is worked out for nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct, field

from chopper_core.model.hardware import Hardware
from chopper_core.model.signals import Signal
from chopper_core.model.tree import Groups
from chopper_core.model.units import AnyUnit, Unit
from chopper_core.util.arrays import Float64, Index, Int64, Mask, Numbers

IF_SAME: Final = "if all are equal"
"""How an identity, such as a stream, reduces."""


class Values(Struct, frozen=True):
    """One value per node; `missing` marks those that can't be known."""

    numbers: Int64 | Float64
    missing: Mask | None = None
    held: Mask | None = None
    """Where the value is that of the nearest sample, none lying within the node."""
    words: tuple[str, ...] | None = None
    """For a column of words: what the numbers point into, in the order in which they sort."""

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, rows: Index) -> Values:
        """The values of the given nodes, in their order."""
        missing = None if self.missing is None else self.missing[rows]
        held = None if self.held is None else self.held[rows]
        return Values(self.numbers[rows], missing, held, self.words)

    def present(self) -> Mask:
        """Where there is a value."""
        if self.missing is None:
            return np.ones(len(self.numbers), np.bool_)
        return ~self.missing

    def is_held(self, row: int) -> bool:
        """Whether a value is held from a sample outside the node."""
        return self.held is not None and bool(self.held[row])

    def at(self, row: int) -> int | float | None:
        """One value as a plain Python number, or None."""
        if self.missing is not None and self.missing[row]:
            return None
        number: int | float = self.numbers[row].item()
        return number

    def cell(self, row: int) -> int | float | str | None:
        """One value as a plain Python number or a word, or None."""
        number = self.at(row)
        return number if self.words is None or number is None else self.words[int(number)]


def worded(texts: Sequence[str | None]) -> Values:
    """A column of words; None is missing."""
    words = tuple(sorted({text for text in texts if text is not None}))
    places = {word: place for place, word in enumerate(words)}
    numbers = np.array([0 if text is None else places[text] for text in texts], np.int64)
    return Values(numbers, np.array([text is None for text in texts], np.bool_), words=words)


def numbered(numbers: Sequence[float | None] | Numbers) -> Values:
    """A column of figures; None and NaN are missing."""
    array = np.asarray(numbers)
    if array.dtype.kind in "iub":
        return Values(array.astype(np.int64))
    known = np.array([np.nan if number is None else number for number in numbers], np.float64)
    return Values(known, ~np.isfinite(known))


class Scope(Struct, frozen=True):
    """What a metric is worked out from: the nodes, their parent, and the run's first instant."""

    nodes: Groups
    parent: Groups
    origin_ns: int
    hardware: Hardware | None = None
    """The run's GPUs, where they are known."""
    signals: Mapping[str, Signal] = field(default_factory=dict)
    """The run's signals over time."""


class Metric(Struct, frozen=True):
    """A figure that every node has, or misses for a stated reason."""

    name: str
    unit: AnyUnit
    title: str
    reduces: str
    """How children make the parent: `sum`, `ratio of sums`, `min`, `max`, `if all are equal`."""
    definition: str
    compute: Callable[[Scope], Values]
    source: str = "trace"
    missing_because: str = ""
    signed: bool = False
    """Whether it is a difference, which is written with its sign."""


def column(
    name: str,
    unit: str,
    title: str,
    definition: str,
    *,
    reduces: str = "",
    source: str = "trace",
    missing_because: str = "",
    signed: bool = False,
) -> Metric:
    """A column that only one kind of frame has: it is worked out with the frame, not by node."""

    def only_there(scope: Scope) -> Values:
        empty = np.full(len(scope.nodes), np.nan)
        return Values(empty, np.ones(len(empty), np.bool_))

    return Metric(
        name, Unit(unit), title, reduces, definition, only_there, source, missing_because, signed
    )


def total(
    name: str, title: str, definition: str, unit: Unit = Unit.NS, source: str = "trace"
) -> Metric:
    """A metric that is the sum of the column of its name."""
    return Metric(
        name,
        unit,
        title,
        "sum",
        definition,
        lambda scope: Values(scope.nodes.sum(name)),
        source,
    )


def percent(part: Int64 | Float64, whole: Int64 | Float64) -> Values:
    """100 x part / whole; missing where the whole is 0."""
    missing = whole == 0
    with np.errstate(invalid="ignore", divide="ignore"):
        share = 100.0 * part / whole
    return Values(np.where(missing, np.nan, share), missing)


def ratio(part: Int64, whole: Int64) -> Values:
    """Part / whole; missing where the whole is 0."""
    missing = whole == 0
    with np.errstate(invalid="ignore", divide="ignore"):
        quotient = part / whole
    return Values(np.where(missing, np.nan, quotient), missing)
