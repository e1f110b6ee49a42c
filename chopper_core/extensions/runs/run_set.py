"""Several runs as one thing to look at: a row of settings and figures for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from chopper_core.model.settings import KNOWN, Setting
from chopper_core.model.view import RUN_LEVEL, View
from chopper_core.views.frame import Frame
from chopper_core.views.spec import SETTINGS, SeveralRuns, ViewSpec

OK: Final = "ok"
PARTIAL: Final = "partial"
SHORT: Final = "short"
FAILED: Final = "failed"


class RunFigures(Struct, frozen=True):
    """The figures that a run's files give, whatever its settings: they are cached with the run."""

    figures: Mapping[str, float | str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    gpus: int = 0
    settings: Mapping[str, Setting] = field(default_factory=dict)
    """The settings that the trace itself names."""
    problem: str = ""
    """Why it is partial, or short."""
    steps_ns: tuple[float, ...] = ()
    """The times of its complete iterations, each on the GPU that takes longest."""
    is_short: bool = False
    """Whether it has no complete iteration."""


class RunRow(Struct, frozen=True):
    """A run of a set: its settings and figures, or why it has none."""

    name: str
    """Its path below the directory of the set: its label."""
    path: str
    """The run as opened."""
    settings: Mapping[str, Setting] = field(default_factory=dict)
    status: str = OK
    """`OK`, `PARTIAL` if some of its files couldn't be read, or `FAILED`."""
    reason: str = ""
    """Why it is partial or failed, as a sentence."""
    figures: Mapping[str, float | str] = field(default_factory=dict)
    """Column → its figure, in the unit of the column."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Column → why the run lacks it."""
    steps_ns: tuple[float, ...] = ()
    """The times of its complete iterations."""


class Reading(Struct, frozen=True):
    """How far the runs of a set are read."""

    rows: Sequence[RunRow]
    """The rows that are known, in the order of the set; those of runs still to read are empty."""
    waiting: int = 0
    """The number of runs still to read."""


class RunSet(SeveralRuns, frozen=True, eq=False):
    """Runs of a directory; their rows are read in a thread."""

    reading: Callable[[bool], Reading] = lambda wait: Reading(())
    """Its rows now, or, if it is to wait, once there are more."""

    def waiting(self, *, wait: bool) -> int:
        return self.reading(wait).waiting

    def frame(self, view: View, *, wait: bool) -> Frame:
        from chopper_core.extensions.runs.by_run import set_frame

        return set_frame(self, view, wait=wait)

    def splits(self, spec: ViewSpec) -> tuple[str, ...]:
        if spec.by_of_runs == SETTINGS:
            return settings_of(self.reading(False).rows)
        return () if spec.by_of_runs else (RUN_LEVEL, *spec.by)

    def paths(self) -> dict[str, str]:
        return {row.name: row.path for row in self.reading(False).rows}

    def figures(self) -> list[tuple[str, str, str]]:
        from chopper_core.extensions.runs.run_columns import RUN_COLUMNS

        rows = self.reading(False).rows
        return [
            (name, each.metric.title, each.metric.definition)
            for name, each in RUN_COLUMNS.items()
            if any(isinstance(row.figures.get(name), float) for row in rows)
        ]


def settings_of(rows: Sequence[RunRow]) -> tuple[str, ...]:
    """The settings that any run has, those known by name first."""
    found = dict.fromkeys(name for row in rows for name in row.settings)
    known = [name for name in KNOWN if name in found]
    return (*known, *(name for name in found if name not in known))
