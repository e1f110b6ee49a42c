"""The rows of a screen: what an analysis answers, sorted, filtered, with the columns asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_core.metrics import METRICS, Metric, Scope, Values, metric
from chopper_core.metrics.time import INSTANCES
from chopper_core.model import address
from chopper_core.model.charts import Lanes, picked
from chopper_core.model.run import Run
from chopper_core.model.view import View
from chopper_core.query.filter import Rows, matching
from chopper_core.query.frame import Frame
from chopper_core.query.notes import filter_note, run_notes, statistic_note
from chopper_core.query.rows import means_of, ordered
from chopper_core.query.statistic import instance_levels, statistic_of
from chopper_core.util.arrays import Float64, Index
from chopper_core.util.errors import UsageError

if TYPE_CHECKING:
    from chopper_core.views import ViewResult


def answered(run: Run, view: View) -> Frame:
    """The frame of an analysis: its answer, sorted, filtered, with the columns asked for."""

    from chopper_core import views

    answer = views.answer(run, view)
    parent = run.tree(view.order).node(view.path)
    own = {column.name: (column, values) for column, values in answer.columns}
    nodes = answer.nodes
    scope = (
        None if nodes is None else Scope(nodes, parent, run.origin_ns, run.hardware, run.measured)
    )
    whole = Scope(parent, parent, run.origin_ns, run.hardware, run.measured)
    # Figures of the registry are those of the rows' activities; others are the answer's own.
    registered = (name for name, (each, _) in own.items() if METRICS.get(name) is each)
    general = frozenset() if nodes is None else frozenset(registered)
    names = view.columns or answer.shown or tuple(own)
    over = instance_levels(view, answer.level)
    if nodes is None or not any(name in general or name not in own for name in names):
        over = ()
    statistic = statistic_of(view, run.partial_iterations, answer.level) if over else None
    over = answer.over or over
    if statistic and not view.columns:
        names = (*names[:2], INSTANCES, *names[2:])
    computed = {
        name: values
        for name, (_, values) in own.items()
        if statistic is None or name not in general
    }

    def known(name: str) -> Metric:
        if name in own:
            found = own[name][0]
        elif scope is None:
            raise UsageError(
                f"the view {view.name} has no column {name!r}; it has {', '.join(own)}"
            )
        else:
            found = metric(name, run.table, run.counter_info)
        is_own = name in own and name not in general
        return found if statistic is None or is_own else statistic.metric(found)

    def values(name: str) -> Values:
        if name not in computed:
            found = known(name)
            assert scope is not None
            computed[name] = found.compute(scope)
        return computed[name]

    columns = tuple(known(name) for name in names)
    total: dict[str, int | float | None] = {}
    answered = frozenset(computed)
    for column in columns:
        if column.name in answered:
            total[column.name] = answer.total.get(column.name)
        else:
            total[column.name] = column.compute(whole).at(0)
    texts = _searched(answer) if view.filter else answer.labels
    mask = matching(Rows(answer.level, answer.labels, values, tuple(own), texts), view.filter)
    shown = np.flatnonzero(mask)
    sort = view.sort or answer.sort
    shown = shown[ordered(shown, answer.level, list(answer.labels), sort, values)]
    signal = run.signal(view.signal)
    return Frame(
        view=view,
        address=address.render(view),
        level=answer.level,
        columns=columns,
        labels=[answer.labels[row] for row in shown.tolist()],
        values={column.name: values(column.name).take(shown) for column in columns},
        total=total,
        sort=sort,
        hidden=len(answer.labels) - len(shown),
        hidden_ns=0,
        parent_ns=0,
        elapsed_ns=np.zeros(len(shown), np.int64),
        notes=(
            *statistic_note(view, over),
            *answer.notes,
            *run_notes(run),
            *filter_note(len(answer.labels), len(shown)),
        ),
        opens=lambda row: answer.opens(int(shown[row])),
        signal=signal,
        means=_no_means if nodes is None else means_of(signal, nodes, shown),
        sparks=nodes is not None,
        more=tuple(each for each, _ in answer.columns if each not in columns),
        headline=answer.headline,
        charts=tuple(
            picked(each, shown.tolist()) if isinstance(each, Lanes) else each
            for each in answer.charts
        ),
        over=over,
        by=answer.by,
    )


def _searched(answer: ViewResult) -> list[str]:
    """The text of each row in which a filter looks for names: its label and its words."""
    texts = list(answer.labels)
    for _, values in answer.columns:
        if values.words is not None:
            texts = [f"{text}\n{values.cell(row) or ''}" for row, text in enumerate(texts)]
    return texts


def _no_means(rows: Index, bins: int) -> Float64:
    return np.full((len(rows), bins), np.nan)
