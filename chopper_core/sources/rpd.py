"""RPD: the SQLite database of rocmProfileData's tracer, schema 1 and 2.

Read are `rocpd_op` (work on GPUs), `rocpd_api` (calls of HIP, and `UserMarker`, the ranges of
roctx), `rocpd_api_ops` (which call started which work), `rocpd_kernelapi` or `rocpd_kernelop`
(sizes), `rocpd_copyapi` or `rocpd_copyop` (bytes) and `rocpd_string` with `rocpd_ustring`. Times
are integer nanoseconds since boot. Processes of one file are ranks in the order of their GPUs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec.structs import replace

from chopper_core.model.inputs import BY_PROCESS
from chopper_core.sources.dispatches import CLOCK_BOOTTIME
from chopper_core.sources.nvtx import with_operators
from chopper_core.sources.registry import Recognised, Unusable
from chopper_core.sources.trace import (
    TIMES_SINCE,
    Activities,
    ActivityCategory,
    HostCategory,
    HostRanges,
    Launches,
    LaunchShape,
    Trace,
    blank,
    known_processes,
    ranks_of_processes,
)
from chopper_core.tables.bytes import ByteSource
from chopper_core.tables.columns import (
    MAX_BYTES,
    Interner,
    NameInterner,
    are_timed,
    bounded,
    codes_of,
    cut_name,
    int_column,
)
from chopper_core.tables.losses import ABSENT, Losses
from chopper_core.tables.text import SQLITE_MAGIC, FileHead
from chopper_core.util.arrays import Int32, Int64
from chopper_core.util.errors import DataError
from chopper_core.util.grouping import first_equal
from chopper_core.util.patterns import late
from chopper_core.util.progress import Progress, silent

if TYPE_CHECKING:
    from chopper_core.tables.database import Database

NAME: Final = "rocmProfileData (RPD)"
FILES: Final = "`.rpd`, the database of `runTracer.sh`; one file per process or node"
EXAMPLE: Final = "runTracer.sh -o trace.rpd python train.py"
SUFFIXES: Final = (".rpd", ".db", ".sqlite", ".sqlite3")

FORMAT: Final = "RPD"
_NEEDED_TABLES: Final = frozenset(("rocpd_op", "rocpd_api"))
_COLUMNS: Final[Mapping[str, frozenset[str]]] = {
    "rocpd_op": frozenset(
        ("id", "gpuId", "queueId", "start", "end", "description_id", "opType_id")
    ),
    "rocpd_api": frozenset(("id", "pid", "tid", "start", "end", "apiName_id", "args_id")),
    "rocpd_api_ops": frozenset(("api_id", "op_id")),
    "rocpd_string": frozenset(("id", "string")),
}
_CHUNK_TEXTS: Final = 64
"""Rows with texts, of which one takes up to a MiB."""
_MAX_UNPACKED_BYTES: Final = 1 << 36
_MAX_GPUS: Final = 1 << 31
_MAX_SIZE: Final = 1 << 31
"""Of a launch in one direction."""
_MAX_THREADS: Final = 1 << 62
_MAX_COUNTED: Final = 1 << 40
_READ: Final = frozenset((
    *_COLUMNS,
    *(f"rocpd_{name}" for name in (
        "ustring", "metadata", "monitor", "monitorType", "kernelapi", "kernelop", "copyapi",
        "copyop",
    )),
))  # fmt: skip
"""The tables that something is read from."""
_MARKER: Final = "UserMarker"
_CATEGORIES: Final = (
    (late(r"copy", re.IGNORECASE), ActivityCategory.MEMCPY),
    (late(r"fill|memset", re.IGNORECASE), ActivityCategory.MEMSET),
    (late(r"kernel|task|dispatch", re.IGNORECASE), ActivityCategory.KERNEL),
)
"""Of operations, by their type; the first that fits counts."""
_OPS: Final = """
    SELECT o.id, o.gpuId, o.queueId, o.start, o.end, o.description_id, o.opType_id, l.api_id
    FROM rocpd_op o LEFT JOIN (SELECT op_id, min(api_id) api_id FROM rocpd_api_ops GROUP BY op_id) l
    ON l.op_id = o.id ORDER BY o.id"""
_TAGS: Final = "SELECT tag, value FROM {}"
# SQLite counts a whole table in one step, which can't be interrupted.
_COUNT: Final = f"SELECT count(*) FROM (SELECT 1 FROM {{}} LIMIT {_MAX_COUNTED})"
_USED: Final = """
    SELECT description_id FROM rocpd_op UNION SELECT opType_id FROM rocpd_op
    UNION SELECT apiName_id FROM rocpd_api"""
_MARKERS: Final = f"""
    SELECT args_id FROM rocpd_api WHERE apiName_id IN
    (SELECT id FROM rocpd_string WHERE string = '{_MARKER}')"""
"""Texts of any length: only the arguments of markers are read."""
_CALLS: Final = "SELECT id, pid, tid, start, end, apiName_id, args_id FROM rocpd_api ORDER BY id"


def recognise(head: FileHead) -> Recognised | Unusable | None:
    """Recognise the database by its tables; of a compressed one, by the text of its schema."""
    if head.magic.startswith(SQLITE_MAGIC):
        return Recognised(FORMAT) if head.tables >= _NEEDED_TABLES else None
    is_packed = head.compression is not None and head.data.startswith(SQLITE_MAGIC)
    named = (f'"{name}"'.encode() in head.data for name in _NEEDED_TABLES)
    return Recognised(FORMAT) if is_packed and all(named) else None


def read(path: Path, progress: Progress = silent) -> Trace:
    """Read the events of a database.

    Raises DataError if it can't be read; rows after damage are lost and noted.
    """
    with _database(path) as database:
        for table, wanted in _COLUMNS.items():
            if missing := sorted(wanted.difference(database.columns(table))):
                raise DataError(f"{path} is an RPD database, but its {table} lacks {missing[0]}.")
        return _RpdReader(path, database, progress).trace()


class _RpdReader:
    """One pass over the tables."""

    def __init__(self, path: Path, database: Database, progress: Progress) -> None:
        from chopper_core.tables.database import unwritten

        self._path = path
        self._database = database
        self._progress = progress
        self._losses = Losses(notes=unwritten(path))
        self._names = NameInterner()
        self._threads: dict[tuple[int, int], int] = Interner()
        self._tables = database.tables()

    def trace(self) -> Trace:
        texts = self._texts("rocpd_string", f"{_USED} UNION {_MARKERS}")
        has_own = "rocpd_ustring" in self._tables
        arguments = self._texts("rocpd_ustring", _MARKERS) if has_own else texts
        database, losses = self._database, self._losses

        def advance(done: int) -> None:
            self._progress(f"read {self._path.name}", done, 2 * done)

        identity, pid, tid, start, end, name, args = database.integers(
            "rocpd_api", _CALLS, 7, losses, advance
        )
        ops = database.integers("rocpd_op", _OPS, 8, losses, advance)
        timed = are_timed(start, end)
        is_marker = codes_of(name.tolist(), lambda one: texts.get(one) == _MARKER) > 0
        threads = zip(pid.tolist(), tid.tolist(), strict=True)
        thread = np.fromiter((self._threads[key] for key in threads), np.int32, len(pid))
        launched = timed & ~is_marker
        marked = timed & is_marker & (end > start)
        launches = Launches(
            name=self._named(name[launched], texts),
            thread=thread[launched],
            start_ns=start[launched],
            duration_ns=(end - start)[launched],
            correlation=identity[launched],
        )
        count = int(marked.sum())
        ranges = replace(
            blank(HostRanges, count),
            name=self._named(args[marked], arguments),
            category=np.full(count, HostCategory.ANNOTATION, np.int8),
            thread=thread[marked],
            start_ns=start[marked],
            duration_ns=(end - start)[marked],
        )
        kinds = ops[6].tolist()
        category = codes_of(kinds, lambda code: _category(texts.get(code, "")))
        # Both times are 0 where none was collected.
        is_timed = are_timed(ops[3], ops[4]) & (ops[4] > 0)
        bad_calls = int((~timed).sum())
        bad = bad_calls + int(((category >= 0) & ~is_timed).sum())
        self._losses.bad_times += bad
        self._losses.bad_host_times += bad_calls
        self._losses.note(bad, "event", "without a valid time left out")
        kept = (category >= 0) & is_timed
        ops = [column[kept] for column in ops]
        activities, shapes = self._activities(ops, category[kept], texts)
        call = first_equal(identity, ops[7])
        process = known_processes(ops[1], np.where(call < 0, ABSENT, np.append(pid, ABSENT)[call]))
        ranks = ranks_of_processes(ops[1], process)
        of_process = codes_of(process.tolist(), ranks.__getitem__).astype(np.int32)
        others = (kind for kind, code in zip(kinds, category.tolist(), strict=True) if code < 0)
        unused = Counter(f"op {texts.get(kind, '') or '?'}" for kind in others)
        not_read = {
            table: count
            for table in self._tables
            if table.startswith("rocpd_") and table not in _READ
            for (count,) in self._rows(table, _COUNT)
            if count
        }
        unread = {
            table: names
            for table, wanted in _COLUMNS.items()
            if (names := sorted({*self._database.columns(table)} - wanted))
        }
        operators = with_operators(list(self._names), ranges)
        marks = int(is_marker.sum())
        return Trace(
            path=self._path,
            size_bytes=self._path.stat().st_size,
            metadata={
                **{str(tag): value for tag, value in self._rows("rocpd_metadata", _TAGS)},
                TIMES_SINCE: CLOCK_BOOTTIME,
            },
            names=operators.names,
            threads=[(one, number, ranks.get(one, ABSENT)) for one, number in self._threads],
            activities=replace(activities, rank=of_process),
            launches=launches,
            ranges=operators.ranges,
            inputs=operators.inputs,
            launch_shapes=shapes,
            event_counts={"op": len(kinds), "api": len(pid) - marks, _MARKER: marks},
            unused_events={**unused, **not_read},
            unread_fields=unread,
            ranks_from=BY_PROCESS,
            losses=self._losses,
        )

    def _activities(
        self, ops: Sequence[Int64], category: Int64, texts: Mapping[int, str]
    ) -> tuple[Activities, Sequence[LaunchShape]]:
        from chopper_core.sources.kernel_names import clean_kernel_name

        identity, gpu, queue, start, end, description, kind, api = ops
        has_text = codes_of(description.tolist(), lambda code: bool(texts.get(code))) > 0
        named = np.where(has_text, description, kind)
        cleaned = {code: clean_kernel_name(texts.get(code, "")) for code in set(named.tolist())}
        shapes, shape = self._shapes(identity, api)
        activities = replace(
            blank(Activities, len(identity)),
            name=self._named(named, cleaned),
            category=category.astype(np.int8),
            device=bounded(gpu, _MAX_GPUS).astype(np.int32),
            stream=queue,
            start_ns=start,
            duration_ns=end - start,
            correlation=api,
            bytes=self._bytes(identity, api, category),
            launch_shape=shape,
        )
        return activities, shapes

    def _detail(
        self, of: str, columns: str, op: Int64, api: Int64
    ) -> tuple[Iterator[tuple[Any, ...]], Int64]:
        """Return the rows of a table of details, ids first, and these ids of each activity.

        They are those of its call in schema 2, its own in schema 1.
        """
        table, key, keys = f"rocpd_{of}api", "api_ptr_id", api
        if table not in self._tables:
            table, key, keys = f"rocpd_{of}op", "op_ptr_id", op
        return self._rows(table, f"SELECT {key}, {columns} FROM {{}}"), keys

    def _shapes(self, op: Int64, api: Int64) -> tuple[Sequence[LaunchShape], Any]:
        sizes = "gridX, gridY, gridZ, workgroupX, workgroupY, workgroupZ"
        rows, keys = self._detail("kernel", sizes, op, api)
        shapes: dict[LaunchShape, int] = Interner()
        shapes[LaunchShape(ABSENT, ABSENT)]
        found: dict[int, int] = {}
        for number, *size in rows:
            if all(isinstance(each, int) and 0 < each < _MAX_SIZE for each in size):
                grid, block = prod(size[:3]), prod(size[3:])
                if grid < _MAX_THREADS and block < _MAX_SIZE:
                    found[number] = shapes[LaunchShape(grid, block)]
        codes = np.fromiter((found.get(each, 0) for each in keys.tolist()), np.int32, len(keys))
        return list(shapes), codes

    def _bytes(self, op: Int64, api: Int64, category: Any) -> Int64:
        rows, keys = self._detail("copy", "size", op, api)
        found = dict(rows)
        sizes = int_column([found.get(each, ABSENT) for each in keys.tolist()])
        sizes = np.where(sizes > 0, bounded(sizes, MAX_BYTES), ABSENT)
        return np.where(category == ActivityCategory.MEMCPY, sizes, ABSENT)

    def _texts(self, table: str, wanted: str) -> dict[int, str]:
        rows = self._rows(table, f"SELECT id, string FROM {{}} WHERE id IN ({wanted})")
        return {number: cut_name(str(text or "")) for number, text in rows}

    def _named(self, ids: Int64, texts: Mapping[int, str]) -> Int32:
        names = self._names
        codes = codes_of(ids.tolist(), lambda one: names[texts.get(one) or f"string {one}"])
        return codes.astype(np.int32)

    def _rows(self, table: str, query: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query of a table, none without that table."""
        if table in self._tables:
            given = query.format(table)
            found = self._database.chunks(table, given, self._losses, _CHUNK_TEXTS)
            yield from chain.from_iterable(found)


def _category(kind: str) -> int:
    found = (category for pattern, category in _CATEGORIES if pattern.search(kind))
    return next(map(int, found), ABSENT)


@contextmanager
def _database(path: Path) -> Iterator[Database]:
    """Open a database; a compressed one is unpacked into a temporary directory."""
    from shutil import disk_usage
    from tempfile import TemporaryDirectory

    from chopper_core.tables.database import opened_database

    with ExitStack() as opened:
        plain = path
        if not FileHead(path).magic.startswith(SQLITE_MAGIC):
            folder = opened.enter_context(TemporaryDirectory(prefix="chopper"))
            plain = Path(folder, "database")
            room = min(_MAX_UNPACKED_BYTES, disk_usage(folder).free // 2)
            with ByteSource(path) as source, plain.open("wb") as unpacked:
                while piece := source.read():
                    if source.bytes_given > room:
                        how = source.compression.unpack if source.compression else ""
                        raise DataError(
                            f"{path} unpacks to more than {room:,} bytes; unpack it first ({how})."
                        )
                    unpacked.write(piece)
        yield opened.enter_context(opened_database(plain, "an RPD"))
