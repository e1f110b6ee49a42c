"""Rows by the shape of the call that launched an activity: their work, rates and roofs as columns.

A call's FLOPs lie on its main kernels, so that rates are over their durations. docs/shapes.md
defines FLOPs and bytes by operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.analyses.base import Base
from chopper_core.analyses.rows import Partition, by_level
from chopper_core.columns import Values, worded
from chopper_core.model.column_names import (
    CALL_SHAPE,
    MODULES,
    REQUESTS,
)
from chopper_core.model.groups import Groups, by_codes_of
from chopper_core.model.run import Run
from chopper_core.model.shapes import CallShape
from chopper_core.model.table import (
    NO_LABEL_TEXT,
    KernelTable,
    Selection,
    SplitCodes,
    add_split,
    whole_codes,
)
from chopper_core.model.units import time_text
from chopper_core.model.view import View
from chopper_core.util.arrays import Index, Int32
from chopper_core.util.errors import NothingToShow, UsageError
from chopper_core.util.grouping import combined, maxima_of, ranked, sums_of
from chopper_core.work.kernel_classes import FUSED, kernel_class, kernel_classes

LEVEL: Final = "shape"
NO_SHAPE: Final = "no shape: "
"""How the rows of activities without a shape begin; their class follows."""
_MAX_NAMED: Final = 3


class ShapeLabels(Struct, frozen=True, eq=False):
    """The labels of a run's activities by shape: texts, and a code for each shape and kernel."""

    shapes: Mapping[str, CallShape | None]
    """The shape of each text, None for activities without one."""
    of_shape: Int32
    """Position among the texts of each of the table's shapes."""
    of_kernel: Int32
    """The same of each kernel name, for its activities without a shape."""

    @classmethod
    def of(cls, table: KernelTable) -> ShapeLabels:
        given: list[tuple[str, CallShape | None]] = [(each.label, each) for each in table.shapes]
        given += [(_without_shape(name), None) for name in table.names]
        shapes: dict[str, CallShape | None] = {}
        for text, shape in given:
            shapes.setdefault(text, shape)
        places = {text: place for place, text in enumerate(shapes)}
        codes = np.array([places[text] for text, _ in given], np.int32)
        return cls(shapes, codes[: len(table.shapes)], codes[len(table.shapes) :])

    def codes(self, table: KernelTable, rows: Selection) -> Int32:
        """The label of each activity, a position among the texts."""
        codes = self.of_kernel[table.kernel[rows]]
        given = table.measured.get(CALL_SHAPE)
        if given is not None:
            own = given[rows]
            has = np.isfinite(own)
            codes[has] = self.of_shape[own[has].astype(np.intp)]
        return codes


def labels_of_shapes(run: Run) -> ShapeLabels:
    """The labels of a run by shape, made once."""
    return run.memo(("shape labels",), lambda: ShapeLabels.of(run.table))


def _without_shape(kernel: str) -> str:
    """The label of a kernel's activities without a shape: what it fuses, else its class."""
    fused = FUSED.match(kernel)
    if fused and fused["operators"].strip("_"):
        return f"triton {fused['kind']} {fused['operators'].strip('_')}"
    return NO_SHAPE + kernel_class(kernel)


def most_in(parts: Groups, level: str, row: Index, count: int) -> Values:
    """The label at a level of the part of each row with the most time, and the number of others.

    `row` is the row that each part belongs to.
    """
    labels: list[list[str]] = [[] for _ in range(count)]
    names = parts.labels(level)
    for place in np.argsort(-parts.sum("duration_ns"), kind="stable").tolist():
        labels[row[place]].append(names[place])
    return worded(
        [
            None if own[0] == NO_LABEL_TEXT else own[0] + (f" +{len(own) - 1}" if own[1:] else "")
            for own in labels
        ]
    )


def by_shape(run: Run, view: View) -> Partition:
    """The rows of a view by shape; those of one shape where it names one (`of=`)."""
    tree = run.tree_of(view)
    whole = tree.node(view.path)
    if view.of:
        return by_level(of_shape(run, whole, view.of), LEVEL)
    if CALL_SHAPE in run.table.measured:
        nodes = tree.split(view.path, (LEVEL,))
        return Partition(LEVEL, nodes.labels(LEVEL), nodes, whole)
    kernels = tree.split(view.path, ("kernel",))
    codes, nodes = by_codes_of(whole, kernels, "kernel", labels_of_shapes(run).of_kernel)
    texts = list(labels_of_shapes(run).shapes)
    return Partition(LEVEL, [texts[code] for code in codes.tolist()], nodes, whole)


def of_shape(run: Run, whole: Groups, label: str) -> Groups:
    """A group's activities of one shape; raises NothingToShow where it has none, UsageError for
    a shape that the run hasn't."""
    code = run.table.code_of(LEVEL, label)
    if code is None:
        raise UsageError(f"unknown shape {label!r}; view=kernels&by=shape lists the shapes")
    own = whole.selection
    places = np.flatnonzero(run.table.column(LEVEL)[own] == code)
    rows = places + own.start if isinstance(own, slice) else own[places]
    if not len(rows):
        raise NothingToShow(
            f"no activity of the shape {label!r} here; view=kernels&by=shape lists the shapes"
        )
    return Groups.single(run.table, rows)


def kernels_of_shape(view: View, label: str) -> View:
    return replace(view, name="kernels", by="name", of=label, sort="", filter="", columns=())


def shape_notes(run: Run, whole: Groups, base: Base) -> tuple[str, ...]:
    if CALL_SHAPE not in run.table.measured:
        return (
            "the trace has no shapes (record_shapes=True in the profiler records them): "
            "no row is modelled",
        )
    labels = labels_of_shapes(run)
    time_ns = np.zeros(len(labels.shapes))
    for rows, _ in whole.pieces():
        codes = labels.codes(run.table, rows)
        time_ns += sums_of(run.table.duration_ns[rows], codes, len(time_ns))
    rest = [
        (time, label.removeprefix(NO_SHAPE))
        for label, time in zip(labels.shapes, time_ns.tolist(), strict=True)
        if label.startswith(NO_SHAPE) and time
    ]
    if not rest:
        return ()
    without = sum(time for time, _ in rest)
    largest = sorted(rest, reverse=True)[:_MAX_NAMED]
    named = ", ".join(f"{name} {time_text(base.each(time))}" for time, name in largest)
    return (
        f"{100 * without / max(time_ns.sum(), 1):.1f} % of kernel time "
        f"({time_text(base.each(without))}) has no model: {named}"
        f"{' …' if len(rest) > len(largest) else ''}",
    )


@add_split("class")
def _classes(table: KernelTable) -> SplitCodes:
    words: dict[str, int] = {}
    of_name = [words.setdefault(each, len(words)) for each in kernel_classes(table.names)]
    return np.array(of_name, np.int32)[table.kernel], tuple(words)


@add_split("batch")
def _batches(table: KernelTable) -> SplitCodes:
    """The requests of each activity's inference step, from the engine's annotation."""
    codes = np.full(len(table), -1, np.int64)
    if REQUESTS not in table.measured:
        return codes, ()
    requests = table.measured[REQUESTS]
    step = combined([table.gpu, table.iteration])[1]
    known = np.isfinite(requests) & (table.iteration >= 0)
    size = maxima_of(requests[known].astype(np.int64), step[known], int(step.max()) + 1, -1)[step]
    sizes, place = ranked(size[size >= 0])
    codes[size >= 0] = place
    return codes, [str(each) for each in sizes.tolist()]


@add_split("module")
def _modules(table: KernelTable) -> SplitCodes:
    if MODULES not in table.measured:
        return np.full(len(table), -1, np.int64), ()
    used, place = ranked(whole_codes(table.measured[MODULES]))
    lacks = int((used[:1] < 0).sum())
    texts = [table.names[code] for code in used[lacks:].tolist()]
    return (place - lacks).astype(np.int64), texts


@add_split("shape")
def _shapes(table: KernelTable) -> SplitCodes:
    labels = ShapeLabels.of(table)
    return labels.codes(table, slice(None)), tuple(labels.shapes)
