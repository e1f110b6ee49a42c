"""The rows of the tree compared with those of a baseline: no row of either side is left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.metrics import Metric, Reduces, Values
from chopper_core.model import address
from chopper_core.model.attributes import TypedValue
from chopper_core.model.run import Run
from chopper_core.model.table import ACTIVITY
from chopper_core.model.view import View, baseline_view, enter
from chopper_core.util.arrays import Float64, Index
from chopper_core.util.errors import NoSuchNode
from chopper_core.views.frame import Frame
from chopper_core.views.shared.children import (
    NAME,
    children,
    column_of,
    cut_note,
    names_of,
    notes_of,
    ordered,
)
from chopper_core.views.shared.derived import (
    DELTA,
    RELATIVE,
    Statistic,
    delta_of,
    difference,
    is_difference,
    relative,
    relative_of,
    statistic_of,
    underlying,
)
from chopper_core.views.shared.filter import Rows, filter_hint, matching
from chopper_core.views.shared.renamed_kernels import Side, renamed_kernels

_KERNEL: Final = "kernel"
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


def matched(
    ours: Sequence[str], base: Sequence[str], renamed: Mapping[str, str] | None = None
) -> Pairs:
    """Pairs of rows with the same label, or renamed: our label → the baseline's."""
    renamed = renamed or {}
    places = {label: place for place, label in enumerate(base)}
    here = {renamed.get(label, label) for label in ours}
    removed = [label for label in base if label not in here]
    labels = (*ours, *removed)
    partners = [*(renamed.get(label, label) for label in ours), *removed]
    return Pairs(
        labels,
        np.array([*range(len(ours)), *(-1 for _ in removed)], np.intp),
        np.array([places.get(label, -1) for label in partners], np.intp),
        tuple(renamed.get(label, "") for label in ours) + ("",) * len(removed),
    )


def aligned(values: Values, places: Index) -> Values:
    """Values in the order of pairs; missing for rows that the side lacks."""
    if not len(values):
        return Values(np.full(len(places), np.nan), np.ones(len(places), np.bool_))
    taken = values.take(np.maximum(places, 0))
    return Values(taken.numbers, ~taken.present() | (places < 0), taken.extrapolated)


def compared(run: Run, view: View) -> Frame:
    """The frame of a view with a baseline: the rows of both, and their differences."""
    names = each_with_difference(view.columns) or with_differences(names_of(run, view), view.level)
    sorted_by = view.sort.removeprefix("-")
    names = names if sorted_by in ("", NAME, *names) else (*names, sorted_by)
    statistic = statistic_of(view)
    wanted = tuple(dict.fromkeys(underlying(name) for name in names))
    plain = replace(view, baseline=None, sort="", filter="", columns=wanted)
    ours = children(run, plain)
    base_view = baseline_view(view)
    other = run.baseline_run(base_view.run) if base_view.run != view.run else run
    plain_base = replace(base_view, columns=wanted)
    lacking = ""
    try:
        base = children(other, plain_base)
    except NoSuchNode as error:
        base, lacking = _without_rows(ours, plain_base), str(error)
    # Two single activities are compared whatever their positions.
    leaves = view.is_leaf and base.view.is_leaf
    renamed = {} if leaves else _renamed((run, ours), (other, base))
    pairs = matched(ours.labels, ours.labels if leaves else base.labels, renamed)
    computed: dict[str, Values] = {}

    def values(name: str) -> Values:
        if name not in computed:
            known = column_of(underlying(name), run, statistic)
            if known.name not in wanted:
                here = children(run, replace(ours.view, columns=(known.name,)))
                view_there = replace(base.view, columns=(known.name,))
                there = _without_rows(here, view_there) if lacking else children(other, view_there)
            else:
                here, there = ours, base
            left = aligned(here.values[known.name], pairs.ours)
            right = aligned(there.values[known.name], pairs.base)
            if name == known.name:
                computed[name] = left
            elif name.endswith(RELATIVE):
                computed[name] = relative(left, right)
            else:
                computed[name] = difference(known, left, right)
        return computed[name]

    columns = tuple(_compared_column(name, run, statistic) for name in names)
    along = run.table.coordinates
    rows = Rows(view.level, pairs.labels, values, columns=columns, coordinates=along)
    mask = matching(rows, view.filter)
    shown = np.flatnonzero(mask)
    elapsed = np.where(pairs.ours >= 0, ours.elapsed_ns[np.maximum(pairs.ours, 0)], 0)
    counted = replace(ours, labels=pairs.labels).counted()
    hidden_ns = int(elapsed[~mask & counted].sum())
    time = names[0]
    sort = view.sort or (f"-{time}{DELTA}" if f"{time}{DELTA}" in names else "")
    shown = shown[ordered(shown, view.level, list(pairs.labels), sort, values, counted)]
    labels = [pairs.labels[row] for row in shown]
    partners = [pairs.partners[row] for row in shown]
    if lacking:
        notes = [f"the baseline lacks this node: {lacking}"]
    else:
        notes = [*_step_note((run, ours), (other, base)), *_row_notes(pairs, len(renamed))]
    notes.append(f"the baseline is {address.render(base_view)}")
    if other is not run:
        notes += cut_note(other, base_view, "of the baseline")

    def target(row: int) -> View:
        if pairs.ours[shown[row]] < 0:
            return base.target(int(pairs.base[shown[row]]))
        return view if view.is_leaf else enter(view, labels[row], partners[row])

    def attributes(row: int) -> Mapping[str, TypedValue]:
        place = int(pairs.ours[shown[row]])
        return (
            ours.attributes(place) if place >= 0 else base.attributes(int(pairs.base[shown[row]]))
        )

    def means(rows: Index, bins: int) -> Float64:
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
        notes=(
            *filter_hint(rows, view.filter, mask),
            *notes,
            *notes_of(run, view, pairs.labels, len(shown), hidden_ns),
        ),
        attributes=attributes,
        target=target,
        means=means,
        partners=partners if renamed else (),
    )


def _without_rows(frame: Frame, view: View) -> Frame:
    """The frame of a node that its run lacks: no rows, sums of 0, no other totals."""
    none = np.zeros(0, np.intp)
    return replace(
        frame,
        view=view,
        labels=(),
        values={name: values.take(none) for name, values in frame.values.items()},
        total={known.name: 0 if known.reduces == Reduces.SUM else None for known in frame.columns},
        elapsed_ns=np.zeros(0, np.int64),
    )


def _row_notes(pairs: Pairs, renamed: int) -> list[str]:
    notes = []
    for count, kind in (
        (int((pairs.base < 0).sum()), "new, not in the baseline"),
        (int((pairs.ours < 0).sum()), "removed, only in the baseline"),
    ):
        if count:
            notes.append(f"{count} row{' is' if count == 1 else 's are'} {kind}")
    if renamed:
        notes.append(
            f"{renamed} kernel{' has' if renamed == 1 else 's have'} another name in the baseline, "
            "shown before the arrow"
        )
    return notes


def _step_note(ours: tuple[Run, Frame], base: tuple[Run, Frame]) -> list[str]:
    """A note where the two sides differ in their number of iterations, none elsewhere."""
    steps = [
        len(run.tree_of(frame.view).split(frame.view.path, ("gpu", "iteration")))
        for run, frame in (ours, base)
    ]
    if steps[0] == steps[1]:
        return []
    return [
        f"{steps[0]} iterations here, {steps[1]} in the baseline, counted on each GPU: sums differ "
        "accordingly; the view compare (8) compares them per iteration"
    ]


def _renamed(ours: tuple[Run, Frame], base: tuple[Run, Frame]) -> dict[str, str]:
    """Renamed kernels: our name → the baseline's."""
    if any(frame.level != _KERNEL for _, frame in (ours, base)):
        return {}
    common = set(ours[1].labels) & set(base[1].labels)
    if any(len(common) == len(frame) for _, frame in (ours, base)):
        return {}
    sides = [
        Side(run.tree_of(frame.view).node(frame.view.path), dict(frame.view.scope).keys())
        for run, frame in (ours, base)
    ]
    return renamed_kernels(sides[0], sides[1], common)


def _compared_column(name: str, run: Run, statistic: Statistic | None) -> Metric:
    known = column_of(underlying(name), run, statistic)
    if not is_difference(name):
        return known
    return relative_of(known) if name.endswith(RELATIVE) else delta_of(known)


def _total_difference(name: str, ours: Frame, base: Frame) -> int | float | None:
    """The total of a column, from the totals of both nodes."""
    left, right = (frame.total[underlying(name)] for frame in (ours, base))
    if not is_difference(name):
        return left
    if left is None or right is None:
        return None
    if name.endswith(RELATIVE):
        return 100.0 * (left - right) / right if right else None
    return left - right


def with_differences(names: Sequence[str], level: str) -> tuple[str, ...]:
    """Default columns with differences: of the time, also in %, and of a few others."""
    first = "kernel_ns" if level == ACTIVITY else "elapsed_ns"
    rest = [name for name in names if name != first]
    compared = [name for name in rest if name in _WITH_DELTA]
    others = [name for name in rest if name not in _WITH_DELTA]
    pairs = [part for name in compared for part in (name, f"{name}{DELTA}")]
    return (first, f"{first}{DELTA}", f"{first}{RELATIVE}", *pairs, *others)


def each_with_difference(names: Sequence[str]) -> tuple[str, ...]:
    """Chosen columns, each followed by its difference; unchanged where one is a difference."""
    if any(map(is_difference, names)):
        return tuple(names)
    return tuple(part for name in names for part in (name, f"{name}{DELTA}"))
