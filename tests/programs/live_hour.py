"""A scripted hour of live, compressed: `python -m tests.programs.live_hour --seconds 3600`.

A stand-in training publishes its steps, and stand-ins for a library or a tool give the values of
eight GPUs; the explorer runs in a pseudo-terminal. The screen of each second is compared with a
computation of its own: values and marks of each GPU, the newest step, median, 95th percentile,
rate and slowest rank. Printed are the bytes, the processor time and the memory of an update.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import numpy as np

from chopper_core.record.hooks import step_ring
from chopper_core.record.hooks.step_ring import StepRing
from chopper_core.util.arrays import json_of
from tests.tui.terminal_harness import ROOT, Terminal

GPUS: Final = 8
LIMIT_W: Final = 750.0
HOT_C: Final = 95.0
MS: Final = 1_000_000
SIGNALS: Final = ("gfx", "util", "power", "hotspot")
HEADING: Final = "timestamp,gpu,power_usage,hotspot_temperature,gfx_clock,gfx"
_FIGURE: Final = re.compile(r"([▲▼]?)(\d+(?:\.\d+)?|–)")
_DEADLINE_S: Final = 9.0
"""Less than it takes a GPU without samples to lose its values."""
_MOST_BYTES: Final = 1500
_LOOKS_OFTEN: Final = """
import sys
from chopper_tui import __main__ as program
from chopper_tui.commands import arguments
arguments._LEAST_S = 0.01
sys.exit(program.main())
"""
"""The explorer without the least time between two looks: an hour takes ten minutes."""
_STAND_INS: Final = ROOT / "tests" / "record" / "stand_ins"

Row = tuple[tuple[str, float], ...]
"""Mark and value of each signal of a GPU; NaN for a missing one."""


def values_at(second: int, seconds: int) -> np.ndarray:
    """Clock, use, power and heat of each GPU: waves, and one GPU that stands out at a time."""
    gpu, part = np.arange(GPUS), second / seconds
    wave = np.sin(second / 7 + gpu)
    found = np.array([1980 + 8 * wave, 95 + 3 * wave, 640 + 20 * wave, 72 + gpu])
    found[0, 3] -= 300 * (0.2 < part < 0.3)
    found[1, 1] -= 40 * (0.35 < part < 0.4)
    found[2, 6] = 741 if 0.5 < part < 0.6 else found[2, 6]
    found[3, 5] = 97 if 0.1 < part < 0.2 else found[3, 5]
    return np.rint(found)


def marked(values: np.ndarray, *, has_limit: bool) -> list[Row]:
    """The values of each GPU with their marks, from the definition in the docs.

    Power marks 98 % of its limit, heat 95 °C; a clock or use is marked on its side beyond 3.5
    standard deviations, by the median absolute deviation, and 2 % of the median.
    """
    rows = []
    for gpu in range(GPUS):
        row = []
        for name, own in zip(SIGNALS, values, strict=True):
            value, known = float(own[gpu]), [float(each) for each in own if math.isfinite(each)]
            middle = statistics.median(known)
            spread = statistics.median(abs(each - middle) for each in known)
            mark = ""
            if name == "power":
                mark = "▲" * (has_limit and value >= 0.98 * LIMIT_W)
            elif name == "hotspot":
                mark = "▲" * (value >= HOT_C)
            elif abs(value - middle) > max(3.5 * 1.4826 * spread, 0.02 * middle):
                mark = "▲" if value > middle else "▼"
            row.append((mark, value))
        rows.append(tuple(row))
    return rows


def is_shown(lines: list[str], rows: list[Row]) -> bool:
    """Whether the screen has a line for each GPU with its values and marks."""
    shown = {}
    for line in lines:
        head = re.match(r"[│ ]*[▌ ] (\d) {2,}", line)
        if head is not None:
            shown[int(head[1])] = _FIGURE.findall(line[head.end() :])[: len(SIGNALS)]
    for gpu, row in enumerate(rows):
        found = shown.get(gpu, [])
        if len(found) < len(row):
            return False
        for (mark, text), (wanted_mark, wanted) in zip(found, row, strict=True):
            if math.isnan(wanted):
                if text != "–":
                    return False
            elif text == "–" or mark != wanted_mark or abs(float(text) - wanted) > 0.5:
                return False
    return True


class StandInTraining:
    """Eight ranks that publish their steps; rank 5 is slower, and every so often one evaluates."""

    def __init__(self, folder: Path, born_ns: int, first: int = 0) -> None:
        self.rings = []
        for rank in range(GPUS):
            self.rings.append(StepRing(str(folder / "steps" / f"n{born_ns}-{rank}.ring"), born_ns))
            self.rings[-1].name(rank, GPUS)
        self.number = first
        self.at_ns = [born_ns] * GPUS
        self.took_ms: list[list[float]] = []
        """Of each step, the time of each rank."""
        self.is_plain: list[bool] = []
        self.ends_ns: list[int] = []

    def step(self) -> None:
        number, evaluates = self.number, self.number % 300 == 299
        saves = self.number % 500 == 499
        times = []
        for rank, ring in enumerate(self.rings):
            ms = 850 + number % 11 + 20 * (rank == 5) + 900 * evaluates + 400 * saves
            more = (900 * MS * evaluates, 400 * MS * saves)
            ring.add((number, self.at_ns[rank], ms * MS, 4096, *more, step_ring.FREE))
            self.at_ns[rank] += ms * MS
            ring.note(step_ring.FORWARD, self.at_ns[rank], number + 1)
            times.append(float(ms))
        self.took_ms.append(times)
        self.is_plain.append(number >= 3 and not evaluates and not saves)
        self.ends_ns.append(max(self.at_ns))
        self.number += 1

    def problem(self, text: str) -> str:
        """What the headline lacks of the newest steps; '' for nothing."""
        kept = slice(-step_ring.SLOTS, None)
        times = np.array(self.took_ms[kept])
        mean, plain = times.mean(axis=1), np.array(self.is_plain[kept])
        usual = mean[plain] if plain.any() else mean
        ends = np.array(self.ends_ns[kept])
        recent = mean[ends > ends[-1] - 60 * 10**9]
        medians = np.median(times[plain] if plain.any() else times, axis=0)
        slower = 100 * (medians[5] / np.median(medians) - 1)
        wanted = {
            rf"step {self.number - 1:,}: ([\d.,]+) (m?s)": (mean[-1], 1e-3),
            r"median ([\d.,]+) (m?s)": (np.median(usual), 1e-3),
            r"p95 ([\d.,]+) (m?s)": (np.quantile(usual, 0.95), 1e-3),
            r"([\d.,]+) (steps/s)": (1e3 * len(recent) / recent.sum(), 1e-2),
            r"([\d.,]+) (tok/s) per rank": (4096e3 * len(recent) / recent.sum(), 1e-3),
            r"rank 5 is slowest, \+([\d.]+) (%)": (slower, 5e-2),
        }
        for pattern, (value, within) in wanted.items():
            match = re.search(pattern, text)
            if match is None:
                return pattern
            number = float(match[1].replace(",", "")) * (1e3 if match[2] == "s" else 1)
            if abs(number - value) > within * value:
                return f"{match[0]} is not {value}"
        return ""


class Hour:
    """The script: what is written in each second, and what the screen then has to show."""

    def __init__(self, folder: Path, seconds: int, *, of_node: bool) -> None:
        self.folder, self.seconds, self.of_node = folder, seconds, of_node
        self.values = values_at(0, seconds)
        self.training: StandInTraining | None = None
        self.silent: set[int] = set()
        """GPUs without samples."""
        self.stall_bytes = 0
        """The most that came at once while a stall was waited for."""
        self._begin_s = time.time()
        folder.mkdir(parents=True, exist_ok=True)
        if not of_node:
            self.training = StandInTraining(folder, time.time_ns())
            for _ in range(8):  # The first ones are no usual steps.
                self.training.step()
            (folder / "power.csv").write_text(f"{HEADING}\n")
        self.write(0)

    def write(self, second: int, *, has_step: bool = True, more_s: float = 0.0) -> None:
        self.values = values_at(second, self.seconds)
        if self.of_node:
            part = self.folder / "script.part"
            part.write_bytes(json_of(self.values.T.tolist()))
            part.rename(self.folder / "script.json")
            return
        assert self.training is not None
        if second == self.seconds * 3 // 4:  # The job is started again, from a checkpoint.
            number = max(self.training.number - 50, 3)
            self.training = StandInTraining(self.folder, time.time_ns(), number)
        if has_step:
            self.training.step()
        mhz, util, watts, heat = self.values.astype(int)
        at_s = self._begin_s + second + more_s / 100
        lines = [
            f"{at_s:.3f},{gpu},{watts[gpu]},{heat[gpu]},{mhz[gpu]},{util[gpu]}\n"
            for gpu in range(GPUS)
            if gpu not in self.silent
        ]
        with (self.folder / "power.csv").open("a") as file:
            file.write("".join(lines))

    def problem(self, terminal: Terminal) -> str:
        """What the screen lacks now; '' for nothing."""
        lines = [line.rstrip() for line in terminal.screen.display]
        values = self.values.astype(np.float64)
        values[:, [*self.silent]] = np.nan
        if not is_shown(lines, marked(values, has_limit=self.of_node)):
            return "the values of the GPUs"
        return self.training.problem(" ".join(map(str.strip, lines[2:6]))) if self.training else ""


@contextmanager
def watched(hour: Hour, size: tuple[int, int], interval_s: float) -> Iterator[Terminal]:
    """The explorer on the script."""
    own = hour.folder.parent
    home = {
        name: str(own / "home") for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME")
    }
    more = ["--interval", str(interval_s)]
    words = ["live", *more] if hour.of_node else [f"{hour.folder}?view=live", "--watch", *more]
    if hour.of_node:
        modules = own / "modules"
        modules.mkdir()
        for name in ("load", "amdsmi"):
            (modules / f"{name}.py").symlink_to(_STAND_INS / f"{name}.py")
        script = {"gpus": GPUS, "script": str(hour.folder / "script.json")}
        home |= {"PYTHONPATH": f"{ROOT}:{modules}", "STAND_IN": json.dumps(script)}
    command = [sys.executable, "-c", _LOOKS_OFTEN, *words]
    with Terminal(command=command, size=size, **home) as terminal:
        yield terminal


def run(
    seconds: int,
    *,
    of_node: bool = False,
    size: tuple[int, int] = (80, 24),
    interval_s: float = 0.1,
    stalls: bool = False,
) -> dict[str, Any]:
    """Play the script; returns what an update took, and what was wrong.

    `stalls` waits twelve seconds in its middle: no step ends, and a GPU gives no values.
    """
    root = Path(tempfile.mkdtemp(prefix="live-hour-"))
    hour = Hour(root / "run", seconds, of_node=of_node)
    wrong: list[str] = []
    sizes, used_s, memory_mb, began_s = [], [], [], time.monotonic()
    with watched(hour, size, interval_s) as terminal:
        terminal.until(lambda: not hour.problem(terminal))
        _read_for(terminal, 1.0)
        began_s = time.monotonic()
        for second in range(1, seconds):
            terminal.output, before_s = b"", terminal.processor_s()
            hour.write(second)
            until = time.monotonic() + _DEADLINE_S
            while (problem := hour.problem(terminal)) and time.monotonic() < until:
                terminal.quiet(0.01)
            if problem:
                wrong.append(f"second {second}: {problem}\n{terminal.text}")
                if len(wrong) >= 3:
                    break
            _read_for(terminal, 1.2 * interval_s)
            sizes.append(len(terminal.output))
            used_s.append(terminal.processor_s() - before_s)
            memory_mb.append(_resident_mb(terminal.process.pid))
            if stalls and second == seconds // 2 + 1 and "rank" in terminal.screen.display[-2]:
                wrong.append(f"second {second}: a stall that is over is said\n{terminal.text}")
            if stalls and second == seconds // 2:
                wrong += _stalled(hour, terminal, second)
        lasted_s = time.monotonic() - began_s
        terminal.send("q")
        with suppress(AssertionError):
            terminal.wait()
    shutil.rmtree(root)
    later = memory_mb[len(memory_mb) // 4 :]
    return {
        "updates": len(sizes),
        "bytes": {
            "median": statistics.median(sizes),
            "p99": round(float(np.quantile(sizes, 0.99))),
            "most": max(sizes),
            "stall": hour.stall_bytes,
            "above": {at + 1: size for at, size in enumerate(sizes) if size > _MOST_BYTES},
        },
        "processor_pct": {
            "of_a_second_per_update": round(100 * statistics.mean(used_s), 2),
            "of_the_time": round(100 * sum(used_s) / lasted_s, 2),
        },
        "memory_mb": {"after_a_quarter": later[0], "end": later[-1], "most": max(memory_mb)},
        "wrong": wrong,
    }


def _read_for(terminal: Terminal, seconds: float) -> None:
    """Read what comes in so long: it may never be quiet."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        terminal.quiet(0.01)


def _stalled(hour: Hour, terminal: Terminal, second: int) -> Iterator[str]:
    """Wait until a step is late and a GPU without samples has no values; yields what is wrong."""
    assert hour.training is not None
    hour.training.rings[3].note(step_ring.BETWEEN, time.time_ns(), hour.training.number - 1)
    hour.silent = {2}
    said = f"no step for 10 s: rank 3 is in the loop after step {hour.training.number - 1:,}"
    began_s = time.monotonic()
    while time.monotonic() < began_s + 4 * _DEADLINE_S:
        hour.stall_bytes = max(hour.stall_bytes, terminal.quiet(0.5))
        hour.write(second, has_step=False, more_s=time.monotonic() - began_s)
        text = " ".join(" ".join(line.strip() for line in terminal.screen.display).split())
        rows = [line for line in terminal.screen.display if re.match(r"[│ ]*[▌ ] 2 {2,}", line)]
        if said in text and rows and rows[0].count("–") >= len(SIGNALS):
            break
    else:
        yield f"second {second}: no stall\n{terminal.text}"
    hour.silent = set()


def _resident_mb(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"VmRSS:\s+(\d+)", text)
    return round(int(match[1]) / 1024, 1) if match else math.nan


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=int, default=3600)
    parser.add_argument("--of-node", action="store_true", help="`chopper live`, by a library")
    parser.add_argument("--size", default="80x24")
    parser.add_argument("--interval", type=float, default=0.1)
    given = parser.parse_args()
    columns, rows = map(int, given.size.split("x"))
    found = run(
        given.seconds,
        of_node=given.of_node,
        size=(columns, rows),
        interval_s=given.interval,
        stalls=not given.of_node,
    )
    print(json.dumps({key: found[key] for key in found if key != "wrong"}, indent=1))
    print("\n".join(found["wrong"]))
    return int(bool(found["wrong"]))


if __name__ == "__main__":
    sys.exit(main())
