"""A limit on the memory of this process and its workers, and what running out of it is called.

The limit is one of the system: what a process allocates (RLIMIT_DATA), not the files that it maps.
"""

from __future__ import annotations

import errno
import mmap
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from weakref import finalize

from chopper_core.util import children
from chopper_core.util.errors import ChopperError, DataError, UsageError
from chopper_core.util.patterns import late

LEAST_MB: Final = 100
"""Memory that Chopper itself takes before it reads anything, in MB."""
WORKER_MB: Final = 120
"""Memory that a worker takes in addition to the data that it reads, in MB."""
_LIBRARIES_MB: Final = 48
"""What OpenBLAS takes for its first product, and a thread of Arrow."""
_LARGE_SQUARE: Final = 128
"""OpenBLAS multiplies smaller ones without a buffer."""
_SIZE: Final = late(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?))?b?", re.IGNORECASE)
_NEED_PER_BYTE: Final = 0.45
"""Of an unpacked trace: what reading it takes at most, beyond the columns that it becomes."""
_OF_JOB: Final = 0.9
"""The share of its job's memory that a process takes by default."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
"""Of mallopt(3), in glibc; elsewhere they do nothing."""
_KEPT: Final = 32 << 20
_KEPT_OF_LARGE: Final = 1 << 30
_MEMORY: Final = Path("/proc/meminfo")
_CGROUP: Final = Path("/sys/fs/cgroup")
_OWN_GROUPS: Final = Path("/proc/self/cgroup")
_OWN_SIZES: Final = Path("/proc/self/statm")
_DATA: Final = 5
"""The place there of what is allocated."""
_THREAD_BYTES: Final = 32 << 20
"""Of a thread: its stack, and something to begin with."""
_MOST_DESCRIBED: Final = 200
_OF_ARROW: Final = 2
"""Threads that Arrow starts for itself, with the first files that it reads."""
_NO_THREAD: Final = "launch worker thread|^RuntimeError: .*can't start new thread"
_LACKS_THREAD: Final = late(_NO_THREAD)
_LACKS_MEMORY: Final = late(
    f"error return without exception set|^ImportError: .*failed to map|{_NO_THREAD}"
)
"""Errors of Arrow's threads, and of imports that fail half way, which are no MemoryError."""
_NO_LIMIT: Final = 1 << 60
"""The first version of cgroups writes about so many bytes for none."""

_limit = 0
_in_common = 0
"""Of the limit: what copies of this process have in common with it, which is not in `_limit`."""
_is_asked = False
_shortages = 0


class OutOfMemory(ChopperError):
    """A limit on memory, the user's or the system's, is reached."""


def parse_size(text: str) -> int:
    """Bytes from `500M`, `2G`, `1.5GiB`; raises UsageError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a size such as 500M or 2G")
    thousands = " kmgt".index((match[2] or " ").lower())
    size = int(float(match[1]) * (1024 if match[3] else 1000) ** thousands)
    if size < LEAST_MB * 10**6:
        raise UsageError(f"{text} is less than the {LEAST_MB} MB that Chopper itself takes")
    return size


def limit_memory(size: int = 0) -> None:
    """Let this process allocate so many bytes and no more; a limit of the system that is lower
    stays.

    Without a size the limit is that of the job, if it has one: its processes would be killed.
    """
    global _limit, _is_asked
    _is_asked = bool(size)
    size = _limit = size or int(_OF_JOB * job_limit())
    if not size:
        return
    import os
    import resource

    # Its threads each take a buffer of 32 MB, and nothing here multiplies matrices.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Its own allocator takes up to half of a limit at once, and keeps it.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard not in (resource.RLIM_INFINITY, -1):
        size = min(size, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (size, hard))


def start_libraries() -> None:
    """Within a limit, let libraries take what they need once, while there is memory.

    Later OpenBLAS, and the C library for a thread of Arrow, would end the process without it.
    Raises MemoryError.
    """
    if not is_limited():
        return
    import numpy as np
    import pyarrow as pa
    from pyarrow import csv

    share_one_heap()
    np.empty(_LIBRARIES_MB * 10**6, np.uint8)
    square = np.ones((_LARGE_SQUARE, _LARGE_SQUARE))
    np.matmul(square, square)
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    with children.readied_threads():
        csv.read_csv(pa.BufferReader(b"1\n2\n"))


def share_one_heap() -> None:
    """Have all threads allocate from one heap: each keeps a heap of its own else, of up to 64 MB,
    and what one thread frees is no use to another.

    To be called before there are threads. Long work computes in numpy, which doesn't allocate.
    """
    _heap("mallopt", _M_ARENA_MAX, 1)


def keep_freed(*, of_large: bool = False) -> None:
    """Let the heap keep what is freed at its end, and have arrays in it: pages that the system
    gives again are cleared again, which is a tenth of the time of aligning a trace.

    `of_large` is for columns of millions of activities: a quarter of the time of what is worked out
    of them.
    """
    share_one_heap()
    for threshold in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
        _heap("mallopt", threshold, _KEPT_OF_LARGE if of_large else _KEPT)


def give_back() -> None:
    """Return to the system what was freed: a heap keeps pages that lie below used ones."""
    _heap("malloc_trim", 0)


def _heap(function: str, *given: int) -> None:
    import ctypes

    with suppress(OSError, AttributeError):
        getattr(ctypes.CDLL(None), function)(*given)


def worker_limit(workers: int, largest_bytes: int) -> tuple[int, int]:
    """(how many of the workers fit, the bytes of each; 0: no limit).

    `largest_bytes` is the unpacked size of the largest file. The parent waits and keeps
    its least; fewer than two workers are none: the parent reads with the whole limit.
    """
    if not _limit:
        return workers, 0
    room = max(_limit - LEAST_MB * 10**6, 0)
    need = WORKER_MB * 10**6 + int(_NEED_PER_BYTE * largest_bytes)
    fitting = min(workers, room // need)
    return (fitting, room // fitting) if fitting > 1 else (1, 0)


def copies_limit(copies: int) -> tuple[int, int]:
    """As `worker_limit`, for copies of this process, which have what it has allocated in common.

    This one takes as much more meanwhile as one of them.
    """
    if not _limit:
        return copies, 0
    has = _allocated()
    room, need = max(_limit - has, 0), WORKER_MB * 10**6
    fitting = min(copies, room // need - 1)
    return (fitting, has + room // (fitting + 1)) if fitting > 1 else (1, 0)


def shared_bytes(size: int) -> mmap.mmap:
    """Memory that copies of this process have in common with it, within the limit; raises
    MemoryError."""
    import resource

    global _limit, _in_common
    if not _limit:
        return mmap.mmap(-1, size)
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if _allocated() + size > soft:
        raise MemoryError
    made = mmap.mmap(-1, size)
    # The system doesn't count it.
    _limit -= size
    _in_common += size
    resource.setrlimit(resource.RLIMIT_DATA, (soft - size, hard))
    finalize(made, _give_back_shared, size).atexit = False
    return made


def _give_back_shared(size: int) -> None:
    import resource

    global _limit, _in_common
    _limit += size
    _in_common -= size
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (soft + size, hard))


def jobs_fitting(jobs: int | None, each_bytes: int) -> int:
    """How many processes, `jobs` at most (None: one per processor), find so much memory each, in
    addition to what a worker takes; 0: not even one."""
    import os

    most = jobs or os.cpu_count() or 1
    with suppress(OSError, LookupError, ValueError):
        sizes = dict(line.split(":") for line in _MEMORY.read_text().splitlines())
        room = int(sizes["MemAvailable"].split()[0]) << 10
        if _limit:
            room = min(room, _limit - _allocated())
        return max(min(most, room // (WORKER_MB * 10**6 + each_bytes)), 0)
    return most


def _allocated() -> int:
    """The bytes of this process that the limit counts."""
    return _own_bytes(_DATA)


def _own_bytes(place: int) -> int:
    """A size of this process; 0 where the system doesn't tell."""
    with suppress(OSError, LookupError, ValueError):
        import resource

        return int(_OWN_SIZES.read_text().split()[place]) * resource.getpagesize()
    return 0


def may_start_thread() -> bool:
    """Whether the limits allow a thread, and leave it what it needs. Python waits for ever for one
    that ends for want of memory as it begins."""
    return _has_room_for_thread() and children.may_start_threads(1)


def lacks_threads() -> bool:
    """Whether the threads that Arrow starts can't be for another reason than memory: it would end
    the process, or fail."""
    with suppress(ImportError, MemoryError):
        return _has_room_for_thread() and not children.may_start_threads(_OF_ARROW)
    return False


def _has_room_for_thread() -> bool:
    return all(_own_bytes(place) + _THREAD_BYTES <= soft for soft, place in _limits())


def is_limited() -> bool:
    """Whether the memory of this process has a limit."""
    return bool(_limits())


def _limits() -> list[tuple[int, int]]:
    """The limits of this process's memory, each with the place of the size that it limits."""
    import resource

    kinds = ((resource.RLIMIT_AS, 0), (resource.RLIMIT_DATA, _DATA))
    limits = [(resource.getrlimit(kind)[0], place) for kind, place in kinds]
    return [(soft, place) for soft, place in limits if soft not in (resource.RLIM_INFINITY, -1)]


def job_limit() -> int:
    """The lowest limit of the job's cgroup (v1, v2) and of those around it in bytes; 0: none."""
    found = []
    lines: list[str] = []
    with suppress(OSError):
        lines = _OWN_GROUPS.read_text().splitlines()
    for line in lines:
        _, controllers, own = (*line.split(":", 2), "", "")[:3]
        if "memory" in controllers.split(","):
            mount, name = _CGROUP / "memory", "memory.limit_in_bytes"
        elif not controllers:
            mount, name = _CGROUP, "memory.max"
        else:
            continue
        inner = mount / own.lstrip("/")
        for group in (each for each in (inner, *inner.parents) if each.is_relative_to(mount)):
            with suppress(OSError):
                text = (group / name).read_text().strip()
                if text.isdecimal() and int(text) < _NO_LIMIT:
                    found.append(int(text))
    return min(found, default=0)


def is_out_of_memory(error: BaseException | None) -> bool:
    for each in _causes(error):
        if isinstance(each, MemoryError | OutOfMemory):
            return True
        if isinstance(each, OSError) and each.errno == errno.ENOMEM:
            return True
        if _LACKS_MEMORY.search(f"{type(each).__name__}: {each}"):
            return True
    return False


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and those that led to it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def memory_error(doing: str, error: BaseException) -> OutOfMemory:
    """What to say of an error that `is_out_of_memory`."""
    global _shortages
    _shortages += 1
    texts = (f"{type(each).__name__}: {each}" for each in _causes(error))
    if any(map(_LACKS_THREAD.search, texts)) and not is_limited():
        return OutOfMemory(f"{doing} takes more threads than this user may run (ulimit -u)")
    return OutOfMemory(f"{doing} takes more memory than {_limit_text()}")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise DataError for any error: a run opens without a file that it could do without."""
    try:
        yield
        return
    except Exception as error:
        if not is_out_of_memory(error):
            if isinstance(error, ChopperError):
                raise
            raise DataError(f"{path} can't be read: {internal_error(error)}.") from error
        reason = f"{memory_error(f'reading {path}', error)}."
    # Only now is gone what was read, which the error held.
    give_back()
    raise DataError(reason)


def internal_error(error: Exception) -> str:
    what = str(error).partition("\n")[0][:_MOST_DESCRIBED].rstrip(".")
    return f"internal error ({type(error).__name__}: {what}); please report it"


def shortages() -> int:
    """How often memory ran out: what was read during that time may be less than there is."""
    return _shortages


def _limit_text() -> str:
    try:
        import resource
    except (ImportError, MemoryError):
        return "this shell allows"
    if _is_asked:
        return (
            f"--max-memory allows ({_megabytes(_limit + _in_common)}); give more, or less to read"
        )
    for name, option in (("RLIMIT_AS", "v"), ("RLIMIT_DATA", "d")):
        soft, _ = resource.getrlimit(getattr(resource, name))
        if soft not in (resource.RLIM_INFINITY, -1, _limit):
            return f"this shell allows ({_megabytes(soft)}, ulimit -{option})"
    if _limit:
        return f"this job has ({_megabytes(job_limit())})"
    return "this machine has"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB"
