"""Figures that cover only some GPUs of a row: counters of 2 of 8 GPUs, telemetry of one node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.metrics import Metric, Values
from chopper_core.metrics.metric import Theme
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.view import View

_MAX_SEARCHED: Final = 1 << 22
"""Activities whose GPUs are looked up row by row; rows of more are taken to span the scope."""
_MAX_NAMED: Final = 4


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
        if found is None or "gpu" in dict(self.view.scope):
            return None
        covered = frozenset(found)
        return None if self._scope <= covered else covered

    def marked(self, metric: Metric, values: Values) -> Values:
        """The values, marked where they cover only some GPUs of their row."""
        covered = None if self.level == "gpu" else self.covered(metric)
        if covered is None:
            return values
        lacks = np.array([not gpus <= covered for gpus in self._rows], np.bool_)
        return replace(values, partial=lacks & values.present())

    def partial_totals(self, columns: Sequence[Metric]) -> frozenset[str]:
        """The columns whose total covers only some GPUs of the scope."""
        return frozenset(each.name for each in columns if self.covered(each) is not None)

    def notes(self, columns: Sequence[Metric]) -> tuple[str, ...]:
        """A note per source that covers only some GPUs, as `*` marks its figures."""
        said: dict[tuple[Theme, frozenset[int]], None] = {}
        for each in columns:
            if (covered := self.covered(each)) is not None:
                said[each.theme, covered & self._scope] = None
        return tuple(
            f"* {theme.value} of {len(gpus)} of {len(self._scope)} GPUs only{_named(gpus)}"
            for theme, gpus in said
        )


def _named(gpus: frozenset[int]) -> str:
    return f": {', '.join(map(str, sorted(gpus)))}" if 0 < len(gpus) <= _MAX_NAMED else ""
