"""Findings that cost the same time are one group: a finding, and its parts.

What a finding costs is spread over the cells that it is about, by the kind of time that it costs.
A finding is a part of another one that costs the same kind of time in the same cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.util.arrays import Float64, Mask
from chopper_core.util.grouping import distinct, sums_of
from chopper_core.views.findings.rule import (
    COMPUTES,
    EXPLAINED,
    SMALLEST_SAVING,
    Cost,
    Finding,
    FindingRule,
    FindingsContext,
)
from chopper_core.views.overheads import THEORY, parts_of

Found = tuple[FindingRule, Finding]

_COLUMNS: Final = {
    Cost.COMMUNICATION: ("exposed_comm_ns",),
    Cost.COPIES: ("exposed_copy_ns",),
    Cost.HOST: ("idle_host_ns",),
    Cost.LAUNCH: ("idle_launch_ns", "idle_unknown_ns"),
} | dict.fromkeys(COMPUTES, ("compute_ns", "overlap_ns"))
"""Kind of time → the columns that it is in; a finding of unknown kind may be in any."""
_NARROWER: Final = 0.8
"""A finding about less than this part of the time of another one is the more precise."""


class PlacedFinding(Struct, eq=False):
    """A finding with its parts, and what it costs by cell."""

    rule: FindingRule
    finding: Finding
    cells: Mask
    costs_ns: Float64
    about_ns: float
    """All time of its kind in its cells."""
    parts: list[PlacedFinding] = []

    @property
    def saving_ns(self) -> float:
        return self.finding.saving_ns or 0.0


def in_groups(context: FindingsContext, found: Sequence[Found]) -> list[tuple[Found, int | None]]:
    """The findings, each followed by its parts; and the place of the one that each is a part of.

    The largest group comes first. A part saves no more than the finding that it is a part of, and
    the groups together no more than the step can lose. Findings of unknown saving come last.
    """
    # Of equal savings, that of the later rule comes first.
    known = [_placed(context, each) for each in found[::-1] if each[1].saving_ns is not None]
    groups: list[PlacedFinding] = []
    for one in sorted(known, key=lambda each: -each.saving_ns):
        _add(context, groups, one)
    listed: list[tuple[Found, int | None]] = []

    def walk(level: list[PlacedFinding], whose: int | None, most_ns: float) -> None:
        for each in sorted(level, key=lambda each: -each.saving_ns):
            saving = min(each.saving_ns, most_ns)
            listed.append(((each.rule, replace(each.finding, saving_ns=saving)), whose))
            walk(each.parts, len(listed) - 1, saving)

    groups = [each for each in groups if context.share(each.saving_ns) >= SMALLEST_SAVING.share]
    walk(_fitting(context, groups), None, context.step_ns)
    return [*listed, *((each, None) for each in found[::-1] if each[1].saving_ns is None)]


def _placed(context: FindingsContext, found: Found) -> PlacedFinding:
    rule, finding = found
    cells = context.cells_about(finding)
    own: Float64 = np.zeros(len(cells))
    for name in _COLUMNS.get(finding.cost, ()):
        own = own + context.cells.sum(name) * cells
    if not own.any():
        own = np.asarray(context.cells.elapsed_ns * cells, np.float64)
    about = max(float(own.sum()), 1.0)
    gpus = len(distinct(context.place("gpu")[cells]))
    estimate = finding.saving_ns if finding.estimate_ns is None else finding.estimate_ns
    total = (estimate or 0.0) * gpus * len(context.iterations)
    return PlacedFinding(rule, finding, cells, own * (total / about), about)


def _add(context: FindingsContext, level: list[PlacedFinding], one: PlacedFinding) -> None:
    """Add a finding to larger ones, as a part of the smallest that costs the same time.

    It takes the place of one that costs little else, if it is more precise, or the cause of steps
    that differ.
    """
    least = EXPLAINED.share * one.costs_ns.sum()
    around = [each for each in level if _shared_ns(context, one, each) >= least]
    if not around:
        level.append(one)
        return
    whole = min(around, key=lambda each: float(each.costs_ns.sum()))
    is_most = _shared_ns(context, one, whole) >= EXPLAINED.share * whole.costs_ns.sum()
    is_cause = one.rule.replays > whole.rule.replays
    if is_most and (is_cause or one.about_ns < _NARROWER * whole.about_ns):
        level[level.index(whole)] = one
        one.parts, whole.parts = [whole, *whole.parts], []
    elif is_most:
        whole.parts.append(one)
    else:
        _add(context, whole.parts, one)


def _shared_ns(context: FindingsContext, one: PlacedFinding, whole: PlacedFinding) -> float:
    """The time, by GPU and iteration, that both findings cost in the cells of the second one."""
    if not one.finding.cost.may_be(whole.finding.cost):
        return 0.0
    place = context.place("gpu") * len(context.iterations) + context.place("iteration")
    sums = (
        sums_of(ns, place, context.spots) for ns in (one.costs_ns * whole.cells, whole.costs_ns)
    )
    return float(np.minimum(*sums).sum())


def _fitting(context: FindingsContext, groups: list[PlacedFinding]) -> list[PlacedFinding]:
    """The groups that together fit into what the step can lose; others are parts of the largest."""
    ideal = parts_of(context.run, context.split()).numbers(THEORY).sum()
    left = context.step_ns - context.per_iteration(float(ideal))
    kept: list[PlacedFinding] = []
    for each in sorted(groups, key=lambda each: -each.saving_ns):
        if kept and each.saving_ns > left:
            kept[0].parts.append(each)
            continue
        kept.append(each)
        left -= each.saving_ns
    return kept
