"""The floating-point operations that the model asks for, from the shapes of its operators.

Products and attention only: they are what the matrix units run. Formulas: a product of (m, k) and
(k, n) takes 2·m·k·n; causal attention of b·h heads, s queries, t keys of width d takes
2·b·h·s·t·d forward (half of the 4·b·h·s·t·d without a mask) and 5·b·h·s·t·d backward. Sources:
UnaryLab/chopper `overhead_breakdown.py`; definitions of the operators in PyTorch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from chopper_core.align.autograd import Backward
from chopper_core.align.host import Host, Links
from chopper_core.align.intervals import NOWHERE
from chopper_core.align.kernel_names import ATTENTION_CLASS, kernel_class
from chopper_core.align.labels import numbered
from chopper_core.schema import NO_TIME
from chopper_core.sources.trace import ABSENT

Float64 = NDArray[np.float64]
Mask = NDArray[np.bool_]
Shape = list[int]

_FORWARD_FACTOR: Final = 2
_BACKWARD_FACTOR: Final = 5
_ATTENTION: Final = re.compile(r"scaled_dot_product\w*attention|^flash_attn::_flash_attn")
_HEADS_AFTER_SEQUENCE: Final = re.compile(r"^flash_attn::")
_BACKWARD: Final = re.compile(r"backward", re.IGNORECASE)
_STAND_IN: Final = 10
"""A kernel that has FLOPs this many times more seldom than another is no usual carrier."""
_MATRIX_CLASSES: Final = ("gemm", ATTENTION_CLASS)


def operator_flops(name: str, shapes: list[Shape]) -> float | None:
    """The floating-point operations of one call of an operator, None where they aren't known."""
    if _ATTENTION.search(name):
        return _attention(name, shapes)
    counts: dict[str, Callable[[list[Shape]], float | None]] = {
        "aten::mm": _product,
        "aten::addmm": lambda given: _product(given[1:]),
        "aten::_scaled_mm": _product,
        "aten::bmm": _batched,
        "aten::baddbmm": lambda given: _batched(given[1:]),
    }
    return counts[name](shapes) if name in counts else None


def _product(shapes: list[Shape]) -> float | None:
    if len(shapes) < 2 or len(shapes[0]) != 2 or len(shapes[1]) != 2:
        return None
    (rows, inner), (again, columns) = shapes[0], shapes[1]
    return 2.0 * rows * inner * columns if inner == again else None


def _batched(shapes: list[Shape]) -> float | None:
    if len(shapes) < 2 or len(shapes[0]) != 3 or len(shapes[1]) != 3:
        return None
    single = _product([shapes[0][1:], shapes[1][1:]])
    return None if single is None else single * shapes[0][0]


def _attention(name: str, shapes: list[Shape]) -> float | None:
    wide = [shape for shape in shapes if len(shape) == 4]
    if _BACKWARD.search(name):
        wide = wide[1:]
    if len(wide) < 2:
        return None
    query, key = wide[0], wide[1]
    sequence, head = (1, 2) if _HEADS_AFTER_SEQUENCE.search(name) else (2, 1)
    factor = _BACKWARD_FACTOR if _BACKWARD.search(name) else _FORWARD_FACTOR
    return float(factor) * query[0] * query[head] * query[sequence] * key[sequence] * query[3]


def activity_flops(host: Host, links: Links, backward: Backward) -> Float64:
    """The model's floating-point operations of each activity; NaN where they aren't known.

    They go to the longest matrix kernel that the innermost counted operator launched. An
    attention kernel in backward whose operator shows no shapes has those of its forward.
    """
    activities = host.trace.activities
    flops = np.full(len(activities), np.nan)
    shaped = np.flatnonzero(host.is_operator & (host.ranges.shapes != ABSENT))
    known: dict[tuple[int, int], float | None] = {}
    counted: list[int] = []
    amounts: dict[int, float] = {}
    for row in shaped.tolist():
        key = (int(host.ranges.name[row]), int(host.ranges.shapes[row]))
        if key not in known:
            known[key] = operator_flops(host.text(row), _shapes(host.trace.names[key[1]]))
        amount = known[key]
        if amount is not None:
            counted.append(row)
            amounts[row] = amount
    operator = host.intervals(np.array(counted, np.intp)).innermost(links.points)
    is_matrix = host.by_kernel(lambda name: kernel_class(name) in _MATRIX_CLASSES) > 0
    rows = np.flatnonzero(is_matrix & (operator != NOWHERE))
    by_operator = rows[np.lexsort((activities.duration_ns[rows], operator[rows]))]
    longest = np.ones(len(by_operator), np.bool_)
    longest[:-1] = operator[by_operator[:-1]] != operator[by_operator[1:]]
    for row in by_operator[longest].tolist():
        flops[row] = amounts[int(operator[row])]
    _attention_backward(flops, host, links, backward, amounts)
    _without_stand_ins(flops, activities.name, links.launch_ns == NO_TIME)
    return flops


def _without_stand_ins(flops: Float64, kernel: NDArray[np.int32], unlinked: Mask) -> None:
    """Take FLOPs from a helper kernel where the kernel that usually has them lacks its launch.

    The launch that is missing hides the main kernel, so that a lesser one of the same call came
    to be the longest. The main kernel gets them back by `lend_flops`.
    """
    lost = np.unique(kernel[unlinked])
    for amount in np.unique(flops[np.isfinite(flops)]):
        rows = np.flatnonzero(flops == amount)
        names, counts = np.unique(kernel[rows], return_counts=True)
        rare = names[counts * _STAND_IN <= counts.max()]
        if len(rare) and np.isin(names[counts * _STAND_IN > counts.max()], lost).any():
            flops[rows[np.isin(kernel[rows], rare)]] = np.nan


def lend_flops(flops: Float64, keys: Sequence[NDArray[np.generic]], lacks: Mask) -> Float64:
    """FLOPs with those of equal activities given to activities that lack a launch record.

    Equal are those with the same keys (kernel, operation, phase) where all that are known agree.
    """
    wanted = np.flatnonzero(lacks & ~np.isfinite(flops))
    known = np.flatnonzero(np.isfinite(flops))
    if not len(wanted) or not len(known):
        return flops
    group = numbered(keys)
    low = np.full(int(group.max()) + 1, np.inf)
    high = np.full(len(low), -np.inf)
    np.minimum.at(low, group[known], flops[known])
    np.maximum.at(high, group[known], flops[known])
    agreed = np.where(low == high, low, np.nan)
    lent = flops.copy()
    lent[wanted] = agreed[group[wanted]]
    return lent


def _attention_backward(
    flops: Float64, host: Host, links: Links, backward: Backward, amounts: dict[int, float]
) -> None:
    attends = host.by_kernel(lambda name: kernel_class(name) == ATTENTION_CLASS) > 0
    forward = [row for row in amounts if _ATTENTION.search(host.text(row))]
    node = backward.linked.innermost(links.points)
    of_forward = host.intervals(np.array(forward, np.intp)).innermost(
        backward.forward_of(links.points)
    )
    rows = np.flatnonzero(attends & (of_forward != NOWHERE))
    counted = np.unique(node[rows[np.isfinite(flops[rows])]])
    rows = rows[~np.isin(node[rows], counted)]
    duration = host.trace.activities.duration_ns
    rows = rows[np.lexsort((duration[rows], node[rows]))]
    longest = np.ones(len(rows), np.bool_)
    longest[:-1] = node[rows[:-1]] != node[rows[1:]]
    for row in rows[longest].tolist():
        flops[row] = amounts[int(of_forward[row])] * _BACKWARD_FACTOR / _FORWARD_FACTOR


def _shapes(text: str) -> list[Shape]:
    """The shapes of an operator's inputs; others than plain tensors become empty."""
    try:
        given = json.loads(text)
    except ValueError:
        return []
    return [
        shape if isinstance(shape, list) and all(isinstance(n, int) for n in shape) else []
        for shape in given
    ]
