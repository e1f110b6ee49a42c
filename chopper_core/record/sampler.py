"""`python -m chopper_core.record.sampler RUN`: samples this node's GPUs and CPUs into files.

A process of its own, as exporting a trace stops all threads of a process for seconds. Whole lines
are appended, so that a killed sampler leaves files that open. It ends at SIGTERM, or when the
process that started it ends. A second one on the same node and run ends at once.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from shutil import which
from types import FrameType
from typing import Final

from chopper_core.record.anchors import take_anchor
from chopper_core.record.gpus import Cell, GpuLibrary, Sample, open_library
from chopper_core.record.manifest import (
    PROCESSES,
    RecordedGpu,
    RecordedNode,
    host_name,
    publish_part,
)

PERIOD_S: Final = 0.02
_SLOW_S: Final = 1.0
"""Between samples when the run is long and nothing is traced: files of days stay small."""
_FULL_RATE_S: Final = 600.0
_RARE_S: Final = 0.1
"""Between readings of energy counters, caps and memory."""
_ANCHOR_S: Final = 10.0
_QUICK: Final = 3
"""Readings of the clocks for each round of samples."""
_CPU_S: Final = 0.2
_REPEATED_NS: Final = 200_000_000
"""Equal values in a row are one sample of a library that refreshes more slowly, up to this time."""
_LOCK: Final = "lock"
_OPEN: Final = ('"state": "warming up"', '"state": "recording"')
"""In the state of a process with a window that is open."""
_STATE_S: Final = 60.0
"""An older state is that of a process that is gone."""
_TOPOLOGY: Final = "/sys/devices/system/cpu/cpu{}/topology/{}"
TOOLS: Final = {
    "amd-smi": ("metric", "-w", "1", "--csv", "--file", "{}"),
    "nvidia-smi": (
        "--query-gpu=timestamp,index,pci.bus_id,power.draw,enforced.power.limit,clocks.sm,"
        "clocks.mem,temperature.gpu,temperature.memory,utilization.gpu,utilization.memory,"
        "memory.used,clocks_throttle_reasons.active",
        *("--format=csv", "-lms", "100", "-f", "{}"),
    ),
}
"""Tools that write a file of their own, in place of a library."""
_ROCM_SMI: Final = ("rocm-smi", "-P", "-t", "-u", "-c", "--csv")


class LineFile:
    """A file to which whole lines are appended; nothing is kept in memory."""

    def __init__(self, path: Path, heading: str) -> None:
        self.path = path
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        if not os.fstat(self._handle).st_size:
            self.write([*heading.splitlines()])

    def write(self, lines: Sequence[str]) -> None:
        """Append lines; raises OSError where the disk is full."""
        content = "".join(f"{line}\n" for line in lines).encode()
        if (written := os.write(self._handle, content)) < len(content):
            # The rest of a line on a disk that was full.
            os.write(self._handle, content[written:])

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)


class GpuSampler:
    """The samples of a library as lines of Chopper's own telemetry format, without repeats."""

    def __init__(self, library: GpuLibrary) -> None:
        self.library = library
        self.gpus = list(library.devices())
        names = ("time_ns", "monotonic_ns", "gpu", "kfd_node", "pci", *library.columns)
        self.heading = f"# clock: epoch\n{','.join(names)}"
        self._last: dict[int, tuple[object, int]] = {}
        self._rare_ns = 0

    def lines(self) -> list[str]:
        """The line of each GPU that has something new since the call before."""
        now_ns = time.monotonic_ns()
        is_full = now_ns - self._rare_ns >= _RARE_S * 1e9
        if is_full:
            self._rare_ns = now_ns
        found = []
        now = take_anchor(_QUICK)
        for sample in self.library.sample(is_full=is_full):
            often = len(sample.cells) - len(self.library.rare)
            cells = sample.cells
            if self._repeats(sample, cells[:often], now_ns):
                if not is_full:
                    continue
                cells = ("",) * often + cells[often:]
            since_ns = sample.taken_ns - now.boottime_ns
            times = (now.epoch_ns + since_ns, now.monotonic_ns + since_ns)
            found.append(_line(times, self.gpus[sample.device], cells))
        return found

    def _repeats(self, sample: Sample, often: tuple[Cell, ...], now_ns: int) -> bool:
        """Whether a sample is the last one of its device again."""
        key = often if sample.stamp == "" else sample.stamp
        last, since_ns = self._last.get(sample.device, (None, 0))
        if key == last and (sample.stamp != "" or now_ns - since_ns < _REPEATED_NS):
            return True
        self._last[sample.device] = key, now_ns
        return False


def _line(times_ns: Sequence[int], gpu: RecordedGpu, cells: Sequence[Cell]) -> str:
    node = gpu.kfd_node if gpu.kfd_node >= 0 else ""
    return ",".join(map(str, (*times_ns, gpu.index, node, gpu.pci, *cells)))


class CpuSampler:
    """The busy share of each logical CPU; raises ImportError without psutil."""

    heading = "# clock: epoch\ntime_ns,cpu,core,socket,percent"

    def __init__(self) -> None:
        import psutil

        self._percent: Callable[[], list[float]] = lambda: psutil.cpu_percent(percpu=True)
        self._places = [f"{cpu},{_place(cpu)}" for cpu in range(len(self._percent()))]

    def lines(self) -> list[str]:
        """A line per CPU; its share since the call before."""
        percents, now_ns = self._percent(), time.time_ns()
        places = zip(self._places, percents, strict=False)  # A CPU may go offline.
        return [f"{now_ns},{place},{percent:g}" for place, percent in places]


def _place(cpu: int) -> str:
    """The core and the socket of a CPU."""
    names = ("core_id", "physical_package_id")
    try:
        return ",".join(Path(_TOPOLOGY.format(cpu, name)).read_text().strip() for name in names)
    except OSError:
        return ","


def _has_window(state: Path) -> bool:
    """Whether a process traces, by its state."""
    with suppress(OSError):
        if state.stat().st_mtime > time.time() - _STATE_S:
            text = state.read_text(errors="replace")
            return any(each in text for each in _OPEN)
    return False


class _RocmSmi:
    """rocm-smi as lines of CSV with a time in front."""

    heading = ""

    def __init__(self) -> None:
        self._headings = ""

    def lines(self) -> list[str]:
        """The rows of a call, below headings that are new."""
        answer = subprocess.run(
            _ROCM_SMI, capture_output=True, text=True, timeout=10, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        now_s = f"{time.time():.6f}"
        rows = [line for line in answer.stdout.splitlines() if "," in line]
        if not rows:
            return []
        headings = f"timestamp,{rows[0]}"
        found = [] if headings == self._headings else [headings]
        self._headings = headings
        return [*found, *(f"{now_s},{row}" for row in rows[1:])]


class _Task:
    """Something that happens every so often, until it fails for good."""

    def __init__(self, every_s: float, act: Callable[[], object]) -> None:
        self.every_s, self.act = every_s, act
        self.due_s = time.monotonic() + every_s


class NodeSampler:
    """Samples a node until it is stopped."""

    def __init__(self, run_dir: Path, period_s: float = PERIOD_S, parent: int = 0) -> None:
        self.run_dir = run_dir
        self._parent = parent
        self.node = RecordedNode(host_name(), period_ms=period_s * 1e3)
        self.is_stopped = False
        self._began_s = self._looked_s = time.monotonic()
        self._is_tracing = False
        self._files: list[LineFile] = []
        self._tool: subprocess.Popen[bytes] | None = None
        self._library: GpuLibrary | None = None
        self._notes: list[str] = []
        self._tasks: list[_Task] = [_Task(_ANCHOR_S, self._anchor)]
        self._add_gpus(period_s)
        self._add_cpus()

    def _add_gpus(self, period_s: float) -> None:
        self._library, reasons = open_library()
        if self._library is not None:
            sampler = GpuSampler(self._library)
            self.node.gpus = sampler.gpus
            self.node.library, self.node.driver = self._library.name, self._library.driver
            self._append("telemetry", period_s, sampler.heading, sampler.lines)
            return
        path = self.run_dir / f"telemetry-{self.node.host}.csv"
        for tool, arguments in TOOLS.items():
            if which(tool):
                command = [tool, *(each.replace("{}", str(path)) for each in arguments)]
                self._tool = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )  # fmt: skip
                self.node.library = f"{tool}, a sample a second at best"
                self.node.files.append(path.name)
                return
        if which(_ROCM_SMI[0]):
            self.node.library = f"{_ROCM_SMI[0]}, a sample a second at best"
            self._append("telemetry", _SLOW_S, "", _RocmSmi().lines)
            return
        self._notes.append(f"no GPU telemetry: {'; '.join(reasons)}")

    def _add_cpus(self) -> None:
        try:
            sampler = CpuSampler()
        except ImportError:
            self._notes.append("no CPU samples: pip install 'chopper-tui[record]' installs psutil")
            return
        self._append("cpu", _CPU_S, sampler.heading, sampler.lines)

    def _append(
        self, what: str, every_s: float, heading: str, lines: Callable[[], list[str]]
    ) -> None:
        file = LineFile(self.run_dir / f"{what}-{self.node.host}.csv", heading)
        self._files.append(file)
        self.node.files.append(file.path.name)

        def act() -> None:
            if found := lines():
                file.write(found)
                self.node.samples += len(found) if what == "telemetry" else 0

        self._tasks.append(_Task(every_s, act))

    def _anchor(self) -> None:
        self.node.anchors.append(take_anchor())
        failures = self._library.failures() if self._library else {}
        counted = (f"{why} ({count} times)" for why, count in failures.items())
        self.node.notes = [*self._notes, *counted]
        if self._tool is not None and self._tool.poll() is not None:
            self.node.notes.append(f"{self.node.library.partition(',')[0]} ended early")
        publish_part(self.run_dir, self.node)

    def _pace_s(self, task: _Task) -> float:
        """The time to the next sample: longer after ten minutes, unless a window is open."""
        is_young = time.monotonic() - self._began_s < _FULL_RATE_S
        if is_young or task.every_s >= _SLOW_S:
            return task.every_s
        if time.monotonic() - self._looked_s >= _SLOW_S:
            self._looked_s = time.monotonic()
            states = (self.run_dir / PROCESSES).glob(f"{self.node.host}-*.json")
            self._is_tracing = any(map(_has_window, states))
        return task.every_s if self._is_tracing else _SLOW_S

    def run(self) -> int:
        """Sample until stopped; 1 if a file can't be written any more."""
        parent = os.getppid()
        try:
            self._anchor()
            while not self.is_stopped and self._has_parent(parent):
                self._step()
            return 0
        except OSError as error:
            self._notes.append(f"sampling ended: {error.strerror}")
            return 1
        finally:
            self._end()

    def _has_parent(self, parent: int) -> bool:
        """Whether the process lives for which this one samples: the one given, else its parent."""
        if not self._parent:
            return os.getppid() == parent
        try:
            os.kill(self._parent, 0)
        except OSError as error:
            return error.errno != errno.ESRCH
        return True

    def _step(self) -> None:
        """Do what is due, then sleep until the next is."""
        for task in self._tasks:
            now_s = time.monotonic()
            if now_s < task.due_s:
                continue
            try:
                task.act()
            except (subprocess.SubprocessError, ValueError) as error:
                self._notes.append(f"a reading failed: {error}")
            task.due_s = max(task.due_s + self._pace_s(task), now_s)
        wait_s = min(task.due_s for task in self._tasks) - time.monotonic()
        if wait_s > 0 and not self.is_stopped:
            time.sleep(min(wait_s, _SLOW_S))

    def _end(self) -> None:
        if self._tool is not None:
            self._tool.terminate()
        with suppress(OSError):
            self._anchor()
        for file in self._files:
            file.close()
        if self._library is not None:
            self._library.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Sample into a run's directory."""
    parser = ArgumentParser(prog="python -m chopper_core.record.sampler")
    parser.add_argument("run", type=Path)
    parser.add_argument("--period-ms", type=float, default=PERIOD_S * 1e3)
    parser.add_argument("--parent", type=int, default=0, help="end with this process")
    options = parser.parse_args(arguments)
    run_dir: Path = options.run
    # A terminal sends Ctrl-C to every process of the command; the parent ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with (run_dir / f".{host_name()}.{_LOCK}").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return 0
        recorder = NodeSampler(run_dir, options.period_ms / 1e3, options.parent)

        def stop(_signal: int, _frame: FrameType | None) -> None:
            recorder.is_stopped = True

        signal.signal(signal.SIGTERM, stop)
        return recorder.run()


if __name__ == "__main__":
    sys.exit(main())
