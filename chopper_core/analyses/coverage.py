"""Which GPUs a figure covers: counters may cover 2 of 8 GPUs, telemetry one node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.analyses.base import Base, divided
from chopper_core.columns import Metric, Scope, Values
from chopper_core.columns.metric import Theme
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.view import View

_MAX_SEARCHED: Final = 1 << 22
"""Activities whose GPUs are looked up row by row; rows of more are taken to span the scope."""
_MAX_NAMED: Final = 4


def values_on_base(
    metric: Metric, base: Base, view: View, scope: Scope, named: Mapping[str, Sequence[str]]
) -> Values:
    """A metric of nodes on the base of a view; one that adds up is per step and GPU of those that
    have it. `named` are the labels of the nodes by level."""
    values = metric.compute(scope)
    if not metric.adds_up:
        return values
    gpus = Coverage(base.run, view, "", scope.nodes, scope.parent).covered(metric)
    return divided(values, base.of_rows(named, gpus, metric.reduces))


class Coverage(Struct, frozen=True, dict=True):
    """The GPUs of the rows of a view and of its node, where these are several."""

    run: Run
    view: View
    level: str
    nodes: Groups
    whole: Groups

    @cached_property
    def _scope(self) -> frozenset[int]:
        return frozenset(self.whole.gpus(0))

    @cached_property
    def _rows(self) -> Sequence[frozenset[int]]:
        nodes = self.nodes
        if nodes.has_gpus or int(nodes.sizes().sum()) <= _MAX_SEARCHED:
            return [frozenset(nodes.gpus(row)) for row in range(len(nodes))]
        return [self._scope] * len(nodes)

    def covered(self, metric: Metric) -> frozenset[int] | None:
        """The GPUs that the metric's source covers; None where it covers the scope."""
        run = self.run
        found: Iterable[int] | None = None
        if metric.theme is Theme.COUNTERS and run.counters:
            found = {source.gpu for source in run.counters}
        elif metric.theme is Theme.TELEMETRY and metric.name in run.measured:
            found = run.measured[metric.name].curves
        elif metric.theme is Theme.BREAKDOWN and len(self._scope) > 1:
            found = self._gpus_with(metric)
        if not found or "gpu" in dict(self.view.scope):
            return None
        covered = frozenset(found)
        return None if self._scope <= covered else covered

    def _gpus_with(self, metric: Metric) -> list[int]:
        run, view = self.run, self.view
        by_gpu = run.tree_of(view).split(view.path, ("gpu",))
        scope = Scope.of(run, by_gpu, self.whole)
        return [int(gpu) for gpu in by_gpu.codes("gpu")[metric.compute(scope).present()]]

    def marked(self, metric: Metric, values: Values) -> Values:
        covered = None if self.level == "gpu" else self.covered(metric)
        if covered is None:
            return values
        lacks = np.array([not gpus <= covered for gpus in self._rows], np.bool_)
        return replace(values, partial=lacks & values.present())

    def partial_totals(self, columns: Sequence[Metric]) -> frozenset[str]:
        return frozenset(each.name for each in columns if self.covered(each) is not None)

    @property
    def gpus(self) -> int:
        return len(self._scope)

    def notes(self, columns: Sequence[Metric]) -> tuple[str, ...]:
        coverage: dict[tuple[Theme, frozenset[int]], None] = {}
        for each in columns:
            if (covered := self.covered(each)) is not None:
                coverage[each.theme, covered & self._scope] = None
        return tuple(
            f"* {theme.value} of {len(gpus)} of {len(self._scope)} GPUs only{_named(gpus)}"
            for theme, gpus in coverage
        )


def _named(gpus: frozenset[int]) -> str:
    return f": {', '.join(map(str, sorted(gpus)))}" if 0 < len(gpus) <= _MAX_NAMED else ""
