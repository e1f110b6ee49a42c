"""The rows of the tree compared with those of a baseline: no row of either side is left out.

Kernels that run at the same place in two runs under different names are one row. The place of an
activity is its operation and layer, the number of kernels before it there that both runs have by
name, and its distance from the last of those. Two names that only one side has are the same kernel
renamed if they share at least half of their places; the closest pair first, each name once. Phase,
layer and operation count only where the compared nodes don't fix them. Operations are paired by the
common ones around them in their phase and layer, as two frameworks name the same work otherwise:
those that are alone there, else the n-th of the same class of kernels. Those that stand elsewhere
are paired by their kernels (`same_work`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Final, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.analyses.base import base_of, baseline_of, other_total
from chopper_core.analyses.same_work import MIN_SHARED, Side, same_work, sampled_rows
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
from chopper_core.model.table import ACTIVITY, NO_LABEL
from chopper_core.model.view import View, enter
from chopper_core.util.arrays import Float64, Index, Int64
from chopper_core.util.errors import NoSuchNode
from chopper_core.util.grouping import combined, counts_of, distinct, nth_of, run_mask, run_starts
from chopper_core.views.frame import Frame, Number
from chopper_core.views.shared.children import (
    children,
    cut_note,
    names_of,
    notes_of,
    with_instances,
)
from chopper_core.work.kernel_classes import kernel_class

_RENAMED: Final = {"kernel": ("phase", "layer", "operation"), "operation": ("phase", "layer")}
"""Levels whose labels are paired by their place, and the parts of a place."""
_STEP: Final = ("gpu", "iteration")
_WITH_DELTA: Final = (
    "kernels",
    "gfx_mhz",
    "exposed_comm_ns",
    "idle_ns",
    "compute_ns",
    "overlap_ns",
)
"""Default columns that are followed by their difference."""


class Pairs(Struct, frozen=True):
    """The rows of a view and of its baseline, matched by their labels.

    `labels` are ours in their order, then those that only the baseline has. `ours` and `base` are
    the positions of each pair among the rows of its side, -1 for a row that the side lacks.
    """

    labels: tuple[str, ...]
    ours: Index
    base: Index
    partners: tuple[str, ...]
    """The label of a row in the baseline, where it differs; else empty."""
    instead: Mapping[str, str] = {}
    """By label, what below a row only one side has."""

    def aligned(self, ours: Values, base: Values) -> tuple[Values, Values]:
        """The values of both sides in the order of pairs; missing for rows that a side lacks."""
        found = []
        for values, places in ((ours, self.ours), (base, self.base)):
            if len(values):
                taken = values.take(np.maximum(places, 0))
                missing = ~taken.present() | (places < 0)
                found.append(Values(taken.numbers, missing, taken.extrapolated))
            else:
                found.append(Values(np.full(len(places), np.nan)))
        return found[0], found[1]


def matched(ours: Sequence[str], base: Sequence[str], renamed: Mapping[str, str]) -> Pairs:
    """Pairs of rows with the same label, or renamed: our label → the baseline's."""
    theirs = [renamed.get(label, label) for label in ours]
    places = {label: place for place, label in enumerate(base)}
    here = set(theirs)
    removed = [label for label in base if label not in here]
    partners = [other if other != label else "" for label, other in zip(ours, theirs, strict=True)]
    return Pairs(
        (*ours, *removed),
        np.array([*range(len(ours)), *(-1 for _ in removed)], np.intp),
        np.array([places.get(label, -1) for label in (*theirs, *removed)], np.intp),
        (*partners, *("" for _ in removed)),
    )


def compared(run: Run, view: View) -> Frame:
    names = _names(run, view)
    wanted = tuple(dict.fromkeys(underlying(name) for name in names))
    ours = children(run, replace(view, baseline=None, sort="", filter="", columns=wanted))
    other, base_view = baseline_of(run, view)
    lacking = ""

    def of_base(ours: Frame) -> Frame:
        asked = replace(base_view, columns=ours.view.columns)
        return _without_rows(ours, asked) if lacking else children(other, asked)

    try:
        base = of_base(ours)
    except NoSuchNode as error:
        lacking = str(error)
        base = of_base(ours)
    # Two single activities are compared whatever their positions.
    leaves = view.is_leaf and base.view.is_leaf
    renamed = {}
    if ours.level == base.level and ours.level in _RENAMED:
        sides = (Side(run, ours.view, ours.labels), Side(other, base.view, base.labels))
        renamed = renamed_labels(*sides, ours.level)
    pairs = matched(ours.labels, ours.labels if leaves else base.labels, renamed)

    @cache
    def figure(name: str) -> tuple[Metric, Values]:
        here, there, known = ours, base, underlying(name)
        if known not in ours.values:
            here = children(run, replace(ours.view, columns=(known,)))
            there = of_base(here)
        metric = next(each for each in here.columns if each.name == known)
        return _compared(name, metric, *pairs.aligned(here.values[known], there.values[known]))

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
        total={each.name: _total(each, ours, base) for each in columns},
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


def _compared(name: str, metric: Metric, ours: Values, base: Values) -> tuple[Metric, Values]:
    if name.endswith(RELATIVE):
        return relative_of(metric), relative(ours, base)
    if name.endswith(DELTA):
        return delta_of(metric), difference(metric, ours, base)
    return metric, ours


def _total(column: Metric, ours: Frame, base: Frame) -> Number | None:
    left, right = (frame.total[underlying(column.name)] for frame in (ours, base))
    if not is_difference(column.name):
        return left
    if left is None or right is None:
        return None
    return _compared(column.name, column, numbered([left]), numbered([right]))[1].at(0)


def _with_differences(names: Sequence[str], level: str) -> tuple[str, ...]:
    first = "kernel_ns" if level == ACTIVITY else "elapsed_ns"
    rest = [name for name in names if name != first]
    compared = [name for name in rest if name in _WITH_DELTA]
    others = [name for name in rest if name not in _WITH_DELTA]
    pairs = [part for name in compared for part in (name, f"{name}{DELTA}")]
    return (first, f"{first}{DELTA}", f"{first}{RELATIVE}", *pairs, *others)


Place = tuple[int | str, ...]
Key = TypeVar("Key")


def renamed_labels(ours: Side, base: Side, level: str) -> dict[str, str]:
    """Our name → the baseline's, of kernels or operations that only one side has by name."""
    common = set(ours.labels) & set(base.labels)
    if len(common) == min(len(ours.labels), len(base.labels)):
        return {}
    fixed = dict((*ours.view.scope, *base.view.scope))
    free = [part for part in _RENAMED[level] if part not in fixed]
    shares, base_shares = (_shares(side, level, free, common) for side in (ours, base))
    sizes, base_sizes = (_summed(each.values()) for each in (shares, base_shares))
    shared = _summed(
        {
            (own, other): min(share, other_share)
            for own, share in names.items()
            for other, other_share in base_shares.get(place, {}).items()
        }
        for place, names in shares.items()
    )
    closeness = {
        (own, other): 2 * amount / (sizes[own] + base_sizes[other])
        for (own, other), amount in shared.items()
    }
    found: dict[str, str] = {}
    for own, other in sorted(closeness, key=lambda pair: (-closeness[pair], pair)):
        is_free = own not in found and other not in found.values()
        if is_free and closeness[own, other] >= MIN_SHARED:
            found[own] = other
    if level == "operation":
        found |= same_work(ours, base, free, {*common, *found, *found.values()})
    return found


def _summed(each: Iterable[Mapping[Key, float]]) -> Mapping[Key, float]:
    sums: dict[Key, float] = defaultdict(float)
    for amounts in each:
        for key, amount in amounts.items():
            sums[key] += amount
    return sums


def _shares(
    side: Side, level: str, free: Sequence[str], common: Collection[str]
) -> dict[Place, dict[str, float]]:
    table, rows = side.run.table, sampled_rows(side)
    part = combined([table.column(name)[rows] for name in (*_STEP, *_RENAMED[level])])[1]
    order = np.lexsort((table.stream[rows], table.start_ns[rows], part))
    rows, part = rows[order], part[order]
    names = table.column(level)[rows]
    if level == "operation":
        # Its kernels in a row are one.
        first = run_starts(part, names)
        rows, part, names = rows[first], part[first], names[first]
    labels = {int(code): table.text_of(level, int(code)) for code in distinct(names)}
    is_common = np.isin(names, [code for code, label in labels.items() if label in common])
    # How many common rows precede each row in its part, and the distance to the last of them.
    position = np.arange(len(rows))
    begin = np.maximum.accumulate(np.where(run_mask(part), position, 0))
    before: Int64 = np.cumsum(is_common) - is_common
    anchor = np.maximum.accumulate(np.where(is_common, position, -1))
    since = position - np.maximum(anchor, begin - 1)
    classes = [""]
    kind = np.zeros(len(rows), np.int64)
    if level == "operation":
        classes += [kernel_class(name) for name in table.names]
        gap = combined([part, np.where(is_common, -1, before)])[1]
        kind = np.where(np.bincount(gap)[gap] > 1, 1 + table.kernel[rows], 0)
        kind = np.array([classes.index(each) for each in classes], np.int64)[kind]
        since = nth_of(combined([gap, kind])[1])
    columns = [
        *(table.column(level)[rows] for level in free),
        before - before[begin],
        since,
        kind,
        names,
    ]
    places, owner = combined([each[~is_common] for each in columns])
    at: dict[Place, dict[str, float]] = defaultdict(dict)
    for (*place, name), count in zip(places.tolist(), counts_of(owner).tolist(), strict=True):
        parts = [
            table.operations[code] if level == "operation" and code != NO_LABEL else code
            for level, code in zip(free, place, strict=False)
        ]
        at[(*parts, *place[-3:-1], classes[place[-1]])][labels[name]] = float(count)
    return {
        place: {name: count / sum(found.values()) for name, count in found.items()}
        for place, found in at.items()
    }
