"""Telemetry that no tool writes into files: this node's GPUs, and exporters for Prometheus."""

from __future__ import annotations

import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from queue import Queue
from shutil import which
from threading import Thread
from typing import Any, Final, TypeGuard
from urllib.parse import urlsplit

import msgspec

from chopper_core.model.recent import NodeGpu, NodeProcess
from chopper_core.record.gpus import GpuLibrary, open_library
from chopper_core.record.sampler import TOOLS, GpuSampler, LineFile, tool_command
from chopper_core.sources.signals import GpuName, Telemetry
from chopper_core.sources.telemetry.dcgm import scraped_lines
from chopper_core.sources.telemetry.rounds import SampleRounds
from chopper_core.util.children import ending_with_parent
from chopper_core.util.errors import DataError, UsageError
from chopper_core.util.memory import internal_error

Feed = Callable[[], None]
"""Appends what is new to a file; raises DataError."""
_TIMEOUT_S: Final = 2.0
_MAX_BYTES: Final = 1 << 24
_MAX_OWN_BYTES: Final = 4 << 20
"""Samples of a file of ours: older ones are kept in memory, thinned."""
_LATE_S: Final = 3.0
_PROCESSES_S: Final = 2.0
"""Between listings of processes, each of which takes milliseconds per GPU."""
_TOOL_PROCESSES_S: Final = 5.0
"""The same of a tool, which restarts."""
_CELLS: Final = "--format=csv,noheader,nounits"
_AMD_SIZES: Final = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_COMMAND_BYTES: Final = 400
_MOST_ROUNDS: Final = 1 << 10
"""Rounds of samples that wait for who reads them."""


class FeedCall:
    """A call of a feed in a thread of its own: a driver that hangs holds up nobody."""

    def __init__(self, feed: Feed) -> None:
        self._feed, self._problem = feed, ""
        self._began_s = time.monotonic()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._feed()
        except (DataError, OSError) as error:
            self._problem = str(error)
        except Exception as error:  # The libraries' errors have no common class.
            self._problem = internal_error(error)

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def problem_after(self, wait_s: float) -> str:
        """What went wrong, waiting so long for an end; '' for nothing."""
        self._thread.join(wait_s)
        if self.is_done:
            return self._problem
        since_s = time.monotonic() - self._began_s
        return f"no answer for {since_s:.0f} s" if since_s >= _LATE_S else ""


def node_feed(folder: Path) -> Feed:
    """The GPUs of this node, read only: through their library, else a tool that runs along.

    Raises DataError without any GPU, or what reads it.
    """
    path = folder / "gpus.csv"
    library, reasons = open_library()
    if library is not None:
        return LibraryFeed(library, path)
    tool = next(filter(which, TOOLS), None)
    if tool is None:
        raise DataError(f"no GPU can be read on this node: {'; '.join(reasons)}")
    return ToolFeed(tool, path)


class LibraryFeed:
    """The samples of a vendor's library, and what else it knows of the node's GPUs."""

    def __init__(self, library: GpuLibrary, path: Path) -> None:
        self._library, self._sampler = library, GpuSampler(library)
        self.path = path
        self._file = LineFile(path, self._sampler.heading, _MAX_OWN_BYTES)
        gpus = [GpuName(each.index, each.kfd_node, pci=each.pci) for each in self._sampler.gpus]
        self._rounds = SampleRounds(library.columns, gpus)
        self._taken: deque[Telemetry] = deque(maxlen=_MOST_ROUNDS)
        """What the file has that nobody has asked for."""
        self.gpus = {
            gpu.index: NodeGpu(gpu.name, gpu.pci, gpu.memory_bytes) for gpu in self._sampler.gpus
        }
        self.processes: tuple[NodeProcess, ...] = ()
        self.lacks = library.lacks
        self._due_s = 0.0
        self._since_s: dict[int, float] = {}
        """When devices began to give nothing, in seconds since the epoch."""

    def __call__(self) -> None:
        rows = self._sampler.rows()
        samples = [(device, time_ns, readings) for device, time_ns, _, readings in rows]
        self._taken.append(self._rounds.telemetry(self.path, samples))
        self._file.write([*map(self._sampler.line, rows)])  # It may fail, on a full disk.
        silent, now_s = self._sampler.silent, time.time()
        self._since_s = {each: self._since_s.get(each, now_s) for each in silent}
        now_s = time.monotonic()
        if now_s >= self._due_s:
            self._due_s = now_s + _PROCESSES_S
            index = [gpu.index for gpu in self._sampler.gpus]
            self.processes = tuple(
                NodeProcess(index[each.device], each.pid, each.memory_bytes, *_named(each.pid))
                for each in self._library.processes()
            )
        if not rows and self._library.failed:
            raise DataError(next(reversed(self._library.failed)))

    @property
    def silent(self) -> dict[int, str]:
        """The GPUs without samples, since when, and the library's error."""
        found = {}
        for device, since_s in sorted([*self._since_s.items()]):
            if time.time() - since_s >= _LATE_S:
                why = self._library.errors.get(device, "")
                text = f"no sample since {time.strftime('%H:%M:%S', time.localtime(since_s))}"
                found[self._sampler.gpus[device].index] = f"{text}: {why}" if why else text
        return found

    def taken(self) -> Iterator[Telemetry]:
        """The samples since the call before."""
        while self._taken:
            yield self._taken.popleft()


def _named(pid: int) -> tuple[str, str]:
    """The user and the command of a process; '' where this one may not read them."""
    import pwd

    user = command = ""
    folder = Path("/proc", str(pid))
    with suppress(OSError):
        owner = folder.stat().st_uid
        user = str(owner)
        with suppress(KeyError):
            user = pwd.getpwuid(owner).pw_name
        words = (folder / "cmdline").read_bytes()[:_COMMAND_BYTES]
        command = words.replace(b"\0", b" ").decode("utf-8", "replace").strip()
    return user, command


class ToolFeed:
    """A tool whose lines come from its standard output, for as long as this process lives.

    What else it knows of the GPUs it is asked for on the way; rocm-smi doesn't say on which GPU a
    process is.
    """

    def __init__(self, tool: str, path: Path) -> None:
        self._tool, self._path = tool, path
        self.gpus = known_gpus(tool)
        self.processes: tuple[NodeProcess, ...] = ()
        self.lacks = ""
        self.silent: dict[int, str] = {}
        self._due_s = 0.0
        self._lines: Queue[str] = Queue()
        self._file: LineFile | None = None
        self._process = subprocess.Popen(
            tool_command(tool),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            preexec_fn=ending_with_parent(),
        )
        Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))

    def end(self) -> None:
        """End the tool."""
        self._process.terminate()
        self._process.wait()

    def __call__(self) -> None:
        """Add the lines that came; raises DataError once the tool has ended."""
        lines = [self._lines.get() for _ in range(self._lines.qsize())]
        if lines and self._file is None:
            self._file = LineFile(self._path, lines.pop(0), _MAX_OWN_BYTES)
        if self._file is not None:
            self._file.write(lines)
        now_s = time.monotonic()
        if now_s >= self._due_s:
            self._due_s = now_s + _TOOL_PROCESSES_S
            self.processes = tuple(listed_processes(self._tool, self.gpus))
        code = self._process.poll()
        if code is not None and not lines:
            raise DataError(f"{self._tool} ended with exit code {code}")


def _answer(*command: str) -> str:
    """What a command prints; '' where it fails, or takes too long."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout[:_MAX_BYTES].decode("utf-8", "replace")


def known_gpus(tool: str) -> dict[int, NodeGpu]:
    """The GPUs that nvidia-smi lists, by number; of other tools their rows say what there is."""
    if tool != "nvidia-smi":
        return {}
    text = _answer(tool, "--query-gpu=index,name,pci.bus_id,memory.total", _CELLS)
    found = {}
    for line in text.splitlines():
        index, name, pci, total, *_ = [*(cell.strip() for cell in line.split(",")), *[""] * 4]
        if index.isdecimal():
            memory = int(total) << 20 if total.isdecimal() else 0
            found[int(index)] = NodeGpu(name, pci.lower(), memory)
    return found


def listed_processes(tool: str, gpus: Mapping[int, NodeGpu]) -> Iterator[NodeProcess]:
    """The processes on the GPUs, by a tool; none where it can't tell."""
    if tool == "nvidia-smi":
        place_of = {gpu.pci: index for index, gpu in gpus.items()}
        text = _answer(tool, "--query-compute-apps=gpu_bus_id,pid,used_memory", _CELLS)
        for line in text.splitlines():
            pci, pid, used, *_ = [*(cell.strip() for cell in line.split(",")), *[""] * 3]
            if pci.lower() in place_of and pid.isdecimal():
                memory = int(used) << 20 if used.isdecimal() else -1
                yield NodeProcess(place_of[pci.lower()], int(pid), memory, *_named(int(pid)))
    elif tool == "amd-smi":
        yield from _of_amd_smi(_answer(tool, "process", "--json"))


def _of_amd_smi(text: str) -> Iterator[NodeProcess]:
    """The processes in `amd-smi process --json`: lists by GPU, newer versions under a key."""
    try:
        found = msgspec.json.decode(text or "[]")
    except msgspec.DecodeError:
        return
    listed = found.get("gpu_data") if isinstance(found, dict) else found
    for each in filter(_is_record, listed if isinstance(listed, list) else ()):
        own = each.get("process_list")
        for item in filter(_is_record, own if isinstance(own, list) else ()):
            about = item.get("process_info", item)  # A sentence where there is none.
            if not isinstance(about, dict):
                continue
            gpu, pid, usage = each.get("gpu"), about.get("pid"), about.get("memory_usage")
            memory = _bytes_of(usage.get("vram_mem") if isinstance(usage, dict) else None)
            if isinstance(gpu, int) and isinstance(pid, int):
                yield NodeProcess(gpu, pid, memory, *_named(pid))


def _is_record(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _bytes_of(cell: object) -> int:
    """A size of amd-smi: a number of bytes, or one with its unit; -1 for others."""
    number, unit = (cell.get("value"), cell.get("unit")) if _is_record(cell) else (cell, "B")
    size = _AMD_SIZES.get(str(unit))
    if size is None or not isinstance(number, int | float) or not 0 <= number < 1 << 60:
        return -1
    return round(number * size)


def scrape_feed(folder: Path, number: int, url: str) -> Feed:
    """An exporter's metrics; raises UsageError for what is no URL of one.

    Nothing else in Chopper connects to anything, and this only to the URL that a user gives.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise UsageError(f"--scrape {url!r} is no http URL, such as http://127.0.0.1:5000/metrics")
    from http.client import HTTPException
    from urllib.error import URLError
    from urllib.request import HTTPRedirectHandler, build_opener

    class SameHost(HTTPRedirectHandler):
        def redirect_request(self, *given: Any) -> Any:
            to = given[-1]
            if urlsplit(to).netloc != urlsplit(url).netloc:
                raise URLError(f"it leads to {to}; give that address if you trust it")
            return super().redirect_request(*given)

    opener = build_opener(SameHost)
    heading = "# HELP gpu Metrics of an exporter."
    file = LineFile(folder / f"scrape{number}.prom", heading, _MAX_OWN_BYTES)

    def feed() -> None:
        try:
            with opener.open(url, timeout=_TIMEOUT_S) as answer:
                text = answer.read(_MAX_BYTES).decode("utf-8-sig", "replace")
        except (OSError, ValueError, HTTPException) as error:
            raise DataError(f"{url} can't be read: {getattr(error, 'reason', error)}") from error
        lines = scraped_lines(text, time.time_ns() // 10**6)
        if not lines:
            raise DataError(f"{url} has no metrics of GPUs that Chopper knows")
        file.write(lines)

    return feed
