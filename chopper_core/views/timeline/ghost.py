"""The baseline's lanes beneath those of a timeline, aligned by the order of kernels.

Activities of both are matched by name and occurrence within their node: the third GEMM here is the
third GEMM there. The baseline is moved so that the first matched activity of the window starts with
its counterpart; how much later or earlier the last one starts is the drift within the window.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.charts import Ghost
from chopper_core.model.run import Run
from chopper_core.model.table import KernelTable
from chopper_core.model.view import Interval, View, baseline_view
from chopper_core.util.arrays import Index, Int64
from chopper_core.util.errors import NoSuchNode
from chopper_core.util.grouping import run_starts, stable_order
from chopper_core.views.timeline.chart import cells_of
from chopper_core.views.timeline.lanes import Lane, lanes_of

MAX_MATCHED: Final = 1 << 22
"""Activities of a node up to which they are matched."""
_CACHED: Final = 64


class Matched(Struct, frozen=True, eq=False):
    """The starts of matched activities of two GPUs, in the order of this one's."""

    own_ns: Int64
    base_ns: Int64


class Ghosts(Struct, frozen=True):
    """The node that a timeline is compared with."""

    run: Run
    view: View
    base_run: Run
    base: View

    @classmethod
    def of(cls, run: Run, view: View) -> Ghosts | None:
        """Those of a view; None without a baseline that the run of it has."""
        if view.baseline is None:
            return None
        base = replace(baseline_view(view), name="", by="", of="")
        base_run = run.baseline_run(view.baseline.run) if view.baseline.run else run
        try:
            size = int(base_run.tree(base.order).node(base.path).sizes()[0])
        except NoSuchNode:
            return None
        return cls(run, view, base_run, base) if size <= MAX_MATCHED else None

    def of_lane(self, lane: Lane, seen: Interval, bins: int) -> Ghost | None:
        """The baseline's lane beneath a lane; None where it has none, or nothing matches."""
        found = self._counterpart(lane)
        if found is None:
            return None
        pairs = self._matched(lane.gpu, found.gpu)
        begin, end = self.run.origin_ns + seen.from_ns, self.run.origin_ns + seen.to_ns
        first = int(np.searchsorted(pairs.own_ns, begin, "left"))
        last = int(np.searchsorted(pairs.own_ns, end, "left")) - 1
        if last < first:
            return None
        apart = pairs.own_ns - pairs.base_ns
        shift = int(apart[first])
        cells = cells_of(self.base_run, found, begin - shift, end - shift, bins)
        return Ghost(self._title, cells, int(apart[last]) - shift)

    @property
    def _title(self) -> str:
        """The baseline in a word or two: its run, or the levels in which it differs."""
        name = self.view.baseline.run if self.view.baseline is not None else ""
        own = dict(self.view.scope)
        steps = [f"{level} {label}" for level, label in self.base.scope if own.get(level) != label]
        return " ".join([*([PurePath(name.rstrip("/")).name] if name else []), *steps])

    def _counterpart(self, lane: Lane) -> Lane | None:
        """The lane of the same place on the baseline's GPU."""
        scope = dict(self.base.scope)
        gpu = int(scope["gpu"]) if "gpu" in scope and "gpu" in dict(self.view.scope) else lane.gpu
        if gpu not in {each.index for each in self.base_run.gpus}:
            return None
        own = [each.stream for each in lanes_of(self.run, lane.gpu)]
        lanes = lanes_of(self.base_run, gpu, whole=lane.stream is None)
        if lane.stream is None:
            return lanes[0]
        # Streams have other numbers in another run: they are the same by their order.
        place = own.index(lane.stream)
        named = [each for each in lanes if each.stream == lane.stream]
        return named[0] if named else lanes[place] if place < len(lanes) else None

    def _matched(self, gpu: int, base_gpu: int) -> Matched:
        key = ("timeline ghosts", self.view.order, self.view.path, self.view.baseline, gpu)

        def found() -> Matched:
            base_names = {name: code for code, name in enumerate(self.base_run.table.names)}
            codes = [base_names.get(name, -1) for name in self.run.table.names]
            own = _occurrences(self.run, self.view, gpu, np.array(codes, np.int64))
            base = _occurrences(self.base_run, self.base, base_gpu, None)
            _, here, there = np.intersect1d(own[0], base[0], True, return_indices=True)
            order = np.argsort(own[1][here], kind="stable")
            return Matched(own[1][here][order], base[1][there][order])

        return self.run.memo(key, found, _CACHED)


def _occurrences(run: Run, view: View, gpu: int, codes: Int64 | None) -> tuple[Int64, Int64]:
    """(name and number, start) of a node's activities on a GPU; names by their code, or mapped.

    Activities whose name isn't mapped are left out.
    """
    table: KernelTable = run.table
    rows: Index = run.tree(view.order).node(view.path).rows
    rows = rows[table.gpu[rows] == gpu]
    rows = rows[np.argsort(table.start_ns[rows], kind="stable")]
    names = table.kernel[rows].astype(np.int64)
    if codes is not None:
        names = codes[names]
        rows, names = rows[names >= 0], names[names >= 0]
    order = stable_order(names)
    first = run_starts(names[order])
    counts = np.diff(np.append(first, len(order)))
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.arange(len(order)) - np.repeat(first, counts)
    return (names << 32) | numbers, table.start_ns[rows].astype(np.int64)
