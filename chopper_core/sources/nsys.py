"""Nsight Systems: the SQLite database that `nsys export --type sqlite` writes of a report.

Read are kernels, copies and memsets, calls of the CUDA runtime, stated synchronizations, and NVTX
ranges, of which those of `torch.autograd.profiler.emit_nvtx` are operators. Times count from the
start of the session, whose date the database has. Processes of one report are ranks in the order of
their GPUs. Tables and columns differ from version to version (2019 to 2025): what one lacks isn't
known. CUDA graphs are one activity each unless nsys traced their nodes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.model.inputs import BY_PROCESS
from chopper_core.sources.nvtx import operator_of
from chopper_core.sources.registry import Recognised
from chopper_core.sources.trace import (
    Activities,
    ActivityCategory,
    HostCategory,
    HostRanges,
    InputTexts,
    Launches,
    LaunchShape,
    SyncKind,
    Syncs,
    Trace,
    blank,
    known_processes,
    ranks_of_processes,
)
from chopper_core.tables.columns import (
    LATEST_NS,
    Interner,
    NameInterner,
    are_timed,
    codes_of,
    cut_name,
)
from chopper_core.tables.losses import ABSENT, Losses, newer_than
from chopper_core.tables.text import FileHead
from chopper_core.util.arrays import Int32, Int64
from chopper_core.util.grouping import first_equal, numbered_rows, ranked
from chopper_core.util.patterns import late
from chopper_core.util.progress import Progress, silent

NAME: Final = "Nsight Systems"
FILES: Final = "`.sqlite`, exported from a report: kernels, copies, CUDA calls and NVTX ranges"
EXAMPLE: Final = "nsys export --type sqlite report.nsys-rep"
SUFFIXES: Final = (".sqlite", ".sqlite3", ".db")

_KIND: Final = "CUPTI_ACTIVITY_KIND_"
_HOST: Final = "SELECT 0, value FROM {} WHERE name = 'Hostname'"
_SYSTEM: Final = "TARGET_INFO_SYSTEM_ENV"
_SESSION: Final = "TARGET_INFO_SESSION_START_TIME"
_GRAPHS: Final = _KIND + "GRAPH_TRACE"
_COLUMN: Final = late(r"\b(?:start|end|bytes|text|[a-z]+[A-Z]\w*)\b")
_PLACE: Final = "start, end, deviceId, streamId, correlationId, globalPid"
_ACTIVITIES: Final = {
    "KERNEL": (
        f"{ActivityCategory.KERNEL}, "
        "CASE WHEN demangledName > 0 THEN demangledName ELSE shortName END, -1, "
        "gridX * gridY * gridZ, min(blockX * blockY * blockZ, 2047), registersPerThread, "
        "staticSharedMemory + dynamicSharedMemory"
    ),
    "MEMCPY": f"{ActivityCategory.MEMCPY}, -10 - copyKind, bytes, -1, -1, -1, -1",
    "MEMSET": f"{ActivityCategory.MEMSET}, -2, bytes, -1, -1, -1, -1",
    "GRAPH_TRACE": f"{ActivityCategory.KERNEL}, -1000 - graphId, -1, -1, -1, -1, -1",
}
"""After their place: category, name, bytes, grid, block, registers, shared memory."""
_NAMES: Final = {
    -2: "Memset (Device)",
    -11: "Memcpy HtoD (Host -> Device)",
    -12: "Memcpy DtoH (Device -> Host)",
    -18: "Memcpy DtoD (Device -> Device)",
    -20: "Memcpy PtoP (Device -> Device)",
}
"""Of what has no text of its own: memsets, and copies by their kind."""
_FIRST_GRAPH: Final = -999
_SYNCS: Final = (
    "SELECT syncType, deviceId, streamId, start, correlationId, eventId, eventSyncId, globalPid "
    "FROM {} WHERE syncType IN (1, 2, 3)"
)
_RECORDS: Final = (
    "SELECT 0, deviceId, streamId, 0, correlationId, eventId, eventSyncId, globalPid FROM {}"
)
"""Synchronizations, and events recorded in streams, which those with one `eventSyncId` wait for."""
_CALLS: Final = "SELECT start, end, globalTid, correlationId, nameId FROM {}"
_RANGES: Final = "SELECT start, end, globalTid, textId, row FROM {} WHERE eventType IN (59, 60)"
"""Ranges that are pushed and popped, and those that start and end."""
_OWN_TEXTS: Final = "SELECT row, text FROM {} WHERE typeof(text) = 'text' AND eventType IN (59, 60)"
_WARNING: Final = 2
"""The lowest severity of what Nsight Systems says went wrong: 1 informs, 3 is an error."""
_DEVICES: Final = "TARGET_INFO_CUDA_DEVICE"
"""Which GPU of the node a process calls 0, 1 …: CUDA_VISIBLE_DEVICES hides others from it."""
_DIAGNOSTICS: Final = "DIAGNOSTIC_EVENT"
_SAID: Final = f"SELECT severity, text FROM {{}} WHERE severity >= {_WARNING}"
_EXPORT: Final = "META_DATA_EXPORT"
_VERSION_OF_EXPORT: Final = "EXPORT_SCHEMA_VERSION"
_NEWEST: Final = 3
"""The newest major version of the export's schema that this reader was checked against."""
_TIMED: Final = frozenset(("start", "end"))
_VERSION: Final = late(r"_v\d+(?:_pt[sd]s?z?)?$")
_BITS: Final = 24
"""Of the numbers of processes and threads."""
_MAX_GRID: Final = 1 << 50


def recognise(head: FileHead) -> Recognised | None:
    has_work = not head.tables.isdisjoint((_GRAPHS, _KIND + "KERNEL"))
    return Recognised(NAME) if has_work and "StringIds" in head.tables else None


def read(path: Path, progress: Progress = silent) -> Trace:
    from chopper_core.tables.database import opened_database, unwritten

    losses, counts = Losses(notes=unwritten(path)), dict[str, int]()
    read_of: defaultdict[str, set[str]] = defaultdict(set)
    names, threads, inputs = NameInterner(), Interner(), Interner()
    with opened_database(path, "an Nsight Systems") as database:
        tables = database.tables()

        def asked(table: str, query: str) -> str:
            """The query of a table, in which columns that it lacks are -1."""
            there = database.columns(table)
            read_of[table].update(_COLUMN.findall(query))
            lacks = [name for name in set(_COLUMN.findall(query)) if name not in there]
            filled = "".join(f", -1 AS {name}" for name in sorted(lacks))
            return query.format(f"(SELECT rowid AS row, *{filled} FROM {table})")

        def rows(table: str, query: str) -> dict[int, str]:
            chunks = database.chunks(table, asked(table, query), losses, 64)
            given = chunks if table in tables else ()
            return {number: cut_name(str(text)) for chunk in given for number, text in chunk}

        def integers(table: str, query: str, width: int) -> list[Int64]:
            if table not in tables:
                return [np.empty(0, np.int64)] * width
            columns = database.integers(table, asked(table, query), width, losses)
            counts[table] = len(columns[0])
            return columns

        def timed(table: str, query: str, width: int) -> list[Int64]:
            """Columns, times first; rows without a valid time are lost."""
            columns = integers(table, query, width)
            valid = are_timed(columns[0], columns[1])
            if table.removeprefix(_KIND) in _ACTIVITIES:
                valid &= columns[1] > 0  # CUPTI: both are 0 where no time was collected.
            losses.bad_times += int((~valid).sum())
            if table.removeprefix(_KIND) not in _ACTIVITIES:
                losses.bad_host_times += int((~valid).sum())
            progress(f"read {path.name}", len(counts), len(_ACTIVITIES) + 2)
            begin, end, *rest = (column[valid] for column in columns)
            return [begin + epoch_ns, end - begin, *rest]

        def named(codes: Int64) -> Int32:
            return codes_of(codes.tolist(), lambda code: names[texts.get(code, "?")]).astype("i4")

        texts = _NAMES | rows("StringIds", "SELECT id, value FROM {}")
        epoch_ns = 0
        if _SESSION in tables:
            dates = database.integers(_SESSION, f"SELECT utcEpochNs FROM {_SESSION}", 1, losses)[0]
            epoch_ns = max([0, *(date for date in dates[:1].tolist() if date < LATEST_NS)])
        gpus = rows("TARGET_INFO_GPU", "SELECT id, name FROM {}")
        placed = [np.empty(0, np.int64)] * 3
        if _DEVICES in tables:
            query = "SELECT pid, cudaId, gpuId FROM {}"
            placed = database.integers(_DEVICES, asked(_DEVICES, query), 3, losses)
        host = rows(_SYSTEM, _HOST).get(0, "")
        version = rows(_EXPORT, f"SELECT 0, value FROM {{}} WHERE name = '{_VERSION_OF_EXPORT}'")
        losses.newer = newer_than(version.get(0, ""), _NEWEST)
        parts = [timed(_KIND + of, f"SELECT {_PLACE}, {rest} FROM {{}}", 13)
                 for of, rest in _ACTIVITIES.items()]  # fmt: skip
        calls = timed(_KIND + "RUNTIME", _CALLS, 5)
        spans = timed("NVTX_EVENTS", _RANGES, 5)
        stated = [
            integers(_KIND + "SYNCHRONIZATION", _SYNCS, 8),
            integers(_KIND + "CUDA_EVENT", _RECORDS, 8),
        ]
        own = {row: text for row, text in rows("NVTX_EVENTS", _OWN_TEXTS).items() if text}
        said = database.chunks(_DIAGNOSTICS, asked(_DIAGNOSTICS, _SAID), losses, 64)
        for _, text in chain.from_iterable(said if _DIAGNOSTICS in tables else ()):
            losses.heard("Nsight Systems", cut_name(str(text)))
        unused = {
            table: rows_in
            for table in tables
            if table not in counts and set(database.columns(table)) >= _TIMED
            if (rows_in := database.count(table))
        }
        unread = {
            table.removeprefix(_KIND): rest
            for table, rows_in in counts.items()
            if rows_in and (rest := sorted({*database.columns(table)} - read_of[table]))
        }
    start, took, device, stream, correlation, process, kind, name, size, grid, block, *figures = (
        np.concatenate(columns) for columns in zip(*parts, strict=True)
    )
    graphs = name[name < _FIRST_GRAPH]
    texts |= {code: f"CUDA graph {_FIRST_GRAPH - 1 - code}" for code in set(graphs.tolist())}
    if len(graphs):
        losses.notes.append(
            f"{len(graphs):,} CUDA graphs are single activities: nsys recorded none of their "
            "kernels, which `nsys profile --cuda-graph-trace=node` does."
        )
    process = known_processes(device, process)
    device = _gpus_of(device, process, placed)
    ranks = ranks_of_processes(device, process)
    is_sized = (grid > 0) & (grid < _MAX_GRID) & (block > 0)
    shapes, shape = ranked(np.where(is_sized, (grid << 11) + block, ABSENT))
    # A range without a text names nothing.
    has_text = np.isin(spans[4], [*own]) | np.isin(spans[3], [*texts])
    spans = [column[has_text] for column in spans]
    titles = [
        own[row] if row in own else texts[code]
        for code, row in zip(spans[3].tolist(), spans[4].tolist(), strict=True)
    ]
    operators = [operator_of(title) for title in titles]
    sizes = [found[1] if found else "" for found in operators]
    plain = [found[0] if found else title for found, title in zip(operators, titles, strict=True)]
    for code in set(calls[4].tolist()):
        texts[code] = _VERSION.sub("", texts.get(code, "?"))
    activities = replace(
        blank(Activities, len(start)),
        name=named(name),
        category=kind.astype(np.int8),
        device=device.astype(np.int32),
        stream=stream,
        start_ns=start,
        duration_ns=took,
        correlation=correlation,
        bytes=size,
        launch_shape=shape.astype(np.int32),
        rank=codes_of(process.tolist(), ranks.__getitem__).astype(np.int32),
    )
    launches = Launches(
        named(calls[4]), codes_of(calls[2].tolist(), threads.__getitem__).astype(np.int32),
        calls[0], calls[1], calls[3],
    )  # fmt: skip
    ranges = replace(
        blank(HostRanges, len(titles)),
        name=np.array([names[each] for each in plain], np.int32),
        category=np.array(
            [HostCategory.OPERATOR if found else HostCategory.ANNOTATION for found in operators],
            np.int8,
        ),
        thread=codes_of(spans[2].tolist(), threads.__getitem__).astype(np.int32),
        start_ns=spans[0],
        duration_ns=spans[1],
        inputs=np.array([inputs[InputTexts(each)] if each else ABSENT for each in sizes], np.int32),
    )
    ids = (1 << _BITS) - 1
    return Trace(
        path=path,
        size_bytes=path.stat().st_size,
        metadata={
            "deviceProperties": [{"id": number, "name": gpu} for number, gpu in gpus.items()],
            **({"hostname": host} if host else {}),
        },
        names=list(names),
        threads=[
            (number >> _BITS & ids, number & ids, ranks.get(number >> _BITS << _BITS, ABSENT))
            for number in threads
        ],
        base_time_ns=epoch_ns,
        activities=activities,
        launches=launches,
        ranges=ranges,
        syncs=_syncs(stated, ranks, placed, epoch_ns),
        inputs=list(inputs),
        launch_shapes=[
            LaunchShape(pair >> 11, pair & 2047) if pair > 0 else LaunchShape(ABSENT, ABSENT)
            for pair in shapes.tolist()
        ],
        figures={
            figure: np.where(values > 0, values, np.nan)
            for figure, values in zip(("registers", "lds_bytes"), figures, strict=True)
            if (values > 0).any()
        },
        event_counts=counts | unused,
        unused_events=unused,
        unread_fields=unread,
        ranks_from=BY_PROCESS,
        losses=losses,
    )


def _gpus_of(device: Int64, process: Int64, placed: Sequence[Int64]) -> Int64:
    """The GPU of the node that each activity ran on; its device where the report doesn't say."""
    pid, own, gpu = placed
    pids = process >> _BITS & ((1 << _BITS) - 1)
    codes = numbered_rows((np.concatenate([pid, pids]), np.concatenate([own, device])))
    found = first_equal(codes[: len(pid)], codes[len(pid) :])
    return np.where(found >= 0, np.append(gpu, ABSENT)[found], device)


def _syncs(
    parts: Sequence[Sequence[Int64]],
    ranks: Mapping[int, int],
    placed: Sequence[Int64],
    epoch_ns: int,
) -> Syncs:
    """Synchronizations and records of events, from the columns of both tables.

    An id that a synchronization shares with a record names it; before 2025 there is none.
    """
    kind, device, stream, start, correlation, event, shared, process = (
        np.concatenate(columns) for columns in zip(*parts, strict=True)
    )
    is_record = kind == SyncKind.RECORD
    code = numbered_rows((process, shared))
    records = np.flatnonzero(is_record)
    recorder = first_equal(code[records], code)
    recorded = np.append(correlation[records], ABSENT)[recorder]
    return Syncs(
        kind=kind.astype(np.int8),
        device=_gpus_of(device, process, placed).astype(np.int32),
        stream=stream,
        start_ns=np.where(is_record, ABSENT, start + epoch_ns),
        correlation=correlation,
        event=event,
        awaited=np.full(len(kind), ABSENT),
        recorded=np.where(is_record | (shared <= 0), ABSENT, recorded),
        rank=codes_of(process.tolist(), lambda one: ranks.get(one, ABSENT)).astype(np.int32),
    )
