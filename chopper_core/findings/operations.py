"""Operations that take longer on one GPU, in one layer or in one step than elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.analyses.outliers import MAD_TO_SIGMA
from chopper_core.findings.iterations import slow_iterations
from chopper_core.findings.rule import (
    FEWEST,
    ROBUST_Z,
    SMALLEST_SAVING,
    Cost,
    Finding,
    FindingsContext,
    Threshold,
    outlier_limit,
    rule,
    threshold,
    weighted_medians,
)
from chopper_core.findings.titles import of_name, one_line, shortened
from chopper_core.model.phrases import (
    count,
    level_title,
    listed,
    longer_by,
    percent,
    than_or_as,
    time,
)
from chopper_core.model.table import NO_LABEL, Phase, Rule
from chopper_core.model.view import Baseline, View
from chopper_core.util.arrays import Float64, Index, Int64, Mask
from chopper_core.util.grouping import (
    counts_of,
    distinct,
    grouped_by,
    median_of,
    medians_along,
    nth_of,
    numbered_rows,
    others_median,
    others_median_of,
    ranked,
    ratios,
    sums_of,
)
from chopper_core.work.kernel_classes import MATRIX_CLASSES

_MAX_OVERLAP: Final = 0.1
"""Of the compute time of an operation in a layer, during communication."""
SLOWER_HERE: Final = threshold("""operation slower on one GPU | 6 | %
    beyond all of that GPU's compute; work that happens to run next to a kernel can slow it by as
    much""")
SLOWER_BESIDE: Final = threshold(
    """operation slower on one GPU, where communication always runs during it | 20 | %
    as for contention: a collective that transfers costs less"""
)
EVERYWHERE: Final = threshold("""steps in which it is slower | 75 | %
    occasional slowness depends on what happened to run next to it""")
MEMORY_BOUND: Final = Threshold(
    "slow memory: operations without matrix products that are slower",
    60.0,
    "% of their time, and less than half as much of the others",
    "one slow operation points to that operation, all memory-bound ones to the memory",
)
_MIN_OPERATION: Final = 0.002
"""Of the step; shorter operations vary too much to tell what is usual."""
_MIN_COMPARED: Final = 0.1
"""Of an operation's time, without communication during it."""
_LOWER_MEMORY_CLOCK: Final = 0.98
_MAX_LISTED: Final = 3
_PIECE: Final = 1 << 18


class SlowPart(Struct, frozen=True):
    """An operation of a phase that takes longer on one GPU, in one layer or in one step."""

    phase: int
    operation: int
    where: int
    """The GPU, the layer or the step."""
    ratio: float
    excess_ns: float
    """Summed over GPUs and steps."""
    more: int = 0
    """How many kernels more it runs there, per GPU and step."""
    stage: int = 0
    """Of a pipeline, whose stages may each count layers from 0."""

    @property
    def how(self) -> str:
        if np.isinf(self.ratio):
            return f"{count(self.more, 'kernel')} only there"
        longer = longer_by(self.ratio)
        return f"{longer}, with {count(self.more, 'more kernel')}" if self.more > 0 else longer


def _longer(context: FindingsContext, parts: list[SlowPart], where: str) -> str:
    names = {part.operation: context.text("operation", part.operation) for part in parts}
    is_one = len(names) == 1
    what = f"{names[parts[0].operation]} takes" if is_one else f"{len(names)} operations take"
    each = (
        f"{'' if is_one else f'{names[part.operation]} '}{part.how} in {context.phase(part.phase)}"
        for part in sorted(parts, key=lambda part: -part.excess_ns)
    )
    return f"{what} longer {where}: {listed(each, _MAX_LISTED)}"


def _longer_in_short(
    context: FindingsContext, parts: list[SlowPart], where: str, others: str = ""
) -> str:
    """The same as a title: of one operation in all its phases, of several by the largest part."""
    most = max(parts, key=lambda part: part.excess_ns)
    names = {part.operation for part in parts}
    name = shortened(context.text("operation", most.operation))
    ratio = _ratio_of(parts)
    how = "runs only there" if np.isinf(ratio) else f"takes {longer_by(ratio)}"
    if len(names) > 1:
        up_to = max((part.ratio for part in parts if np.isfinite(part.ratio)), default=1.0)
        name, how = f"{len(names)} operations", f"take up to {longer_by(up_to)}"
    than = f" {than_or_as(ratio)} {others}" if others else ""
    return (one_line if len(names) > 1 else of_name)(
        f"{name} {how} {where}",
        *(
            [f": most by {shortened(context.text('operation', most.operation))}"]
            if len(names) > 1
            else [than]
            if np.isfinite(ratio)
            else []
        ),
    )


def _ratio_of(parts: Sequence[SlowPart]) -> float:
    """How many times as long parts take together as usual; infinite where one runs only there."""
    if any(np.isinf(part.ratio) for part in parts):
        return np.inf
    usual_ns = sum(part.excess_ns / (part.ratio - 1) for part in parts)
    return 1 + sum(part.excess_ns for part in parts) / usual_ns


class ComparedCompute(Struct, frozen=True):
    """How much longer compute takes than that of peers, by phase and operation (rows) and GPU."""

    known_ns: Float64
    """The time of peers that is compared with."""
    ratio: Float64
    """By which factor each takes longer than usual, beyond what most of the GPU's compute does."""
    each: Float64
    """The same in each step; NaN where there is nothing to compare with."""
    faster: Float64
    """By which factor most of each GPU's compute takes less long than usual; 1 where it doesn't."""

    def often(self, limit: float) -> Mask:
        """Whether it takes longer by more than a share in most steps."""
        known: Int64 = np.isfinite(self.each).sum(axis=2)
        found: Mask = (self.each > 1 + limit).sum(axis=2) / np.maximum(known, 1) >= EVERYWHERE.share
        return found


def _compared(context: FindingsContext) -> tuple[Float64, ComparedCompute, ComparedCompute]:
    """The compute by phase and operation and GPU.

    First its time, then how much longer it takes than that of peers without communication during
    it, then with it, which takes as long: a collective that transfers slows kernels more than one
    that waits, and GPUs that lag wait less. Of each operation in a layer and step a GPU's
    peers are the GPUs that run the same kernels of it, of the same shapes: another stage of a
    pipeline, a micro-step more, or an expert with more tokens is compared with no one.
    """
    cells, labels, parts = context.computing
    pairs, gpus, iterations = len(parts), len(context.gpus), len(context.iterations)
    spot = context.place("gpu") * iterations + context.place("iteration")
    pair = context.together("phase", "operation")[1]
    duration, overlap = (context.cells.sum(name) for name in ("duration_ns", "overlap_ns"))
    sums = np.zeros((5, pairs, gpus * iterations))
    for first, last in _pieces(parts):
        at = slice(parts[first].start, parts[last - 1].stop)
        own, label = cells[at], labels[at] - labels[at.start]
        took, work = duration[own].astype(np.float64), context.cell_work[own]
        # Most cells of a label do the same: one number for those tells them from the few others.
        usual_work = np.zeros(int(label[-1]) + 1, np.int64)
        usual_work[label] = work
        work = np.where(work == usual_work[label], -1, work)
        stage = context.stage[spot[own] // iterations]
        like = numbered_rows([label, work, stage])
        has_peers = counts_of(like)[like] > 1
        values = [np.where(has_peers, took, 0.0)]
        for chosen in (has_peers & (overlap[own] <= _MAX_OVERLAP * took), has_peers):
            usual = others_median_of(np.where(chosen, took, np.nan), like)
            usual = np.where(chosen & np.isfinite(usual), usual, 0.0)
            values += [usual, np.where(usual > 0, took, 0.0)]
        owner = (pair[own] - first) * gpus * iterations + spot[own]
        for whole, each in zip(sums[:, first:last], values, strict=True):
            whole[:] = sums_of(each, owner, whole.size).reshape(whole.shape)
    took_ns, *compared = sums.reshape(-1, pairs, gpus, iterations)

    def longer(usual_ns: Float64, own_ns: Float64) -> ComparedCompute:
        known = usual_ns.sum(axis=2)
        whole = 1 + (own_ns - usual_ns).sum(axis=2) / np.maximum(known, 1.0)
        most = weighted_medians(whole, known)
        general = np.maximum(most, 1.0)
        each = ratios(own_ns, usual_ns) / general[:, None]
        faster = general / np.maximum(most, np.finfo(np.float64).tiny)
        return ComparedCompute(known, whole / general, each, faster)

    return took_ns.sum(axis=2), longer(*compared[:2]), longer(*compared[2:])


def _pieces(parts: list[slice]) -> Iterator[tuple[int, int]]:
    """Neighbouring parts, from one to another: their cells fit into the processor's cache."""
    first = 0
    for last, part in enumerate(parts, 1):
        if last == len(parts) or part.stop - parts[first].start >= _PIECE:
            if part.stop > parts[first].start:
                yield first, last
            first = last


@rule(
    "gpu-operation",
    cost="kernel time there beyond the median of the GPU's peers, minus what all of its "
    "compute takes longer",
    needs="two GPUs or more",
    thresholds=(SLOWER_HERE, SLOWER_BESIDE, EVERYWHERE, MEMORY_BOUND),
)
def slow_on_a_gpu(context: FindingsContext) -> Iterator[Finding]:
    """Operations that take longer on one GPU than on its peers, one by one or all that memory
    bounds."""
    if len(context.gpus) < 2:
        return
    pairs = context.together("phase", "operation")[0]
    took_ns, without_comm, any_time = _compared(context)
    counts = took_ns >= _MIN_OPERATION * context.step_ns * len(context.iterations)
    alone = counts & (without_comm.known_ns >= _MIN_COMPARED * took_ns)
    if not alone.any():
        return
    own = np.where(alone, without_comm.ratio, any_time.ratio)
    # What is as fast as all else on a fast GPU doesn't vary.
    spread = MAD_TO_SIGMA * median_of(np.abs(own * without_comm.faster - 1)[alone])
    limit = max(SLOWER_HERE.share, ROBUST_Z.value * spread)
    slow = alone & (own > 1 + limit) & without_comm.often(limit / 2)
    # Work only during communication: less than it may cost counts where the same operation
    # is slow without it.
    operation = ranked(pairs[:, 1])[1]
    same = np.zeros((int(operation.max()) + 1, len(context.gpus)), np.bool_)
    np.logical_or.at(same, operation, slow)
    least = np.where(same[operation], limit, max(SLOWER_BESIDE.share, limit))
    slow |= counts & ~alone & (own > 1 + least) & any_time.often(limit / 2)
    excess = np.where(slow, took_ns * (1 - 1 / np.maximum(own, 1.0)), 0.0)
    excess /= len(context.iterations)
    matrix = _matrix_operations(context, pairs[:, 1])
    for place in np.flatnonzero(slow.any(axis=0)).tolist():
        saving, gpu = float(excess[:, place].sum()), context.gpus[place]
        if context.share(saving) < SMALLEST_SAVING.share:
            continue
        chosen = np.flatnonzero(slow[:, place])
        took = took_ns[:, place] * counts[:, place]
        names = set(pairs[chosen, 1].tolist())
        if _is_memory(took, pairs[:, 0], slow[:, place], matrix):
            gained = float((excess[chosen, place] / (own[chosen, place] - 1)).sum())
            slower = 1 + saving / gained
            title = one_line(f"GPU {gpu} has {percent(saving / gained)} slower memory")
            text = (
                f"GPU {gpu} has slower memory{_memory_clock(context, place)}: operations without "
                f"matrix products take {longer_by(slower)} {than_or_as(slower)} on the other GPUs"
            )
        elif (pairs[chosen, 0] == Phase.OPTIMIZER).all() and len(names) > 1:
            usual = float(took_ns[chosen, place].sum()) / len(context.iterations) - saving
            longer = longer_by(1 + saving / max(usual, 1.0))
            title = one_line(f"GPU {gpu}'s optimizer kernels take {longer}")
            text = (
                f"GPU {gpu} takes longer in the optimizer than the other GPUs: its kernels there "
                f"take {longer}"
            )
        else:
            columns = (*pairs[chosen].T, own[chosen, place], excess[chosen, place])
            parts = [
                SlowPart(phase, operation, gpu, ratio, ns)
                for phase, operation, ratio, ns in zip(*(c.tolist() for c in columns), strict=True)
            ]
            title = _longer_in_short(context, parts, f"on GPU {gpu}")
            text = _longer(context, parts, f"on GPU {gpu} than on the other GPUs")
        if len(names) == 1:
            evidence = _tree_by(context, names.pop(), "gpu")
        else:
            of_gpu = took_ns[chosen].sum(axis=0)
            distance = np.abs(of_gpu - median_of(of_gpu))
            distance[place] = np.inf
            usual_gpu = context.at(gpu=str(context.gpus[int(distance.argmin())]))
            evidence = replace(
                context.at(gpu=str(gpu)),
                name="compare",
                by="operation",
                of="compute_busy_ns",
                baseline=Baseline("", usual_gpu.path),
            )
        yield context.finding(
            title,
            f"{text}; {time(saving)}{context.each}",
            evidence,
            Cost.KERNELS,
            saving,
            is_repeated=len(context.iterations) > 1,
            gpu=gpu,
            cells=context.cells_of_pairs(chosen),
        )


def _matrix_operations(context: FindingsContext, operations: Int64) -> Mask:
    nodes = context.split("operation", "kernel")
    is_matrix = context.of_classes(MATRIX_CLASSES)[nodes.codes("kernel")]
    operation = nodes.codes("operation").astype(np.int64) + 1
    duration = nodes.sum("duration_ns")
    number = len(context.table.operations) + 1
    whole = np.maximum(sums_of(duration, operation, number), 1)
    found: Mask = (sums_of(duration * is_matrix, operation, number) / whole)[operations + 1] >= 0.5
    return found


def _is_memory(took: Float64, phase: Int64, slow: Mask, matrix: Mask) -> bool:
    """Whether memory-bound work is slow on a GPU, and hardly anything else is."""

    def share(where: Mask) -> float:
        return float(took[where & slow].sum()) / max(float(took[where].sum()), 1.0)

    # The optimizer alone would be most of it where parameters aren't sharded.
    of_memory = min(share(~matrix), share(~matrix & (phase != Phase.OPTIMIZER)))
    return of_memory >= MEMORY_BOUND.share and share(matrix) < of_memory / 2


def _memory_clock(context: FindingsContext, place: int) -> str:
    mhz = context.by_gpu("mem_mhz")
    usual = float(others_median(mhz)[place])
    if not mhz[place] < _LOWER_MEMORY_CLOCK * usual:
        return ""
    return f" (memory clock {mhz[place]:,.0f} vs {usual:,.0f} MHz)"


SLOWER: Final = threshold("""slower than elsewhere | 10 | %
    clocks vary by a few percent within a step, and kernels with them""")
CONSISTENT: Final = threshold("""where it is slower | 75 | % of GPUs and steps
    what a layer or an operation causes shows on every GPU and in every step""")


@rule(
    "layer",
    of_durations=True,
    cost="kernel time there beyond the median of the other layers, mean over GPUs",
    needs="labelled layers",
    thresholds=(SLOWER, CONSISTENT),
)
def slow_in_a_layer(context: FindingsContext) -> Iterator[Finding]:
    """Operations that take longer in one layer than in the others, wherever they run, or that
    only one layer has."""
    yield from _slower(context, _slow_parts(context, "layer"), "layer")


@rule(
    "operation",
    of_durations=True,
    cost="kernel time there beyond the median of the other steps, mean over GPUs, spread "
    "over all steps",
    needs="labelled steps",
    thresholds=(SLOWER, CONSISTENT),
)
def slow_in_an_iteration(context: FindingsContext) -> Iterator[Finding]:
    """Operations that take longer in one step than in the others, on every GPU.

    A step that is slow as a whole is another finding.
    """
    if len(context.iterations) < FEWEST.value:
        return
    slow = context.all_iterations[slow_iterations(context)].tolist()
    yield from _slower(context, _slow_parts(context, "iteration"), "iteration", slow)


def _slower(
    context: FindingsContext, parts: Iterable[SlowPart], level: str, slow: list[int] | None = None
) -> Iterator[Finding]:
    """A finding of each label of a level; of `slow` ones only where one operation is slower."""
    found = grouped_by(parts, lambda part: (part.where, part.stage))
    for (where, stage), own in found.items():
        is_one = len({part.operation for part in own}) == 1
        total = sum(part.excess_ns for part in own)
        saving = context.per_iteration(total)
        is_known = where in (slow or ()) and not is_one
        if is_known or context.share(saving) < SMALLEST_SAVING.share:
            continue
        evidence = _tree_by(context, own[0].operation, level)
        if not is_one:
            rows = context.split_by("operation", **{level: str(where)})
            evidence = replace(rows, sort="-kernel_ns")
        gpus = np.array(context.gpus)[context.stage == stage].tolist()
        is_one_of = level == "layer" and len(gpus) < len(context.gpus)
        of_stage = f" of stage {stage}" if is_one_of else ""
        text = _longer(
            context,
            own,
            f"in {level_title(level)} {where}{of_stage} than in the other {level_title(level)}s",
        )
        pairs = [context.cells_of(phase=part.phase, operation=part.operation) for part in own]
        cells = np.logical_or.reduce(pairs) & context.cells_of(**{level: where})
        cells &= context.cells_of(gpu=gpus) if is_one_of else cells
        changes = None
        if any(part.more for part in own):
            took = context.cells.sum("duration_ns")[cells & context.computes].sum()
            changes = (f"compute x{max(1 - total / took, 0.0):.4f}",)
        yield context.finding(
            _longer_in_short(
                context, own, f"in {level_title(level)} {where}{of_stage}", "in the others"
            ),
            f"{text}; {time(saving)}{context.per_gpu}",
            evidence,
            Cost.KERNELS if changes is None else Cost.WORK,
            saving,
            total_ns=total,
            cells=cells,
            changes=changes,
        )


def _tree_by(context: FindingsContext, operation: int, level: str) -> View:
    view = context.split_by(level, operation=context.text("operation", operation))
    return replace(view, columns=("mean_ns", "max_ns", "kernels", "kernel_ns"), sort="-mean_ns")


def _slow_parts(context: FindingsContext, level: str) -> Iterator[SlowPart]:
    """The operations and phases with a layer, or step, that stands out from the others.

    A layer may be the only one that has it. Work before the first layer and after the last may be
    taken for theirs, unless the host was in them.
    """
    codes = context.codes(level)
    cells, _, parts = context.computing
    every = [own[codes[own] != NO_LABEL] for own in (cells[part] for part in parts)]
    if not any(map(len, every)):
        return
    width, stage = int(codes.max()) + 1, context.stage
    member, gpu, iteration = nth_of(stage), context.place("gpu"), context.place("iteration")
    duration, kernels = context.cells.sum("duration_ns"), context.cells.sizes()
    spots = len(context.gpus)
    if level == "layer":
        # One row has all stages.
        spots = (int(member.max()) + 1) * len(context.iterations)

    def labels_of(own: Index) -> Int64:
        return codes[own] + (stage[gpu[own]] * width if level == "layer" else 0)

    layers = distinct(labels_of(np.concatenate(every)))
    pairs = context.together("phase", "operation")[0].tolist()
    for (phase, operation), own in zip(pairs, every, strict=True):
        if duration[own].sum() / context.spots <= context.step_ns * SMALLEST_SAVING.share:
            continue
        columns, column = ranked(labels_of(own))
        rule = context.layer_rule[own]
        direct, repeated = rule <= Rule.AUTOGRAD, rule == Rule.REPETITION
        spot = gpu[own]
        if level == "layer":
            spot = member[spot] * len(context.iterations) + iteration[own]
        if level == "layer" and len(columns) == 1 and len(layers) >= FEWEST.value:
            is_known = columns[0] in layers[1:-1] or direct.mean() >= CONSISTENT.share
            if is_known and len(own) >= CONSISTENT.share * spots:
                more, excess = round(float(kernels[own].mean())), float(duration[own].sum())
                at_stage, where = divmod(int(columns[0]), width)
                yield SlowPart(phase, operation, where, np.inf, excess, more, at_stage)
        if len(columns) < FEWEST.value:
            continue
        cell = spot * len(columns) + column
        times, sizes, works = (
            sums_of(values[own].astype(np.float64), cell, spots * len(columns)).reshape(spots, -1)
            for values in (duration, kernels, context.cell_work)
        )
        # Where a GPU or an iteration lacks one of them, there is nothing to compare.
        whole = (times > 0).all(axis=1)
        times, sizes, works = times[whole], sizes[whole], works[whole]
        for place in np.flatnonzero(_outlying(times)).tolist() if len(times) else ():
            usual, usual_size, usual_work = (
                medians_along(np.delete(each, place, axis=1), 1) for each in (times, sizes, works)
            )
            more = round(median_of(sizes[:, place] - usual_size))
            at_border = place in (0, len(columns) - 1)
            sure = direct[column == place].mean() >= CONSISTENT.share
            # Layers that repeat have the same kernels, unless one is taken for its neighbour's.
            doubtful = at_border or repeated[column == place].any()
            if more and (level == "iteration" or (doubtful and not sure)):
                # Other kernels under the same general name don't make a slow operation.
                continue
            if level == "iteration" and (works[:, place] == usual_work).mean() < CONSISTENT.share:
                continue  # Longer sequences take longer everywhere.
            at_stage, where = divmod(int(columns[place]), width)
            yield SlowPart(
                phase,
                operation,
                where=where,
                ratio=float(times[:, place].sum() / usual.sum()),
                excess_ns=float((times[:, place] - usual).sum() * spots / len(times)),
                more=more,
                stage=at_stage if level == "layer" else 0,
            )


def _outlying(times: Float64) -> Mask:
    """Which columns stand out in most rows, by their distance from the columns' median."""
    relative = times / medians_along(times, 1, keepdims=True)
    typical = medians_along(relative, 0)
    limit = outlier_limit(typical, SLOWER)
    there: Mask = (relative > limit).mean(axis=0) >= CONSISTENT.share
    return there & (typical > limit)
