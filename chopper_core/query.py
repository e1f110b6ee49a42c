"""From a run and a view to the frame that answers it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from chopper_core import address
from chopper_core.comparison import (
    DELTA,
    RELATIVE,
    SUM,
    aligned,
    delta_of,
    difference,
    each_with_difference,
    is_difference,
    matched,
    relative,
    relative_of,
    underlying,
    with_differences,
)
from chopper_core.counterparts import Side, counterparts
from chopper_core.errors import NoSuchNode, UsageError
from chopper_core.filter import Rows, matching
from chopper_core.frame import Frame
from chopper_core.metrics import METRICS, Metric, Scope, Values, default_columns, metric
from chopper_core.metrics.reasons import sentences
from chopper_core.metrics.time import INSTANCES
from chopper_core.pictures import Lanes, picked
from chopper_core.run import Run
from chopper_core.seen import seen_in
from chopper_core.statistic import Statistic, instance_levels, leaves_out_cut, statistic_of
from chopper_core.tracks import Track, mean_known
from chopper_core.tree import Groups
from chopper_core.view import View, beside, drill

if TYPE_CHECKING:
    from chopper_core.analyses import Answer

Index = NDArray[np.intp]

NAME = "name"
"""The column of the labels, for sorting."""
_KERNEL = "kernel"
_LONGEST_FIRST = ("operation", _KERNEL)


def query(run: Run, view: View) -> Frame:
    """The frame of a view; raises NoSuchNode or UsageError where the view doesn't fit the run."""
    if view.analysis:
        return _analysed(run, view)
    if view.baseline is not None:
        return _compared(run, view)
    if view.window:
        seen_in(run, view)
    tree = run.tree(view.order)
    parent = tree.node(view.path)
    track = run.track(view.metric)
    if view.is_leaf:
        labels: list[str] = [view.path[-1]]
        nodes = parent
    else:
        children = tree.children(view.path)
        labels, nodes = list(children.labels), children.groups
    scope = Scope(nodes, parent, run.origin_ns, run.hardware, run.measured)
    computed: dict[str, Values] = {}

    statistic = statistic_of(view, run.partial_iterations)

    def values(name: str) -> Values:
        if name not in computed:
            computed[name] = _column(name, run, statistic).compute(scope)
        return computed[name]

    columns = tuple(_column(name, run, statistic) for name in _names(run, view))
    mask = matching(Rows(view.level, labels, values), view.filter)
    shown = np.flatnonzero(mask)
    elapsed = metric("elapsed_ns", run.table).compute(scope).numbers.astype(np.int64)
    hidden_ns = 0 if mask.all() else int(elapsed[~mask].sum())
    sort = view.sort or ("-elapsed_ns" if view.level in _LONGEST_FIRST else "")
    shown = shown[_ordered(shown, view.level, labels, sort, values)]
    totals = Scope(parent, parent, run.origin_ns, run.hardware, run.measured)
    total = {column.name: column.compute(totals).at(0) for column in columns}
    nowhere = [
        column
        for column in columns
        if column.name in view.columns
        and total[column.name] is None
        and not values(column.name).present().any()
    ]
    shown_labels = [labels[row] for row in shown]
    return Frame(
        view=view,
        address=address.render(view),
        level=view.level,
        columns=columns,
        labels=shown_labels,
        values={column.name: values(column.name).take(shown) for column in columns},
        total=total,
        sort=sort,
        hidden=len(labels) - len(shown),
        hidden_ns=hidden_ns,
        parent_ns=int(metric("elapsed_ns", run.table).compute(totals).numbers[0]),
        elapsed_ns=elapsed[shown],
        notes=(
            *_notes(run, view, labels, len(shown), hidden_ns),
            *sentences(nowhere, run.table, run.hardware),
        ),
        opens=lambda row: view if view.is_leaf else drill(view, shown_labels[row]),
        track=track,
        means=_means(track, nodes, shown),
        over=instance_levels(view),
    )


def _analysed(run: Run, view: View) -> Frame:
    """The frame of an analysis: its answer, sorted, filtered, with the columns asked for."""
    from chopper_core import analyses

    answer = analyses.answer(run, view)
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
                f"the view {view.analysis} has no column {name!r}; it has {', '.join(own)}"
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
    shown = shown[_ordered(shown, answer.level, list(answer.labels), sort, values)]
    track = run.track(view.metric)
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
            *_statistic_note(view, over),
            *answer.notes,
            *_run_notes(run),
            *_filter_note(len(answer.labels), len(shown)),
        ),
        opens=lambda row: answer.opens(int(shown[row])),
        track=track,
        means=_no_means if nodes is None else _means(track, nodes, shown),
        sparks=nodes is not None,
        more=tuple(each for each, _ in answer.columns if each not in columns),
        headline=answer.headline,
        pictures=tuple(
            picked(each, shown.tolist()) if isinstance(each, Lanes) else each
            for each in answer.pictures
        ),
        over=over,
        by=answer.by,
    )


def _statistic_note(view: View, over: Sequence[str]) -> tuple[str, ...]:
    if not view.stat:
        return ()
    if not over:
        why = f"the view {view.analysis} works its figures out for each row as a whole"
        return (f"no {view.stat} here: {why}",)
    return (
        f"figures whose titles begin with {view.stat} are over the instances of a row, one per "
        f"{', '.join(over)}; the others and the sentences are of the whole row",
    )


def _searched(answer: Answer) -> list[str]:
    """The text of each row in which a filter looks for names: its label and its words."""
    texts = list(answer.labels)
    for _, values in answer.columns:
        if values.words is not None:
            texts = [f"{text}\n{values.cell(row) or ''}" for row, text in enumerate(texts)]
    return texts


def _no_means(rows: Index, bins: int) -> NDArray[np.float64]:
    return np.full((len(rows), bins), np.nan)


def _filter_note(rows: int, shown: int) -> tuple[str, ...]:
    return (f"{rows - shown} of {rows} rows hidden by the filter",) if shown < rows else ()


def _compared(run: Run, view: View) -> Frame:
    """The frame of a view with a baseline: rows of both, and what differs."""
    names = each_with_difference(view.columns) or with_differences(_names(run, view), view.level)
    statistic = statistic_of(view, run.partial_iterations)
    wanted = tuple(dict.fromkeys(underlying(name) for name in names))
    plain = replace(view, baseline=None, sort="", filter="", columns=wanted)
    ours = query(run, plain)
    other = run.beside(beside(view).run) if beside(view).run != view.run else run
    lacking = ""
    try:
        base = query(other, replace(beside(view), columns=wanted))
    except NoSuchNode as error:
        base, lacking = _nothing(ours, replace(beside(view), columns=wanted)), str(error)
    # Two activities are compared as what they are, whatever their numbers.
    leaves = view.is_leaf and base.view.is_leaf
    renamed = {} if leaves else _renamed((run, ours), (other, base))
    pairs = matched(ours.labels, ours.labels if leaves else base.labels, renamed)
    computed: dict[str, Values] = {}

    def values(name: str) -> Values:
        if name not in computed:
            known = _column(underlying(name), run, statistic)
            if known.name not in wanted:
                more = (known.name,)
                here = query(run, replace(ours.view, columns=more))
                there = replace(base.view, columns=more)
                beyond = _nothing(here, there) if lacking else query(other, there)
                sides = [each.values[known.name] for each in (here, beyond)]
            else:
                sides = [each.values[known.name] for each in (ours, base)]
            left = aligned(sides[0], pairs.ours)
            right = aligned(sides[1], pairs.base)
            if name == known.name:
                computed[name] = left
            elif name.endswith(RELATIVE):
                computed[name] = relative(left, right)
            else:
                computed[name] = difference(known, left, right)
        return computed[name]

    columns = tuple(_compared_column(name, run, statistic) for name in names)
    mask = matching(Rows(view.level, pairs.labels, values), view.filter)
    shown = np.flatnonzero(mask)
    elapsed = np.where(pairs.ours >= 0, ours.elapsed_ns[np.maximum(pairs.ours, 0)], 0)
    hidden_ns = int(elapsed[~mask].sum())
    time = names[0]
    sort = view.sort or (f"-{time}{DELTA}" if f"{time}{DELTA}" in names else "")
    shown = shown[_ordered(shown, view.level, list(pairs.labels), sort, values)]
    labels = [pairs.labels[row] for row in shown]
    partners = [pairs.partners[row] for row in shown]
    alone = (int((pairs.base < 0).sum()), int((pairs.ours < 0).sum()))
    notes = []
    if lacking:
        notes.append(f"the baseline has nothing at this place: {lacking}")
    elif steps := _other_steps((run, ours), (other, base)):
        notes.append(steps)
    for count, where in zip(alone, ("not in the baseline", "only in the baseline"), strict=True):
        if count and not lacking:
            notes.append(f"{count} row{' is' if count == 1 else 's are'} {where}")
    if renamed:
        notes.append(
            f"{len(renamed)} kernel{' has' if len(renamed) == 1 else 's have'} another name in the "
            "baseline, where the one before the arrow stands at the same places"
        )
    notes.append(f"the baseline is {address.render(beside(view))}")

    def opens(row: int) -> View:
        if pairs.ours[shown[row]] < 0:
            return base.opens(int(pairs.base[shown[row]]))
        return view if view.is_leaf else drill(view, labels[row], partners[row])

    def means(rows: Index, bins: int) -> NDArray[np.float64]:
        result = np.full((len(rows), bins), np.nan)
        places = pairs.ours[shown[rows]]
        result[places >= 0] = ours.means(places[places >= 0], bins)
        return result

    return replace(
        ours,
        view=view,
        address=address.render(view),
        columns=columns,
        labels=labels,
        values={name: values(name).take(shown) for name in names},
        total={name: _total_difference(name, ours, base) for name in names},
        sort=sort,
        hidden=len(pairs.labels) - len(shown),
        hidden_ns=hidden_ns,
        elapsed_ns=elapsed[shown],
        notes=(*notes, *_notes(run, view, pairs.labels, len(shown), hidden_ns)),
        opens=opens,
        means=means,
        partners=partners if renamed else (),
    )


def _nothing(frame: Frame, view: View) -> Frame:
    """The frame of a node that its run lacks: no rows, and no figure of a sum but 0."""
    none = np.zeros(0, np.intp)
    return replace(
        frame,
        view=view,
        labels=(),
        values={name: values.take(none) for name, values in frame.values.items()},
        total={known.name: 0 if known.reduces == SUM else None for known in frame.columns},
        elapsed_ns=np.zeros(0, np.int64),
    )


def _other_steps(ours: tuple[Run, Frame], base: tuple[Run, Frame]) -> str:
    """What is to be said where the two sides have not the same number of iterations."""
    steps = [
        len(run.tree(frame.view.order).split(frame.view.path, ("gpu", "iteration")))
        for run, frame in (ours, base)
    ]
    if steps[0] == steps[1]:
        return ""
    return (
        f"{steps[0]} iterations here, {steps[1]} in the baseline, counted on each GPU: sums differ "
        "by that; the view compare (8) sets one against one"
    )


def _renamed(ours: tuple[Run, Frame], base: tuple[Run, Frame]) -> dict[str, str]:
    """Kernels at the same places under other names: ours → the baseline's."""
    if any(frame.level != _KERNEL for _, frame in (ours, base)):
        return {}
    common = set(ours[1].labels) & set(base[1].labels)
    if any(len(common) == len(frame) for _, frame in (ours, base)):
        return {}
    sides = [
        Side(run.tree(frame.view.order).node(frame.view.path), dict(frame.view.scope).keys())
        for run, frame in (ours, base)
    ]
    return counterparts(sides[0], sides[1], common)


def _names(run: Run, view: View) -> tuple[str, ...]:
    """The columns of a view: those asked for, else the level's; a statistic says of how many."""
    if view.columns:
        return view.columns
    names = default_columns(view.level, run.table, run.hardware)
    return (*names[:2], INSTANCES, *names[2:]) if view.stat else names


def _column(name: str, run: Run, statistic: Statistic | None) -> Metric:
    known = metric(name, run.table, run.counter_info)
    return statistic.metric(known) if statistic else known


def _compared_column(name: str, run: Run, statistic: Statistic | None) -> Metric:
    known = _column(underlying(name), run, statistic)
    if not is_difference(name):
        return known
    return relative_of(known) if name.endswith(RELATIVE) else delta_of(known)


def _total_difference(name: str, ours: Frame, base: Frame) -> int | float | None:
    """The figure of both nodes themselves, from their totals."""
    left, right = (frame.total[underlying(name)] for frame in (ours, base))
    if not is_difference(name):
        return left
    if left is None or right is None:
        return None
    if name.endswith(RELATIVE):
        return 100.0 * (left - right) / right if right else None
    return left - right


def figures(run: Run, view: View, names: Iterable[str]) -> dict[str, Values]:
    """Figures of a view's node itself, one value each; raises NoSuchNode where there is none."""
    node = run.tree(view.order).node(view.path)
    scope = Scope(node, node, run.origin_ns, run.hardware, run.measured)
    return {name: metric(name, run.table, run.counter_info).compute(scope) for name in names}


def _ordered(
    shown: Index, level: str, labels: list[str], sort: str, values: Callable[[str], Values]
) -> Index:
    """The order of the rows; by name is the level's own order, but for operations and kernels."""
    if not sort:
        return np.arange(len(shown))
    descending, name = sort.startswith("-"), sort.removeprefix("-")
    if name == NAME:
        order = np.arange(len(shown))
        if level in _LONGEST_FIRST:
            order = np.array(sorted(order, key=lambda row: labels[int(shown[row])]), np.intp)
        return order[::-1] if descending else order
    column = values(name).take(shown)
    # What changed most, in either direction, is what a difference is sorted for.
    size = np.abs(column.numbers) if is_difference(name) else column.numbers
    numbers = -size if descending else size
    # Rows without a value come last in both directions.
    return np.lexsort((numbers, ~column.present()))


def _notes(
    run: Run, view: View, labels: Sequence[str], shown: int, hidden_ns: int
) -> tuple[str, ...]:
    notes = _run_notes(run)
    over = instance_levels(view)
    if view.stat:
        what = f"{view.stat} over the instances of a row, one per {', '.join(over)}"
        notes.insert(0, f"figures are the {what}; % is the share of the sum")
    if shown < len(labels):
        notes.append(
            f"{len(labels) - shown} of {len(labels)} rows hidden by the filter, with "
            f"{hidden_ns / 1e6:.3f} ms; total and share are of all rows"
        )
    spans_iterations = view.level == "iteration" or (view.stat and "iteration" in over)
    if spans_iterations or "iteration" in dict(view.scope):
        wanted = dict(view.scope).get("iteration")
        cut = sorted({number for numbers in run.partial_iterations.values() for number in numbers})
        cut = [number for number in cut if wanted in (None, str(number))]
        if cut:
            which = ", ".join(map(str, cut))
            left_out = "; it counts in % alone" if leaves_out_cut(view) else ""
            notes.append(f"the profiler's start or end cuts iteration {which}{left_out}")
    return tuple(notes)


def _run_notes(run: Run) -> list[str]:
    """What is to be said of everything that comes from a run."""
    notes = []
    if run.generated:
        notes.append(f"generated data, not measured (made by {run.generated})")
    damaged = sum(bool(source.losses) for source in run.sources)
    if damaged:
        notes.append(f"{damaged} of {len(run.sources)} files lost data; `chopper info` says what")
    if run.failed:
        files = f"{len(run.failed)} file{'s' if len(run.failed) > 1 else ''}"
        notes.append(f"{files} could not be used; `chopper info` says why")
    return notes


def _means(
    track: Track, nodes: Groups, shown: Index
) -> Callable[[Index, int], NDArray[np.float64]]:
    def means(rows: Index, bins: int) -> NDArray[np.float64]:
        result = np.full((len(rows), bins), np.nan)
        start, end = nodes.min("start_ns"), nodes.max("end_ns")
        for position, row in enumerate(shown[rows]):
            bounds = np.linspace(start[row], end[row], bins + 1)
            gpus = [gpu for gpu in nodes.gpus(int(row)) if gpu in track.curves]
            values = [track.curves[gpu].means(bounds) for gpu in gpus]
            if values:
                result[position] = mean_known(np.stack(values))
        return result

    return means
