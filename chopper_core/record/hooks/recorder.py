"""Counts the steps of a process, traces windows of them, and publishes the state of the process."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import statistics
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from .markers import Roctx
from .ranges import Ranges
from .state import (
    EXPORTS,
    LOCAL_RANKS,
    PROCESSES,
    RANKS,
    TRIGGER,
    WORLDS,
    device_of,
    host_name,
    number_in,
    private_folder,
    remove,
    start_sampler,
    write_json,
)
from .step_ring import FREE, NEAR, TRACED
from .steps import StepLog
from .term import TermSignal

_STATE_S: Final = 1.0
"""At most this often a running process rewrites its state."""
_TRIGGERED_STEPS: Final = 3
"""Steps of a window that is asked for where the schedule has none."""
_EARLY_STEPS: Final = 3
"""Steps that allocate and compile; they don't count as steps outside a window."""
_MAX_TIMES: Final = 1000
_UNSEEN_STEPS: Final = 2
"""So many steps of an optimizer without a forward: the forward is compiled, and calls no hook."""
_RECORDED_BEFORE: Final = "an earlier job of the command recorded these steps"
_NO_OPTIMIZER: Final = (
    "no optimizer of torch stepped, which ends a step; --step-on CLASS counts the forwards of a "
    "class of modules"
)
_FORKED: Final = "it was forked while its parent recorded a window"
_LOCAL_BYTES: Final = 4 << 30
"""Room for the uncompressed traces of a node's ranks."""
_CHUNK: Final = 1 << 20
_END: Final = 16
"""Bytes in which a whole trace has its last brace."""
_MAX_ERROR: Final = 300

if TYPE_CHECKING:  # Python 3.8, which torch ran on until 2.4, can't evaluate it.
    Window = dict[str, Any]
    """Steps that are recorded, as the state of the process has them: `first`, `last`, `state` …"""


class Recorder:
    """The recording of one process; none of its methods raises."""

    def __init__(self, torch: Any, options: dict[str, Any]) -> None:
        self.torch, self.options = torch, options
        self.run: str = options["run"]
        self._range = torch.profiler.record_function
        self.ranges = Ranges(lambda name: self._range(name))
        self.after_step = True
        """Whether the next forward begins a step."""
        self._step_on: str = options.get("step_on", "")
        self._is_of_optimizer = False
        """Whether `step_on` names a class of optimizers."""
        self._optimizers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        """Steps of each optimizer, in the order of their first ones."""
        self._forwards = 0
        """Steps that a forward began."""
        self.signals = TermSignal(self._end)
        self.reset()

    def reset(self) -> None:
        """Begin without a window; in a forked child, whose parent's profiler isn't its own."""
        # A profiler that records in the parent seems to run in the child, and doesn't.
        was_recording = getattr(self, "_profiler", None) is not None
        self.signals.forget()
        self.signals = TermSignal(self._end)
        self.pid = os.getpid()
        self.key = os.urandom(4).hex()
        """Tells processes of the same number apart, of containers with one host's name."""
        self.step = -1
        self.steps = StepLog(self.run, self._name)
        self.is_recording = False
        self.is_down = _FORKED if was_recording else ""
        """Why nothing is recorded any more."""
        self.errors: list[str] = []
        self.windows: list[Window] = []
        self._window: Window | None = None
        self._profiler: Any = None
        self._mark: Any = None
        self._times: dict[bool, list[int]] = {True: [], False: []}
        """Durations of steps inside windows and outside, in ns."""
        self._export_ns = 0
        self._last_ns = 0
        self._is_inside: bool | None = None
        """Whether this step is inside a window; None next to one and while one is written."""
        self._published_s = 0.0
        self._born_s = time.time()
        self._triggered_ns = 0
        self._writer: threading.Thread | None = None
        self._exports = 0
        self._lock = threading.RLock()

    # Steps

    def before_forward(self, module: Any, given: Any) -> None:
        """Begin a step where the forward of a module does, and its range."""
        try:
            if self.after_step and self._begins(module):
                self._forwards += 1
                self.steps.watch(module)
                self.begin()
            if id(module) in self.steps.watched:
                self.steps.before_call(module, given, trains=self._trains())
            if self.is_recording and not self.options.get("light"):
                self.ranges.open(module)
        except Exception as error:
            self._fail(error)

    def after_forward(self, module: Any) -> None:
        try:
            if id(module) in self.steps.watched:
                self.steps.after_call(module, trains=self._trains())
            if self.is_recording:
                self.ranges.close(module)
        except Exception as error:
            self._fail(error)

    def _trains(self) -> bool:
        """Whether a forward has gradients, and isn't one that backward recomputes."""
        task = getattr(self.torch._C, "_current_graph_task_id", None)
        return self.torch.is_grad_enabled() and (task is None or task() == -1)

    def _begins(self, module: Any) -> bool:
        """Whether a forward begins a step."""
        if not self._trains():
            return False
        cuda = self.torch.cuda
        if cuda.is_initialized() and cuda.is_current_stream_capturing():
            return False  # The end of a window waits for the GPU, which would end the capture.
        is_named = type(module).__name__ == self._step_on
        return not self._step_on or self._is_of_optimizer or is_named

    def after_optimizer(self, optimizer: Any) -> None:
        """Let the next forward begin a step; several optimizers may step in between.

        Of several optimizers of the class `step_on`, the last to step for the first time ends it.
        """
        self._optimizers[optimizer] = self._optimizers.get(optimizer, 0) + 1
        if self._step_on:
            named = [each for each in self._optimizers if type(each).__name__ == self._step_on]
            self._is_of_optimizer = bool(named)
            if named and optimizer is not named[-1]:
                return
        self.after_step = True
        self.steps.end_optimizer()
        if not self._forwards and not self._step_on:
            is_first = optimizer is next(iter(self._optimizers))
            if is_first and self._optimizers[optimizer] > _UNSEEN_STEPS:
                self.begin()

    def begin(self) -> None:
        """Begin a step: count the last one, open and close windows."""
        # Without an optimizer, each forward of the named class begins one.
        self.after_step = self._step_on != "" and not self._optimizers
        if self.errors or self.pid != os.getpid():
            return
        now_ns = time.perf_counter_ns()
        with self._guarded():
            self.step += 1
            self.steps.begin(self.step)
            if self._last_ns and self._is_inside is not None:
                times = self._times[self._is_inside]
                if len(times) < _MAX_TIMES and (self._is_inside or self.step > _EARLY_STEPS):
                    times.append(now_ns - self._last_ns)
            if not self.is_down:
                self._advance()
            near = NEAR if self._is_inside is None else FREE
            self.steps.mark(TRACED if self._is_inside else near)
            if time.monotonic() - self._published_s > _STATE_S:
                self.publish()
            if self.options.get("ends") and self.windows and self._window is None:
                # What a counter pass is for is done: the rest of the job would only take time.
                raise SystemExit(0)
        self._last_ns = time.perf_counter_ns()

    def _advance(self) -> None:
        is_next_to_window = self._window is not None
        self._end_mark()
        if self._window is not None and self.step > self._window["last"]:
            self._finish()
        if self._window is not None:
            self._start()
        elif self._is_due(self.step + 1) and not self._profiler_runs():
            self._prepare(self.step + 1)
        elif not self._is_writing():
            self.signals.release()
        if self.is_recording:
            self._mark = self._range(f"ProfilerStep#{self.step}")
            self._mark.__enter__()
        is_next_to_window |= self._window is not None or self._is_writing()
        self._is_inside = True if self.is_recording else None if is_next_to_window else False

    def _end_mark(self) -> None:
        mark, self._mark = self._mark, None
        if mark is not None:
            mark.__exit__(None, None, None)

    def _is_due(self, step: int) -> bool:
        """Whether a window begins with a step: by the schedule, or by a trigger."""
        past, every = step - self.options["skip"], self.options["every"]
        if self.options["steps"] and (past == 0 or (every and past > 0 and past % every == 0)):
            return True
        path = os.path.join(self.run, TRIGGER)
        with suppress(OSError, ValueError, KeyError):
            changed_ns = os.stat(path).st_mtime_ns
            if changed_ns != self._triggered_ns:
                with open(path, encoding="utf-8") as file:
                    first = int(json.load(file)["first"])
                if step >= first:
                    self._triggered_ns = changed_ns
                    return True
        return False

    # Windows

    def _profiler_runs(self) -> bool:
        runs = getattr(self.torch.autograd, "_profiler_enabled", None)
        if runs is None or not runs():
            return False
        self.stand_down("a profiler of the script was running")
        return True

    def _prepare(self, first: int) -> None:
        """Let the profiler warm up in the step before a window."""
        steps = self.options["steps"] or _TRIGGERED_STEPS
        window: Window = {"first": first, "last": first + steps - 1}
        self.windows.append(window)
        with suppress(OSError):
            if os.path.getmtime(self._folder(window)) < self._born_s:
                window.update({"state": "not written", "reason": _RECORDED_BEFORE})
                return
        window["state"] = "warming up"
        self._window = window
        self.signals.take()
        if library := self.options.get("markers"):
            self._profiler = Roctx(library)
            self._range = self._profiler.range
        else:
            has_shapes = not self.options.get("light")
            self._profiler = self.torch.profiler.profile(record_shapes=has_shapes)
        self._profiler.prepare_trace()
        self.publish()

    def _start(self) -> None:
        if self._window is not None and self.step == self._window["first"]:
            self._window["state"] = "recording"
            self._profiler.start_trace()
            self._profiler.add_metadata_json("hostname", json.dumps(os.uname().nodename))
            self.is_recording = True
            self.publish()

    def _finish(self, why: str = "the process ended in this window") -> None:
        """End the window as far as it got; its trace is compressed in the background."""
        with self.signals.deferred():
            window, profiler, was_recording = self._window, self._profiler, self.is_recording
            self._window, self._profiler, self.is_recording = None, None, False
            if window is None or profiler is None:
                return
            began_ns = time.perf_counter_ns()
            self.steps.write_trace()
            self.ranges.end()
            self._end_mark()
            _stop(profiler, was_recording)
            if not was_recording:
                window.update({"state": "not written", "reason": why})
                return
            if self.step <= window["last"]:
                window.update({"last": self.step, "reason": why})
            is_counted = isinstance(profiler, Roctx)
            window["state"] = "counted" if is_counted else "writing"
            self.publish()
            if not is_counted and (raw := self._export(profiler, window)) is not None:
                self._write(window, raw)
            self._export_ns = max(self._export_ns, time.perf_counter_ns() - began_ns)

    def _export(self, profiler: Any, window: Window) -> str | None:
        """Export the trace uncompressed: on the node, or into the run if that has more room.

        torch exports a trace once: there is no second try.
        """
        folder = tempfile.gettempdir()
        if _free(folder) < _LOCAL_BYTES:
            folder = max(folder, self.run, key=_free)
        why = f"{folder} has no room"
        try:
            window["private"] = private_folder(folder)
            self.publish()
            raw = os.path.join(window["private"], ".trace.json")
            profiler.export_chrome_trace(raw)
            with open(raw, "rb") as file:
                file.seek(-_END, os.SEEK_END)
                if b"}" in file.read():
                    return raw
        except (OSError, RuntimeError) as error:
            why = f"{folder}: {error}"
        self._remove_private(window)
        window.update({"state": "not written", "reason": why})
        return None

    def _remove_private(self, window: Window) -> None:
        shutil.rmtree(window.pop("private", ""), ignore_errors=True)

    def _write(self, window: Window, raw: str) -> None:
        target = os.path.join(self._folder(window), f"rank{self.rank() or 0}.json.gz")
        self._end_writing()
        writer = threading.Thread(target=self._compress, args=(window, raw, target))
        try:
            writer.start()
            self._writer = writer
        except RuntimeError:  # The interpreter is ending.
            self._compress(window, raw, target)

    def _folder(self, window: Window) -> str:
        return os.path.join(self.run, f"step{window['first']}")

    def _compress(self, window: Window, raw: str, target: str) -> None:
        part = f"{target}.part"
        try:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if os.path.exists(target):
                raise FileExistsError
            with open(raw, "rb") as source:
                os.remove(raw)
                with gzip.open(part, "xb", compresslevel=2) as file:
                    shutil.copyfileobj(source, file, _CHUNK)
            os.replace(part, target)
            self._remove_private(window)
            about = {"file": os.path.relpath(target, self.run), "bytes": os.path.getsize(target)}
            window.update({"state": "written", **about})
        except FileExistsError:
            self._remove_private(window)
            reason = f"another process recorded these steps as rank {self.rank() or 0}"
            window.update({"state": "not written", "reason": reason})
        except Exception as error:  # In a thread it would be on the program's standard error.
            window.update({"state": "not written", "reason": str(error)})
            self._remove_private(window)
            remove(part)
        self.publish()

    def _is_writing(self) -> bool:
        return self._writer is not None and self._writer.is_alive()

    def _end_writing(self) -> None:
        if self._writer is not None:
            self._writer.join()

    # Endings

    def _end(self) -> None:
        """End a window and what is being written, and publish the last state."""
        with self._guarded():
            self._finish()
            self._end_writing()
        if self._step_on and self._optimizers and self.step < 0:
            self.is_down = f"no module or optimizer of the class {self._step_on} ran"
        elif self.step == 0 and not self._optimizers:
            self.is_down = self.is_down or _NO_OPTIMIZER
        if self.step >= 0 or self.is_down:
            self.publish(has_ended=True)

    def close(self) -> None:
        if self.pid == os.getpid():
            with self.signals.deferred():
                self._end()
                self.steps.end()
            self.signals.release()

    def stand_down(self, reason: str) -> None:
        """Leave the profiler to the script."""
        if not self.is_down and self.pid == os.getpid():
            with self._guarded():
                self._finish(reason)
            self.is_down = reason
            self.publish()

    def keep_export(self, path: str) -> None:
        """Keep a copy of a trace that the script exports."""
        with self._guarded():
            folder = os.path.join(self.run, f"{EXPORTS}{self._exports}")
            self._exports += 1
            os.makedirs(folder, exist_ok=True)
            suffix = ".gz" if path.endswith(".gz") else ""
            target = os.path.join(folder, f"rank{self.rank() or 0}.json{suffix}")
            shutil.copyfile(path, f"{target}.part")
            os.replace(f"{target}.part", target)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Let an error end the recording, and not the program; warnings aren't the program's."""
        # Another filter would have the program's own warnings shown once more.
        shown, warnings.showwarning = warnings.showwarning, lambda *about: None
        try:
            yield
        except Exception as error:
            self._fail(error)
        finally:
            warnings.showwarning = shown

    def _fail(self, error: Exception) -> None:
        profiler, was_recording = self._profiler, self.is_recording
        self.is_recording, self._window, self._profiler, self._mark = False, None, None, None
        self.is_down = self.is_down or "an error"
        self.errors.append(f"{type(error).__name__}: {error}"[:_MAX_ERROR])
        # A session that is active at the end of the process crashes it.
        with suppress(Exception):
            if profiler is not None:
                _stop(profiler, was_recording)
        self.publish()

    # State

    def rank(self) -> int | None:
        """The rank of this process, by its process group or its launcher."""
        return self._of_job("get_rank", RANKS)

    def _of_job(self, question: str, variables: tuple[str, ...]) -> int | None:
        distributed = self.torch.distributed
        with suppress(Exception):
            if distributed.is_available() and distributed.is_initialized():
                return int(getattr(distributed, question)())
        return number_in(variables)

    @property
    def _name(self) -> str:
        """Tells this process from all others of the run."""
        return f"{host_name()}-{self.key}-{self.pid}"

    def publish(self, has_ended: bool = False) -> None:
        """Write the state of this process; where that fails, the program runs on without."""
        self._published_s = time.monotonic()
        path = os.path.join(self.run, PROCESSES, f"{self._name}.json")
        # A handler that waits for the writer must not interrupt the holder of the lock.
        with suppress(Exception), self.signals.deferred(), self._lock:
            if not os.path.exists(path):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                # Only the node of `chopper record` has a sampler; a second one ends by itself.
                sampler = self.options.get("sampler")
                is_other = self.options.get("host") != host_name()
                if sampler and is_other and not number_in(LOCAL_RANKS):
                    start_sampler([*sampler, self.run, "--parent", str(os.getppid())])
            described = self._described(has_ended)
            self.steps.name(described["rank"], described["world_size"])
            write_json(path, described)

    def _described(self, has_ended: bool) -> dict[str, Any]:
        """The state, with the fields of `RecordedProcess` in `manifest.py`."""
        inside, outside = self._times[True], self._times[False]
        times = {"inside": len(inside), "outside": len(outside), "export_ns": self._export_ns}
        if inside:
            times["inside_ns"] = int(statistics.median(inside))
        if outside:
            times["outside_ns"] = int(statistics.median(outside))
        return {
            "host": host_name(),
            "pid": self.pid,
            "key": self.key,
            "rank": self.rank(),
            "local_rank": number_in(LOCAL_RANKS),
            "world_size": self._of_job("get_world_size", WORLDS),
            "torch": str(self.torch.__version__),
            "device": device_of(self.torch),
            "state": "ended" if has_ended else "running",
            "step": self.step,
            "windows": self.windows,
            "layers": {str(number): name for number, name in sorted(self.ranges.layers.items())},
            "step_times": times,
            "stood_down": self.is_down,
            "errors": self.errors,
        }


def _free(folder: str) -> int:
    with suppress(OSError):
        return shutil.disk_usage(folder).free
    return 0


def _stop(profiler: Any, was_recording: bool) -> None:
    """Stop a profiler; one that only warmed up has to be started for that."""
    if not was_recording:
        profiler.start_trace()
    profiler.stop_trace()
