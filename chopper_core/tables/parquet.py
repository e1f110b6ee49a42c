"""Parquet files, whose rows may take far more memory than the file has bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from chopper_core.tables.bytes import MAX_RATIO, is_bomb
from chopper_core.util.errors import DataError

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

PARQUET_MAGIC: Final = b"PAR1"


def parquet_names(path: Path) -> Sequence[str]:
    """The names of a file's columns; raises DataError, with the reason, where it has none."""
    from pyarrow.lib import ArrowException
    from pyarrow.parquet import read_schema

    try:
        with path.open("rb") as file:
            names: Sequence[str] = read_schema(file).names
    except (ArrowException, ValueError, OSError) as error:
        raise DataError(_first_line(error)) from error
    return names


@contextmanager
def opened_parquet(path: Path) -> Iterator[ParquetFile]:
    """Open a Parquet file; raises DataError where it, or what is read of it, can't be read."""
    from pyarrow.lib import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        # Arrow opens no names that aren't UTF-8.
        with path.open("rb") as opened:
            metadata = ParquetFile(opened).metadata
            if is_bomb(path.stat().st_size, _decoded_bytes(opened, metadata)):
                raise DataError(
                    f"{path} unpacks to more than {MAX_RATIO} times its size, as no profiler's "
                    f"file does: {metadata.num_rows:,} rows of {metadata.num_columns} columns."
                )
            opened.seek(0)
            yield ParquetFile(opened)
    except (ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path} can't be read: {_first_line(error)}.") from error


def _first_line(error: Exception) -> str:
    """Return the first line of an Arrow error; the others are for programmers."""
    return str(error).partition("\n")[0].rstrip(".")


def _decoded_bytes(file: IO[bytes], metadata: Any) -> int:
    """The memory that the rows of a Parquet file take when they are read, about.

    A run of equal values takes a few bytes in the file and 8 each when it is read; a text that a
    dictionary holds once is written out in each row.
    """
    size = 0
    for group in range(metadata.num_row_groups):
        for at in range(metadata.num_columns):
            column = metadata.row_group(group).column(at)
            encoded, values = column.total_uncompressed_size, column.num_values
            size += max(encoded, 8 * values)
            if column.physical_type == "BYTE_ARRAY" and is_bomb(0, encoded * values):
                size += values * _mean_length(file, group, column.path_in_schema)
    return size


def _mean_length(file: IO[bytes], group: int, column: str) -> int:
    """Bytes of a text of a column, in the mean, without writing any out."""
    from pyarrow import compute
    from pyarrow.parquet import ParquetFile

    file.seek(0)
    rows = ParquetFile(file, read_dictionary=[column]).read_row_group(group, columns=[column])
    lengths = []
    for chunk in rows.column(0).chunks:
        while not hasattr(chunk, "dictionary"):
            if not hasattr(chunk, "values"):
                return int(chunk.nbytes / max(len(chunk), 1))
            chunk = chunk.values
        of_texts = compute.binary_length(chunk.dictionary)
        lengths.append(compute.mean(of_texts.take(chunk.indices)).as_py() or 0)
    return int(max(lengths, default=0))
