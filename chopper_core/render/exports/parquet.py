"""The kernel table as Arrow rows, those of `OpenRun.kernels`, and as a Parquet file.

Labels are dictionaries, times count from the first activity; the file has all columns.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from chopper_core.model.run import Run
from chopper_core.render.exports import ExportOptions, chosen_rows, new_file
from chopper_core.render.kernel_rows import kernel_rows, measured_counters, measured_signals
from chopper_core.util.arrays import encodable
from chopper_core.util.compression import refuse_compressed
from chopper_core.util.progress import Progress

DESCRIPTION: Final = "the kernel table, a row per activity, for pandas, DuckDB, polars"
TAKES: Final = ("iteration",)

_ROW_GROUP: Final = 1 << 18
"""Rows that are converted and written at once."""


def write(run: Run, path: Path, options: ExportOptions, progress: Progress) -> list[str]:
    """Write one file, with counters and the means of signals where the run has them."""
    import pyarrow.parquet as pq

    refuse_compressed(path, "a Parquet file is compressed already")
    rows = chosen_rows(run, options, has_outside=True)
    counters = measured_counters(run)
    signals = measured_signals(run)
    facts = {
        "run": encodable(run.name),
        "origin_ns": str(run.origin_ns),
        "marks": json.dumps(run.marks),
        "gpus": json.dumps([[gpu.index, gpu.rank, gpu.hardware] for gpu in run.gpus]),
    }
    # Arrow opens no names that aren't UTF-8.
    with new_file(path) as fresh, fresh.open("wb") as file:
        writer = None
        try:
            for begin in range(0, len(rows), _ROW_GROUP):
                progress("write the kernel table", begin, len(rows))
                part = rows[begin : begin + _ROW_GROUP]
                made = kernel_rows(run, part, counters=counters, signals=signals)
                made = made.replace_schema_metadata({**(made.schema.metadata or {}), **facts})
                if writer is None:
                    writer = pq.ParquetWriter(file, made.schema, compression="zstd")
                writer.write_table(made)
        finally:
            if writer is not None:
                writer.close()
    return []
