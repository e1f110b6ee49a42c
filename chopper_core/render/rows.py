"""Rows of any columns, such as an answer of SQL, as text, markdown, CSV or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from chopper_core.render.arrow import about_field
from chopper_core.render.exchange import (
    MAX_BYTES,
    MAX_ROWS,
    csv_text,
    finite,
    json_text,
    rounded,
    rows_within,
)
from chopper_core.util.errors import UsageError
from chopper_core.util.escape import Escaped, clean, escape_lines

if TYPE_CHECKING:
    import pyarrow as pa

TABLE_SCHEMA: Final = "chopper.table/1"
TEXT_ROWS: Final = 1000


def rows_text(
    rows: pa.Table,
    total: int,
    format_name: str,
    *,
    limit: int | None = None,
    is_brief: bool = False,
    about: dict[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> Escaped:
    """Rows in a format of `render`; of `total` rows these are the first.

    Without a limit JSON has what `MAX_ROWS` and `MAX_BYTES` hold, text 1,000 rows, CSV all.
    `about` has what JSON says before the columns.
    """
    default = {"json": MAX_ROWS, "csv": len(rows)}.get(format_name, TEXT_ROWS)
    rows = rows.slice(0, default if limit is None else limit)
    names = _distinct([str(name) for name in rows.column_names])
    cells = [[_plain(value) for value in column.to_pylist()] for column in rows.columns]
    if format_name == "json":
        return _json(rows, names, cells, total, limit, about or {}, notes, is_brief=is_brief)
    if format_name == "csv":
        return escape_lines(csv_text(names, zip(*cells, strict=True)))
    if len(rows) < total:
        notes = [*notes, f"{total - len(rows)} of {total} rows left out"]
    lines = _markdown(names, cells) if format_name == "markdown" else _text(rows, names, cells)
    return escape_lines("\n".join([*lines, "", *(f"note: {clean(each)}" for each in notes), ""]))


def catalogue_text(tables: Sequence[dict[str, Any]], format_name: str) -> Escaped:
    """What tables are: their rows, and the unit and definition of each column."""
    if format_name == "json":
        return json_text({"schema": "chopper.tables/1", "tables": list(tables)})
    lines: list[str] = []
    for table in tables:
        if format_name == "markdown":
            lines += [f"### {table['table']}", "", table["rows"], ""]
            lines += ["| column | unit | definition |", "| :-- | :-- | :-- |"]
            lines += [
                f"| `{each['name']}` | {each['unit']} | {each['definition']} |"
                for each in table["columns"]
            ]
        else:
            lines.append(f"{table['table']}: {table['rows']}")
            for each in table["columns"]:
                unit = f" ({each['unit']})" if each["unit"] else ""
                lines.append(f"  {clean(each['name'])}{unit}: {clean(each['definition'])}")
        lines.append("")
    return escape_lines("\n".join(lines))


def _json(
    rows: pa.Table,
    names: Sequence[str],
    cells: Sequence[Sequence[Any]],
    total: int,
    limit: int | None,
    about: dict[str, Any],
    notes: Sequence[str],
    *,
    is_brief: bool,
) -> Escaped:
    records = [dict(zip(names, row, strict=True)) for row in zip(*cells, strict=True)]
    document: dict[str, Any] = {
        "schema": TABLE_SCHEMA,
        **about,
        "columns": [
            {"name": name, "unit": about_field(field)[0]}
            for name, field in zip(names, rows.schema, strict=True)
        ],
        "rows_total": total,
        "rows_shown": 0,
        "rows": [],
        "notes": list(notes),
    }
    if limit is None:
        fixed = len(json_text(document).encode())
        if fixed > MAX_BYTES:
            raise UsageError(
                f"{len(names)} columns alone take more than {MAX_BYTES // 1000} kB of JSON; name "
                "those that you need, or give a limit of rows"
            )
        records = rows_within(records, MAX_BYTES - fixed)
    document |= {"rows_shown": len(records), "rows": rounded(records) if is_brief else records}
    return json_text(document)


def _text(rows: pa.Table, names: Sequence[str], cells: Sequence[Sequence[Any]]) -> list[str]:
    columns = []
    for name, field, column in zip(names, rows.schema, cells, strict=True):
        unit = about_field(field)[0]
        head = clean(name) if not unit or name.endswith(f"_{unit}") else f"{clean(name)} {unit}"
        texts = ["–" if cell is None else clean(_written(cell)) for cell in column]
        width = max(map(len, (head, *texts)))
        is_number = all(isinstance(cell, int | float | None) for cell in column)
        pad = str.rjust if is_number else str.ljust
        columns.append([pad(text, width) for text in (head, *texts)])
    return ["  ".join(row).rstrip() for row in zip(*columns, strict=True)]


def _markdown(names: Sequence[str], cells: Sequence[Sequence[Any]]) -> list[str]:
    def row(texts: Sequence[str]) -> str:
        return f"| {' | '.join(clean(text).replace('|', chr(92) + '|') for text in texts)} |"

    body = zip(*cells, strict=True)
    lines = [row(names), f"|{' :-- |' * len(names)}"]
    return [*lines, *(row(["–" if c is None else _written(c) for c in each]) for each in body)]


def _written(cell: Any) -> str:
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else str(cell)


def _distinct(names: list[str]) -> list[str]:
    """Names of columns, a number behind those that repeat one."""
    found: dict[str, int] = {}
    made = []
    for name in names:
        found[name] = found.get(name, 0) + 1
        made.append(name if found[name] == 1 else f"{name}_{found[name]}")
    return made


def _plain(value: Any) -> Any:
    """A value of Arrow as one of JSON."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if value is None or isinstance(value, bool | int | float | str):
        return finite(value)
    return value.hex() if isinstance(value, bytes) else str(value)
