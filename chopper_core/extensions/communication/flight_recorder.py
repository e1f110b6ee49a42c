"""PyTorch's flight recorder: the last collectives of each rank, dumped when a job hangs.

A dump is a pickle of dicts, lists, texts and numbers (`TORCH_NCCL_DUMP_ON_TIMEOUT`), or its JSON
(`_dump_nccl_trace_json`). Pickles are read without running any code: whatever names a class or a
function is refused.
"""

from __future__ import annotations

import pickle
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from chopper_core.align.collectives import group_label
from chopper_core.extensions.communication.hangs import COMPLETED, Called, Message, hang_of
from chopper_core.extensions.communication.job_run import (
    PAIRWISE,
    Operation,
    OperationColumns,
    RankLog,
    run_of_logs,
)
from chopper_core.model.doubts import Doubt
from chopper_core.model.hardware import type_bytes
from chopper_core.model.parallel import ProcessGroup
from chopper_core.model.run import Run
from chopper_core.sources.registry import Recognised, Unusable
from chopper_core.sources.trace import Collective
from chopper_core.tables.bytes import ByteSource
from chopper_core.tables.losses import ABSENT, number_of
from chopper_core.tables.text import FileHead
from chopper_core.tables.unread import UnreadNames
from chopper_core.util.compression import COMPRESSED
from chopper_core.util.errors import DataError
from chopper_core.util.progress import Progress, silent
from chopper_core.work.kernel_classes import UNKNOWN_COLLECTIVE, UNNAMED, collective_name

NAME: Final = "PyTorch flight recorder"
FILES: Final = "[dumps of all ranks](communication.md), `nccl_trace_rank_<rank>` (pickle) or JSON"
EXAMPLE: Final = "TORCH_FR_BUFFER_SIZE=20000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 torchrun …"
SUFFIXES: Final = ()
FORMAT: Final = "flight recorder dump"
_CLOCK: Final = "the hosts' own"
_KEYS: Final = (b"profiling_name", b"time_created_ns", b"pg_config", b"pg_status")
_LEAST_KEYS: Final = 2
_PICKLED: Final = b"\x80"
_HEAD_BYTES: Final = 1 << 16
_MAX_BYTES: Final = 1 << 30
_MAX_NAME: Final = 80
_MAX_DIMENSIONS: Final = 64
_MAX_TENSORS: Final = 1 << 16
_RANK: Final = re.compile(rf"(\d+)(?:\.\w+)?{COMPRESSED}$")
_ENDS: Final = re.compile(r":(send|recv) (\d+)(?:->|<-)(\d+)")
_LOOKED_AT: Final = 100
"""Entries that show which fields a dump has."""
_OF_DUMP: Final = ("entries", "pg_config", "rank", "version")
_OF_ENTRY: Final = (
    "profiling_name", "process_group", "is_p2p", "p2p_seq_id", "collective_seq_id", "seq_id",
    "duration_ms", "input_sizes", "output_sizes", "input_dtypes", "output_dtypes", "state",
    "time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns",
)  # fmt: skip
"""Fields that something is read from."""
_TIMES: Final = range(2**62)
_NS_PER_MS: Final = 1_000_000
_PICKLE_ERRORS: Final = (
    pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, LookupError,
    MemoryError, OverflowError, RecursionError,
)  # fmt: skip


class _DataOnly(pickle.Unpickler):
    """Reads plain data; what names a class or a function is refused."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        raise pickle.UnpicklingError(f"names {module_name[:40]}.{global_name[:40]}, which may run")


class _Entry(Struct, frozen=True):
    """A collective or message in a dump."""

    name: str
    group: str
    number: int
    state: str
    created_ns: int
    started_ns: int
    ended_ns: int
    duration_ns: int
    """By events of the GPU; ABSENT where these weren't recorded."""
    bytes: int
    sizes: tuple[tuple[int, ...], ...]
    ends: tuple[str, int, int] | None
    """Of a message `send` or `recv`, its sender and receiver in the group."""


class FlightDump(Struct, frozen=True):
    """The dump of a rank."""

    path: Path
    rank: int
    """ABSENT where its name has none."""
    version: str
    groups: Mapping[str, ProcessGroup]
    """By label; without ranks those of all of the job."""
    entries: Sequence[_Entry]
    invalid: int
    unread: Mapping[str, Sequence[str]] = {}
    """The names of fields that nothing is read from."""

    def run_of(self, name: str, parts: Sequence[FlightDump]) -> Run:
        return _run_of(name, parts)


def recognise(head: FileHead) -> Recognised | Unusable | None:
    data = head.data if head.data else _raw_head(head)
    if not (data.startswith(_PICKLED) or head.is_json):
        return None
    return Recognised(FORMAT) if sum(key in data for key in _KEYS) >= _LEAST_KEYS else None


def _raw_head(head: FileHead) -> bytes:
    """The start of a pickle, which nothing else reads."""
    if not head.magic.startswith(_PICKLED):
        return b""
    with head.path.open("rb") as file:
        return file.read(_HEAD_BYTES)


def read(path: Path, progress: Progress = silent) -> FlightDump:
    """Read the dump of a rank; raises DataError if it holds no list of entries."""
    progress(f"read {path.name}", 0, 1)
    with ByteSource(path, foreign=False) as source:
        data = source.read_all(_MAX_BYTES)
    dump = _loaded(path, data)
    raw = dump.get("entries") if isinstance(dump, dict) else None
    if not isinstance(dump, dict) or not isinstance(raw, (list, tuple)) or len(raw) > len(data):
        raise DataError(f"{path} is no dump of a flight recorder: it has no list of entries.")
    groups = _groups(dump.get("pg_config"))
    entries = [entry for each in raw if (entry := _entry(each)) is not None]
    match = _RANK.search(path.name)
    stated = dump.get("rank")
    rank = stated if type(stated) is int else int(match[1]) if match else ABSENT
    progress(f"read {path.name}", 1, 1)
    version = str(dump.get("version", ""))[:20]
    return FlightDump(
        path, rank, version, groups, entries, len(raw) - len(entries), _unread(dump, raw)
    )


def _unread(dump: Mapping[Any, Any], entries: Sequence[Any]) -> dict[str, Sequence[str]]:
    """The names of fields that nothing is read from, of the dump and of its entries."""
    of_dump, of_entry = UnreadNames(_OF_DUMP), UnreadNames(_OF_ENTRY)
    of_dump.look_at(dump)
    for each in entries[:_LOOKED_AT]:
        of_entry.look_at(each)
    found = {"the file": [*of_dump.names], "entries": [*of_entry.names]}
    return {what: names for what, names in found.items() if names}


def _loaded(path: Path, data: bytes) -> Any:
    if not data.startswith(_PICKLED):
        try:
            return msgspec.json.decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise DataError(
                f"{path} can't be read as a flight recorder's JSON: {error}."
            ) from error
    try:
        return _DataOnly(BytesIO(data)).load()
    except _PICKLE_ERRORS as error:
        raise DataError(
            f"{path} can't be read as a flight recorder's dump, a pickle of plain data: {error}."
        ) from error


def _groups(config: Any) -> dict[str, ProcessGroup]:
    found: dict[str, ProcessGroup] = {}
    for key, each in config.items() if isinstance(config, dict) else ():
        if isinstance(each, dict):
            name, description = (
                str(text)[:_MAX_NAME] for text in (each.get("name", key), each.get("desc", ""))
            )
            ranks = _ranks_in(each.get("ranks"))
            found[_label(name, description)] = ProcessGroup(name, description, ranks)
    return found


def _ranks_in(ranks: Any) -> tuple[int, ...]:
    if isinstance(ranks, str):
        try:
            ranks = msgspec.json.decode(ranks)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return ()
    is_list = isinstance(ranks, (list, tuple)) and len(ranks) <= _MAX_BYTES
    return tuple(each for each in ranks if type(each) is int) if is_list else ()


def _label(name: Any, description: Any) -> str:
    return group_label(
        Collective(group_name=str(name)[:_MAX_NAME], group_description=str(description)[:_MAX_NAME])
    )


def _entry(raw: Any) -> _Entry | None:
    if not isinstance(raw, dict) or not isinstance(raw.get("profiling_name"), str):
        return None
    group = raw.get("process_group")
    pair = group if isinstance(group, (list, tuple)) and len(group) == 2 else ("", "")
    name = raw["profiling_name"][:120]
    is_message = raw.get("is_p2p") is True or _ENDS.search(name) is not None
    number = _whole(raw, "p2p_seq_id" if is_message else "collective_seq_id", "seq_id")
    lasts = raw.get("duration_ms")
    is_time = isinstance(lasts, (int, float)) and 0 <= lasts < 1e9
    match = _ENDS.search(name)
    ends = None
    if match:
        first, second = int(match[2][:6]), int(match[3][:6])
        ends = (match[1], first, second) if match[1] == "send" else (match[1], second, first)
    sizes = [_shapes(raw.get(f"{side}_sizes")) for side in ("input", "output")]
    types = [raw.get(f"{side}_dtypes") for side in ("input", "output")]
    return _Entry(
        name=name,
        group=_label(*pair) or UNNAMED,
        number=number,
        state=str(raw.get("state", ""))[:20],
        created_ns=_whole(raw, "time_created_ns"),
        started_ns=_whole(raw, "time_discovered_started_ns"),
        ended_ns=_whole(raw, "time_discovered_completed_ns"),
        duration_ns=round(float(lasts) * _NS_PER_MS) if is_time else ABSENT,  # type: ignore[arg-type]
        bytes=max(map(_bytes_of, sizes, types)),
        sizes=sizes[0],
        ends=ends,
    )


def _whole(raw: Mapping[str, Any], *names: str) -> int:
    values = (raw.get(name) for name in names)
    return next((each for each in values if type(each) is int and each in _TIMES), 0)


def _shapes(sizes: Any) -> tuple[tuple[int, ...], ...]:
    found = []
    for each in sizes[:_MAX_TENSORS] if isinstance(sizes, (list, tuple)) else ():
        shape = each[:_MAX_DIMENSIONS] if isinstance(each, (list, tuple)) else ()
        found.append(tuple(size for size in shape if type(size) is int))
    return tuple(found)


def _bytes_of(sizes: tuple[tuple[int, ...], ...], types: Any) -> int:
    """The bytes of tensors; ABSENT where a type isn't known."""
    spelled = [str(each) for each in types] if isinstance(types, (list, tuple)) else []
    widths = [type_bytes(each) for each in spelled]
    if not sizes or len(widths) != len(sizes) or None in widths:
        return ABSENT
    total = sum(
        prod(shape) * width for shape, width in zip(sizes, widths, strict=True) if width is not None
    )
    return total if 0 <= total < 2**62 else ABSENT


def _run_of(name: str, dumps: Sequence[FlightDump]) -> Run:
    dumps = _with_ranks(dumps)
    everyone = tuple(dump.rank for dump in dumps)
    groups = {label: group for dump in dumps for label, group in dump.groups.items() if group.ranks}
    members = {label: group.ranks for label, group in groups.items()}
    for label in dict.fromkeys(each.group for dump in dumps for each in dump.entries):
        members.setdefault(label, everyone)
    hang, waiting = hang_of(
        {dump.rank: [*_calls(dump)] for dump in dumps},
        members,
        {dump.rank: [*_open_messages(dump, members)] for dump in dumps},
    )
    entries = [each for dump in dumps for each in dump.entries]
    latest = max(
        (max(each.created_ns, each.started_ns, each.ended_ns) for each in entries), default=0
    )
    logs = []
    for dump in dumps:
        operations = OperationColumns.of(_operations(dump, members, latest))
        untimed = len(dump.entries) - len(operations)
        states = Counter(each.state or "without a state" for each in dump.entries)
        lost = f"{number_of(dump.invalid, 'entry')} without a name or a valid form left out"
        logs.append(
            RankLog(
                path=dump.path,
                size_bytes=dump.path.stat().st_size,
                rank=dump.rank,
                rank_from="file name",
                format=FORMAT,
                clock=_CLOCK,
                operations=operations,
                events={f"{state} operation": count for state, count in states.items()},
                unused={"operation that never started": untimed} if untimed else {},
                losses=[lost] if dump.invalid else [],
                facts={"version": dump.version} if dump.version else {},
                unread=dump.unread,
            )
        )
    if hang:
        logs[0].doubts = (Doubt("hang", waiting, max(len(dumps), 1), text=hang),)
    return run_of_logs(name, logs, [*groups.values()])


def _with_ranks(dumps: Sequence[FlightDump]) -> list[FlightDump]:
    """Raise DataError where two dumps are of one rank."""
    ranks = [dump.rank for dump in dumps]
    if ABSENT in ranks:
        ranks = [*range(len(dumps))]
    twice = next((rank for rank, count in Counter(ranks).items() if count > 1), None)
    pairs = [*zip(ranks, dumps, strict=True)]
    if twice is not None:
        one, other = [dump.path for rank, dump in pairs if rank == twice][:2]
        raise DataError(f"{one} and {other} are dumps of rank {twice}; open those of one hang.")
    found = [msgspec.structs.replace(dump, rank=rank) for rank, dump in pairs]
    return sorted(found, key=lambda dump: dump.rank)


def _calls(dump: FlightDump) -> Iterator[Called]:
    for each in dump.entries:
        if each.ends is None and not each.name.endswith("coalesced"):
            name = collective_name(each.name) or each.name.rpartition(":")[2]
            is_uneven = name in ("all_to_all", "scatter", "gather")
            sizes = () if is_uneven else each.sizes
            since = each.started_ns or each.created_ns
            yield Called(each.group, each.number, name, sizes, each.state, since)


def _open_messages(dump: FlightDump, members: Mapping[str, Sequence[int]]) -> Iterator[Message]:
    for each in dump.entries:
        peer = _peer(each, members)
        if peer is not None and each.state != COMPLETED:
            name = each.name.rpartition(":")[2]
            yield Message(name, each.group, peer[1], each.started_ns or each.created_ns)


def _peer(each: _Entry, members: Mapping[str, Sequence[int]]) -> tuple[str, int] | None:
    """The kind of a message and the rank at its other end; None of a collective."""
    ranks = sorted(members.get(each.group, ()))
    if each.ends is None or max(each.ends[1:]) >= len(ranks):
        return None
    kind, sender, receiver = each.ends
    if kind == "send":
        return "COMM_SEND", ranks[receiver]
    return "COMM_RECV", ranks[sender]


def _operations(
    dump: FlightDump, members: Mapping[str, Sequence[int]], latest_ns: int
) -> Iterator[Operation]:
    """What has started; what hasn't ended lasts until the last time in all dumps."""
    for each in dump.entries:
        start = each.started_ns or (each.created_ns if each.state != "scheduled" else 0)
        if not start:
            continue
        lasts = each.duration_ns
        if lasts == ABSENT:
            ended = each.ended_ns if each.state == COMPLETED else latest_ns
            lasts = max(ended - start, 0)
        ranks = members.get(each.group, ())
        called = PAIRWISE if each.ends else collective_name(each.name) or UNKNOWN_COLLECTIVE
        label = f"{each.group} of {len(ranks)}" if ranks else each.group
        suffix = "" if each.state == COMPLETED else f" ({each.state})"
        yield Operation(
            called, each.name + suffix, label, start, lasts, each.bytes, _peer(each, members)
        )
