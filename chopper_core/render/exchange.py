"""A frame for other programs: JSON (versioned) and CSV, with raw numbers."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct

from chopper_core.columns import Metric, Values
from chopper_core.model.attributes import plain_value
from chopper_core.model.charts import Lanes, Pointed
from chopper_core.model.inputs import TIMES_NOTES
from chopper_core.model.table import NO_LABEL
from chopper_core.model.units import DIGITS
from chopper_core.util.escape import Escaped, clean, cut_text, is_seen
from chopper_core.views.frame import Frame

FRAME_SCHEMA: Final = "chopper.frame/2"
MAX_ROWS: Final = 200
"""Of a frame as JSON without a limit."""
MAX_BYTES: Final = 100_000
"""Of a frame as JSON without a limit and pictures."""
BRIEF_COLUMNS: Final = 8
_MAX_SENTENCE: Final = 2_000
_ROW_BYTES: Final = 4
"""Of what separates a row from the next."""
_NOTE_BYTES: Final = 100
"""Of the note on rows that are left out."""
_KINDS: Final = {"SignalRows": "Rows", "Interval": "Stretch"}
"""Kinds of charts in the schema, where a class has another name."""
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "'")
LANE_CELLS: Final = 100
"""Cells of a lane in JSON; on the screen a lane has as many as fit."""


def as_json(
    frame: Frame,
    *,
    limit: int | None = None,
    has_pictures: bool = False,
    is_brief: bool = False,
    most_bytes: int | None = None,
) -> Escaped:
    """A frame as JSON of the schema `chopper.frame/2`; missing values are null.

    Without a limit it has at most `MAX_ROWS` rows, and of these as many as `MAX_BYTES` hold;
    `rows_total` and `rows_shown` count them; `most_bytes` is another size, also with a limit.
    `has_pictures` adds the charts as numbers, on top of that size. `is_brief` rounds figures that
    aren't integers to four significant digits and has the columns asked for, else the first
    `BRIEF_COLUMNS` of those that a row has; `more_columns` names the rest.

    `left_out` has the truncated steps that the figures leave out, `truncated` marks their
    rows, `held` names the columns of a row whose value is that of the nearest sample outside of it
    or divided as on some GPUs, `partial` those whose value covers only some of the row's GPUs, as
    `held_total` and `partial_total` of the total. `unknown` has the reason of each column that a
    row lacks; `bound` names the columns whose value is a bound that nothing attains.
    `attributes` has what the trace gives of a row's activity next to its figures.
    """
    count = min(MAX_ROWS if limit is None else limit, len(frame))
    columns = _brief_columns(frame) if is_brief else frame.columns
    names = [each.name for each in columns]
    more = [each.name for each in frame.columns if each not in columns]
    is_statistic = frame.view.stat and frame.over
    statistic = {"name": frame.view.stat, "over": frame.over} if is_statistic else {}
    rows = [_row(frame, row, columns) for row in range(count)]
    pictures = [_plain(each) for each in frame.charts] if has_pictures else []
    document: dict[str, Any] = {
        "schema": FRAME_SCHEMA,
        "address": frame.address,
        "level": frame.level,
        "base": frame.base,
        **_given(stat=statistic, left_out=[each for each in frame.left_out if each != NO_LABEL]),
        "columns": [
            {"name": column.name, "unit": column.unit, "title": column.title} for column in columns
        ],
        **_given(more_columns=more),
        "rows_total": len(frame),
        "rows_shown": count,
        "rows": [],
        "total": finite({each.name: frame.total.get(each.name) for each in columns}),
        **_given(
            partial_total=sorted(frame.partial_total.intersection(names)),
            held_total=sorted(name for name in names if frame.extrapolated_total.get(name)),
            unknown=_unknown(frame, columns),
            headline=_sentences(frame.headline),
            quality=[doubt.as_json for doubt in frame.quality],
        ),
        "notes": _sentences(frame.notes),
    }
    if is_brief:
        rows = rounded(rows)
        known = {name: each for name, each in document["total"].items() if each is not None}
        document["total"] = rounded(known)
    fixed = len(json_text(document).encode())
    if most_bytes is not None:
        rows = rows_within(rows, most_bytes - fixed, least=1)
    elif limit is None:
        rows = rows_within(rows, MAX_BYTES - fixed)
    document |= {"rows": rows, "rows_shown": len(rows)}
    by = str(count) if len(rows) == count else f"{(most_bytes or MAX_BYTES) // 1000} kB"
    document["notes"] += limit_notes(frame, len(rows), by)
    return json_text(document | _given(pictures=pictures))


def _sentences(texts: Iterable[str]) -> list[str]:
    """Sentences, cut where the names that they quote are of no use any more."""
    return [cut_text(text, _MAX_SENTENCE) for text in texts]


def _row(frame: Frame, row: int, columns: Sequence[Metric]) -> dict[str, Any]:
    figures = frame.row(row)
    return {
        "name": frame.labels[row],
        **_given(base_name=frame.partner(row)),
        "address": frame.addresses(row),
        **_given(truncated=frame.is_cut(row)),
        **{column.name: finite(figures[column.name]) for column in columns},
        **_given(
            held=_columns_with(frame, columns, row, Values.is_extrapolated),
            partial=_columns_with(frame, columns, row, Values.is_partial),
            bound=_columns_with(frame, columns, row, Values.is_bound),
            attributes={name: plain_value(each) for name, each in frame.attributes(row).items()},
        ),
    }


def _brief_columns(frame: Frame) -> list[Metric]:
    if frame.view.columns:
        return list(frame.columns)
    known = [each for each in frame.columns if frame.values[each.name].present().any()]
    return known[:BRIEF_COLUMNS]


def _unknown(frame: Frame, columns: Sequence[Metric]) -> dict[str, str]:
    """Why rows lack figures, by column."""
    return {
        column.name: column.missing_because
        for column in columns
        if column.missing_because and not frame.values[column.name].present().all()
    }


def rows_within(rows: Sequence[dict[str, Any]], size: int, least: int = 0) -> list[dict[str, Any]]:
    """The first rows, as many as have a size as JSON; at least so many."""
    room = size - _NOTE_BYTES
    for place, row in enumerate(rows):
        room -= len(_ascii(row)) + _ROW_BYTES
        if room < 0:
            return list(rows[: max(place, least)])
    return list(rows)


def rounded(value: Any) -> Any:
    """A value of JSON with numbers that aren't integers in four significant digits."""
    if isinstance(value, float):
        short = float(f"{value:.{DIGITS}g}")
        return int(short) if short.is_integer() else short
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    if isinstance(value, Mapping):
        return {name: rounded(each) for name, each in value.items()}
    return value


def _given(**values: object) -> dict[str, object]:
    return {name: value for name, value in values.items() if value}


def _columns_with(
    frame: Frame, columns: Sequence[Metric], row: int, has: Callable[[Values, int], bool]
) -> list[str]:
    return [column.name for column in columns if has(frame.values[column.name], row)]


def json_text(document: Mapping[str, Any]) -> Escaped:
    """A document as JSON: a line for each key, and for each part of a list of records.

    Characters that a terminal acts on, or hides, are written as escapes.
    """
    lines = ",\n".join(f" {_json(name)}: {_lines(value)}" for name, value in document.items())
    text = f"{{\n{lines}\n}}\n"
    acting = (each for each in set(text) if not is_seen(each) and each != "\n")
    return Escaped(text.translate({ord(each): _ascii(each)[1:-1] for each in acting}))


def _ascii(value: object) -> str:
    import json

    return json.dumps(value)


def _lines(value: object) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n{}\n ]".format(",\n".join(f"  {_json(each)}" for each in value))
    return _json(value)


def _json(value: object) -> str:
    import json

    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def finite(value: Any) -> Any:
    """A value of JSON with null for numbers that aren't finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    if isinstance(value, Mapping):
        return {name: finite(each) for name, each in value.items()}
    return value


def _plain(thing: object) -> Any:
    """A chart as plain lists and dictionaries, with its kind; missing values are null."""
    if isinstance(thing, np.ndarray):
        return finite(thing.tolist())
    if isinstance(thing, Lanes):
        return _lanes(thing)
    if isinstance(thing, tuple):
        return [_plain(part) for part in thing]
    if isinstance(thing, Struct):
        fields = ((name, getattr(thing, name)) for name in thing.__struct_fields__)
        own = {name: _plain(value) for name, value in fields if not callable(value)}
        name = type(thing).__name__
        return {"kind": _KINDS.get(name, name), **own}
    return finite(thing)


def _lanes(chart: Lanes) -> dict[str, Any]:
    """Lanes in `LANE_CELLS` cells of equal time, with the bands and strips of each GPU."""
    cells = [chart.cells(row, LANE_CELLS) for row in range(len(chart.lanes))]
    first = {owner: row for row, owner in reversed(list(enumerate(chart.owners)))}
    return {
        "kind": "Lanes",
        "title": chart.title,
        "lanes": list(chart.lanes),
        "kinds": list(chart.kinds),
        "seen": _plain(chart.seen),
        "cells": LANE_CELLS,
        "kind_ns": [each.kind_ns.tolist() for each in cells],
        "busy_ns": [each.busy_ns.tolist() for each in cells],
        "pointed": _plain(chart.pointed or (Pointed(),) * len(chart.lanes)),
        "bands": {owner: _plain(chart.bands(row, LANE_CELLS)) for owner, row in first.items()},
        "strips": {owner: _plain(chart.strips(row, LANE_CELLS)) for owner, row in first.items()},
        "hosts": {owner: _host(chart, row) for owner, row in first.items()},
    }


def _host(chart: Lanes, row: int) -> dict[str, Any] | None:
    cells = chart.hosts(row, LANE_CELLS) if chart.hosts is not None else None
    if cells is None:
        return None
    operators, calls = cells.kind_ns.tolist()
    return {"operator_ns": operators, "call_ns": calls, "busy_ns": cells.busy_ns.tolist()}


def as_csv(frame: Frame, *, limit: int | None = None) -> str:
    """A frame as CSV with a header; raw numbers, missing values empty.

    A text that a spreadsheet would take for a formula begins with an apostrophe; characters that
    a terminal acts on are written as escapes. The column `base` says what figures that add up are;
    rows of a run whose times were not measured say so in a column `times`.
    """
    count = len(frame) if limit is None else min(limit, len(frame))
    names = [column.name for column in frame.columns]
    mark = tuple(mark for mark, note in TIMES_NOTES.items() if note in frame.notes)
    more = (["base"] if frame.base else []) + (["times"] if mark else [])
    mark = (frame.base, *mark) if frame.base else mark
    cells = (
        [frame.labels[row], *(figures[name] for name in names), frame.addresses(row), *mark]
        for row, figures in enumerate(map(frame.row, range(count)))
    )
    return csv_text(["name", *names, "address", *more], cells)


def csv_text(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Rows as CSV with a header; None is empty, and no text is a formula of a spreadsheet."""
    import csv

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows(map(_csv_cell, row) for row in (names, *rows))
    return text.getvalue()


def _csv_cell(value: object) -> object:
    if not isinstance(value, str):
        return value
    # Printed on a terminal, control characters would act.
    return clean(f"'{value}" if value.startswith(_FORMULA) else value)


def limit_notes(frame: Frame, shown: int, limit: str = "") -> list[str]:
    if shown == len(frame):
        return []
    count = f"{len(frame) - shown} of {len(frame)}"
    return [f"{count} rows left out by the limit of {limit or shown}"]
