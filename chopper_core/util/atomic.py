"""Write files and folders atomically: whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from stat import S_ISDIR, S_ISFIFO
from typing import Final

from chopper_core.util.patterns import late

_CHUNK: Final = 1 << 22
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
"""Arguments of renameat2(2): relative to the current directory; exchange both names."""
_MAX_ATTEMPTS: Final = 20
"""Attempts to rename a folder to a name that other processes use too; the last one wins."""
_TEMPORARY: Final = late(r"\.(?P<name>.+)\.(?P<machine>\w+)-(?P<pid>\d+)-\w+\.(?:new|old)")
_ABANDONED_S: Final = 24 * 3600.0
"""Age from which a temporary folder of another machine has no writer any more."""
FileState = tuple[int, int, int, int, int]
_OWN_NAME: Final = "chopper"
_SECOND_NS: Final = 10**9
_MOST_SMALL_BYTES: Final = 1 << 26
_PIECE_BYTES: Final = 1 << 16


def file_state(path: str | Path) -> FileState:
    """Size, times of the last change of content and of anything in ns, inode and device; -1 without
    a file.

    The second time can't be set, but a file may be moved: its inode differs from that of another.
    """
    try:
        status = os.stat(path)
    except OSError:
        return -1, -1, -1, -1, -1
    times_ns = status.st_mtime_ns, status.st_ctime_ns
    return status.st_size, *times_ns, status.st_ino, status.st_dev


def is_settled(state: FileState) -> bool:
    """Whether a file that changes again has another state: not within two seconds of a change
    where the file system counts whole seconds, as some servers and memory cards do."""
    changed_ns = state[2]
    return changed_ns % _SECOND_NS != 0 or time.time_ns() - changed_ns > 2 * _SECOND_NS


MOST_FOLDERS_DEEP: Final = 100
DERIVED: Final = ".derived"
"""The folder in a store of what was derived from it, which is no part of the run's files."""


def walk_once(path: str | Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """`os.walk` that follows links, into each directory once: links may lead back.

    Folders more than `MOST_FOLDERS_DEEP` below are left out: os.walk calls itself for each level.
    So is what was derived from stores.
    """
    seen: set[tuple[int, int]] = set()
    deepest = os.fspath(path).count(os.sep) + MOST_FOLDERS_DEEP
    for folder, folders, files in os.walk(path, followlinks=True):
        try:
            status = os.stat(folder)
        except OSError:
            continue
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        if folder.count(os.sep) >= deepest:
            folders.clear()
        folders[:] = [each for each in folders if each != DERIVED]
        yield folder, folders, files


def temporary_path(folder: Path, suffix: str) -> Path:
    """A hidden name next to a folder that no other process uses, on any machine.

    Those that killed processes left there are removed first, once by each process: a folder may
    hold thousands of files.
    """
    _clean(folder.parent)
    own = f"{_machine()}-{os.getpid()}-{os.urandom(6).hex()}"
    return folder.with_name(f".{folder.name}.{own}.{suffix}")


def remove_folder(folder: Path, empty: Callable[[Path], object] = str) -> None:
    """Remove a folder as far as possible, renaming it first, so that no half of it is found. It may
    be emptied in another way under its new name."""
    fresh = temporary_path(folder, "new")
    try:
        with suppress(OSError):
            os.rename(folder, fresh)
            empty(fresh)
        shutil.rmtree(fresh, ignore_errors=True)
    finally:  # After an interrupt, too: it has another name already.
        shutil.rmtree(fresh, ignore_errors=True)


@cache
def _clean(parent: Path) -> None:
    remove_abandoned(parent)


def remove_abandoned(parent: Path) -> None:
    """Remove the temporary files and folders of writers that are gone.

    An older folder that was renamed aside stays while nothing took its place: it is the only copy.
    """
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            found = _TEMPORARY.fullmatch(entry.name)
            if found is None:
                continue
            is_only_copy = entry.name.endswith(".old") and not (parent / found["name"]).exists()
            path = Path(entry.path)
            if is_only_copy or not _is_abandoned(path, found["machine"], int(found["pid"])):
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _is_abandoned(path: Path, machine: str, process: int) -> bool:
    """Whether its writer is gone: of another machine, whether nothing has changed for long."""
    if machine == _machine():
        return not is_running(process)
    files = [path, *(path.iterdir() if path.is_dir() and not path.is_symlink() else ())]
    newest_s: float = max(file.lstat().st_mtime for file in files)
    return newest_s < time.time() - _ABANDONED_S


def is_running(process: int) -> bool:
    """Whether a process runs: one that was killed has a number until its parent asks for its end,
    which the first process of many containers never does."""
    try:
        os.kill(process, 0)
    except OSError as error:
        return error.errno != errno.ESRCH
    with suppress(OSError):
        return b") Z " not in Path(f"/proc/{process}/stat").read_bytes()
    return True


@cache
def _machine() -> str:
    """A digest of the boot and the process namespace in which this process has its number."""
    known = [os.uname().nodename]
    with suppress(OSError):
        known.append(Path("/proc/sys/kernel/random/boot_id").read_text())
        known.append(os.readlink("/proc/self/ns/pid"))
    return f"{zlib.crc32(' '.join(known).encode()):08x}"


def user_folder(variable: str, default: str) -> Path:
    """Chopper's folder in the one that a variable of the environment names, or in a default below
    `~`; for a user without a home, as in some containers, one that can't exist.

    A relative one is none, by the specification of these variables: it would be in the way of runs.
    """
    given = os.environ.get(variable, "")
    named = given if given.startswith((os.sep, "~")) else default
    return _below_home(named, os.environ.get("HOME"))


@cache
def _below_home(named: str, _home: str | None) -> Path:
    path = os.path.expanduser(named)
    return Path(os.devnull if path.startswith("~") else path) / _OWN_NAME


def make_private(folder: Path, *, is_inner: bool = False) -> None:
    """Make a folder that only its owner can enter, whatever the umask; raises OSError.

    The same holds for missing folders above it, unless it `is_inner`, and for the one that has
    Chopper's name.
    """
    above = () if is_inner else folder.parents
    missing = [each for each in (folder, *above) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(0o700, exist_ok=True)
    folder.chmod(0o700)
    if folder.parent.name == _OWN_NAME and is_own(folder.parent):
        folder.parent.chmod(0o700)


def is_own(folder: Path) -> bool:
    try:
        status = folder.lstat()
    except OSError:
        return False
    return S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def is_private(folder: Path) -> bool:
    return is_own(folder) and not folder.stat().st_mode & 0o022


def replace_folder(fresh: Path, folder: Path, *, is_synced: bool = True) -> None:
    """Rename a complete folder to its name, which may be in use; of two writers the last one wins.

    Unless `is_synced`, a power cut may leave its files empty or torn.

    Where the file system can't exchange two names (NFS), the name is missing for the instant
    between two renames. The older folder may be left at `fresh`; the caller removes it.
    """
    for each in (*fresh.iterdir(), fresh) if is_synced else ():
        _sync(each)
    if _exchange(fresh, folder):
        if is_synced:
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
    if is_synced:
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


def _sync(path: Path) -> None:
    """Flush a file, or a folder's names, to disk, where the file system supports that."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(handle)


def holds(is_kind: Callable[[], bool]) -> bool:
    """Whether an entry of a folder is of a kind; a link that leads to itself is of none."""
    try:
        return is_kind()
    except OSError:
        return False


BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
"""Editors and PowerShell begin UTF-8 with it; it is no part of the text."""


def read_small(path: str | Path) -> bytes:
    """The content of a file of settings, keys or names, without a byte order mark; raises OSError
    where it is larger than any, as a device is that never ends, and for a pipe, which waits for its
    writer.
    """
    if S_ISFIFO(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "It is a pipe, not a file", str(path))
    content = bytearray()
    with open(path, "rb") as file:
        # Python allocates at once as much as is asked for.
        while piece := file.read(_PIECE_BYTES):
            content += piece
            if len(content) > _MOST_SMALL_BYTES:
                raise OSError(errno.EFBIG, f"more than {_MOST_SMALL_BYTES >> 20} MiB", str(path))
    return bytes(content.removeprefix(BYTE_ORDER_MARK))


def publish(
    path: Path, content: bytes, *, mode: int = 0o666, is_new: bool = False, is_synced: bool = True
) -> None:
    """Write a file in one step, with a `mode` less the umask; raises OSError.

    Where it has to be `is_new`, an existing one stays: FileExistsError. Unless `is_synced`, a power
    cut may leave it empty or torn.
    """
    if is_new and path.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    fresh = temporary_path(path.absolute(), "new")
    try:
        os.close(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
        fresh.write_bytes(content)
        if is_synced:
            _sync(fresh)
        if not is_new:
            os.replace(fresh, path)
            return
        try:
            os.link(fresh, path)
        except FileExistsError:
            raise
        except OSError:
            # A file system without links: of two writers the last one wins.
            os.rename(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


def write_at(handle: int, place: int, content: memoryview) -> None:
    """Write to a place of an open file, which other processes may write to at the same time."""
    while content:
        written = os.pwrite(handle, content, place)
        content, place = content.cast("B")[written:], place + written


def stamp_of(path: Path, report: Callable[[int], object] = int) -> tuple[int, int]:
    """Size and CRC-32 of a file; `report` gets the number of bytes of each piece that is read."""
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            checksum = zlib.crc32(chunk, checksum)
            report(len(chunk))
    return path.stat().st_size, checksum
