"""The GPUs that the others wait for, and why; those, and pipeline stages, with too much to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.analyses.asked import STAGES_BALANCED
from chopper_core.analyses.host_causes import NEEDLESS, cause_beyond
from chopper_core.analyses.leads import (
    LOW_CLOCK_RATIO,
    MIN_DELAY_SHARE,
    MIN_OF_OTHERS,
    MIN_ONCE_SHARE,
    RankLeads,
    Straggler,
)
from chopper_core.analyses.matched_kernels import compared_iterations, occurrences_of
from chopper_core.analyses.pipeline import LONG, Pipeline, longest_stage, pipeline_of
from chopper_core.analyses.why_late import (
    ONE_PLACE_SHARE,
    cause_shown,
    late_in_short,
    layers_slower,
    longer_in_all_ns,
    more_work_at,
    part_slower,
    place_late,
    place_slower,
    slower_ns,
    slower_share,
    why_late,
)
from chopper_core.columns.filter import only
from chopper_core.findings.communication import slow_links
from chopper_core.findings.iterations import IN_SETUP, SET_UP, warm_up_of
from chopper_core.findings.remedies import changes_of
from chopper_core.findings.rule import (
    ITS_GPUS,
    WORST_GPU,
    Cost,
    Finding,
    FindingsContext,
    Group,
    confidence,
    rule,
    threshold,
    weighted_medians,
)
from chopper_core.findings.titles import MAX_NAME, MAX_TITLE, gpus_in_short, one_line, shortened
from chopper_core.graph.process_groups import places_of
from chopper_core.model.groups import knows_sizes, work_of
from chopper_core.model.parallel import TITLES
from chopper_core.model.phrases import (
    by_number,
    enumerated,
    in_every,
    listed,
    longer_by,
    others,
    percent,
    recurrence,
    small,
    than_or_as,
    time,
    with_article,
)
from chopper_core.model.table import NO_LABEL, Kind
from chopper_core.model.view import SEPARATOR, pivot
from chopper_core.util.arrays import Float64, Mask
from chopper_core.util.errors import ChopperError
from chopper_core.util.grouping import (
    beyond_others,
    combined,
    counts_of,
    distinct,
    grouped_by,
    median_of,
    others_median,
    ranked,
    sums_of,
)

STRAGGLER: Final = threshold(f"""straggler | {100 * MIN_DELAY_SHARE} | % of the step
    the view of ranks uses the same limit""")
ONCE: Final = threshold(
    f"""straggler of one step | {100 * MIN_ONCE_SHARE} | % of that step
    in a steady run no GPU delays the others by as much, even once"""
)
SLOWER_GPU: Final = threshold("""kernels of a straggler that are slower everywhere | 1 | %
    clocks of GPUs of one product differ by about a percent""")
ONE_PLACE: Final = threshold(
    f"""place of slower kernels | {100 * ONE_PLACE_SHARE:g} | % of the longer time
    a lower clock slows all operations; one that accounts for most of the loss is named"""
)

_MAX_LISTED: Final = 4
_MAX_NAMED: Final = 3
"""Operations of which there are more."""
_ROUNDED: Final = 0.001
_FURTHER: Final = 0.1
"""Of what a straggler takes longer for its cause: with as much more in all, that is named."""
_COSTS: Final = {
    "clock": (Cost.CLOCK, "-slower_pct"),
    "kernels": (Cost.COMPUTE, "-slower_pct"),
    "work": (Cost.WORK, ""),
    "host": (Cost.HOST, "-extra_host_ns"),
    "launch": (Cost.LAUNCH, "-extra_launch_ns"),
    "copies": (Cost.COPIES, "mean_lead_ns"),
}
"""Cause → the kind of time that it costs, and the order of the evidence without collectives."""
_WORK: Final = ("compute_busy_ns", "kernels", "model_flops")
_ITS: Final = {
    "clock": "runs at a lower clock",
    "kernels": "has slower kernels",
    "work": "has more work",
    "host": "is held back by its host",
    "launch": "starts kernels late after their launch",
    "idle": "is idle for longer",
    "copies": "copies for longer",
}
"""Cause → what a GPU does, in a title."""
_THEIR: Final = {
    "clock": "run at a lower clock",
    "kernels": "have slower kernels",
    "work": "have more work",
    "host": "are held back by their hosts",
    "launch": "start kernels late after their launch",
    "idle": "are idle for longer",
    "copies": "copy for longer",
}


@rule(
    "straggler",
    cost="by how much it delays the others, or its time beyond its peers' median if that is longer",
    needs="two GPUs or more",
    thresholds=(STRAGGLER, ONCE, SLOWER_GPU, ONE_PLACE),
)
def straggler(context: FindingsContext) -> Iterator[Finding]:
    """A GPU that the others wait for, and why it is late."""
    leads = context.leads
    if leads is None:
        return
    behind_links = {gpu for link in slow_links(context) for gpu in link.gpus}
    found: dict[tuple[str | None, str, bool], list[tuple[Straggler, Finding]]] = {}
    for late in leads.stragglers:
        # It comes last because its link is slow, which is a finding.
        is_behind_link = late.cause is None and leads.gpus[late.place] in behind_links
        if not (is_behind_link or _is_alike(leads, late)):
            each = _straggler(context, leads, late)
            what = each.detail.partition(": ")[0].partition(" host")[2]
            what = what.removesuffix(place_late(leads, late))
            # Those that are late at different places of the step don't hide each other.
            what += part_slower(leads, late)[0] + layers_slower(leads, late)
            # What is always there isn't what is there now and then.
            is_rare = len(late.when) < len(leads.iterations)
            found.setdefault((late.cause, what, is_rare), []).append((late, each))
    _join_hosts_in_turn(leads, found)
    stage = _of_long_stage(context)
    late_by_cause: dict[str | None, set[int]] = {}
    for (cause, _, _), turns in found.items():
        late_by_cause.setdefault(cause, set()).update(_gpus_of(leads, turns))
    for (cause, _, _), turns in found.items():
        when = [at for late, _ in turns for at in late.when]
        is_once = len(set(when)) == len(when) >= len(leads.iterations) / 2
        # All GPUs of a stage are late, each in its steps, because it is too long: a finding.
        is_of_stage = bool(stage) and _gpus_of(leads, turns) <= stage <= late_by_cause[cause]
        if cause is not None and len(turns) > 1:
            if is_once or not is_of_stage:
                yield (_in_turn if is_once else _together)(context, leads, turns)
        elif cause is None or len(stage) == 1 or not is_of_stage:
            yield from (each for _, each in turns)
    for late in leads.hidden_stragglers:
        if _is_alike(leads, late):
            continue
        yield replace(_straggler(context, leads, late), needs_replay=True)
    if more := leads.unexplained():
        evidence = context.with_view("ranks", sort="-delay_ns")
        title = one_line(more.partition(":")[0])
        yield context.finding(title, more, evidence, Cost.UNKNOWN, None, group=Group.UNKNOWN)


def _join_hosts_in_turn(
    leads: RankLeads, found: dict[tuple[str | None, str, bool], list[tuple[Straggler, Finding]]]
) -> None:
    """Make one of hosts that are late in different steps and operations, for nothing that is known
    to stall them: it may be anywhere, as where interpreters collect garbage."""
    own = [key for key in found if key[0] == "host" and not any(map(key[1].count, NEEDLESS))]
    turns = [each for key in own for each in found[key]]
    when = [at for late, _ in turns for at in late.when]
    is_in_turn = len(set(when)) == len(when) >= len(leads.iterations) / 2
    if len(own) > 1 and is_in_turn and len(_gpus_of(leads, turns)) > 1:
        for key in own:
            del found[key]
        found["host", "", True] = turns


def _gpus_of(leads: RankLeads, late: list[tuple[Straggler, Finding]]) -> set[int]:
    return {leads.gpus[each.place] for each, _ in late}


def _is_alike(leads: RankLeads, late: Straggler) -> bool:
    """Whether a straggler's kernels are slower by no more than GPUs of one product differ."""
    if late.cause != "kernels" or place_slower(leads, late):
        return False
    return slower_share(leads, late)[0] < SLOWER_GPU.share


def _changes(leads: RankLeads, late: Straggler) -> tuple[str, ...]:
    """What a straggler takes longer for than its peers, as changes of a replay."""
    if late.cause is None:
        return ()
    # What it is late for in other steps, or in these too, has a finding of its own.
    extra = {
        word: float(np.nan_to_num(leads.extra(word, late.when)[late.place]))
        for word in leads.words_of(late)
        if word != "launch" or late.cause == "launch"
    }
    return changes_of({_COSTS[word][0]: ns for word, ns in extra.items()})


def _together(
    context: FindingsContext, leads: RankLeads, late: list[tuple[Straggler, Finding]]
) -> Finding:
    """GPUs that delay the others at the same time: one of them alone isn't worth as much."""
    gpus = [leads.gpus[each.place] for each, _ in late]
    named = context.gpus_text(gpus)
    # Those that are one part of the job are late alike.
    shown = _MAX_LISTED if named == by_number("GPU", gpus) else 1
    texts = [each.detail.partition("; it delays")[0] for _, each in late[:shown]]
    more = f"; and {len(gpus) - len(texts)} more" if len(texts) < len(gpus) else ""
    what = _THEIR.get(cause_shown(leads, late[0][0]) or "", "come last")
    _, most = max(late, key=lambda each: each[1].cost_ns or 0.0)
    text = f"{named} hold the others back: {'; '.join(texts)}{more}"
    _, _, delays = most.detail.partition("; it delays ")
    if " by " in delays:
        text += f"; GPU {most.gpu} delays {delays}"
    found = context.finding(
        one_line(f"{gpus_in_short(context, gpus)} {what}", ": the others wait"),
        text,
        late[0][1].evidence,
        late[0][1].kind,
        most.cost_ns,
        cost_of=WORST_GPU,
        cells=_cells_of(context, leads, late),
        changes=_changes(leads, late[0][0]),
    )
    return _of_all_steps(context, leads, found, [each for each, _ in late])


def _in_turn(
    context: FindingsContext, leads: RankLeads, turns: list[tuple[Straggler, Finding]]
) -> Finding:
    """GPUs that delay the others in different steps, for the same cause."""
    first = turns[0][1]
    texts = {why_late(leads, late, "").partition(": ")[0] for late, _ in turns}
    if len(texts) > 1:
        # Each may be late for the same at another place.
        texts = {
            why_late(leads, late, "").partition(": ")[0].removesuffix(place_late(leads, late))
            for late, _ in turns
        }
    named = listed(
        f"GPU {each.gpu}{recurrence(late.when, leads.iterations)}" for late, each in turns
    )
    delays = [late.once_ns for late, _ in turns]
    what = _ITS.get(cause_shown(leads, turns[0][0]) or "", "comes last")
    is_host = turns[0][0].cause == "host"
    text = texts.pop() if len(texts) == 1 else what
    found = context.finding(
        one_line(f"another GPU in turn {what}", ": the others wait"),
        f"another GPU in turn {text}: {named}; it delays the others by "
        f"{time(float(np.mean(delays)))} each time",
        first.evidence,
        first.kind,
        sum(each.cost_ns or 0.0 for _, each in turns),
        cost_of=WORST_GPU,
        cells=None if is_host else _cells_of(context, leads, turns),
        # That the others' hosts stall as well shows once none of these does.
        changes=("host as peers",) if is_host else _changes(leads, turns[0][0]),
    )
    whose = [] if is_host else [each for each, _ in turns]
    return _of_all_steps(context, leads, found, whose)


def _of_all_steps(
    context: FindingsContext, leads: RankLeads, found: Finding, late: list[Straggler]
) -> Finding:
    """A finding about stragglers, whose times are those of all steps; where some of theirs are
    irregular, which no cells have, its remedy names them."""
    found = replace(found, is_of_all=True)
    numbers = [leads.iterations[at] for each in late for at in each.when]
    if not set(numbers) & {*context.irregular}:
        return found
    remedies = []
    for when, own in grouped_by(late, lambda each: each.when).items():
        gpus = [context.text("gpu", leads.gpus[each.place]) for each in own]
        steps = [context.text("iteration", leads.iterations[at]) for at in when]
        terms = [only("gpu", gpus)]
        terms += [only("iteration", steps)] if len(when) < len(leads.iterations) else []
        remedies += [" ".join([*terms, change]) for change in found.changes or ()]
    return replace(found, remedy=f"{SEPARATOR} ".join(remedies))


def _cells_of(
    context: FindingsContext, leads: RankLeads, late: list[tuple[Straggler, Finding]]
) -> Mask:
    """The cells of stragglers in the steps in which each has its cause."""
    found = np.zeros(len(context.cells), np.bool_)
    for when, own in grouped_by((each for each, _ in late), lambda each: each.when).items():
        found |= context.cells_of(
            gpu=[leads.gpus[each.place] for each in own],
            iteration=[leads.iterations[at] for at in when],
        )
    return found


def _straggler(context: FindingsContext, leads: RankLeads, late: Straggler) -> Finding:
    gpu, is_once = leads.gpus[late.place], len(late.when) == 1 < len(leads.iterations)
    per_step = " per step" if context.has_iterations else ""
    each = "" if is_once else per_step
    own = longer_in_all_ns(leads, late)
    # A mean over some iterations counts for all of them.
    own *= len(late.when) / len(leads.iterations)
    wait, lost_ns = "", own
    kind, sort = _COSTS.get(late.cause or "", (Cost.UNKNOWN, "mean_lead_ns"))
    if leads.delays_ns is not None:
        lost_ns, sort = max(own, late.delay_ns), "-delay_ns"
    is_own = own > lost_ns * (1 - _ROUNDED)
    # One figure is what it costs: the others are in the view of ranks.
    said = slower_ns(leads, late)
    is_said = not is_own or abs(own - said) <= _FURTHER * said
    text = why_late(leads, late, each, with_time=is_said)
    if not is_said and own > 0:
        other = (
            "with what else it does longer" if own > said else "since it does other things faster"
        )
        wait = f"; {other}, its own work takes {time(own)}{per_step} more than its peers'"
    if leads.delays_ns is not None and late.delayed:
        wait += f"; it delays {_delayed(leads, late)}"
        if not is_own:
            wait += f" by {time(late.once_ns)}{each}, added up over all that it comes last to"
    where = places_of(context.run, [gpu]).text(0) if context.table.coordinates else ""
    labels = {"iteration": str(leads.iterations[late.when[0]])} if is_once else {}
    evidence = context.with_view("ranks", sort=sort, **labels)
    if late.cause == "work":
        # The view of ranks compares the same kernels, not more of them.
        evidence = replace(pivot(context.at(**labels), "gpu"), columns=_WORK, sort=f"-{_WORK[0]}")
    when, short = recurrence(late.when, leads.iterations), late_in_short(leads, late)
    every = in_every(len(leads.iterations))
    # A first step that warms up isn't a step to come: what happens only there is set-up time.
    is_setup = is_once and leads.iterations[late.when[0]] in warm_up_of(context)
    first = f", {SET_UP}" if is_setup else ""
    found = context.finding(
        one_line(
            _that_fits(
                f"GPU {gpu}{short or ' comes last, for no reason of its own'}",
                when,
                f" in {len(late.when)} of {len(leads.iterations)} steps",
            ),
            place_late(leads, late) or layers_slower(leads, late),
            more_work_at(leads, late).text if late.cause == "work" else "",
            *((IN_SETUP,) if is_setup else _waits(late)),
        ),
        f"GPU {gpu}{f' ({where})' if where else ''} "
        f"{text or 'comes last, but nothing in its own work explains the lag'}"
        f"{when or every}{first}{wait}",
        evidence,
        kind,
        None if is_setup else lost_ns,
        is_measured=bool(text) and cause_shown(leads, late) == late.cause,
        is_repeated=len(late.when) > 1,
        group=Group.BETTER if is_setup else None,
        gpu=gpu,
        cells=context.cells_of(iteration=[leads.iterations[at] for at in late.when]),
        changes=_changes(leads, late),
        total_ns=None if is_setup else lost_ns * len(leads.iterations),
    )
    return _of_all_steps(context, leads, found, [late])


def _that_fits(core: str, when: str, shorter: str) -> str:
    """The core of a title with when, as long as it fits."""
    texts = (f"{core}{when}", f"{core}{shorter if when else ''}", core)
    return next((text for text in texts if len(text) <= MAX_TITLE), core)


def _waits(late: Straggler) -> tuple[str, ...]:
    """That others wait for it, as the ends of a title."""
    return (": the others wait",) if late.delayed and late.once_ns else ()


def _delayed(leads: RankLeads, late: Straggler) -> str:
    """The GPUs that a straggler delays: those that aren't late themselves."""
    if len(leads.peers) > 1 or leads.delays_ns is None:
        return "its peers"
    own_ns = leads.delays_ns[:, list(late.delayed)].mean(axis=1)
    number = int((own_ns < MIN_OF_OTHERS * own_ns[late.place]).sum())
    every = len(leads.gpus) - 1
    if not number:
        return "other GPUs that are late, too,"
    return others(every) if number == every else f"{small(number)} of {others(every)}"


SLOWER_STAGE: Final = threshold("""stage slower than the others | 2 | %
    most of its kernels by as much; clocks of GPUs of one product differ by about a percent""")
SLOWER_STAGE_COST: Final = threshold("""cost of a slow stage | 1 | % of the step
    the same as for a straggler""")
_MAX_OVERLAP: Final = 0.1
"""Of a kernel's time; communication during it slows it too."""


@rule(
    "slow-stage",
    cost="time of the stage beyond that of the others: of the same kernels, or idle before "
    "launch calls, which its waiting for other stages may hide",
    needs="stages of a pipeline",
    thresholds=(SLOWER_STAGE, SLOWER_STAGE_COST),
)
def slow_stages(context: FindingsContext) -> Iterator[Finding]:
    """A stage of which all GPUs have slower kernels, or later hosts, than those of the others.

    GPUs of one stage are compared with each other (`straggler`); a stage that has more to do is too
    long (`long-stage`).
    """
    peers = occurrences_of(context.run, compared_iterations(context.run, context.view))
    stages = [own.gpus for own in peers if set(own.gpus) <= set(context.gpus)]
    if len(stages) < 2:
        return
    gpus = sorted(gpu for own in stages for gpu in own)
    at = np.searchsorted(context.gpus, gpus)
    factor, clock = _kernel_factors(context, gpus), context.by_gpu("gfx_mhz")[at]
    computes = context.busy_ns.mean(axis=1)[at]
    longer = np.where(factor - 1 < SLOWER_STAGE.share, 0.0, computes * (1 - 1 / factor))
    idle = context.by_gpu_and_iteration(lambda nodes: nodes.sum("idle_host_ns"))
    kernels = "the same kernels" if knows_sizes(context.table) else "kernels of the same names"
    host, usual_clock = beyond_others(idle.mean(axis=1)[at]), others_median(clock)
    for own in stages:
        places = np.searchsorted(gpus, own)
        if context.share(max(longer[places].min(), host[places].min())) < SLOWER_STAGE_COST.share:
            continue
        slower, later = float(longer[places].mean()), float(host[places].mean())
        saving = max(slower, later)
        which = f"{context.gpus_text(own)} {'is' if len(own) == 1 else 'are'} a"
        stage = gpus_in_short(context, own)
        # The GPUs of a stage that the files name are named by it.
        at_name = stage.find(TITLES["pp"])
        stage = stage[at_name:] if at_name >= 0 else f"the stage of {stage}"
        if slower >= later:
            at_clock, ratio = "", float(factor[places].mean())
            if (clock < LOW_CLOCK_RATIO * usual_clock)[places].all():
                lower = percent(1 - float((clock / usual_clock)[places].mean()))
                at_clock = f" at {with_article(lower)} lower clock"
            title = one_line(
                f"{stage} is {percent(ratio - 1)} slower than the others",
                f":{at_clock.removeprefix(' at')}" if at_clock else "",
            )
            text = (
                f"{which} slow stage{at_clock}: {kernels} take "
                f"{longer_by(ratio)} {than_or_as(ratio)} on the other stages, "
                f"{time(saving)}{context.each}"
            )
            view = context.with_view("kernels", "operation", sort="-kernel_ns", gpu=str(own[0]))
            cost = Cost.CLOCK if at_clock else Cost.KERNELS
        else:
            doing = cause_beyond(context.run, own[0], gpus, context.iterations)
            title = one_line(f"the host of {stage} is late", shortened(doing, MAX_NAME))
            text = (
                f"{which} stage held back by its host{doing}: it is idle for "
                f"{time(saving)}{context.each} more before launch calls than the other stages"
            )
            view = context.with_view("launch", "gpu", sort="-idle_host_ns")
            cost = Cost.HOST
        only = own[0] if len(own) == 1 else None
        cells = context.cells_of(gpu=own)
        yield context.finding(
            title, text, view, cost, saving, gpu=only, cost_of="" if only else ITS_GPUS, cells=cells
        )


def _kernel_factors(context: FindingsContext, gpus: list[int]) -> Float64:
    """By which factor most compute of each GPU takes longer than the others'.

    Compared are means of the same kernels of a phase and operation, whatever the layer.
    """
    table, rows = context.table, context.node.rows
    chosen = (table.kind[rows] == Kind.COMPUTE) & np.isin(table.gpu[rows], gpus)
    chosen &= table.overlap_ns[rows] <= _MAX_OVERLAP * table.duration_ns[rows]
    rows = rows[chosen]
    keys = [table.column(level)[rows].astype(np.int64) for level in ("phase", "operation")]
    names, kernel = combined([*keys, work_of(table, rows)])
    cell = kernel * len(gpus) + ranked(table.gpu[rows])[1]
    shape = (len(names), len(gpus))
    size = counts_of(cell, shape[0] * shape[1]).reshape(shape)
    took = sums_of(table.duration_ns[rows], cell, shape[0] * shape[1]).reshape(shape)
    mean = np.where(took > 0, took / np.maximum(size, 1), np.nan)
    with np.errstate(invalid="ignore"):
        return weighted_medians(mean / others_median(mean.T).T, took.astype(np.float64))


LONGER: Final = threshold(
    f"""a stage's microbatch against the median of the others | {100 * LONG} | %
    layers are indivisible, so stages can't be balanced to better than a few percent"""
)
CAUSE: Final = threshold("""longer kernels, or more of them, as the cause | 2 | %
    the limit of a slow stage""")


class LongStage(Struct, frozen=True, eq=False):
    """A pipeline stage that takes longer than the others."""

    stage: int
    gpus: tuple[int, ...]
    times: float
    """How many times as long as the median of the others."""
    beyond_mean_ns: float
    """Its time beyond that of the mean stage, per step."""
    beyond_next_ns: float
    """Beyond that of the next longest one."""
    pipeline: Pipeline | None
    """None where nothing separates the microbatches: then the compute of a step is compared."""


@rule(
    "long-stage",
    cost="its time beyond that of the mean stage, once per microbatch, which balance would save; "
    "of one whose kernels are slower, beyond the next longest",
    needs="the stages of a pipeline",
    thresholds=(LONGER, CAUSE),
)
def long_stages(context: FindingsContext) -> Iterator[Finding]:
    """A pipeline stage that takes longer than the others, so that they wait for it."""
    if (known := _long_stage(context)) is None:
        return
    slower = _slower_kernels(context, known)
    is_slow = slower >= CAUSE.share and knows_sizes(context.table)
    what = "its compute in a step" if known.pipeline is None else "a microbatch"
    how = f"takes {longer_by(known.times)} {than_or_as(known.times)}"
    stages = distinct(context.stage)
    if len(stages) == 2:
        others = f"stage {next(iter({*stages.tolist()} - {known.stage}))}"
        wait, median = f"{others} waits", others
    else:
        others, wait, median = "the others", "they wait", "the median of the other stages"
    cost_ns, than = known.beyond_mean_ns, "stages of equal length would"
    if is_slow:
        cost_ns, than = known.beyond_next_ns, "the next longest"
    most = f"it takes {time(cost_ns)}{context.each} more than {than}"
    yield Finding(
        title=one_line(f"pipeline stage {known.stage} {how} {others}", f": {wait}"),
        detail=(
            f"pipeline stage {known.stage} is too long: {what} {how} {median}, which "
            f"{'waits' if len(stages) == 2 else 'wait'} for it"
            f"{_why_long(context, known, slower)}; {most}"
        ),
        evidence=context.with_view("pipeline", sort="-stage_x")
        if known.pipeline is not None
        else context.with_view("ranks", sort="-compute_busy_ns"),
        confidence=confidence(measured=True, repeated=context.repeats),
        cost_ns=cost_ns,
        gpu=known.gpus[0] if len(known.gpus) == 1 else None,
        cost_of=f"stage {known.stage}",
        kind=Cost.COMPUTE,
        cells=context.cells_of(gpu=known.gpus),
        # More work stays in the step: the others get longer by what it gives them.
        remedy="" if is_slow else STAGES_BALANCED,
        without="with its kernels as fast as theirs" if is_slow else "with stages of equal length",
        why_more="it is then shorter than the next longest, too" if is_slow else "",
    )


def _long_stage(context: FindingsContext) -> LongStage | None:
    """The stage that is too long, if one is."""
    if "pp" not in context.table.coordinates:
        return None
    try:
        found = pipeline_of(context.run, context.view)
    except ChopperError:
        return _long_compute(context)
    if (long := longest_stage(found)) is None:
        return None
    gpus = tuple(distinct(found.blocks.gpu[found.stage == long[0]]).tolist())
    return LongStage(long[0], gpus, *long[1:], found)


def _long_compute(context: FindingsContext) -> LongStage | None:
    """The stage that computes for longer than the others, where nothing separates microbatches."""
    stages = distinct(context.stage)
    if len(stages) < 2 or stages[0] < 0 or not context.repeats:
        return None
    busy = context.busy_ns.mean(axis=1)
    times = np.array([median_of(busy[context.stage == each]) for each in stages.tolist()])
    others = others_median(times)
    place = int(times.argmax())
    if not times[place] >= LONG * others[place] > 0:
        return None
    stage = int(stages[place])
    gpus = tuple(np.array(context.gpus)[context.stage == stage].tolist())
    beyond = times[place] - np.array([times.mean(), np.delete(times, place).max()])
    longer = float(times[place] / others[place])
    return LongStage(stage, gpus, longer, float(beyond[0]), float(beyond[1]), None)


def _of_long_stage(context: FindingsContext) -> set[int]:
    """The GPUs of that stage; empty without one."""
    known = _long_stage(context)
    return set() if known is None else set(known.gpus)


def _firsts_of_stages(context: FindingsContext) -> list[int]:
    """The first GPU of each stage."""
    gpus, stages = np.array(context.gpus), distinct(context.stage).tolist()
    return [int(gpus[context.stage == each].min()) for each in stages]


def _slower_kernels(context: FindingsContext, known: LongStage) -> float:
    """How much longer most kernels of a stage take than the same ones of the others."""
    gpus = _firsts_of_stages(context)
    first = gpus[distinct(context.stage).tolist().index(known.stage)]
    ordered = sorted(gpus)
    return float(_kernel_factors(context, ordered)[ordered.index(first)]) - 1


def _why_long(context: FindingsContext, known: LongStage, longer: float) -> str:
    gpus = _firsts_of_stages(context)
    place = distinct(context.stage).tolist().index(known.stage)
    counts = context.kernels().mean(axis=1)[np.searchsorted(context.gpus, gpus)]
    others = float(others_median(counts)[place])
    more = float(counts[place]) / others - 1 if others else 0.0
    which = "most of the same kernels" if knows_sizes(context.table) else "most kernels"
    reasons = [f"{which} take {longer_by(1 + longer)}"] if longer >= CAUSE.share else []
    if more >= CAUSE.share:
        reasons.append(f"it has {percent(more)} more kernels{_more_kernels(context, known)}")
    if not longer >= CAUSE.share:
        reasons += _where_long(context, known)
    return f": {enumerated(reasons)}" if reasons else ""


def _more_kernels(context: FindingsContext, known: LongStage) -> str:
    """The operations that a stage runs more of than the others, as the end of a phrase."""
    names, owner = context.together("operation")
    stages, stage = ranked(context.stage[context.place("gpu")])
    sizes = np.where(context.computes, context.cells.sizes(), 0).astype(np.float64)
    sums = sums_of(sizes, stage * len(names) + owner, len(stages) * len(names))
    each = sums.reshape(len(stages), -1) / counts_of(ranked(context.stage)[1])[:, None]
    extra = np.maximum(beyond_others(each)[stages.tolist().index(known.stage)], 0.0)
    order = [at for at in np.argsort(-extra)[:_MAX_NAMED].tolist() if extra[at] > 0]
    texts = [context.text("operation", int(names[at, 0])) for at in order]
    return f", mostly {listed(texts)}" if texts else ""


def _where_long(context: FindingsContext, known: LongStage) -> list[str]:
    """The operation that most of a stage's longer time is in, as a phrase."""
    names, owner = context.together("operation")
    stages, stage = ranked(context.stage[context.place("gpu")])
    took = np.where(context.computes, context.cells.sum("duration_ns"), 0).astype(np.float64)
    cell = stage * len(names) + owner
    sums = sums_of(took, cell, len(stages) * len(names)).reshape(len(stages), -1)
    sums /= counts_of(ranked(context.stage)[1])[:, None] * len(context.iterations)
    extra = np.maximum(beyond_others(sums)[stages.tolist().index(known.stage)], 0.0)
    most = int(extra.argmax())
    if extra[most] < ONE_PLACE_SHARE * extra.sum() or names[most, 0] == NO_LABEL:
        return []
    return [f"{context.text('operation', names[most, 0])} takes {time(extra[most])} more there"]
