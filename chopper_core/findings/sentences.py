"""What a finding costs and saves in words, and why the two differ."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

import numpy as np

from chopper_core.findings.remedies import is_bound
from chopper_core.findings.rule import SMALLEST_SAVING, Cost, Finding, FindingsContext
from chopper_core.model.phrases import time
from chopper_core.sources.signals import ClockDomain

_LEAST: Final = SMALLEST_SAVING.share
_SINCE: Final = re.compile(r"since step (\d+)")
_FAR: Final = 0.2
"""Of the cost: a saving further from it is explained."""


def detail_of(context: FindingsContext, finding: Finding) -> str:
    """The long sentence of a finding, and why it saves far more or less than it costs."""
    text, cost, saving = _with_time(context, finding.detail), finding.cost_ns, finding.saving_ns
    if not cost or saving is None or context.share(abs(cost - saving)) < _LEAST:
        return text
    if finding.together_ns is not None:
        own = f"{time(saving)} alone" if context.share(saving) >= _LEAST else "nothing alone"
        return (
            f'{text}. It saves {own}, by replay; together with "{finding.together_with}" it saves '
            f"{time(finding.together_ns)}"
        )
    if finding.alone_ns is not None and context.share(finding.alone_ns - saving) >= _LEAST:
        return (
            f"{text}. Fixing this alone saves {time(finding.alone_ns)}, by replay; the finding "
            f"that it is a part of saves {time(saving)}"
        )
    if is_bound(finding.remedy) and saving > (1 + _FAR) * cost:
        return (
            f"{text}. The limit, by replay, is {time(saving)}: waits of other work shorten, too, "
            "and no change reaches it in full"
        )
    if saving < (1 - _FAR) * cost:
        rest = time(cost - saving)
        why = time(saving) if context.share(saving) >= _LEAST else "nothing"
        return f"{text}. Fixing this saves {why}, by replay; the other {rest} turn into other waits"
    if saving > (1 + _FAR) * cost:
        is_clock = finding.kind == Cost.CLOCK
        why = "other kernels get faster, too" if is_clock else "waits shorten, too"
        if finding.gpu is not None and len(context.gpus) > 1:
            why = "GPUs that wait for it wait less, too"
        return f"{text}. Fixing this saves {time(saving)}, by replay: {why}"
    return text


def _with_time(context: FindingsContext, text: str) -> str:
    """A sentence with the time of day at which a step begins since when something is so, where the
    clock of all traces is that of the day: `since step 14 (14:03:27 UTC)`."""
    run, since = context.run, _SINCE.search(text)
    is_dated = all(each.clock.startswith(ClockDomain.EPOCH) for each in run.sources)
    if since is None or not (run.sources and is_dated):
        return text
    rows = np.flatnonzero(run.table.iteration == int(since[1]))
    if not len(rows):
        return text
    begin_ns = int(run.table.start_ns[rows].min())
    when = datetime.fromtimestamp(begin_ns / 1e9, UTC)
    return f"{text[: since.end()]} ({when:%H:%M:%S} UTC){text[since.end() :]}"


def finding_figures(finding: Finding) -> tuple[str, ...]:
    """What a finding costs and saves, as text; nothing where both are unknown."""
    if finding.cost_ns is None:
        return ()
    saves = "–"
    if finding.saving_ns is not None:
        saves = ("≤" if is_bound(finding.remedy) else "") + time(round(finding.saving_ns))
    return time(round(finding.cost_ns)), saves
