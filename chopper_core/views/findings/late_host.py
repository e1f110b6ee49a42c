"""Places where a host is late just once."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.table import NO_LABEL
from chopper_core.util.arrays import Float64, Index, Int64, Mask
from chopper_core.util.grouping import run_starts
from chopper_core.views.findings.context import SMALLEST_SAVING, FindingsContext, summed
from chopper_core.views.findings.host import host_bound_phases
from chopper_core.views.findings.phrases import ranges, time
from chopper_core.views.findings.rule import Finding, Threshold, confidence, rule

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

_NEGLIGIBLE_NS: Final = 1_000
_MAX_LISTED: Final = 10
_MAX_LEFT_OUT: Final = 16
"""Of more GPUs or iterations the median over all stands for that over the others."""


class LatePlace(Struct, frozen=True):
    """Neighbouring layers of a phase in which one host is late in one iteration."""

    gpu: int
    iteration: int
    phase: int
    layers: tuple[int, ...]
    idle_ns: float
    """Idle before launch calls."""
    lost_ns: float
    """What of it isn't usual."""


@rule(
    "late-host",
    saving="idle time before launch calls there, less the usual idle time at the same place on "
    "other GPUs and in other iterations; the largest of the GPUs of each iteration",
    needs="launch records; several GPUs or iterations",
    thresholds=(LATE_HOST, FAR_LATER),
)
def late_host(context: FindingsContext) -> list[Finding]:
    """Places where one host is late once, but not on other GPUs or in other iterations."""
    if not context.repeats:
        return []
    idle, names = _idle_by_place(context)
    usual = _expected(idle)
    excess = idle - usual
    is_late = excess >= context.step_ns * SMALLEST_SAVING.share
    is_late &= idle > FAR_LATER.value * usual
    # Where the host is always late, that is another finding.
    always = [phase.code for phase in host_bound_phases(context)]
    is_late[np.isin(names[:, 0], always)] = False
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
    return [
        _once(context, late[0]) if len(late) == 1 else _repeatedly(context, late)
        for late in of_phase.values()
    ]


def _idle_by_place(context: FindingsContext) -> tuple[Float64, Int64]:
    """Idle time before launch calls by (phase, layer), GPU and iteration; and these places."""
    names, owner = context.together("phase", "layer")
    shape = (len(names), len(context.gpus), len(context.iterations))
    place = (owner * shape[1] + context.gpu_place) * shape[2] + context.iteration_place
    idle = summed(place, context.cells.sum("idle_host_ns"), int(np.prod(shape)))
    return idle.reshape(shape), names


def _expected(idle: Float64) -> Float64:
    """What is usual at each place: on the same GPU in other iterations, on other GPUs in this."""
    _, gpus, iterations = idle.shape
    usual = np.zeros(idle.shape)
    for axis, count in ((1, gpus), (2, iterations)):
        if count < 2:
            continue
        if count > _MAX_LEFT_OUT:
            usual = np.maximum(usual, np.median(idle, axis=axis, keepdims=True))
            continue
        for one in range(count):
            rest = np.delete(idle, one, axis=axis)
            own = [slice(None)] * 3
            own[axis] = slice(one, one + 1)
            middle = np.median(rest, axis=axis, keepdims=True)
            usual[tuple(own)] = np.maximum(usual[tuple(own)], middle)
    return usual


def _neighbours(is_late: Mask, names: Int64) -> list[Index]:
    """The late places, those together that are neighbouring layers of one phase."""
    at = np.flatnonzero(is_late)
    phases, layers = names[at].T
    return np.split(at, run_starts(phases, layers - np.arange(len(at)))[1:])


def _layers(context: FindingsContext, place: LatePlace) -> str:
    """Which layers of its phase a place is, as the end of a phrase."""
    if place.layers:
        return f", layer{'s' if len(place.layers) > 1 else ''} {ranges(place.layers)}"
    return ", outside the layers" if (context.codes("layer") != NO_LABEL).any() else ""


def _once(context: FindingsContext, one: LatePlace) -> Finding:
    labels = {
        "gpu": str(one.gpu),
        "iteration": context.text("iteration", one.iteration),
        "phase": context.text("phase", one.phase),
    }
    if len(one.layers) == 1:
        labels["layer"] = str(one.layers[0])
    usual_ns = one.idle_ns - one.lost_ns
    usual = time(usual_ns) if usual_ns >= _NEGLIGIBLE_NS else "not at all"
    when = f" of iteration {one.iteration}" if context.has_iterations else ""
    return Finding(
        sentence=(
            f"GPU {one.gpu}'s host is late in {context.phase(one.phase)}{when}"
            f"{_layers(context, one)}: the GPU stands idle {time(one.idle_ns)} before its launch "
            f"calls there, at the same place elsewhere {usual}"
        ),
        evidence=context.with_view(
            "launch", "operation" if len(one.layers) == 1 else "layer", **labels
        ),
        confidence=confidence(read=True, repeated=False),
        saving_ns=one.lost_ns / len(context.iterations),
        total_ns=one.idle_ns,
    )


def _repeatedly(context: FindingsContext, late: list[LatePlace]) -> Finding:
    """Several places of a phase; GPUs that are late at once cost an iteration no more than one."""
    lost: dict[int, dict[int, float]] = {}
    for one in late:
        of_gpus = lost.setdefault(one.iteration, {})
        of_gpus[one.gpu] = of_gpus.get(one.gpu, 0.0) + one.lost_ns
    named = "; ".join(
        f"{time(one.idle_ns)} on GPU {one.gpu}, iteration {one.iteration}{_layers(context, one)}"
        for one in late[:_MAX_LISTED]
    )
    more = f"; and {len(late) - _MAX_LISTED} more" if len(late) > _MAX_LISTED else ""
    total = sum(one.idle_ns for one in late)
    phase = context.text("phase", late[0].phase)
    return Finding(
        sentence=(
            f"hosts are late at {len(late)} places of {context.phase(late[0].phase)}, elsewhere "
            f"they aren't; the GPUs stand idle {time(total)} there before launch calls: "
            f"{named}{more}"
        ),
        evidence=replace(context.with_view("launch", "gpu", phase=phase), sort="-idle_host_ns"),
        confidence=confidence(read=True, repeated=True),
        saving_ns=sum(max(of_gpus.values()) for of_gpus in lost.values()) / len(context.iterations),
        total_ns=total,
    )
