"""The frames of a run of telemetry alone: views that need no trace answer from its samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.metrics import Values, numbered
from chopper_core.model import address
from chopper_core.model.run import Run
from chopper_core.model.signals import bounds_of
from chopper_core.model.view import View
from chopper_core.query.children import filter_note, ordered, run_notes
from chopper_core.query.filter import Rows, matching
from chopper_core.query.frame import Frame
from chopper_core.util.arrays import Float64, Index
from chopper_core.util.errors import NoSuchNode, NothingToShow, UsageError
from chopper_core.util.grouping import distinct
from chopper_core.views import OVERVIEW, VIEWS, view_module, view_spec
from chopper_core.views.shared.sampled_gpus import totals_of
from chopper_core.views.spec import ViewResult, splits_of

GPU: Final = "gpu"
OF_SAMPLES: Final = "of_samples"
"""The function of a view module that answers from telemetry alone."""
_CACHED_RESULTS: Final = 16


def sampled_frame(run: Run, view: View) -> Frame:
    """The frame of a view of a run without activities.

    The tree has one level, its GPUs. Raises NothingToShow for a view that needs a trace.
    """
    if view.path:
        level = view.order[len(view.path) - 1]
        raise NoSuchNode(f"no {level} here: the run has telemetry alone, no activities")
    result = sampled_result(run, view)
    own = {metric.name: (metric, values) for metric, values in result.columns}
    names = view.columns or result.shown or tuple(own)

    def column(name: str) -> Values:
        if name not in own:
            there = ", ".join(own) or "none"
            raise UsageError(f"no column {name!r} without a trace; there are {there}")
        return own[name][1]

    shown_values = {name: column(name) for name in names}
    mask = matching(
        Rows(
            result.level,
            result.labels,
            column,
            tuple(own),
            coordinates=run.table.coordinates,
        ),
        view.filter,
    )
    shown = np.flatnonzero(mask)
    sort = view.sort or result.sort
    labels = list(result.labels)
    shown = shown[ordered(shown, result.level, labels, sort, column)]
    signal = run.signal(view.signal)

    def means(rows: Index, bins: int) -> Float64:
        bounds = bounds_of(*run.sampled_ns, bins)
        found = np.full((len(rows), bins), np.nan)
        for place, row in enumerate(shown[rows].tolist()):
            gpu = int(labels[row]) if result.level == "gpu" else -1
            if gpu in signal.curves:
                found[place] = signal.curves[gpu].means(bounds)
        return found

    return Frame(
        view=view,
        address=address.render(view),
        level=result.level,
        columns=tuple(own[name][0] for name in names),
        labels=[labels[row] for row in shown.tolist()],
        values={name: values.take(shown) for name, values in shown_values.items()},
        total={name: result.total.get(name) for name in names},
        sort=sort,
        hidden=len(labels) - len(shown),
        hidden_ns=0,
        parent_ns=0,
        elapsed_ns=np.zeros(len(shown), np.int64),
        notes=(*result.notes, *run_notes(run, view), *filter_note(len(labels), len(shown))),
        target=lambda row: result.opens(int(shown[row])),
        signal=signal,
        means=means,
        sparks=result.level == "gpu",
        more=tuple(metric for metric, _ in result.columns if metric.name not in names),
        headline=result.headline,
        charts=result.charts,
    )


def sampled_result(run: Run, view: View) -> ViewResult:
    """The rows of a view from the samples alone, cached; raises as `sampled_frame`."""
    name = view.name or OVERVIEW
    answer = _answer_of(name)
    if answer is None:
        able = ", ".join(each for each in VIEWS if _answer_of(each) is not None)
        raise NothingToShow(
            f"the view {name} needs a trace, and this run has telemetry alone, which {able} show"
        )
    spec = view_spec(name)
    splits = splits_of(run, spec)
    if view.by and view.by not in splits:
        choices = f"takes by={', '.join(splits)}" if splits else "takes no by="
        raise UsageError(f"the view {name} {choices}, not {view.by!r}")
    plain = replace(view, sort="", filter="", columns=())
    found = run.memo(("view", plain), lambda: answer(run, plain), keep=_CACHED_RESULTS)
    if not view.by or view.by == found.level:
        return found
    if view.by not in run.table.coordinates or found.level != GPU:
        raise NothingToShow(f"by={view.by} needs a trace, and this run has telemetry alone")
    return _by_coordinate(run, view, found)


def _by_coordinate(run: Run, view: View, found: ViewResult) -> ViewResult:
    """The rows of GPUs by a coordinate: sums, extremes and means as in the total row."""
    codes = run.table.coordinates[view.by][[int(label) for label in found.labels]]
    parts = distinct(codes).tolist()
    labels = [run.table.text_of(view.by, code) for code in parts]
    own = [each for each in found.columns if each[1].words is None]
    members = [np.flatnonzero(codes == code) for code in parts]
    totals = [
        totals_of([(metric, values.take(rows)) for metric, values in own]) for rows in members
    ]
    columns = tuple(
        (
            replace(metric, definition=f"{metric.definition} Of the GPUs of the row together."),
            numbered([each.get(metric.name, np.nan) for each in totals]),
        )
        for metric, _ in own
    )
    gpus = replace(view, by=GPU, columns=(), sort="")
    return replace(
        found,
        level=view.by,
        labels=labels,
        columns=columns,
        shown=tuple(name for name in found.shown if any(m.name == name for m, _ in columns)),
        opens=lambda row: replace(gpus, filter=f"{view.by}:{labels[row]}"),
    )


def _answer_of(name: str) -> Callable[[Run, View], ViewResult] | None:
    return getattr(view_module(name), OF_SAMPLES, None)
