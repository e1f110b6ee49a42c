"""Clocks: unsteady ones, low and dropping ones, and GPUs that a limiter slows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.analyses.outliers import MAD_TO_SIGMA
from chopper_core.analyses.power_samples import LIMITER, samples_of
from chopper_core.analyses.samples import sampled, spans_of
from chopper_core.columns import is_measured
from chopper_core.findings.rule import (
    ITS_GPUS,
    ROBUST_Z,
    SMALLEST_SAVING,
    WORST_GPU,
    Cost,
    Finding,
    FindingsContext,
    Group,
    drift_of,
    low_interval,
    rule,
    threshold,
)
from chopper_core.findings.titles import gpus_in_short, one_line, up_to_clock
from chopper_core.model.column_names import CYCLES, integral_of, known_of, samples_in
from chopper_core.model.groups import comparable_kernels
from chopper_core.model.hardware import Hardware
from chopper_core.model.phrases import by_number, percent, recurrence, time
from chopper_core.model.table import Kind
from chopper_core.util.arrays import Float64, Index
from chopper_core.util.grouping import (
    means_of,
    median_of,
    places_by,
    ranked,
    ratios,
    sums_of,
)
from chopper_core.work.kernel_classes import MATRIX_CLASSES

UNSTEADY: Final = threshold("""deviation of a clock | 0.6 | % of its mean
    within an operation, where the load is the same. In the generated runs a steady clock
    deviates by up to 0.5 %, an unsteady one by 0.7 to 1.5 %; no measured run was available""")
SAMPLES: Final = threshold("""samples per GPU | 20 | at least
    with fewer, a deviation may be a coincidence""")
_MAX_SHOWN: Final = 16
"""Of more steps, evenly chosen ones are analysed."""
_CLOCKS: Final = {"gfx_mhz": "compute units", "mem_mhz": "memory"}
_CLOCK_NAMES: Final = {"gfx_mhz": "clock", "mem_mhz": "memory clock"}


@rule(
    "clock",
    cost="compute time lost while the clock is below its mean in the same operation and phase; "
    "unknown for the memory clock",
    needs="telemetry of clocks",
    thresholds=(UNSTEADY, SAMPLES),
)
def unsteady_clocks(context: FindingsContext) -> Iterator[Finding]:
    """Clocks that vary under the same load."""
    for name, unit in _CLOCKS.items():
        if not is_measured(name, context.table):
            continue
        deviation, mean, lost_ns = _deviations(context, name)
        # One that drops, or that is low in some iterations, is another finding.
        if name == "gfx_mhz" and _drift(context, name) is not None:
            continue  # So is one that drifts.
        drops = _drops(context) if name == "gfx_mhz" else {}
        deviation[[place for own in drops.values() for place, _ in own]] = 0.0
        unsteady = np.flatnonzero(deviation > UNSTEADY.share * mean)
        if not len(unsteady):
            continue
        most = int(unsteady[np.argmax(deviation[unsteady] / mean[unsteady])])
        gpu = context.gpus[most]
        own = [context.gpus[place] for place in unsteady.tolist()]
        sentence = (
            f"the clock of the {unit} is unsteady on {by_number('GPU', own)}"
            f"{f', most on GPU {gpu}' if len(own) > 1 else ''}: its standard deviation is "
            f"{deviation[most]:.0f} MHz ({percent(deviation[most] / mean[most])}) of "
            f"{mean[most]:,.0f} MHz within the same operation{_over_time(context, name, gpu)}"
        )
        saving = total = None
        if name == "gfx_mhz":
            total = float(lost_ns[unsteady].sum())
            saving = float(lost_ns[unsteady].mean()) / len(context.iterations)
            sentence += f"; compute below the mean clock takes {time(saving)}{context.each} longer"
        evidence = context.with_signal(name, f"-sd_{name}")
        which = gpus_in_short(context, own)
        part = percent(deviation[most] / mean[most])
        yield context.finding(
            one_line(
                f"the {_CLOCK_NAMES[name]} is unsteady on {which}", f": {part} standard deviation"
            ),
            sentence,
            evidence,
            Cost.CLOCK,
            saving,
            is_measured=False,
            cost_of=ITS_GPUS,
            total_ns=total,
            cells=context.cells_of(gpu=own),
            changes=(),
            group=Group.BETTER if saving is None else None,
        )


def _over_time(context: FindingsContext, name: str, gpu: int) -> str:
    """The deviation over all the time, as the view of power has it, as the end of a phrase."""
    signal, spans = context.run.measured.get(name), spans_of(context.run, context.view)
    if signal is None or gpu not in signal.curves or gpu not in spans:
        return ""
    deviation = sampled(signal.curves[gpu], spans[gpu]).deviation()
    return f", {deviation:.0f} MHz over all the time" if np.isfinite(deviation) else ""


def _deviations(context: FindingsContext, name: str) -> tuple[Float64, Float64, Float64]:
    """Per GPU: standard deviation within operations, mean, and time lost below the mean.

    Each instance of an operation, in a layer and step, counts with its mean clock.
    """
    area, weight = context.compute_sums(name)
    clock = area / np.maximum(weight, 1e-9)

    def means(owner: Index, values: Float64) -> Float64:
        return sums_of(values * weight, owner) / np.maximum(sums_of(weight, owner), 1e-9)

    same, gpu = context.together("gpu", "phase", "operation")[1], context.place("gpu")
    usual = means(same, clock)[same]
    deviation = np.sqrt(means(gpu, (clock - usual) ** 2))
    lost = weight * np.maximum(1 - clock / np.maximum(usual, 1e-9), 0.0)
    samples, _ = context.split("gpu").known(samples_in(name))
    deviation[samples < SAMPLES.value] = 0.0
    return deviation, means(gpu, clock), sums_of(lost, gpu)


BELOW_NOMINAL: Final = threshold("""clock of the compute units below the nominal one | 21 | %
    power management under full load costs about a fifth (the paper); more is another limit""")
USUAL: Final = threshold("""usual clock under full load | 80 | % of the nominal one
    the same; the saving is up to it""")
SPARE_POWER: Final = threshold(
    """power below the limit | 15 | % of the power cap, or of the specified power
    power management lowers the clock only near the cap"""
)
BELOW_WITH_POWER: Final = threshold(
    """clock of the compute units below the nominal one, with power to spare | 8 | %
    then power management is not the reason; products of one kind differ by a few percent"""
)
CLUSTERS: Final = threshold("""clocks of two clusters of GPUs | 4 | % apart
    clocks of GPUs of one product differ by about a percent""")
MEMORY_BELOW: Final = threshold("""memory clock below the nominal one | 4 | %
    under load it doesn't vary""")


def _sets_pace(context: FindingsContext, signal: str, mhz: float) -> str:
    """Why a higher clock on all GPUs saves more than the mean loses; empty where they are alike."""
    by_gpu = context.split("gpu")
    each = context.figure(signal, by_gpu).numbers
    slowest = float(np.nanmin(each, initial=mhz))
    if slowest > (1 - CLUSTERS.share) * mhz:
        return ""
    gpu = int(by_gpu.codes("gpu")[int(np.nanargmin(each))])
    return f"GPU {gpu} with {slowest:,.0f} MHz sets the pace, and gains most"


@rule(
    "low-clock",
    cost="compute time lost to it: of matrix kernels up to the usual clock, of others for the "
    "memory's; at most that of all compute up to the nominal clock",
    needs="telemetry of clocks, a GPU with known specifications",
    thresholds=(CLUSTERS, BELOW_NOMINAL, USUAL, SPARE_POWER, BELOW_WITH_POWER, MEMORY_BELOW),
)
def low_clocks(context: FindingsContext) -> Iterator[Finding]:
    """Clocks far below the nominal ones on most GPUs."""
    chip = context.run.hardware
    if chip is None:
        return
    known = {"gfx_mhz": chip.clock_mhz, "mem_mhz": chip.memory_mhz}
    clocks = {name: mhz for name, mhz in known.items() if mhz is not None}
    measured = [name for name in clocks if is_measured(name, context.table)]
    matrix, others = _compute_ns(context) if measured else (0.0, 0.0)
    for signal in measured:
        mhz, nominal = _mean(context, signal), clocks[signal]
        lower, aim, of = 1 - mhz / nominal, nominal, ""
        if signal == "mem_mhz":
            limit, saving, change = MEMORY_BELOW, others * lower, f"memory x{1 - lower:.4f}"
            why = "and work without matrix products depends on it: it loses"
        elif CYCLES in context.table.measured:
            continue
        elif (power := _share_of_cap(context, chip)) <= 1 - SPARE_POWER.share:
            limit, saving, change = BELOW_WITH_POWER, matrix * lower, f"clock={nominal:.0f}"
            why = f"though compute draws {percent(power)} of the power limit: matrix kernels lose"
        else:
            aim, of = USUAL.share * nominal, "a usual "
            limit, saving, change = BELOW_NOMINAL, matrix * (1 - mhz / aim), f"clock={aim:.0f}"
            why = f"and about {percent(1 - USUAL.share)} is usual under full load: beyond that "
            why += "matrix kernels lose"
        if lower > limit.share:
            gpus = "the GPUs" if len(context.gpus) > 1 else "the GPU"
            name = "clocks" if signal == "gfx_mhz" else "memory clocks"
            sinks, when, now = "", "", mhz
            if low := lower_in(context, signal):
                when, now = low.when, low.mhz
                sinks = f", {low.mhz:,.0f} vs {low.usual_mhz:,.0f} MHz{when}"
            elif drift := _drift(context, signal):
                sinks = f", and it drifts from {drift[0]:,.0f} to {drift[1]:,.0f} MHz"
                sinks += f" over {len(context.iterations)} steps"
                when = ", drifting down" if drift[1] < drift[0] else ", drifting up"
            yield context.finding(
                one_line(f"{name} run at {now:,.0f} of {of}{aim:,.0f} MHz", when),
                f"the clock of the {_CLOCKS[signal]} is {percent(lower)} below nominal on {gpus} "
                f"({mhz:,.0f} vs {nominal:,.0f} MHz){sinks}, {why} {time(saving)}{context.each}; "
                f"{up_to_clock(aim)}",
                context.with_signal(signal, f"mean_{signal}"),
                Cost.CLOCK if signal == "gfx_mhz" else Cost.KERNELS,
                saving,
                is_measured=False,
                changes=(change,),
                why_more=_sets_pace(context, signal, mhz) or "other kernels get faster, too",
            )


def _drift(context: FindingsContext, name: str) -> tuple[float, float] | None:
    """From where to where the clock of the GPUs drifts over the steps; None where it doesn't."""
    return drift_of(context.by_step(name).mean(axis=0), DROP.share)


class LowerClock(Struct, frozen=True):
    """Clocks that are lower in some neighbouring steps, or from one on."""

    when: str
    """The end of a phrase."""
    mhz: float
    usual_mhz: float
    """In the other steps."""


def lower_in(context: FindingsContext, name: str) -> LowerClock | None:
    """In which steps the clocks of the GPUs are lower, by their mean; None where they are as high
    in all steps, or drift."""
    each = context.by_step(name).mean(axis=0)
    if not 4 <= len(each) <= _MAX_COMPARED or not np.isfinite(each).all():
        return None
    first, end, drop = low_interval(each / each.max())
    if drop < _least_drop(each / each.max()):
        return None
    inside = (np.arange(len(each)) >= first) & (np.arange(len(each)) < end)
    when = recurrence(range(first, end), context.iterations)
    return LowerClock(when, float(each[inside].mean()), float(each[~inside].mean()))


def _least_drop(relative: Float64) -> float:
    """What a clock drops by at least, beyond what it varies by from step to step."""
    spread = MAD_TO_SIGMA * median_of(np.abs(np.diff(relative)))
    return max(DROP.share, ROBUST_Z.value * spread)


def _mean(context: FindingsContext, name: str) -> float:
    """The median over GPUs; of two clusters, such as nodes of which one is capped, over the one
    with more: a mean over both is nobody's."""
    sums = context.compute_sums(name)
    of_gpu, covered = (sums_of(each, context.place("gpu")) for each in sums)
    there = covered > 0
    if not there.any():
        return np.nan
    values = np.sort(of_gpu[there] / covered[there])
    gaps = np.diff(values) / np.maximum(values[:-1], 1e-9)
    if len(gaps) > 1 and gaps[:-1].max() >= max(CLUSTERS.share, gaps[-1]):
        values = values[int(gaps.argmax()) + 1 :]
    return median_of(values)


def _share_of_cap(context: FindingsContext, chip: Hardware) -> float:
    if not is_measured("power_w", context.table):
        return np.nan
    has_cap = is_measured("power_cap_w", context.table)
    cap = _mean(context, "power_cap_w") if has_cap else chip.tdp_w
    return _mean(context, "power_w") / cap if cap > 0 else np.nan


def _compute_ns(context: FindingsContext) -> tuple[float, float]:
    table, rows = context.table, context.node.selection
    durations = np.where(table.kind[rows] == Kind.COMPUTE, table.duration_ns[rows], 0)
    took = sums_of(durations, table.kernel[rows], len(table.names))
    matrix = float(took[context.of_classes(MATRIX_CLASSES)].sum())
    return context.per_iteration(matrix), context.per_iteration(float(took.sum()) - matrix)


DROP: Final = threshold("""drop of a clock | 2 | % of its usual
    within the same operations and phases, where the load is the same; steady clocks vary by half
    a percent""")
_MAX_COMPARED: Final = 64


@rule(
    "clock-drop",
    cost="compute time that the lower clock costs the GPU while it lasts, over all steps",
    needs="telemetry of clocks, four steps or more",
    thresholds=(DROP,),
)
def clock_drops(context: FindingsContext) -> Iterator[Finding]:
    """Clocks that drop in some neighbouring steps, or from one on: of a GPU, or of several
    at the same time."""
    count = len(context.iterations)
    for (first, end), every in _drops(context).items():
        own = [one for one in every if not _holds_back(context, one[0], first, end)]
        if not own:
            continue
        numbers, gpus = context.iterations[first:end], [context.gpus[place] for place, _ in own]
        lost = [float((context.busy_ns[place, first:end] * drop).sum()) for place, drop in own]
        when = recurrence(range(first, end), context.iterations)
        saving, most = max(lost) / count, percent(max(drop for _, drop in own))
        which = short = f"GPU {gpus[0]}'s clock drops by {most}"
        if len(gpus) > 1:
            which = f"the clocks of {context.gpus_text(gpus)} drop by up to {most}"
            short = f"the clocks of {gpus_in_short(context, gpus)} drop by up to {most}"
        yield context.finding(
            one_line(f"{short}{when}"),
            f"{which}{when}, in the same operations; {time(saving)}{context.each}",
            context.with_signal("gfx_mhz", "mean_gfx_mhz"),
            Cost.CLOCK,
            saving,
            is_repeated=len(numbers) > 1,
            gpu=gpus[0] if len(gpus) == 1 else None,
            cost_of="" if len(gpus) == 1 else WORST_GPU,
            cells=context.cells_of(iteration=numbers, gpu=gpus),
        )


Drops = dict[tuple[int, int], list[tuple[int, float]]]
"""First and last place of steps → the places of GPUs whose clock is lower there, and by how
much."""


def _drops(context: FindingsContext) -> Drops:
    if (
        not is_measured("gfx_mhz", context.table)
        or not 4 <= len(context.iterations) <= _MAX_COMPARED
    ):
        return {}

    def found() -> Drops:
        drops: Drops = {}
        for place, cells in places_by(context.place("gpu")).items():
            relative = _by_iteration(context, cells)
            if not np.isfinite(relative).all():
                continue
            first, end, drop = low_interval(relative)
            if drop >= _least_drop(relative):
                drops.setdefault((first, end), []).append((place, drop))
        return drops

    return context.run.memo(("clock drops", context.view.path, context.view.cut), found)


def _holds_back(context: FindingsContext, place: int, first: int, end: int) -> bool:
    """Whether a GPU is a straggler by its clock in just these steps, which says it all."""
    leads, own = context.leads, set(context.iterations[first:end])
    return leads is not None and any(
        late.cause == "clock"
        and leads.gpus[late.place] == context.gpus[place]
        and {leads.iterations[at] for at in late.when} == own
        for late in leads.stragglers
    )


def _by_iteration(context: FindingsContext, own: Index) -> Float64:
    """The clock of a GPU's cells in each step, relative to its highest usual one in the same
    operations."""
    count = len(context.iterations)
    _, same = ranked(context.together("phase", "operation")[1][own])
    cell = same * count + context.place("iteration")[own]
    size = (int(same.max(initial=-1)) + 1) * count
    sums = context.compute_sums("gfx_mhz")
    areas, covered = (sums_of(each[own], cell, size).reshape(-1, count) for each in sums)
    mhz = ratios(areas, covered)
    whole = np.isfinite(mhz).all(axis=1)
    relative = ratios(mhz[whole], mhz[whole].max(axis=1, keepdims=True))
    weight = covered[whole]
    return ratios((relative * weight).sum(axis=0), weight.sum(axis=0))


_SHARE: Final = "throttle_pct"
_FREE_PCT: Final = 1.0
_LIMITED_PCT: Final = 50.0
"""Of a kernel's time under a limiter: with less it is unthrottled, with more throttled."""
THROTTLED: Final = threshold("""throttled | 10 | % of the time
    single samples under a limiter are normal at full load""")


@rule(
    "throttled",
    cost="time that the clock below the nominal one costs them, beyond GPUs not throttled; "
    "without counters, that of their kernels beyond the same kernels while nothing limits them",
    needs="telemetry of limiters; for the saving hardware counters, or samples of both kinds",
    thresholds=(THROTTLED,),
)
def throttled(context: FindingsContext) -> Iterator[Finding]:
    """GPUs that a limiter slows down, as their driver reports."""
    if not is_measured(_SHARE, context.table):
        return
    each = context.by_step(_SHARE)
    share = context.by_gpu(_SHARE)
    slowed = np.flatnonzero(np.nan_to_num(share) >= THROTTLED.value)
    free, chip = np.delete(np.arange(len(context.gpus)), slowed), context.run.hardware
    # The time that each GPU loses to a clock below the nominal one.
    lost = context.by_step("frequency_ns")
    usual_ns = _median(lost[free])
    # One whose clock is no lower than that of GPUs without a limiter isn't slowed by its own.
    beyond = lost[slowed].mean(axis=1) - usual_ns
    slowed = slowed[~(context.share(beyond) < SMALLEST_SAVING.share)]
    if not len(slowed):
        return
    gpus = [context.gpus[place] for place in slowed.tolist()]
    limited = np.nan_to_num(each[slowed].mean(axis=0)) >= THROTTLED.value
    when = np.flatnonzero(limited)
    sentence = (
        f"{context.gpus_text(gpus)} {'is' if len(gpus) == 1 else 'are'} throttled "
        f"{range_of(share[slowed])} of the time"
    )
    if since := recurrence(when.tolist(), context.iterations):
        sentence += f", {range_of(each[slowed][:, when].mean(axis=1))}{since}"
    sentence += _limiter(context, gpus)
    saving, total, whose = None, None, WORST_GPU
    if np.isfinite(lost[slowed]).all():
        usual: float | Float64 = 0.0
        if np.isfinite(usual_ns):
            usual = usual_ns
        elif not limited.all():
            usual = lost[:, ~limited].mean(axis=1)
        saving = max(float((lost.mean(axis=1) - usual)[slowed].max()), 0.0)
        total = saving * len(gpus) * len(context.iterations)
    elif (total := _beyond_unthrottled(context, gpus)) is not None:
        saving, whose = total / len(context.iterations) / len(gpus), ITS_GPUS
    changes = None
    if chip is not None and not len(free) and limited.all():
        changes = (f"clock={chip.clock_mhz:.0f}",)
    evidence = context.with_signal(_SHARE, "-throttled_pct")
    is_are = "is" if len(gpus) == 1 else "are"
    title = (
        f"{gpus_in_short(context, gpus)} {is_are} throttled {range_of(share[slowed])} of the time"
    )
    yield context.finding(
        one_line(title, since),
        sentence,
        evidence,
        Cost.CLOCK,
        saving,
        is_measured=False,
        total_ns=total,
        gpu=gpus[0] if len(gpus) == 1 else None,
        cost_of=whose if len(gpus) > 1 else "",
        cells=context.cells_of(gpu=gpus, iteration=[context.iterations[at] for at in when]),
        changes=changes,
    )


def _median(lost: Float64) -> float:
    """The median of GPUs' means over steps, of those that are known."""
    means = lost.mean(axis=1)
    return median_of(means[np.isfinite(means)])


def range_of(percents: Float64) -> str:
    least, most = float(percents.min()), float(percents.max())
    return f"{most:.0f} %" if most - least < 1 else f"{least:.0f} to {most:.0f} %"


def _limiter(context: FindingsContext, gpus: list[int]) -> str:
    if not any(name.startswith(LIMITER) for name in context.run.measured):
        return ""
    means: dict[str, float] = {}
    for own in samples_of(context.run, context.view):
        for name, values in own.signals.items():
            if own.gpu in gpus and name.startswith(LIMITER) and len(values):
                means[name] = max(means.get(name, 0.0), values.mean())
    if not means:
        return ""
    most = max(means, key=lambda name: means[name])
    # Limiters are sampled apart, more coarsely than what they are a part of.
    return f", mostly by its limiter {most.removeprefix(LIMITER)}"


def _beyond_unthrottled(context: FindingsContext, gpus: list[int]) -> float | None:
    """Time of throttled compute kernels beyond the mean of the same kernels unthrottled, in ns.

    None where no kernel ran in both states.
    """
    table, rows = context.table, context.node.rows
    rows = rows[table.kind[rows] == Kind.COMPUTE]
    sums = [table.measured[name][rows] for name in (integral_of(_SHARE), known_of(_SHARE))]
    share = ratios(*sums)
    took = table.duration_ns[rows].astype(np.float64)
    codes, kernel = ranked(comparable_kernels(table, rows))
    free = share < _FREE_PCT
    usual = means_of(took[free], kernel[free], len(codes))[kernel]
    both = (share >= _LIMITED_PCT) & np.isin(table.gpu[rows], gpus) & np.isfinite(usual)
    return max(float((took - usual)[both].sum()), 0.0) if both.any() else None
