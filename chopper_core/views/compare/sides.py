"""The two nodes of a comparison: what could be the other, and both split alike, rows matched."""

from __future__ import annotations

from contextlib import suppress
from pathlib import PurePath
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.metrics import Metric, Reduces, Scope, Values, column
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL_TEXT
from chopper_core.model.view import Baseline, View, baseline_view
from chopper_core.util.errors import NoSuchNode
from chopper_core.views.shared.compared import Pairs, aligned, matched
from chopper_core.views.shared.renamed_kernels import Side, renamed_kernels
from chopper_core.views.spec import ViewResult

PLACE: Final = "place"
_PLACE_LEVELS: Final = ("phase", "layer", "operation")
_STEP: Final = ("gpu", "iteration")
_USUAL_SPLITS: Final = ("operation", "kernel", "layer", "phase", "gpu", "iteration")
HOW: Final = (
    "no baseline yet: press b on a scope and 8 on another, or mark two rows with space and press =,"
    " or end the address with base=gpu=0 or base=RUN"
)


class ComparedNode(Struct, frozen=True):
    """One of the two nodes, split into rows."""

    run: Run
    view: View
    node: Groups
    groups: Groups
    parts: tuple[tuple[str, ...], ...]
    """The labels of each row at the levels of the split."""
    labels: tuple[str, ...]
    steps: int
    """The number of pairs of a GPU and an iteration in the node."""


class Sides(Struct, frozen=True):
    """A node and its baseline."""

    by: str
    levels: tuple[str, ...]
    """The levels that split the rows."""
    ours: ComparedNode
    base: ComparedNode
    pairs: Pairs
    """The rows of both, matched by label; renamed kernels by their place."""

    @property
    def whole(self) -> Sides:
        """The two nodes themselves, as one row."""
        ours, base = (replace(each, groups=each.node) for each in (self.ours, self.base))
        return replace(self, ours=ours, base=base, pairs=matched([""], [""]))

    @property
    def is_per_step(self) -> bool:
        """Whether sums are per GPU and iteration, as the sides have different numbers of them."""
        return self.ours.steps != self.base.steps

    def values(self, known: Metric) -> tuple[Values, Values]:
        """A figure of the rows of both sides."""
        sides = (self.ours, self.pairs.ours), (self.base, self.pairs.base)
        ours, base = (aligned(self._of_side(known, side), rows) for side, rows in sides)
        return ours, base

    @property
    def baseline_name(self) -> str:
        """The name of the baseline: what distinguishes it from the view."""
        ours, base = self.ours.view, self.base.view
        words = [] if base.run == ours.run else [PurePath(base.run).name]
        if base.scope != ours.scope:
            words += [f"{level} {label}" for level, label in base.scope] or ["the whole run"]
        return " ".join(words) or "itself"

    def _of_side(self, known: Metric, side: ComparedNode) -> Values:
        scope = Scope(side.groups, side.node, side.run.origin_ns, side.run.hardware)
        values = known.compute(scope)
        if known.reduces != Reduces.SUM or not self.is_per_step:
            return values
        return Values(values.numbers / side.steps, values.missing)


def sides_of(run: Run, view: View) -> Sides:
    """A view's node and its baseline's, split by the view's `by`."""
    there = replace(baseline_view(view), name="", by="", of="")
    other = run if there.run == view.run else run.baseline_run(there.run)
    scopes = dict(view.scope), dict(there.scope)
    named = {*scopes[0], *scopes[1]}
    by = view.by or next((each for each in _USUAL_SPLITS if each not in named), "kernel")
    wanted = _PLACE_LEVELS if by == PLACE else (by,)
    # A level that both paths contain splits nothing.
    common = {level for level in wanted if all(level in scope for scope in scopes)}
    levels = tuple(level for level in wanted if level not in common) or wanted
    ours = _compared_node(run, view, levels, by)
    try:
        base = _compared_node(other, there, levels, by)
    except NoSuchNode as error:
        raise NoSuchNode(f"the baseline lacks this node: {error}") from None
    renamed: dict[str, str] = {}
    shared = set(ours.labels) & set(base.labels)
    if common.issuperset(levels):
        # Each side is a single part, whatever its name.
        own, theirs = ours.labels[0], base.labels[0]
        renamed = {} if own == theirs else {own: theirs}
    elif by == "kernel" and len(shared) < min(len(ours.labels), len(base.labels)):
        sides = [Side(each.node, dict(each.view.scope)) for each in (ours, base)]
        renamed = renamed_kernels(sides[0], sides[1], shared)
    return Sides(by, levels, ours, base, matched(ours.labels, base.labels, renamed))


def _compared_node(run: Run, view: View, levels: tuple[str, ...], by: str) -> ComparedNode:
    tree = run.tree_of(view)
    node = tree.node(view.path)
    groups, steps = (tree.split(view.path, each) for each in (levels, _STEP))
    texts = [
        [run.table.text_of(level, int(code)) for code in groups.codes(level)] for level in levels
    ]
    parts = tuple(zip(*texts, strict=True))
    labels = tuple(_label(levels, part) if by == PLACE else part[0] for part in parts)
    return ComparedNode(run, view, node, groups, parts, labels, len(steps))


def _label(levels: tuple[str, ...], part: tuple[str, ...]) -> str:
    """A short name of a place: `backward L17 mlp_dp`."""
    return " ".join(
        f"no-{level}" if text == NO_LABEL_TEXT else f"L{text}" if level == "layer" else text
        for level, text in zip(levels, part, strict=True)
    )


class Candidate(Struct, frozen=True):
    """A row: a view with a baseline."""

    label: str
    view: View
    base_ns: int
    delta_ns: int


def candidates(run: Run, view: View) -> ViewResult:
    """The other runs that are open, the same scope on other GPUs and in other iterations, and
    the scope's own GPUs or iterations side by side."""
    found: list[Candidate] = []

    def add(label: str, own: View, baseline: Baseline, other: Run = run) -> None:
        with suppress(NoSuchNode):
            there = own if baseline.path is None else replace(own, path=baseline.path)
            base_ns, own_ns = _time_of(other, there), _time_of(run, own)
            beside = replace(own, baseline=baseline, sort="", filter="", columns=())
            found.append(Candidate(label, beside, base_ns, own_ns - base_ns))

    for name, other in run.others.items():
        add(name, view, Baseline(name), other)
    for depth, (level, label) in enumerate(view.scope):
        siblings = run.tree(view.order).children(view.path[:depth]).labels
        for text in siblings if level in _STEP else ():
            path = (*view.path[:depth], text, *view.path[depth + 1 :])
            if text != label:
                add(f"{level}={text}", view, Baseline("", path))
    if (level := view.level) in _STEP:
        # Each GPU next to the one in the middle, each iteration next to the one before.
        children = run.tree_of(view).children(view.path)
        left_out = set(map(str, run.left_out(view))) if level == "iteration" else ()
        kept = [row for row, label in enumerate(children.labels) if label not in left_out]
        labels, times = [children.labels[row] for row in kept], children.groups.elapsed_ns[kept]
        middle = int(np.argsort(times, kind="stable")[(len(times) - 1) // 2])
        for row, label in enumerate(labels):
            base = middle if level == "gpu" else row - 1
            if base not in (row, -1):
                baseline = Baseline("", (*view.path, labels[base]))
                text = f"{level}={label} vs {level}={labels[base]}"
                add(text, replace(view, path=(*view.path, label)), baseline)
    return ViewResult(
        level="baseline",
        labels=[each.label for each in found],
        columns=(
            (_BASE, Values(np.array([each.base_ns for each in found], np.int64))),
            (_DELTA, Values(np.array([each.delta_ns for each in found], np.int64))),
        ),
        opens=lambda row: found[row].view,
        headline=(f"{HOW}{'; or take a row with Enter' if found else ''}",),
    )


_BASE: Final = column("""base_ns | ns | base time
    The time of this candidate baseline.""")
_DELTA: Final = column("""scope_ns_delta | ns | Δ time | signed
    The time of the scope minus that of this candidate baseline.""")


def _time_of(run: Run, view: View) -> int:
    """The time of a view's node; raises NoSuchNode."""
    return int(run.tree_of(view).node(view.path).elapsed_ns[0])
