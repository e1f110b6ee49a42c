"""The what-if questions about a finding: the steps replayed without what it costs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

import numpy as np

from chopper_core.columns.filter import only
from chopper_core.findings.rule import CELL, Cost, Finding, FindingsContext
from chopper_core.model.table import NO_LABEL
from chopper_core.model.view import SEPARATOR
from chopper_core.util.arrays import Codes, Mask
from chopper_core.util.grouping import combined, distinct, grouped_by, places_by

_CHANGES: Final = {
    Cost.COMPUTE: "compute as peers",
    Cost.CLOCK: "compute as peers",
    Cost.KERNELS: "compute as peers",
    Cost.WORK: "compute as peers",
    Cost.CONTENTION: "contention as peers",
    Cost.COMMUNICATION: "comm as peers",
    Cost.COPIES: "copy as peers",
    Cost.HOST: "host as peers",
    Cost.LAUNCH: "launch x0",
}
_EVERYWHERE: Final = {
    Cost.COMMUNICATION: "comm hidden",
    Cost.COPIES: "copy x0",
    Cost.HOST: "host x0",
    Cost.LAUNCH: "launch x0",
    Cost.CONTENTION: "contention as peers",
}
"""Where nothing is without it that could be compared with."""
_FACTORED: Final = {"compute": "duration_ns", "host": "idle_host_ns"}
"""Kind of time that changes by a factor → the column that it is in."""
_PEERS: Final = ("gpu", "iteration")
_MAX_TERMS: Final = 64
_LEAST_PART: Final = 0.1
"""Of the largest of several kinds of time: less is no change."""


def question_of(context: FindingsContext, finding: Finding) -> str:
    """The questions about what a finding costs at its place; empty where no replay removes it."""
    cells = np.zeros(len(context.cells), np.bool_)
    cells[context.cells_about(finding)] = True
    # Iterations far from the others are in no replay.
    places = list(_places(context, cells)) if cells.any() else []
    asked = np.any([inside for _, inside in places], axis=0) if places else cells
    found: dict[str, None] = {}
    for place, _ in places:
        for change in _changes(finding, place):
            terms = [only(level, labels) for level, labels in place.items()]
            found[" ".join([*terms, _spread(context, change, cells, asked)])] = None
    return f"{SEPARATOR} ".join(found)


def _spread(context: FindingsContext, change: str, cells: Mask, asked: Mask) -> str:
    """A change by a factor of some cells, as one of all that are asked about: as much time less."""
    kind, _, factor = change.partition(" x")
    if kind not in _FACTORED or not factor or np.array_equal(cells, asked):
        return change
    ns = context.cells.sum(_FACTORED[kind]).astype(np.float64)
    if kind == "compute":
        ns *= context.computes
    part = float(ns[cells].sum()) / max(float(ns[asked].sum()), 1.0)
    return f"{kind} x{1 - (1 - float(factor)) * part:.4f}"


def _changes(finding: Finding, place: Collection[str]) -> Sequence[str]:
    if finding.changes is not None:
        return finding.changes
    change = _CHANGES.get(finding.kind) if place else None
    if not {*_PEERS} & {*place}:
        change = _EVERYWHERE.get(finding.kind, change)
    return [] if change is None else [change]


def changes_of(costs: dict[Cost, float]) -> tuple[str, ...]:
    """The changes that remove several kinds of time beyond that of peers, next to nothing aside."""
    most = max(costs.values(), default=0.0)
    large = [cost for cost, ns in costs.items() if ns > _LEAST_PART * most and cost in _CHANGES]
    return tuple(dict.fromkeys(_CHANGES[cost] for cost in large))


def _places(context: FindingsContext, cells: Mask) -> Iterator[tuple[dict[str, list[str]], Mask]]:
    """Where some cells are, as labels by level, with all cells there; at several places if their
    GPUs differ in it."""
    place, inside = _place(context, cells)
    if np.array_equal(inside, cells) or "gpu" not in place:
        yield place, inside
        return
    gpu_of = context.codes("gpu")
    others = combined([context.codes(level) for level in CELL[1:]])[1]
    own = np.flatnonzero(cells)
    of_gpu = {gpu: own[at] for gpu, at in places_by(gpu_of[own]).items()}
    like = grouped_by(of_gpu, lambda gpu: distinct(others[of_gpu[gpu]]).tobytes())
    for gpus in like.values():
        yield _place(context, cells & np.isin(context.codes("gpu"), gpus))


def _place(context: FindingsContext, cells: Mask) -> tuple[dict[str, list[str]], Mask]:
    """The fewest labels that some cells have in common, and all cells with these."""
    inside: Mask = np.ones(len(cells), np.bool_)
    left: list[str] = list(CELL)
    found: dict[str, Codes] = {}
    while True:
        here = {level: distinct(context.codes(level)[cells]) for level in left}
        more = [level for level in left if _says_more(here[level], context.codes(level)[inside])]
        if not more:
            break
        level = min(more, key=lambda name: len(here[name]))
        left.remove(level)
        found[level] = here[level]
        inside &= np.isin(context.codes(level), here[level])
    labels: dict[str, list[str]] = {
        level: [context.text(level, code) for code in found[level].tolist()]
        for level in CELL
        if level in found
    }
    return labels, inside


def _says_more(codes: Codes, every: Codes) -> bool:
    is_part = len(codes) < len(distinct(every)) and len(codes) <= _MAX_TERMS
    return is_part and NO_LABEL not in codes
