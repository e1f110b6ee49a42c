"""The columns of a frame's rows, each computed when it is first asked for, and their totals."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property, partial
from math import isclose
from time import monotonic
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.analyses.base import NODE, base_of, divided
from chopper_core.analyses.coverage import Coverage
from chopper_core.analyses.rows import Partition, by_node
from chopper_core.columns import (
    METRICS,
    Metric,
    Reduces,
    Scope,
    Values,
    column_names,
    metric_named,
    numbered,
    registered,
)
from chopper_core.columns.derived import Statistic, instance_levels, is_difference
from chopper_core.columns.filter import NAME
from chopper_core.columns.lookup import missing_throughout, reasons
from chopper_core.columns.time import INSTANCES, SHARE
from chopper_core.model.groups import Groups
from chopper_core.model.memo import WORTH_KEEPING_S, LazyMap
from chopper_core.model.phrases import count
from chopper_core.model.run import Run
from chopper_core.model.table import LEVELS
from chopper_core.model.view import View
from chopper_core.util.arrays import Index, Int64, Mask
from chopper_core.util.errors import UsageError
from chopper_core.views.frame import Number
from chopper_core.views.shared.kept_answers import StoredColumn
from chopper_core.views.spec import ViewResult

_MANY: Final = 1 << 20
"""Activities whose columns may take long: those of fewer are computed each time."""


class LabelledActivities(Struct, frozen=True, eq=False):
    """The activities with the label of each row, of a view that computes its own figures of them.

    Registered columns answer there as in the tree; `at` is the group of each row, -1 without any.
    """

    level: str
    nodes: Groups
    at: Index
    whole: Groups
    """Those of all rows as one group."""

    @classmethod
    def of(cls, run: Run, view: View, level: str, labels: Sequence[str]) -> LabelledActivities:
        tree = run.tree_of(view)
        whole = tree.node(view.path)
        if level == NODE:
            names, nodes = by_node(run, whole, tree.split(view.path, ("gpu",)))
        else:
            nodes = tree.split(view.path, (level,))
            names = nodes.labels(level)
        place_of = {label: place for place, label in enumerate(names)}
        at = np.array([place_of.get(label, -1) for label in labels], np.intp)
        if level != NODE:
            left_out = np.delete(nodes.codes(level), at[at >= 0]).tolist()
            whole = tree.split(view.path, (), {level: left_out} if left_out else {})
        return cls(level, nodes, at, whole)

    def values(self, run: Run, view: View, metric: Metric) -> Values:
        found = metric.compute(Scope.of(run, self.nodes, self.whole))
        found = Coverage(run, view, self.level, self.nodes, self.whole).marked(metric, found)
        taken = found.take(np.maximum(self.at, 0))
        return replace(taken, missing=~taken.present() | (self.at < 0))


class Columns:
    """The columns of rows, each computed when it is first asked for.

    Those of the result are of the rows alone, with their totals; all others are metrics of the
    rows' activities, and their total row is that of the whole.
    """

    def __init__(
        self,
        run: Run,
        view: View,
        result: ViewResult,
        counted: Mask | None = None,
    ) -> None:
        """Figures that add up are put on a base; rows that aren't `counted` have no share."""
        rows, level = result.rows, result.rows.level
        nodes = rows.nodes if isinstance(rows, Partition) else None
        whole = rows.whole if isinstance(rows, Partition) else _node_of(run, view)
        self._run, self._view, self._nodes, self._whole = run, view, nodes, whole
        self.base = result.base or base_of(run, view)
        self._labels = {level: rows.labels}
        self._counted = counted
        self._divisors: dict[Reduces, Int64] = {}
        self.own = {column.name: (column, values) for column, values in result.columns}
        self._labelled: LabelledActivities | None = None
        self._is_labelled = nodes is None and has_activities(run, level)
        self._has_nodes = nodes is not None or self._is_labelled
        names = names_of(view, result.shown or tuple(self.own), self.own, has_nodes=self._has_nodes)
        of_nodes = (name not in self.own or self._is_registered(name) for name in names)
        self.over = instance_levels(view, level) if nodes is not None and any(of_nodes) else ()
        self._statistic = Statistic(view.stat, self.over) if view.stat and self.over else None
        if self._statistic and not view.columns:
            names = with_instances(names)
        self._coverage = Coverage(run, view, level, whole if nodes is None else nodes, whole)
        chosen = {
            name: own
            for name, own in self.own.items()
            if self._statistic is None or not self._is_registered(name)
        }
        self._values = {
            name: self._doubted(name, self._based(*own)) for name, own in chosen.items()
        }
        self._totals = {
            name: self._based_total(each, result.total.get(name))
            for name, (each, _) in chosen.items()
        }
        self._takes_long = False
        """Whether a column of very many activities took long."""
        self._extrapolated: set[str] = set()
        """The columns whose total was computed and is extrapolated."""
        self.metrics = tuple(map(self.metric, names))
        self.totals = LazyMap(names, lambda name: self._total(self.metric(name)))

    def _is_registered(self, name: str) -> bool:
        return self._nodes is not None and METRICS.get(name) is self.own[name][0]

    @property
    def hidden(self) -> tuple[Metric, ...]:
        """The columns that can be asked for and aren't shown: the view's own, then registered."""
        own = [each for each, _ in self.own.values() if each not in self.metrics]
        known = {*self.own, *(each.name for each in self.metrics)}
        others = [
            each
            for each in (registered() if self._has_nodes else ())
            if each.name not in known and not missing_throughout(each, self._run.table)
        ]
        return (*own, *others)

    def metric(self, name: str) -> Metric:
        if name in self.own:
            found = self.own[name][0]
        elif self._nodes is None and not self._is_labelled:
            raise UsageError(
                f"the view {self._view.name} has no column {name!r}; it has {', '.join(self.own)}"
            )
        else:
            found = metric_named(name, self._run.table, self._run.counter_info)
        if self._statistic is None or name in self._totals:
            return found
        return self._statistic.metric(found)

    def values(self, name: str) -> Values:
        if name not in self._values:
            metric = self.metric(name)
            if self._nodes is None:
                found = self._activities.values(self._run, self._view, metric)
            else:
                found = self._computed(metric, self._nodes)
            if name == SHARE and self._counted is not None:
                found = replace(found, missing=~(found.present() & self._counted))
            self._values[name] = self._doubted(name, self._based(metric, found))
        return self._values[name]

    def _computed(self, metric: Metric, nodes: Groups) -> Values:
        """A registered column of groups; of very many activities kept with the run's files."""
        run, whole = self._run, nodes if nodes is not self._nodes else self._whole

        def made() -> Values:
            begun_s = monotonic()
            found = metric.compute(Scope.of(run, nodes, whole))
            self._takes_long |= monotonic() - begun_s >= WORTH_KEEPING_S
            return found

        def checked(stored: StoredColumn) -> Values:
            if len(stored.values) != len(nodes):
                raise ValueError("a column of other rows")
            return stored.values

        origins = nodes.origin, whole.origin
        is_known = METRICS.get(metric.name) is metric and None not in origins
        if not is_known or int(whole.sizes().sum()) < _MANY:
            return made()
        key = "column", metric.name, *origins
        stored = partial(StoredColumn.of, metric)
        # It may be made of one that took long, or of what others remembered of these groups.
        is_costly = self._takes_long or bool(nodes.memo)
        found: Values = run.kept(key, StoredColumn, made, stored, checked, is_costly=is_costly)
        return found

    @property
    def _activities(self) -> LabelledActivities:
        if self._labelled is None:
            ((level, labels),) = self._labels.items()
            self._labelled = LabelledActivities.of(self._run, self._view, level, labels)
        return self._labelled

    def _doubted(self, name: str, values: Values) -> Values:
        """Values marked where a doubt touches the column's figures: of the GPUs that it is of."""
        if not self.is_doubted(name):
            return values
        marked, rows = values.present(), self._gpus_of_rows
        if rows is not None and any(doubt.gpus for doubt in self._run.doubts):
            from chopper_core.analyses.samples import doubted_gpus  # few have doubtful samples

            if gpus := doubted_gpus(self._run, name):
                marked &= np.isin(rows, sorted(gpus))
        if values.extrapolated is not None:
            marked |= values.extrapolated
        return replace(values, extrapolated=marked)

    @cached_property
    def _gpus_of_rows(self) -> Int64 | None:
        """The one GPU of each row; None where rows are of several."""
        ((level, labels),) = self._labels.items()
        codes = {self._run.table.text_of("gpu", each.index): each.index for each in self._run.gpus}
        own = dict(self._view.scope).get("gpu")
        names = labels if level == "gpu" else [own or ""] * len(labels)
        if not all(name in codes for name in names):
            return None
        return np.array([codes[name] for name in names], np.int64)

    def is_doubted(self, name: str) -> bool:
        run = self._run
        if name in run.doubted or not any(doubt.signals for doubt in run.doubts):
            return name in run.doubted
        from chopper_core.analyses.samples import doubted_columns  # few have doubtful samples

        return name in doubted_columns(run)

    def _based(self, metric: Metric, values: Values) -> Values:
        """Values of the rows on the base of the view, marked where they cover only some GPUs."""
        if self._nodes is not None:
            values = self._coverage.marked(metric, values)
        return divided(values, self._divisor(metric, self._labels))

    def _based_total(self, metric: Metric, number: Number | None) -> Number | None:
        by = int(self._divisor(metric, {"": [""]})[0])
        return number if number is None or by == 1 else number / by

    def _divisor(self, metric: Metric, labels: Mapping[str, Sequence[str]]) -> Int64:
        if not metric.adds_up:
            return np.ones(1, np.int64)
        is_labelled = self._nodes is None and metric.name not in self.own
        gpus = None if self._nodes is None else self._coverage.covered(metric)
        if is_labelled:
            # The view's own figures may be on the base already; these aren't.
            return replace(self.base, is_applied=False).of_rows(labels, None, metric.reduces)
        if gpus is not None or labels is not self._labels:
            return self.base.of_rows(labels, gpus, metric.reduces)
        # That of most columns is the same, and rows may be ten thousand.
        if metric.reduces not in self._divisors:
            found = self.base.of_rows(labels, None, metric.reduces)
            self._divisors[metric.reduces] = found
        return self._divisors[metric.reduces]

    def _total(self, metric: Metric) -> Number | None:
        if metric.name in self._totals:
            return self._totals[metric.name]
        whole = self._activities.whole if self._is_labelled else self._whole
        found = self._computed(metric, whole)
        if found.is_extrapolated(0):
            self._extrapolated.add(metric.name)
        return None if found.words is not None else self._based_total(metric, found.at(0))

    @property
    def adds_up(self) -> bool:
        """Whether there are figures that add up among them."""
        return any(each.adds_up for each in (*self.metrics, *(own for own, _ in self.own.values())))

    @property
    def notes(self) -> Sequence[str]:
        return (*self._coverage.notes(self.metrics), *filter(None, map(self._beyond, self.metrics)))

    def _beyond(self, metric: Metric) -> str:
        """That the total of a column isn't the sum of its rows, since some lack it: it is computed
        of the activities of all."""
        if metric.reduces is not Reduces.SUM or self._statistic is not None:
            return ""
        ((level, labels),) = self._labels.items()
        if self.base.is_applied and self.base.is_mean_of(level, labels):
            return ""  # The total is the mean of those that have one.
        values = self.values(metric.name)
        counted = values.present() if self._counted is None else values.present() & self._counted
        lacking = int((~values.present()).sum())
        if not lacking or not counted.any() or (total := self.totals[metric.name]) is None:
            return ""
        own = (values.numbers * self._divisor(metric, self._labels))[counted].sum()
        whole = total * int(self._divisor(metric, {"": [""]})[0])
        if isclose(own, whole, rel_tol=1e-9, abs_tol=1e-6):
            return ""
        return f"the total of {metric.title} includes {count(lacking, 'row')} without a value"

    @property
    def unavailable(self) -> tuple[str, ...]:
        """Why columns that were asked for have no figure at all."""
        asked = {*self._view.columns, *self._view.added_columns}
        nowhere = [
            column
            for column in self.metrics
            if column.name in asked
            and self.totals[column.name] is None
            and not self.values(column.name).present().any()
        ]
        run = self._run
        if not nowhere:
            return ()  # Without reading what is known of GPUs.
        return tuple(
            f"{', '.join(each.name for each in group)} unavailable: {reason}"
            for reason, group in reasons(nowhere, run.table, run.hardware).items()
            if reason
        )

    @property
    def partial_totals(self) -> frozenset[str]:
        partial = self._coverage.partial_totals(self.metrics)
        return frozenset(name for name in partial if self.totals[name] is not None)

    def is_total_extrapolated(self, name: str) -> bool:
        """Only columns with rows that are extrapolated or missing have such a total."""
        values = self.values(name)
        masks = (each for each in (values.extrapolated, values.missing) if each is not None)
        if not any(each.any() for each in masks):
            return False
        _ = self.totals[name]
        return name in self._extrapolated


def names_of(
    view: View, default: Sequence[str], own: Collection[str] = (), *, has_nodes: bool = True
) -> tuple[str, ...]:
    """The columns of a view, and the one that its rows are sorted by, where it is one of them."""
    names, sort = view.columns or tuple(default), view.sort.removeprefix("-")
    if added := view.added_columns:
        chosen = (name for name in names if not name.startswith("+"))
        names = tuple(dict.fromkeys((*default, *chosen, *added)))
    is_known = sort in own or (has_nodes and not is_difference(sort))
    return (*names, sort) if is_known and sort not in ("", NAME, *names) else names


def has_activities(run: Run, level: str) -> bool:
    """Whether rows of a level are labels of activities, for which registered columns answer."""
    return (
        bool(len(run.table))
        and not run.table.is_sampled
        and (level in LEVELS or level == NODE or level in run.table.coordinates)
    )


def with_instances(names: Sequence[str]) -> tuple[str, ...]:
    return (*names[:2], INSTANCES, *(name for name in names[2:] if name != INSTANCES))


def _node_of(run: Run, view: View) -> Groups:
    """The activities of a view's node as one group."""
    if not len(run.table):
        return Groups.single(run.table, slice(0, 0))
    return run.tree_of(view).node(view.path)


def with_column_names(
    view: View, known: Sequence[Metric] = (), settings: Collection[str] = ()
) -> View:
    """The view with its columns by name, however they are written; settings name themselves."""

    own = {*settings, *(metric.name for metric in known)}

    def named(text: str) -> str:
        return text if text.lstrip("-+") in own else column_names([text], known)[0]

    return replace(view, columns=tuple(map(named, view.columns)), sort=named(view.sort))


def node_figures(run: Run, view: View, names: Iterable[str]) -> dict[str, Values]:
    """Figures of a view's node itself, one value each; raises NoSuchNode for an unknown node."""
    known = [metric_named(name, run.table, run.counter_info) for name in names]
    if not len(run.table):
        return {each.name: numbered([None]) for each in known}
    node = run.tree_of(view).node(view.path)
    columns = Columns(run, view, ViewResult(Partition("", [""], node, node), (), lambda row: view))
    return {each.name: columns.values(each.name) for each in known}
