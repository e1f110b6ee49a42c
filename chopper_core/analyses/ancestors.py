"""Two runs of different operators: their activities under the deepest place that both have.

Places are a tree: phase, modules (outermost first), operation, operator (without its shape, the
class of the kernel). What one side runs in modules or operators that the other lacks counts at
their lowest common ancestor, where the other side does the same work in another way, as in
TraceLens's TraceDiff.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from chopper_core.model.column_names import CALL_SHAPE, MODULES
from chopper_core.model.groups import Groups
from chopper_core.model.table import BETWEEN_MODULES, NO_LABEL, KernelTable, whole_codes
from chopper_core.util.arrays import Codes, Index
from chopper_core.util.grouping import combined, run_starts, stable_order
from chopper_core.util.patterns import late

_ROOT: Final = "the step"
_WRAPPER: Final = late(
    r"(?:Distributed|FullySharded)?DataParallel|OptimizedModule|CheckpointWrapper"
)
"""Modules around a model that change no operator."""
_MAX_NAMED: Final = 3
Path = tuple[str, ...]


def by_ancestor(*nodes: Groups) -> tuple[list[tuple[list[str], Groups]], Mapping[str, str]]:
    """Labels and groups of the activities of both nodes by common ancestor; and by label what the
    sides have below it that the other lacks."""
    sides = [_paths(node) for node in nodes]
    places = [
        {path[:depth] for path in paths for depth in range(len(path) + 1)} for paths, _ in sides
    ]
    common = places[0] & places[1]
    found, lacking = [], [defaultdict[str, Counter[str]](Counter) for _ in sides]
    for node, (paths, place), below in zip(nodes, sides, lacking, strict=True):
        time_ns = np.bincount(place, node.values("duration_ns"), len(paths)).tolist()
        labels: dict[str, int] = {}
        codes = np.empty(len(paths), np.intp)
        for at, path in enumerate(paths):
            depth = next(depth for depth in range(len(path), -1, -1) if path[:depth] in common)
            label = BETWEEN_MODULES.join(path[:depth]) or _ROOT
            codes[at] = labels.setdefault(label, len(labels))
            below[label].update(dict.fromkeys(path[depth : depth + 1], time_ns[at]))
        order = stable_order(codes[place])
        groups = Groups(node.table, node.rows[order], run_starts(codes[place][order]))
        found.append(([*labels], groups))
    ours, base = ({label: _named(names) for label, names in each.items()} for each in lacking)
    texts = {
        label: f"{ours.get(label) or 'nothing'} instead of {base.get(label) or 'nothing'}"
        for label in [*ours, *base]
        if ours.get(label) or base.get(label)
    }
    return found, texts


def _named(names: Counter[str]) -> str:
    listed = [name for name, _ in names.most_common(_MAX_NAMED)]
    return ", ".join(listed) + (" …" if len(names) > _MAX_NAMED else "")


def _paths(node: Groups) -> tuple[Sequence[Path], Index]:
    """The different places in the tree, and that of each activity."""
    table, nothing = node.table, np.full(len(node.rows), NO_LABEL)
    columns: list[Codes] = [table.phase[node.rows], table.operation[node.rows]]
    for name in (MODULES, CALL_SHAPE):
        known = table.measured.get(name)
        columns.append(nothing if known is None else whole_codes(known[node.rows]))
    # Without an operator's shape the class of the kernel distinguishes them.
    columns.append(np.where(columns[-1] < 0, table.column("class")[node.rows], NO_LABEL))
    places, place = combined(columns)
    paths = []
    for phase, operation, modules, shape, kind in places.tolist():
        operator = table.shapes[shape].operator if shape >= 0 else table.text_of("class", kind)
        paths.append(
            _path(table, phase, modules, (table.text_of("operation", operation), operator))
        )
    return paths, place


def _path(table: KernelTable, phase: int, modules: int, names: tuple[str, str]) -> Path:
    parts = [table.text_of("phase", phase)]
    classes = table.names[modules].split(BETWEEN_MODULES) if modules >= 0 else []
    parts += [each for each in classes if not _WRAPPER.fullmatch(each)]
    for name in names:
        plain = name.removeprefix("aten::")
        parts += [plain] if plain != parts[-1] else []
    return tuple(parts)
