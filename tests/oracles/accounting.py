"""Where each nanosecond of a GPU goes, worked out the slow and obvious way from the raw JSON.

The rules are those of docs/accounting.md. One sweep over the elementary
pieces in plain Python: no numpy, nothing of `chopper_core`.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

STATES = ("compute_ns", "overlap_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns")
IDLE_PARTS = ("idle_host_ns", "idle_launch_ns", "idle_unknown_ns")
CHARGED = (*STATES, *IDLE_PARTS, "idle_after_ns", "hidden_ns")

QUICK_LAUNCH_NS = 100_000
"""What starts that soon after its launch call waited for nothing."""

_KINDS = {"kernel": "compute", "gpu_memset": "compute", "gpu_memcpy": "copy"}
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_STEPS = (
    re.compile(r"Iteration ?_?#?(\d+)"),
    re.compile(r"ProfilerStep#(\d+)"),
    re.compile(r"(?:train_)?step[ _#](\d+)"),
)
"""The annotations of steps, those nearest to the loop first."""
_STARTS_WORK = re.compile(r"Launch(?:Cooperative)?Kernel|ModuleLaunch|GraphLaunch")
_WAITS = re.compile(r"^(?:cuda|hip|cu)(?:Device|Stream|Ctx)Synchronize")


@dataclass(eq=False)
class Step:
    """An annotation of a step, in ns."""

    number: int
    begin_ns: int
    end_ns: int
    opens_window: bool = False
    """Whether the step before it is not in the file: its number isn't the one before plus 1."""


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
    step: Step | None = None
    charged: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CHARGED, 0))

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.duration_ns

    @property
    def turn(self) -> tuple[int, int, int]:
        """Who comes first: the earlier start, then the lower stream, then the earlier row."""
        return self.start_ns, self.stream, self.row


@dataclass(eq=False)
class Outside:
    """Idle time of a GPU outside steps, up to its end."""

    device: int
    end_ns: int
    idle_ns: int


@dataclass(eq=False)
class Host:
    """What a rank's host says of steps, all of it in order of time."""

    steps: Sequence[Step] = ()
    lost: Sequence[int] = ()
    """Launch calls without an activity: when they begin."""
    launches: Sequence[int] = ()
    """All launch calls of kernels: when they begin."""
    waits: Sequence[tuple[int, int]] = ()
    """When synchronizations begin and end."""


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


def host_of(document: dict[str, Any]) -> Host:
    """The annotated steps of a trace, its lost launches and its synchronizations."""
    base_ns = document.get("baseTimeNanoseconds") or 0
    used = {
        event["args"].get("correlation", 0)
        for event in document["traceEvents"]
        if event.get("cat") in _KINDS
    }
    ranges: dict[int, list[Step]] = defaultdict(list)
    lost: list[int] = []
    launches: list[int] = []
    waits: list[tuple[int, int]] = []
    for event in document["traceEvents"]:
        if event.get("ph") != "X":
            continue
        begin_ns = base_ns + nanoseconds(event["ts"])
        end_ns = begin_ns + nanoseconds(event["dur"])
        if event.get("cat") == "user_annotation":
            for order, pattern in enumerate(_STEPS):
                if match := pattern.fullmatch(event["name"]):
                    ranges[order].append(Step(int(match[1]), begin_ns, end_ns))
        elif event.get("cat") in _LAUNCHES:
            correlation = event["args"].get("correlation", 0)
            if _WAITS.match(event["name"]):
                waits.append((begin_ns, end_ns))
            if _STARTS_WORK.search(event["name"]):
                launches.append(begin_ns)
                if correlation not in used or correlation <= 0:
                    lost.append(begin_ns)
    steps = _in_order(ranges[min(ranges)]) if ranges else []
    return Host(steps, sorted(lost), sorted(launches), sorted(waits))


def _in_order(ranges: list[Step]) -> list[Step]:
    """The outermost steps; one that begins in another begins when that ends, or continues it if
    both have one number."""
    found: list[Step] = []
    for step in sorted(ranges, key=lambda each: (each.begin_ns, -each.end_ns)):
        last = found[-1] if found else None
        if last and step.begin_ns < last.end_ns and step.number == last.number:
            last.end_ns = max(last.end_ns, step.end_ns)
            continue
        begin_ns = max(step.begin_ns, last.end_ns) if last else step.begin_ns
        if step.end_ns > begin_ns:
            opens = last is None or step.number != last.number + 1
            found.append(Step(step.number, begin_ns, step.end_ns, opens))
    return found


def put_into_steps(activities: Iterable[Activity], steps: Sequence[Step]) -> None:
    """The step of an activity is the one whose annotation holds its launch call."""
    for each in activities:
        for step in steps:
            if each.launch_ns is not None and step.begin_ns <= each.launch_ns <= step.end_ns:
                each.step = step


def _median(values: Iterable[int]) -> Fraction:
    ordered = sorted(values)
    middle = len(ordered) // 2
    low = ordered[middle - 1 + len(ordered) % 2]
    return Fraction(low + ordered[middle], 2)


def own_gap(steps: Sequence[Step], step: Step) -> int:
    """What of the time between a step's annotation and the one before is the loop's own."""
    gaps = {
        after: after.begin_ns - before.end_ns
        for before, after in pairwise(steps)
        if not after.opens_window
    }
    if step not in gaps:
        return 0
    length = _median(step.end_ns - step.begin_ns for step in steps)
    if len(gaps) < 3:
        return min(gaps[step], int(length / 10))
    usual = _median(gaps.values())
    most = max(usual * 3 / 2, usual + length / 100)
    return gaps[step] if gaps[step] <= most else int(usual)


def account(activities: Iterable[Activity], host: Host | None = None) -> list[Outside]:
    """Charge every nanosecond of each device's span to one of its activities, or to no step."""
    devices = defaultdict(list)
    for activity in activities:
        devices[activity.device].append(activity)
    outside: list[Outside] = []
    for own in devices.values():
        outside += _account_device(own, host or Host())
    return outside


def _account_device(own: list[Activity], host: Host) -> list[Outside]:
    edges = {time for each in own for time in (each.start_ns, each.end_ns)}
    if host.steps:
        edges |= {min(*edges, host.steps[0].begin_ns), max(*edges, host.steps[-1].end_ns)}
    inner = sorted(edges)
    coming = sorted(own, key=lambda each: each.turn)
    gaps: list[tuple[int, int, int]] = []
    running: list[Activity] = []
    begun = 0
    for begin, end in pairwise(inner):
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
            gaps.append((begin, end, begun))
    outside: list[Outside] = []
    for begin, end, begun in gaps:
        outside += _charge_gap(coming[:begun], coming[begun:], host, begin, end)
    return outside


def _charge_gap(
    begun: list[Activity], coming: list[Activity], host: Host, begin: int, end: int
) -> list[Outside]:
    """Charge an idle piece, cut at the annotations of the steps on both of its sides.

    The step before is the latest one of which anything has begun: an asynchronous copy may end
    two steps later. Where what comes was launched before that step, nothing is cut: the queue
    held it.
    """
    device = (begun or coming)[0].device
    following = coming[0] if coming else None
    steps = [each.step for each in begun if each.step]
    p = max(steps, key=lambda step: step.begin_ns, default=None)
    q = following.step if following else None
    lost_ns = _first_lost(begun, host)
    leaves = begin
    if p and not (following and _was_launched_before(following, p)) and p is not q:
        leaves = _within(p.end_ns, begin, end)
        last = [each for each in begun if each.step is p][-1]
        _charge_after(last, lost_ns, begin, leaves)
    if following is None:
        return [Outside(device, end, end - leaves)] if end > leaves else []
    if q is None or p is q or (p and q.begin_ns < p.begin_ns):
        _charge_idle(following, lost_ns, leaves, end)
        return []
    enters = _within(q.begin_ns, leaves, end)
    starts = max(leaves, enters - own_gap(host.steps, q))
    stops = end
    launch_ns = following.launch_ns
    waits = launch_ns is not None and end - launch_ns > QUICK_LAUNCH_NS
    if q.opens_window and waits and not _has_just_waited(host, launch_ns):
        stops = _within(launch_ns, starts, end)
    _charge_idle(following, lost_ns, starts, stops)
    outside = [Outside(device, starts, starts - leaves), Outside(device, end, end - stops)]
    return [each for each in outside if each.idle_ns]


def _was_launched_before(following: Activity, step: Step) -> bool:
    if following.step:
        return following.step.begin_ns < step.begin_ns
    return following.launch_ns is None or following.launch_ns < step.begin_ns


def _has_just_waited(host: Host, launch_ns: int) -> bool:
    """Whether no launch lies between a call and the end of a synchronization before it."""
    ended = [end for _, end in host.waits if end <= launch_ns]
    return bool(ended) and not any(max(ended) < each < launch_ns for each in host.launches)


def _within(time: int, low: int, high: int) -> int:
    return min(max(time, low), high)


def _first_lost(begun: list[Activity], host: Host) -> int | None:
    """The first launch without an activity after those of all that has begun: its work may run."""
    called = [each.launch_ns for each in begun if each.launch_ns is not None]
    lost = [each for each in host.lost if not called or each > max(called)]
    return min(lost, default=None)


def _charge_after(last: Activity, lost_ns: int | None, begin: int, end: int) -> None:
    """Idle time after the last activity of a step: nothing was launched, as far as is known."""
    known = end if lost_ns is None else _within(lost_ns, begin, end)
    last.charged["idle_ns"] += end - begin
    last.charged["idle_after_ns"] += end - begin
    last.charged["idle_host_ns"] += known - begin
    last.charged["idle_unknown_ns"] += end - known


def _charge_idle(following: Activity, lost_ns: int | None, begin: int, end: int) -> None:
    charged, call_ns = following.charged, following.launch_ns
    charged["idle_ns"] += end - begin
    if call_ns is None:
        charged["idle_unknown_ns"] += end - begin
        return
    # What was launched before a lost launch doesn't wait for it.
    is_behind = lost_ns is not None and lost_ns < call_ns
    known = _within(lost_ns, begin, end) if lost_ns is not None and is_behind else end
    called = _within(call_ns, begin, known)
    charged["idle_host_ns"] += called - begin
    charged["idle_launch_ns"] += known - called
    charged["idle_unknown_ns"] += end - known
