"""The hooks in a process of a recorded run: steps, layers, windows, and the state of the process.

Loaded into the user's process by its path (`inject/sitecustomize.py`), or by `session.py`: it
imports the standard library only, and torch is what the process has. Nothing here may change what
the program does: an error ends the recording of this process, and is noted in its state.
"""

from __future__ import annotations

import atexit
import functools
import gzip
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Final

VARIABLE: Final = "CHOPPER_RECORD"
"""Holds the options of a recording, as JSON."""
PROCESSES: Final = "processes"
TRIGGER: Final = "trigger.json"
EXPORTS: Final = "script"
"""Directories of traces that the script exports itself are numbered after it."""
LOADED: Final = ".loaded"
"""An empty file among the states: the hooks were loaded in some process."""
_STATE_S: Final = 1.0
"""At most this often a running process rewrites its state."""
_EARLY_STEPS: Final = 3
"""Steps that allocate and compile; they don't count as steps outside a window."""
_MAX_TIMES: Final = 1000
_NATIVE_S: Final = 3.0
"""After SIGTERM, the main thread may stay this long in native code before the process ends."""
_CHUNK: Final = 1 << 20
_WRAPPERS: Final = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_CONTAINER: Final = re.compile(r"(?:^|\.)(?:layers?|blocks?|h)$")
_RANKS: Final = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_LOCAL_RANKS: Final = (
    "LOCAL_RANK",
    "SLURM_LOCALID",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
)
_WORLDS: Final = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def host_name() -> str:
    """This host's name, as part of names of files; as in `manifest.py`."""
    return re.sub(r"[^\w.-]", "_", socket.gethostname().partition(".")[0]) or "host"


def write_json(path: str, content: object) -> None:
    """Write a file under a temporary name and rename it; raises OSError."""
    fresh = f"{path}.{os.getpid()}.new"
    with open(fresh, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
    os.replace(fresh, path)


def _number(names: tuple[str, ...]) -> int | None:
    for name in names:
        if os.environ.get(name, "").isdecimal():
            return int(os.environ[name])
    return None


class Window:
    """Steps that are recorded: the first and the last one."""

    def __init__(self, first: int, steps: int) -> None:
        self.first, self.last = first, first + steps - 1
        self.state = "warming up"
        self.file = ""
        self.size = 0
        self.reason = ""

    def described(self) -> dict[str, Any]:
        """Its part of the state; `last` is the last step that was recorded so far."""
        return {
            "first": self.first,
            "last": self.last,
            "state": self.state,
            **({"file": self.file, "bytes": self.size} if self.file else {}),
            **({"reason": self.reason} if self.reason else {}),
        }


class StepTimes:
    """Durations of steps inside and outside windows, in ns of the host."""

    def __init__(self) -> None:
        self.inside: list[int] = []
        self.outside: list[int] = []
        self.export_ns = 0

    def note(self, step: int, is_inside: bool, duration_ns: int) -> None:
        times = self.inside if is_inside else self.outside
        if (is_inside or step >= _EARLY_STEPS) and len(times) < _MAX_TIMES:
            times.append(duration_ns)

    def described(self) -> dict[str, Any]:
        return {
            "inside": len(self.inside),
            "outside": len(self.outside),
            **({"inside_ns": int(statistics.median(self.inside))} if self.inside else {}),
            **({"outside_ns": int(statistics.median(self.outside))} if self.outside else {}),
            **({"export_ns": self.export_ns} if self.export_ns else {}),
        }


class Ranges:
    """Ranges of module calls: a block is `Layer_N`, modules have the model's own names."""

    def __init__(self, torch: Any) -> None:
        self.range = torch.profiler.record_function
        self.labels: dict[int, tuple[Any, str]] = {}
        """By the id of a module: the module, which keeps the id taken, and its name."""
        self.layers: dict[int, str] = {}
        """The model's name of each layer."""
        self.calls: dict[int, list[tuple[Any, str, Any]]] = {}
        """Of each thread: modules whose forward runs, with their ranges."""

    def open(self, module: Any) -> None:
        calls = self.calls.setdefault(threading.get_ident(), [])
        known = self.labels.get(id(module))
        if known is None:
            if not calls:
                self._learn(module)
            known = self.labels.setdefault(id(module), (module, type(module).__name__))
        label = known[1]
        # A wrapper and the module in it have one name.
        span = None if calls and calls[-1][1] == label else self.range(label)
        if span is not None:
            span.__enter__()
        calls.append((module, label, span))

    def close(self, module: Any) -> None:
        calls = self.calls.get(threading.get_ident(), [])
        if any(each[0] is module for each in calls):
            is_own = False
            while not is_own:
                opened, _, span = calls.pop()
                is_own = opened is module
                if span is not None:
                    span.__exit__(None, None, None)

    def close_all(self) -> None:
        """End the ranges of this thread, and forget those of others."""
        for _, _, span in reversed(self.calls.pop(threading.get_ident(), [])):
            if span is not None:
                span.__exit__(None, None, None)
        self.calls.clear()

    def forget(self) -> None:
        self.labels.clear()

    def _learn(self, root: Any) -> None:
        """Name the modules of a model by its own names."""
        inner = {_own_name(name): type(module).__name__ for name, module in root.named_modules()}
        blocks, parent = _blocks(root)
        self.layers.update({number: name for name, number in blocks.items()})
        for name, module in root.named_modules():
            own = _own_name(name)
            holder = next((each for each in _above(own) if each in blocks), "")
            if own in blocks:
                label = f"Layer_{blocks[own]}"
            elif holder:
                label = own[len(holder) + 1 :]
            else:
                label = own[len(parent) :] if own.startswith(parent) else own
            label = re.sub(r"\.\d+(?=\.|$)|^\d+\.|^\d+$", "", label)
            self.labels[id(module)] = (module, label or inner[own])


def _own_name(name: str) -> str:
    """The name of a module without what wrappers add to it."""
    parts = [part for part in name.split(".") if part not in _WRAPPERS]
    while parts and parts[0] == "module":
        del parts[0]
    return ".".join(parts)


def _above(name: str) -> Iterator[str]:
    """The names of the modules that hold one, from the outermost."""
    parts = name.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts)))


def _blocks(root: Any) -> tuple[dict[str, int], str]:
    """The layers of a model by name, with their numbers, and the prefix of what holds them.

    Layers are the numbered children of the outermost modules that hold several of one class. Their
    numbers are the model's own where one module holds all; else they count on.
    """
    holders: dict[str, list[str]] = {}
    own_number: dict[str, int] = {}
    for name, module in root.named_modules():
        own = _own_name(name)
        children = dict(module.named_children())
        if any(above in own_number for above in [*_above(own), own]) or own in holders:
            continue
        if len(children) < 2 or not all(each.isdecimal() for each in children):
            continue
        classes = Counter(type(child).__name__ for child in children.values())
        count = max(classes.values())
        has_parts = all(any(True for _ in child.children()) for child in children.values())
        if 2 * count > len(children) and count > 1 and (has_parts or _CONTAINER.search(own)):
            holders[own] = [f"{own}.{each}".lstrip(".") for each in children]
            for each, child in children.items():
                # Megatron counts layers of all pipeline stages, from 1.
                number = getattr(child, "layer_number", None)
                known = number - 1 if isinstance(number, int) else int(each)
                own_number[f"{own}.{each}".lstrip(".")] = known
    names = [name for children in holders.values() for name in children]
    numbers = [own_number[name] for name in names]
    if len(set(numbers)) < len(names):
        numbers = [*range(len(names))]
    outer = next(iter(holders), "").rpartition(".")[0]
    return dict(zip(names, numbers)), f"{outer}." if outer else ""  # noqa: B905 (Python 3.9)


class Recorder:
    """Follows the steps of a process, records windows of them, and publishes its state."""

    def __init__(self, torch: Any, options: dict[str, Any]) -> None:
        self.torch = torch
        self.run: str = options["run"]
        self.skip: int = options.get("skip", 10)
        self.steps: int = options.get("steps", 3)
        self.every: int = options.get("every", 0)
        self.step_on: str = options.get("step_on", "")
        self.options = options
        self.ranges = Ranges(torch)
        self.is_recording = False
        self.after_step = True
        """Whether the next forward begins a step."""
        self.is_of_optimizer = False
        """Whether `step_on` names a class of optimizers, whose steps alone count."""
        self.step = -1
        self.forwards = 0
        self.blind: Counter[int] = Counter()
        """Steps of each optimizer, as long as no forward was seen."""
        self._reset()

    def after_fork(self) -> None:
        """Begin without a window in a child: its parent's profiler and signals aren't its own."""
        self.signals.forget()
        self._reset()

    def _reset(self) -> None:
        self.pid = os.getpid()
        self.is_down = ""
        self.is_recording = False
        self.window: Window | None = None
        self.windows: list[Window] = []
        self.errors: list[str] = []
        self.profiler: Any = None
        self.mark: Any = None
        self.times = StepTimes()
        self.last_ns: int | None = None
        self.is_inside: bool | None = None
        """Whether the running step is inside a window; None for one that is neither."""
        self.published_s = 0.0
        self.trigger_ns = 0
        self.writer: threading.Thread | None = None
        self.signals = TermSignal(self._end)
        self.exports = 0

    # Steps

    def before_forward(self, module: Any) -> None:
        try:
            if self.after_step and self._begins(module):
                self.forwards += 1
                self.begin()
            if self.is_recording:
                self.ranges.open(module)
        except Exception as error:
            self._fail(error)

    def _begins(self, module: Any) -> bool:
        """Whether the forward of a module begins a step: that of a root, with gradients."""
        if not self.torch.is_grad_enabled() or self._in_backward():
            return False
        return not self.step_on or self.is_of_optimizer or type(module).__name__ == self.step_on

    def after_forward(self, module: Any) -> None:
        try:
            if self.is_recording:
                self.ranges.close(module)
        except Exception as error:
            self._fail(error)

    def after_optimizer(self, optimizer: Any) -> None:
        is_named = type(optimizer).__name__ == self.step_on
        self.is_of_optimizer |= is_named
        if self.is_of_optimizer and not is_named:
            return
        self.after_step = True
        if not self.forwards:
            # A model whose forward is compiled as a whole calls no hook: its optimizer ends steps.
            self.blind[id(optimizer)] += 1
            if id(optimizer) == next(iter(self.blind)) and self.blind[id(optimizer)] > 2:
                self.begin()

    def _in_backward(self) -> bool:
        """Whether autograd runs: modules are called there to recompute."""
        task = getattr(self.torch._C, "_current_graph_task_id", None)
        return task is not None and task() != -1

    def begin(self) -> None:
        """Begin a step: count the last one, and open or close windows."""
        self.after_step = False
        if self.is_down or self.pid != os.getpid():
            return
        with self._guarded():
            now_ns = time.perf_counter_ns()
            if self.last_ns is not None and self.is_inside is not None:
                self.times.note(self.step, self.is_inside, now_ns - self.last_ns)
            self.step += 1
            self.signals.release_if(self.window is None and not self._is_writing())
            self._advance()
            if time.monotonic() - self.published_s > _STATE_S:
                self.publish()
            self.last_ns = time.perf_counter_ns()

    def _advance(self) -> None:
        was_window = self.window is not None
        self._end_mark()
        if self.window is not None and self.step > self.window.last:
            self.finish()
        if self.window is None:
            first = self._next_first()
            if first is not None and not self._profiler_runs():
                self._prepare(first)
        elif self.step == self.window.first:
            self._start()
        if self.is_recording:
            self.mark = self.torch.profiler.record_function(f"ProfilerStep#{self.step}")
            self.mark.__enter__()
        is_apart = self.window is not None or was_window or self._is_writing()
        self.is_inside = True if self.is_recording else None if is_apart else False

    def _end_mark(self) -> None:
        mark, self.mark = self.mark, None
        if mark is not None:
            mark.__exit__(None, None, None)

    def _next_first(self) -> int | None:
        """The first step of a window for which the profiler warms up in this step, or None."""
        following = self.step + 1
        if self.skip >= 0:
            past = following - self.skip
            if past == 0 or (self.every and past > 0 and past % self.every == 0):
                return following
        with suppress(OSError, ValueError, KeyError):
            path = os.path.join(self.run, TRIGGER)
            stamp = os.stat(path).st_mtime_ns
            if stamp != self.trigger_ns:
                with open(path, encoding="utf-8") as file:
                    at = int(json.load(file)["first"])
                if following >= at:
                    self.trigger_ns = stamp
                    return following
        return None

    # Windows

    def _profiler_runs(self) -> bool:
        runs = getattr(self.torch.autograd, "_profiler_enabled", None)
        if runs is not None and runs():
            self.stand_down("a profiler of the script was running")
            return True
        return False

    def _prepare(self, first: int) -> None:
        self.window = Window(first, self.steps)
        self.windows.append(self.window)
        self.signals.take()
        self.profiler = self.torch.profiler.profile(record_shapes=True)
        self.profiler.prepare_trace()
        self.publish()

    def _start(self) -> None:
        assert self.window is not None
        self.window.state = "recording"
        self.ranges.forget()
        self.profiler.start_trace()
        self.profiler.add_metadata_json("hostname", json.dumps(socket.gethostname()))
        self.is_recording = True
        self.publish()

    def finish(self) -> None:
        """End the window as far as it got; its trace is written in the background."""
        with self.signals.deferred():
            self._finish()

    def _finish(self) -> None:
        window, profiler = self.window, self.profiler
        self.window = self.profiler = None
        if window is None or profiler is None:
            return
        began_ns = time.perf_counter_ns()
        was_recording, self.is_recording = self.is_recording, False
        self.ranges.close_all()
        self._end_mark()
        if not was_recording:
            profiler.start_trace()
        profiler.stop_trace()
        self.ranges.forget()
        if not was_recording:
            window.state, window.reason = "not recorded", "the process ended before its first step"
            return
        if self.step <= window.last:
            window.last, window.reason = self.step, "the process ended in this window"
        window.state = "writing"
        self.publish()
        raw = self._export(profiler, window)
        if raw is not None:
            self._write(window, raw)
        self.times.export_ns += time.perf_counter_ns() - began_ns

    def _export(self, profiler: Any, window: Window) -> str | None:
        """Export the trace uncompressed: on the node, else where the disk is full, into the run."""
        for folder in (tempfile.gettempdir(), self.run):
            raw = os.path.join(folder, f".chopper-{self.pid}-{window.first}.json")
            try:
                profiler.export_chrome_trace(raw)
                with open(raw, "rb") as file:
                    file.seek(-16, os.SEEK_END)
                    if b"}" in file.read():
                        return raw
            except (OSError, RuntimeError) as error:
                window.reason = f"{folder}: {error}"
            with suppress(OSError):
                os.remove(raw)
        window.state = "not written"
        window.reason = window.reason or "the disk is full"
        return None

    def _write(self, window: Window, raw: str) -> None:
        folder = os.path.join(self.run, f"step{window.first}")
        name = f"rank{self.rank() or 0}"
        if os.path.exists(os.path.join(folder, f"{name}.json.gz")):
            name = f"{name}-{self.pid}"
        target = os.path.join(folder, f"{name}.json.gz")
        self._end_writing()
        self.writer = threading.Thread(target=self._compress, args=(window, raw, target))
        try:
            self.writer.start()
        except RuntimeError:  # The interpreter is ending.
            self.writer = None
            self._compress(window, raw, target)

    def _compress(self, window: Window, raw: str, target: str) -> None:
        part = f"{target}.part"
        try:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(raw, "rb") as source:
                os.remove(raw)
                with gzip.open(part, "wb", compresslevel=2) as file:
                    shutil.copyfileobj(source, file, _CHUNK)
            os.replace(part, target)
            window.state, window.file = "written", os.path.relpath(target, self.run)
            window.size = os.path.getsize(target)
        except OSError as error:
            window.state, window.reason = "not written", str(error)
            for path in (part, raw):
                with suppress(OSError):
                    os.remove(path)
        self.publish()

    def _is_writing(self) -> bool:
        return self.writer is not None and self.writer.is_alive()

    def _end_writing(self) -> None:
        if self.writer is not None and self.writer.ident is not None:
            self.writer.join()

    def _end(self) -> None:
        """End a window and what is being written, and publish the last state."""
        with self._guarded():
            self._finish()
            self._end_writing()
            if self.step >= 0 or self.errors:
                self.publish(has_ended=True)

    def close(self) -> None:
        """End the recording of this process."""
        if self.pid == os.getpid():
            with self.signals.deferred():
                self._end()
            self.signals.release_if(True)

    def stand_down(self, reason: str) -> None:
        """Leave the profiler to the script; hooks do nothing from now on."""
        if self.is_down or self.pid != os.getpid():
            return
        with self._guarded():
            self.finish()
        self.is_down = reason
        self.publish()

    def take_export(self, path: str) -> None:
        """Keep a copy of a trace that the script exports itself."""
        with self._guarded():
            suffix = ".json.gz" if str(path).endswith(".gz") else ".json"
            folder = os.path.join(self.run, f"{EXPORTS}{self.exports}")
            self.exports += 1
            os.makedirs(folder, exist_ok=True)
            target = os.path.join(folder, f"rank{self.rank() or 0}{suffix}")
            shutil.copyfile(path, f"{target}.part")
            os.replace(f"{target}.part", target)

    # State

    def rank(self) -> int | None:
        return self._of_job("get_rank", _RANKS)

    def _of_job(self, question: str, names: tuple[str, ...]) -> int | None:
        """What torch's process group answers, else a variable of the launcher."""
        distributed = self.torch.distributed
        with suppress(Exception):
            if distributed.is_available() and distributed.is_initialized():
                return int(getattr(distributed, question)())
        return _number(names)

    def publish(self, has_ended: bool = False) -> None:
        """Write the state of this process; where that fails, the program runs on without."""
        self.published_s = time.monotonic()
        path = os.path.join(self.run, PROCESSES, f"{host_name()}-{self.pid}.json")
        with suppress(Exception):
            if not os.path.exists(path):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                self._start_sampler()
            write_json(path, self.described(has_ended))

    def described(self, has_ended: bool = False) -> dict[str, Any]:
        return {
            "host": host_name(),
            "pid": self.pid,
            "rank": self.rank(),
            "local_rank": _number(_LOCAL_RANKS),
            "world_size": self._of_job("get_world_size", _WORLDS),
            "torch": str(self.torch.__version__),
            "device": _device(self.torch),
            "state": "ended" if has_ended else "running",
            "step": self.step,
            "windows": [window.described() for window in self.windows],
            "layers": {str(number): name for number, name in sorted(self.ranges.layers.items())},
            "step_times": self.times.described(),
            "stood_down": self.is_down,
            "errors": self.errors,
        }

    def _start_sampler(self) -> None:
        """Start the sampler of this node for its launcher; where one runs, the second one ends."""
        sampler = self.options.get("sampler")
        if sampler and not _number(_LOCAL_RANKS):
            start_sampler([*sampler, self.run, "--parent", str(os.getppid())])

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Errors of a recording end it, and not the program; warnings aren't the program's."""
        # Another filter would have the program's own warnings shown once more.
        shown, warnings.showwarning = warnings.showwarning, lambda *about: None
        try:
            yield
        except Exception as error:
            self._fail(error)
        finally:
            warnings.showwarning = shown

    def _fail(self, error: Exception) -> None:
        profiler, was_recording = self.profiler, self.is_recording
        self.is_recording, self.window, self.profiler, self.mark = False, None, None, None
        self.is_down = self.is_down or "an error"
        self.errors.append(f"{type(error).__name__}: {error}"[:300])
        if profiler is not None:
            # One that runs at the end of the process would crash it.
            with suppress(Exception):
                if not was_recording:
                    profiler.start_trace()
                profiler.stop_trace()
        self.publish()


class TermSignal:
    """Handles SIGTERM during a window, where the program doesn't: the trace is written first.

    A main thread in native code, such as a wait for a rank that is gone, runs no handler. A thread
    that the signal wakes up then ends the process as the signal would have.
    """

    def __init__(self, end: Callable[[], None]) -> None:
        self.end = end
        self.is_taken = self.is_deferred = self.has_come = False
        self.wakes = -1
        """The write end of the pipe that wakes the thread up."""

    def take(self) -> None:
        if self.is_taken or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return
        read, self.wakes = os.pipe()
        os.set_blocking(self.wakes, False)
        other = signal.set_wakeup_fd(self.wakes, warn_on_full_buffer=False)
        if other != -1:  # An event loop's.
            signal.set_wakeup_fd(other)
            os.close(self.wakes)
            os.close(read)
            return
        signal.signal(signal.SIGTERM, self._handle)
        self.is_taken = True
        threading.Thread(target=self._watch, args=(read,), daemon=True).start()

    def release_if(self, may: bool) -> None:
        if not (may and self.is_taken) or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if (other := signal.set_wakeup_fd(-1)) != self.wakes:
            signal.set_wakeup_fd(other)
        self.is_taken = False
        os.close(self.wakes)  # Ends the thread.

    def forget(self) -> None:
        """Let a forked child's signals wake up nobody."""
        if self.is_taken:
            with suppress(ValueError):
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Let a signal that comes during this time end the process after it."""
        self.is_deferred = True
        try:
            yield
        finally:
            self.is_deferred = False
            if self.has_come:
                self._handle(signal.SIGTERM, None)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.has_come = True
        if self.is_deferred:
            return
        self.end()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

    def _watch(self, pipe: int) -> None:
        try:
            while received := os.read(pipe, 1):
                if received[0] == signal.SIGTERM:
                    time.sleep(_NATIVE_S)
                    if not self.has_come:
                        import ctypes

                        ctypes.CDLL(None).signal(int(signal.SIGTERM), None)
                        os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.close(pipe)


def start_sampler(command: list[str]) -> subprocess.Popen[bytes]:
    """Start a sampler in a session of its own, without hooks; raises OSError."""
    own = os.path.join(os.path.dirname(os.path.abspath(__file__)), "inject")
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path != own]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    environment.pop(VARIABLE, None)
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _device(torch: Any) -> dict[str, Any] | None:
    """The GPU of this process as torch describes it; None where torch hasn't used one."""
    cuda = torch.cuda
    if not (cuda.is_available() and cuda.is_initialized()):
        return None
    index = cuda.current_device()
    about = cuda.get_device_properties(index)
    found = {"index": index, "name": str(about.name), "uuid": str(getattr(about, "uuid", ""))}
    with suppress(AttributeError):
        domain, bus, device = about.pci_domain_id, about.pci_bus_id, about.pci_device_id
        found["pci"] = f"{domain:04x}:{bus:02x}:{device:02x}.0"
    return found


def install(torch: Any) -> None:
    """Install the hooks for the recording that the environment describes."""
    options = json.loads(os.environ[VARIABLE])
    recorder = Recorder(torch, options)
    with recorder._guarded():
        folder = os.path.join(recorder.run, PROCESSES)
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, LOADED), "ab"):
            pass
        register(recorder)
        _watch_steps(recorder)
        _watch_profilers(torch, recorder)


def register(recorder: Recorder) -> None:
    """Register what every recording needs: the ranges of modules, and the end of the process."""
    is_compiling = getattr(getattr(recorder.torch, "compiler", None), "is_compiling", None)
    modules = sys.modules["torch.nn.modules.module"]

    def before(module: Any, given: Any) -> None:
        if is_compiling is not None and is_compiling():
            return
        if recorder.after_step or recorder.is_recording:
            recorder.before_forward(module)

    def after(module: Any, given: Any, result: Any) -> None:
        if is_compiling is not None and is_compiling():
            return
        if recorder.is_recording:
            recorder.after_forward(module)

    modules.register_module_forward_pre_hook(before)
    modules.register_module_forward_hook(after, always_call=True)
    # Registered after torch's own, so that it runs before them.
    atexit.register(recorder.close)
    os.register_at_fork(after_in_child=recorder.after_fork)


def _watch_steps(recorder: Recorder) -> None:
    def after_step(optimizer: Any, given: Any, named: Any) -> None:
        recorder.after_optimizer(optimizer)

    sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(after_step)


def _watch_profilers(torch: Any, recorder: Recorder) -> None:
    """Stand down when the script starts a profiler of its own."""
    profile, older = torch.profiler.profile, torch.autograd.profiler.profile

    def wrap(owner: Any, name: str, before: Callable[[], None]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapped(*given: Any, **named: Any) -> Any:
            before()
            return original(*given, **named)

        setattr(owner, name, wrapped)

    for owner, name in ((profile, "start"), (older, "__enter__")):
        wrap(owner, name, lambda: recorder.stand_down("the script started a profiler of its own"))
    export = profile.export_chrome_trace

    @functools.wraps(export)
    def exported(self: Any, path: str, *given: Any, **named: Any) -> Any:
        result = export(self, path, *given, **named)
        if recorder.is_down and self is not recorder.profiler:
            recorder.take_export(path)
        return result

    profile.export_chrome_trace = exported
