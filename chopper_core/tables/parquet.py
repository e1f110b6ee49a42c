"""Parquet files, whose rows may take far more memory than the file has bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from chopper_core.tables.bytes import MAX_RATIO, is_bomb
from chopper_core.util.children import readied_threads
from chopper_core.util.errors import DataError
from chopper_core.util.memory import lacks_threads

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

    if lacks_threads():  # Arrow, which starts one, would end the process.
        raise DataError(f"{path} can't be read: no thread can be started (ulimit -u).")
    try:
        # Arrow opens no names that aren't UTF-8.
        with path.open("rb") as opened, readied_threads():
            file, size_bytes = ParquetFile(opened), path.stat().st_size
            if any(is_bomb(size_bytes, decoded) for decoded in _decoded_bytes(file, opened)):
                about = file.metadata
                raise DataError(
                    f"{path} unpacks to more than {MAX_RATIO} times its size, as no profiler's "
                    f"file does: {about.num_rows:,} rows of {about.num_columns} columns."
                )
            yield file
    except (ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path} can't be read: {_first_line(error)}.") from error


def _first_line(error: Exception) -> str:
    """Return the first line of an Arrow error; the others are for programmers."""
    return str(error).partition("\n")[0].rstrip(".")


def _decoded_bytes(file: ParquetFile, opened: IO[bytes]) -> Iterator[int]:
    """The memory that the rows of a Parquet file take when they are read: about, then better.

    A run of equal values takes a few bytes in the file and 8 each when it is read; a text that a
    dictionary holds once is written out in each row.
    """
    metadata = file.metadata
    columns = [file.schema.column(at) for at in range(metadata.num_columns)]
    counts = [
        _values_in_lists(file, at) if column.max_repetition_level else metadata.num_rows
        for at, column in enumerate(columns)
    ]
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    encoded = sum(group.total_byte_size for group in groups)
    size = max(encoded, 8 * sum(counts))
    yield size
    for column, count in zip(columns, counts, strict=True):
        if column.physical_type == "BYTE_ARRAY" and is_bomb(0, encoded * count):
            size += count * _mean_length(opened, column.path)
    yield size


def _values_in_lists(file: ParquetFile, at: int) -> int:
    """The values of a column of lists, of which a row has any number.

    Damaged metadata of a column ends the process when pyarrow shows them; scanning meets the same
    damage first, and raises.
    """
    file.scan_contents([file.schema.column(at).path])
    groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
    return sum(group.column(at).num_values for group in groups)


def _mean_length(opened: IO[bytes], column: str) -> int:
    """Bytes of a text of a column, in the mean, without writing any out."""
    from pyarrow import compute
    from pyarrow.parquet import ParquetFile

    lengths = []
    for batch in ParquetFile(opened, read_dictionary=[column]).iter_batches(columns=[column]):
        chunk = batch.column(0)
        while not hasattr(chunk, "dictionary"):
            if not hasattr(chunk, "values"):
                return int(chunk.nbytes / max(len(chunk), 1))
            chunk = chunk.values
        of_texts = compute.binary_length(chunk.dictionary)
        lengths.append(compute.mean(of_texts.take(chunk.indices)).as_py() or 0)
    return int(max(lengths, default=0))
