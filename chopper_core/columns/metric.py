"""The class of a metric, the registry of all of them, and how one gets into it.

A metric is a function from a scope to values under `@metric(…)`, its docstring the definition that
people read; sums of a column, means of telemetry and formulas over counters are one call each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Final

import numpy as np
from msgspec import Struct, field
from msgspec.structs import force_setattr, replace

from chopper_core.model.groups import Groups
from chopper_core.model.hardware import Hardware
from chopper_core.model.run import Run
from chopper_core.model.signals import Signal
from chopper_core.model.table import Selection
from chopper_core.model.units import AnyUnit, Unit
from chopper_core.util.arrays import Codes, Float64, Index, Int64, Mask, Numbers
from chopper_core.util.grouping import ranked, sums_of


class Reduces(StrEnum):
    """How the figures of children make that of their parent."""

    NONE = ""
    SUM = "sum"
    OTHERS = "sum over other GPUs"
    """As `SUM`, of time that the row's GPU takes from others: a part of all of them."""
    STEPS = "sum over GPUs"
    """As `SUM`, of what leads through all GPUs: per step, not per GPU."""
    RATIO = "ratio of sums"
    MEAN = "time-weighted mean"
    MIN = "min"
    MAX = "max"
    QUANTILE = "quantile"
    COMMON = "common value"
    """An identity, such as a stream: missing where children differ."""
    DISTINCT = "distinct count"
    PRODUCT = "product of ratios"
    INSTANCES = "ratio of two instances"
    OF_SUMS = "statistic of sums"
    OF_MEANS = "statistic of ratios"


class Theme(StrEnum):
    """The group of metrics under which details and help list one."""

    TIME = "time"
    TELEMETRY = "telemetry"
    BREAKDOWN = "breakdown of compute"
    ORIGINAL = "original breakdown"
    MEMORY = "GPU memory"
    COUNTERS = "counters"


class Values(Struct, frozen=True):
    """One value per node; `missing` marks those that can't be computed, NaN among them."""

    numbers: Int64 | Float64
    missing: Mask | None = None
    extrapolated: Mask | None = None
    """Where the value isn't measured on all of the node: it is that of the nearest sample, as none
    lies within, or some of its kernels lack the counters."""
    words: tuple[str, ...] | None = None
    """For a column of words: what the numbers point into, in sort order."""
    partial: Mask | None = None
    """Where the value covers only some of the row's GPUs."""
    bound: Mask | None = None
    """Where the value is a bound that nothing attains."""

    def __post_init__(self) -> None:
        if self.numbers.dtype.kind == "f" and not (known := np.isfinite(self.numbers)).all():
            missing = ~known if self.missing is None else self.missing | ~known
            force_setattr(self, "missing", missing)

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, rows: Index) -> Values:
        masks = (self.missing, self.extrapolated, self.partial, self.bound)
        missing, extrapolated, partial, bound = (
            None if mask is None else mask[rows] for mask in masks
        )
        return Values(self.numbers[rows], missing, extrapolated, self.words, partial, bound)

    def present(self) -> Mask:
        if self.missing is None:
            return np.ones(len(self.numbers), np.bool_)
        return ~self.missing

    def known(self, missing: float = np.nan) -> Float64:
        """The values as floats, with a number for those that are missing."""
        return np.where(self.present(), self.numbers, missing).astype(np.float64)

    def is_extrapolated(self, row: int) -> bool:
        return self.extrapolated is not None and bool(self.extrapolated[row])

    def is_partial(self, row: int) -> bool:
        return self.partial is not None and bool(self.partial[row])

    def is_bound(self, row: int) -> bool:
        return self.bound is not None and bool(self.bound[row])

    def at(self, row: int) -> int | float | None:
        if self.missing is not None and self.missing[row]:
            return None
        number: int | float = self.numbers[row].item()
        return number

    def cell(self, row: int) -> int | float | str | None:
        number = self.at(row)
        return number if self.words is None or number is None else self.words[int(number)]


def worded(texts: Sequence[str | None]) -> Values:
    words = tuple(sorted({text for text in texts if text is not None}))
    places = {word: place for place, word in enumerate(words)}
    numbers = np.array([0 if text is None else places[text] for text in texts], np.int64)
    return Values(numbers, np.array([text is None for text in texts], np.bool_), words=words)


def worded_codes(codes: Codes, text_of: Callable[[int], str | None]) -> Values:
    """The text of each code."""
    known, place = ranked(codes)
    return worded([text_of(code) for code in known.tolist()]).take(place)


def numbered(numbers: Sequence[float | None] | Numbers) -> Values:
    """A column of figures; None and NaN are missing."""
    array = np.asarray(numbers)
    if array.dtype.kind in "iub":
        return Values(array.astype(np.int64))
    return Values(array.astype(np.float64))


def time_weighted(
    scope: Scope,
    column: str,
    lasts: str = "duration_ns",
    figure: Callable[[Float64, Selection], Float64] | None = None,
) -> Values:
    """The mean of a measured column, weighted with durations, over the activities that have it.

    `figure` makes another one of the values of some rows; `lasts` is the column of the durations.
    Missing where there are several values and no durations.
    """
    table, size = scope.nodes.table, len(scope.nodes)
    weighted, weight, total, count = np.zeros((4, size))
    for rows, group in scope.nodes.pieces() if column in table.measured else ():
        values = table.measured[column][rows]
        values = values if figure is None else figure(values, rows)
        lasted = table.measured.get(lasts, table.duration_ns)[rows]
        there = np.isfinite(values)
        weights = np.where(there & np.isfinite(lasted), lasted, 0.0)
        values = np.where(there, values, 0.0)
        weighted += sums_of(weights * values, group, size)
        weight += sums_of(weights, group, size)
        total += sums_of(values, group, size)
        count += sums_of(there, group, size)
    with np.errstate(invalid="ignore", divide="ignore"):
        return Values(np.where(count == 1, total, weighted / weight))


def quotient(part: Int64 | Float64, whole: Int64 | Float64, factor: float = 1.0) -> Values:
    """`factor` x part / whole; missing where the whole is 0 or the result is not finite."""
    with np.errstate(invalid="ignore", divide="ignore"):
        numbers = factor * part / whole
    return Values(np.where((whole == 0) | ~np.isfinite(numbers), np.nan, numbers))


def known_sum(column: str, scope: Scope, *, is_whole: bool = False) -> Values:
    """The sum of a measured column over the activities that have it; missing without any."""
    amount, count = scope.nodes.known(column)
    return Values(np.rint(amount).astype(np.int64) if is_whole else amount, count == 0)


def absent(count: int, number: float = np.nan) -> Values:
    """The values of nodes that all lack a figure; `number` is 0 where they would be integers."""
    return Values(np.full(count, number), np.ones(count, np.bool_))


class Scope(Struct, frozen=True):
    """The input of a metric: the nodes, their parent, and the run's first instant."""

    nodes: Groups
    parent: Groups
    origin_ns: int
    hardware: Hardware | None = None
    signals: Mapping[str, Signal] = field(default_factory=dict)
    run: Run | None = None
    """For figures that need other rows than the nodes' own."""

    @classmethod
    def of(cls, run: Run, nodes: Groups, whole: Groups | None = None) -> Scope:
        """Nodes of a run, and what they are parts of: themselves, if it isn't given."""
        whole = nodes if whole is None else whole
        return cls(nodes, whole, run.origin_ns, run.hardware, run.measured, run)


Compute = Callable[[Scope], Values]


class Metric(Struct, frozen=True):
    """A figure that every node has, or lacks for a stated reason."""

    name: str
    unit: AnyUnit
    title: str
    reduces: Reduces
    definition: str
    compute: Compute
    source: str = "trace"
    missing_because: str = ""
    signed: bool = False
    """Whether it is a difference, which is written with its sign."""
    has_words: bool = False
    """Whether it is a word, which has no statistic."""
    theme: Theme = Theme.TIME
    needs_times: bool = True
    """Whether a run that has counters but no times lacks it."""
    counters: tuple[str, ...] = ()
    """The hardware counters that it is computed from, as they are called on gfx942."""
    needs_hardware: bool = False
    """Whether the counters need the specification of the GPU next to them."""
    rows: str = ""
    """What it is a column of, where that isn't activities: `lanes of a timeline`."""

    @property
    def adds_up(self) -> bool:
        return self.reduces in (Reduces.SUM, Reduces.OTHERS, Reduces.STEPS)


METRICS: Final[dict[str, Metric]] = {}
"""Every metric by its name, in the order of registration, which is that of every list."""


OTHER_COLUMNS: Final[dict[str, Metric]] = {}
"""Every column that not all rows of activities have, by its name: those of other rows, and those of
one view alone."""


def register(metric: Metric) -> None:
    if metric.name in METRICS or metric.name in OTHER_COLUMNS:
        raise ValueError(f"two columns are called {metric.name}")
    METRICS[metric.name] = metric


def metric(
    name: str,
    unit: Unit,
    title: str,
    definition: str = "",
    *,
    reduces: Reduces = Reduces.SUM,
    source: str = "trace",
    missing: str = "",
    theme: Theme = Theme.TIME,
    needs_times: bool = True,
    signed: bool = False,
    has_words: bool = False,
) -> Callable[[Compute], Compute]:
    """Register a function whose docstring is the definition; `missing` is why a node lacks it."""

    def registered(compute: Compute) -> Compute:
        text = definition or " ".join((compute.__doc__ or "").split())
        register(
            Metric(
                name, unit, title, reduces, text, compute, source, missing, signed, has_words,
                theme=theme, needs_times=needs_times,
            )
        )  # fmt: skip
        return compute

    return registered


def declare(
    text: str,
    compute: Callable[[str, Scope], Values],
    *,
    theme: Theme = Theme.TIME,
    source: str = "trace",
    missing: str = "",
    needs_times: bool = True,
) -> None:
    """Register metrics that are declared as `columns` are, and computed by their names."""
    for name, each in parse_columns(text, missing=missing, source=source).items():
        own = partial(compute, name)
        register(replace(each, compute=own, theme=theme, needs_times=needs_times))


def records(text: str) -> list[str]:
    """The declarations of a text; each begins with a line `name | …`."""
    parts = re.split(r"^ *(?=\S+ \|)", text, flags=re.MULTILINE)[1:]
    return [part.rstrip() for part in parts]


def row_columns(
    rows: str, text: str, *, missing: str = "", source: str = "trace"
) -> dict[str, Metric]:
    """Declare columns of rows that aren't made of activities, such as `lanes of a timeline`, by
    name, next to the function that makes the rows."""
    made = (
        replace(each, rows=rows)
        for each in parse_columns(text, missing=missing, source=source).values()
    )
    return {each.name: register_other(each) for each in made}


def columns(text: str, *, missing: str = "", source: str = "trace") -> dict[str, Metric]:
    """Declare columns as `column` does, by name."""
    made = parse_columns(text, missing=missing, source=source)
    return {name: register_other(each) for name, each in made.items()}


def column(text: str, *, missing: str = "", source: str = "trace") -> Metric:
    """Declare a column that only one view has, such as a place in a ranking."""
    return register_other(_parsed(text, missing, source))


def register_other(made: Metric) -> Metric:
    """A column as it is known; raises ValueError where its name has another definition."""
    known = METRICS.get(made.name) or OTHER_COLUMNS.setdefault(made.name, made)
    if known.definition != made.definition or known.unit != made.unit:
        raise ValueError(f"two columns are called {made.name}")
    return made


def parse_columns(text: str, *, missing: str = "", source: str = "trace") -> dict[str, Metric]:
    """Columns by name as a text declares them, unregistered: of tables of SQL, and of names that
    depend on what a view asks for."""
    made = (_parsed(record, missing, source) for record in records(text))
    return {each.name: each for each in made}


def _parsed(text: str, missing: str, source: str) -> Metric:
    """A column as it is declared.

    The first line is `name | unit | title`, then how it reduces, `signed` and `words`, if they
    apply. The
    lines below it are the definition; `missing:` begins why a row can lack it, `source:` where it
    comes from. Raises ValueError for an unknown unit or reduction.
    """
    heading, *lines = text.splitlines()
    name, *stated = (part.strip() for part in heading.split("|"))
    if len(stated) < 2:
        raise ValueError(f"a column begins with `name | unit | title`, not {heading!r}")
    unit, title, *flags = stated
    parts = {"": "", "missing": missing, "source": source}
    key = ""
    for line in map(str.strip, lines):
        first, colon, more = line.partition(":")
        if colon and first in parts and first:
            key, line = first, more.lstrip()
            parts[key] = ""
        parts[key] = f"{parts[key]} {line}".strip()
    return computed_column(
        name,
        unit,
        title,
        parts[""],
        reduces="".join(flag for flag in flags if flag not in ("signed", "words")),
        source=parts["source"],
        missing_because=parts["missing"],
        signed="signed" in flags,
        has_words="words" in flags,
    )


def computed_column(
    name: str,
    unit: str,
    title: str,
    definition: str,
    *,
    reduces: str = "",
    source: str = "trace",
    missing_because: str = "",
    signed: bool = False,
    has_words: bool = False,
) -> Metric:
    """As `column`, of texts that are known only when the frame is made."""
    return Metric(
        name, Unit(unit), title, Reduces(reduces), definition,
        lambda scope: absent(len(scope.nodes)), source, missing_because, signed, has_words,
    )  # fmt: skip
