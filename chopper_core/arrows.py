"""Files of columns and folders of files, written whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import zlib
from collections.abc import Sequence, Sized
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike, NDArray

_CHUNK: Final = 1 << 22
_HERE: Final = -100
_RENAME_EXCHANGE: Final = 2
"""Of renameat2(2): names are relative to the current directory; both stay."""
_ATTEMPTS: Final = 20
"""Of putting a folder where other processes put theirs: each of them is right."""


def beside(folder: Path, what: str) -> Path:
    """A hidden name beside a folder that no other process uses, on this machine or another."""
    return folder.with_name(f".{folder.name}.{os.urandom(6).hex()}.{what}")


def put_folder(fresh: Path, folder: Path) -> None:
    """Give a whole folder its name; of two writers at once the last one stays.

    Where the file system can't exchange two names (NFS can't), nothing is at the name for the
    instant between two renames. What was there before may be left at `fresh`, to be removed.
    """
    _sync(fresh)
    if _exchange(fresh, folder):
        _sync(folder.parent)
        return
    aside = beside(folder, "old")
    for _ in range(_ATTEMPTS):
        with suppress(FileNotFoundError):
            os.rename(folder, aside)
        try:
            os.rename(fresh, folder)
        except OSError as error:
            # Another process put its own there between the two renames.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                with suppress(OSError):
                    os.rename(aside, folder)
                raise
        else:
            break
        finally:
            # Where neither rename worked, it is all that is left.
            if folder.exists():
                shutil.rmtree(aside, ignore_errors=True)
    _sync(folder.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Let two names change places in one step; False where it can't be done."""
    # It takes 5 ms to import, and only writers need it.
    import ctypes

    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    names = os.fsencode(one), os.fsencode(other)
    return bool(rename(_HERE, names[0], _HERE, names[1], _RENAME_EXCHANGE) == 0)


def _sync(folder: Path) -> None:
    """Write a folder's names down to the disk, where the file system does so on request."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(handle)


def write_file(path: Path, content: bytes) -> None:
    """Write a file down to the disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_arrow(path: Path, table: pa.Table, mapped: bool = False) -> None:
    """Write columns down to the disk, compressed unless they are to be mapped."""
    options = pa.ipc.IpcWriteOptions(compression=None if mapped else "zstd")
    with path.open("wb") as file:
        with pa.ipc.new_file(file, table.schema, options=options) as writer:
            writer.write_table(table)
        file.flush()
        os.fsync(file.fileno())


def content_of(path: Path) -> pa.Buffer:
    """A file, mapped; read whole where the file system can't map it."""
    try:
        with pa.memory_map(str(path)) as file:
            return file.read_buffer()
    except OSError:
        return pa.py_buffer(path.read_bytes())


def read_arrow(path: Path) -> pa.Table:
    """Columns of a file; what is not compressed stays there until it is looked at."""
    return pa.ipc.open_file(pa.BufferReader(content_of(path))).read_all()


def column_of(table: pa.Table, name: str) -> NDArray[Any]:
    """One column as numbers."""
    parts = [numbers_of(chunk) for chunk in table.column(name).chunks]
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, _dtype(table.schema.field(name).type))


def array_of(numbers: NDArray[Any], known: NDArray[np.bool_] | None = None) -> pa.Array:
    """Numbers as an array, without a copy; `pa.array` imports pandas, which takes 0.4 s."""
    numbers = np.ascontiguousarray(numbers)
    validity = None if known is None else pa.py_buffer(np.packbits(known, bitorder="little"))
    buffers = [validity, pa.py_buffer(numbers)]
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), buffers)


def lists_of(parts: Sequence[NDArray[Any]], kind: DTypeLike) -> pa.LargeListArray:
    """Arrays of numbers as an array of lists."""
    whole = np.concatenate([np.empty(0, kind), *parts], dtype=kind)
    return pa.LargeListArray.from_arrays(_ends(parts), array_of(whole))


def text_lists_of(parts: Sequence[Sequence[str]]) -> pa.LargeListArray:
    """Lists of texts as an array of lists."""
    return pa.LargeListArray.from_arrays(_ends(parts), texts_of([*chain.from_iterable(parts)]))


def _ends(parts: Sequence[Sized]) -> pa.Int64Array:
    return array_of(np.cumsum([0, *map(len, parts)], dtype=np.int64))


def texts_of(texts: Sequence[str]) -> pa.StringArray:
    """Texts as an array."""
    contents = [text.encode("utf-8", "replace") for text in texts]
    ends = np.cumsum([0, *map(len, contents)], dtype=np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(contents))]
    return pa.Array.from_buffers(pa.string(), len(texts), buffers)


def numbers_of(array: pa.Array) -> NDArray[Any]:
    """The numbers of an array without nulls; pyarrow's own way there imports pandas: 0.4 s."""
    if not len(array):
        return np.empty(0, _dtype(array.type))
    numbers = np.frombuffer(array.buffers()[1], _dtype(array.type))
    return numbers[array.offset : array.offset + len(array)]


def numbers_or(column: pa.Array | pa.ChunkedArray, missing: float) -> NDArray[Any]:
    """The numbers of a column, and another where there is none."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    numbers, validity = numbers_of(array), array.buffers()[0]
    if validity is None:
        return numbers
    is_valid = np.unpackbits(np.frombuffer(validity, np.uint8), bitorder="little")
    return np.where(is_valid[array.offset : array.offset + len(array)], numbers, missing)


def _dtype(type_: pa.DataType) -> np.dtype[Any]:
    return np.dtype("float64" if type_ == pa.float64() else str(type_))


def stamp_of(path: Path) -> tuple[int, int]:
    """Size and CRC-32 of a file."""
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            checksum = zlib.crc32(chunk, checksum)
    return path.stat().st_size, checksum
