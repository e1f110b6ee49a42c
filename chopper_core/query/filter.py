"""The filter language: which rows of a frame to show.

Terms are separated by spaces; a row must match all of them:
`gemm` a regular expression (RE2) on the name, case ignored · `!copy` names that don't match ·
`time>1ms`, `busy<=90%`, `kernels>10` a comparison on a column (by name or title) ·
`pp:3` GPUs by a coordinate · `gpu:0-3,7` labels of the rows' own level, numbers in ranges; `%2C`
stands for a comma in a label, `%20` for a space, `%25` for a percent sign · `class:gemm` a word of
a column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

import numpy as np
from msgspec import Struct

from chopper_core.metrics import METRICS, Values, nearest
from chopper_core.model.parallel import DIMENSIONS
from chopper_core.model.table import ACTIVITY, LEVELS
from chopper_core.model.view import RUN_LEVEL
from chopper_core.query.derived import underlying
from chopper_core.util.arrays import Int32, Mask, Numbers
from chopper_core.util.errors import UsageError
from chopper_core.util.patterns import late

if TYPE_CHECKING:
    import re

_COMPARISON: Final = late(
    r"(?P<column>[A-Za-z_.%]+)(?P<operator>>=|<=|!=|>|<|=)"
    r"(?P<number>-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?P<unit>[A-Za-zµ%]*)"
)
_LEVEL: Final = late(
    rf"(?P<level>{'|'.join((*LEVELS, ACTIVITY, RUN_LEVEL, *DIMENSIONS))}):(?P<labels>\S+)"
)
_SPECIAL: Final = late(r"[.^$*+?{}\[\]\\|()]")
"""What makes a text more than itself in a regular expression."""
_PLAIN: Final = "()<>:*+[]{}@~!;|/&=#?'\""
"""Characters of labels that need no escape in a term, besides letters, digits and `_.-~`."""
_SCALE: Final = {
    "": 1.0,
    "%": 1.0,
    "ns": 1.0,
    "us": 1e3,
    "µs": 1e3,
    "ms": 1e6,
    "s": 1e9,
    "b": 1.0,
    "kb": 1e3,
    "mb": 1e6,
    "gb": 1e9,
    "kib": 2.0**10,
    "mib": 2.0**20,
    "gib": 2.0**30,
}
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


class Rows(Struct, frozen=True):
    """The input of a filter: the level and labels of the rows, and their columns on demand."""

    level: str
    labels: Sequence[str]
    values: Callable[[str], Values]
    names: tuple[str, ...] = ()
    """Columns that only these rows have."""
    texts: Sequence[str] | None = None
    """The texts in which names are searched, where they aren't the labels."""
    coordinates: Mapping[str, Int32] = {}
    """Parallel dimension → the coordinate of each GPU by its number."""


def matching(rows: Rows, text: str) -> Mask:
    """Which rows match a filter; raises UsageError for an invalid filter."""
    mask = np.ones(len(rows.labels), np.bool_)
    for term in text.split():
        mask &= _term(rows, term)
    return mask


def only(level: str, labels: Sequence[str]) -> str:
    """The term that matches exactly the rows of these labels."""
    return f"{level}:{','.join(quote(label, safe=_PLAIN) for label in labels)}"


def _term(rows: Rows, term: str) -> Mask:
    if comparison := _COMPARISON.fullmatch(term):
        return _compare(rows, comparison)
    name, colon, words = term.partition(":")
    if colon and name in rows.names and rows.values(name).words is not None:
        return _worded(rows.values(name), words)
    if level := _LEVEL.fullmatch(term):
        return _labelled(rows, level["level"], level["labels"])
    negated = term.startswith("!") and len(term) > 1
    mask = _named(rows, term[1:] if negated else term)
    return ~mask if negated else mask


def _named(rows: Rows, pattern: str) -> Mask:
    texts = rows.labels if rows.texts is None else rows.texts
    different = list(set(texts))
    found = dict(zip(different, _are_found(pattern, different), strict=True))
    return np.fromiter((found[text] for text in texts), np.bool_, len(texts))


def _are_found(pattern: str, texts: Sequence[str]) -> Sequence[bool]:
    """Whether a regular expression is found in each text; raises UsageError.

    It is one of RE2, which takes a time linear in a text's length: `.*gemm.*fp8` kept Python's own
    busy for minutes over one kernel name of 6 kB.
    """
    if not _SPECIAL.search(pattern):
        plain = pattern.lower()
        return [plain in text.lower() for text in texts]
    from pyarrow import ArrowInvalid, array, compute, string

    pattern, *texts = (_valid(text) for text in (pattern, *texts))
    try:
        found = compute.match_substring_regex(array(texts, string()), pattern, ignore_case=True)
    except ArrowInvalid as error:
        reason = str(error).removeprefix("Invalid regular expression: ")
        raise UsageError(f"invalid regular expression {pattern!r}: {reason}") from error
    listed: list[bool] = found.to_pylist()
    return listed


def _valid(text: str) -> str:
    """Text without halves of surrogate pairs, which stand for bytes of another encoding."""
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _worded(values: Values, wanted: str) -> Mask:
    accepted = wanted.lower().split(",")
    codes = [code for code, word in enumerate(values.words or ()) if word.lower() in accepted]
    return np.isin(values.numbers, codes) & values.present()


def _compare(rows: Rows, term: re.Match[str]) -> Mask:
    column = term["column"] if term["column"] in rows.names else _column(term["column"])
    unit = term["unit"].lower()
    if unit not in _SCALE:
        raise UsageError(f"the filter {term[0]!r} has an unknown unit {term['unit']!r}")
    number = float(term["number"])
    # A title has no unit, and the header's unit depends on the rows.
    if number and not unit and term["column"] != column and METRICS[column].unit in _WRITTEN_IN:
        raise UsageError(
            f"the filter {term[0]!r} needs a unit: {term[0]}{_WRITTEN_IN[METRICS[column].unit]}"
        )
    values = rows.values(column)
    if values.words is not None:
        raise UsageError(f"{column} is a word, not a number; write {column}:WORD")
    bound = number * _SCALE[unit]
    return _OPERATORS[term["operator"]](values.numbers, bound) & values.present()


def _column(word: str) -> str:
    if underlying(word) in METRICS:
        return word
    for metric in METRICS.values():
        if word in (metric.title, metric.title.replace(" ", ""), metric.title.split(" ")[0]):
            return metric.name
    raise UsageError(f"the filter compares an unknown column {word!r}{nearest(word)}")


def _labelled(rows: Rows, level: str, wanted: str) -> Mask:
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
    accepted: set[str] = set()
    ranges: list[tuple[int, int]] = []
    for part in wanted.split(","):
        first, dash, last = part.partition("-")
        if dash and first.isdecimal() and last.isdecimal():
            ranges.append((int(first), int(last)))
        accepted.add(unquote(part))

    def is_wanted(label: str) -> bool:
        in_range = label.isdecimal() and any(low <= int(label) <= high for low, high in ranges)
        return in_range or label in accepted

    return np.array([is_wanted(label) for label in labels], np.bool_)
