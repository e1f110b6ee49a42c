"""A node and its baseline, split into the same rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.analyses.ancestors import by_ancestor
from chopper_core.analyses.base import Base, base_of, baseline_of
from chopper_core.analyses.coverage import values_on_base
from chopper_core.analyses.row_pairs import Pairs, matched, renamed_labels
from chopper_core.analyses.same_work import Side
from chopper_core.columns import (
    Metric,
    Scope,
    Values,
    metric_named,
)
from chopper_core.columns.derived import difference
from chopper_core.model.groups import Groups
from chopper_core.model.phrases import level_title
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL_TEXT, PLACES
from chopper_core.model.view import Baseline, View, child_of
from chopper_core.util.errors import NoSuchNode


def opens_of(both: Sides, row: int) -> View:
    ours, base = int(both.pairs.ours[row]), int(both.pairs.base[row])
    if ours < 0:
        return both.base.opens(base)
    view, baseline = both.ours.opens(ours), both.ours.view.baseline
    added = len(view.path) - len(both.ours.view.path)
    if baseline is None or not added:
        return view
    levels = [[level for level, _ in side.view.scope] for side in (both.ours, both.base)]
    if base < 0 or levels[0] != levels[1]:
        return replace(view, baseline=None)
    path = (*both.base.view.path, *both.base.parts[base][-added:])
    if baseline.path is None and path == view.path:
        return view
    return replace(view, baseline=Baseline(baseline.run, path))


PLACE: Final = "place"
ANCESTOR: Final = "ancestor"
_STEP: Final = ("gpu", "iteration")
_USUAL_SPLITS: Final = ("operation", "kernel", "layer", "phase", "gpu", "iteration")
_ALIKE: Final = (*_STEP, "layer")
"""Levels whose nodes do the same, so that one is a baseline of another."""


class ComparedNode(Side, frozen=True):
    """One of the two nodes, split into rows."""

    node: Groups
    groups: Groups
    levels: tuple[str, ...]
    """The levels that split the rows."""
    parts: tuple[tuple[str, ...], ...]
    """The labels of each row at these levels."""
    base: Base
    named: Mapping[str, Sequence[str]]
    """The labels of the rows by level, which figures that add up are divided by."""

    def values(self, known: Metric) -> Values:
        """A figure of the rows."""
        scope = Scope.of(self.run, self.groups, self.node)
        return values_on_base(known, self.base, self.view, scope, self.named)

    def opens(self, row: int) -> View:
        view = self.view if self.levels else replace(self.view, by="operation")
        for level, label in zip(self.levels, self.parts[row], strict=True):
            view = child_of(view, level, label)
        return view


class Sides(Struct, frozen=True):
    """A node and its baseline."""

    by: str
    ours: ComparedNode
    base: ComparedNode
    pairs: Pairs
    """The rows of both, matched by label; renamed kernels by their place."""

    @property
    def whole(self) -> Sides:
        """The two nodes themselves, as one row."""
        ours, base = (
            replace(each, groups=each.node, named={"": [""]}) for each in (self.ours, self.base)
        )
        return replace(self, ours=ours, base=base, pairs=matched([""], [""], {}))

    def values(self, known: Metric) -> tuple[Values, Values]:
        def of_rows(name: str) -> tuple[Values, Values]:
            metric = known if name == known.name else metric_named(name)
            return self.ours.values(metric), self.base.values(metric)

        return self.pairs.known(known, of_rows, self.runs)

    @property
    def runs(self) -> tuple[Run, Run]:
        return self.ours.run, self.base.run

    def difference(self, known: Metric) -> Values:
        return difference(known, *self.values(known), self.runs)

    @property
    def baseline_name(self) -> str:
        ours, base = self.ours.view, self.base.view
        words = [] if base.run == ours.run else [PurePath(base.run).name]
        if base.scope != ours.scope:
            words += [f"{level_title(level)} {label}" for level, label in base.scope] or [
                "the whole run"
            ]
        return " ".join(words) or "itself"


def sides_of(run: Run, view: View) -> Sides:
    other, there = baseline_of(run, view)
    scopes = dict(view.scope), dict(there.scope)
    named = {*scopes[0], *scopes[1]}
    by = view.by or next((each for each in _USUAL_SPLITS if each not in named), "kernel")
    if by == ANCESTOR:
        return _by_ancestor((run, view), (other, there))
    wanted = PLACES if by == PLACE else (by,)
    # A level that both paths contain splits nothing.
    common = {level for level in wanted if all(level in scope for scope in scopes)}
    levels = tuple(level for level in wanted if level not in common) or wanted
    ours = _compared_node(run, view, levels, by)
    try:
        base = _compared_node(other, there, levels, by)
    except NoSuchNode as error:
        raise NoSuchNode(f"the baseline lacks this node: {error}") from None
    renamed: dict[str, str] = {}
    if common.issuperset(levels):
        # Each side is a single part, whatever its name.
        renamed = dict(zip(ours.labels, base.labels, strict=True))
    elif by in ("kernel", "operation"):
        renamed = renamed_labels(ours, base, by)
    return Sides(by, ours, base, matched(ours.labels, base.labels, renamed))


def _by_ancestor(*sides: tuple[Run, View]) -> Sides:
    nodes = [run.tree_of(view).node(view.path) for run, view in sides]
    split, instead = by_ancestor(*nodes)
    found = []
    for (run, view), node, (labels, groups) in zip(sides, nodes, split, strict=True):
        base, parts = base_of(run, view), ((),) * len(labels)
        named = {ANCESTOR: labels}
        found.append(ComparedNode(run, view, labels, node, groups, (), parts, base, named))
    ours, base_side = found
    pairs = replace(matched(ours.labels, base_side.labels, {}), instead=instead)
    return Sides(ANCESTOR, ours, base_side, pairs)


def _compared_node(run: Run, view: View, levels: tuple[str, ...], by: str) -> ComparedNode:
    tree = run.tree_of(view)
    groups, base = tree.split(view.path, levels), base_of(run, view)
    texts = [groups.labels(level) for level in levels]
    parts = tuple(zip(*texts, strict=True))
    labels = [_place_label(levels, part) if by == PLACE else part[0] for part in parts]
    node = tree.node(view.path)
    named = dict(zip(levels, texts, strict=True))
    return ComparedNode(run, view, labels, node, groups, levels, parts, base, named)


def _place_label(levels: tuple[str, ...], part: tuple[str, ...]) -> str:
    return " ".join(
        f"no-{level}" if text == NO_LABEL_TEXT else f"L{text}" if level == "layer" else text
        for level, text in zip(levels, part, strict=True)
    )
