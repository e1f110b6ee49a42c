"""The two nodes of a comparison: what could be the other, and both split alike, rows matched."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
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

    def values(self, known: Metric) -> Values:
        """A figure of the rows."""
        return known.compute(Scope(self.groups, self.node, self.run.origin_ns, self.run.hardware))

    def whole(self, known: Metric) -> float | None:
        of_node = Scope(self.node, self.node, self.run.origin_ns, self.run.hardware)
        return known.compute(of_node).at(0)


class Sides(Struct, frozen=True, dict=True):
    """A node and its baseline."""

    by: str
    levels: tuple[str, ...]
    """The levels that split the rows."""
    ours: ComparedNode
    base: ComparedNode

    @cached_property
    def pairs(self) -> Pairs:
        """The rows of both, matched by label; renamed kernels by their place."""
        renamed: dict[str, str] = {}
        if all(level in dict(each.view.scope) for each in self._both for level in self.levels):
            # Each side is a single part, whatever its name.
            own, other = self.ours.labels[0], self.base.labels[0]
            return matched([own], [other], {} if own == other else {own: other})
        common = set(self.ours.labels) & set(self.base.labels)
        alone = min(len(self.ours.labels), len(self.base.labels)) - len(common)
        if self.by == "kernel" and alone:
            sides = [Side(each.node, dict(each.view.scope)) for each in (self.ours, self.base)]
            renamed = renamed_kernels(sides[0], sides[1], common)
        return matched(self.ours.labels, self.base.labels, renamed)

    @property
    def is_per_step(self) -> bool:
        """Whether sums are per GPU and iteration, as the sides have different numbers of them."""
        return self.ours.steps != self.base.steps

    def values(self, known: Metric) -> tuple[Values, Values]:
        """A figure of the rows of both sides."""
        ours, base = (self._of_step(each.values(known), known, each) for each in self._both)
        return aligned(ours, self.pairs.ours), aligned(base, self.pairs.base)

    def wholes(self, known: Metric) -> tuple[float | None, float | None]:
        """A figure of the two nodes themselves."""
        found = []
        for each in self._both:
            number = each.whole(known)
            divides = number is not None and known.reduces == Reduces.SUM and self.is_per_step
            found.append(number / each.steps if divides and number is not None else number)
        return found[0], found[1]

    @property
    def baseline_name(self) -> str:
        """The name of the baseline: what distinguishes it from the view."""
        ours, base = self.ours.view, self.base.view
        words = [] if base.run == ours.run else [PurePath(base.run).name]
        if base.scope != ours.scope:
            words += [f"{level} {label}" for level, label in base.scope] or ["the whole run"]
        return " ".join(words) or "itself"

    @property
    def _both(self) -> tuple[ComparedNode, ComparedNode]:
        return self.ours, self.base

    def _of_step(self, values: Values, known: Metric, side: ComparedNode) -> Values:
        if known.reduces != Reduces.SUM or not self.is_per_step:
            return values
        return Values(values.numbers / side.steps, values.missing)


def sides_of(run: Run, view: View) -> Sides:
    """A view's node and its baseline's, split by the view's `by`."""
    there = replace(baseline_view(view), name="", by="", of="")
    other = run if there.run == view.run else run.baseline_run(there.run)
    ours, base = dict(view.scope), dict(there.scope)
    by = view.by or next((each for each in _USUAL_SPLITS if not {each} & {*ours, *base}), "kernel")
    wanted = _PLACE_LEVELS if by == PLACE else (by,)
    # A level that both paths contain splits nothing.
    levels = tuple(level for level in wanted if not (level in ours and level in base)) or wanted
    own = _compared_node(run, view, levels, by)
    try:
        return Sides(by, levels, own, _compared_node(other, there, levels, by))
    except NoSuchNode as error:
        raise NoSuchNode(f"the baseline lacks this node: {error}") from None


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
    words = []
    for level, text in zip(levels, part, strict=True):
        if text == NO_LABEL_TEXT:
            words.append(f"no-{level}")
        else:
            words.append(f"L{text}" if level == "layer" else text)
    return " ".join(words)


class Candidate(Struct, frozen=True):
    """A row: a view with a baseline."""

    label: str
    view: View
    base_ns: int
    delta_ns: int


def candidates(run: Run, view: View) -> ViewResult:
    """The other runs that are open, the same scope on other GPUs and in other iterations, and
    the scope's own GPUs or iterations side by side."""
    found = [*_others(run, view), *_same_elsewhere(run, view), *_children(run, view)]
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


def _others(run: Run, view: View) -> list[Candidate]:
    own_ns = _time_of(run, view)
    found = []
    for name, other in run.others.items():
        with suppress(NoSuchNode):
            time = _time_of(other, view)
            found.append(Candidate(name, _beside(view, Baseline(name)), time, own_ns - time))
    return found


def _same_elsewhere(run: Run, view: View) -> list[Candidate]:
    tree, own_ns = run.tree(view.order), _time_of(run, view)
    found = []
    for depth, (level, label) in enumerate(view.scope):
        others = tree.children(view.path[:depth]).labels if level in _STEP else ()
        for text in others:
            path = (*view.path[:depth], text, *view.path[depth + 1 :])
            if text == label:
                continue
            with suppress(NoSuchNode):
                time = _time_of(run, replace(view, path=path))
                beside = _beside(view, Baseline("", path))
                found.append(Candidate(f"{level}={text}", beside, time, own_ns - time))
    return found


def _children(run: Run, view: View) -> list[Candidate]:
    """Each GPU next to the one in the middle, each iteration next to the one before."""
    level = view.level
    if level not in _STEP:
        return []
    children = run.tree_of(view).children(view.path)
    labels, times = list(children.labels), children.groups.elapsed_ns.tolist()
    if level == "iteration" and (left_out := set(map(str, run.left_out(view)))):
        kept = [place for place, label in enumerate(labels) if label not in left_out]
        labels, times = [labels[place] for place in kept], [times[place] for place in kept]
    middle = int(np.argsort(times, kind="stable")[(len(times) - 1) // 2])
    found = []
    for row, label in enumerate(labels):
        base = middle if level == "gpu" else row - 1
        if base in (row, -1):
            continue
        paths = [(*view.path, text) for text in (label, labels[base])]
        beside = _beside(replace(view, path=paths[0]), Baseline("", paths[1]))
        text = f"{level}={label} vs {level}={labels[base]}"
        found.append(Candidate(text, beside, times[base], times[row] - times[base]))
    return found


def _beside(view: View, baseline: Baseline) -> View:
    return replace(view, baseline=baseline, sort="", filter="", columns=())


_BASE: Final = column("""base_ns | ns | base time
    The time of this candidate baseline.""")
_DELTA: Final = column("""scope_ns_delta | ns | Δ time | signed
    The time of the scope minus that of this candidate baseline.""")


def _time_of(run: Run, view: View) -> int:
    """The time of a view's node; raises NoSuchNode."""
    return int(run.tree_of(view).node(view.path).elapsed_ns[0])
