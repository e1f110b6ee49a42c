"""Kineto: the Chrome trace that the PyTorch profiler writes, one file per rank."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from msgspec.structs import replace

from chopper_core.model.operator_inputs import json_in
from chopper_core.sources.foreign import what_is, why_no_activity
from chopper_core.sources.kineto.events import LAUNCH_CATEGORIES, PLACES
from chopper_core.sources.kineto.parts import read_text
from chopper_core.sources.kineto.text import EVENTS_KEY, FOREIGN_KEYS, TraceText
from chopper_core.sources.registry import Recognised, Unusable
from chopper_core.sources.trace import Activities, Arrows, Syncs, Trace
from chopper_core.tables.bytes import ByteSource
from chopper_core.tables.columns import LATEST_NS, codes_of, cut_name, integer
from chopper_core.tables.json_stream import members, skip_space
from chopper_core.tables.losses import ABSENT, Losses, newer_than
from chopper_core.tables.text import FileHead
from chopper_core.util.atomic import FileState, file_state
from chopper_core.util.compression import COMPRESSED_ENDINGS, COMPRESSED_TRACE
from chopper_core.util.errors import DataError
from chopper_core.util.grouping import distinct
from chopper_core.util.patterns import late
from chopper_core.util.progress import Progress, silent

NAME: Final = "PyTorch profiler (Kineto)"
FILES: Final = "`.json`, AMD and NVIDIA, torch 1.12 to 2.10, one file per rank"
EXAMPLE: Final = f'profiler.export_chrome_trace("trace/rank0{COMPRESSED_TRACE}")'
SUFFIXES: Final = (".json", *COMPRESSED_ENDINGS)

_PIECE_BYTES: Final = 1 << 20
"""Of text whose events fit into a processor's cache."""
MAX_METADATA_BYTES: Final = 1 << 18
"""Of a larger value of a top-level key, only numbers and texts are kept."""

_NEWEST_SCHEMA: Final = 1
"""The newest `schemaVersion` that this reader was checked against."""
_LOGGED: Final = ("ERROR", "WARNING")
_LOG_HEAD: Final = late(r"^(?:ERROR|WARNING):[^\]]{0,200}\] ?")
"""The level, time, process and place in the source before each line of the log."""
_MAX_MESSAGES: Final = 20
_KINETO_KEYS: Final = frozenset(
    (EVENTS_KEY, "deviceProperties", "distributedInfo", "schemaVersion", "baseTimeNanoseconds")
)
_TRACE: Final = Recognised("Kineto trace")
_OfRank = TypeVar("_OfRank", Activities, Syncs, Arrows)
_PIDS: Final = "[TPnn] before each pid: the file merges several ranks"
_MERGED_PID: Final = late(r'"pid"\s*:\s*"\[TP\d')
_OPERATOR: Final = b'"cpu_op"'
_GPU_WORK: Final = (
    *(b'"kernel"', b'"gpu_memcpy"', b'"gpu_memset"', b'"Kernel"', b'"Memcpy"'),
    b'"cuda_profiler_range"',
)
"""Categories in a trace, also of older versions."""


def recognise(head: FileHead) -> Recognised | Unusable:
    """Tell a trace by its first keys, or a bare list of events by their phases."""
    data = head.data
    start = skip_space(data)
    if start == len(data):
        return Unusable(what_is(head), is_damaged=True)
    opening = data[start : start + 1]
    if opening == b"[" and b'"ph"' in data:
        return _TRACE
    if opening == b"{":
        keys = [member.key for member in members(data, start + 1, stop_at=EVENTS_KEY)]
        is_foreign = any(key in FOREIGN_KEYS for key in keys)
        is_named = _KINETO_KEYS.intersection(keys) or f'"{EVENTS_KEY}"'.encode() in data
        if is_named and not is_foreign:
            return _TRACE
    return Unusable(what_is(head))


def read(path: Path, progress: Progress = silent, *, piece_bytes: int = _PIECE_BYTES) -> Trace:
    """Read the trace of one rank, compressed or not; memory grows with its columns only.

    Damaged events are lost and counted in `Trace.losses`.
    Raises DataError if the file can't be read or is not such a trace.
    """
    whole = read_text(path, piece_bytes, progress)
    tables, losses = whole.tables, whole.losses
    progress(f"read {path.name}", whole.size_bytes, whole.size_bytes)
    if not any(tables.event_counts.keys()):
        counts = dict(tables.event_counts)
        why = why_no_activity(FileHead(path), counts) if counts else "holds no events."
        raise DataError(f"{path} {why}")
    metadata = {key: _metadata_value(value) for key, value in whole.members.items()}
    base_time_ns = _base_time_ns(metadata, losses)
    losses.bad_times, losses.bad_host_times = tables.bad_times, tables.bad_host_times
    losses.newer = newer_than(metadata.get("schemaVersion", 0), _NEWEST_SCHEMA)
    _note_messages(metadata, losses)
    _note_counts(losses)
    trace = Trace(
        path=path,
        size_bytes=whole.size_bytes,
        metadata=metadata,
        rank=_rank(metadata),
        base_time_ns=base_time_ns,
        losses=losses,
        **tables.finished(base_time_ns or 0),
    )
    is_merged = bool(np.not_equal(trace.activities.rank, ABSENT).any())
    is_merged = is_merged and merges_by_pid(FileHead(path))
    return _numbered(replace(trace, ranks_from=_PIDS)) if is_merged else trace


def _numbered(trace: Trace) -> Trace:
    """The trace with ranks from 0 on, where theirs have a stage or a replica in them."""
    known = trace.activities.rank
    if int(known.max()) < 1 << min(PLACES.values()):
        return trace
    ranks = distinct(known[known != ABSENT])
    number = {ABSENT: ABSENT, **{rank: at for at, rank in enumerate(ranks.tolist())}}

    def renumbered(rows: _OfRank) -> _OfRank:
        own = codes_of(rows.rank.tolist(), lambda rank: number.get(rank, ABSENT))
        return replace(rows, rank=own.astype(np.int32))

    return replace(
        trace,
        activities=renumbered(trace.activities),
        syncs=renumbered(trace.syncs),
        arrows=renumbered(trace.arrows),
        threads=[(*rest, number.get(rank, ABSENT)) for *rest, rank in trace.threads],
    )


def _metadata_value(text: bytes) -> Any:
    try:
        value = json.loads(text.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        return None
    if len(text) <= MAX_METADATA_BYTES:
        return value
    if isinstance(value, dict):
        return {
            key: member
            for key, member in value.items()
            if isinstance(member, int | float | str) and len(str(member)) <= MAX_METADATA_BYTES
        }
    return f"({len(text):,} bytes)"


def _base_time_ns(metadata: Mapping[str, Any], losses: Losses) -> int | None:
    if "baseTimeNanoseconds" not in metadata:
        return None
    base_time_ns = integer(metadata["baseTimeNanoseconds"])
    if base_time_ns is None or not 0 <= base_time_ns < LATEST_NS:
        losses.notes.append("baseTimeNanoseconds is not a valid time and was ignored.")
        return None
    return base_time_ns


def _rank(metadata: Mapping[str, Any]) -> int | None:
    information = metadata.get("distributedInfo")
    rank = integer(information.get("rank")) if isinstance(information, Mapping) else None
    return rank if rank is not None and rank >= 0 else None


def _note_messages(metadata: Mapping[str, Any], losses: Losses) -> None:
    """Note what the profiler logged as it recorded: lists of lines by their level."""
    for level in _LOGGED:
        lines = metadata.get(level)
        said = [_LOG_HEAD.sub("", str(line)) for line in lines] if isinstance(lines, list) else []
        for text in list(dict.fromkeys(said))[:_MAX_MESSAGES]:
            losses.heard("the PyTorch profiler", cut_name(text))


def _note_counts(losses: Losses) -> None:
    losses.note(losses.repaired_pieces, "piece", "of the file had invalid JSON")
    losses.note(losses.unreadable_events, "event", "could not be read")
    losses.note(losses.bad_times, "event", "without a valid time left out")


def launched_kernels(path: Path) -> dict[int, str]:
    """Correlation id of a launch → the name of its kernel, where the launch has it."""
    found: dict[int, str] = {}
    with ByteSource(path) as source:
        for events in TraceText(source, Losses()).batches():
            own = (each.args for each in events if each.cat in LAUNCH_CATEGORIES and each.args)
            for args in own:
                correlation, name = integer(args.correlation), json_in(bytes(args.kernel).decode())
                if correlation is not None and isinstance(name, str):
                    found[correlation] = name
    return found


_BEGINS_CAPTURE: Final = b"StreamBeginCapture"
_REPLAYS: Final = b"GraphLaunch"
_MOST_SEARCHED: Final = 1 << 26
"""Bytes of a file that is searched for captures; a capture of one batch size has fewer."""


def holds_captures(path: Path) -> bool:
    """Whether a trace captures graphs, and replays none."""
    return _has_without(path, _BEGINS_CAPTURE, (_REPLAYS,))


def merges_by_pid(head: FileHead) -> bool:
    """Whether a trace merges those of several ranks, as SGLang does."""
    return _MERGED_PID.search(head.text) is not None


def lacks_gpu_work(path: Path) -> bool:
    """Whether a trace has operators of a host and no kernel, copy or memset of a GPU."""
    return _has_without(path, _OPERATOR, _GPU_WORK)


def _has_without(path: Path, wanted: bytes, unwanted: tuple[bytes, ...]) -> bool:
    """Whether a text is in a file and none of some others is; a file is searched once."""
    state = file_state(path)
    return (
        state is not None and state[0] <= _MOST_SEARCHED and _search(path, state, wanted, unwanted)
    )


@lru_cache(1 << 12)
def _search(path: Path, _state: FileState, wanted: bytes, unwanted: tuple[bytes, ...]) -> bool:
    has_wanted, tail = False, b""
    with suppress(DataError), ByteSource(path) as source:
        while piece := source.read():
            text = tail + piece
            if any(each in text for each in unwanted):
                return False
            has_wanted, tail = has_wanted or wanted in text, text[-32:]
    return has_wanted
