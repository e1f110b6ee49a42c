"""What a finding costs and saves in words, and why the two differ."""

from __future__ import annotations

from typing import Final

from chopper_core.findings.remedies import is_bound
from chopper_core.findings.rule import SMALLEST_SAVING, Cost, Finding, FindingsContext
from chopper_core.model.phrases import time

_LEAST: Final = SMALLEST_SAVING.share
_FAR: Final = 0.2
"""Of the cost: a saving further from it is explained."""


def detail_of(context: FindingsContext, finding: Finding) -> str:
    """The long sentence of a finding, and why it saves far more or less than it costs."""
    text, cost, saving = finding.detail, finding.cost_ns, finding.saving_ns
    if not cost or saving is None or context.share(abs(cost - saving)) < _LEAST:
        return text
    if finding.alone_ns is not None and context.share(finding.alone_ns - saving) >= _LEAST:
        return (
            f"{text}. By replay it alone saves {time(finding.alone_ns)}, but the finding that it "
            f"is a part of saves {time(saving)}"
        )
    if is_bound(finding.remedy) and saving > (1 + _FAR) * cost:
        return f"{text}. By replay it saves at most {time(saving)}, which no change attains in full"
    if saving < (1 - _FAR) * cost:
        rest = time(cost - saving)
        why = time(saving) if context.share(saving) >= _LEAST else "nothing"
        return f"{text}. By replay it saves {why}: the other {rest} would go into other waits"
    if saving > (1 + _FAR) * cost:
        is_clock = finding.kind == Cost.CLOCK
        why = "other kernels get faster, too" if is_clock else "waits shorten, too"
        if finding.gpu is not None and len(context.gpus) > 1:
            why = "GPUs that wait for it wait less, too"
        return f"{text}. By replay it saves {time(saving)}: {why}"
    return text


def finding_figures(finding: Finding) -> tuple[str, ...]:
    """What a finding costs and saves, as text; nothing where both are unknown."""
    if finding.cost_ns is None:
        return ()
    saves = "–"
    if finding.saving_ns is not None:
        saves = "≤" * is_bound(finding.remedy) + time(round(finding.saving_ns))
    return time(round(finding.cost_ns)), saves
