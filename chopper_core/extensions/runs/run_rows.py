"""The rows of a set of runs: settings and figures of each, as far as they are read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from msgspec import Struct

from chopper_core.model.settings import KNOWN, Setting, setting_name
from chopper_core.model.view import RUN_LEVEL
from chopper_core.util.errors import UsageError
from chopper_core.views.spec import SETTINGS, SeveralRuns, ViewSpec

OK: Final = "ok"
PARTIAL: Final = "partial"
SHORT: Final = "short"
FAILED: Final = "failed"


class RunRow(Struct, frozen=True):
    """A run of a set: its settings and figures, or why it has none.

    The cache keeps what its files alone give: the settings that the trace names, and no figure
    that follows from others.
    """

    name: str
    """Its path below the directory of the set: its label."""
    path: str
    """The run as opened."""
    settings: Mapping[str, Setting] = {}
    status: str = OK
    """`OK`, `SHORT` without a complete step, `PARTIAL`, or `FAILED`."""
    reason: str = ""
    """Why it is not ok, as a sentence."""
    figures: Mapping[str, float | str] = {}
    """Column → its figure, in the unit of the column."""
    missing: Mapping[str, str] = {}
    """Column → why the run lacks it."""
    steps_ns: tuple[float, ...] = ()
    """The times of its complete steps, each on the GPU that takes longest."""


class Reading(Struct, frozen=True):
    """How far the runs of a set are read."""

    rows: Sequence[RunRow]
    """The rows that are known, in the order of the set; those of runs still to read are empty."""
    waiting: int = 0
    """The number of runs still to read."""


class RunRows(SeveralRuns, frozen=True, eq=False):
    """Runs of a directory; their rows are read in a thread."""

    reading: Callable[[bool], Reading] = lambda wait: Reading(())
    """Its rows now, or, if it is to wait, once there are more."""

    def waiting(self, *, wait: bool) -> int:
        return self.reading(wait).waiting

    def splits(self, spec: ViewSpec) -> tuple[str, ...]:
        if spec.by_of_runs == SETTINGS:
            return settings_of(self.reading(False).rows)
        return () if spec.by_of_runs else (RUN_LEVEL, *spec.by)

    def paths(self) -> dict[str, str]:
        return {row.name: row.path for row in self.reading(False).rows}


def settings_of(rows: Sequence[RunRow]) -> tuple[str, ...]:
    """The settings that any run has, those known by name first."""
    found = dict.fromkeys(name for row in rows for name in row.settings)
    known = [name for name in KNOWN if name in found]
    return (*known, *(name for name in found if name not in known))


def setting_of(text: str, settings: Collection[str]) -> str:
    """The setting that a text names as runs, headings (`TP`, `mbs`) or a job's file write it.

    Raises UsageError for one that no run has.
    """
    name = text if text in settings else setting_name(text)
    if name not in settings:
        raise UsageError(f"no run has the setting {text!r}; the runs have {', '.join(settings)}")
    return name
