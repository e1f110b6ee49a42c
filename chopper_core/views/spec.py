"""The interface of a view module: its specification, and the function that answers its question."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from msgspec import Struct, field

from chopper_core.analyses import registry as registry
from chopper_core.analyses.base import Base
from chopper_core.analyses.rows import LabelledRows
from chopper_core.columns import Metric, Values, registered
from chopper_core.model.charts import Chart
from chopper_core.model.run import Run
from chopper_core.model.table import LEVELS, SPLITS
from chopper_core.model.view import View
from chopper_core.util.errors import UsageError
from chopper_core.views.frame import Frame

FIGURE: Final = "figure"
"""`ViewSpec.of` of a view that takes any column of a table."""
SUMS: Final = "sum"
"""`ViewSpec.of` of a view that takes any column that adds up."""
RUN_FIGURE: Final = "a figure of a run, such as tokens_per_j"
"""`ViewSpec.of` of a view that takes one figure of several runs."""
SETTINGS: Final = "settings"
"""`ViewSpec.by_of_runs` of a view that splits several runs by their settings."""
BEST: Final = "best"
"""`base=best` of several runs: each figure is compared with the best one of its group."""


class ViewSpec(Struct, frozen=True, kw_only=True):
    """A view as help, choosers and completion show it."""

    name: str
    """Its name in addresses, `view=NAME`, and that of its module."""
    title: str
    question: str
    by: tuple[str, ...] = ()
    """The values of `by=`, the default first."""
    rows: tuple[str, ...] = ()
    """What its rows are that aren't made of activities: their columns are registered so."""
    of: str = ""
    """The values of `of=`: `FIGURE`, `SUMS` or a description; empty: the view has no `of=`."""
    second: str = ""
    """Another view of the scope, whose first rows large screens show with it."""
    along_time: bool = False
    """Whether it has a window of time: `from=`, `to=`, `at=`, `mark=`."""
    compares: bool = False
    """Whether it shows a baseline, or differences from it."""
    has_preview: bool = False
    """Whether its module has a `preview`: the answer without what takes long."""
    needs_starts: bool = False
    """Whether it is about what ran when: nothing that reconstructed times could tell."""
    of_one_run: str = ""
    """Why it shows no several runs side by side."""
    by_of_runs: str = ""
    """The rows of several runs, where they are always the same; or `SETTINGS`."""
    takes_samples: bool = False
    """Whether it answers for a run of telemetry alone."""
    takes_logs: bool = False
    """Whether it answers for a run of a trainer's log alone."""
    takes_snapshots: bool = False
    """Whether it answers for a run of memory snapshots alone."""
    is_costly: bool = False
    """Whether its answer is kept however fast it was made: another view may have done the work."""
    is_live: bool = False
    """Whether its answer changes while the run stays the same."""
    any_split: bool = False
    """Whether rows can be the values of any column of the activities, such as `class`."""
    parts: tuple[str, ...] = ()
    """The columns that are parts of one whole: bars by run stack them."""
    no_statistic: str = "computes its figures for each row as a whole"
    """Why `stat=` has no effect where none of its figures takes a statistic."""

    @property
    def figures(self) -> tuple[str, ...]:
        """The columns that `of=` takes, where it takes columns."""
        if self.of not in (FIGURE, SUMS):
            return ()
        return tuple(
            each.name for each in registered() if self.of == FIGURE or each.reduces == SUMS
        )


class SeveralRuns(Run, frozen=True, eq=False):
    """Runs side by side. As a run of its own it has no activities; `others` opens its runs."""

    @abstractmethod
    def waiting(self, *, wait: bool) -> int:
        """The number of runs still to read; if it is to wait, once it changed."""

    @abstractmethod
    def frame(self, view: View, *, wait: bool) -> Frame:
        """The frame of a view; if it is to wait, once more of the runs are read."""

    @abstractmethod
    def splits(self, spec: ViewSpec) -> tuple[str, ...]:
        """The values of `by=` for a view."""

    @abstractmethod
    def paths(self) -> Mapping[str, str]:
        """Label → path of the runs that are known so far."""

    @abstractmethod
    def figures(self) -> Sequence[tuple[str, str, str]]:
        """Name, title and definition of the figures that any run has."""

    @abstractmethod
    def by_speed(self) -> tuple[str, Mapping[str, float]]:
        """The order `sort=` that has the fastest run first, and label → how many times as fast as
        that one, in this order; empty where no figure compares them."""


POSITIVE: Final = r"(?![0.]*$)\d{1,12}(\.\d+)?"
"""An option that is a number above 0."""


def options_of(view: View, spec: ViewSpec, **patterns: str) -> dict[str, str]:
    """The options `name:value` of a view's `of=`, with commas between them.

    Raises UsageError for other names, and for values that don't match the pattern of theirs.
    """
    found: dict[str, str] = {}
    for part in filter(None, view.of.split(",")):
        name, _, value = part.partition(":")
        if name in found or not re.fullmatch(patterns.get(name, "(?!)"), value):
            raise UsageError(f"the view {spec.name} takes of={spec.of}, not {view.of!r}")
        found[name] = value
    return found


def any_level(*first: str, but: tuple[str, ...] = ("kernel",)) -> tuple[str, ...]:
    """The values of `by=` of a view that splits by any level: some first, then all other levels."""
    return (*first, *(level for level in LEVELS if level not in (*first, *but)))


def splits_of(run: Run, spec: ViewSpec) -> tuple[str, ...]:
    """The values of `by=` for a run: those of the view, and the run's parallel dimensions.

    A view whose rows can be GPUs can have a row for the GPUs of a coordinate. Several runs are
    split by their settings, or have a row each or the view's own splits.
    """
    if isinstance(run, SeveralRuns):
        return run.splits(spec)
    more: tuple[str, ...] = ()
    if spec.any_split:
        more = tuple(name for name in (*LEVELS, *SPLITS) if name not in spec.by)
    if {"gpu", "rank"} & set(spec.by):
        more = (*run.table.coordinates, *more)
    return (*spec.by, *more)


class ViewResult(Struct, frozen=True, eq=False):
    """The rows, columns and charts of a view, before rows are sorted and filtered."""

    rows: LabelledRows
    """Their labels; a `Partition` where they stand for activities: for sparklines and metrics."""
    columns: tuple[tuple[Metric, Values], ...]
    """All columns of the view's own, the most important first."""
    opens: Callable[[int], View]
    """The view that a row opens."""
    total: Mapping[str, int | float] = field(default_factory=dict)
    """The total row, for the view's own columns that have a total."""
    sort: str = ""
    """The default sort; empty: the order of `labels`."""
    shown: tuple[str, ...] = ()
    """The default columns; empty: all."""
    headline: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    charts: tuple[Chart, ...] = ()
    over: tuple[str, ...] = ()
    """The levels that distinguish instances, where the view computes the statistic itself."""
    by: str = ""
    """The split, where the view chose one that isn't the default."""
    base: Base | None = None
    """The base of figures that add up; None: that of the view."""
    total_title: str = ""
    """What the total row is, where it is neither the total of the rows nor their mean."""
    extrapolated_total: frozenset[str] = frozenset()
    """The columns whose total is marked as extrapolated."""


class ViewModule(Protocol):
    """The interface of a view's module; the registry imports it when it is needed."""

    @property
    def SPEC(self) -> ViewSpec:  # noqa: N802 (a constant of the module)
        """The view as help and choosers show it."""

    def answer(self, run: Run, view: View) -> ViewResult:
        """The rows for a view; raises UsageError where the run or the scope has nothing to show."""


class Choosy(ViewModule, Protocol):
    """A view module that needs what many runs lack."""

    def missing_from(self, run: Run) -> str:
        """Why no scope of a run has an answer, found out at once; empty: one may have."""


class Previewed(ViewModule, Protocol):
    """A view module whose answer takes long in parts that the screen can fill in later."""

    def preview(self, run: Run, view: View) -> ViewResult | None:
        """The same rows and columns as the answer, without what takes long; None: nothing does."""
