"""Where each nanosecond of a GPU goes, worked out the slow and obvious way from the raw JSON.

The rules are those of docs/accounting.md. One sweep over the elementary
pieces in plain Python: no numpy, nothing of `chopper_core`.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

STATES = ("compute_ns", "overlap_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns")
IDLE_PARTS = ("idle_host_ns", "idle_launch_ns", "idle_unknown_ns")

_KINDS = {"kernel": "compute", "gpu_memset": "compute", "gpu_memcpy": "copy"}
_LAUNCHES = ("cuda_runtime", "cuda_driver")


@dataclass(eq=False)
class Activity:
    """A kernel, copy or memset; `charged` is what it has to answer for, in ns."""

    name: str
    kind: str
    device: int
    stream: int
    row: int
    start_ns: int
    duration_ns: int
    launch_ns: int | None
    charged: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys((*STATES, *IDLE_PARTS, "hidden_ns"), 0)
    )

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.duration_ns

    @property
    def turn(self) -> tuple[int, int, int]:
        """Who comes first: the earlier start, then the lower stream, then the earlier row."""
        return self.start_ns, self.stream, self.row


def read_json(path: Path) -> dict[str, Any]:
    """A trace's document, its decimals exact."""
    raw = path.read_bytes()
    if path.suffix == ".gz":
        raw = gzip.decompress(raw)
    document: dict[str, Any] = json.loads(raw, parse_float=Decimal)
    return document


def nanoseconds(microseconds: int | Decimal) -> int:
    """Exact ns; fails where a file has parts of a nanosecond."""
    exact = microseconds * 1000
    assert exact == int(exact), microseconds
    return int(exact)


def activities_of(document: dict[str, Any]) -> list[Activity]:
    """The activities of a trace in the order of the file, with the launch call of each."""
    base_ns = document.get("baseTimeNanoseconds") or 0
    calls: dict[int, list[int]] = defaultdict(list)
    for event in document["traceEvents"]:
        if event.get("cat") in _LAUNCHES:
            correlation = event["args"].get("correlation", 0)
            calls[correlation].append(base_ns + nanoseconds(event["ts"]))
    found: list[Activity] = []
    for event in document["traceEvents"]:
        if event.get("cat") not in _KINDS:
            continue
        args = event["args"]
        start_ns = base_ns + nanoseconds(event["ts"])
        correlation = args.get("correlation", 0)
        of_call = sorted(calls[correlation]) if correlation > 0 else []
        before = [time for time in of_call if time <= start_ns]
        is_comm = event["cat"] == "kernel" and event["name"].startswith(("nccl", "rccl"))
        found.append(
            Activity(
                name=event["name"],
                kind="comm" if is_comm else _KINDS[event["cat"]],
                device=args["device"],
                stream=args["stream"],
                row=len(found),
                start_ns=start_ns,
                duration_ns=nanoseconds(event["dur"]),
                launch_ns=before[-1] if before else of_call[0] if of_call else None,
            )
        )
    return found


def account(activities: Iterable[Activity]) -> None:
    """Charge every nanosecond of each device's span to one of its activities."""
    devices = defaultdict(list)
    for activity in activities:
        devices[activity.device].append(activity)
    for own in devices.values():
        _account_device(own)


def _account_device(own: list[Activity]) -> None:
    edges = sorted({time for each in own for time in (each.start_ns, each.end_ns)})
    coming = sorted(own, key=lambda each: each.turn)
    running: list[Activity] = []
    begun = 0
    for begin, end in pairwise(edges):
        while begun < len(coming) and coming[begun].start_ns <= begin:
            running.append(coming[begun])
            begun += 1
        running = [each for each in running if each.end_ns > begin]
        first: dict[str, Activity] = {}
        for each in sorted(running, key=lambda each: each.turn):
            first.setdefault(each.kind, each)
        length = end - begin
        if "compute" in first and "comm" in first:
            first["compute"].charged["overlap_ns"] += length
            for each in running:
                each.charged["hidden_ns"] += length if each.kind == "comm" else 0
        elif "compute" in first:
            first["compute"].charged["compute_ns"] += length
        elif "comm" in first:
            first["comm"].charged["exposed_comm_ns"] += length
        elif "copy" in first:
            first["copy"].charged["exposed_copy_ns"] += length
        else:
            _charge_idle(coming[begun], begin, end)


def _charge_idle(following: Activity, begin: int, end: int) -> None:
    charged, call_ns = following.charged, following.launch_ns
    charged["idle_ns"] += end - begin
    if call_ns is None:
        charged["idle_unknown_ns"] += end - begin
    else:
        called = min(max(call_ns, begin), end)
        charged["idle_host_ns"] += called - begin
        charged["idle_launch_ns"] += end - called
