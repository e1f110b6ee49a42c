"""Phases in which the GPU waits for its host, and places where a host is late just once."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.table import NO_LABEL, NO_LABEL_TEXT
from chopper_core.util.arrays import Float64, Index, Int64
from chopper_core.views.findings.context import Case, elapsed_of, labelled, summed
from chopper_core.views.findings.finding import Finding, confidence
from chopper_core.views.findings.phrases import percent, places, time
from chopper_core.views.findings.thresholds import (
    FAR_LATER,
    HOST_LATE,
    LATE_HOST,
    LAUNCH_LATE,
    PHASE,
    SMALLEST_STAKE,
    Threshold,
)

_NOTHING_NS = 1_000
_NAMED = 10
_MANY = 16
"""Iterations from which on the median over all stands for that over the others."""


class Stretch(Struct, frozen=True):
    """Neighbouring layers of a phase in which one host is late in one iteration."""

    gpu: int
    iteration: int
    phase: int
    layers: tuple[int, ...]
    idle_ns: float
    """Idle before launch calls."""
    lost_ns: float
    """What of it isn't usual."""


def host_bound(case: Case) -> list[Finding]:
    """Phases of which a large part is idle before launch calls."""
    late = _late_phases(case, "idle_host_ns", HOST_LATE)
    return _waits_for_host(case, late, "is host-bound", "before its launch calls")


def launch_bound(case: Case) -> list[Finding]:
    """Phases of which a large part is idle between launch calls and starts."""
    late = _late_phases(case, "idle_launch_ns", LAUNCH_LATE)
    where = "between its launch calls and the starts"
    return _waits_for_host(case, late, "is launch-bound", where)


def _late_phases(case: Case, column: str, limit: Threshold) -> list[tuple[int, float, float]]:
    """Phases with more of an idle time than the limit: which, how much, and of how much."""
    phases = case.split("phase")
    idle = phases.sum(column).astype(np.float64)
    elapsed = elapsed_of(phases).astype(np.float64)
    codes = phases.codes("phase")
    late = (idle > limit.value / 100 * elapsed) & (
        elapsed / (len(case.gpus) * len(case.iterations)) > PHASE.value / 100 * case.step_ns
    )
    order = np.flatnonzero(late)[np.argsort(-idle[late], kind="stable")]
    return [(int(codes[at]), float(idle[at]), float(elapsed[at])) for at in order.tolist()]


def _waits_for_host(
    case: Case, late: list[tuple[int, float, float]], said: str, where: str
) -> list[Finding]:
    if not late:
        return []
    total = sum(idle for _, idle, _ in late)
    each = case.per_iteration(total)
    names = [_phase(case, code) for code, _, _ in late]
    if len(late) == 1:
        told = f"{names[0]} {said}: {_stands(case)} idle {time(each)}{case.each} {where}, "
        told += f"{percent(total / late[0][2])} of its time"
        evidence = case.with_view("launch", phase=case.text("phase", late[0][0]))
    else:
        parts = (
            f"{name} {time(case.per_iteration(idle))} ({percent(idle / elapsed)} of its time)"
            for name, (_, idle, elapsed) in zip(names, late, strict=True)
        )
        told = f"the step {said}: {_stands(case)} idle {time(each)}{case.each} {where}, "
        told += labelled(parts)
        evidence = case.with_view("launch", "phase")
    return [
        Finding(
            sentence=told,
            evidence=evidence,
            confidence=confidence(read=True, repeated=case.repeats),
            stake_ns=each,
            total_ns=total,
        )
    ]


def _stands(case: Case) -> str:
    return "the GPU stands" if len(case.gpus) == 1 else "a GPU stands"


def _phase(case: Case, code: int) -> str:
    text = case.text("phase", code)
    return "what is of no known phase" if text == NO_LABEL_TEXT else text


def late_host(case: Case) -> list[Finding]:
    """Stretches of one phase on one GPU in one iteration where its host is late, and only there."""
    if not case.repeats:
        return []
    late, names = _by_place(case)
    usual = _expected(late)
    excess = late - usual
    counts = (excess >= case.step_ns * SMALLEST_STAKE.value / 100) & (
        late > FAR_LATER.value * usual
    )
    # Where the host is always late, that is another finding.
    always = [code for code, _, _ in _late_phases(case, "idle_host_ns", HOST_LATE)]
    counts[np.isin(names[:, 0], always)] = False
    stretches = [
        Stretch(
            case.gpus[gpu],
            case.iterations[iteration],
            int(names[at[0]][0]),
            tuple(int(layer) for layer in names[at, 1] if layer != NO_LABEL),
            float(late[at, gpu, iteration].sum()),
            float(excess[at, gpu, iteration].sum()),
        )
        for gpu, iteration in np.argwhere(counts.any(axis=0)).tolist()
        for at in _neighbours(np.flatnonzero(counts[:, gpu, iteration]), names)
    ]
    least = case.step_ns * LATE_HOST.value / 100
    of_phase: dict[int, list[Stretch]] = {}
    for stretch in sorted(stretches, key=lambda one: -one.lost_ns):
        if stretch.lost_ns >= least:
            of_phase.setdefault(stretch.phase, []).append(stretch)
    found = []
    for own in of_phase.values():
        found += [_one_stretch(case, own[0])] if len(own) == 1 else [_stretches(case, own)]
    return found


def _by_place(case: Case) -> tuple[Float64, Int64]:
    """Idle time before launch calls by (phase, layer), GPU and iteration; and these places."""
    names, owner = case.together("phase", "layer")
    shape = (len(names), len(case.gpus), len(case.iterations))
    place = (owner * shape[1] + case.gpu_place) * shape[2] + case.iteration_place
    idle = summed(place, case.cells.sum("idle_host_ns"), int(np.prod(shape)))
    return idle.reshape(shape), names


def _expected(late: Float64) -> Float64:
    """What is usual at each place: on the same GPU in other iterations, on other GPUs in this."""
    _, gpus, iterations = late.shape
    usual = np.zeros(late.shape)
    for axis, count in ((1, gpus), (2, iterations)):
        if count < 2:
            continue
        if count > _MANY:
            usual = np.maximum(usual, np.median(late, axis=axis, keepdims=True))
            continue
        for one in range(count):
            rest = np.delete(late, one, axis=axis)
            own = [slice(None)] * 3
            own[axis] = slice(one, one + 1)
            middle = np.median(rest, axis=axis, keepdims=True)
            usual[tuple(own)] = np.maximum(usual[tuple(own)], middle)
    return usual


def _neighbours(at: Index, names: Int64) -> list[Index]:
    """Places brought together where they are neighbouring layers of one phase."""
    ends = [
        number + 1
        for number, (one, other) in enumerate(pairwise(at.tolist()))
        if names[one][0] != names[other][0] or names[one][1] + 1 != names[other][1]
    ]
    return np.split(at, ends)


def _layers(case: Case, stretch: Stretch) -> str:
    """Where in its phase a stretch is, as the end of a phrase."""
    if stretch.layers:
        return f", layer{'s' if len(stretch.layers) > 1 else ''} {places(stretch.layers)}"
    return ", outside the layers" if (case.codes("layer") != NO_LABEL).any() else ""


def _one_stretch(case: Case, one: Stretch) -> Finding:
    labels = {
        "gpu": str(one.gpu),
        "iteration": case.text("iteration", one.iteration),
        "phase": case.text("phase", one.phase),
    }
    if len(one.layers) == 1:
        labels["layer"] = str(one.layers[0])
    usual = one.idle_ns - one.lost_ns
    when = f" of iteration {one.iteration}" if case.has_iterations else ""
    return Finding(
        sentence=(
            f"GPU {one.gpu}'s host is late in {_phase(case, one.phase)}{when}{_layers(case, one)}: "
            f"the GPU stands idle {time(one.idle_ns)} before its launch calls there, at the same "
            f"place elsewhere {time(usual) if usual >= _NOTHING_NS else 'not at all'}"
        ),
        evidence=case.with_view(
            "launch", "operation" if len(one.layers) == 1 else "layer", **labels
        ),
        confidence=confidence(read=True, repeated=False),
        stake_ns=one.lost_ns / len(case.iterations),
        total_ns=one.idle_ns,
    )


def _stretches(case: Case, late: list[Stretch]) -> Finding:
    """Several places of a phase; GPUs that are late at once cost an iteration no more than one."""
    lost: dict[int, dict[int, float]] = {}
    for one in late:
        of_gpus = lost.setdefault(one.iteration, {})
        of_gpus[one.gpu] = of_gpus.get(one.gpu, 0.0) + one.lost_ns
    named = "; ".join(
        f"{time(one.idle_ns)} on GPU {one.gpu}, iteration {one.iteration}{_layers(case, one)}"
        for one in late[:_NAMED]
    )
    more = f"; and {len(late) - _NAMED} more" if len(late) > _NAMED else ""
    total = sum(one.idle_ns for one in late)
    phase = case.text("phase", late[0].phase)
    return Finding(
        sentence=(
            f"hosts are late at {len(late)} places of {_phase(case, late[0].phase)}, elsewhere "
            f"they aren't; the GPUs stand idle {time(total)} there before launch calls: "
            f"{named}{more}"
        ),
        evidence=replace(case.with_view("launch", "gpu", phase=phase), sort="-idle_host_ns"),
        confidence=confidence(read=True, repeated=True),
        stake_ns=sum(max(of_gpus.values()) for of_gpus in lost.values()) / len(case.iterations),
        total_ns=total,
    )
