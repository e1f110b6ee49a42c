"""Kernels that could be better on all GPUs alike: of a wide type, far below the memory roof, or
that only move data."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple

from chopper_core.findings.rule import (
    FEWEST,
    Cost,
    Finding,
    FindingsContext,
    Group,
    largest_first,
    rule,
    threshold,
)
from chopper_core.findings.titles import of_name, one_line, shortened
from chopper_core.model.column_names import FLOPS, FLOPS_TYPE, MODEL_BYTES
from chopper_core.model.groups import work_of
from chopper_core.model.hardware import ElementType
from chopper_core.model.phrases import count, listed, percent, time
from chopper_core.model.table import NO_LABEL, KernelTable, Phase
from chopper_core.util.arrays import Float64, Index, Int8, Mask
from chopper_core.util.grouping import (
    combined,
    counts_of,
    distinct,
    median_of,
    minima_of,
    numbered_rows,
    quantiles_of,
    ranked,
    run_mask,
    run_starts,
    sums_of,
)
from chopper_core.util.patterns import late
from chopper_core.work.kernel_classes import MATRIX_CLASSES

WIDER: Final = threshold("""time that a product of a wider type takes longer | 1 | % of the step
    a small one, such as a router's, is often wide on purpose""")
FEWER_FLOPS: Final = threshold("""peak of the wider type | 60 | % of the main type's, at most
    types of about the same peak are not worth changing""")
MEMORY_ROOF: Final = threshold("""bytes of the model per time | 10 | % of the memory bandwidth
    kernels that memory bounds reach 50 to 90 %; a tenth leaves room for what the model of bytes
    doesn't know""")
LARGE_KERNEL: Final = threshold("""kernels far below the memory roof | 3 | % of the step
    smaller ones are hardly worth a change""")
MOVED: Final = threshold("""kernels that only copy | 4 | % of the step
    casts of mixed precision take 1 to 3 %""")
UNFUSED: Final = threshold("""softmax of its own | 1.5 | % of the step
    fused attention has none; a router's or a sampler's is small""")
SMALL: Final = threshold("""small kernel | 10 | µs
    the GPU takes a few microseconds to begin and end any kernel""")
MANY_SMALL: Final = threshold("""small kernels of the optimizer | 200 | per step and GPU
    fused or foreach optimizers run some tens""")
SMALL_COST: Final = threshold("""time of these kernels, with gaps | 2 | % of the step
    less is hardly worth a change""")
SLOW_START: Final = threshold("""slower at the start of steps | 5 | % longer than later
    the same kernels of other layers vary by a percent or two""")
SLOW_START_COST: Final = threshold("""cost of a slow start | 1 | % of the step
    the same as for a straggler""")
_PARTS: Final = 40
"""Of a step, in which kernels are compared by when they begin."""
_AT_FIRST: Final = 0.4
"""Of a step: what is slower for longer isn't its start."""
_LEFT: Final = 0.25
"""Of how much slower kernels are at first: with less the start is over."""
_MOST_SPOTS: Final = 0.75
"""Of GPUs and steps, which show it."""
_FEWEST_LIKE: Final = 3
"""Kernels that a usual time needs."""
_PIECE: Final = 1 << 17
"""Kernels that fit into the processor's cache."""
_LARGE_BYTES: Final = 1 << 22
"""Of a kernel: launch and latency bound smaller ones."""
_MAX_LISTED: Final = 3
_MOST_BETWEEN: Final = 8
"""Kernels between two products of attention: scale, mask, casts, softmax, dropout."""
_COPIES: Final = late(
    r"direct_copy|float\w*_copy_kernel|copy_device_to_device|transpose|contiguous|CatArrayBatchedCopy"
)
_OF_FSDP: Final = late(r"FSDP|FullyShard|all_gather|reduce_scatter|chunk_cat|split_with_sizes")
_SOFTMAX: Final = late(r"(?i)(?<!log)softmax_?(?:warp_)?(?:forward|backward)(?!.*logsoftmax)")


def _own_name(kernel: str) -> str:
    """A kernel's name without its namespaces and template arguments."""
    return shortened(kernel.partition("<")[0].removeprefix("void ").rpartition("::")[2])


def _named(pattern: re.Pattern[str], names: Sequence[str]) -> Mask:
    """Which of some names a pattern is found in."""
    return np.array([bool(pattern.search(each)) for each in names], np.bool_)


class Excess(Struct, frozen=True, eq=False):
    """Activities that could take less, and how much less each: what such a rule finds."""

    context: FindingsContext
    rows: Index
    ns: Float64

    @property
    def cost_ns(self) -> float:
        """Per GPU and step."""
        return self.context.per_iteration(float(self.ns.sum()))

    @property
    def text(self) -> str:
        return time(self.cost_ns)

    @property
    def share(self) -> float:
        """Of the step."""
        return self.context.share(self.cost_ns)

    @property
    def of_step(self) -> str:
        """Its part of a step in words."""
        return f"{percent(self.cost_ns / self.context.usual_ns)} {self.context.of_step}"

    @property
    def kernels(self) -> float:
        """The number of the activities per GPU and step."""
        return len(self.rows) / max(self.context.spots, 1)

    def most(self, level: str) -> tuple[str, str]:
        """The label that has most of it, in short; and those that do with what each has."""
        codes, code = combined([self.context.table.column(level)[self.rows]])
        sums = sums_of(self.ns, code, len(codes))
        order = largest_first(sums)
        labels = [self.context.text(level, int(codes[at, 0])) for at in order]
        times = [time(self.context.per_iteration(float(sums[at]))) for at in order]
        named = (f"{label} {taken}" for label, taken in zip(labels, times, strict=True))
        return shortened(labels[0]), listed(named, _MAX_LISTED)

    def finding(self, title: str, detail: str, level: str) -> Finding:
        """A finding in the cells that have most of it."""
        context = self.context
        owner = context.cells.numbers_of(self.rows)
        lost = sums_of(self.ns[owner >= 0], owner[owner >= 0], len(context.cells))
        inside = lost > 0
        took = float((context.cells.sum("duration_ns") * (inside & context.computes)).sum())
        whole = float(self.ns.sum())
        return context.finding(
            title,
            detail,
            context.with_view("kernels", level, sort="-kernel_ns"),
            Cost.KERNELS,
            self.cost_ns,
            is_measured=False,
            total_ns=whole,
            cells=inside,
            changes=(f"compute x{max(1 - whole / max(took, 1.0), 0.0):.4f}",),
        )


@rule(
    "wide-type",
    of_durations=True,
    group=Group.BETTER,
    cost="kernel time beyond what the same FLOPs take at the same part of the main type's peak, "
    "mean over GPUs",
    holds=(0.5, 1.3),
    needs="shapes and types in the trace",
    thresholds=(WIDER, FEWER_FLOPS),
)
def wide_type(context: FindingsContext) -> Iterator[Finding]:
    """Matrix products of a wider type than most, such as a head that was left in fp32."""
    table, chip = context.table, context.run.hardware
    if chip is None or FLOPS_TYPE not in table.measured or FLOPS not in table.measured:
        return
    rows = context.computing_rows
    rows = rows[context.of_classes(MATRIX_CLASSES)[table.kernel[rows]]]
    flops, element = (table.measured[name][rows] for name in (FLOPS, FLOPS_TYPE))
    peaks = np.array([chip.flop_per_ns(each) for each in ElementType])
    known = np.isfinite(flops) & (flops > 0) & np.isfinite(element)
    rows, flops, code = rows[known], flops[known], element[known].astype(np.intp)
    if not len(rows):
        return
    main = int(sums_of(flops, code, len(peaks)).argmax())
    ratio = peaks[code] / peaks[main]
    is_wide = np.isfinite(ratio) & (ratio <= FEWER_FLOPS.share)
    rows, code = rows[is_wide], code[is_wide]
    lost = Excess(context, rows, table.duration_ns[rows] * (1 - ratio[is_wide]))
    if lost.share < WIDER.share:
        return
    first, named = lost.most("operation")
    types = list(ElementType)
    wide = types[int(sums_of(lost.ns, code, len(peaks)).argmax())].text
    yield lost.finding(
        of_name(f"{first} runs in {wide}", f", other products in {types[main].text}"),
        f"matrix products run in {wide}, while most run in {types[main].text}: "
        f"{named} beyond the same FLOPs in {types[main].text}; {lost.text}"
        f"{context.per_gpu} in all",
        "operation",
    )


@rule(
    "memory-roof",
    of_durations=True,
    group=Group.BETTER,
    cost="kernel time beyond what they would take at the threshold, mean over GPUs",
    holds=(0.5, 1.3),
    needs="shapes in the trace",
    thresholds=(MEMORY_ROOF, LARGE_KERNEL),
)
def far_below_memory_roof(context: FindingsContext) -> Iterator[Finding]:
    """Kernels without matrix products that move their bytes far slower than memory can."""
    table, chip = context.table, context.run.hardware
    if chip is None or MODEL_BYTES not in table.measured or not chip.memory_gbps > 0:
        return
    rows = context.computing_rows
    rows = rows[~context.of_classes(MATRIX_CLASSES)[table.kernel[rows]]]
    moved = table.measured[MODEL_BYTES][rows]
    rows = rows[np.isfinite(moved) & (moved >= _LARGE_BYTES)]
    if not len(rows):
        return
    least = table.measured[MODEL_BYTES][rows] / chip.memory_gbps
    took = table.duration_ns[rows].astype(np.float64)
    names, name = combined([table.kernel[rows]])
    whole, ideal = (sums_of(each, name, len(names)) for each in (took, least))
    reached = ideal / np.maximum(whole, 1.0)
    is_far = reached < MEMORY_ROOF.share
    lost_ns = np.where(is_far[name], took * (1 - reached[name] / MEMORY_ROOF.share), 0.0)
    if context.share(context.per_iteration(float(whole[is_far].sum()))) < LARGE_KERNEL.share:
        return
    of_name_ns = sums_of(lost_ns, name, len(names))
    order = largest_first(of_name_ns)
    named = [
        f"{_own_name(table.names[int(names[at, 0])])} {percent(float(reached[at]))} "
        f"({time(context.per_iteration(float(whole[at])))})"
        for at in order
    ]
    first = _own_name(table.names[int(names[order[0], 0])])
    lost = Excess(context, rows[lost_ns > 0], lost_ns[lost_ns > 0])
    yield lost.finding(
        of_name(f"{first} reaches {percent(float(reached[order[0]]))} of the memory bandwidth"),
        "kernels that only read and write memory reach little of its bandwidth: "
        f"{listed(named, _MAX_LISTED)}; at {MEMORY_ROOF.value:g} % they would take {lost.text} less"
        f"{context.per_gpu}",
        "kernel",
    )


@rule(
    "moved-data",
    of_durations=True,
    group=Group.BETTER,
    cost="time of these kernels, mean over GPUs",
    holds=(0.5, 1.1),
    thresholds=(MOVED,),
)
def moved_data(context: FindingsContext) -> Iterator[Finding]:
    """Kernels that only copy a tensor into another layout or type."""
    table, rows = context.table, context.computing_rows
    rows = rows[_named(_COPIES, table.names)[table.kernel[rows]]]
    own = ~_named(_OF_FSDP, table.operations)[table.operation[rows]]
    rows = rows[own & (table.overlap_ns[rows] < table.duration_ns[rows])]
    took_ns = (table.duration_ns[rows] - table.overlap_ns[rows]).astype(np.float64)
    took = Excess(context, rows, took_ns)
    if took.share < MOVED.share:
        return
    first, named = took.most("operation")
    yield took.finding(
        one_line(
            f"kernels that only copy tensors take {took.of_step}",
            f": {first}",
        ),
        f"{_kernels(took, 'only copies', 'only copy')} tensors into another layout or "
        f"type: {named}; {took.text}{context.per_gpu} in all",
        "operation",
    )


def _kernels(took: Excess, does: str, do: str) -> str:
    """Kernels a step as the subject of a sentence, with the verb of one and of several."""
    number = round(took.kernels)
    return f"{count(number, 'kernel')}{took.context.each} {does if number == 1 else do}"


@rule(
    "unfused-attention",
    of_durations=True,
    group=Group.BETTER,
    cost="time of the softmax kernels, and of what runs between the products around them, mean "
    "over GPUs",
    holds=(0.5, 2.0),
    thresholds=(UNFUSED,),
)
def unfused_attention(context: FindingsContext) -> Iterator[Finding]:
    """Attention whose softmax is a kernel of its own, as where it isn't fused."""
    table, rows = context.table, context.computing_rows
    is_softmax = _named(_SOFTMAX, table.names)
    if not is_softmax.any():
        return
    rows = rows[np.lexsort((table.start_ns[rows], table.stream[rows], table.gpu[rows]))]
    own = np.flatnonzero(is_softmax[table.kernel[rows]])
    softmax = Excess(context, rows[own], table.duration_ns[rows[own]].astype(np.float64))
    if softmax.kernels < FEWEST.value or softmax.share < UNFUSED.share:
        return
    _, named = softmax.most("kernel")
    rows = rows[_between_products(context, rows, own)]
    took = Excess(context, rows, table.duration_ns[rows].astype(np.float64))
    yield took.finding(
        one_line(f"attention isn't fused: its softmax and casts take {took.text}{context.a_step}"),
        f"{softmax.kernels:,.0f} softmax kernels{context.each} run on their own, as fused "
        f"attention has none: {named}; with the masks, casts and copies next to them, between the "
        f"products before and after, they take {took.text}{context.per_gpu}; fused products would "
        "not write what is between them, either",
        "kernel",
    )


def _between_products(context: FindingsContext, rows: Index, own: Index) -> Index:
    """The places of some activities and of those around them, up to the products before and after
    on their stream; of those without near products, their own."""
    table, number = context.table, len(rows)
    of_name = context.of_classes(MATRIX_CLASSES)[table.kernel[rows]]
    begins = run_mask(table.gpu[rows], table.stream[rows], table.iteration[rows])
    ends = of_name | begins
    place = np.arange(number)
    before = np.maximum.accumulate(np.where(ends, place, 0))
    after = np.minimum.accumulate(np.where(of_name, place, number)[::-1])[::-1]
    is_near = of_name[before[own]] & (after[own] - before[own] <= _MOST_BETWEEN + 1)
    is_near &= (after[own] < number) & (before[after[own] - 1] == before[own])
    is_near &= ~np.append(begins, True)[after[own]]
    changes = np.zeros(number + 1, np.int64)
    near = own[is_near]
    np.add.at(changes, before[near] + 1, 1)
    np.add.at(changes, after[near], -1)
    inside = np.cumsum(changes)[:number] > 0
    inside[own] = True
    return np.asarray(np.flatnonzero(inside), np.intp)


@rule(
    "small-kernels",
    of_durations=True,
    group=Group.BETTER,
    cost="their time, and the idle time between their launches and them, mean over GPUs",
    holds=(0.5, 1.3),
    thresholds=(SMALL, MANY_SMALL, SMALL_COST),
)
def small_kernels(context: FindingsContext) -> Iterator[Finding]:
    """Optimizers that update parameter by parameter, in hundreds of small kernels."""
    table, rows = context.table, context.computing_rows
    rows = rows[table.phase[rows] == Phase.OPTIMIZER]
    rows = rows[table.duration_ns[rows] < 1e3 * SMALL.value]
    took_ns = (table.duration_ns[rows] + table.idle_launch_ns[rows]).astype(np.float64)
    took = Excess(context, rows, took_ns)
    if took.kernels < MANY_SMALL.value or took.share < SMALL_COST.share:
        return
    mean = time(float(table.duration_ns[rows].mean()))
    _, named = took.most("operation")
    runs = f"the optimizer runs {took.kernels:,.0f} kernels"
    yield took.finding(
        one_line(f"{runs} of {mean}: {took.text}{context.a_step}"),
        f"{runs}{context.each} that take {mean} on average, one after the other: {named}; "
        f"with the gaps between them they take {took.text}"
        f"{context.per_gpu}; a fused optimizer runs a few large ones",
        "operation",
    )


def _gpu_by_gpu(table: KernelTable, rows: Index) -> list[slice]:
    """The places of rows in pieces of whole GPUs; in one piece where a GPU's aren't contiguous."""
    gpu = table.gpu[rows]
    first = run_starts(gpu)
    if (np.diff(gpu[first]) < 0).any():
        return [slice(len(rows))]
    first = first[run_starts(first // _PIECE)]
    return list(map(slice, first.tolist(), [*first[1:].tolist(), len(rows)]))


class _AgainstLater(Struct, frozen=True, eq=False):
    """Kernels of some GPUs, and the same ones of their GPU later in steps."""

    part: Int8
    """The part of its step in which each begins."""
    took_ns: Float64
    usual_ns: Float64
    """The median of those later; NaN where they are too few."""

    @property
    def known(self) -> Index:
        """The places of those that can be compared."""
        is_short = self.took_ns < 1e3 * SMALL.value
        return np.flatnonzero((self.usual_ns > 0) & ~is_short)


def _against_later(context: FindingsContext, rows: Index) -> _AgainstLater:
    table = context.table
    start, took_ns = table.start_ns[rows], table.duration_ns[rows]
    spots, spot = combined([table.gpu[rows], table.iteration[rows]])
    after = start - minima_of(start, spot, len(spots), int(start.max()))[spot]
    part = np.minimum(after * _PARTS // max(int(context.step_ns), 1), _PARTS - 1)
    # Communication next to them slows kernels, too.
    beside = np.rint(2 * table.overlap_ns[rows] / np.maximum(took_ns, 1)).astype(np.int64)
    work = ranked(work_of(table, rows))[1]
    same = [table.column(level)[rows] for level in ("gpu", "phase", "operation")]
    like = numbered_rows([*same, work, beside])
    count, is_later = int(like.max()) + 1, part >= _AT_FIRST * _PARTS / 2
    usual = quantiles_of(took_ns[is_later], like[is_later], count, (0.5,))[:, 0]
    usual[counts_of(like[is_later], count) < _FEWEST_LIKE] = np.nan
    return _AgainstLater(part.astype(np.int8), took_ns.astype(np.float64), usual[like])


@rule(
    "slow-start",
    cost="compute time there beyond that of the same kernels later, mean over GPUs",
    needs="kernels that repeat within a step",
    thresholds=(SLOW_START, SLOW_START_COST),
)
def slow_start(context: FindingsContext) -> Iterator[Finding]:
    """Kernels that are slower at the start of steps than the same ones later, on all GPUs: clocks
    that rise after a wait."""
    table, rows = context.table, context.computing_rows
    if not context.has_iterations or not len(rows):
        return
    # A part of the step with few operations says nothing: it is as the next one.
    operations = np.zeros((_PARTS, len(table.operations) + 1), np.bool_)
    when, longer = [], []
    for own in _gpu_by_gpu(table, rows):
        piece = _against_later(context, rows[own])
        known = piece.known
        when.append(piece.part[known])
        longer.append(piece.took_ns[known] / piece.usual_ns[known])
        operations[when[-1], table.operation[rows[own][known]]] = True
    is_known = operations.sum(axis=1) >= FEWEST.value
    if not is_known.any():
        return
    earliest = [each[own == is_known.argmax()] for each, own in zip(longer, when, strict=True)]
    slower = median_of(np.concatenate(earliest)) - 1
    if slower < SLOW_START.share:
        return
    ratio = quantiles_of(np.concatenate(longer), np.concatenate(when), _PARTS, (0.5,))[:, 0]
    after_it = np.minimum.accumulate(np.where(is_known, np.arange(_PARTS), _PARTS)[::-1])[::-1]
    ratio = np.append(ratio, 1.0)[after_it]
    at_first = ratio - 1 > _LEFT * slower
    width = int(np.argmin(at_first)) if not at_first.all() else _PARTS
    if width > _AT_FIRST * _PARTS:
        return
    # Nearly everywhere, and more than what varies.
    pieces = [_against_later(context, rows[own]) for own in _gpu_by_gpu(table, rows)]
    whole = _AgainstLater(*map(np.concatenate, zip(*map(astuple, pieces), strict=True)))
    part, took = whole.part, whole.took_ns
    spots, spot = combined([table.gpu[rows], table.iteration[rows]])
    at = whole.known[part[whole.known] < width]
    each = [sums_of(values[at], spot[at], len(spots)) for values in (took, whole.usual_ns)]
    shown = (each[0] > (1 + SLOW_START.share / 2) * each[1]).sum()
    names = len(distinct(table.operation[rows[at]]))
    lost_ns = np.where(part < width, took * (1 - 1 / np.maximum(ratio, 1.0)[part]), 0.0)
    lost = Excess(context, rows[lost_ns > 0], lost_ns[lost_ns > 0])
    few = shown < _MOST_SPOTS * len(spots) or names < FEWEST.value
    if few or lost.share < SLOW_START_COST.share:
        return
    # Layers whose kernels take as much longer later, in backward, are slow themselves.
    layer, later = table.layer[rows], whole.known[part[whole.known] >= width]
    own_layers = distinct(layer[at][layer[at] != NO_LABEL])
    later = later[np.isin(layer[later], own_layers)]
    if took[later].sum() > (1 + slower / 2) * whole.usual_ns[later].sum():
        return
    until = time(width * context.step_ns / _PARTS)
    yield lost.finding(
        one_line(f"kernels take up to {percent(slower)} longer in the first {until} of steps"),
        f"in the first {until} of steps kernels take up to {percent(slower)} longer than the same "
        f"ones later, ever less so: {lost.text}{context.per_gpu}; clocks that rise after a wait "
        "do that",
        "layer",
    )
