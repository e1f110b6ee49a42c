"""Replay a run as a job writes it: telemetry line by line, a trace of one step now and then."""

from __future__ import annotations

import gzip
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from chopper_core.util.errors import DataError

EVERY_STEPS: Final = 20
"""A profiler's schedule: one step is traced of so many."""
_STEP: Final = re.compile(r"(ProfilerStep#|Iteration)(\d+)")
_BUSY_MHZ: Final = 1000.0
Event = dict[str, Any]


class _ReplayedStep:
    """The events of one step of all ranks."""

    def __init__(self, begin_us: float, end_us: float) -> None:
        self.begin_us, self.end_us = begin_us, end_us
        self.events: dict[int, list[Event]] = {}


def replay(run: Path, into: Path, speed: float = 1.0, steps: int = 1 << 30) -> None:
    """Write the steps of a run's traces and its telemetry again and again, on a clock from now on.

    Raises DataError where the run has no complete step, or no `amd_smi_monitor.csv`.
    """
    documents = [json.loads(gzip.decompress(path.read_bytes())) for path in _traces(run)]
    recorded = _steps(documents)
    monitor = run / "telemetry" / "amd_smi_monitor.csv"
    if not recorded or not monitor.is_file():
        raise DataError(f"{run} has no complete step, or no telemetry/amd_smi_monitor.csv")
    heading, *lines = monitor.read_text().splitlines()
    rounds = list(_rounds(heading, lines))
    period_s = sum(step.end_us - step.begin_us for step in recorded) / len(recorded) / 1e6
    into.mkdir(parents=True, exist_ok=True)
    base_s = began_s = time.time()
    with (into / monitor.name).open("a") as telemetry:
        telemetry.write(f"{heading}\n")
        done = 0
        for second in range(1 << 30):
            _wait(began_s + second / speed)
            stamp = int(base_s) + second
            rows = rounds[second % len(rounds)]
            telemetry.write("".join(f"{stamp},{row}\n" for row in rows))
            telemetry.flush()
            number = int(second / period_s)
            if number >= (done + 1) * EVERY_STEPS - 1:
                step = recorded[done % len(recorded)]
                begin_ns = round((base_s + number * period_s) * 1e9)
                for document, rank in zip(documents, range(len(documents)), strict=True):
                    _write(into, document, step, rank, number, begin_ns)
                done += 1
                if done == steps:
                    return


def _wait(until_s: float) -> None:
    time.sleep(max(until_s - time.time(), 0.0))


def _traces(run: Path) -> list[Path]:
    return sorted(run.glob("rank*.json.gz"), key=lambda path: int(re.sub(r"\D", "", path.name)))


def _steps(documents: list[Event]) -> list[_ReplayedStep]:
    """The annotated steps, with the host's events in each and what they launch on the GPU."""
    found: dict[int, _ReplayedStep] = {}
    for rank, document in enumerate(documents):
        events = [each for each in document["traceEvents"] if each.get("ph") != "M"]
        own: dict[int, _ReplayedStep] = {}
        for each in events:
            match = _STEP.fullmatch(str(each.get("name")))
            if match and match[1] != "Iteration" and each.get("cat") == "user_annotation":
                own[int(match[2])] = _ReplayedStep(each["ts"], each["ts"] + each["dur"])
        launched: dict[Any, float] = {
            each["args"]["correlation"]: each["ts"]
            for each in events
            if each.get("cat") == "cuda_runtime"
        }
        flows = {each["id"]: each["ts"] for each in events if each.get("ph") == "s"}
        for number, step in own.items():
            whole = found.setdefault(number, _ReplayedStep(step.begin_us, step.end_us))
            within = _within(step, launched, flows)
            whole.events[rank] = [each for each in events if within(each)]
    return [step for step in found.values() if len(step.events) == len(documents)]


def _within(
    step: _ReplayedStep, launched: dict[Any, float], flows: dict[Any, float]
) -> Callable[[Event], bool]:
    def holds(event: Event) -> bool:
        correlation = event.get("args", {}).get("correlation")
        at = launched.get(correlation, event.get("ts"))
        if event.get("ph") == "f":
            at = flows.get(event["id"])
        return at is not None and step.begin_us <= at < step.end_us

    return holds


def _rounds(heading: str, lines: list[str]) -> Iterator[list[str]]:
    """The rows of each second without their time, of the seconds in which GPUs work."""
    clock = heading.split(",").index("gfx_clock") - 1
    rounds: dict[str, list[str]] = {}
    for line in lines:
        stamp, _, row = line.partition(",")
        rounds.setdefault(stamp, []).append(row)
    for rows in rounds.values():
        if all(float(row.split(",")[clock]) > _BUSY_MHZ for row in rows):
            yield rows


def _write(
    into: Path, document: Event, step: _ReplayedStep, rank: int, number: int, begin_ns: int
) -> None:
    """Write a step's trace as torch's TensorBoard handler names it, at a time and with a number."""
    base_ns = begin_ns // 10**9 * 10**9
    by_us = (begin_ns - base_ns) / 1000 - step.begin_us
    events = []
    for each in step.events[rank]:
        match = _STEP.fullmatch(str(each.get("name")))
        named = {"name": f"{match[1]}{number}"} if match else {}
        events.append({**each, **named, "ts": each["ts"] + by_us})
    threads = [each for each in document["traceEvents"] if each.get("ph") == "M"]
    content = {**document, "baseTimeNanoseconds": base_ns, "traceEvents": threads + events}
    process = document["traceEvents"][0].get("pid")
    process = next((each["pid"] for each in events if each.get("cat") == "cuda_runtime"), process)
    target = into / f"demo_{process}.{begin_ns}.pt.trace.json.gz"
    part = target.with_name(f"{target.name}.part")
    part.write_bytes(gzip.compress(json.dumps(content).encode(), 1))
    os.replace(part, target)
