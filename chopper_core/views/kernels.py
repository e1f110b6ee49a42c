"""Kernels of a scope: which take its time, wherever they run, and how near the roof they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.analyses.base import Base, base_of, is_of_steps
from chopper_core.analyses.call_columns import shape_figures
from chopper_core.analyses.call_figures import (
    by_shape,
    kernels_of_shape,
    of_shape,
    shape_notes,
)
from chopper_core.analyses.kernel_figures import (
    COLUMNS,
    OF_SHAPES,
    columns_of_kernels,
    is_collective,
    known_figures,
    main_classes,
)
from chopper_core.analyses.rows import Own, Partition, by_level
from chopper_core.analyses.sides import sides_of
from chopper_core.columns import METRICS, Reduces, Values, worded
from chopper_core.columns.derived import delta_of, relative, relative_of
from chopper_core.model.charts import BarChart, Series
from chopper_core.model.groups import by_codes_of
from chopper_core.model.phrases import count, facts, percent
from chopper_core.model.run import Run
from chopper_core.model.units import time_text
from chopper_core.model.view import View
from chopper_core.util.grouping import sums_of
from chopper_core.views.shared.table_view import columns_of, table_view
from chopper_core.views.spec import ViewResult, ViewSpec
from chopper_core.work.kernel_classes import classes_of_names

SPEC: Final = ViewSpec(
    name="kernels",
    title="Kernels · by name",
    question="Which kernels take the scope's time, wherever they run?",
    by=("name", "class", "operation", "shape", "gpu"),
    of="a shape of by=shape, of which to show the kernels",
    second="comms",
    any_split=True,
    compares=True,
)


_MAX_TOP: Final = 5
_MAIN: Final = "main_operation"
_OF_DURATIONS: Final = "Δ is of kernel time, the sum of durations; 6 compares the time charged"


def answer(run: Run, view: View) -> ViewResult:
    by = view.by or "name"
    rows = _partition(run, view, by)
    classes = classes_of_names(run)
    words: dict[str, Values] = {}
    if by == "class":
        names = list(dict.fromkeys(classes))
        codes_of = np.array([names.index(word) for word in classes], np.int64)
        codes, nodes = by_codes_of(rows.whole, rows.nodes, "kernel", codes_of)
        rows = Partition("class", [names[code] for code in codes.tolist()], nodes, rows.whole)
    elif by == "name":
        if not view.of:
            words[_MAIN] = METRICS[_MAIN].compute(rows.scope(run))
        words["class"] = worded([classes[code] for code in rows.nodes.codes("kernel").tolist()])
    base, labels = base_of(run, view), rows.labels
    shown = columns_of_kernels(run, rows, words, "p95_ns")
    notes = [f"only activities of the shape {view.of}"] if view.of else []
    if by == "shape":
        words |= shape_figures(run, rows) | {"class": main_classes(run, rows)}
        shown = [*OF_SHAPES, *known_figures(rows.scope(run), ("roof_tflops", "roof_pct"))]
        notes += shape_notes(run, rows.whole, base)
    changes, missing = _changes(run, view, rows)
    headline = _headline(rows, "kernel" if by == "name" else by, base)
    if changes:
        shown = [shown[0], *(each.name for each, _ in changes[:2]), *shown[1:]]
        headline += (_OF_DURATIONS,)
        notes += missing
    charts = _by_class(rows, classes, base) if by in ("gpu", *run.table.coordinates) else ()
    named = replace(view, by="name", sort="", columns=())
    opens = {
        "class": lambda row: replace(named, filter=f"class:{labels[row]}"),
        "shape": lambda row: kernels_of_shape(view, labels[row]),
    }
    return table_view(
        view,
        rows,
        (*columns_of(words, COLUMNS), *changes),
        opens=opens.get(by),
        sort="-kernel_ns",
        shown=shown,
        headline=headline,
        notes=tuple(notes),
        charts=charts,
    )


def _changes(run: Run, view: View, rows: Partition) -> tuple[Own, list[str]]:
    """How the kernel time of the rows differs from the baseline's, in ns and %, and the time
    charged to them, in ns; and what has no row here."""
    if view.baseline is None or view.of or rows.level not in ("kernel", "operation"):
        return [], []
    both = sides_of(run, replace(view, name="compare", by=rows.level))
    figure, charged = METRICS["kernel_ns"], METRICS["elapsed_ns"]
    ours, base = both.values(figure)
    place = {label: at for at, label in enumerate(both.pairs.labels)}
    own = np.array([place[label] for label in rows.labels], np.intp)
    # On the base of the view already, which differs between the two runs.
    delta, delta_charged = (
        replace(delta_of(each), reduces=Reduces.NONE) for each in (figure, charged)
    )
    found = [
        (delta, both.difference(figure).take(own)),
        (relative_of(figure), relative(ours, base).take(own)),
        (delta_charged, both.difference(charged).take(own)),
    ]
    gone = int((both.pairs.ours < 0).sum())
    text = f"{count(gone, rows.level)} only in the baseline: 6 lists them"
    return found, [text] if gone else []


def _by_class(rows: Partition, classes: Sequence[str], base: Base) -> tuple[BarChart, ...]:
    """The kernel time of each row by class, as CharLLM-PPT stacks it for pipeline stages."""
    names = list(dict.fromkeys(classes))
    code_of = np.array([names.index(word) for word in classes], np.int64)
    table, size = rows.nodes.table, len(rows.labels) * len(names)
    times = np.zeros(size, np.int64)
    for own, row in rows.nodes.pieces():
        place = row * len(names) + code_of[table.kernel[own]]
        times += sums_of(table.duration_ns[own], place, size)
    each = times.reshape(-1, len(names)) / base.of_rows({rows.level: rows.labels})[:, None]
    order = [
        at for at in np.argsort(-each.sum(axis=0), kind="stable").tolist() if each[:, at].any()
    ]
    series = tuple(Series(names[at], each[:, at] / 1e6) for at in order)
    labels = tuple(f"{rows.level} {label}" for label in rows.labels)
    return (BarChart("kernel time by class", "ms", labels, series),) if series else ()


def _partition(run: Run, view: View, by: str) -> Partition:
    """The rows; those by class are kernels, to be put together."""
    if by == "shape":
        return by_shape(run, view)
    tree, level = run.tree_of(view), "kernel" if by in ("name", "class") else by
    if not view.of:
        return Partition.of(tree, view, level)
    return by_level(of_shape(run, tree.node(view.path), view.of), level)


def _headline(rows: Partition, one: str, base: Base) -> tuple[str, ...]:
    """The time of kernels, and how much of it the first rows and communication take."""
    # A row of a GPU or of a step has kernels of both kinds.
    of_gpus = is_of_steps(base.run, rows.level)
    is_comm = is_collective(rows.nodes) & (not of_gpus)
    kernel_ns = rows.nodes.sum("duration_ns")
    most, comm_ns = np.sort(kernel_ns)[::-1][:_MAX_TOP], int(kernel_ns[is_comm].sum())
    whole, has_others = int(kernel_ns.sum()), not is_comm.all()
    share = float(most.sum()) / max(whole, 1)
    kind = "kernels" if has_others else "communication"
    communication = time_text(base.each(comm_ns))
    return (
        facts(
            f"{time_text(base.each(whole))} of {kind}{base.words}",
            count(len(kernel_ns), one) if has_others and not of_gpus else "",
            f"{percent(share)} in the top {_MAX_TOP}" if len(kernel_ns) > _MAX_TOP else "",
            f"{communication} of it communication" if comm_ns and has_others else "",
        ),
    )
