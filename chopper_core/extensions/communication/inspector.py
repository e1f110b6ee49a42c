"""NCCL's and RCCL's Inspector: JSON lines of each process, a line per collective or message.

Since 4.3 a line `dump_stats` has the communicator of the lines that follow it; before, each line
has its own. Verbose logs have the time of each operation; others only its duration and when it was
written, behind which operations are placed one before the other.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Struct, field

from chopper_core.align.collectives import group_label
from chopper_core.extensions.communication.job_run import (
    PAIRWISE,
    OperationColumns,
    RankLog,
    run_of_logs,
)
from chopper_core.model.inputs import RECONSTRUCTED
from chopper_core.model.parallel import ProcessGroup
from chopper_core.model.run import Run
from chopper_core.sources.registry import Recognised, Unusable
from chopper_core.sources.trace import Collective
from chopper_core.tables.columns import MAX_RANKS, Interner, codes_of
from chopper_core.tables.losses import ABSENT, number_of
from chopper_core.tables.text import FileHead, FileText
from chopper_core.tables.unread import UnreadNames, unread_fields
from chopper_core.util.arrays import Int64
from chopper_core.util.errors import DataError
from chopper_core.util.progress import Progress, silent
from chopper_core.work.kernel_classes import UNKNOWN_COLLECTIVE, collective_name

NAME: Final = "NCCL or RCCL Inspector"
FILES: Final = "[JSON lines](communication.md#inspector) of each process, in its dump directory"
EXAMPLE: Final = "NCCL_INSPECTOR_ENABLE=1 NCCL_INSPECTOR_DUMP_VERBOSE=1 torchrun …"
SUFFIXES: Final = (".log", ".jsonl", ".json")
FORMAT: Final = "Inspector log"
_CLOCK: Final = "the hosts' own"
_PLACED: Final = f"{RECONSTRUCTED} from when lines were written: the log gives durations only"
_LINE: Final = re.compile(r'^\s*\{.*"(?:coll_perf|p2p_perf|dump_stats)"\s*:', re.MULTILINE)
_NS_PER_US: Final = 1_000
_TIMES_US: Final = range(1, 2**52)
_LOOKED_AT: Final = 200
"""Lines that show which fields a log has."""
_LONGEST_US: Final = 10**12
_MOST_BYTES: Final = 1 << 62
_MAX_NAME: Final = 60
_SAME: Final = 0.02
"""Rates that differ by less are the same, but for rounding."""


class _Header(Struct):
    id: str = ""
    comm_name: str = ""
    rank: int = ABSENT
    n_ranks: int = 0
    nnodes: int = 0


class _DumpMetadata(Struct):
    dump_timestamp_us: int = 0
    hostname: str = ""
    pid: int = 0
    inspector_output_format_version: str = ""


class _EventTimes(Struct):
    coll_start_ts: Any = 0
    p2p_start_ts: Any = 0


class _Performance(Struct):
    """Of a collective, or of a message: names begin with `coll` or `p2p`."""

    coll: str = ""
    coll_sn: int = 0
    coll_algo: str = ""
    coll_proto: str = ""
    coll_msg_size_bytes: int = ABSENT
    coll_exec_time_us: float = -1.0
    coll_algobw_gbs: float = 0.0
    p2p: str = ""
    p2p_sn: int = 0
    p2p_peer: int = ABSENT
    p2p_msg_size_bytes: int = ABSENT
    p2p_exec_time_us: float = -1.0
    event_trace_ts: _EventTimes = field(default_factory=lambda: _EventTimes())


class _Dropped(Struct):
    coll_dropped_total: int = 0
    p2p_dropped_total: int = 0


class _Record(Struct):
    header: _Header | None = None
    metadata: _DumpMetadata | None = None
    coll_perf: _Performance | None = None
    p2p_perf: _Performance | None = None
    dump_stats: _Dropped | None = None
    # Before 4.0 without a header.
    id: str = ""
    rank: int = ABSENT
    n_ranks: int = 0
    hostname: str = ""
    pid: int = 0


class _LoggedColumns:
    """The operations of a process, column by column, and the texts that codes stand for."""

    def __init__(self) -> None:
        self.names, self.communicators = Interner(), Interner()
        self.name, self.communicator, self.peer = array("i"), array("i"), array("i")
        self.is_message = array("b")
        self.bytes, self.duration_ns = array("q"), array("q")
        self.start_ns, self.written_ns = array("q"), array("q")
        """0 where the log doesn't give it."""

    def __len__(self) -> int:
        return len(self.name)


class InspectorLog(Struct, frozen=True):
    """The log of a process."""

    path: Path
    host: str
    process: int
    version: str
    communicators: Mapping[str, _Header]
    operations: _LoggedColumns
    losses: Sequence[str]
    unread: Sequence[str] = ()
    """The names of fields that nothing is read from."""

    def run_of(self, name: str, parts: Sequence[InspectorLog]) -> Run:
        return _run_of(name, parts)


def recognise(head: FileHead) -> Recognised | Unusable | None:
    return Recognised(FORMAT) if head.is_json and _LINE.search(head.text) else None


def read(path: Path, progress: Progress = silent) -> InspectorLog:
    """Read the log of a process; raises DataError if no line of it is usable."""
    progress(f"read {path.name}", 0, 1)
    text = FileText(path)
    decoder = msgspec.json.Decoder(_Record, strict=False)
    unread, looked_at = UnreadNames(unread_fields(_Record)), 0
    header, metadata = None, _DumpMetadata()
    communicators: dict[str, _Header] = {}
    operations = _LoggedColumns()
    dropped: dict[str, int] = {}
    invalid = 0
    for line in text.lines():
        if not line.strip():
            continue
        if looked_at < _LOOKED_AT:
            looked_at += 1
            unread.look_at_text(line)
        try:
            record = decoder.decode(line)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            invalid += 1
            continue
        own = record.header
        if own is None and record.rank != ABSENT:
            own = _Header(record.id, "", record.rank, record.n_ranks)
        # A process writes all its lines; those of one dump follow their statistics.
        header, metadata = own or header, record.metadata or metadata
        if record.hostname and not metadata.hostname:
            metadata.hostname, metadata.pid = record.hostname, record.pid
        if header is None:
            invalid += 1
            continue
        key = header.id or f"of {header.n_ranks}"
        communicators.setdefault(key, header)
        if record.dump_stats is not None:
            lost = record.dump_stats
            dropped[key] = lost.coll_dropped_total + lost.p2p_dropped_total
            continue
        invalid += not _add(operations, record, key, header.n_ranks, metadata)
    progress(f"read {path.name}", 1, 1)
    if not len(operations):
        raise DataError(f"{path} has no collective or message with a duration.")
    losses = [*text.losses.notes]
    if invalid:
        losses.append(f"{number_of(invalid, 'line')} not usable: damaged, or without a duration")
    if total := sum(dropped.values()):
        losses.append(f"{number_of(total, 'operation')} overwritten before being written")
    version = metadata.inspector_output_format_version[:_MAX_NAME]
    host, process = metadata.hostname[:_MAX_NAME], metadata.pid
    return InspectorLog(
        path, host, process, version, communicators, operations, losses, [*unread.names]
    )


def _add(
    operations: _LoggedColumns, record: _Record, key: str, ranks: int, metadata: _DumpMetadata
) -> bool:
    """Add the operation of a line; False where it has none with a duration."""
    one, other = record.coll_perf, record.p2p_perf
    if one is not None:
        name, size, peer = one.coll, _larger_side(one, ranks), ABSENT
        lasts_us, start_us = one.coll_exec_time_us, one.event_trace_ts.coll_start_ts
        name += f" {one.coll_algo} {one.coll_proto}" if one.coll_algo else ""
    elif other is not None:
        name, size, peer = other.p2p, other.p2p_msg_size_bytes, other.p2p_peer
        lasts_us, start_us = other.p2p_exec_time_us, other.event_trace_ts.p2p_start_ts
    else:
        return False
    if not 0 <= lasts_us < _LONGEST_US or not name.strip():
        return False
    operations.name.append(operations.names[name[:_MAX_NAME].rstrip()])
    operations.communicator.append(operations.communicators[key])
    operations.is_message.append(one is None)
    operations.bytes.append(min(max(size, ABSENT), _MOST_BYTES))
    operations.duration_ns.append(round(lasts_us * _NS_PER_US))
    operations.start_ns.append(_ns(start_us))
    operations.written_ns.append(_ns(metadata.dump_timestamp_us))
    operations.peer.append(peer if ABSENT <= peer < MAX_RANKS else ABSENT)
    return True


def _ns(time_us: object) -> int:
    return time_us * _NS_PER_US if isinstance(time_us, int) and time_us in _TIMES_US else 0


def _larger_side(one: _Performance, ranks: int) -> int:
    """The bytes of a collective's larger side.

    NCCL's Inspector gives the smaller one of all-gathers and reduce-scatters, which shows in the
    rate that it computes; RCCL's gives none larger.
    """
    size = one.coll_msg_size_bytes
    rated = one.coll_algobw_gbs * 1e3 * one.coll_exec_time_us
    is_part = rated > 0 and ranks > 1 and abs(rated / max(size, 1) / ranks - 1) < _SAME
    return size * ranks if is_part and size * ranks < 2**62 else size


def _run_of(name: str, logs: Sequence[InspectorLog]) -> Run:
    ranks = _ranks(logs)
    members = _members(logs, ranks)
    is_timed = all(all(log.operations.start_ns) for log in logs)
    found = []
    for log in logs:
        operations = _operations(log, members, is_timed=is_timed)
        messages = sum(log.operations.is_message)
        counts = {"message": messages, "collective": len(operations) - messages}
        found.append(
            RankLog(
                path=log.path,
                size_bytes=log.path.stat().st_size,
                rank=ranks[log.path],
                rank_from="largest communicator",
                format=FORMAT,
                clock=_CLOCK if is_timed else _PLACED,
                operations=operations,
                events={kind: count for kind, count in counts.items() if count},
                losses=log.losses,
                facts={"version": log.version, "process": str(log.process)},
                host=log.host,
                unread={"lines": log.unread} if log.unread else {},
            )
        )
    headers = {key: header for log in logs for key, header in log.communicators.items()}
    groups = [
        ProcessGroup(*_names(header), tuple(rank for _, rank in sorted(members[key].items())))
        for key, header in headers.items()
        if len(members[key]) == header.n_ranks
    ]
    return run_of_logs(name, found, groups)


def _ranks(logs: Sequence[InspectorLog]) -> dict[Path, int]:
    """The rank of each process: that in the largest communicator, else by host and process."""
    sizes = Counter({
        key: header.n_ranks for log in logs for key, header in log.communicators.items()
    })  # fmt: skip
    for key, _ in sizes.most_common():
        found = {log.path: log.communicators[key].rank for log in logs if key in log.communicators}
        if len(found) == len(logs) == len(set(found.values())) and min(found.values()) >= 0:
            return found
    ordered = sorted(logs, key=lambda log: (log.host, log.process, log.path))
    return {log.path: number for number, log in enumerate(ordered)}


def _members(logs: Sequence[InspectorLog], ranks: Mapping[Path, int]) -> dict[str, dict[int, int]]:
    """Communicator → rank in it → rank in the job."""
    found: defaultdict[str, dict[int, int]] = defaultdict(dict)
    for log in logs:
        for key, header in log.communicators.items():
            found[key].setdefault(header.rank, ranks[log.path])
    return found


def _names(header: _Header) -> tuple[str, str]:
    """Name and description of a communicator's process group."""
    name = header.comm_name if header.comm_name != "unknown" else ""
    return header.id[:_MAX_NAME], name[:_MAX_NAME]


def _label(header: _Header) -> str:
    name, description = _names(header)
    size = header.n_ranks
    return group_label(Collective(group_name=name, group_description=description, group_size=size))


def _operations(
    log: InspectorLog, members: Mapping[str, Mapping[int, int]], *, is_timed: bool
) -> OperationColumns:
    """The operations as columns: names, kinds and peers are found once for each text and number."""
    own, texts = log.operations, Interner()
    names, keys = [*own.names], [*own.communicators]
    name, communicator = (
        np.frombuffer(own.name, np.int32),
        np.frombuffer(own.communicator, np.int32),
    )
    is_message, number = np.frombuffer(own.is_message, np.bool_), np.frombuffer(own.peer, np.int32)
    called = [texts[collective_name(each) or UNKNOWN_COLLECTIVE] for each in names]
    operation = np.where(is_message, texts[PAIRWISE], np.array(called, np.int32)[name])
    labels = np.array([texts[_label(log.communicators[key])] for key in keys], np.int32)
    kernels = np.array([texts[each] for each in names], np.int32)
    sends = np.array([not each.casefold().startswith("send") for each in names], np.int8)
    peer = np.full(len(own), ABSENT, np.int32)
    for code, key in enumerate(keys):
        ranks: dict[int, int] = defaultdict(lambda: ABSENT, members[key])
        messages = np.flatnonzero(is_message & (communicator == code))
        peer[messages] = codes_of(number[messages].tolist(), ranks.__getitem__)
    start = np.frombuffer(own.start_ns, np.int64) if is_timed else _placed(own)
    return OperationColumns(
        texts=[*texts],
        name=operation.astype(np.int32),
        kernel=kernels[name],
        group=labels[communicator],
        start_ns=start,
        duration_ns=np.frombuffer(own.duration_ns, np.int64),
        bytes=np.frombuffer(own.bytes, np.int64),
        kind=np.where(peer >= 0, sends[name], np.int8(-1)),
        peer=peer,
    )


def _placed(own: _LoggedColumns) -> Int64:
    """Starts behind which each operation ends before it was written, and before the next starts."""
    starts: list[int] = []
    after: int | None = None
    for written, lasts in zip(reversed(own.written_ns), reversed(own.duration_ns), strict=True):
        end = written if after is None or 0 < written < after else after
        after = end - lasts
        starts.append(after)
    return np.array(starts[::-1], np.int64)
