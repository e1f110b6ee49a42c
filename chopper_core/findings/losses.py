"""Losses of a whole run: the largest overhead, copies that nothing hides, poor matrix products."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopper_core.analyses.time_parts import LOSSES, parts_of
from chopper_core.columns import is_measured
from chopper_core.findings.clocks import lower_in
from chopper_core.findings.rule import (
    Cost,
    Finding,
    FindingsContext,
    Group,
    largest_first,
    largest_parts,
    rule,
    threshold,
)
from chopper_core.findings.titles import largest_part, of_name, one_line, shortened, up_to_clock
from chopper_core.model.column_names import AT_PEAK, RECOMPUTED
from chopper_core.model.groups import Groups, grouped
from chopper_core.model.phrases import listed, percent, time
from chopper_core.model.table import Kind
from chopper_core.util.arrays import Index
from chopper_core.util.grouping import combined, distinct, first_equal, sums_of

OVERHEAD: Final = threshold("""largest overhead | 15 | % of the GPUs' time
    DVFS, the largest overhead in the paper, costs about a fifth; below this it is one of many""")
LARGEST: Final = threshold("""largest overhead, relative to the next | 1.2 | times
    none of several losses of similar size stands out""")

_SUBJECTS: Final = {
    RECOMPUTED: "activation recomputation is",
    "extra_inst_ns": "matrix instructions beyond the model's FLOPs are",
    "mfma_loss_ns": "idle matrix units in matrix kernels are",
    "vector_ns": "work without matrix instructions is",
    "contention_ns": "contention with other activities during compute is",
    "frequency_ns": "a clock below nominal is",
    "unseparated_ns": "time that a lower clock may cost is",
}
"""The losses of compute; communication, copies and idle time have rules of their own."""
_COSTS: Final = {
    "contention_ns": Cost.CONTENTION,
    "frequency_ns": Cost.CLOCK,
    "unseparated_ns": Cost.CLOCK,
}
_OF_CLOCK: Final = ("frequency_ns", "unseparated_ns")
_UNATTRIBUTED: Final = "unmodelled_ns"
_MAX_UNATTRIBUTED: Final = 0.1
"""Of a GPU that has a larger share of unattributed time, compute is not split."""
_MAX_LISTED: Final = 3


@rule(
    "overhead",
    cost="that part of the breakdown, on GPUs whose compute can be split",
    needs="hardware counters",
    thresholds=(OVERHEAD, LARGEST),
)
def largest_overhead(context: FindingsContext) -> Iterator[Finding]:
    """A loss of compute that is by far the largest loss of all."""
    by_gpu = context.split("gpu")
    each = parts_of(context.run, by_gpu)
    unattributed = each.numbers(_UNATTRIBUTED) / np.maximum(each.elapsed_ns, 1)
    split = np.flatnonzero(unattributed <= _MAX_UNATTRIBUTED)
    if not len(split):
        return
    gpus = [int(by_gpu.codes("gpu")[place]) for place in split]
    is_all = len(gpus) == len(context.gpus)
    whole = context.split()
    if not is_all:
        rows = np.concatenate([by_gpu.rows_of(int(place)) for place in split])
        whole = Groups.single(context.table, rows)
    parts = parts_of(context.run, whole)
    elapsed = int(parts.elapsed_ns[0])
    sizes = {name: int(parts.numbers(name)[0]) for name in LOSSES if name != _UNATTRIBUTED}
    name, following = sorted(sizes, key=lambda name: -sizes[name])[:2]
    size, after = sizes[name], sizes[following]
    if size <= 0 or size < elapsed * OVERHEAD.share or size < LARGEST.value * after:
        return
    if name not in _SUBJECTS:
        return
    by = "" if len(gpus) == 1 or is_all else "gpu"
    next_to = f"the next is {LOSSES[following]} with {percent(after / elapsed)}"
    if not is_all and each.values[name].present().all():
        # Known on all GPUs, such as the cost of a low clock: only the comparison needs counters.
        next_to += f" on {context.gpus_text(gpus)}"
        gpus, is_all = [int(gpu) for gpu in by_gpu.codes("gpu")], True
        size, elapsed = int(each.numbers(name).sum()), int(each.elapsed_ns.sum())
    count = len(gpus) * len(context.iterations)
    where = "" if is_all else f" on {context.gpus_text(gpus)}"
    hardware = context.run.hardware
    nominal = ""
    if name == "frequency_ns" and hardware is not None:
        nominal = (
            f"; {up_to_clock(hardware.clock_mhz)}, the nominal clock, which no GPU holds under "
        )
        nominal += "full load"
    change = "no contention"
    if name != "contention_ns":
        change = f"compute x{1 - size / max(_compute_ns(context, gpus), 1):.4f}"
    if name in _OF_CLOCK and hardware is not None:
        change = f"clock={hardware.clock_mhz:.0f}"
    sort = f"-{name.removesuffix('_ns')}_pct"
    # Compute that counters can't split may hide a larger one.
    known = (
        "known " if int(each.numbers(_UNATTRIBUTED).sum()) > int(each.numbers(name).sum()) else ""
    )
    evidence = context.with_view("overheads", by, sort=sort)
    share = f"{percent(size / elapsed)} {context.of_step}"
    title = f"{_SUBJECTS[name]} the largest {known}loss", f": {share}"
    why = ""
    if name == "frequency_ns" and hardware is not None:
        mhz = float(context.figure("gfx_mhz", context.split() if is_all else whole).known()[0])
        lower = lower_in(context, "gfx_mhz")
        where = f"{where}, lower{lower.when}" if lower else where
        title = f"clocks run at {mhz:,.0f} of {hardware.clock_mhz:,.0f} MHz on average", where
        if len(gpus) > 1:
            why = "the GPU with the lowest clock sets the pace, and gains most"
        evidence = replace(evidence, columns=("elapsed_ns", name, sort[1:], "gfx_mhz"))
    yield context.finding(
        one_line(*title),
        f"{_SUBJECTS[name]} the largest {known}overhead{where}: {time(size / count)}"
        f"{context.each}, {share}{nominal}; {next_to}",
        evidence,
        _COSTS.get(name, Cost.KERNELS),
        size / count,
        is_measured=False,
        is_repeated=count > 1,
        total_ns=float(size),
        cells=context.cells_of(gpu=gpus),
        changes=(change,),
        # Every GPU loses that much: what one of them loses beyond it is a cause.
        group=None if name == "contention_ns" else Group.BETTER,
        is_limit=name in _OF_CLOCK,
        why_more=why,
    )


def _compute_ns(context: FindingsContext, gpus: list[int]) -> float:
    own = context.computes & context.cells_of(gpu=gpus)
    return float(context.cells.sum("duration_ns")[own].sum())


COPIES: Final = threshold("""exposed copies | 1 | % of the step
    batches and losses take microseconds; pinned memory and another stream hide the rest""")
_LEAST_COPIES: Final = 0.1
"""Of the phase with the most: a host that waits for a copy of a microsecond does so for another
reason, which stays without the copies."""


@rule(
    "copies",
    cost="exposed copies, mean over GPUs",
    thresholds=(COPIES,),
)
def exposed_copies(context: FindingsContext) -> Iterator[Finding]:
    """Copies between host and GPU that nothing hides."""
    table, rows = context.table, context.node.rows
    own = rows[table.kind[rows] == Kind.COPY]
    alone = table.exposed_copy_ns[own]
    total = float(alone.sum())
    each = context.per_iteration(total)
    if context.share(each) < COPIES.share:
        return
    kinds, owner = combined([table.kernel[own], table.phase[own]])
    parts = largest_parts(context, "kernel", kinds, sums_of(alone, owner))
    names, of_name = combined([table.kernel[own]])
    of_names = sums_of(alone, of_name, len(names))
    kernel = context.text("kernel", int(names[of_names.argmax(), 0]))
    phases, of_phase = combined([table.phase[own]])
    of_phases = sums_of(alone, of_phase, len(phases))
    large = phases[of_phases >= _LEAST_COPIES * of_phases.max(), 0]
    share = percent(each / context.usual_ns)
    # The activities by name, those with most exposed copies first.
    yield context.finding(
        one_line(
            f"exposed copies take {share} {context.of_step}",
            largest_part(shortened(kernel.partition(" (")[0]), float(of_names.max()), total),
        ),
        f"exposed copies take {time(each)}{context.per_gpu} ({share} {context.of_step}): "
        f"{listed(parts, _MAX_LISTED)}",
        replace(
            context.split_by("kernel"),
            columns=("exposed_copy_ns", "kernels", "mean_ns"),
            sort="-exposed_copy_ns",
        ),
        Cost.COPIES,
        each,
        cells=np.isin(context.codes("phase"), large),
    )


MATRIX_USE: Final = threshold("""use of the matrix units in large products | 50 | %
    a rule of thumb: libraries tuned for the shapes reach 70 to 80 %""")
PEAK_REACHED: Final = threshold("""FLOPs of large products, relative to the peak | 40 | %
    use of 50 % at a clock of 80 % of the nominal one, where no counters tell the two apart""")
LARGE_PRODUCT: Final = threshold("""large product | 1 | % of the step
    a smaller one is hardly worth tuning""")
_PRODUCT: Final = "gemm"


@rule(
    "products",
    of_durations=True,
    group=Group.BETTER,
    cost="kernel time beyond what they would take at the threshold, mean over GPUs",
    needs="hardware counters, or shapes in the trace",
    thresholds=(MATRIX_USE, PEAK_REACHED, LARGE_PRODUCT),
)
def poor_products(context: FindingsContext) -> Iterator[Finding]:
    """Large matrix products that make little use of the matrix units.

    Counters tell the use; without them it is the model's FLOPs relative to the peak.
    """
    table, rows = context.table, context.node.rows
    known = _best_metric(context, rows[context.of_classes({_PRODUCT})[table.kernel[rows]]])
    if known is None:
        return
    metric, limit, rows, verdict = known
    parent = Groups.single(table, rows)
    codes, nodes = grouped(parent, table.operation[rows].astype(np.int64))
    reached = context.figure(metric, nodes)
    spots = len(distinct(table.gpu[rows])) * len(context.iterations)
    took = nodes.sum("duration_ns") / spots
    poor = reached.present() & (np.nan_to_num(reached.numbers) < limit)
    poor &= took >= LARGE_PRODUCT.share * context.step_ns
    if not poor.any():
        return
    lost = np.where(poor, took * (1 - np.nan_to_num(reached.numbers) / limit), 0.0)
    saving = float(lost.sum())
    # An operation has other kernels too, which its row in the evidence counts.
    every = context.split("gpu", "operation")
    there = np.isin(every.codes("gpu"), distinct(table.gpu[rows]))
    place = first_equal(codes, every.codes("operation").astype(np.int64))
    own = there & (place >= 0)
    whole = sums_of(every.sum("duration_ns")[own], place[own], len(codes)) / spots

    def taken(place: int) -> str:
        own, all_of_it = time(took[place]), time(whole[place])
        return own if own == all_of_it else f"{own} of {all_of_it}"

    named = listed(
        (
            f"{context.text('operation', codes[place])} {_reached(reached.numbers[place])} "
            f"({taken(place)})"
            for place in largest_first(lost)
        ),
        _MAX_LISTED,
    )
    most = largest_first(lost)[0]
    first = shortened(context.text("operation", codes[most]))
    share = _reached(reached.numbers[most])
    is_peak, number = metric == "peak_pct", int(poor.sum())
    title = of_name(
        f"{first} reaches {share} of the matrix peak"
        if is_peak
        else f"{first} keeps the matrix units {share} busy"
    )
    if number > 1:
        title = one_line(
            f"{number} operations reach less than {limit:.0f} % of the matrix peak"
            if is_peak
            else f"{number} operations keep the matrix units less than {limit:.0f} % busy",
            f": {first} {share}",
        )
    cells = context.cells_of(operation=codes[poor].tolist())
    # These operations also run kernels of unknown FLOPs: the factor is one of all that they run.
    counted = context.computes & cells & context.cells_of(gpu=distinct(table.gpu[rows]).tolist())
    computed = float(context.cells.sum("duration_ns")[counted].sum()) / spots
    yield context.finding(
        title,
        f"large matrix products {verdict}: {named}; at {limit:.0f} %, which is a rule of thumb, "
        f"they would take {time(saving)} less{context.each}",
        replace(
            context.with_view("kernels", "operation", sort="-kernel_ns"),
            columns=("kernel_ns", "kernel_pct", "kernels", metric, "mean_ns"),
            filter=f"{metric}<{limit:g}",
        ),
        Cost.KERNELS,
        saving,
        is_measured=metric == "mfma_util_pct",
        total_ns=saving * spots,
        cells=cells,
        changes=(f"compute x{1 - saving / max(computed, 1.0):.4f}",),
    )


def _reached(percents: float) -> str:
    """A part of a peak in whole percent: less than one is not nothing."""
    return f"{percents:.0f} %" if percents >= 1 else "less than 1 %"


def _best_metric(context: FindingsContext, rows: Index) -> tuple[str, float, Index, str] | None:
    measured = context.table.measured
    if is_measured("mfma_util_pct", context.table):
        counted = rows[np.isfinite(measured["SQ_VALU_MFMA_BUSY_CYCLES"][rows])]
        if len(counted):
            verdict = "make little use of the matrix units"
            return "mfma_util_pct", MATRIX_USE.value, counted, verdict
    known = rows[np.isfinite(measured[AT_PEAK][rows])] if AT_PEAK in measured else rows[:0]
    verdict = "reach little of the peak of the matrix units"
    return ("peak_pct", PEAK_REACHED.value, known, verdict) if len(known) else None
