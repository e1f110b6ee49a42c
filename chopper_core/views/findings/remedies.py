"""The what-if question about a finding: the steps replayed without what it costs."""

from __future__ import annotations

from typing import Final

from chopper_core.util.grouping import distinct
from chopper_core.views.findings.rule import CELL, Cost, Finding, FindingsContext
from chopper_core.views.shared.filter import only

_CHANGES: Final = {
    Cost.COMPUTE: "as peers",
    Cost.CLOCK: "as peers",
    Cost.KERNELS: "as peers",
    Cost.CONTENTION: "contention as peers",
    Cost.COMMUNICATION: "comm at peak",
    Cost.HOST: "host as peers",
}
_MAX_TERMS: Final = 8


def question_of(context: FindingsContext, finding: Finding) -> str | None:
    """The question about what a finding is about; None where no replay removes it."""
    if (change := _CHANGES.get(finding.cost)) is None:
        return None
    terms = [] if finding.gpu is None else [only("gpu", [str(finding.gpu)])]
    for level in CELL if finding.cells is not None and finding.cells.any() else ():
        codes = context.codes(level)
        own = distinct(codes[finding.cells])
        is_part = min(own) >= 0 and len(own) < len(distinct(codes)) and len(own) <= _MAX_TERMS
        if is_part and (level != "gpu" or finding.gpu is None):
            terms.append(only(level, [context.text(level, code) for code in own.tolist()]))
    if terms or finding.cost in (Cost.COMMUNICATION, Cost.CONTENTION):
        return " ".join([*terms, change])
    chip = context.run.hardware
    if finding.cost == Cost.CLOCK and chip is not None and chip.clock_mhz > 0:
        return f"clock={chip.clock_mhz:.0f}"
    return "no host gaps" if finding.cost == Cost.HOST else None
