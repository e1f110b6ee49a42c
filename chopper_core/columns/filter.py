"""Which rows of a frame to show, and in which order; the filter language.

Terms are separated by spaces; a row must match all of them; case is ignored:
`gemm` a regular expression (RE2) on the name, case ignored · `!copy` names that don't match ·
`time>1ms`, `busy<=90%`, `gfx MHz<1600` a comparison on a column (by name, title or heading) ·
`pp:3` GPUs by a coordinate · `gpu:0-3,7` labels of the rows' own level, numbers in ranges; `%2C`
stands for a comma in a label, `%20` for a space, `%25` for a percent sign · `class:gemm` or
`class=gemm` a word of a column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final
from urllib.parse import quote, unquote

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.columns import METRICS, Metric, Values, find_column, nearest_names, registered
from chopper_core.columns.derived import is_difference, underlying
from chopper_core.model.memo import LazyMap
from chopper_core.model.parallel import DIMENSIONS
from chopper_core.model.phrases import in_a_row, range_texts
from chopper_core.model.table import ACTIVITY, LEVELS
from chopper_core.model.units import WRITTEN, AnyUnit, Unit
from chopper_core.model.view import RUN_LEVEL
from chopper_core.util.arrays import Float64, Index, Int32, Mask, Numbers
from chopper_core.util.errors import UsageError
from chopper_core.util.grouping import distinct
from chopper_core.util.patterns import late

_SPACED: Final = late(r"\s*(>=|<=|!=|[<>=])\s+(?=\S)|\s+(>=|<=|!=|[<>=])(?=-?\d)")
"""An operator with spaces around it."""
_COMPARISON: Final = late(r"(?P<column>[^<>=!:]+)(?P<operator>>=|<=|!=|[<>=:])(?P<value>\S+)")
_NUMBER: Final = late(r"(?P<number>-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?P<unit>[A-Za-zµ%]*)")
_FILTERED_LEVELS: Final = frozenset((*LEVELS, ACTIVITY, RUN_LEVEL, *DIMENSIONS))
_NAME: Final = late(r"[A-Za-z_.%]+")
NAME: Final = "name"
"""The column of the labels, for sorting."""
LONGEST_FIRST: Final = ("operation", "kernel", "class", "shape")
"""Levels without a default order: their longest rows come first."""
NO_ROW: Final = "no row matches"
"""How a hint about a filter begins."""
_MAX_HEADING_WORDS: Final = 5
_MAX_HINTED: Final = 8
_SPECIAL: Final = late(r"[.^$*+?{}\[\]\\|()]")
"""What makes a text more than itself in a regular expression."""
_PLAIN: Final = "()<>:*+[]{}@~!;|/&=#?'\""
"""Characters of labels that need no escape in a term, in addition to letters, digits and `_.-~`."""
_WRITTEN_IN: Final = {"ns": "ms", "B": "MB"}
"""Units of figures that span many scales → the unit that people write."""
_OPERATORS: Final[dict[str, Callable[[Numbers, float], Mask]]] = {
    ">": np.greater,
    ">=": np.greater_equal,
    "<": np.less,
    "<=": np.less_equal,
    "=": np.equal,
    "!=": np.not_equal,
}


class FilterRows(Struct, frozen=True):
    """The input of a filter: the level and labels of the rows, and their columns on demand."""

    level: str
    labels: Sequence[str]
    values: Callable[[str], Values]
    names: tuple[str, ...] = ()
    """Columns that only these rows have."""
    columns: tuple[Metric, ...] = ()
    """The same with their titles, where these are known."""
    texts: Sequence[str] | None = None
    """The texts in which names are searched, where they aren't the labels."""
    coordinates: Mapping[str, Int32] = {}
    """Parallel dimension → the coordinate of each GPU by its number."""


def matching(rows: FilterRows, text: str) -> Mask:
    """Which rows match a filter; raises UsageError for an invalid filter."""
    mask = np.ones(len(rows.labels), np.bool_)
    for term in _terms(rows, text):
        mask &= term.mask(rows)
    return mask


class Shown(Struct, frozen=True, eq=False):
    """The rows that a filter leaves, in the order of a sort."""

    rows: FilterRows
    mask: Mask
    at: Index
    hint: tuple[str, ...]
    """Why there are none."""

    @property
    def labels(self) -> list[str]:
        labels = self.rows.labels
        return [labels[row] for row in self.at.tolist()]

    @property
    def hidden(self) -> int:
        return len(self.mask) - len(self.at)

    def values(self, columns: Iterable[Metric]) -> Mapping[str, Values]:
        names = (each.name for each in columns)
        return LazyMap(names, lambda name: self.rows.values(name).take(self.at))


_TIMES: Final = ("elapsed_ns", "kernel_ns")


def shown_of(rows: FilterRows, text: str, sort: str, counted: Mask | None = None) -> Shown:
    """The rows that match a filter, sorted; those not `counted` follow the others.

    Raises UsageError for an invalid filter, or a column that the rows lack.
    """
    mask = matching(rows, text)
    at = np.flatnonzero(mask)
    skipped = np.zeros(len(mask), np.bool_) if counted is None else ~counted
    order = _order(rows, at, sort, skipped[at])
    return Shown(rows, mask, at[order], _hint(rows, text, mask))


def _order(rows: FilterRows, at: Index, sort: str, skipped: Mask) -> Index:
    """By name it is the level's default order, or alphabetical without one."""
    order = np.arange(len(at))
    if not sort:
        return order
    descending, name = sort.startswith("-"), sort.removeprefix("-")
    if name == NAME:
        if rows.level in LONGEST_FIRST:
            order = np.array(sorted(order, key=lambda row: rows.labels[int(at[row])]), np.intp)
        return order[::-1] if descending else order
    column = rows.values(name).take(at)
    # Differences sort by size, in either direction.
    size = np.abs(column.numbers) if is_difference(name) else column.numbers
    numbers = -size if descending else size
    # Rows without a value come last in both directions, and after them those left out of sums.
    unknown = ~column.present()
    if unknown.any():
        numbers = np.where(unknown, -_times(rows, at), numbers)
    return np.lexsort((numbers, unknown, skipped))


def _times(rows: FilterRows, at: Index) -> Float64:
    """What rows without a value of the sort column are sorted by; 0 where no time is known."""
    for name in _TIMES:
        with suppress(UsageError):
            return rows.values(name).take(at).known(missing=0.0)
    return np.zeros(len(at))


def _hint(rows: FilterRows, text: str, mask: Mask) -> tuple[str, ...]:
    if mask.any() or not len(mask) or not text.strip():
        return ()
    terms = _terms(rows, text)
    alone = next((term for term in terms if not term.mask(rows).any()), None)
    if alone is None:
        return (f"{NO_ROW} all terms of the filter; each one matches some",)
    return (f"{NO_ROW} {alone.text}: {alone.hint(rows)}",)


def only(level: str, labels: Sequence[str]) -> str:
    """The term of some labels: `gpu:0-3,7`."""
    texts = [quote(label, safe=_PLAIN) for label in labels]
    if all(label.isdecimal() and label == str(int(label)) for label in labels):
        texts = [text for each in in_a_row(map(int, labels)) for text in range_texts(each, "-")]
    return f"{level}:{','.join(texts)}"


class Term(Struct, frozen=True):
    """A term of a filter: a pattern of names, unless it compares a column or names labels."""

    text: str
    pattern: str = ""
    is_negated: bool = False
    level: str = ""
    column: str = ""
    divisor: float = 0.0
    """What the unit in the heading of the column multiplies a figure by; 0: it names none."""
    operator: str = ""
    value: str = ""

    def mask(self, rows: FilterRows) -> Mask:
        if self.level:
            mask = _labelled(rows, self.level, self.value)
        elif self.column and rows.values(self.column).words is not None:
            if self.operator not in ("=", "!=", ":"):
                raise UsageError(f"{self.column} is a word; write {self.column}:WORD")
            mask = _worded(rows.values(self.column), self.value)
            return rows.values(self.column).present() & ~mask if self.is_negated else mask
        elif self.column and self.operator == ":":
            each = (replace(self, operator="=", value=one) for one in self.value.split(","))
            masks = np.array([_compare(rows, one) for one in each])
            return np.asarray(masks.any(axis=0), np.bool_)
        elif self.column:
            return _compare(rows, self)
        else:
            mask = _named(rows, self.pattern)
        return ~mask if self.is_negated else mask

    def hint(self, rows: FilterRows) -> str:
        if self.level:
            return f"{self.level} is {_some(rows.labels, self.value)}"
        values = rows.values(self.column) if self.column else None
        if values is None:
            near = _some(rows.labels, self.pattern)
            head = _COMPARISON.fullmatch(self.text)
            why = f"no column or level is called {head['column']}; " if head else ""
            if head and (column := _column(rows, head["column"])[0]) in rows.names:
                why = f"{column} is a number; "
            return f"{why}names are {near}"
        if values.words is not None:
            words = [values.words[int(code)] for code in distinct(values.numbers[values.present()])]
            return f"{self.column} is {_some(words, self.value)}"
        present = values.numbers[values.present()]
        if not len(present):
            return f"no row has a figure of {self.column}"
        known = _metric(rows, self.column)
        unit = Unit.NONE if known is None else known.unit
        low, high = (_figure(float(each(present)), unit) for each in (np.min, np.max))
        return f"{self.column if known is None else known.title} is {low} to {high}"


def _metric(rows: FilterRows, column: str) -> Metric | None:
    known = {each.name: each for each in (*METRICS.values(), *rows.columns)}
    return known.get(column)


def _figure(number: float, unit: AnyUnit) -> str:
    scale = unit.scale(abs(number), number.is_integer())
    return f"{scale.number(number)} {scale.text}".rstrip()


def _some(names: Sequence[str], wanted: str) -> str:
    """Some of the names, those first that are like what was asked for."""
    from difflib import get_close_matches

    known = {name.lower(): name for name in names}
    near = [known[each] for each in get_close_matches(wanted.lower(), known, 3, 0.5)]
    listed = list(dict.fromkeys([*near, *known.values()]))
    return ", ".join(listed[:_MAX_HINTED]) + (" …" if len(listed) > _MAX_HINTED else "")


def _terms(rows: FilterRows, text: str) -> list[Term]:
    """The terms of a filter; a heading of several words before an operator is one word of it."""
    words = _SPACED.sub(lambda found: found[1] or found[2], text).split()
    terms: list[Term] = []
    plain: list[str] = []
    for word in words:
        found = _COMPARISON.fullmatch(word)
        for taken in range(min(len(plain), _MAX_HEADING_WORDS), -1, -1) if found else ():
            assert found is not None
            heading = " ".join([*plain[len(plain) - taken :], found["column"]])
            term = _comparison(rows, heading, found["operator"], found["value"])
            if term is not None:
                terms += [_pattern(each) for each in plain[: len(plain) - taken]] + [term]
                plain = []
                break
        else:
            plain.append(word)
    return terms + [_pattern(each) for each in plain]


def _pattern(word: str) -> Term:
    found = _COMPARISON.fullmatch(word)
    if found is not None and found["operator"] != ":" and _NUMBER.fullmatch(found["value"]):
        column = found["column"]
        if _NAME.fullmatch(column):
            raise UsageError(
                f"the filter compares an unknown column {column!r}{nearest_names(column)}"
            )
    is_negated = word.startswith("!") and len(word) > 1
    return Term(word, word[1:] if is_negated else word, is_negated)


def _comparison(rows: FilterRows, heading: str, operator: str, value: str) -> Term | None:
    """The term that compares a column or the level of the rows; None if the heading is neither."""
    text, is_negated = f"{heading}{operator}{value}", operator == "!="
    levels = (*_FILTERED_LEVELS, rows.level)
    if operator == ":" and heading in levels and heading not in rows.names:
        return Term(text, level=heading, value=value)
    column, divisor = _column(rows, heading)
    is_number = column in rows.names and all(map(_NUMBER.fullmatch, value.split(",")))
    if column and (operator != ":" or is_number or rows.values(column).words is not None):
        known = column, divisor, operator, value
        return Term(text, "", is_negated, "", *known)
    if operator in ("=", "!=") and (level := heading.lower()) in _FILTERED_LEVELS:
        return Term(text, "", is_negated, level, value=value)
    return None


def _named(rows: FilterRows, pattern: str) -> Mask:
    texts = rows.labels if rows.texts is None else rows.texts
    return np.array(_are_found(pattern, texts), np.bool_)


def _are_found(pattern: str, texts: Sequence[str]) -> Sequence[bool]:
    """Whether a regular expression is found in each text; raises UsageError.

    It is one of RE2, which takes a time linear in a text's length: `.*gemm.*fp8` kept Python's own
    busy for minutes over one kernel name of 6 kB.
    """
    if not _SPECIAL.search(pattern):
        plain = pattern.lower()
        return [plain in text.lower() for text in texts]
    from pyarrow import ArrowInvalid, array, compute, string

    # Halves of surrogate pairs stand for bytes of another encoding.
    pattern, *texts = (
        each.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
        for each in (pattern, *texts)
    )
    try:
        found = compute.match_substring_regex(array(texts, string()), pattern, ignore_case=True)
    except ArrowInvalid as error:
        reason = str(error).removeprefix("Invalid regular expression: ")
        raise UsageError(f"invalid regular expression {pattern!r}: {reason}") from error
    listed: list[bool] = found.to_pylist()
    return listed


def _worded(values: Values, wanted: str) -> Mask:
    accepted = wanted.lower().split(",")
    codes = [code for code, word in enumerate(values.words or ()) if word.lower() in accepted]
    return np.isin(values.numbers, codes) & values.present()


def _compare(rows: FilterRows, term: Term) -> Mask:
    column = term.column
    found = _NUMBER.fullmatch(term.value)
    if found is None:
        raise UsageError(f"the filter {term.text!r} compares {column} with no number")
    unit, number = found["unit"].lower(), float(found["number"])
    known = _metric(rows, column)
    own = "" if known is None else str(known.unit)
    scale, of = WRITTEN.get(unit, (1.0, None))
    is_known = unit in WRITTEN and (of is None or own in ("", str(of)))
    if not is_known and unit != own.lower():
        raise UsageError(f"the filter {term.text!r} has an unknown unit {found['unit']!r}")
    # A title has no unit, and the header's unit depends on the rows.
    is_name = term.text.startswith(column)
    if number and not unit and not term.divisor and not is_name and own in _WRITTEN_IN:
        raise UsageError(f"the filter {term.text!r} needs a unit: {term.text}{_WRITTEN_IN[own]}")
    values = rows.values(column)
    bound = number * (scale if unit else term.divisor or 1.0)
    return _OPERATORS[term.operator](values.numbers, bound) & values.present()


def _column(rows: FilterRows, text: str) -> tuple[str, float]:
    """The name of a column, and the divisor of the unit that its heading names; empty: none."""
    if text in rows.names or underlying(text) in METRICS:
        return text, 0.0
    for known in (rows.columns, registered()):
        if found := find_column(text, known):
            return found[0].name, found[1]
    if (shown := _worded_heading(rows.columns, text)) is not None:
        return shown.name, 0.0
    first = next((each.name for each in registered() if text == each.title.split(" ")[0]), "")
    return first, 0.0


def _worded_heading(known: Iterable[Metric], text: str) -> Metric | None:
    """The column whose title has the words: of several that with the shortest; `roof` is `% roof`.

    Of equally short ones it is the first: columns that are shown come before the others.
    """
    words = text.lower().split()
    titled = [each for each in known if set(words) <= set(each.title.lower().split())]
    return min(titled, key=lambda each: len(each.title), default=None) if words else None


def with_headings(rows: FilterRows, text: str, headings: Mapping[str, str]) -> str:
    """The filter, in which a number without a unit is in that of the column's heading.

    `headings` has the column's heading with its unit, by the name of the column. An invalid filter
    stays as it is.
    """

    def written(term: Term) -> str:
        heading, number = headings.get(term.column), _NUMBER.fullmatch(term.value)
        if heading is None or number is None or number["unit"] or term.divisor:
            return term.text
        is_name = term.text.startswith(term.column)
        return term.text if is_name else f"{heading}{term.operator}{term.value}"

    try:
        terms = _terms(rows, text)
    except UsageError:
        return text
    texts = [written(term) for term in terms]
    return text if texts == [term.text for term in terms] else " ".join(texts)


def _labelled(rows: FilterRows, level: str, wanted: str) -> Mask:
    labels = rows.labels
    if level in rows.coordinates and rows.level == "gpu":
        own = rows.coordinates[level]
        labels = [str(own[int(label)]) for label in labels]
    elif level in DIMENSIONS and level != rows.level:
        there = ", ".join(rows.coordinates)
        why = f"GPUs along {there}" if there else "no coordinates of GPUs: give --parallel"
        raise UsageError(f"the filter names {level}; rows are by {rows.level}, the run has {why}")
    elif level != rows.level:
        raise UsageError(f"the filter names {level}, but the level of the rows is {rows.level}")
    known, accepted = set(labels), set[str]()
    ranges: list[tuple[int, int]] = []
    for part in wanted.split(","):
        first, dash, last = part.partition("-")
        if dash and first.isdecimal() and last.isdecimal():
            ranges.append((int(first), int(last)))
        name = unquote(part)
        accepted |= {name} & known or {each for each in known if each.lower() == name.lower()}

    def is_wanted(label: str) -> bool:
        in_range = label.isdecimal() and any(low <= int(label) <= high for low, high in ranges)
        return in_range or label in accepted

    return np.array([is_wanted(label) for label in labels], np.bool_)
