"""The rings of a job's processes, looked at again and again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from chopper_core.model.recent_steps import ProcessNow, RecentSteps
from chopper_core.record.hooks import step_ring
from chopper_core.record.manifest import is_ring
from chopper_core.sources.trainer.step_ring import RingHead, RingReader
from chopper_core.util.atomic import FileState
from chopper_core.util.errors import DataError

_DOING: Final[Mapping[int, tuple[str, bool]]] = {
    step_ring.FORWARD: ("the forward of step {:,}", True),
    step_ring.BACKWARD: ("the backward or the optimizer of step {:,}", True),
    step_ring.BETWEEN: ("the loop after step {:,}, such as its loader", True),
    step_ring.EVALUATION: ("an evaluation", False),
    step_ring.CHECKPOINT: ("saving a checkpoint", False),
    step_ring.WRITING: ("writing a trace", False),
    step_ring.ENDED: ("", False),
}
"""What a process does by its state, and whether that is part of a step."""
_TICK_S: Final = 1.0
_UNKNOWN: Final = ("an unknown state", False)


class StepTails:
    """Reads what is new in rings."""

    def __init__(self) -> None:
        self._rings: dict[str, RingReader] = {}
        self._looks: dict[str, tuple[FileState, float]] = {}
        """The state of each ring when it was read last, and when that was."""

    def read(self, files: Mapping[str, FileState], recent: RecentSteps, now_s: float) -> bool:
        """Add the steps of rings that changed; False where nothing came."""
        rings = {path: state for path, state in files.items() if is_ring(path)}
        recent.forget(rings)
        self._rings = {path: ring for path, ring in self._rings.items() if path in rings}
        came = False
        for path, state in rings.items():
            ring = self._rings.setdefault(path, RingReader(Path(path)))
            before, looked_s = self._looks.get(path, (None, 0.0))
            # A change within a tick of the file system's clock has the stamp of the one before.
            if before == state and ring.head is not None and state[1] * 1e-9 < looked_s - _TICK_S:
                continue
            self._looks[path] = state, now_s
            try:
                rows = ring.new_steps()
            except DataError:  # Of a process that has just begun it.
                continue
            assert ring.head is not None
            came |= recent.add(path, _now(ring.head), rows[:, :-1], now_s)
        return came


def _now(head: RingHead) -> ProcessNow:
    doing, is_step = _DOING.get(head.state, _UNKNOWN)
    return ProcessNow(head.rank, head.born_ns, doing, is_step, head.since_ns, head.step)
