"""Operations that take longer in one layer, or in one iteration, than in the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.table import NO_LABEL, Rule
from chopper_core.model.view import View, complete_order
from chopper_core.util.arrays import Float64, Mask
from chopper_core.util.grouping import (
    counts_of,
    distinct,
    median_of,
    ranked,
    run_maxima,
    stable_order,
    sums_of,
)
from chopper_core.views.findings.iteration import slow_iterations
from chopper_core.views.findings.rule import (
    FEWEST,
    SMALLEST_SAVING,
    Cost,
    Finding,
    FindingsContext,
    Threshold,
    combined,
    confidence,
    outlier_limit,
    rule,
    summed,
)
from chopper_core.views.shared.phrases import count, listed, percent, time

SLOWER: Final = Threshold(
    "slower than elsewhere",
    10.0,
    "%",
    "clocks vary by a few percent within an iteration, and kernels with them",
)
CONSISTENT: Final = Threshold(
    "where it is slower",
    75.0,
    "% of GPUs and iterations",
    "what a layer or an operation causes shows on every GPU and in every iteration",
)

_MAX_LISTED: Final = 3


class SlowPart(Struct, frozen=True):
    """An operation of a phase that takes longer in one layer, or iteration, than in the others."""

    phase: int
    operation: int
    where: int
    """The layer or the iteration."""
    ratio: float
    excess_ns: float
    """Summed over GPUs and iterations."""
    more: int = 0
    """How many kernels more it runs there, per GPU and iteration."""


@rule(
    "layer",
    of_durations=True,
    saving="kernel time there beyond the median of the other layers, mean over GPUs",
    holds=(0.7, 1.25),
    needs="labelled layers",
    thresholds=(SLOWER, CONSISTENT),
)
def slow_in_a_layer(context: FindingsContext) -> Iterator[Finding]:
    """Operations that take longer in one layer than in the others, wherever they run, or that
    only one layer has."""
    found: dict[int, list[SlowPart]] = {}
    for part in (*_slow_parts(context, "layer"), *_only_there(context)):
        found.setdefault(part.where, []).append(part)
    for layer, parts in found.items():
        if len({part.operation for part in parts}) == 1:
            evidence = tree_by(context, parts[0].operation, "layer")
        else:
            view = context.at(layer=str(layer))
            evidence = replace(view, order=_split(view, "operation"), sort="-kernel_ns")
        yield from _slower(context, parts, f"layer {layer}", "layers", evidence)


def _only_there(context: FindingsContext) -> Iterator[SlowPart]:
    """Operations that one layer has and no other.

    Work before the first layer and after the last may be taken for theirs, unless the host
    was in them.
    """
    codes = context.codes("layer")
    chosen = np.flatnonzero(context.computes & (codes != NO_LABEL))
    layers = distinct(codes[chosen])
    if len(layers) < FEWEST.value:
        return
    names, place = context.together("phase", "operation", "layer")
    owner = combined([names[:, 0], names[:, 1]])[1]
    direct = summed(place[chosen], _directly_labelled(context)[chosen], len(names))
    cells = counts_of(place[chosen], len(names))
    inner = np.isin(names[:, 2], layers[1:-1]) | (direct >= CONSISTENT.share * cells)
    alone = (sums_of(names[:, 2] != NO_LABEL, owner)[owner] == 1) & inner
    sums = summed(place[chosen], context.cells.sum("duration_ns")[chosen], len(names))
    kernels = summed(place[chosen], context.cells.sizes()[chosen], len(names))
    spots = len(context.gpus) * len(context.iterations)
    alone &= cells >= CONSISTENT.share * spots
    alone &= sums >= SMALLEST_SAVING.share * context.step_ns * spots
    for row in np.flatnonzero(alone).tolist():
        yield SlowPart(
            phase=int(names[row, 0]),
            operation=int(names[row, 1]),
            where=int(names[row, 2]),
            ratio=np.inf,
            excess_ns=float(sums[row]),
            more=round(float(kernels[row]) / int(cells[row])),
        )


@rule(
    "operation",
    of_durations=True,
    saving="kernel time there beyond the median of the other iterations, mean over GPUs, spread "
    "over all iterations",
    needs="labelled iterations",
    thresholds=(SLOWER, CONSISTENT),
    explains=("iteration",),
)
def slow_in_an_iteration(context: FindingsContext) -> Iterator[Finding]:
    """Operations that take longer in one iteration than in the others, on every GPU.

    An iteration that is slow as a whole is another finding.
    """
    iterations, _, slow = slow_iterations(context)
    found: dict[int, list[SlowPart]] = {}
    for part in _slow_parts(context, "iteration"):
        found.setdefault(part.where, []).append(part)
    for iteration, parts in found.items():
        if iteration in iterations[slow] and len({part.operation for part in parts}) > 1:
            continue
        if len({part.operation for part in parts}) == 1:
            evidence = tree_by(context, parts[0].operation, "iteration")
        else:
            view = context.at(iteration=str(iteration))
            evidence = replace(view, order=_split(view, "operation"), sort="-kernel_ns")
        yield from _slower(context, parts, f"iteration {iteration}", "iterations", evidence)


def _slower(
    context: FindingsContext, parts: list[SlowPart], where: str, others: str, evidence: View
) -> Iterator[Finding]:
    total = sum(part.excess_ns for part in parts)
    saving = context.per_iteration(total)
    if context.share(saving) < SMALLEST_SAVING.share:
        return
    names = {part.operation: context.text("operation", part.operation) for part in parts}
    is_one = len(names) == 1
    subject = f"{next(iter(names.values()))} takes" if is_one else f"{len(names)} operations take"
    sizes = listed(
        (
            f"{'' if is_one else f'{names[part.operation]} '}{_how(part)} in "
            f"{context.phase(part.phase)}"
            for part in sorted(parts, key=lambda part: -part.excess_ns)
        ),
        _MAX_LISTED,
    )
    yield Finding(
        sentence=(
            f"{subject} longer in {where} than in the other {others}: {sizes}; "
            f"{time(saving)}{context.per_gpu}"
        ),
        evidence=evidence,
        confidence=confidence(measured=True, repeated=context.repeats),
        saving_ns=saving,
        total_ns=total,
        cost=Cost.COMPUTE,
    )


def _how(part: SlowPart) -> str:
    if np.isinf(part.ratio):
        return f"{count(part.more, 'kernel')} only there"
    longer = f"{percent(part.ratio - 1)} longer"
    return f"{longer}, with {count(part.more, 'more kernel')}" if part.more > 0 else longer


def tree_by(context: FindingsContext, operation: int, level: str) -> View:
    """The layers, or iterations, of an operation by the mean of their kernels."""
    view = context.at(operation=context.text("operation", operation))
    columns = ("mean_ns", "max_ns", "kernels", "kernel_ns")
    return replace(view, order=_split(view, level), columns=columns, sort="-mean_ns")


def _split(view: View, level: str) -> tuple[str, ...]:
    """The order that splits a view's node by a level, if the level is not above it."""
    levels = [name for name, _ in view.scope]
    return view.order if level in levels else complete_order([*levels, level])


def _slow_parts(context: FindingsContext, level: str) -> Iterator[SlowPart]:
    """The operations and phases with a layer, or iteration, that stands out from the others."""
    codes = context.codes(level)
    chosen = np.flatnonzero(context.computes & (codes != NO_LABEL))
    if not len(chosen):
        return
    pairs, every = context.together("phase", "operation")
    owner, codes = every[chosen], codes[chosen]
    duration = context.cells.sum("duration_ns")[chosen].astype(np.float64)
    kernels = context.cells.sizes()[chosen]
    work = context.cell_work[chosen]
    direct = _directly_labelled(context)[chosen]
    spot = context.gpu_place[chosen]
    spots = len(context.gpus)
    if level == "layer":
        spot = spot * len(context.iterations) + context.iteration_place[chosen]
        spots *= len(context.iterations)
    least = context.step_ns * SMALLEST_SAVING.share
    totals = summed(owner, duration, len(pairs)) / (len(context.gpus) * len(context.iterations))
    order = stable_order(owner)
    ends = np.cumsum(counts_of(owner, len(pairs)))
    for pair in np.flatnonzero(totals > least).tolist():
        own = order[ends[pair - 1] if pair else 0 : ends[pair]]
        columns, column = ranked(codes[own])
        if len(columns) < FEWEST.value:
            continue
        cell = spot[own] * len(columns) + column
        times = summed(cell, duration[own], spots * len(columns)).reshape(spots, len(columns))
        sizes = summed(cell, kernels[own], spots * len(columns)).reshape(spots, len(columns))
        # Where a GPU or an iteration lacks one of them, there is nothing to compare.
        whole = (times > 0).all(axis=1)
        times, sizes = times[whole], sizes[whole]
        for place in np.flatnonzero(_outlying(times)).tolist() if len(times) else ():
            more = round(median_of(sizes[:, place] - _middle(np.delete(sizes, place, 1))))
            at_border = place in (0, len(columns) - 1)
            sure = direct[own[column == place]].mean() >= CONSISTENT.share
            if more and (level == "iteration" or (at_border and not sure)):
                # Other kernels under the same general name don't make a slow operation.
                continue
            works = summed(cell, work[own], spots * len(columns)).reshape(spots, -1)[whole]
            is_same = works[:, place] == _middle(np.delete(works, place, axis=1))
            if level == "iteration" and is_same.mean() < CONSISTENT.share:
                continue  # Longer sequences take longer everywhere.
            usual = _middle(np.delete(times, place, axis=1))
            yield SlowPart(
                phase=int(pairs[pair][0]),
                operation=int(pairs[pair][1]),
                where=int(columns[place]),
                ratio=float(times[:, place].sum() / usual.sum()),
                excess_ns=float((times[:, place] - usual).sum() * spots / len(times)),
                more=more,
            )


def _directly_labelled(context: FindingsContext) -> Mask:
    """Whether what the host was in gives the layer of all activities of each cell."""
    rules = context.table.layer_rule[context.cells.selection]
    return np.asarray(run_maxima(rules, context.cells.first) <= Rule.AUTOGRAD)


def _middle(rows: Float64) -> Float64:
    """The median of each row, without NaN."""
    ordered = np.sort(rows, axis=1)
    count = rows.shape[1]
    middle: Float64 = (ordered[:, (count - 1) // 2] + ordered[:, count // 2]) / 2
    return middle


def _outlying(times: Float64) -> Mask:
    """Which columns stand out in most rows, by their distance from the columns' median."""
    relative = times / _middle(times)[:, None]
    typical = _middle(relative.T)
    limit = outlier_limit(typical, SLOWER)
    there: Mask = (relative > limit).mean(axis=0) >= CONSISTENT.share
    return there & (typical > limit)
