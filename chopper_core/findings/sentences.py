"""What a finding costs and saves in words, and why the two differ."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

import numpy as np

from chopper_core.findings.rule import (
    ITS_GPUS,
    SMALLEST_SAVING,
    WORST_GPU,
    Cost,
    Finding,
    FindingsContext,
)
from chopper_core.model.phrases import time
from chopper_core.model.table import Rule
from chopper_core.model.units import has_date
from chopper_core.sources.signals import ClockDomain

_LEAST: Final = SMALLEST_SAVING.share
_SINCE: Final = re.compile(r"since step (\d+)")
_LESS: Final = 0.1
"""Of the cost: what saves less than it costs by more has a reason."""
_MORE: Final = 0.01
"""The same of what saves more."""
_WITHOUT: Final = {
    Cost.HOST: "if hosts took no time at all",
    Cost.LAUNCH: "without this idle time",
    Cost.COPIES: "if copies took no time at all",
    Cost.COMMUNICATION: "if compute hid all but a step's first and last transfers",
    Cost.CLOCK: "if all GPUs held that clock",
}
"""Kind of time → what a bound asks for."""


def detail_of(context: FindingsContext, finding: Finding) -> str:
    """The long sentence of a finding, what it costs per step where that isn't said, and why it
    saves more or less than that, or why that is unknown."""
    text, cost = _as_sentence(finding.title, _with_time(context, finding.detail)), finding.cost_ns
    if cost is None:
        return f"{text}."
    if time(round(cost)) not in text:
        text += f". It costs {time(round(cost))}{_cost_unit(context, finding)}"
    sentences = [text, _saving(context, finding)]
    if finding.see_also:
        sentences.append(f"See also '{finding.see_also}', which takes much of the same time")
    return ". ".join(filter(None, sentences)) + "."


def _as_sentence(title: str, text: str) -> str:
    """A detail with a capital, but for a name of the trace that its title begins with, too."""
    first = text.partition(" ")[0]
    return text if title.startswith(first) else text[:1].upper() + text[1:]


def cost_of(context: FindingsContext, finding: Finding) -> str:
    """Whose time a finding costs: `GPU 5`, `worst GPU`, `mean GPU`; empty with one GPU."""
    if finding.cost_ns is None or len(context.gpus) < 2:
        return ""
    own = "mean GPU" if finding.gpu is None else f"GPU {finding.gpu}"
    return finding.cost_of or own


def _cost_unit(context: FindingsContext, finding: Finding) -> str:
    """The base of what a finding costs, such as ` per step of GPU 2, mean of 5 steps`."""
    base, unit = cost_of(context, finding), context.per_gpu
    if base == ITS_GPUS:
        unit = f"{context.each}, {base}"
    elif base and (finding.gpu is not None or finding.cost_of):
        unit = f"{context.each} of {'the ' if base == WORST_GPU else ''}{base}"
    if not context.has_iterations:
        return unit
    steps = len(context.iterations)
    if finding.is_of_all:
        unit, steps = unit.replace(" usual ", " "), len(context.all_iterations)
    mean = " and of" if base == ITS_GPUS else ", mean of"
    return unit if steps == 1 else f"{unit}{mean} {steps} steps"


def _saving(context: FindingsContext, finding: Finding) -> str:
    """What a finding saves, and why that is more or less than it costs, or unknown; empty where it
    is neither."""
    cost, saving = finding.cost_ns or 0.0, finding.saving_ns
    if finding.is_removed_with_whole:
        return "What fixing it saves is that of its whole: the same replay removes both"
    if saving is None:
        why = finding.unreplayed
        return f"What fixing it saves is unknown: {why}" if why else ""
    if not cost:
        return ""
    if finding.further_ns is not None:
        own = f"saves {time(saving)} alone" if context.share(saving) >= _LEAST else "saves nothing"
        return (
            f'By replay, fixing it {own}; once "{finding.together_with}" is fixed, it saves '
            f"{time(finding.further_ns)}"
        )
    if finding.alone_ns is not None and context.share(finding.alone_ns - saving) >= _LEAST:
        return (
            f"By replay, fixing it alone saves {time(finding.alone_ns)}, but the finding that it "
            f"is a part of saves only {time(saving)}"
        )
    if context.share(abs(cost - saving)) < _LEAST or -_LESS * cost <= saving - cost <= _MORE * cost:
        return ""
    bound, whole = finding.is_bound, context.a_whole
    without = _WITHOUT.get(finding.kind, "if it took no time at all") if bound else ""
    whose = "the GPUs" if len(context.gpus) > 1 else "the GPU"
    if saving < cost:
        if finding.gpu is not None and len(context.gpus) > 1:
            whose = f"GPU {finding.gpu}"
        if context.share(saving) < _LEAST and not bound:
            return (
                f"By replay, {whole} gets no shorter without it: {whose} would wait for something "
                "else instead"
            )
        shorter = f"{'at most ' if bound else ''}{time(saving)} less {without or finding.without}"
        return (
            f"By replay, {whole} takes {shorter}: for the rest of that time {whose} would wait for "
            "something else"
        )
    if bound:
        return (
            f"By replay, {whole} takes at most {time(saving)} less {without}: "
            f"{finding.why_more or 'waits that follow from it end, too'}. No change reaches that"
        )
    why = finding.why_more or "waits get shorter, too"
    if not finding.why_more and finding.gpu is not None and len(context.gpus) > 1:
        why = f"the GPUs that wait for GPU {finding.gpu} wait less, too"
    return (
        f"By replay, {whole} takes {time(saving)} less {finding.without}, more than it costs: {why}"
    )


def _with_time(context: FindingsContext, text: str) -> str:
    """A sentence with the time of day at which a step begins since when something is so, where the
    clock of all traces is that of the day: `since step 14 (14:03:27 UTC)`. Where the trace names
    no steps, that they are counted."""
    run, since = context.run, _SINCE.search(text)
    if since is None:
        return text
    is_dated = all(each.clock.startswith(ClockDomain.EPOCH) for each in run.sources)
    rows = np.flatnonzero(run.table.iteration == int(since[1]))
    more = []
    if len(run.sources) and is_dated and len(rows):
        begin_ns = int(run.table.start_ns[rows].min())
        if has_date(begin_ns):
            more.append(f"{datetime.fromtimestamp(begin_ns / 1e9, UTC):%H:%M:%S} UTC")
    if len(rows) and run.table.column("iteration_rule")[rows[0]] == Rule.BURST:
        more.append("counted from 0: the trace names no steps")
    at = f" ({'; '.join(more)})" if more else ""
    return f"{text[: since.end()]}{at}{text[since.end() :]}"


def finding_figures(finding: Finding) -> tuple[str, ...]:
    """What a finding costs and saves, as text; nothing where both are unknown."""
    if finding.cost_ns is None:
        return ()
    saves = "–"
    if finding.saving_ns is not None:
        saves = ("≤" if finding.is_bound else "") + time(round(finding.saving_ns))
    return time(round(finding.cost_ns)), saves
