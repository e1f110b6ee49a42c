"""Files and folders of files, written whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Final

_CHUNK: Final = 1 << 22
_HERE: Final = -100
_RENAME_EXCHANGE: Final = 2
"""Of renameat2(2): names are relative to the current directory; both stay."""
_ATTEMPTS: Final = 20
"""Of putting a folder where other processes put theirs: each of them is right."""


def temporary_path(folder: Path, suffix: str) -> Path:
    """A hidden name beside a folder that no other process uses, on this machine or another."""
    return folder.with_name(f".{folder.name}.{os.urandom(6).hex()}.{suffix}")


def put_folder(fresh: Path, folder: Path) -> None:
    """Give a whole folder its name; of two writers at once the last one stays.

    Where the file system can't exchange two names (NFS can't), nothing is at the name for the
    instant between two renames. What was there before may be left at `fresh`, to be removed.
    """
    _sync(fresh)
    if _exchange(fresh, folder):
        _sync(folder.parent)
        return
    aside = temporary_path(folder, "old")
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


def stamp_of(path: Path) -> tuple[int, int]:
    """Size and CRC-32 of a file."""
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            checksum = zlib.crc32(chunk, checksum)
    return path.stat().st_size, checksum
