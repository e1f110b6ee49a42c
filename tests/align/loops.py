"""Training loops as a host and a GPU run them: annotations, launches, waits; times in whole µs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.align.traces import MAIN, TinyTrace

LATENCY = 3
"""From a launch call to the start on an idle stream."""


@dataclass(frozen=True)
class Work:
    """The host works, in a range if it has a name."""

    us: int
    name: str = ""


@dataclass(frozen=True)
class Launch:
    """A kernel of a duration on a stream; a lost one leaves its call only."""

    us: int
    stream: int = 7
    kind: str = "kernel"
    name: str = ""
    is_lost: bool = False
    thread: int = MAIN


@dataclass(frozen=True)
class Wait:
    """The host waits for all streams."""


Op = Work | Launch | Wait


@dataclass
class Loop:
    """A host that runs ops, and a GPU whose streams run what it launched, one after the other."""

    trace: TinyTrace = field(default_factory=TinyTrace)
    now: int = 1_000
    free: dict[int, int] = field(default_factory=dict)
    launched: int = 0

    def run(self, ops: Iterable[Op]) -> None:
        for op in ops:
            if isinstance(op, Work):
                if op.name:
                    self.trace.note(op.name, self.now, self.now + op.us)
                self.now += op.us
            elif isinstance(op, Launch):
                self._launch(op)
            else:
                ends = max([self.now, *self.free.values()])
                call = self.trace.call("cudaDeviceSynchronize", self.now, 0)
                self.now = ends + 1
                call["dur"] = self.now - call["ts"]

    def _launch(self, op: Launch) -> None:
        self.launched += 1
        name = op.name or f"k{self.launched}"
        self.trace._correlations += 1
        correlation = self.trace._correlations
        of_runtime = "cudaLaunchKernel" if op.kind == "kernel" else "cudaMemcpyAsync"
        self.trace.call(of_runtime, self.now, correlation, op.thread)
        start = max(self.now + LATENCY, self.free.get(op.stream, 0))
        self.free[op.stream] = start + op.us
        if not op.is_lost:
            self.trace.gpu(
                name, start, op.us, stream=op.stream, correlation=correlation, category=op.kind
            )
        self.now += 2

    def step(self, number: int, ops: Iterable[Op], name: str = "ProfilerStep#{}") -> None:
        """A step: its ops in an annotation."""
        begin = self.now
        self.run(ops)
        self.trace.note(name.format(number), begin, self.now)


def loop_of(steps: Sequence[Iterable[Op]], between: Sequence[Op] = (), first: int = 3) -> Loop:
    """A loop of steps with the same ops between any two."""
    loop = Loop()
    for place, ops in enumerate(steps):
        if place:
            loop.run(between)
        loop.step(first + place, ops)
    return loop


def shifted(events: Iterable[dict[str, Any]], us: int, since: int = 0) -> list[dict[str, Any]]:
    """The events, those from a time on later."""
    return [event | {"ts": event["ts"] + us * (event["ts"] >= since)} for event in events]
