"""Do the findings name and size what public incident reports tell of?

Each incident is planted into traces by what it does to the work: a call of the host takes longer,
a kernel runs longer, calls or kernels come in between. `replay` then moves all that depends on it,
on all ranks, by what a trace says of dependencies: launches, order in a stream, ends of
collectives, waits of the host. Nothing here knows how findings are found. What an incident costs is
the mean step of the changed files less that of the unchanged ones.

    python -m tests.programs.bench.incidents OUT [--seed N] [--only ID,ID] [--report FILE]

writes `OUT/ID` for each, and a table. Incidents in real files are left out where there are none.
"""

from __future__ import annotations

import argparse
import bisect
import gzip
import json
import os
import random
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from tests.pipelines import Pipeline, generate
from tests.programs.bench.causes import planted
from tests.programs.bench.processes import CHOPPER, ROOT
from tests.realdata.conftest import FOLDER as REALDATA

Event = dict[str, Any]
OPTIMIZER: Final = re.compile(r"Optimizer\.step#")
ACTIVITIES: Final = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
CALLS: Final = frozenset({"cuda_runtime", "cuda_driver"})
LOADING: Final = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
LAUNCH_US, ORDER_US, WAIT_US, CALL_US = 4.0, 1.0, 2.0, 8.0
"""The least time from a launch to a start, between activities of a stream, and of a wait."""
BEHIND_US: Final = 30.0
"""What was launched before and starts this soon after the end of another stream's activity waited
for it: gradients aren't reduced before the backward pass has ended, 28 µs earlier."""


# --- traces ---------------------------------------------------------------------------------------


@dataclass(eq=False)
class Act:
    """An activity of a GPU: when it was, and when it is after the replay."""

    event: Event
    rank: Rank
    start: float
    end: float
    stream: Any
    launch: float | None
    took: float
    """How long it takes now, without waiting for other ranks."""
    call: Event | None = None
    meeting: Meeting | None = None
    tail: Act | None = None
    """What was added behind it."""
    after: list[Act] = field(default_factory=list)
    new_start: float = -1.0
    new_end: float = -1.0
    delay: Delay | None = None
    """Of what was added: the one of the host that launches it."""
    offset: float = 0.0
    """When it was launched: that long after the begin of the delay."""

    @property
    def added(self) -> bool:
        return self.delay is not None

    @property
    def name(self) -> str:
        return str(self.event["name"])

    def done(self, before: float) -> float:
        """When it, and what was added behind it and launched before then, has ended."""
        end, last = self.new_end, self.tail
        while last is not None and last.launch is not None and last.launch < before:
            end, last = max(end, last.new_end), last.tail
        return end

    @property
    def is_compute(self) -> bool:
        return self.event["cat"] == "kernel" and "nccl" not in self.name.lower()


@dataclass(eq=False)
class Meeting:
    """A collective: its activities of all ranks."""

    acts: list[Act] = field(default_factory=list)
    extra: float = 0.0
    """How much longer the transfer takes."""
    sent: Act | None = None
    """The send that a receive waits for."""

    @property
    def took(self) -> float:
        """From the last start to the first end."""
        return max(0.0, min(a.end for a in self.acts) - max(a.start for a in self.acts))


@dataclass(eq=False)
class Delay:
    """What begins at a time of the host, or later, begins later than that."""

    at: float
    us: float
    events: tuple[Event, ...] = ()
    """What the host does meanwhile; `ts` is from its begin. `grows`: it waits for the GPU, too."""
    wait: Act | None = None
    """It also waits until this has ended."""
    begin: float = 0.0
    waited: float = 0.0


@dataclass(eq=False)
class Rank:
    """A trace, and what is changed in it."""

    path: Path
    doc: dict[str, Any]
    number: int
    lockstep: bool = False
    """Whether host and GPU move as one: the host waits for each kernel, or its queue is full."""
    acts: list[Act] = field(default_factory=list)
    delays: list[Delay] = field(default_factory=list)
    count: int = 0
    knots: list[float] = field(default_factory=list)
    shifts: list[float] = field(default_factory=list)

    @property
    def events(self) -> list[Event]:
        return self.doc["traceEvents"]  # type: ignore[no-any-return]

    def shift(self, at: float) -> float:
        n = bisect.bisect_right(self.knots, at)
        return self.shifts[n - 1] if n else 0.0

    def knot(self, at: float, shift: float) -> None:
        if self.knots and at <= self.knots[-1]:
            if at == self.knots[-1]:
                self.shifts[-1] = shift
                return
            at = self.knots[-1]
            self.shifts[-1] = max(self.shifts[-1], shift)
            return
        self.knots.append(at)
        self.shifts.append(shift)

    def steps(self) -> list[Event]:
        found = [
            e
            for e in self.events
            if e.get("cat") == "user_annotation" and e["name"].startswith("ProfilerStep")
        ]
        return sorted(found, key=lambda e: e["ts"])

    def calls(self, pattern: str = "") -> list[Event]:
        found = (e for e in self.events if e.get("cat") in CALLS and re.search(pattern, e["name"]))
        return sorted(found, key=lambda e: e["ts"])

    def ops(self, pattern: str) -> list[Event]:
        found = (
            e for e in self.events if e.get("cat") == "cpu_op" and re.search(pattern, e["name"])
        )
        return sorted(found, key=lambda e: e["ts"])

    @cached_property
    def _calls(self) -> list[Event]:
        return self.calls()

    @cached_property
    def _ops(self) -> list[Event]:
        return self.ops("")

    @cached_property
    def is_hip(self) -> bool:
        return bool(self.calls("^hip"))

    # What incidents do.

    def pause(self, at: float, us: float, *events: Event, wait: Act | None = None) -> Delay:
        """What begins at `at` begins later, what runs then takes longer."""
        delay = Delay(at, us, events, wait)
        self.delays.append(delay)
        return delay

    def host(self, at: float, name: str, us: float, category: str = "cpu_op", **args: Any) -> None:
        """A call of the host before what begins at `at`."""
        place = self._place(at)
        self.pause(
            at,
            us + 1,
            {"ph": "X", "cat": category, "name": name, **place, "ts": 0.5, "dur": us, "args": args},
        )

    def _place(self, at: float) -> Event:
        n = bisect.bisect_left(self._calls, at, key=lambda e: e["ts"])
        call = self._calls[min(n, len(self._calls) - 1)]
        return {"pid": call["pid"], "tid": call["tid"]}

    def op_of(self, act: Act) -> Event | None:
        """The outermost operator that launched it."""
        if act.call is None:
            return None
        at, thread = act.call["ts"], act.call["tid"]
        n = bisect.bisect_right(self._ops, at, key=lambda e: e["ts"])
        for op in self._ops[max(0, n - 40) : n]:
            is_around = op["ts"] + op["dur"] >= at + act.call["dur"]
            if op["tid"] == thread and op["dur"] < 5000 and is_around:
                return op
        return None

    def kernel(
        self, behind: Act, name: str, us: float, op: str, host_us: float = 9.0, **args: Any
    ) -> Act:
        """A kernel behind the last one of another's operator, with operator and launch."""
        around = self.op_of(behind)
        call = behind.call or around
        assert call is not None, "a kernel without launch"
        outer = around or call
        at = outer["ts"] + outer["dur"] + 0.002
        for other in self.acts:
            is_own = other.stream == behind.stream and not other.added
            if is_own and (behind.launch or at) < (other.launch or 0.0) < at:
                behind = other if other.start > behind.start else behind
        self.count += 1
        number = 9_000_000 + self.count
        place = {"pid": call["pid"], "tid": call["tid"]}
        runtime = "hipLaunchKernel" if self.is_hip else "cudaLaunchKernel"
        ids = {"External id": number}
        base = {"ph": "X", **place}
        delay = self.pause(
            at,
            host_us + 1,
            base | {"cat": "cpu_op", "name": op, "ts": 0.5, "dur": host_us, "args": ids | args},
            base
            | {"cat": "cuda_runtime", "name": runtime, "ts": host_us - 5, "dur": 4.0}
            | {"args": ids | {"correlation": number}},
        )
        keep = ("device", "stream", "kind", "context", "grid", "block")
        kept = {k: v for k, v in behind.event["args"].items() if k in keep}
        event = {
            "ph": "X", "cat": "kernel", "name": name, "pid": behind.event["pid"],
            "tid": behind.event["tid"], "ts": behind.end, "dur": us,
            "args": kept | ids | {"correlation": number},
        }  # fmt: skip
        return self._add(event, behind, at, us, delay, host_us - 5)

    def _add(
        self, event: Event, behind: Act, at: float, us: float, delay: Delay, offset: float
    ) -> Act:
        act = Act(event, self, behind.end, behind.end, behind.stream, at, us)
        act.delay, act.offset = delay, offset
        while behind.tail is not None:
            behind = behind.tail
        behind.tail = act
        self.acts.append(act)
        return act

    def last_launched(self, at: float) -> Act | None:
        """The last computing activity launched before."""
        before = [a for a in self.acts if a.launch is not None and a.launch < at]
        own = [a for a in before if a.meeting is None]
        if not own:
            return None
        last = max(own, key=lambda a: (a.launch or 0.0, a.start))
        while last.tail is not None:
            last = last.tail
        return last

    def copy(
        self,
        at: float,
        kind: str,
        us: float,
        size: int,
        op: str = "aten::copy_",
        host_us: float = 12.0,
    ) -> Act:
        """A copy that the host waits for, before what begins at `at`."""
        behind = self.last_launched(at)
        first = behind
        while first is not None and first.added:
            first = next((a for a in self.acts if a.tail is first), None)
        model_act = behind or next(a for a in self.acts if a.meeting is None)
        place = self._place(at)
        self.count += 1
        number = 9_000_000 + self.count
        ids = {"External id": number}
        call = "hipMemcpyWithStream" if self.is_hip else "cudaMemcpyAsync"
        base = {"ph": "X", **place}
        events = [
            base | {"cat": "cpu_op", "name": op, "ts": 0.5, "dur": us + host_us, "args": dict(ids)},
            base
            | {"cat": "cuda_runtime", "name": call, "ts": 4.0, "dur": us + 6.0}
            | {"args": ids | {"correlation": number}},
        ]
        delay = self.pause(at, us + host_us + 1, *events, wait=behind)
        for event in events:
            event["grows"] = True
        names = {
            "HtoD": "Memcpy HtoD (Pageable -> Device)",
            "DtoH": "Memcpy DtoH (Device -> Pageable)",
        }
        model = {
            k: v for k, v in model_act.event["args"].items() if k in ("device", "stream", "context")
        }
        event = {
            "ph": "X", "cat": "gpu_memcpy", "name": names[kind], "pid": model_act.event["pid"],
            "tid": model_act.event["tid"], "ts": 0.0, "dur": us,
            "args": model | ids | {"correlation": number, "bytes": size,
                                   "memory bandwidth (GB/s)": size / us / 1e3},
        }  # fmt: skip
        if first is None:
            act = Act(event, self, at, at, model_act.stream, at, us)
            act.delay, act.offset = delay, 6.0
            self.acts.append(act)
            return act
        return self._add(event, first, at, us, delay, 6.0)

    def free(self, at: float, us: float = 150.0) -> None:
        """`cudaFree`: waits for all that the GPU has to do."""
        self._waiting_call(at, "Free", us)

    def synchronize(self, at: float, us: float = 8.0) -> None:
        self._waiting_call(at, "StreamSynchronize", us)

    def call(self, at: float, name: str, us: float) -> None:
        """A call of CUDA or HIP that waits for nothing."""
        event = self._call_event(at, name, us)
        self.pause(at, us + 1, event)

    def _waiting_call(self, at: float, name: str, us: float) -> None:
        event = self._call_event(at, name, us) | {"grows": True}
        self.pause(at, us + 1, event, wait=self.last_launched(at))

    def _call_event(self, at: float, name: str, us: float) -> Event:
        prefix = "hip" if self.is_hip else "cuda"
        self.count += 1
        args = {"correlation": 9_000_000 + self.count}
        return {
            "ph": "X", "cat": "cuda_runtime", "name": prefix + name, **self._place(at),
            "ts": 0.5, "dur": us, "args": args,
        }  # fmt: skip

    def outermost(self, begin: float, end: float) -> list[Event]:
        """Operators within no other one, that begin between two times."""
        found: list[Event] = []
        last: dict[Any, float] = {}
        for op in self._ops:
            if op["ts"] >= last.get(op["tid"], 0.0):
                last[op["tid"]] = op["ts"] + op["dur"]
                if begin <= op["ts"] < end:
                    found.append(op)
        return found


class Run:
    """The ranks of a run, with their dependencies."""

    def __init__(self, ranks: list[Rank]) -> None:
        self.ranks = ranks
        for rank in ranks:
            _find_activities(rank)
        self.meetings = _meetings(ranks)
        for rank in ranks:
            _find_waits(rank)

    def __getitem__(self, rank: int) -> Rank:
        return self.ranks[rank]

    def acts(self, pattern: str = "", ranks: Iterable[int] | None = None) -> Iterator[Act]:
        for n in range(len(self.ranks)) if ranks is None else ranks:
            yield from (a for a in list(self.ranks[n].acts) if re.search(pattern, a.name))

    def mean_step_us(self) -> float:
        """Mean over ranks of the time from the first whole step's begin to the end of its work."""
        spans = []
        for rank in self.ranks:
            steps = rank.steps()
            if steps:
                acts = (e for e in rank.events if e.get("cat") in ACTIVITIES)
                ends = max(e["ts"] + e["dur"] for e in (*steps, *acts))
                spans.append((ends - steps[0]["ts"]) / len(steps))
            else:
                acts = [e for e in rank.events if e.get("cat") in ACTIVITIES]
                begin = min(e["ts"] for e in acts)
                # Where nothing else shows steps, their optimizer does.
                notes = (e for e in rank.events if e.get("cat") == "user_annotation")
                steps = [e for e in notes if OPTIMIZER.match(str(e["name"]))]
                whole = max(e["ts"] + e["dur"] for e in acts) - begin
                spans.append(whole / max(len(steps), 1))
        return sum(spans) / len(spans)


def read(folder: Path, lockstep: bool = False) -> Run:
    paths = [folder] if folder.is_file() else sorted(folder.glob("*.json*"))
    ranks = []
    for path in paths:
        if path.name == "truth.json":
            continue
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        doc = json.loads(raw.decode("utf-8", "replace"))
        number = doc.get("distributedInfo", {}).get("rank", len(ranks))
        ranks.append(Rank(path, doc, number, lockstep))
    ranks.sort(key=lambda r: r.number)
    return Run(ranks)


def clear(folder: Path) -> None:
    """Make a folder, or take the traces of a run out of it."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.json*"):
        old.unlink()


def write(run: Run, folder: Path) -> None:
    clear(folder)
    for rank in run.ranks:
        name = rank.path.name.removesuffix(".gz")
        with gzip.open(folder / f"{name}.gz", "wt", compresslevel=1) as file:
            json.dump(rank.doc, file)


def _find_activities(rank: Rank) -> None:
    launches: dict[Any, Event] = {}
    for event in rank.events:
        if event.get("cat") in CALLS and "correlation" in event.get("args", {}):
            launches.setdefault(event["args"]["correlation"], event)
    for event in rank.events:
        if event.get("cat") in ACTIVITIES and event.get("ph") == "X":
            call = launches.get(event.get("args", {}).get("correlation"))
            start, end = event["ts"], event["ts"] + event["dur"]
            at = call["ts"] if call is not None and call["ts"] <= start else None
            used = call if at is not None else None
            rank.acts.append(Act(event, rank, start, end, event["tid"], at, end - start, used))
    rank.acts.sort(key=lambda a: (a.start, a.end))
    last: dict[Any, Act] = {}
    for act in rank.acts:  # times in µs since the boot are exact to a tenth of a nanosecond only
        before = last.get(act.stream)
        if before is not None and act.start < before.end < act.start + 0.01:
            before.end = act.start
        last[act.stream] = act


def _meetings(ranks: list[Rank]) -> list[Meeting]:
    groups = {
        a.event["args"].get("Process Group Ranks")
        for r in ranks
        for a in r.acts
        if "nccl" in a.name.lower() and "Process Group Ranks" in a.event["args"]
    }
    keyed: dict[Any, list[Act]] = defaultdict(list)
    for rank in ranks:
        count: dict[Any, int] = defaultdict(int)
        for act in reversed(rank.acts):
            if "nccl" not in act.name.lower():
                continue
            args = act.event["args"]
            kind = args.get("Collective name", "")
            if kind in ("send", "recv"):
                continue
            if len(groups) > 1:
                key: Any = (args.get("Process Group Name"), args.get("Process Group Ranks"), kind)
            else:
                key = act.stream
            keyed[key, count[key]].append(act)
            count[key] += 1
    found = []
    for acts in keyed.values():
        meeting = Meeting(acts)
        for act in acts:
            act.meeting = meeting
        found.append(meeting)
    return found + _transfers(ranks)


def _transfers(ranks: list[Rank]) -> list[Meeting]:
    """Receives, each with its send: the n-th of a direction between two stages."""
    ordered: dict[Any, list[Act]] = defaultdict(list)
    for rank in ranks:
        for act in rank.acts:
            kind = act.event["args"].get("Collective name")
            if kind not in ("send", "recv") or act.call is None:
                continue
            group = json.loads(act.event["args"]["Process Group Ranks"])
            stage = group.index(rank.number)
            step = 1 if act.call["tid"] == 100 else -1
            source = stage if kind == "send" else stage - step
            ordered[kind, tuple(group), step, source].append(act)
    found = []
    for (kind, *way), acts in ordered.items():
        if kind == "recv":
            sends = ordered["send", *way]
            assert len(sends) == len(acts), way
            for act, sent in zip(acts, sends, strict=True):
                act.meeting = Meeting([act], 0.0, sent)
                found.append(act.meeting)
    return found


def _find_waits(rank: Rank) -> None:
    """What activities of other streams each one waits for."""
    waits = [e["ts"] for e in rank.calls("StreamWaitEvent")]
    launched = sorted((a for a in rank.acts if a.launch is not None), key=lambda a: a.launch or 0.0)
    previous: dict[Any, float] = {}
    last_compute: Act | None = None
    last: dict[str, Act] = {}
    for act in launched:
        assert act.launch is not None
        if "nccl" in act.name.lower():
            if last_compute is not None and last_compute.end <= act.start:
                act.after.append(last_compute)
            kind = str(act.event["args"].get("Collective name", ""))
            last["gather" if "gather" in kind else "other"] = act
        else:
            n = bisect.bisect_left(waits, act.launch)
            if n and waits[n - 1] > previous.get(act.stream, 0.0):
                kinds = ("gather",) if "split_with_sizes" in act.name else ("other",)
                for kind in kinds if last else ():
                    before = last.get(kind)
                    if before is not None and before.end <= act.start:
                        act.after.append(before)
            last_compute = act
        previous[act.stream] = act.launch


# --- replay ---------------------------------------------------------------------------------------


def replay(run: Run) -> None:
    """Move everything to when it is with what was planted."""
    settle(run)
    for rank in run.ranks:
        _move(rank)


def settle(run: Run) -> None:
    """When everything is with what was planted."""
    before = -1.0
    for _ in range(400):  # the host waits for ends that a pass knows from the one before
        _pass(run)
        now = sum(a.new_end - a.end for r in run.ranks for a in r.acts)
        if abs(now - before) < 1.0:
            break
        before = now


def _pass(run: Run) -> None:
    points: list[tuple[float, int, int, str, Any, Rank]] = []
    for rank in run.ranks:
        rank.knots.clear()
        rank.shifts.clear()
        for n, act in enumerate(rank.acts):
            points.append((act.start, 4 if not act.added else 3, n, "start", act, rank))
            # An added activity takes no time of the old clock: its end follows its start.
            points.append((act.end, 3 if act.added else 0, n, "end", act, rank))
        if rank.lockstep and len(run.ranks) > 1:  # all ranks begin a step together
            points += [(e["ts"], 2, n, "barrier", None, rank) for n, e in enumerate(rank.steps())]
        for n, delay in enumerate(rank.delays):
            points.append((delay.at, 2, n, "delay", delay, rank))
        if not rank.lockstep:
            for n, call in enumerate(_waiting_calls(rank)):
                end = max(call[0]["ts"] + call[0]["dur"], call[1].end)
                points.append((end, 1, n, "wait", call, rank))
    order = {"start": 0, "end": 1}
    points.sort(key=lambda p: (p[0], p[1], p[2], order.get(p[3], 0)))
    last_of: dict[tuple[int, Any], Act] = {}
    latest: dict[int, float] = defaultdict(float)
    ended: dict[int, list[Act]] = defaultdict(list)
    for at, _, _, kind, thing, rank in points:
        if kind == "delay":
            thing.begin = at + rank.shift(at)
            done = thing.wait.new_end if thing.wait is not None else 0.0
            thing.waited = max(0.0, done - thing.begin)
            rank.knot(at, rank.shift(at) + thing.us + thing.waited)
        elif kind == "barrier":
            rank.knot(at, max(r.shift(at) for r in run.ranks))
        elif kind == "wait":
            _end_wait(rank, thing, latest[id(rank)])
        elif kind == "start":
            _start(rank, thing, last_of, ended[id(rank)])
            last_of[id(rank), thing.stream] = thing
        else:
            _end(thing)
            if not thing.added:
                latest[id(rank)] = max(latest[id(rank)], thing.new_end)
            ended[id(rank)].append(thing)
            if rank.lockstep and (
                thing.added or thing.meeting or thing.took != thing.end - thing.start
            ):
                rank.knot(thing.end, thing.new_end - thing.end)


def _start(rank: Rank, act: Act, last_of: dict[tuple[int, Any], Act], ended: list[Act]) -> None:
    if rank.lockstep:
        act.new_start = act.start + rank.shift(act.start)
        before = last_of.get((id(rank), act.stream))
        if before is not None and before.end <= act.start:
            act.new_start = max(act.new_start, before.new_end)
        return
    bounds: list[tuple[float, float, float]] = []
    if act.delay is not None:
        bounds.append((act.start, act.delay.begin + act.offset + LAUNCH_US, 0.0))
    elif act.launch is not None:
        bounds.append((act.launch, act.launch + rank.shift(act.launch), LAUNCH_US))
    before = last_of.get((id(rank), act.stream))
    if before is not None and before.end <= act.start:
        bounds.append((before.end, before.new_end, ORDER_US))
    bounds += [(a.end, a.done(act.launch or act.start), WAIT_US) for a in act.after]
    for other in reversed(ended[-6:]):  # an end just before it, of another stream
        if other.stream != act.stream and 0 <= act.start - other.end < BEHIND_US:
            latest = max((b[0] for b in bounds), default=-1.0)
            if other.end > latest:
                bounds.append((other.end, other.new_end, WAIT_US))
            break
    if not bounds:
        act.new_start = act.start + (before.new_end - before.end if before else 0.0)
        return
    if act.added:
        act.new_start = max(moved for _, moved, _ in bounds) + ORDER_US
        return
    binding = max(bounds)
    new = binding[1] + act.start - binding[0]
    for old, moved, least in bounds:
        new = max(new, moved + min(least, act.start - old))
    act.new_start = new


def _end(act: Act) -> None:
    meeting = act.meeting
    if meeting is None:
        act.new_end = act.new_start + act.took
    elif act.added:
        act.new_end = max(a.new_start for a in meeting.acts) + meeting.extra
    elif meeting.sent is not None:
        sent = meeting.sent
        waited = sent.end > act.start + 0.5
        least = min(10.0, act.end - act.start) if waited else act.end - act.start
        act.new_end = max(
            act.new_start + least, sent.new_end + (act.end - sent.end if waited else 0)
        )
    else:  # the root of a broadcast may leave before others come
        there = [a for a in meeting.acts if a.start <= act.end]
        own = act.end - max(a.start for a in there)
        act.new_end = max(a.new_start for a in there) + own + meeting.extra


def _waiting_calls(rank: Rank) -> list[tuple[Event, Act, bool]]:
    """Calls that return when an activity has ended, with that activity."""
    by_end = sorted((a for a in rank.acts if not a.added), key=lambda a: a.end)
    ends = [a.end for a in by_end]
    by_launch = {a.call["ts"]: a for a in by_end if a.call is not None}
    found = []
    for call in rank.calls(r"Synchronize|Memcpy|Free$"):
        end = call["ts"] + call["dur"]
        if "Memcpy" in call["name"]:
            own = by_launch.get(call["ts"])
            if own is not None and own.end <= end + 1:
                found.append((call, own, False))
            continue
        n = bisect.bisect_right(ends, end + 1)
        waited = [a for a in by_end[max(0, n - 50) : n] if (a.launch or a.start) < call["ts"]]
        if waited:
            found.append((call, waited[-1], "Device" in call["name"] or "Free" in call["name"]))
    return found


def _end_wait(rank: Rank, wait: tuple[Event, Act, bool], latest: float) -> None:
    call, act, is_device = wait
    begin, end = call["ts"], call["ts"] + call["dur"]
    new = begin + rank.shift(begin) + min(call["dur"], CALL_US)
    # Delays planted within the call itself.
    new += sum(d.us + d.waited for d in rank.delays if begin < d.at < end)
    if act.end > begin:
        new = max(new, act.done(begin) + max(0.0, end - act.end))
        if is_device:
            new = max(new, latest + 1)
    else:
        new = max(new, begin + rank.shift(begin) + call["dur"], act.done(begin) + 1)
    rank.knot(end - 0.002, new - end)  # the call itself ends then, too


def _move(rank: Rank) -> None:
    """Write the new times into the events."""
    moved = {id(a.event): a for a in rank.acts}
    places = {(a.event["pid"], a.event["tid"]) for a in rank.acts}
    in_stream: dict[Any, list[Act]] = defaultdict(list)
    for act in rank.acts:
        in_stream[act.event["pid"], act.event["tid"]].append(act)
    for acts in in_stream.values():
        acts.sort(key=lambda a: a.start)
    starts = {k: [a.start for a in v] for k, v in in_stream.items()}
    for event in rank.events:
        if "ts" not in event or id(event) in moved:
            continue
        at = event["ts"]
        place = (event.get("pid"), event.get("tid"))
        if place in places:
            acts = in_stream[place]
            n = min(bisect.bisect_left(starts[place], at - 0.01), len(acts) - 1)
            event["ts"] = at + acts[n].new_start - acts[n].start
            if "dur" in event:
                m = max(bisect.bisect_left(starts[place], at + event["dur"]) - 1, n)
                event["dur"] = max(
                    acts[m].new_end, at + event["dur"] + acts[m].new_end - acts[m].end
                )
                event["dur"] -= event["ts"]
        else:
            event["ts"] = at + rank.shift(at)
            if "dur" in event:
                end = at + event["dur"]
                # What ends exactly where something is planted ends before it.
                event["dur"] = end + rank.shift(end - 0.001) - event["ts"]
    for act in rank.acts:
        act.event["ts"], act.event["dur"] = act.new_start, act.new_end - act.new_start
        if act.added:
            rank.events.append(act.event)
    for delay in rank.delays:
        late = 0.0
        for event in delay.events:
            event["ts"] += delay.begin + late
            if event.pop("grows", False):
                event["dur"] += delay.waited
            rank.events.append(event)
    for event in rank.events:
        for key in ("ts", "dur"):
            if key in event and isinstance(event[key], float):
                event[key] = round(event[key], 3)


# --- a simulator of runs on NVIDIA's GPUs: data, tensor and expert parallel -----------------------


@dataclass(frozen=True)
class Model:
    """What is trained, and on what."""

    kind: str = "ddp"
    """`ddp`, `tp` or `moe`"""
    ranks: int = 4
    steps: int = 3
    layers: int = 8
    hidden: int = 4096
    wide: int = 11008
    tokens: int = 4096
    vocabulary: int = 32000
    microbatches: int = 1
    gpu: str = "NVIDIA H100 80GB HBM3"
    tflops: float = 560.0
    gb_s: float = 2600.0
    link_gb_s: float = 180.0
    host_us: float = 14.0
    reduces_each: bool = False
    """Whether the gradients of each microbatch are reduced."""
    buckets: int = 1
    """All-reduces of a layer's gradients."""
    latency_us: float = 18.0
    seed: int = 1


ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::{}, at::detail::Array<char*, "
    "3> >(int, at::native::{}, at::detail::Array<char*, 3>)"
)
GEMM = (
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize2x1x1_execute_"
    "segment_k_off_kernel__5x_cublas"
)
FLASH = (
    "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128, 128, 64, "
    "4, false, false, cutlass::bfloat16_t> >(pytorch_flash::Flash_fwd_params)"
)
FLASH_BACK = (
    "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<pytorch_flash:"
    ":Flash_bwd_kernel_traits<128, 64, 128, 8, 4, 4, 4, false, false, cutlass::bfloat16_t> "
    ">(pytorch_flash::Flash_bwd_params)"
)
NORM = (
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, "
    "float>(int, float, c10::BFloat16 const*)"
)
ADAM = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous "
    "namespace)::FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace):"
    ":FusedAdamMathFunctor<float, 4> >()"
)
GRAD = "autograd::engine::evaluate_function: {}Backward0"
NCCL_NAMES = {
    "allreduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "all_to_allv": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
}


class Simulator:
    """All ranks run the same program; the host launches ahead, collectives end together."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.random = random.Random(model.seed)
        self.host = [1000.0 + 20 * self.random.random() for _ in range(model.ranks)]
        self.free: list[dict[int, float]] = [defaultdict(float) for _ in range(model.ranks)]
        self.events: list[list[Event]] = [[] for _ in range(model.ranks)]
        self.number = 0
        self.thread = 100
        self.speed = [1 + 0.004 * self.random.uniform(-1, 1) for _ in range(model.ranks)]

    def span(self, rank: int, category: str, name: str, begin: float, **args: Any) -> Event:
        self.number += 1
        event: Event = {
            "ph": "X", "cat": category, "name": name, "pid": 100, "tid": self.thread,
            "ts": begin, "dur": 0.0, "args": {"External id": self.number, **args},
        }  # fmt: skip
        self.events[rank].append(event)
        return event

    def close(self, rank: int, event: Event) -> None:
        event["dur"] = self.host[rank] - event["ts"]

    def wait(self, rank: int) -> None:
        """The compute stream waits for the communication stream."""
        call = self.span(rank, "cuda_runtime", "cudaStreamWaitEvent", self.host[rank])
        self.number += 1
        call["args"]["correlation"] = self.number
        self.host[rank] += 1.5
        self.close(rank, call)
        self.free[rank][7] = max(self.free[rank][7], self.free[rank][20])

    def op(
        self,
        name: str,
        kernels: list[tuple[str, float]],
        dims: list[Any] | None = None,
        outer: str | None = None,
        category: str = "kernel",
        **args: Any,
    ) -> None:
        """An operator with its kernels, on all ranks."""
        for rank in range(self.model.ranks):
            top = self.span(rank, "cpu_op", outer, self.host[rank]) if outer else None
            self.host[rank] += 1.5
            shapes = (
                {"Input Dims": dims, "Input type": ["c10::BFloat16"] * len(dims)} if dims else {}
            )
            inner = self.span(rank, "cpu_op", name, self.host[rank], **shapes)
            for kernel, us in kernels:
                self.host[rank] += self.model.host_us * 0.4 * self.random.uniform(0.9, 1.1)
                at = self.host[rank]
                runtime = "cudaMemcpyAsync" if category == "gpu_memcpy" else "cudaLaunchKernel"
                call = self.span(rank, "cuda_runtime", runtime, at)
                ids = {"External id": inner["args"]["External id"], "correlation": self.number}
                call["args"] = ids
                self.host[rank] += 4.5
                self.close(rank, call)
                us *= self.speed[rank] * self.random.uniform(0.995, 1.005)
                start = max(at + 6, self.free[rank][7] + 1.4)
                place = {"device": rank % 8, "context": 1, "stream": 7}
                self.events[rank].append(
                    {"ph": "X", "cat": category, "name": kernel, "pid": rank % 8, "tid": 7,
                     "ts": start, "dur": us, "args": place | ids | args}
                )  # fmt: skip
                self.free[rank][7] = start + us
            self.host[rank] += self.model.host_us * 0.4
            self.close(rank, inner)
            if top:
                self.host[rank] += 1.0
                self.close(rank, top)

    def collective(self, kind: str, elements: int, name: str, waits: bool) -> None:
        model = self.model
        factor = 2 * (model.ranks - 1) / model.ranks if kind == "allreduce" else 0.9
        took = model.latency_us + elements * 2 * factor / model.link_gb_s / 1e3
        took *= self.random.uniform(0.99, 1.01)
        starts, calls = [], []
        for rank in range(model.ranks):
            record = self.span(rank, "cpu_op", name, self.host[rank])
            self.host[rank] += 4
            wait = self.span(rank, "cuda_runtime", "cudaStreamWaitEvent", self.host[rank])
            wait["args"]["correlation"] = self.number
            self.host[rank] += 2
            self.close(rank, wait)
            call = self.span(rank, "cuda_runtime", "cudaLaunchKernelExC", self.host[rank])
            call["args"] = {
                "External id": record["args"]["External id"], "correlation": self.number,
            }  # fmt: skip
            calls.append(call)
            self.host[rank] += 6
            self.close(rank, call)
            self.host[rank] += 2
            self.close(rank, record)
            ready = max(call["ts"] + 7, self.free[rank][20] + 1.4, self.free[rank][7] + 2)
            starts.append(ready)
        end = max(starts) + took
        for rank in range(model.ranks):
            own = end + self.random.uniform(0, 3)
            self.events[rank].append(
                {"ph": "X", "cat": "kernel", "name": NCCL_NAMES[kind], "pid": rank % 8, "tid": 20,
                 "ts": starts[rank], "dur": own - starts[rank],
                 "args": {
                     "device": rank % 8, "context": 1, "stream": 20, **calls[rank]["args"],
                     "grid": [24, 1, 1], "block": [544, 1, 1],
                     "Collective name": kind, "In msg nelems": elements, "Out msg nelems": elements,
                     "Group size": model.ranks, "dtype": "BFloat16", "In split size": "[]",
                     "Out split size": "[]", "Process Group Name": "0",
                     "Process Group Description": "default_pg",
                     "Process Group Ranks": str(list(range(model.ranks))),
                 }}
            )  # fmt: skip
            self.free[rank][20] = own
            if waits:
                self.wait(rank)

    def gemm(self, m: int, n: int, k: int, back: str = "") -> None:
        us = 2e-6 * m * n * k / self.model.tflops + 3
        if back:
            self.op("aten::mm", [(GEMM, us)], [[m, n], [n, k]], back)
            self.op("aten::mm", [(GEMM, us)], [[n, m], [m, k]], back)
        else:
            self.op("aten::mm", [(GEMM, us)], [[m, k], [k, n]], "aten::linear")

    def bytes(self, name: str, kernel: str, amount: float, outer: str | None = None) -> None:
        self.op(name, [(kernel, amount / self.model.gb_s / 1e3 + 2)], None, outer)

    def layer(self, number: int, back: bool) -> None:
        model = self.model
        tokens, hidden = model.tokens, model.hidden
        tp = model.ranks if model.kind == "tp" else 1
        wide = model.wide // tp
        size = 2.0 * tokens * hidden
        add = ELEMENTWISE.format("CUDAFunctor_add<c10::BFloat16>", "CUDAFunctor_add<c10::BFloat16>")
        silu = ELEMENTWISE.format("silu_kernel", "silu_kernel")
        attention = 4e-6 * tokens * tokens * hidden / tp / model.tflops * 0.9 + 5
        modules = self.modules(f"DecoderLayer_{number}") if not back else []
        if not back:
            self.bytes("aten::native_layer_norm", NORM, 2 * size)
            self.gemm(tokens, 3 * hidden // tp, hidden)
            self.bytes("aten::mul", add, 3 * size / tp)
            self.op(
                "aten::_flash_attention_forward",
                [(FLASH, attention)],
                None,
                "aten::scaled_dot_product_attention",
            )
            self.gemm(tokens, hidden, hidden // tp)
            if tp > 1:
                self.collective("allreduce", tokens * hidden, "nccl:all_reduce", True)
            self.bytes("aten::add", add, 3 * size)
            self.bytes("aten::native_layer_norm", NORM, 2 * size)
            if model.kind == "moe":
                self.gemm(tokens, 64, hidden)
                self.collective("all_to_allv", tokens * hidden * 2, "nccl:all_to_all", True)
                self.experts("GroupedGemm", 1)
                self.collective("all_to_allv", tokens * hidden * 2, "nccl:all_to_all", True)
            else:
                self.gemm(tokens, wide, hidden)
                self.gemm(tokens, wide, hidden)
                self.bytes("aten::silu", silu, 6.0 * tokens * wide)
                self.gemm(tokens, hidden, wide)
                if tp > 1:
                    self.collective("allreduce", tokens * hidden, "nccl:all_reduce", True)
            self.bytes("aten::add", add, 3 * size)
        else:
            mm, add_back = GRAD.format("Mm"), GRAD.format("Add")
            self.bytes("aten::add_", add, 3 * size, add_back)
            if model.kind == "moe":
                self.collective("all_to_allv", tokens * hidden * 2, "nccl:all_to_all", True)
                self.experts("GroupedGemmBackward", 2)
                self.collective("all_to_allv", tokens * hidden * 2, "nccl:all_to_all", True)
            else:
                self.gemm(tokens, hidden, wide, mm)
                self.bytes("aten::silu_backward", silu, 8.0 * tokens * wide, GRAD.format("Silu"))
                self.gemm(tokens, wide, hidden, mm)
                self.gemm(tokens, wide, hidden, mm)
                if tp > 1:
                    self.collective("allreduce", tokens * hidden, "nccl:all_reduce", True)
            self.norm_backward(size)
            self.gemm(tokens, hidden, hidden // tp, mm)
            self.op(
                "aten::_flash_attention_backward",
                [(FLASH_BACK, 2.5 * attention)],
                None,
                GRAD.format("ScaledDotProductFlashAttention"),
            )
            self.gemm(tokens, 3 * hidden // tp, hidden, mm)
            if tp > 1:
                self.collective("allreduce", tokens * hidden, "nccl:all_reduce", True)
            self.norm_backward(size)
        for rank, event in enumerate(modules):
            self.close(rank, event)

    def norm_backward(self, size: float) -> None:
        self.bytes(
            "aten::native_layer_norm_backward",
            NORM.replace("layer_norm_kernel", "layer_norm_grad_input_kernel"),
            3 * size,
            GRAD.format("NativeLayerNorm"),
        )

    def experts(self, name: str, times: int) -> None:
        model = self.model
        us = 6e-6 * model.tokens * 2 * model.hidden * model.wide / 4 / model.tflops * times
        kernel = "void cutlass::device_kernel<cutlass::gemm::kernel::GroupedGemm<bfloat16_t> >()"
        self.op(name, [(kernel, us)])

    def modules(self, name: str) -> list[Event]:
        found = []
        for rank in range(self.model.ranks):
            event = self.span(rank, "python_function", f"nn.Module: {name}", self.host[rank] - 0.1)
            self.number += 1
            event["args"] = {"Python id": self.number, "Python parent id": 0, "Python module id": 0}
            found.append(event)
        return found

    def step(self, number: int) -> None:
        model = self.model
        ranks = range(model.ranks)
        steps = [
            self.span(r, "user_annotation", f"ProfilerStep#{number}", self.host[r]) for r in ranks
        ]
        ffn = 3 * model.hidden * model.wide
        elements = 4 * model.hidden**2 + (ffn if model.kind == "ddp" else 0)
        for batch in range(model.microbatches):
            for rank in ranks:
                data = self.span(rank, "user_annotation", LOADING, self.host[rank])
                self.host[rank] += 180 * self.random.uniform(0.9, 1.1)
                self.close(rank, data)
            self.op(
                "aten::copy_",
                [("Memcpy HtoD (Pinned -> Device)", 12)],
                None,
                "aten::to",
                "gpu_memcpy",
                bytes=model.tokens * 8,
            )
            for layer in range(model.layers):
                self.layer(layer, False)
            head = model.vocabulary // (model.ranks if model.kind == "tp" else 1)
            self.gemm(model.tokens, head, model.hidden)
            softmax = (
                "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16, "
                "float, float, at::native::(anonymous namespace):"
                ":LogSoftMaxForwardEpilogue>(float*, c10::BFloat16 const*, int)"
            )
            self.bytes(
                "aten::_log_softmax", softmax, 6.0 * model.tokens * head, "aten::cross_entropy_loss"
            )
            self.thread = 101
            self.bytes(
                "aten::_log_softmax_backward_data",
                softmax.replace("Forward", "Backward"),
                8.0 * model.tokens * head,
                GRAD.format("LogSoftmax"),
            )
            self.gemm(model.tokens, head, model.hidden, GRAD.format("Mm"))
            for layer in reversed(range(model.layers)):
                self.layer(layer, True)
                is_last = batch == model.microbatches - 1
                if model.kind != "tp" and (is_last or model.reduces_each):
                    for _ in range(model.buckets):
                        part = elements // model.buckets
                        self.collective("allreduce", part, "nccl:all_reduce", False)
            if model.kind != "tp":
                for rank in ranks:
                    self.wait(rank)
            self.thread = 100
        update = [
            self.span(r, "user_annotation", "Optimizer.step#AdamW.step", self.host[r])
            for r in ranks
        ]
        for _ in range(6):
            self.bytes(
                "aten::_fused_adamw_",
                ADAM,
                14.0 * elements * model.layers / 6 / (model.ranks if model.kind == "tp" else 1),
            )
        for rank in ranks:
            self.close(rank, update[rank])
        self.item()
        for rank in ranks:
            self.host[rank] += 40
            self.close(rank, steps[rank])

    def item(self) -> None:
        """The loss comes back to the host: it waits for the GPU."""
        self.op(
            "aten::_local_scalar_dense",
            [("Memcpy DtoH (Device -> Pinned)", 2)],
            None,
            "aten::item",
            "gpu_memcpy",
            bytes=4,
        )
        for rank in range(self.model.ranks):
            at = self.host[rank]
            call = self.span(rank, "cuda_runtime", "cudaStreamSynchronize", at)
            self.number += 1
            call["args"]["correlation"] = self.number
            self.host[rank] = max(at + 3, self.free[rank][7] + 6)
            self.close(rank, call)
            own = [e for e in self.events[rank][-12:] if e["cat"] == "cpu_op"]
            for op in own[-2:]:  # aten::item, and what is in it
                op["dur"] = self.host[rank] - op["ts"] + (1 if op["name"] == "aten::item" else 0)
            call["args"]["External id"] = own[-1]["args"]["External id"]
            self.host[rank] += 2

    def write(self, folder: Path) -> None:
        clear(folder)
        for number in range(10, 10 + self.model.steps):
            self.step(number)
        for rank, events in enumerate(self.events):
            for event in events:
                event["ts"], event["dur"] = round(event["ts"], 3), round(event["dur"], 3)
            about = {"backend": "nccl", "rank": rank, "world_size": self.model.ranks}
            document = {
                "schemaVersion": 1,
                "deviceProperties": [{"id": n, "name": self.model.gpu} for n in range(8)],
                "distributedInfo": about,
                "record_shapes": 1,
                "baseTimeNanoseconds": 1_726_000_000_000_000_000,
                "traceEvents": events,
                "traceName": f"simulated, rank {rank}",
            }
            (folder / f"rank{rank}.json").write_text(json.dumps(document))


# --- what is planted ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Incident:
    """A cause that a public report tells of, and what a finding about it has to say."""

    name: str
    source: str
    base: str
    what: str
    plant: Callable[[Run, random.Random], None]
    kind: str
    """A pattern of words for what it is."""
    place: str
    """A pattern of words for where it is."""
    model: dict[str, Any] = field(default_factory=dict)
    """Simulated instead: what is otherwise in the model."""


def window(rank: Rank, number: int) -> tuple[float, float]:
    step = rank.steps()[number]
    return step["ts"], step["ts"] + step["dur"]


def within(rank: Rank, number: int, share: float) -> float:
    """The begin of the outermost operator at a share of the operators of a step."""
    begin, end = window(rank, number)
    ops = rank.outermost(begin, end)
    return float(ops[int(share * (len(ops) - 1))]["ts"]) - 0.5


def steps_of(run: Run) -> Iterator[tuple[Rank, int]]:
    """Each step of each rank."""
    for rank in run.ranks:
        for step in range(len(rank.steps())):
            yield rank, step


def slow(acts: Iterable[Act], by: float) -> None:
    for act in acts:
        act.took *= by


CLOCKED = r"Cijk|gemm|[Ff]mha|flash|cutlass|[Cc]onv|igemm"


def throttled(run: Run, _: random.Random) -> None:
    slow((a for a in run.acts(CLOCKED, [2]) if a.is_compute), 1.12)


def collected(run: Run, _: random.Random) -> None:
    run[1].pause(within(run[1], 1, 0.12), 70_000)


def fragmented(run: Run, _: random.Random) -> None:
    rank = run[3]
    for step in range(len(rank.steps())):
        for share in (0.3, 0.5, 0.7):
            at = within(rank, step, share)
            rank.free(at, 900)
            for _n in range(3):
                rank.call(at, "Free", 700)
            rank.call(at, "Malloc", 2200)


def read_back(run: Run, _: random.Random) -> None:
    """After each layer of forward a value is read back."""
    for rank, step in steps_of(run):
        begin, end = window(rank, step)
        last = [o for o in rank.outermost(begin, end) if o["name"] == "aten::add"][1::2]
        for op in last:
            at = op["ts"] + op["dur"] + 0.4
            rank.copy(at, "DtoH", 4, 4, "aten::item", 60)
            rank.pause(at, 400)


def starved(run: Run, rng: random.Random) -> None:
    for rank, step in steps_of(run):
        at = within(rank, step, 0.0)
        rank.host(at, LOADING, 30_000 * rng.uniform(0.9, 1.1), "user_annotation")


def flapping(run: Run, _: random.Random) -> None:
    begin, end = window(run[0], 1)
    for meeting in run.meetings:
        if begin <= meeting.acts[0].start < end:
            meeting.extra = 2.5 * meeting.took


def checkpointed(run: Run, _: random.Random) -> None:
    rank = run[0]
    at = within(rank, 2, 0.0)
    for _n in range(12):
        rank.copy(at, "DtoH", 6_000, 150_000_000, "aten::copy_")
    rank.host(at, "torch.save", 60_000, "user_annotation")


def long_last_stage(run: Run, _: random.Random) -> None:
    slow((a for r in range(12, 16) for a in run.acts("Cijk", [r])), 1.25)


def slow_shard(run: Run, _: random.Random) -> None:
    slow(run.acts("Cijk", [5]), 1.15)


def long_sequences(run: Run, rng: random.Random) -> None:
    """Replica 1 draws long sequences: some microbatches take longer on all its stages."""
    for step in range(3):
        long = set(rng.sample(range(8), 3))
        for r in (r for r in range(16) if r // 2 % 2 == 1):
            begin, end = window(run[r], step)
            for is_back in (False, True):
                own = [
                    a
                    for a in run.acts("Cijk", [r])
                    if begin <= a.start < end
                    and (a.call is not None and a.call["tid"] == 101) == is_back
                ]
                for n, act in enumerate(own):
                    if n * 8 // len(own) in long:
                        act.took *= 1.5


def full_precision(run: Run, _: random.Random) -> None:
    """The head's product in fp32, forward only."""
    name = (
        "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_"
        "aligna4_alignc4_execute_kernel__5x_cublas"
    )
    for rank in run.ranks:
        for op in rank.ops("aten::mm"):
            dims = op["args"].get("Input Dims")
            if dims and dims[1][-1] == 32000 and op["tid"] == 100:
                op["args"]["Input type"] = ["float", "float"]
                for act in rank.acts:
                    if act.event["args"].get("External id") == op["args"]["External id"]:
                        act.event["name"] = name
                        act.took *= 11


def unfused(run: Run, _: random.Random) -> None:
    """Attention as products and a softmax, forward."""
    cast = ELEMENTWISE.format("bfloat16tofloat32_copy_kernel", "bfloat16tofloat32_copy_kernel")
    softmax = (
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 12, false, "
        "true>(float*, float const*, int, int, int)"
    )
    for rank in run.ranks:
        for act in [a for a in rank.acts if "flash_fwd" in a.name]:
            us = act.took
            op = rank.op_of(act)
            assert op is not None
            for inner in rank.ops("_flash_attention_forward"):
                inner["name"] = "aten::_scaled_dot_product_attention_math"
            act.event["name"] = GEMM
            act.took = 0.9 * us
            rank.kernel(act, cast, 1.1 * us, "aten::_to_copy")
            rank.kernel(act, softmax, 1.6 * us, "aten::_softmax")
            rank.kernel(act, GEMM, 0.9 * us, "aten::bmm")


def nothing(run: Run, _: random.Random) -> None:
    """The model of the simulator is another one."""


def debugged(run: Run, _: random.Random) -> None:
    """Rank 1 looks at the outputs of each product."""
    reduce = (
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<c10::BFloat16, at::native:"
        ":func_wrapper_t<c10::BFloat16, at::native::MaxNanFunctor<c10::BFloat16> > > >(at:"
        ":native::ReduceOp<c10::BFloat16>)"
    )
    rank = run[1]
    begin = rank.steps()[0]["ts"]
    for act in [
        a for a in rank.acts if "Cijk" in a.name and a.call and a.launch and a.launch > begin
    ]:
        rank.kernel(act, reduce, 110, "aten::max")


def ramping(run: Run, _: random.Random) -> None:
    """Clocks are low after the wait at each step's begin, on all GPUs."""
    for rank, step in steps_of(run):
        begin, end = window(rank, step)
        own = [a for a in rank.acts if begin <= a.start < end and a.is_compute]
        first = min(a.start for a in own)
        for act in own:
            act.took *= 1 + max(0.0, 0.6 * (1 - (act.start - first) / 40_000))


def unpinned(run: Run, _: random.Random) -> None:
    for rank, step in steps_of(run):
        at = within(rank, step, 0.0)
        rank.copy(at, "HtoD", 14_000, 84_000_000, "aten::copy_")


def contended_cpu(run: Run, _: random.Random) -> None:
    """The host of a rank runs on a far socket, with others: each operator takes longer."""
    rank = run[3]
    for step in range(len(rank.steps())):
        begin, end = window(rank, step)
        for op in rank.outermost(begin, end):
            if "item" not in op["name"]:
                rank.pause(op["ts"] + 1.2, 400)


def copied(run: Run, _: random.Random) -> None:
    """The output of each attention is made contiguous, on all ranks."""
    copy = (
        "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at:"
        ":native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() "
        "const::{lambda(c10::BFloat16)#1}> >(int)"
    )
    for rank in run.ranks:
        for act in [a for a in rank.acts if "flash_" in a.name]:
            rank.kernel(act, copy, 260, "aten::contiguous")
            rank.kernel(act, copy, 260, "aten::contiguous")


def recompiled(run: Run, _: random.Random) -> None:
    rank = run[0]
    at = within(rank, 1, 0.2)
    rank.host(at, "torch/_dynamo/convert_frame.py(1024): _compile", 180_000, "python_function")


def hot_experts(run: Run, _: random.Random) -> None:
    slow(run.acts("GroupedGemm", [2]), 1.9)


def contention(run: Run, _: random.Random) -> None:
    """Products that run next to an all-reduce take 1.45 times as long while they do."""
    usual = {id(act): act.took for act in run.acts("gemm")}
    settle(run)
    for _n in range(8):  # what is slower runs next to other transfers
        for rank in run.ranks:
            spans = [(a.new_start, a.new_end) for a in rank.acts if a.meeting is not None]
            for act in rank.acts:
                if id(act) in usual:
                    over = sum(
                        max(0.0, min(act.new_end, e) - max(act.new_start, b)) for b, e in spans
                    )
                    act.took = usual[id(act)] + 0.45 / 1.45 * over
        settle(run)


def capped(run: Run, _: random.Random) -> None:
    slow((a for a in run.acts("", [0]) if a.is_compute), 3.0)


def late_batch(run: Run, _: random.Random) -> None:
    rank = run[2]
    for step in range(len(rank.steps())):
        rank.pause(within(rank, step, 0.0), 25_000)


def slow_rail(run: Run, _: random.Random) -> None:
    """What rank 4 sends to the next stage goes over a bad link."""
    for act in run.acts("nccl", [4]):
        if act.event["args"].get("Collective name") == "send":
            act.took += 1_200


def lost_nvlink(run: Run, _: random.Random) -> None:
    """The two tensor-parallel ranks 6 and 7 reduce over PCIe."""
    for meeting in run.meetings:
        if {a.rank.number for a in meeting.acts} == {6, 7}:
            meeting.extra = 260


def repaired(run: Run, _: random.Random) -> None:
    """A memory error is repaired while a product runs on rank 1: it takes 60 ms longer, once."""
    begin, end = window(run[1], 1)
    own = [a for a in run.acts(CLOCKED, [1]) if begin <= a.start < end and a.is_compute]
    own[len(own) // 2].took += 60_000


def shared_cores(run: Run, _: random.Random) -> None:
    """The cores of a rank are shared with other jobs: each operator takes longer."""
    rank = run[3]
    begin, end = window(rank, 0)
    for op in rank.outermost(begin, end):
        rank.pause(op["ts"] + 0.5, 60)


def slow_norm(run: Run, _: random.Random) -> None:
    slow((a for a in run.acts("[Bb]atch_?[Nn]orm|BatchNorm")), 4.0)


def logged(run: Run, _: random.Random) -> None:
    run[0].pause(within(run[0], 2, 0.9), 60_000)


def layout_copies(run: Run, _: random.Random) -> None:
    copy = (
        "void at::native::elementwise_kernel_manual_unroll<128, 8, at::native:"
        ":gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&):"
        ":{lambda()#3}::operator()() const::{lambda()#10}::operator()() const::{lambda(c10:"
        ":BFloat16)#1}> >(int)"
    )
    rank = run[0]
    for act in [a for a in rank.acts if "mha" in a.name.lower() or "attn" in a.name.lower()]:
        rank.kernel(act, copy, 1_500, "aten::contiguous")


def head_in_fp32(run: Run, _: random.Random) -> None:
    last = max((a for a in run[0].acts if "Cijk" in a.name), key=lambda a: a.took)
    last.event["name"] = last.name.replace("_BBS_", "_S_B_").replace("_BSS_", "_S_B_")
    last.took *= 8


def checked(run: Run, _: random.Random) -> None:
    """Each gradient is checked for being finite, with a read-back."""
    rank = run[0]
    for step in range(len(rank.steps())):
        at = within(rank, step, 0.97)
        for _n in range(60):
            rank.copy(at, "DtoH", 6, 1, "aten::item", 40)


def collected_apart(run: Run, rng: random.Random) -> None:
    """Each interpreter collects garbage once a step, when it likes."""
    for rank, step in steps_of(run):
        rank.pause(within(rank, step, rng.uniform(0.02, 0.1)), 30_000)


def emptied(run: Run, _: random.Random) -> None:
    """`empty_cache` in each step: blocks are freed, then allocated again."""
    for rank, step in steps_of(run):
        at = within(rank, step, 0.0)
        for _n in range(20):
            rank.call(at, "Free", 300)
        for share in (0.02, 0.04, 0.06, 0.08):
            for _n in range(4):
                rank.call(within(rank, step, share), "Malloc", 450)


def looped(run: Run, _: random.Random) -> None:
    """The optimizer loops over parameters: many small kernels."""
    small = ELEMENTWISE.format("AUnaryFunctor<float>", "AUnaryFunctor<float>")
    for rank, step in steps_of(run):
        begin, end = window(rank, step)
        own = [a for a in rank.acts if "multi_tensor" in a.name and begin <= a.start < end]
        for act in own[:1]:
            for n in range(1200):
                rank.kernel(act, small, 4.0, ("aten::mul_", "aten::addcmul_")[n % 2], 11)


def ragged(run: Run, rng: random.Random) -> None:
    """In each step another rank draws long sequences."""
    order = rng.sample(range(len(run.ranks)), 3)
    for step, number in enumerate(order):
        begin, end = window(run[number], step)
        for act in run[number].acts:
            if act.is_compute and begin <= act.start < end and "Adam" not in act.name:
                act.took *= 1.35 if "flash" in act.name else 1.2


def no_peers(run: Run, _: random.Random) -> None:
    """Collectives go over host memory, at 1 GB/s."""
    for meeting in run.meetings:
        args = meeting.acts[0].event["args"]
        meeting.extra = 4e-3 * float(args.get("In msg nelems", 0))


def narrow(run: Run, _: random.Random) -> None:
    """A GPU's PCIe link has become narrow: its batch takes long to copy."""
    rank = run[1]
    for act in rank.acts:
        if "HtoD" in act.name:
            act.took += 9_000


TITAN_GC = "https://github.com/pytorch/torchtitan/pull/148"
INCIDENTS: Final = [
    Incident(
        "thermal",
        "https://arxiv.org/html/2511.09861v2",
        "fsdp2",
        "GPU 2 throttles: products and attention take 1.12 times as long",
        throttled,
        r"slow|clock|later|wait",
        r"(GPU|rank) 2\b",
    ),
    Incident(
        "gc",
        TITAN_GC,
        "fsdp2",
        "rank 1's interpreter collects garbage for 70 ms early in the forward of step 12",
        collected,
        r"host|idle|stall|CPU|late|pause",
        r"(GPU|rank) 1\b|step 12",
    ),
    Incident(
        "fragmentation",
        "https://github.com/pytorch/pytorch/issues/35901",
        "fsdp1",
        "rank 3's allocator frees and allocates three times a step; hipFree waits for the GPU",
        fragmented,
        r"alloc|hipFree|hipMalloc|free",
        r"(GPU|rank) 3\b",
    ),
    Incident(
        "item",
        "https://github.com/hao-ai-lab/FastVideo/pull/1217",
        "ddp",
        "a value is read back after each layer of forward, on all ranks",
        read_back,
        r"item|[Ss]ync|read|DtoH",
        r"forward|item|layer|[Ss]ync",
    ),
    Incident(
        "dataloader",
        "https://github.com/open-edge-platform/geti/pull/5958",
        "fsdp2b",
        "all ranks wait 30 ms for data at the begin of each step",
        starved,
        r"data|load|input|batch",
        r"data|begin|start|first",
    ),
    Incident(
        "link",
        "https://github.com/NVIDIA/nccl-tests/issues/106",
        "fsdp1",
        "in one step all collectives take 3.5 times as long",
        flapping,
        r"collective|commun|all_gather|reduce_scatter|link|bandwidth",
        r"step 12|step \d+",
    ),
    Incident(
        "checkpoint",
        "https://github.com/NVIDIA/Megatron-LM/issues/636",
        "fsdp2b",
        "rank 0 copies 1.8 GB to the host and writes it at the begin of step 13",
        checkpointed,
        r"cop|checkpoint|save|DtoH|host",
        r"(GPU|rank) 0\b|step 13",
    ),
    Incident(
        "last_stage",
        "https://arxiv.org/abs/2505.05713",
        "pipeline",
        "the last stage's layers take 1.25 times as long",
        long_last_stage,
        r"stage|slow|long|imbalance|uneven",
        r"stage 3",
    ),
    Incident(
        "slow_shard",
        "https://arxiv.org/abs/2505.05713",
        "pipeline",
        "rank 5's products take 1.15 times as long",
        slow_shard,
        r"slow|long|later|wait",
        r"(GPU|rank) 5\b",
    ),
    Incident(
        "sequences",
        "https://arxiv.org/abs/2505.05713",
        "pipeline",
        "three of eight microbatches of replica 1 take 1.5 times as long, others in each step",
        long_sequences,
        r"microbatch|uneven|sequence|imbalance|replica",
        r"microbatch|replica|dp",
    ),
    Incident(
        "rail",
        "https://github.com/NVIDIA/nccl/issues/1856",
        "pipeline",
        "what rank 4 sends takes 1.2 ms longer",
        slow_rail,
        r"send|link|slow|transfer",
        r"(GPU|rank) 4\b|stage [12]",
    ),
    Incident(
        "nvlink",
        "https://github.com/NVIDIA/nccl/issues/820",
        "pipeline",
        "all-reduces of ranks 6 and 7 take 260 µs longer",
        lost_nvlink,
        r"all_reduce|link|slow|group|transfer",
        r"(GPU|rank)s? [67]\b|tp|group",
    ),
    Incident(
        "repair",
        "https://arxiv.org/abs/2505.05713",
        "fsdp2b",
        "one product takes 60 ms longer on rank 1, once",
        repaired,
        r"slow|long|later|wait",
        r"(GPU|rank) 1\b|step 12",
    ),
    Incident(
        "fp32_head",
        "https://github.com/sgl-project/sglang/pull/32370",
        "ddp",
        "the head's product runs in fp32, 11 times as long",
        full_precision,
        r"fp32|float|f32|precision|TF32",
        r"mm|product|32000|linear|gemm",
    ),
    Incident(
        "unfused",
        "https://github.com/karpathy/nanoGPT/pull/102",
        "ddp",
        "attention in forward is not fused: products, a cast and a softmax",
        unfused,
        r"attention|softmax|fus|flash",
        r"attention|softmax|attn",
    ),
    Incident(
        "no_sync",
        "https://github.com/pytorch/pytorch/issues/43201",
        "accumulated",
        "gradients are reduced in each of four microbatches, not in the last",
        nothing,
        r"accumul|no_sync|micro-?batch|each backward",
        r"all_reduce|backward|microbatch",
        {"reduces_each": True},
    ),
    Incident(
        "buckets",
        "https://github.com/pytorch/pytorch/issues/118421",
        "slow_link",
        "40 all-reduces for each layer instead of one",
        nothing,
        r"small|bucket|latency|short",
        r"all_reduce",
        {"buckets": 40},
    ),
    Incident(
        "debug",
        "https://github.com/open-mmlab/mmcv/pull/643",
        "fsdp2",
        "rank 1 reduces the outputs of its products, for debugging",
        debugged,
        r"more|extra|only|other|slow|kernels|work|later|wait",
        r"(GPU|rank) 1\b",
    ),
    Incident(
        "ramp",
        "https://cr0x.net/en/gpu-myths-that-refuse",
        "fsdp2b",
        "clocks recover over 40 ms after the wait between steps, on all GPUs",
        ramping,
        r"clock|slow|ramp|first|begin",
        r"begin|start|first|forward|step",
    ),
    Incident(
        "unpinned",
        "https://github.com/pytorch/tutorials/pull/2983",
        "ddp",
        "each step begins with a copy of 84 MB from pageable memory, 14 ms",
        unpinned,
        r"cop|HtoD|pageable|pinned|memcpy",
        r"cop|HtoD|host",
    ),
    Incident(
        "numa",
        "https://github.com/NVIDIA/srt-slurm/pull/332",
        "tp",
        "rank 3's host takes 400 µs longer for each operator",
        contended_cpu,
        r"host|launch|CPU",
        r"(GPU|rank) 3\b",
    ),
    Incident(
        "contiguous",
        "https://github.com/ROCm/AMDMIGraphX/issues/1158",
        "tp",
        "two copies behind each attention",
        copied,
        r"cop|contiguous|layout|memory-bound|elementwise",
        r"cop|contiguous",
    ),
    Incident(
        "recompile",
        "https://github.com/pytorch/pytorch/issues/114293",
        "ddp",
        "rank 0 compiles 180 ms in step 11",
        recompiled,
        r"compil|host|idle|stall",
        r"(GPU|rank) 0\b|step 11",
    ),
    Incident(
        "experts",
        "https://arxiv.org/abs/2601.17111",
        "moe",
        "rank 2's experts take 1.9 times as long",
        hot_experts,
        r"expert|uneven|imbalance|slow|later|wait",
        r"(GPU|rank) 2\b",
    ),
    Incident(
        "contention",
        "https://github.com/NVIDIA/nccl/issues/1428",
        "ddp",
        "products take 45 % longer while an all-reduce runs",
        contention,
        r"overlap|contention|beside|communication|slow",
        r"gemm|product|all_reduce|overlap|mm",
    ),
    Incident(
        "gc_apart",
        TITAN_GC,
        "fsdp2",
        "each rank collects garbage for 30 ms early in each step, all at other times",
        collected_apart,
        r"host|idle|stall|late",
        r"forward|step|hosts?",
    ),
    Incident(
        "empty_cache",
        "https://github.com/pytorch/pytorch/issues/35901",
        "fsdp1",
        "all ranks free and allocate blocks in each step",
        emptied,
        r"alloc|hipFree|hipMalloc",
        r"alloc|forward|hip",
    ),
    Incident(
        "loop",
        "https://github.com/NVIDIA/apex/issues/316",
        "ddp",
        "1200 small kernels in each optimizer step",
        looped,
        r"small|short|launch|many|optimizer",
        r"optim|opt_step|mul_",
    ),
    Incident(
        "ragged",
        "https://arxiv.org/abs/2505.05713",
        "ddp",
        "in each step another rank's kernels take 1.2 times (attention 1.35) as long",
        ragged,
        r"GPU|rank|uneven|sequence|slow",
        r"step|(GPU|rank) \d",
    ),
    Incident(
        "pcie",
        "https://cr0x.net/en/gpu-myths-that-refuse",
        "ddp",
        "rank 1's copy of the batch takes 9 ms",
        narrow,
        r"cop|HtoD|PCIe",
        r"(GPU|rank) 1\b",
    ),
    Incident(
        "p2p_off",
        "https://github.com/NVIDIA/nccl/issues/1453",
        "mi300x_ddp4",
        "collectives go over host memory, at 1 GB/s",
        no_peers,
        r"commun|all_reduce|link",
        r"all_reduce|commun",
    ),
    Incident(
        "stage_4",
        "https://arxiv.org/abs/2505.05713",
        "pipeline_pp8",
        "stage 4 takes 1.25 times as long",
        nothing,
        r"stage",
        r"stage 4",
    ),
    Incident(
        "power_cap",
        "https://matt.sh/cloud-gpu-thermal-throttling",
        "mi300x_ddp4",
        "GPU 0's kernels take 3 times as long",
        capped,
        r"slow|clock|later|wait",
        r"(GPU|rank) 0\b",
    ),
    Incident(
        "late_batch",
        "https://github.com/pytorch/pytorch/issues/89753",
        "mi300x_ddp4",
        "rank 2 gets its batch 25 ms late in each step",
        late_batch,
        r"host|data|late|idle",
        r"(GPU|rank) 2\b",
    ),
    Incident(
        "shared_cores",
        "https://github.com/NVIDIA/srt-slurm/pull/332",
        "v100_dlrm_8rank",
        "rank 3's host takes 60 µs longer for each operator",
        shared_cores,
        r"host|launch|CPU",
        r"(GPU|rank) 3\b",
    ),
    Incident(
        "batch_norm",
        "https://github.com/ROCm/MIOpen/issues/2001",
        "mi300x_train_resnet18.json.gz",
        "batch norms take 4 times as long",
        slow_norm,
        r"norm",
        r"norm",
    ),
    Incident(
        "logging",
        "https://github.com/meta-pytorch/torchtune/pull/522",
        "a100_rank0of16.json.gz",
        "the host logs for 60 ms near the end of step 552",
        logged,
        r"host|idle|stall|long",
        r"552|step",
    ),
    Incident(
        "layout",
        "https://github.com/ROCm/AMDMIGraphX/issues/1158",
        "mi300x_sglang_prefill.json.gz",
        "a copy of 1.5 ms behind each attention",
        layout_copies,
        r"cop|contiguous|elementwise|memory",
        r"cop|contiguous",
    ),
    Incident(
        "head_fp32",
        "https://github.com/unslothai/unsloth-zoo/pull/598",
        "mi300x_qwen05b.json.gz",
        "the largest product runs in fp32, 8 times as long",
        head_in_fp32,
        r"fp32|float|product|peak|precision|mm|long",
        r"mlp_gp|layer 0",
    ),
    Incident(
        "nan_check",
        "https://github.com/open-mmlab/mmcv/pull/643",
        "mi300x_resnet_act_ckpt_rank0of8.json.gz",
        "60 values are read back near the end of each step",
        checked,
        r"item|sync|read|cop|DtoH",
        r"item|optimizer|backward|cop",
    ),
]

CLEAN: Final = (
    "fsdp2",
    "fsdp2b",
    "fsdp1",
    "fsdp1b",
    "pipeline",
    "pipelineb",
    "ddp",
    "tp",
    "moe",
    "a100x8",
    "chakra_data_parallel",
    "chakra_pipeline",
)
MODELS: Final = {
    "ddp": Model(),
    "tp": Model("tp", gpu="NVIDIA A100-SXM4-80GB", tflops=230, gb_s=1500, link_gb_s=200),
    "moe": Model("moe", wide=8192),
    "ddp six": Model(layers=5, steps=6),
    "small": Model(hidden=2048, wide=5504, tokens=2048),
    "accumulated": Model("ddp", layers=6, microbatches=4, tokens=2048, link_gb_s=60),
    "slow_link": Model("ddp", layers=6, tokens=2048, link_gb_s=80, latency_us=60),
    "a100x8": Model(
        "ddp",
        ranks=8,
        layers=6,
        hidden=3072,
        wide=8192,
        gpu="NVIDIA A100-SXM4-40GB",
        tflops=240,
        gb_s=1300,
        link_gb_s=120,
    ),
}
STYLED: Final = {"styled module": ("module", 8), "styled busy": ("busy links", 4)}
"""Styles of the demo's generator, and how many steps."""
LOCKSTEP: Final = ("a100_rank0of16.json.gz",)


def run_ahead(folder: Path) -> None:
    """Let the hosts of the pipeline launch ahead, and the ranks end a step by a common loss.

    As generated, a host launches each kernel right before it starts, for no reason.
    """
    docs = [json.loads(path.read_text()) for path in sorted(folder.glob("rank*.json"))]
    number = len(docs)
    steps = [
        (event["ts"], event["ts"] + event["dur"])
        for event in docs[0]["traceEvents"]
        if event["name"].startswith("ProfilerStep")
    ]
    for doc in docs:
        rank = doc["distributedInfo"]["rank"]
        events = doc["traceEvents"]
        for begin, end in sorted(steps):
            own = [e for e in events if begin < e["ts"] < end]
            ids = 10_000_000 + int(begin)
            calls = sorted((e for e in own if e["cat"] == "cuda_runtime"), key=lambda e: e["ts"])
            moved = {}
            host = begin + 60.0
            for call in calls:
                moved[call["ts"] - 1, call["tid"]] = host - call["ts"]
                call["ts"], host = min(host, call["ts"]), host + 11.0
            for event in own:
                if event["cat"] == "cpu_op":
                    shift = moved[event["ts"], event["tid"]]
                    event["ts"] = min(event["ts"] + shift, event["ts"])
                    event["dur"] = 6
            for event in own:
                if event["name"].startswith("Optimizer"):
                    event["ts"], event["dur"] = host - 15.0, 20.0
            last = max(e["ts"] + e["dur"] for e in own if e["cat"] == "kernel")
            device = next(e["args"]["device"] for e in own if e["cat"] == "kernel")
            base = {"ph": "X", "pid": 100, "tid": 100}
            link = {"External id": ids, "correlation": ids}
            events += [
                base | {"cat": "cpu_op", "name": "nccl:all_reduce", "ts": host + 10, "dur": 12.0,
                        "args": {"External id": ids}},
                base | {"cat": "cuda_runtime", "name": "hipExtLaunchKernel", "ts": host + 14,
                        "dur": 5.0, "args": link},
                {"ph": "X", "cat": "kernel", "pid": device, "tid": 9, "ts": last + 6,
                 "name": "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)",
                 "dur": end - 25 - last - 6 + 30, "args": link | {
                     "device": device, "stream": 9, "Collective name": "allreduce",
                     "In msg nelems": 1, "Out msg nelems": 1, "dtype": "Float",
                     "Group size": number, "Process Group Name": "0",
                     "Process Group Description": "default_pg",
                     "Process Group Ranks": json.dumps(list(range(number)))}},
                base | {"cat": "cuda_runtime", "name": "hipDeviceSynchronize", "ts": host + 30,
                        "dur": end + 10 - host - 30, "args": {"correlation": ids + 1}},
            ]  # fmt: skip
            for event in events:
                if event["name"].startswith("ProfilerStep") and event["ts"] == begin:
                    event["dur"] += 20
        doc["distributedInfo"].get("pg_config", []).append(
            {"pg_name": "0", "pg_desc": "default_pg", "ranks": list(range(number))}
        )
        (folder / f"rank{rank}.json").write_text(json.dumps(doc))


def base_run(name: str, out: Path, seed: int) -> Path | None:
    """The folder or file of a run without anything planted."""
    folder = out / "clean" / name
    if folder.exists():
        return folder
    if name in MODELS:
        Simulator(replace(MODELS[name], seed=seed)).write(folder)
    elif name in STYLED:
        style, steps = STYLED[name]
        styled = replace(planted.STYLES[style], iterations=steps, seed=seed)
        planted.simulated(replace(styled, telemetry=False)).write(folder)
    elif name.startswith("fsdp"):
        other = name.endswith("b")
        kind, layers = name[:5], 6 if other else 8
        command = [sys.executable, str(ROOT / "demo_data/generate.py"), kind, "--clean"]
        command += ["--no-counters", "--no-telemetry", "--ranks", "4", "--iterations", "3"]
        command += ["--layers", str(layers), "--seed", str(seed + 10 * other)]
        command += ["-o", str(folder)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    elif name.startswith("chakra_"):
        command = [*CHOPPER, "generate", "-o", str(folder), name.removeprefix("chakra_")]
        command += ["ranks=8", "iterations=3", "layers=8", "compute_us=900"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
    elif name in ("pipeline", "pipelineb"):
        forward_us = 700 if name == "pipeline" else 450
        clean = Pipeline(long_by=1.0, hot_by=1.0, dp=2, layers=3, forward_us=forward_us)
        generate(folder, clean)
        for rest in folder.iterdir():
            if not rest.name.startswith("rank"):
                rest.unlink()
        run_ahead(folder)
    else:
        path = REALDATA / name
        return path if path.exists() else None
    return folder


# --- judging --------------------------------------------------------------------------------------


def findings(path: Path, cache: Path) -> list[dict[str, Any]]:
    """What the first screen lists."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    kept["XDG_CACHE_HOME"] = str(cache)
    command = [*CHOPPER, "show", f"{path}?view=findings", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=kept, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    rows = json.loads(done.stdout)["rows"]
    return [row for row in rows if row["group"] != "not known"]


def stem(row: dict[str, Any]) -> str:
    """A finding's rule and title without its figures."""
    title = re.sub(r"(?<!GPU )(?<!stage )\b[\d.,]+\s*(ms|µs|s|%)?", "#", row["name"].split(":")[0])
    return f"{row['rule']}|{title}"


@dataclass
class Verdict:
    """What the findings say of an incident."""

    incident: Incident
    truth: float
    rows: list[tuple[dict[str, Any], float | None]]
    """New findings, and those whose cost has grown, with what they cost before."""

    def is_named(self, row: dict[str, Any]) -> bool:
        text = f"{row['name']} {row['detail']} {row['advice']}"
        kind, place = self.incident.kind, self.incident.place
        return bool(re.search(kind, text, re.I) and re.search(place, text, re.I))


def judge(incident: Incident, truth: float, before: list[Any], now: list[Any]) -> Verdict:
    known = {stem(row): row for row in before}
    rows: list[tuple[dict[str, Any], float | None]] = []
    for row in now:
        old = known.get(stem(row))
        if old is None:
            rows.append((row, None))
        elif (row["cost_ns"] or 0) - (old["cost_ns"] or 0) > 0.25e6 * truth:
            rows.append((row, (old["cost_ns"] or 0) / 1e6))
    return Verdict(incident, truth, rows)


def ms(value: float | None) -> str:
    return "–" if value is None else f"{value / 1e6:.2f}"


def line(verdict: Verdict) -> str:
    incident, truth = verdict.incident, verdict.truth
    head = f"| {incident.name} | {incident.what} ({incident.base}) | {truth:.2f} "
    if not verdict.rows:
        return f"{head}| **nothing new** | n | – | – |"
    row, old = verdict.rows[0]
    cost = row["cost_ns"] - (old or 0) * 1e6 if row["cost_ns"] is not None else None
    saving, low, high = row["saving_ns"], row["saving_low_ns"], row["saving_high_ns"]
    note = "" if old is None else f" (grown from {old:.2f})"
    ratios = [v / 1e6 / truth for v in (cost, saving) if v is not None and truth]
    ratio = min(ratios, key=lambda r: abs(r - 1)) if ratios else None
    # What has grown saves what it saved before, too.
    known = low is not None and old is None
    inside = "–" if not known else "y" if low <= truth * 1e6 <= high else "n"
    named = "y" if verdict.is_named(row) else "n"
    later = [n for n, (r, _) in enumerate(verdict.rows) if verdict.is_named(r)]
    if named == "n" and later:
        named = f"n (new finding {later[0] + 1} does)"
    said = f"{row['name']}{note}, costs {ms(row['cost_ns'])}, saves {ms(saving)}"
    said += f" ({ms(low)}–{ms(high)}), {row['confidence']}"
    shown = "–" if ratio is None else f"{ratio:.2f}"
    return f"{head}| {said} | {named} | {shown} | {inside} |"


def lengthen_stage(base: Path, out: Path, stage: int, by: float) -> float:
    """A schedule of microbatches with a longer stage; by how many ms its iterations are longer."""
    docs = [json.loads((base / f"pp8_{n}.json").read_text()) for n in range(8)]
    longer = []
    for key in docs[0]:
        rows = [doc[key] for doc in docs]
        work = sorted(
            (row[f"{kind}_start"][m], number, kind, m)
            for number, row in enumerate(rows)
            for kind in ("fwd", "bwd")
            for m in range(len(row["fwd_start"]))
        )
        new: dict[tuple[int, str, int], tuple[float, float]] = {}
        last: dict[int, tuple[float, float]] = {}
        for start, number, kind, m in work:
            end = rows[number][f"{kind}_end"][m]
            source = (number - 1, "fwd", m) if kind == "fwd" else (number + 1, "bwd", m)
            if kind == "bwd" and number == len(rows) - 1:
                source = (number, "fwd", m)
            bounds = [last[number]] if number in last else []
            if source in new:
                bounds.append((rows[source[0]][f"{source[1]}_end"][m], new[source][1]))
            bounds = [(min(old, start), moved) for old, moved in bounds if old <= start + 1]
            begin = start
            if bounds:
                old, moved = max(bounds)
                begin = max(moved + start - old, *(b[1] for b in bounds))
            done = begin + (end - start) * (by if number == stage else 1.0)
            new[number, kind, m] = begin, done
            last[number] = end, done
        before = max(max(row["bwd_end"]) for row in rows)
        longer.append(max(end for _, end in new.values()) - before)
        for (number, kind, m), (begin, done) in new.items():
            shift = done - rows[number][f"{kind}_end"][m]
            if kind == "bwd" and m == len(rows[number]["bwd_end"]) - 1:
                rows[number]["total"] += shift
            rows[number][f"{kind}_start"][m], rows[number][f"{kind}_end"][m] = begin, done
    out.mkdir(parents=True, exist_ok=True)
    for number, doc in enumerate(docs):
        (out / f"pp8_{number}.json").write_text(json.dumps(doc))
    return sum(longer) / len(longer)


HEAD: Final = (
    "| id | planted | truth ms | first new finding | named | size ratio | in range |\n"
    "|---|---|--:|---|---|--:|---|"
)


def plant(incident: Incident, base: Path, out: Path, seed: int) -> float:
    """Write the run with the incident; returns by how many ms its mean step is longer."""
    if incident.base == "pipeline_pp8":
        return lengthen_stage(base, out, 4, 1.25)
    run = read(base, incident.base in LOCKSTEP)
    before = run.mean_step_us()
    if incident.model:
        model = replace(MODELS[incident.base], seed=seed, **incident.model)
        Simulator(model).write(out)
        return (read(out).mean_step_us() - before) / 1e3
    incident.plant(run, random.Random(seed))
    replay(run)
    write(run, out)
    return (run.mean_step_us() - before) / 1e3


def main(arguments: list[str] | None = None, incidents: Sequence[Incident] = INCIDENTS) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="comma-separated names")
    parser.add_argument("--clean", action="store_true", help="only runs with nothing planted")
    parser.add_argument("--report", type=Path, help="a file to add the table to")
    args = parser.parse_args(arguments)
    cache = args.out / "cache"
    cleans: dict[str, list[dict[str, Any]]] = {}

    def say(text: str) -> None:
        print(text, flush=True)
        if args.report:
            with args.report.open("a") as file:
                file.write(text + "\n")

    def clean(name: str) -> Path | None:
        base = base_run(name, args.out / f"seed{args.seed}", args.seed)
        if base is not None and name not in cleans:
            cleans[name] = findings(base, cache)
        return base

    if args.clean:
        for name in CLEAN:
            clean(name)
            for row in cleans[name]:
                say(f"| {name} | {row['name']} | {ms(row['cost_ns'])} | {row['confidence']} |")
            if not cleans[name]:
                say(f"| {name} | – | | |")
        return
    only = set(args.only.split(",")) if args.only else None
    say(HEAD)
    for incident in incidents:
        if only and incident.name not in only:
            continue
        began = time.monotonic()
        base = clean(incident.base)
        if base is None:
            print(f"{incident.name}: no {incident.base}", file=sys.stderr)
            continue
        folder = args.out / (incident.name if args.seed == 1 else f"{incident.name}_{args.seed}")
        truth = plant(incident, base, folder, args.seed)
        verdict = judge(incident, truth, cleans[incident.base], findings(folder, cache))
        say(line(verdict))
        for row, old in verdict.rows[1:]:
            mark = "" if old is None else f" (grown from {old:.2f})"
            cost, saving = ms(row["cost_ns"]), ms(row["saving_ns"])
            print(f"    also: {row['name']}{mark} costs {cost} saves {saving} {row['confidence']}")
        print(f"    {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
