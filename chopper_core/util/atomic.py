"""Write files and folders atomically: whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import zlib
from contextlib import suppress
from pathlib import Path
from stat import S_ISDIR
from typing import Final

_CHUNK: Final = 1 << 22
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
"""Arguments of renameat2(2): relative to the current directory; exchange both names."""
_MAX_ATTEMPTS: Final = 20
"""Attempts to rename a folder to a name that other processes use too; the last one wins."""


def temporary_path(folder: Path, suffix: str) -> Path:
    """A hidden name beside a folder that no other process uses, on any machine."""
    return folder.with_name(f".{folder.name}.{os.urandom(6).hex()}.{suffix}")


def make_private(folder: Path) -> None:
    """Make a folder that only its owner can enter, whatever the umask; raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)


def is_own(folder: Path) -> bool:
    """Whether this is a folder of the user, and no link."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    return S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def is_private(folder: Path) -> bool:
    """Whether a folder is the user's own, and nobody else can change what is in it."""
    return is_own(folder) and not folder.stat().st_mode & 0o022


def replace_folder(fresh: Path, folder: Path) -> None:
    """Rename a complete folder to its name, which may be in use; of two writers the last one wins.

    Where the file system can't exchange two names (NFS), the name is missing for the instant
    between two renames. The older folder may be left at `fresh`; the caller removes it.
    """
    _sync(fresh)
    if _exchange(fresh, folder):
        _sync(folder.parent)
        return
    aside = temporary_path(folder, "old")
    for _ in range(_MAX_ATTEMPTS):
        with suppress(FileNotFoundError):
            os.rename(folder, aside)
        try:
            os.rename(fresh, folder)
        except OSError as error:
            # Another process renamed its own folder between the two renames.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                with suppress(OSError):
                    os.rename(aside, folder)
                raise
        else:
            break
        finally:
            # If neither rename worked, it is the only copy.
            if folder.exists():
                shutil.rmtree(aside, ignore_errors=True)
    _sync(folder.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two names in one step; False if the system can't."""
    # Takes 5 ms to import, and only writers need it.
    import ctypes

    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    names = os.fsencode(one), os.fsencode(other)
    return bool(rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0)


def _sync(folder: Path) -> None:
    """Flush a folder's names to disk, where the file system supports that."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(handle)


def write_file(path: Path, content: bytes) -> None:
    """Write a file and flush it to disk."""
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
