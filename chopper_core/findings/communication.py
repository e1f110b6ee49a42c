"""Communication: groups with slow links, time that nothing hides, and what it slows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.analyses.asked import Steady
from chopper_core.analyses.overlap import effect, overlaps_in
from chopper_core.findings.rule import (
    EXPLAINED,
    FEWEST,
    ITS_GPUS,
    WORST_GPU,
    Cost,
    Finding,
    FindingsContext,
    largest_parts,
    low_interval,
    rule,
    threshold,
)
from chopper_core.findings.titles import (
    MAX_TITLE,
    gpus_in_short,
    largest_part,
    of_name,
    one_line,
    shortened,
)
from chopper_core.graph.collectives import (
    PAIRWISE,
    Collectives,
    collectives_of,
    comm_rows,
    sent_and_received,
)
from chopper_core.graph.contention import MIN_DURATION_NS, TRANSFERS
from chopper_core.graph.questions import Predictor, exposed_transfers
from chopper_core.model.column_names import FLOPS
from chopper_core.model.groups import comparable_kernels
from chopper_core.model.phrases import listed, longer_by, percent, recurrence, than_or_as, time
from chopper_core.model.table import NO_LABEL, NO_LABEL_TEXT, KernelTable, Kind
from chopper_core.util.arrays import Codes, Float64, Index, Int64
from chopper_core.util.errors import NothingToShow
from chopper_core.util.grouping import (
    combined,
    counts_of,
    distinct,
    first_equal,
    grouped_by,
    medians_without,
    places_by,
    quantiles_of,
    ranked,
    sums_of,
)

SLOWER: Final = threshold("""slower transfer | 15 | % longer than in like groups
    links of one kind differ by a few percent""")
COST: Final = threshold("""cost of a slow link | 1 | % of the step
    the same as for a straggler""")


class SlowLink(Struct, frozen=True):
    """A process group, or a pair of GPUs, that transfers slower."""

    gpus: tuple[int, ...]
    kind: str
    """Its operation with the largest loss."""
    slower: float
    """How much longer its transfers take, as a share."""
    exposed_ns: float
    """Exposed communication that it adds, per step: mean of a group, of others on the worst GPU."""
    transfer_ns: float
    """Longer transfers, per step."""
    when: tuple[int, ...] = ()
    """The places of the steps in which it is slow; none: all."""
    of: int | None = None
    """The one GPU of which all links are slow."""
    is_group: bool = False
    """Whether it is a process group, whose GPUs lose alike; else a pair, or all of one GPU."""


@rule(
    "slow-link",
    cost="the exposed part of the longer transfers of the group",
    needs="several process groups with like collectives, or four pairs of GPUs with like transfers",
    thresholds=(SLOWER, COST),
)
def slow_link(context: FindingsContext) -> Iterator[Finding]:
    """A process group whose collectives transfer slower than like ones of other groups, or a pair
    of GPUs that sends and receives slower than others."""
    for link in slow_links(context):
        if context.share(link.transfer_ns) < COST.share:
            continue
        since = recurrence(link.when, context.iterations)
        takes, than = longer_by(1 + link.slower), than_or_as(1 + link.slower)
        slower = f"{percent(link.slower)} slower{since}"
        if than == "as":
            slower = f"{takes.removesuffix('long')}slow{since}"
        iterations = [context.iterations[at] for at in link.when]
        steps = {"iteration": iterations} if iterations else {}
        short, which = gpus_in_short(context, link.gpus), context.gpus_text(link.gpus)
        which = f"the link of {which} is slow"
        if link.of is not None:
            others = [gpu for gpu in link.gpus if gpu != link.of]
            short, which = f"GPU {link.of}", f"the links of GPU {link.of} with "
            which += f"{context.gpus_text(others)} are slow"
        yield context.finding(
            one_line(f"the link of {short} is {slower}", f": {shortened(link.kind)}"),
            f"{which}{since}: {link.kind} takes {takes} to transfer there {than} in like groups, "
            f"{time(link.transfer_ns)}{context.each}, {time(link.exposed_ns)} of that exposed",
            context.with_view("comms", "group", sort="bus_gbps"),
            Cost.COMMUNICATION,
            link.exposed_ns,
            cost_of=ITS_GPUS if link.is_group else WORST_GPU,
            is_repeated=len(context.iterations) > 1,
            total_ns=link.exposed_ns * len(link.gpus) * len(context.iterations),
            cells=context.cells_of(gpu=link.gpus, **steps),
        )


def slow_links(context: FindingsContext) -> list[SlowLink]:
    key = ("slow links", context.view.path, context.view.order)
    return context.run.memo(key, lambda: _slow_links(context))


def _slow_links(context: FindingsContext) -> list[SlowLink]:
    everything = collectives_of(context.run, context.compared)
    chosen = context.collectives
    if chosen is None or everything is None:
        return []
    return [*_slow_groups(context, chosen, everything), *_slow_pairs(context, everything)]


def _slow_pairs(context: FindingsContext, everything: Collectives) -> list[SlowLink]:
    """Pairs of GPUs whose sends and receives transfer slower than those of most pairs; those that
    one GPU has in common are one."""
    table, steps = context.table, np.array(context.iterations, np.int64)
    pairs = sent_and_received(everything)
    when = first_equal(steps, table.iteration[pairs[:, 0]].astype(np.int64))
    inside = (when >= 0) & np.isin(table.gpu[pairs], context.gpus).all(axis=1)
    pairs, when = pairs[inside], when[inside]
    # Forward and backward go in two directions.
    ends = np.sort(table.gpu[pairs], axis=1).T
    links, link = combined([*ends, table.phase[pairs[:, 0]]])
    if len(combined(list(ends))[0]) < FEWEST.value:
        return []
    begins = table.start_ns[pairs]
    ends = begins + table.duration_ns[pairs]
    # A send that was buffered has ended before its receive begins.
    is_buffered = ends[:, 0] < begins[:, 1]
    since = np.where(is_buffered, begins[:, 0], begins.max(axis=1))
    took = (ends[:, 0] - since).astype(np.float64)
    like = combined([table.operation[pairs[:, 0]], table.bytes[pairs[:, 0]]])[1]
    cells, cell = combined([like, link])
    medians = quantiles_of(took, cell, len(cells), (0.5,))[:, 0]
    # That of most pairs: a receive that begins late shows only the end of its transfer.
    usual = quantiles_of(medians, cells[:, 0], int(like.max()) + 1, (_OFTEN,))[like, 0]
    slower = took > (1 + SLOWER.share) * usual
    shape = len(links), len(steps)
    code = link * len(steps) + when
    each = [counts_of(own, len(links) * len(steps)).reshape(shape) for own in (code, code[slower])]
    slow_in = 2 * each[1] > each[0]
    is_always = 2 * each[1].sum(axis=1) > each[0].sum(axis=1)
    times = {
        place: () if is_always[place] else tuple(np.flatnonzero(slow_in[place]).tolist())
        for place in np.flatnonzero(is_always | slow_in.any(axis=1)).tolist()
    }
    longer = np.maximum(took - usual, 0.0)
    found = []
    for then, places in grouped_by(times, lambda place: times[place]).items():
        for gpu, own in _by_gpu({place: tuple(links[place, :2].tolist()) for place in places}):
            there = np.isin(link, own) & (np.isin(when, then) if then else True)
            exposed = np.minimum(longer[there, None], table.exposed_comm_ns[pairs[there]])
            gpus, member = ranked(table.gpu[pairs[there]].ravel())
            found.append(
                SlowLink(
                    tuple(gpus.tolist()),
                    context.text("operation", int(table.operation[pairs[there][0, 0]])),
                    float(took[there].sum() / max(usual[there].sum(), 1.0) - 1),
                    float(sums_of(exposed.ravel(), member).max()) / len(steps),
                    float(longer[there].sum()) / len(steps),
                    then,
                    gpu,
                )
            )
    return found


def _by_gpu(links: dict[int, tuple[int, ...]]) -> Iterator[tuple[int | None, list[int]]]:
    """The GPU that most links have in common, with these; those left one by one, with None."""
    left = dict(links)
    while left:
        gpu, number = Counter(gpu for ends in left.values() for gpu in ends).most_common(1)[0]
        own = [place for place, ends in left.items() if gpu in ends] if number > 1 else [*left][:1]
        yield (gpu if number > 1 else None), own
        left = {place: ends for place, ends in left.items() if place not in own}


def _slow_groups(
    context: FindingsContext, chosen: Collectives, everything: Collectives
) -> list[SlowLink]:
    table = context.table
    of_set = np.flatnonzero(chosen.complete & ~chosen.of_kind(PAIRWISE))
    sets = chosen.number[of_set]
    group, transfer = everything.group[sets], everything.transfer_ns[sets].astype(np.float64)
    if len(distinct(group)) < 2:
        return []
    kinds = [everything.kind[sets], everything.bytes[sets], everything.size[sets]]
    like = combined(kinds)[1]
    waiting = sums_of(chosen.member_exposed_ns, chosen.member_set, len(chosen))
    exposed = sums_of(table.exposed_comm_ns[chosen.rows], chosen.member_set, len(chosen))
    per_gpu = (exposed - waiting)[of_set] / np.maximum(everything.size[sets], 1)
    usual = medians_without(transfer, like, group)
    slower, compared = transfer > (1 + SLOWER.share) * usual, np.isfinite(usual)
    # The mean of like ones in other groups.
    cell = combined([like, group])[1]
    sums, counts = (
        of_like[like] - of_cell[cell]
        for of_like, of_cell in (
            (sums_of(per_gpu, like), sums_of(per_gpu, cell)),
            (counts_of(like), counts_of(cell)),
        )
    )
    lost = np.where(compared, transfer - usual, 0.0)
    beyond = np.where(compared, per_gpu - sums / np.maximum(counts, 1), 0.0)
    found = []
    first_row = chosen.rows[np.searchsorted(chosen.member_set, of_set)]
    numbers = np.array(context.iterations, np.int64)
    when = first_equal(numbers, table.iteration[first_row].astype(np.int64))
    for code, own in places_by(group).items():
        known = own[compared[own] & (when[own] >= 0)]
        if code < 0 or len(known) < 2:
            continue
        # Most of its collectives are slow, not one by chance: in all, or in some iterations.
        each = [counts_of(when[places], len(numbers)) for places in (known, known[slower[known]])]
        slow_in = np.flatnonzero(2 * each[1] > each[0])
        is_always = 2 * slower[known].sum() > len(known)
        if not is_always:
            known = known[np.isin(when[known], slow_in)]
            if not len(known) or 2 * slower[known].sum() <= len(known) or len(known) < 2:
                continue
        rows = everything.rows[np.isin(everything.member_set, sets[own])]
        found.append(
            SlowLink(
                tuple(distinct(table.gpu[rows]).tolist()),
                table.operations[int(sums_of(lost[known], everything.kind[sets[known]]).argmax())],
                float(transfer[known].sum() / usual[known].sum() - 1),
                float(np.clip(beyond[known].sum(), 0.0, lost[known].sum())) / len(numbers),
                float(lost[known].sum()) / len(numbers),
                () if is_always else tuple(slow_in.tolist()),
                is_group=True,
            )
        )
    return found


SLOWER_THEN: Final = threshold("""slower transfer in some steps | 15 | % longer than else
    transfers of a steady run vary by a few percent""")


@rule(
    "slow-transfer",
    cost="exposed communication of these steps, without waiting, beyond that of the others",
    needs="collectives, four steps or more",
    thresholds=(SLOWER_THEN, COST),
)
def slow_transfers(context: FindingsContext) -> Iterator[Finding]:
    """Collectives that transfer slower in one step, or from one on, than like ones before."""
    chosen, count = context.collectives, len(context.iterations)
    if chosen is None or not 4 <= count <= _MAX_COMPARED:
        return
    table, sets = context.table, np.flatnonzero(chosen.complete & ~chosen.of_kind(PAIRWISE))
    first_row = chosen.rows[np.searchsorted(chosen.member_set, sets)]
    when = first_equal(np.array(context.iterations), table.iteration[first_row].astype(np.int64))
    names, like = combined([each[sets] for each in (chosen.kind, chosen.group, chosen.bytes)])
    cell, shape = like * count + when, (len(names), count)
    sizes = counts_of(cell, len(names) * count).reshape(shape)
    transfer = chosen.transfer_ns[sets].astype(np.float64)
    took = sums_of(transfer, cell, len(names) * count).reshape(shape)
    even = (sizes == sizes[:, :1]).all(axis=1) & (sizes[:, 0] > 0)
    waits = sums_of(chosen.member_exposed_ns, chosen.member_set, len(chosen))
    exposed = sums_of(table.exposed_comm_ns[chosen.rows], chosen.member_set, len(chosen)) - waits
    found: dict[tuple[int, int], list[tuple[float, str, Float64]]] = {}
    for kind in distinct(names[even, 0]).tolist():
        own = even & (names[:, 0] == kind)
        whole = took[own].sum(axis=0)
        first, end, _ = low_interval(1 / np.maximum(whole, 1.0))
        inside = np.isin(np.arange(count), np.arange(first, end))
        slower = whole[inside].mean() / max(whole[~inside].mean(), 1.0) - 1 if first < end else 0.0
        if slower > SLOWER_THEN.share and whole[inside].min() > whole[~inside].max():
            usual = took[:, ~inside].sum(axis=1) / np.maximum(sizes[:, ~inside].sum(axis=1), 1)
            longer = np.where(own[like] & inside[when], transfer - usual[like], 0.0)
            each = sums_of(exposed[sets] * own[like], when, count) / len(context.gpus) / count
            saving = float((each[inside] - each[~inside].mean()).sum())
            text = f"{table.operations[kind]} {longer_by(1 + float(slower))}"
            found.setdefault((first, end), []).append((max(saving, 0.0), text, longer))
    for (first, end), parts in found.items():
        saving = sum(part[0] for part in parts)
        longer = np.sum([part[2] for part in parts], axis=0)
        if context.share(saving) < COST.share:
            continue
        named = listed(text for _, text, _ in sorted(parts, key=lambda part: -part[0]))
        whole_ns = float(longer.sum()) / count
        since = recurrence(range(first, end), context.iterations)
        first_named = shortened(named.partition(", ")[0])
        yield context.finding(
            one_line(f"collectives transfer slower{since}", f": {first_named}"),
            f"collectives transfer slower{since} than in the other "
            f"steps: {named}; {time(whole_ns)}{context.each}, {time(saving)} of that exposed",
            context.with_view("comms", "iteration", sort="bus_gbps"),
            Cost.COMMUNICATION,
            saving,
            is_repeated=end - first > 1,
            cells=context.cells_of(iteration=context.iterations[first:end]),
        )


_UNNAMED: Final = ("collective", NO_LABEL_TEXT)
"""Operations whose names say only that they communicate."""
EXPOSED: Final = threshold("""exposed communication | 2 | % of the step
    without waiting for later GPUs, and without its ends: the same as for other causes""")
_MAX_LISTED: Final = 3


@rule(
    "exposed",
    cost="exposed communication minus the part that is waiting for later GPUs, mean over GPUs",
    holds=(0.7, 1.3),
    needs="collectives",
    thresholds=(EXPOSED,),
)
def exposed(context: FindingsContext) -> Iterator[Finding]:
    """Communication that no compute hides."""
    per_cell = context.cells.sum("exposed_comm_ns")
    total = float(per_cell.sum())
    chosen = context.collectives
    if chosen is None or not total:
        return
    waiting = context.per_iteration(float(chosen.member_exposed_ns.sum()))
    each = context.per_iteration(total)
    cost_ns = max(each - waiting, 0.0)
    run, compared = context.run, context.compared
    rows, alone = run.memo(
        ("exposed transfers", compared),
        lambda: exposed_transfers(run, comm_rows(run.table, compared), compared),
    )
    saving = context.per_iteration(float(alone[context.node.holds(rows)].sum()))
    if context.share(saving) < EXPOSED.share:
        return
    names, owner = context.together("operation", "phase")
    waits = _by_name(chosen.table, chosen.rows, chosen.member_exposed_ns, names)
    without_waits = np.maximum(sums_of(per_cell, owner) - waits, 0.0)
    parts = largest_parts(context, "operation", names, without_waits)
    operations, operation = combined([names[:, 0]])
    of_operations = sums_of(without_waits, operation)
    largest = int(operations[of_operations.argmax(), 0])
    is_complete = bool(chosen.complete.all())
    cost_share = percent(cost_ns / context.usual_ns)
    wait, with_waits, unknown = "", "", ""
    if waiting:
        wait = " that isn't waiting for later GPUs"
        with_waits = f"; with the waits {time(each)}, {percent(each / context.usual_ns)}"
    costs = " costs"
    if not is_complete:
        costs = ", waits included, takes"
        unknown = "; how much of it is waiting is unknown for collectives with missing ranks"
    name = shortened(context.text("operation", largest))
    yield context.finding(
        one_line(
            f"exposed communication{costs} {cost_share} {context.of_step}",
            largest_part(name, float(of_operations.max()), float(of_operations.sum()))
            if name not in _UNNAMED
            else "",
        ),
        f"exposed communication{wait} takes {time(cost_ns)}{context.per_gpu} "
        f"({cost_share} {context.of_step}{with_waits}): "
        f"{listed(parts, _MAX_LISTED)}{unknown}",
        context.with_view("comms", "phase", sort="-exposed_comm_ns"),
        Cost.COMMUNICATION,
        cost_ns,
        is_measured=is_complete,
        total_ns=total,
    )


def _by_name(table: KernelTable, rows: Index, values: Float64 | Int64, names: Int64) -> Float64:
    """Sums of values of some rows by operation and phase."""
    width = int(table.phase.max(initial=0)) + 2
    own = table.operation[rows].astype(np.int64) * width + table.phase[rows]
    place = first_equal(names[:, 0] * width + names[:, 1], own)
    return sums_of(np.where(place >= 0, values, 0), np.maximum(place, 0), len(names))


SLOWED: Final = threshold("""slower during communication | 20 | %
    the copies of a collective always cost the kernels next to them a few percent""")
CORRELATION: Final = threshold("""correlation of overlap and duration | 0.7 | Pearson's r, at least
    Lit Silicon finds them highly correlated; kernels that differ for other reasons scatter""")
SLOWED_COST: Final = threshold("""cost of slowness during communication | 0.25 | % of the step
    it results from comparing kernels of different layers, where small differences mean nothing""")
_MAX_COMPARED: Final = 64
"""Steps, at most."""
_ALONE: Final = 0.1
"""Up to this share of its time during communication a kernel runs alone."""
_BESIDE: Final = 0.5
"""From this share on it runs next to it."""
_MIN_ALONE: Final = 4
"""Kernels that a usual time needs."""
_OFTEN: Final = 0.75
"""The share of an operation's kernels that must take longer."""
_MAX_NAMED: Final = 3
_MOST_REPLAYED: Final = 1 << 20
"""Activities of a part of the run: no saving there is by replay."""
_PLACE: Final = ("operation", "phase")


@rule(
    "contention",
    cost="time of instances with much overlap beyond that of instances with little, mean over GPUs",
    holds=(0.5, 1.5),
    needs="communication and labelled layers",
    thresholds=(SLOWED, CORRELATION, SLOWED_COST),
)
def contention(context: FindingsContext) -> Iterator[Finding]:
    """Operations of layers that take longer the more communication runs next to them.

    Without layers an operation has one instance per phase and step, and none to compare with.
    One that always has communication next to it is compared with other operations.
    """
    if context.sampled_from is not None:
        return
    yield from _all_slowed(context)
    yield from _always_beside(context)
    yield from _without_layers(context)
    found = overlaps_in(context.run, context.view)
    analysed = np.isin(found.codes("iteration"), context.iterations)
    found = found.take(analysed & (found.codes("layer") != NO_LABEL))
    if not len(found) or not found.comm_ns.any():
        return
    pairs, owner = combined([found.codes("phase"), found.codes("operation")])
    known = effect(found, owner, len(pairs))
    ratio, cost = np.nan_to_num(known.slowdown), np.nan_to_num(known.cost_ns)
    least = SLOWED_COST.share * context.step_ns * context.spots
    chosen = (cost >= least) & (np.nan_to_num(known.pearson) >= CORRELATION.value)
    is_slower = ratio >= 1 + SLOWED.share
    if (chosen & ~is_slower).any():
        during = _slowed_during(context)
        slower = np.array([during.get((phase, each), 1.0) for phase, each in pairs.tolist()])
        is_slower |= slower >= 1 + SLOWED.share
    for place in np.flatnonzero(chosen & is_slower).tolist():
        yield _contended(
            context,
            pairs[place],
            f"takes {percent(float(known.slowdown[place]) - 1)} longer where communication runs "
            "during much of it than where it runs during little, on the same GPU (correlation "
            f"{known.pearson[place]:.2f})",
            float(cost[place]),
            percent(float(known.slowdown[place]) - 1),
            "contention as peers",
            ("", "-overlap_cost_ns"),
        )


def _predictor_of(context: FindingsContext) -> Predictor | None:
    """The replay of the steps of a scope; None without one, or where it would be of very many
    activities for contention alone."""
    if context.view.path and context.node.sizes()[0] > _MOST_REPLAYED:
        return None
    try:
        return Steady.of(context.run, context.view).predictor
    except NothingToShow:
        return None


def _all_slowed(context: FindingsContext) -> Iterator[Finding]:
    """Compute of several operations that transfers slow alike: none is slower than the others."""
    predictor, table = _predictor_of(context), context.table
    found = None if predictor is None else predictor.contention
    if predictor is None or found is None:
        return
    own = np.isin(table.iteration[found.rows], context.iterations)
    own &= np.isin(table.gpu[found.rows], context.gpus)
    own &= found.known[TRANSFERS][found.owner]
    rows, owner = found.rows[own], found.owner[own]
    during = predictor.shares[TRANSFERS, own] * table.duration_ns[rows]
    lost = found.rates[1, TRANSFERS, owner] * during
    each = sums_of(lost, owner, len(found.known[TRANSFERS]))
    whole, useful = float(each.sum()), float((during - lost).sum())
    least = SLOWED_COST.share * context.step_ns * context.spots
    is_slower = whole >= max(least, SLOWED.share * useful)
    if not is_slower or each.max() >= EXPLAINED.share * whole:
        return
    slower, cost = percent(whole / max(useful, 1.0)), context.per_iteration(whole)
    largest = np.argsort(-each, kind="stable")[:_MAX_NAMED]
    named = []
    for one in largest[each[largest] > 0].tolist():
        row = int(rows[int((owner == one).argmax())])
        operation, phase = (context.text(name, table.column(name)[row]) for name in _PLACE)
        named.append(f"{operation} in {phase} {time(context.per_iteration(float(each[one])))}")
    yield context.finding(
        f"Compute is {slower} slower during communication",
        f"compute takes {slower} longer while collectives transfer: {time(cost)}"
        f"{context.per_gpu}, most of it in {listed(named)}",
        context.with_view("overlap", sort="-overlap_cost_ns"),
        Cost.CONTENTION,
        cost,
        is_measured=False,
        cells=context.cells_of(phase=distinct(table.phase[rows]).tolist()),
        changes=("no contention",),
    )


def _slowed_during(context: FindingsContext) -> dict[tuple[int, int], float]:
    """How many times as long an operation of a phase takes while collectives transfer, where the
    run shows it, however little of the operation's time that is."""
    predictor = _predictor_of(context)
    found = None if predictor is None else predictor.contention
    if found is None:
        return {}
    table = context.table
    first = found.rows[first_equal(found.owner, np.arange(len(found.known[0])))]
    keys = zip(table.phase[first].tolist(), table.operation[first].tolist(), strict=True)
    factor = np.where(found.known[TRANSFERS], 1 / (1 - found.rates[1, TRANSFERS]), 1.0)
    return dict(zip(keys, factor.tolist(), strict=True))


def _contended(
    context: FindingsContext,
    pair: Int64,
    text: str,
    total_ns: float,
    slower: str,
    change: str,
    shown: tuple[str, str] = ("instance", "-instance_ns"),
) -> Finding:
    """A finding of an operation in a phase; `shown` are the split and the order of its evidence."""
    phase, operation = context.text("phase", pair[0]), context.text("operation", pair[1])
    saving = context.per_iteration(total_ns)
    labels = {"phase": phase, "operation": operation}
    where, during = f" in {phase}", f" is {slower} slower during communication"
    title = f"{shortened(operation)}{where}{during}"
    if len(title) > MAX_TITLE:
        title = f"{shortened(operation)}{during}"
    return context.finding(
        of_name(title),
        f"{operation} in {phase} {text}: {time(saving)}{context.per_gpu}",
        context.with_view("overlap", shown[0], sort=shown[1], **labels),
        Cost.CONTENTION,
        saving,
        is_measured=False,
        cells=context.cells_of(phase=int(pair[0]), operation=int(pair[1])),
        changes=(change,),
    )


def _always_beside(context: FindingsContext) -> Iterator[Finding]:
    """Products that run during communication wherever they do, next to like ones that don't.

    Like ones are kernels of one name and phase with as many FLOPs on one GPU, such as those of the
    queries and of the attention's output, or of gate and up.
    """
    table, rows = context.table, context.node.rows
    if FLOPS not in table.measured:
        return
    rows = rows[(table.measured[FLOPS][rows] > 0) & (table.duration_ns[rows] > 0)]
    labels = [table.column(level)[rows] for level in ("gpu", "kernel", "phase")]
    work = table.measured[FLOPS][rows].astype(np.int64)
    than = "the same kernels of other operations without"
    # Where it also runs alone, its own instances are better evidence.
    yield from _slower_beside(context, rows, [*labels, work], than, is_always=True)


def _without_layers(context: FindingsContext) -> Iterator[Finding]:
    """Operations outside of layers that sometimes run during communication, next to the same
    kernels of the same work that don't."""
    table, rows = context.table, context.node.rows
    is_own = (table.layer[rows] == NO_LABEL) & (table.kind[rows] == Kind.COMPUTE)
    rows = rows[is_own & (table.duration_ns[rows] >= MIN_DURATION_NS)]
    if not len(rows) or not table.overlap_ns[rows].any():
        return
    levels = ("gpu", "kernel", "phase", "operation")
    labels = [table.column(level)[rows] for level in levels]
    work = ranked(comparable_kernels(table, rows))[1]
    than = "the same kernels without"
    yield from _slower_beside(context, rows, [*labels, work], than, is_always=False)


def _slower_beside(
    context: FindingsContext, rows: Index, same: list[Codes], than: str, *, is_always: bool
) -> Iterator[Finding]:
    """Operations whose kernels take longer during communication than like ones, the same by some
    codes, without; those that always run during communication, or the others."""
    table = context.table
    took_ns = table.duration_ns[rows]
    took = took_ns.astype(np.float64)
    names, like = combined(same)
    pairs, place = combined([table.phase[rows], table.operation[rows]])
    share = table.overlap_ns[rows] / took
    alone = share <= _ALONE
    usual = quantiles_of(took_ns[alone], like[alone], len(names), (0.5,))[:, 0]
    usual[counts_of(like[alone], len(names)) < _MIN_ALONE] = np.nan
    usual = usual[like]
    overlapped = (share >= _BESIDE) & np.isfinite(usual)
    longer = np.where(overlapped, took - usual, 0.0)
    is_slower = longer > SLOWED.share / 2 * usual
    if not is_always:
        # Kernels of one name may still be different products: those count that are alike.
        sizes, slow = (counts_of(like[which], len(names)) for which in (overlapped, is_slower))
        overlapped &= (slow >= _OFTEN * np.maximum(sizes, 1))[like]
        longer = np.where(overlapped, longer, 0.0)
    excess, least = (
        sums_of(np.where(overlapped, values, 0.0), place, len(pairs)) for values in (longer, usual)
    )
    factor = 1 + excess / np.maximum(least, 1.0)
    slower, there, by_itself = (
        sums_of(where, place, len(pairs)) for where in (is_slower & overlapped, overlapped, alone)
    )
    whole = sums_of(took, place, len(pairs))
    often = (slower >= _OFTEN * there) & ((by_itself == 0) == is_always)
    enough = excess >= SLOWED_COST.share * context.step_ns * context.spots
    for at in np.flatnonzero(often & (factor >= 1 + SLOWED.share) & enough).tolist():
        yield _contended(
            context,
            pairs[at],
            f"{'always runs' if is_always else 'often runs'} during communication and takes "
            f"{longer_by(float(factor[at]))} {than_or_as(float(factor[at]))} {than}",
            float(excess[at]),
            percent(float(factor[at]) - 1),
            f"compute x{1 - float(excess[at] / whole[at]):.4f}",
        )
