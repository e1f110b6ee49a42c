"""The tables of a run as Parquet files, with the views that DuckDB reads them by."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chopper_core.model.run import Run
from chopper_core.render.arrow import about_field
from chopper_core.render.exports import ExportOptions, new_folder
from chopper_core.render.tables import TABLE_NAMES, run_table, table_rows
from chopper_core.util.progress import Progress

if TYPE_CHECKING:
    import pyarrow as pa

DESCRIPTION: Final = "the tables of `chopper sql`, a folder of Parquet files"
TAKES: Final = ()
SCHEMA: Final = "schema.sql"
ONE_FILE: Final = 1 << 20
"""Activities of a run; with more, large tables are a folder with a file per GPU."""


def write(run: Run, path: Path, options: ExportOptions, progress: Progress) -> list[str]:
    """Write a folder of `NAME.parquet`, or `NAME/gpuN.parquet` of a large run, and `schema.sql`."""
    script: list[str] = []
    with new_folder(path) as folder:
        for place, name in enumerate(TABLE_NAMES):
            progress("write the tables", place, len(TABLE_NAMES))
            files, schema = _write(run, folder, name)
            script += _views(name, files, schema)
        (folder / SCHEMA).write_text("\n".join([*_HEAD, *script, ""]), encoding="utf-8")
    return []


_HEAD: Final = (
    "-- Views of DuckDB on the files of this folder: cd here, then `duckdb -init schema.sql`.",
    "-- Comments have the unit and the definition of each column.",
)


def _write(run: Run, folder: Path, name: str) -> tuple[str, pa.Schema]:
    """Write a table; returns the pattern of its files and its schema."""
    import pyarrow.parquet as pq

    if not run_table(name).is_large or len(run.table) <= ONE_FILE:
        rows = table_rows(run, name)
        pq.write_table(rows, folder / f"{name}.parquet", compression="zstd")
        return f"{name}.parquet", rows.schema
    (folder / name).mkdir()
    for gpu in run.gpus:
        rows = table_rows(run, name, (gpu.index,))
        pq.write_table(rows, folder / name / f"gpu{gpu.index}.parquet", compression="zstd")
    return f"{name}/*.parquet", rows.schema


def _views(name: str, files: str, schema: pa.Schema) -> Iterator[str]:
    yield ""
    yield f"CREATE VIEW {name} AS SELECT * FROM read_parquet('{files}');"
    yield f"COMMENT ON VIEW {name} IS {_quoted(run_table(name).about)};"
    for field in schema:
        unit, definition = about_field(field)
        text = f"{unit}: {definition}" if unit else definition
        if text:
            column = field.name.replace('"', '""')
            yield f'COMMENT ON COLUMN {name}."{column}" IS {_quoted(text)};'


def _quoted(text: str) -> str:
    return "'{}'".format(text.replace("'", "''").replace("\n", " "))
