"""The rows of the tree compared with those of a baseline: no row of either side is left out. Where
the baseline is one of the rows, all are compared with it.

Rows whose names differ are paired by what they do (`analyses/row_pairs.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.analyses.base import base_of, baseline_of, other_total
from chopper_core.analyses.row_pairs import RENAMED, Pairs, all_with, matched, renamed_labels
from chopper_core.analyses.same_work import Side
from chopper_core.columns import Metric, Reduces, Values, default_columns, numbered
from chopper_core.columns.derived import (
    DELTA,
    RELATIVE,
    delta_of,
    difference,
    is_difference,
    relative,
    relative_of,
    underlying,
)
from chopper_core.columns.filter import NAME, FilterRows, shown_of
from chopper_core.model import address
from chopper_core.model.attributes import TypedValue
from chopper_core.model.run import Run
from chopper_core.model.signals import Signal
from chopper_core.model.table import ACTIVITY
from chopper_core.model.view import View, enter
from chopper_core.util.arrays import Float64, Index
from chopper_core.util.errors import NoSuchNode
from chopper_core.views.frame import Frame, Number
from chopper_core.views.shared.children import children
from chopper_core.views.shared.row_columns import names_of, with_instances
from chopper_core.views.shared.run_notes import cut_note, notes_of

_WITH_DELTA: Final = (
    "kernels",
    "gfx_mhz",
    "exposed_comm_ns",
    "idle_ns",
    "compute_ns",
    "overlap_ns",
)
"""Default columns that are followed by their difference."""


def compared(run: Run, view: View) -> Frame:
    names = _names(run, view)
    wanted = tuple(dict.fromkeys(underlying(name) for name in names))
    ours = children(run, replace(view, baseline=None, sort="", filter="", columns=wanted))
    other, base_view = baseline_of(run, view)
    lacking, row = "", view.row_baseline

    def of_base(ours: Frame) -> Frame:
        asked = replace(base_view, columns=ours.view.columns)
        if lacking:
            return _without_rows(ours, asked)
        if row is not None:
            run.tree(view.order).node(base_view.path)
            return ours
        return children(other, asked)

    try:
        base = of_base(ours)
    except NoSuchNode as error:
        lacking = str(error)
        base = of_base(ours)
    # Two single activities are compared whatever their positions.
    leaves = view.is_leaf and base.view.is_leaf
    renamed = {}
    if row is None and ours.level == base.level and ours.level in RENAMED:
        sides = (Side(run, ours.view, ours.labels), Side(other, base.view, base.labels))
        renamed = renamed_labels(*sides, ours.level)
    if row is None:
        pairs = matched(ours.labels, ours.labels if leaves else base.labels, renamed)
    else:
        pairs = all_with(ours.labels, row)

    def frames(known: str) -> tuple[Frame, Frame]:
        """Both sides with a column, which may not be asked for."""
        if known in ours.values:
            return ours, base
        here = children(run, replace(ours.view, columns=(known,)))
        return here, of_base(here)

    def of_rows(known: str) -> tuple[Values, Values]:
        here, there = frames(known)
        return here.values[known], there.values[known]

    @cache
    def figure(name: str) -> tuple[Metric, Values]:
        known = underlying(name)
        here, _ = frames(known)
        metric = next(each for each in here.columns if each.name == known)
        sides = pairs.known(metric, of_rows, (run, other))
        return _compared(name, metric, *sides, (run, other))

    def values(name: str) -> Values:
        return figure(name)[1]

    columns = tuple(figure(name)[0] for name in names)
    along = run.table.coordinates
    rows = FilterRows(view.level, pairs.labels, values, columns=columns, coordinates=along)
    elapsed = np.where(pairs.ours >= 0, ours.elapsed_ns[np.maximum(pairs.ours, 0)], 0)
    counted = replace(ours, labels=pairs.labels).counted()
    time = names[0]
    sort = view.sort or (f"-{time}{DELTA}" if f"{time}{DELTA}" in names else "")
    shown = shown_of(rows, view.filter, sort, counted)
    hidden_ns = float(elapsed[~shown.mask & counted].sum())
    labels, at_ours, at_base = shown.labels, pairs.ours[shown.at], pairs.base[shown.at]
    partners = [pairs.partners[row] for row in shown.at]
    if lacking:
        notes = [f"the baseline lacks this node: {lacking}"]
    elif row is not None:
        notes = []
    else:
        bases = base_of(run, ours.view), base_of(other, base_view)
        notes = [*other_total(*bases), *_row_notes(pairs, len(renamed), ours.level)]
    notes.append(f"the baseline is {address.render(base_view)}")
    if other is not run and not lacking:
        notes += cut_note(other, base_view, "of the baseline")

    def target(row: int) -> View:
        if at_ours[row] < 0:
            return base.target(int(at_base[row]))
        return view if view.is_leaf else enter(view, labels[row], partners[row])

    def attributes(row: int) -> Mapping[str, TypedValue]:
        of, places = (ours, at_ours) if at_ours[row] >= 0 else (base, at_base)
        return of.attributes(int(places[row]))

    def means(rows: Index, bins: int, of: Signal = ours.signal) -> Float64:
        result = np.full((len(rows), bins), np.nan)
        places = at_ours[rows]
        result[places >= 0] = ours.means(places[places >= 0], bins, of)
        return result

    return replace(
        ours,
        view=view,
        columns=columns,
        labels=labels,
        values=shown.values(columns),
        total_title=base_of(run, ours.view).total_title(ours.level, pairs.labels),
        total={each.name: _total(each, ours, base, (run, other)) for each in columns},
        sort=sort,
        hidden=shown.hidden,
        hidden_ns=hidden_ns,
        elapsed_ns=elapsed[shown.at],
        notes=(
            *shown.hint,
            *notes,
            *notes_of(run, view, len(pairs.labels), shown.hidden, hidden_ns),
        ),
        attributes=attributes,
        target=target,
        means=means,
        partners=partners if renamed else (),
    )


def _names(run: Run, view: View) -> tuple[str, ...]:
    """The chosen columns, each followed by its difference unless one is chosen, or the default."""
    if any(map(is_difference, view.columns)):
        names = view.columns
    elif view.columns:
        names = tuple(part for name in view.columns for part in (name, f"{name}{DELTA}"))
    else:
        default = names_of(view, default_columns(view.level, run.table, run.hardware))
        names = _with_differences(with_instances(default) if view.stat else default, view.level)
    sort = view.sort.removeprefix("-")
    return names if sort in ("", NAME, *names) else (*names, sort)


def _without_rows(frame: Frame, view: View) -> Frame:
    """The frame of a node that its run lacks: no rows, sums of 0, no other totals."""
    none = np.zeros(0, np.intp)
    return replace(
        frame,
        view=view,
        labels=(),
        values={name: values.take(none) for name, values in frame.values.items()},
        total={known.name: 0 if known.reduces == Reduces.SUM else None for known in frame.columns},
        elapsed_ns=np.zeros(0),
    )


def _row_notes(pairs: Pairs, renamed: int, level: str) -> list[str]:
    counts = {
        "new, not in the baseline": int((pairs.base < 0).sum()),
        "removed, only in the baseline": int((pairs.ours < 0).sum()),
    }
    notes = [f"{n} row{' is' if n == 1 else 's are'} {kind}" for kind, n in counts.items() if n]
    if renamed:
        notes.append(
            f"{renamed} {level}{' has' if renamed == 1 else 's have'} another name in the "
            "baseline, shown before the arrow"
        )
    return notes


def _compared(
    name: str, metric: Metric, ours: Values, base: Values, runs: Sequence[Run]
) -> tuple[Metric, Values]:
    if name.endswith(RELATIVE):
        return relative_of(metric), relative(ours, base)
    if name.endswith(DELTA):
        return delta_of(metric), difference(metric, ours, base, runs)
    return metric, ours


def _total(column: Metric, ours: Frame, base: Frame, runs: Sequence[Run]) -> Number | None:
    known = underlying(column.name)
    left, right = (frame.total[known] for frame in (ours, base))
    if not is_difference(column.name):
        return left
    if base is ours:
        return None  # The differences from one of the rows add up to nothing.
    metric = next(each for each in ours.columns if each.name == known)
    return _compared(column.name, metric, numbered([left]), numbered([right]), runs)[1].at(0)


def _with_differences(names: Sequence[str], level: str) -> tuple[str, ...]:
    first = "kernel_ns" if level == ACTIVITY else "elapsed_ns"
    rest = [name for name in names if name != first]
    compared = [name for name in rest if name in _WITH_DELTA]
    others = [name for name in rest if name not in _WITH_DELTA]
    pairs = [part for name in compared for part in (name, f"{name}{DELTA}")]
    return (first, f"{first}{DELTA}", f"{first}{RELATIVE}", *pairs, *others)
