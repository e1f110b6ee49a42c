"""`python -m chopper_core.record.sampler RUN`: samples this node's GPUs and CPUs into files.

A process of its own, as exporting a trace stops all threads of a process for seconds. Whole lines
are appended, so that a killed sampler leaves files that open. It ends at SIGTERM, or with the
process that it was started for. A second one on the same node and run ends at once.
"""

from __future__ import annotations

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
from typing import Final

from chopper_core.record.anchors import take_anchor
from chopper_core.record.gpus import GpuLibrary, Reading, Sample, open_library, text_of
from chopper_core.record.manifest import (
    NODES,
    PROCESSES,
    RING,
    STEPS,
    RecordedNode,
    name_of_host,
    publish_part,
    read_record_parts,
)
from chopper_core.util.atomic import is_running
from chopper_core.util.children import ending_with_parent

PERIOD_S: Final = 0.02
_SLOW_S: Final = 1.0
"""Between samples when the run is long and nothing is traced: files of days stay small."""
_FULL_RATE_S: Final = 600.0
_RARE_S: Final = 0.1
"""Between readings of energy counters, caps and memory."""
_ANCHOR_S: Final = 10.0
_FLUSH_S: Final = 1.0
_MOST_BYTES: Final = 1 << 24
_CPU_S: Final = 0.2
_QUICK: Final = 3
"""Readings of the clocks for each round of samples."""
_REPEATED_NS: Final = 200_000_000
"""Equal values in a row are one sample of a library that refreshes more slowly, up to this time."""
_OPEN: Final = ('"state": "warming up"', '"state": "recording"')
"""In the state of a process with a window that is open."""
_STATE_S: Final = 60.0
"""An older state is that of a process that is gone."""
_TOPOLOGY: Final = "/sys/devices/system/cpu/cpu{}/topology/{}"
_QUERY: Final = (
    "timestamp,index,name,pci.bus_id,power.draw,enforced.power.limit,clocks.sm,clocks.mem,"
    "temperature.gpu,temperature.memory,utilization.gpu,utilization.memory,memory.used,"
    "fan.speed,"
    "clocks_throttle_reasons.active"
)
_ROCM_SMI: Final = (
    "while sleep 1; do t=$(date +%s.%N); rocm-smi -P -t -u -c -f -M --showmeminfo vram --csv | "
    'sed -n "s/^device/timestamp,device/p;s/^card/$t,card/p"; done >> "$1"'
)
TOOLS: Final = {
    "amd-smi": ("amd-smi", "metric", "-w", "1", "--csv", "--file", "{}"),
    "nvidia-smi": (
        *("nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv", "-lms", "100", "-f", "{}"),
    ),
    "rocm-smi": ("sh", "-c", _ROCM_SMI, "sh", "{}"),
}
"""Tools that write a file of their own where no library is, by the program that they need."""


def tool_command(tool: str, path: str = "") -> list[str]:
    """The command of a tool that writes samples to a file; without one, to its standard output."""
    words = list(TOOLS[tool])
    if not path and "{}" in words and words[0] == tool:
        at = words.index("{}")
        del words[at - 1 : at + 1]
    return [word.replace("{}", path or "/dev/stdout") for word in words]


class LineFile:
    """A file to which whole lines are appended; nothing is kept in memory.

    Beyond `most_bytes` it starts over with its heading: who reads along has seen the rest.
    """

    def __init__(self, path: Path, heading: str, most_bytes: int = 0) -> None:
        self.path, self._heading, self._most_bytes = path, heading, most_bytes
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        if not os.fstat(self._handle).st_size:
            self.write([heading])

    def write(self, lines: Sequence[str]) -> None:
        """Append lines; raises OSError where the disk is full."""
        if self._most_bytes and os.fstat(self._handle).st_size > self._most_bytes:
            os.ftruncate(self._handle, 0)
            lines = [self._heading, *lines]
        content = "".join(f"{line}\n" for line in lines).encode()
        while content:
            content = content[os.write(self._handle, content) :]


Row = tuple[int, int, int, Sequence[Reading]]
"""The place of a GPU, the time of its sample since the epoch and on the monotonic clock, in ns, and
its readings."""


class GpuSampler:
    """The samples of a library, without repeats, and as lines of Chopper's own telemetry format."""

    def __init__(self, library: GpuLibrary) -> None:
        self.library, self.gpus = library, library.devices()
        names = ("time_ns", "monotonic_ns", "gpu", "kfd_node", "pci", *library.columns)
        self.heading = f"# clock: epoch\n{','.join(names)}"
        self._last: dict[int, tuple[object, int]] = {}
        self._rare_ns = 0
        self.silent: set[int] = set()
        """The devices that gave nothing at the last call."""

    def lines(self) -> list[str]:
        """The line of each GPU that has something new since the call before."""
        return [*map(self.line, self.rows())]

    def line(self, row: Row) -> str:
        device, *times, readings = row
        gpu = self.gpus[device]
        node = gpu.kfd_node if gpu.kfd_node >= 0 else ""
        return ",".join(map(str, (*times, gpu.index, node, gpu.pci, *map(text_of, readings))))

    def rows(self) -> list[Row]:
        """The sample of each GPU that has something new since the call before."""
        now = take_anchor(_QUICK)
        is_full = now.monotonic_ns - self._rare_ns >= _RARE_S * 1e9
        self._rare_ns = now.monotonic_ns if is_full else self._rare_ns
        found: list[Row] = []
        self.silent = {*range(len(self.gpus))}
        for sample in self.library.sample(is_full=is_full):
            self.silent.discard(sample.device)
            often = len(sample.cells) - len(self.library.rare)
            cells: tuple[Reading, ...] = sample.cells
            if self._repeats(sample, cells[:often], now.monotonic_ns):
                if not is_full:
                    continue
                cells = ("",) * often + cells[often:]
            since_ns = sample.taken_ns - now.boottime_ns
            times = (now.epoch_ns + since_ns, now.monotonic_ns + since_ns)
            found.append((sample.device, *times, cells))
        return found

    def _repeats(self, sample: Sample, often: tuple[Reading, ...], now_ns: int) -> bool:
        """Whether a sample is the last one of its device again."""
        key = often if sample.stamp == "" else sample.stamp
        last, since_ns = self._last.get(sample.device, (None, 0))
        if key == last and (sample.stamp != "" or now_ns - since_ns < _REPEATED_NS):
            return True
        self._last[sample.device] = key, now_ns
        return False


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
    names = ("core_id", "physical_package_id")
    try:
        return ",".join(Path(_TOPOLOGY.format(cpu, name)).read_text().strip() for name in names)
    except OSError:
        return ","


def _has_window(state: Path) -> bool:
    with suppress(OSError):
        if state.stat().st_mtime > time.time() - _STATE_S:
            text = state.read_text(errors="replace")
            return any(each in text for each in _OPEN)
    return False


class _Task:
    """Something that happens every so often."""

    def __init__(self, every_s: float, act: Callable[[], object]) -> None:
        self.every_s, self.act = every_s, act
        self.due_s = time.monotonic() + every_s


class NodeSampler:
    """Samples a node until it is stopped."""

    def __init__(self, run_dir: Path, period_s: float, parent: int, ended: Sequence[int]) -> None:
        self.run_dir, self._parent = run_dir, parent
        self._ended = ended
        """Signals that came so far: any of them ends it."""
        # A job may launch several times: a sampler continues after the previous one.
        known, _ = read_record_parts(run_dir / NODES, RecordedNode)
        host = name_of_host()
        self.node = next((each for each in known if each.host == host), RecordedNode(host))
        self.node.period_ms = period_s * 1e3
        self._is_tracing = False
        self._began_s = self._looked_s = time.monotonic()
        self._tool: subprocess.Popen[bytes] | None = None
        self._counted = 0
        """Bytes of the tool's file whose rows are counted."""
        self._notes: list[str] = []
        self._tasks = [_Task(_ANCHOR_S, self._anchor), _Task(_FLUSH_S, self._flush_steps)]
        self._library, reasons = open_library()
        if self._library is not None:
            gpus = GpuSampler(self._library)
            self.node.gpus = gpus.gpus
            self.node.library, self.node.driver = self._library.name, self._library.driver
            self._append("telemetry", period_s, gpus.heading, gpus.lines)
        else:
            self._start_tool(reasons)
        try:
            cpus = CpuSampler()
        except ImportError:
            self._notes.append("no CPU samples: pip install 'chopper-tui[record]' installs psutil")
        else:
            self._append("cpu", _CPU_S, cpus.heading, cpus.lines)

    def _start_tool(self, reasons: Sequence[str]) -> None:
        tool = next(filter(which, TOOLS), None)
        if tool is None:
            self._notes.append(f"no GPU telemetry: {'; '.join(reasons)}")
            return
        path = self.run_dir / f"telemetry-{self.node.host}.csv"
        self.node.library = f"{tool}, a sample a second at best"
        self._lists(path)
        self._tool = subprocess.Popen(
            tool_command(tool, str(path)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=ending_with_parent(),
        )

    def _lists(self, path: Path) -> None:
        if path.name not in self.node.files:
            self.node.files.append(path.name)

    def _append(
        self, what: str, every_s: float, heading: str, lines: Callable[[], list[str]]
    ) -> None:
        file = LineFile(self.run_dir / f"{what}-{self.node.host}.csv", heading)
        self._lists(file.path)

        def act() -> None:
            if found := lines():
                file.write(found)
                self.node.samples += len(found) if what == "telemetry" else 0

        self._tasks.append(_Task(every_s, act))

    def _anchor(self) -> None:
        self.node.anchors.append(take_anchor())
        failed = self._library.failed if self._library else {}
        self.node.notes = [*self._notes, *(f"{why} ({n} times)" for why, n in failed.items())]
        if self._tool is not None and self._tool.poll() is not None:
            self.node.notes.append(f"{self.node.library.partition(',')[0]} ended early")
        self._count_rows()
        publish_part(self.run_dir, self.node)

    def _count_rows(self) -> None:
        """Count the rows that a tool has written: they begin with a stamp, headings with a name."""
        if self._tool is None:
            return
        with suppress(OSError), (self.run_dir / self.node.files[0]).open("rb") as file:
            file.seek(self._counted)
            lines = file.read(_MOST_BYTES).split(b"\n")
            self._counted += sum(len(line) + 1 for line in lines[:-1])
            self.node.samples += sum(line[:1].isdigit() for line in lines[:-1])

    def _flush_steps(self) -> None:
        """Send what processes of this node wrote of their steps to the other nodes.

        A write to a file that stays open may wait in this node for half a minute, and whoever sends
        it waits for the file server: not the training.
        """
        for path in (self.run_dir / STEPS).glob(f"{self.node.host}-*{RING}"):
            with suppress(OSError):
                ring = os.open(path, os.O_RDWR)
                try:
                    os.fsync(ring)
                finally:
                    os.close(ring)

    def _pace_s(self, task: _Task) -> float:
        """The time to the next sample: longer after ten minutes, unless a window is open."""
        now_s = time.monotonic()
        if now_s - self._began_s < _FULL_RATE_S or task.every_s >= _SLOW_S:
            return task.every_s
        if now_s - self._looked_s >= _SLOW_S:
            self._looked_s = now_s
            states = (self.run_dir / PROCESSES).glob(f"{self.node.host}-*.json")
            self._is_tracing = any(map(_has_window, states))
        return task.every_s if self._is_tracing else _SLOW_S

    def run(self) -> int:
        """Sample until stopped; 1 if a file can't be written any more."""
        parent = os.getppid()
        try:
            self._anchor()
            while not self._ended and self._has_parent(parent):
                self._step()
            return 0
        except OSError as error:
            self._notes.append(f"sampling ended: {error.strerror}")
            return 1
        finally:
            if self._tool is not None:
                self._tool.terminate()
            with suppress(OSError):
                self._anchor()
            if self._library is not None:
                self._library.close()

    def _has_parent(self, parent: int) -> bool:
        """Whether the process lives for which this one samples: the one given, else its parent."""
        return is_running(self._parent) if self._parent else os.getppid() == parent

    def _step(self) -> None:
        """Do what is due, then sleep until the next is."""
        for task in self._tasks:
            now_s = time.monotonic()
            if now_s >= task.due_s:
                task.act()
                task.due_s = max(task.due_s + self._pace_s(task), now_s)
        wait_s = min(task.due_s for task in self._tasks) - time.monotonic()
        if wait_s > 0 and not self._ended:
            time.sleep(min(wait_s, _SLOW_S))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="python -m chopper_core.record.sampler", allow_abbrev=False)
    parser.add_argument("run", type=Path)
    parser.add_argument("--period-ms", type=float, default=PERIOD_S * 1e3)
    parser.add_argument("--parent", type=int, default=0, help="end with this process")
    options = parser.parse_args(arguments)
    # A terminal sends Ctrl-C to every process of the command; the parent ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    if options.parent and not is_running(options.parent):
        return 0
    with (options.run / f".{name_of_host()}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 0
        except OSError:
            pass  # A file system without locks: of a node that is asked twice, both sample.
        return NodeSampler(options.run, options.period_ms / 1e3, options.parent, ended).run()


if __name__ == "__main__":
    sys.exit(main())
