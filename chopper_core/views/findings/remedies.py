"""The what-if question about a finding: the steps replayed without what it costs."""

from __future__ import annotations

from typing import Final

import numpy as np

from chopper_core.util.grouping import distinct
from chopper_core.views.findings.rule import CELL, Cost, Finding, FindingsContext
from chopper_core.views.findings.worth import Worth
from chopper_core.views.shared.filter import only

_CHANGES: Final = {
    Cost.COMPUTE: "as peers",
    Cost.CLOCK: "as peers",
    Cost.KERNELS: "as peers",
    Cost.CONTENTION: "contention as peers",
    Cost.COMMUNICATION: "comm as peers",
    Cost.COPIES: "copy as peers",
    Cost.HOST: "host as peers",
}
_EVERYWHERE: Final = {
    Cost.COMMUNICATION: "comm x0",
    Cost.COPIES: "copy x0",
    Cost.HOST: "host x0",
}
"""Where nothing is without it that could be compared with."""
_PEERS: Final = ("gpu", "iteration")
_MAX_TERMS: Final = 8


def question_of(context: FindingsContext, finding: Finding, worth: Worth | None) -> str | None:
    """The question about what a finding is about; None where no replay removes it."""
    levels = [] if finding.gpu is None else ["gpu"]
    terms = [] if finding.gpu is None else [only("gpu", [str(finding.gpu)])]
    for level in CELL if finding.cells is not None and finding.cells.any() else ():
        codes = context.codes(level)
        own = distinct(codes[finding.cells])
        is_part = min(own) >= 0 and len(own) < len(distinct(codes)) and len(own) <= _MAX_TERMS
        if is_part and (level != "gpu" or finding.gpu is None):
            levels.append(level)
            terms.append(only(level, [context.text(level, code) for code in own.tolist()]))
    if finding.cost == Cost.WORK:
        return (
            " ".join([*terms, f"compute x{_left(context, finding, worth):.3f}"]) if terms else None
        )
    if (change := _CHANGES.get(finding.cost)) is None:
        return None
    if finding.cost in _EVERYWHERE and not {*_PEERS} & {*levels}:
        return " ".join([*terms, _EVERYWHERE[finding.cost]])
    if terms or finding.cost == Cost.CONTENTION:
        return " ".join([*terms, change])
    chip = context.run.hardware
    if finding.cost == Cost.CLOCK and chip is not None and chip.clock_mhz > 0:
        return f"clock={chip.clock_mhz:.0f}"
    return None


def _left(context: FindingsContext, finding: Finding, worth: Worth | None) -> float:
    """The part of the compute that a finding is about which isn't more than elsewhere."""
    if finding.removal is None or worth is None:
        return 1.0
    graph = worth.graph
    sizes = context.cells.sizes()
    rows = context.cells.rows[np.repeat(context.cells_about(finding) & context.computes, sizes)]
    nodes = graph.activities[np.isin(graph.row[graph.activities], rows)]
    whole = max(float(graph.work_ns[nodes].sum()), 1.0)
    return max(1.0 - float(finding.removal.work_ns[nodes].sum()) / whole, 0.0)
