"""Tell a Kineto trace from other files by how it begins."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from msgspec import Struct

from chopper_core.sources.shared.bytes import BYTE_ORDER_MARK, ByteSource
from chopper_core.sources.shared.json_stream import members, skip_space
from chopper_core.util.errors import DataError

EVENTS_KEY: Final = "traceEvents"
FOREIGN_KEYS: Final = {
    "nodes": "is an execution trace (operators without times on the GPU), not a profiler trace; "
    "give the Kineto trace of the same run",
    "rocprofiler-sdk-tool": "is rocprofv3 JSON, not a PyTorch profiler trace",
}

_KINETO_KEYS: Final = frozenset(
    (EVENTS_KEY, "deviceProperties", "distributedInfo", "schemaVersion", "baseTimeNanoseconds")
)
_SNIFFED_BYTES: Final = 1 << 16


class Mismatch(Struct, frozen=True):
    """Why a file doesn't look like a Kineto trace."""

    reason: str
    """The rest of a sentence that starts with the file: "is empty"."""
    damaged: bool = False
    """Whether nothing of the file can be read, so that it may be a trace after all."""


def why_no_kineto_trace(path: Path) -> Mismatch | None:
    """Return why the file doesn't look like a Kineto trace; None where it does."""
    try:
        with ByteSource(path, _SNIFFED_BYTES) as source:
            head = source.read().removeprefix(BYTE_ORDER_MARK)
    except DataError as error:
        return Mismatch(str(error).removeprefix(f"{path} ").rstrip("."), damaged=True)
    start = skip_space(head)
    if start == len(head):
        return Mismatch("is empty", damaged=True)
    opening = head[start : start + 1]
    if opening == b"[":
        is_event_list = b'"ph"' in head
        return None if is_event_list else Mismatch("is a JSON list, but not of trace events")
    if opening != b"{":
        return Mismatch("is not JSON")
    keys = [member.key for member in members(head, start + 1, stop_at=EVENTS_KEY)]
    for key in keys:
        if key in FOREIGN_KEYS:
            return Mismatch(FOREIGN_KEYS[key])
    if _KINETO_KEYS.intersection(keys) or f'"{EVENTS_KEY}"'.encode() in head:
        return None
    return Mismatch(f"is JSON, but has no {EVENTS_KEY}")
