"""What a process does from step to step: where a step begins and ends, and what lies in it."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from .step_ring import (
    BACKWARD,
    BETWEEN,
    CHECKPOINT,
    ENDED,
    EVALUATION,
    FOLDER,
    FORWARD,
    FREE,
    SUFFIX,
    WRITING,
    StepRing,
)

_ROOT, _EMBEDDING = 1, 2
_MOST_ROOTS: Final = 4
"""Models whose forward may begin a step, such as those of a GAN: each is looked through once."""
_UNKNOWN: Final = -1


class StepLog:
    """Notes each step in the ring of its process; a ring that can't be written is given up."""

    def __init__(self, run: str, name: str) -> None:
        self._path = os.path.join(run, FOLDER, f"{name}{SUFFIX}")
        self._ring: StepRing | None = None
        self._has_failed = False
        self.watched: dict[int, int] = {}
        """Modules whose calls are noted, by their ids: models that are trained, and what turns
        their tokens into vectors."""
        self._roots: list[Any] = []
        self._state, self._step = BETWEEN, _UNKNOWN
        self._noted = (BETWEEN, _UNKNOWN)
        self._began: tuple[int, int] | None = None
        """When the step began: since the epoch, and on a clock that nobody sets."""
        self._how = FREE
        self._outermost = 0
        """The id of the watched module in whose call the process is; 0 outside."""
        self._clear()

    def _clear(self) -> None:
        self._given = self._embedded = 0
        """Tokens that models were given, and those that were turned into vectors."""
        self._evaluated_ns = self._saved_ns = 0
        self._evaluation: tuple[int, int] | None = None
        """The first begin and the last end of the forwards of an evaluation."""

    # Steps

    def begin(self, step: int) -> None:
        """End the step before, and begin one."""
        now = time.time_ns(), time.perf_counter_ns()
        if self._ring is None and not self._has_failed:
            self._open(now[0])
        self._end_evaluation()
        if self._began is not None and self._ring is not None:
            tokens = self._embedded or self._given or _UNKNOWN
            took_ns = now[1] - self._began[1]
            parts = self._evaluated_ns, self._saved_ns, self._how
            self._write("add", (self._step, self._began[0], took_ns, tokens, *parts))
        self._clear()
        self._began, self._step, self._how = now, step, FREE
        self._note(FORWARD)

    def mark(self, how: int) -> None:
        """Say how near the profiler is to the step, whose forward begins."""
        self._how = how
        self._note(FORWARD)

    def name(self, rank: int | None, world: int | None) -> None:
        self._write("name", _number(rank), _number(world))

    def write_trace(self) -> None:
        """Say that the trace of a window is written."""
        self._note(WRITING)

    def end_optimizer(self) -> None:
        self._end_evaluation()
        self._note(BETWEEN)

    def end(self) -> None:
        """Say that the process ended; its last step has no end."""
        self._note(ENDED)
        if self._ring is not None:
            self._ring.close()
        self._ring, self._has_failed = None, True

    # What lies in them

    def watch(self, root: Any) -> None:
        """Note the calls of a model whose forward begins a step, and the tokens that it takes."""
        self._roots = [each for each in self._roots if each() is not None]
        if id(root) in self.watched or len(self._roots) >= _MOST_ROOTS:
            return
        self._roots.append(weakref.ref(root))
        inner = root
        while inner is not None:
            self.watched[id(inner)] = _ROOT
            children = [*inner.children()]
            # A wrapper holds the model, which an evaluation may call alone.
            inner = children[0] if len(children) == 1 else None
        sizes = {
            id(module): size
            for _, module in root.named_modules()
            if isinstance(size := getattr(module, "num_embeddings", None), int)
        }
        if sizes:
            self.watched[max(sizes, key=lambda each: sizes[each])] = _EMBEDDING

    def before_call(self, module: Any, given: Any, *, trains: bool) -> None:
        """Note the call of a watched module: with gradients, and not by backward, it trains."""
        if self.watched[id(module)] == _EMBEDDING:
            self._embedded += _tokens_in(given, 1) * trains
            return
        if self._outermost not in (0, id(module)):
            return
        self._outermost = id(module)
        if trains:
            self._given += _tokens_in(given, 2)
            self._end_evaluation()
            self._note(FORWARD)
        elif not getattr(module, "training", True):
            now_ns = time.perf_counter_ns()
            self._evaluation = self._evaluation or (now_ns, now_ns)
            self._note(EVALUATION)

    def after_call(self, module: Any, *, trains: bool) -> None:
        """Note the end of a call."""
        if id(module) != self._outermost:
            return
        self._outermost = 0
        if self._evaluation is not None:
            self._evaluation = self._evaluation[0], time.perf_counter_ns()
        elif trains:
            self._note(BACKWARD)

    def _end_evaluation(self) -> None:
        if self._evaluation is not None:
            self._evaluated_ns += self._evaluation[1] - self._evaluation[0]
            self._evaluation = None

    @contextmanager
    def saving(self) -> Iterator[None]:
        """The time in which the program saves something; other threads disturb no step."""
        is_other = threading.current_thread() is not threading.main_thread()
        if self._state == CHECKPOINT or is_other:
            yield
            return
        before, began_ns = self._state, time.perf_counter_ns()
        self._note(CHECKPOINT)
        try:
            yield
        finally:
            self._saved_ns += time.perf_counter_ns() - began_ns
            self._note(before)

    # The ring

    def _open(self, born_ns: int) -> None:
        try:
            self._ring = StepRing(self._path, born_ns)
        except OSError:
            self._has_failed = True

    def _note(self, state: int) -> None:
        if (state, self._step) != self._noted:
            self._state, self._noted = state, (state, self._step)
            self._write("note", state, time.time_ns(), self._step)

    def _write(self, what: str, *given: Any) -> None:
        if self._ring is None:
            return
        try:
            getattr(self._ring, what)(*given)
        except OSError:
            self._ring, self._has_failed = None, True


def _number(value: int | None) -> int:
    return _UNKNOWN if value is None else value


def _tokens_in(given: Any, least: int) -> int:
    """The tokens of a batch: integers in so many dimensions at least."""
    batch: Any = given[0] if given else None
    if str(getattr(batch, "dtype", "")) not in ("torch.int64", "torch.int32"):
        return 0
    return int(batch.numel()) if batch.dim() >= least else 0
