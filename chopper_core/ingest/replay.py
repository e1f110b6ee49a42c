"""Replay a run as a job writes it: telemetry line by line, its traces as windows now and then.

`python -m chopper_core.ingest.replay RUN INTO SPEED PARENT` is a process of its own, as a job is.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

from chopper_core.util.children import end_with
from chopper_core.util.compression import COMPRESSED_TRACE
from chopper_core.util.errors import DataError

EVERY_STEPS: Final = 20
"""A profiler's schedule: a window begins every so many steps."""
_STEP: Final = re.compile(rb'"(ProfilerStep#|Iteration)(\d+)"')
_BASE: Final = re.compile(rb'"baseTimeNanoseconds":\s*\d+')
_BUSY_MHZ: Final = 1000.0


class _RecordedTrace(NamedTuple):
    """The trace of a rank, with what changes when it is written again."""

    text: bytes
    process: int
    first: int
    """Its first step."""
    begin_ns: int
    """When that one begins, from the base on."""
    period_s: float


def replay_run(
    run: Path,
    into: Path,
    speed: float = 1.0,
    *,
    began_s: float | None = None,
    seconds: int | None = None,
) -> None:
    """Write a run's traces and its telemetry again and again, on a clock from now on, or from
    `began_s` in seconds since the epoch; without end, or for so many seconds of that clock.

    Raises DataError where the run has no complete step, or no `amd_smi_monitor.csv`, and where
    the directory has telemetry: what it would be mixed with may be somebody's.
    """
    traces = [
        trace for path in sorted(run.glob(f"rank*{COMPRESSED_TRACE}")) for trace in _recorded(path)
    ]
    monitor = run / "telemetry" / "amd_smi_monitor.csv"
    if not traces or not monitor.is_file():
        raise DataError(f"{run} has no complete step, or no telemetry/amd_smi_monitor.csv")
    if os.path.lexists(into / monitor.name):
        raise DataError(f"{into / monitor.name} exists already; give another directory")
    heading, *lines = monitor.read_text().splitlines()
    rounds = list(_rounds(heading, lines))
    period_s = traces[0].period_s
    into.mkdir(parents=True, exist_ok=True)
    began_s = time.time() if began_s is None else began_s
    with (into / monitor.name).open("a") as telemetry:
        telemetry.write(f"{heading}\n")
        done = 0
        for second in count() if seconds is None else range(seconds):
            time.sleep(max(began_s + second / speed - time.time(), 0.0))
            rows = rounds[second % len(rounds)]
            telemetry.write("".join(f"{int(began_s) + second},{row}\n" for row in rows))
            telemetry.flush()
            number = int(second / period_s)
            if number >= (done + 1) * EVERY_STEPS - 1:
                begin_ns = round((began_s + number * period_s) * 1e9)
                for trace in traces:
                    _write(into, trace, number, begin_ns)
                done += 1


def _recorded(path: Path) -> Iterator[_RecordedTrace]:
    text = gzip.decompress(path.read_bytes())
    document = json.loads(text)
    events = document["traceEvents"]
    process = next((each["pid"] for each in events if each.get("cat") == "cuda_runtime"), 0)
    steps = [
        (each["ts"], each["dur"], int(each["name"].partition("#")[2]))
        for each in events
        if each.get("cat") == "user_annotation" and each["name"].startswith("ProfilerStep#")
    ]
    if steps:
        begin_us, _, first = min(steps)
        period_s = sum(took for _, took, _ in steps) / len(steps) / 1e6
        yield _RecordedTrace(text, process, first, round(begin_us * 1000), period_s)


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


def _write(into: Path, trace: _RecordedTrace, number: int, begin_ns: int) -> None:
    """Write a trace as torch's TensorBoard handler names it, from a step and a time on."""
    text = _STEP.sub(
        lambda match: b'"%s%d"' % (match[1], int(match[2]) - trace.first + number), trace.text
    )
    text = _BASE.sub(b'"baseTimeNanoseconds": %d' % (begin_ns - trace.begin_ns), text, count=1)
    target = into / f"demo_{trace.process}.{begin_ns}.pt.trace{COMPRESSED_TRACE}"
    part = target.with_name(f"{target.name}.part")
    part.write_bytes(gzip.compress(text, 1))
    os.replace(part, target)


def main(arguments: Sequence[str]) -> None:
    """Replay RUN into INTO at SPEED as long as the process PARENT, which started this one, runs."""
    run, into, speed, parent = arguments
    end_with(int(parent))
    # A terminal sends Ctrl-C to every process of the command; the parent ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        replay_run(Path(run), Path(into), float(speed))
    except (DataError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
