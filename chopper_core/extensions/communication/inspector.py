"""NCCL's and RCCL's Inspector: JSON lines of each process, a line per collective or message.

Since 4.3 a line `dump_stats` has the communicator of the lines that follow it; before, each line
has its own. Verbose logs have the time of each operation; others only its duration and when it was
written, behind which operations are placed one before the other.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from chopper_core.align.collectives import group_label
from chopper_core.extensions.communication.job_run import (
    PAIRWISE,
    Operation,
    RankLog,
    run_of_logs,
)
from chopper_core.model.inputs import RECONSTRUCTED
from chopper_core.model.parallel import ProcessGroup
from chopper_core.model.run import Run
from chopper_core.sources.registry import Recognised, Unusable
from chopper_core.sources.trace import Collective
from chopper_core.tables.losses import ABSENT, number_of
from chopper_core.tables.text import FileHead, FileText
from chopper_core.tables.unread import UnreadNames, fields_of
from chopper_core.util.errors import DataError
from chopper_core.util.progress import Progress, silent
from chopper_core.work.kernel_classes import UNKNOWN_COLLECTIVE, collective_name

NAME: Final = "NCCL or RCCL Inspector"
FILES: Final = "[JSON lines](communication.md#inspector) of each process, in its dump directory"
EXAMPLE: Final = "NCCL_INSPECTOR_ENABLE=1 NCCL_INSPECTOR_DUMP_VERBOSE=1 torchrun …"
SUFFIXES: Final = (".log", ".jsonl", ".json", ".log.gz", ".jsonl.gz", ".json.gz")
FORMAT: Final = "Inspector log"
_CLOCK: Final = "the hosts' own"
_PLACED: Final = f"{RECONSTRUCTED} from when lines were written: the log gives durations only"
_LINE: Final = re.compile(r'^\s*\{.*"(?:coll_perf|p2p_perf|dump_stats)"\s*:', re.MULTILINE)
_NS_PER_US: Final = 1_000
_TIMES_US: Final = range(1, 2**52)
_LOOKED_AT: Final = 200
"""Lines that show which fields a log has."""
_LONGEST_US: Final = 10**12
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
    event_trace_ts: dict[str, Any] = field(default_factory=dict)


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


class _Logged(Struct, frozen=True):
    """An operation of a process."""

    communicator: str
    is_message: bool
    name: str
    number: int
    bytes: int
    duration_ns: int
    start_ns: int
    """0 where the log doesn't give it."""
    written_ns: int
    peer: int


class InspectorLog(Struct, frozen=True):
    """The log of a process."""

    path: Path
    host: str
    process: int
    version: str
    communicators: Mapping[str, _Header]
    operations: Sequence[_Logged]
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
    unread, looked_at = UnreadNames(fields_of(_Record)), 0
    header, metadata = None, _DumpMetadata()
    communicators: dict[str, _Header] = {}
    operations: list[_Logged] = []
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
        found = _logged(record, key, header.n_ranks, metadata)
        if found is None:
            invalid += 1
        else:
            operations.append(found)
    progress(f"read {path.name}", 1, 1)
    if not operations:
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


def _logged(
    record: _Record, communicator: str, ranks: int, metadata: _DumpMetadata
) -> _Logged | None:
    one, other = record.coll_perf, record.p2p_perf
    if one is not None:
        name, number, size, peer = one.coll, one.coll_sn, _larger_side(one, ranks), ABSENT
        lasts_us, start_us = one.coll_exec_time_us, one.event_trace_ts.get("coll_start_ts")
        name += f" {one.coll_algo} {one.coll_proto}" if one.coll_algo else ""
    elif other is not None:
        name, number, size, peer = other.p2p, other.p2p_sn, other.p2p_msg_size_bytes, other.p2p_peer
        lasts_us, start_us = other.p2p_exec_time_us, other.event_trace_ts.get("p2p_start_ts")
    else:
        return None
    if not 0 <= lasts_us < _LONGEST_US or not name.strip():
        return None
    written_us = metadata.dump_timestamp_us
    return _Logged(
        communicator,
        one is None,
        name[:_MAX_NAME].rstrip(),
        number,
        max(size, ABSENT),
        round(lasts_us * _NS_PER_US),
        _ns(start_us),
        _ns(written_us),
        peer,
    )


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
    is_timed = all(each.start_ns for log in logs for each in log.operations)
    found = []
    for log in logs:
        operations = [*_operations(log, members, is_timed=is_timed)]
        counts = Counter("message" if each.is_message else "collective" for each in log.operations)
        found.append(
            RankLog(
                path=log.path,
                size_bytes=log.path.stat().st_size,
                rank=ranks[log.path],
                rank_from="largest communicator",
                format=FORMAT,
                clock=_CLOCK if is_timed else _PLACED,
                operations=operations,
                events=dict(counts),
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
) -> Iterator[Operation]:
    labels = {key: _label(header) for key, header in log.communicators.items()}
    starts = [each.start_ns for each in log.operations] if is_timed else _placed(log.operations)
    for each, start in zip(log.operations, starts, strict=True):
        called = PAIRWISE if each.is_message else collective_name(each.name) or UNKNOWN_COLLECTIVE
        kind = "COMM_SEND" if each.name.casefold().startswith("send") else "COMM_RECV"
        rank = members[each.communicator].get(each.peer)
        peer = (kind, rank) if each.is_message and rank is not None else None
        label = labels[each.communicator]
        yield Operation(called, each.name, label, start, each.duration_ns, each.bytes, peer)


def _placed(operations: Sequence[_Logged]) -> list[int]:
    """Starts behind which each operation ends before it was written, and before the next starts."""
    starts: list[int] = []
    after: int | None = None
    for each in reversed(operations):
        end = each.written_ns if after is None or 0 < each.written_ns < after else after
        after = end - each.duration_ns
        starts.append(after)
    return starts[::-1]
