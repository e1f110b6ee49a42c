"""Places where a host is late only once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.model.table import NO_LABEL
from chopper_core.util.arrays import Float64, Index, Int64, Mask
from chopper_core.util.grouping import first_equal, medians_along, run_starts
from chopper_core.views.findings.host import host_bound_phases
from chopper_core.views.findings.rule import (
    SMALLEST_SAVING,
    Cost,
    Finding,
    FindingsContext,
    Threshold,
    confidence,
    rule,
    summed,
)
from chopper_core.views.shared.host_causes import host_charges
from chopper_core.views.shared.phrases import by_number, time

LATE_HOST: Final = Threshold(
    "late host at one place",
    0.2,
    "% of the iteration",
    "an allocator that returns memory and asks for it again takes about 2 ms",
)
FAR_LATER: Final = Threshold(
    "late host at one place, relative to other places",
    3.0,
    "times",
    "a host that is always late is not late at one place",
)

AT_END: Final = -2
"""The place of a phase: the end of an iteration, after all of its activities."""
_NEGLIGIBLE_NS: Final = 1_000
_MAX_LISTED: Final = 10
_MAX_LEFT_OUT: Final = 16
"""With more GPUs or iterations, the median over all replaces that over the others."""


class LatePlace(Struct, frozen=True):
    """Neighbouring layers of a phase in which one host is late in one iteration."""

    gpu: int
    iteration: int
    phase: int
    layers: tuple[int, ...]
    idle_ns: float
    """Idle time before launch calls."""
    lost_ns: float
    """The part of it beyond the usual."""


@rule(
    "late-host",
    saving="idle time before launch calls there, minus the usual idle time at the same place on "
    "other GPUs and in other iterations; the largest of the GPUs of each iteration",
    needs="launch records; several GPUs or iterations",
    thresholds=(LATE_HOST, FAR_LATER),
)
def late_host(context: FindingsContext) -> Iterator[Finding]:
    """Places where one host is late once, but not on other GPUs or in other iterations."""
    if not context.repeats:
        return
    idle, names = _idle_by_place(context)
    usual = _expected(idle)
    excess = idle - usual
    is_late = excess >= context.step_ns * SMALLEST_SAVING.share
    is_late &= idle > FAR_LATER.value * usual
    # A host that is always late is another finding.
    always = [phase.code for phase in host_bound_phases(context)]
    is_late[np.isin(names[:, 0], np.array(always, np.int64))] = False
    for gpu, those in _stragglers(context):
        is_late[:, context.gpus.index(gpu), np.isin(context.iterations, those)] = False
    places = [
        LatePlace(
            context.gpus[gpu],
            context.iterations[iteration],
            int(names[at[0]][0]),
            tuple(int(layer) for layer in names[at, 1] if layer != NO_LABEL),
            float(idle[at, gpu, iteration].sum()),
            float(excess[at, gpu, iteration].sum()),
        )
        for gpu, iteration in np.argwhere(is_late.any(axis=0)).tolist()
        for at in _neighbours(is_late[:, gpu, iteration], names)
    ]
    least = context.step_ns * LATE_HOST.share
    of_phase: dict[int, list[LatePlace]] = {}
    for place in sorted(places, key=lambda one: -one.lost_ns):
        if place.lost_ns >= least:
            of_phase.setdefault(place.phase, []).append(place)
    for late in of_phase.values():
        yield _once(context, late[0]) if len(late) == 1 else _repeatedly(context, late)


def _stragglers(context: FindingsContext) -> list[tuple[int, list[int]]]:
    """GPUs whose hosts hold the others back, and in which iterations: findings already."""
    leads = context.leads
    if leads is None or leads.delays_ns is None:
        return []
    return [
        (leads.gpus[late.place], [leads.iterations[at] for at in late.when])
        for late in leads.stragglers
        if late.cause == "host"
    ]


def _idle_by_place(context: FindingsContext) -> tuple[Float64, Int64]:
    """Idle time before launch calls by (phase, layer), GPU and iteration; and the pairs.

    The last place is the end of an iteration, whose idle time the next one's activities end.
    """
    names, owner = context.together("phase", "layer")
    shape = (len(names), len(context.gpus), len(context.iterations))
    place = (owner * shape[1] + context.gpu_place) * shape[2] + context.iteration_place
    idle = summed(place, context.cells.sum("idle_host_ns"), int(np.prod(shape))).reshape(shape)
    table, moved = context.table, context.moved
    code = names[:, 0] * (names[:, 1].max() + 2) + names[:, 1]
    of_row = table.phase[moved.row].astype(np.int64) * (names[:, 1].max() + 2)
    where = first_equal(code, of_row + table.layer[moved.row])
    whose = first_equal(np.array(context.gpus), table.gpu[moved.row].astype(np.int64))
    when = first_equal(np.array(context.iterations), moved.before)
    own = (where >= 0) & (whose >= 0) & (when >= 0)
    np.subtract.at(idle, (where[own], whose[own], when[own]), moved.ns[own])
    arrives = np.maximum(moved.by_step(context.run, context.gpus, context.iterations), 0.0)
    return np.concatenate([idle, arrives[None]]), np.append(names, [[AT_END, NO_LABEL]], axis=0)


def _expected(idle: Float64) -> Float64:
    """The usual idle time at each place: on the same GPU in other iterations, or on other GPUs."""
    _, gpus, iterations = idle.shape
    usual = np.zeros(idle.shape)
    for axis, count in ((1, gpus), (2, iterations)):
        if count < 2:
            continue
        if count > _MAX_LEFT_OUT:
            usual = np.maximum(usual, medians_along(idle, axis=axis, keepdims=True))
            continue
        for one in range(count):
            rest = np.delete(idle, one, axis=axis)
            own = [slice(None)] * 3
            own[axis] = slice(one, one + 1)
            middle = medians_along(rest, axis=axis, keepdims=True)
            usual[tuple(own)] = np.maximum(usual[tuple(own)], middle)
    return usual


def _neighbours(is_late: Mask, names: Int64) -> list[Index]:
    """The late places; neighbouring layers of a phase are one place."""
    at = np.flatnonzero(is_late)
    phases, layers = names[at].T
    return np.split(at, run_starts(phases, layers - np.arange(len(at)))[1:])


def _where(context: FindingsContext, phase: int) -> str:
    """The phase of places, or the end of iterations, as the start of a phrase."""
    return "at the end" if phase == AT_END else f"in {context.phase(phase)}"


def _layers(context: FindingsContext, place: LatePlace) -> str:
    if place.phase == AT_END:
        return ""
    if place.layers:
        return f", {by_number('layer', place.layers)}"
    return ", outside layers" if (context.codes("layer") != NO_LABEL).any() else ""


def _doing(context: FindingsContext, places: list[LatePlace]) -> str:
    """Where the hosts are during that time, as a part of a phrase."""
    charges, table = host_charges(context.run), context.table
    inside = np.zeros(len(charges.row), np.bool_)
    is_moved = charges.iteration != table.iteration[charges.row]
    for place in places:
        here = table.gpu[charges.row] == place.gpu
        here &= charges.iteration == place.iteration
        if place.phase == AT_END:
            inside |= here & is_moved
            continue
        here &= ~is_moved & (table.phase[charges.row] == place.phase)
        inside |= here & np.isin(table.layer[charges.row], place.layers or (NO_LABEL,))
    cause = charges.main(charges.sums(np.where(inside, 0, -1), 1)[0])
    return "" if cause is None else f", in {cause.text}"


def _once(context: FindingsContext, place: LatePlace) -> Finding:
    labels = {"gpu": str(place.gpu)}
    by = "host"
    if place.phase != AT_END:
        labels["iteration"] = context.text("iteration", place.iteration)
        labels["phase"] = context.text("phase", place.phase)
        by = "layer"
    if len(place.layers) == 1:
        labels["layer"] = str(place.layers[0])
        by = "operation"
    usual_ns = place.idle_ns - place.lost_ns
    usual = time(usual_ns) if usual_ns >= _NEGLIGIBLE_NS else "none"
    when = f" of iteration {place.iteration}" if context.has_iterations else ""
    return Finding(
        sentence=(
            f"GPU {place.gpu}'s host is late {_where(context, place.phase)}{when}"
            f"{_layers(context, place)}{_doing(context, [place])}: the GPU is idle for "
            f"{time(place.idle_ns)} before launch calls there (usually {usual})"
        ),
        evidence=context.with_view("launch", by, sort="-idle_host_ns", **labels),
        confidence=confidence(measured=True, repeated=False),
        saving_ns=place.lost_ns / len(context.iterations),
        total_ns=place.idle_ns,
        cost=Cost.HOST,
    )


def _repeatedly(context: FindingsContext, late: list[LatePlace]) -> Finding:
    """Several places of a phase; of GPUs late in one iteration, the latest counts."""
    lost: dict[int, dict[int, float]] = {}
    for place in late:
        by_gpu = lost.setdefault(place.iteration, {})
        by_gpu[place.gpu] = by_gpu.get(place.gpu, 0.0) + place.lost_ns
    named = "; ".join(
        f"{time(place.idle_ns)} on GPU {place.gpu}, iteration {place.iteration}"
        f"{_layers(context, place)}"
        for place in late[:_MAX_LISTED]
    )
    more = f"; and {len(late) - _MAX_LISTED} more" if len(late) > _MAX_LISTED else ""
    total = sum(place.idle_ns for place in late)
    phase = late[0].phase
    at_end = phase == AT_END
    places = f"{len(late)} places {_where(context, phase)}{' of iterations' * at_end}"
    if at_end:
        evidence = context.with_view("launch", "host", sort="-idle_host_ns")
    else:
        of_phase = context.text("phase", phase)
        evidence = context.with_view("launch", "gpu", sort="-idle_host_ns", phase=of_phase)
    return Finding(
        sentence=(
            f"hosts are late at {places}"
            f"{_doing(context, late)}, but not elsewhere; GPUs are idle there for {time(total)} "
            f"before launch calls: {named}{more}"
        ),
        evidence=evidence,
        confidence=confidence(measured=True, repeated=True),
        saving_ns=sum(max(by_gpu.values()) for by_gpu in lost.values()) / len(context.iterations),
        total_ns=total,
        cost=Cost.HOST,
    )
