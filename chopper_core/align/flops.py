"""Which activities do the floating-point operations that the model asks for.

Products, attention and convolutions only: they are what the matrix units run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from chopper_core.align.autograd import Backward
from chopper_core.align.host import Host, Links
from chopper_core.align.intervals import NOWHERE
from chopper_core.align.kernel_names import ATTENTION_CLASS, kernel_class
from chopper_core.align.labels import numbered
from chopper_core.align.operator_work import (
    ATTENTION,
    BACKWARD_PER_FORWARD,
    Inputs,
    Work,
    operator_work,
)
from chopper_core.element_types import ElementType, says_tf32
from chopper_core.schema import NO_TIME
from chopper_core.sources.trace import ABSENT

Float64 = NDArray[np.float64]
Mask = NDArray[np.bool_]
Works = dict[int, Work]

_STAND_IN: Final = 10
"""A kernel that has FLOPs this many times more seldom than another is no usual carrier."""
_MATRIX_CLASSES: Final = ("gemm", ATTENTION_CLASS, "convolution")
_OF_WEIGHT: Final = re.compile(r"wrw|w_?grad|bwd_?weight|grad_weight", re.IGNORECASE)
_OF_INPUT: Final = re.compile(r"igemm_bwd|d_?grad|bwd_?data|grad_input", re.IGNORECASE)


class ModelWork(Struct, frozen=True):
    """The model's work by activity."""

    flops: Float64
    """NaN where they aren't known."""
    element: Float64
    """The `ElementType` of what is multiplied; NaN where there are no FLOPs."""
    of_unknown_mask: int
    """Kernels of attentions of which the trace does not say whether they are causal."""


def model_work(
    host: Host, links: Links, backward: Backward, lenders: Sequence[NDArray[np.generic]]
) -> ModelWork:
    """The model's work of each activity.

    It goes to the matrix kernels that take longest of those that the innermost counted operator
    launched. An attention kernel in backward whose operator shows no shapes has the work that its
    forward says. Activities without a launch record have that of activities equal in `lenders`.
    """
    activities = host.trace.activities
    flops = np.full(len(activities), np.nan)
    element = np.full(len(activities), np.nan)
    works = _works(host)
    operator = host.intervals(np.fromiter(works, np.intp, len(works))).innermost(links.points)
    is_matrix = host.by_kernel(lambda name: kernel_class(name) in _MATRIX_CLASSES) > 0
    rows = np.flatnonzero(is_matrix & (operator != NOWHERE))
    for work, parts, carriers in _carriers(host, rows, operator, works):
        flops[carriers] = work.flops * parts / len(carriers)
        element[carriers] = work.element
    _attention_backward(flops, element, host, links, backward, works)
    _without_stand_ins(flops, activities.name, links.launch_ns == NO_TIME)
    lacks = links.launch_ns == NO_TIME
    flops = lend(flops, lenders, lacks)
    element = lend(element, lenders, lacks)
    computes_tf32 = host.by_kernel(says_tf32) > 0
    element[(element == ElementType.FP32) & computes_tf32] = ElementType.TF32
    element[np.isnan(element)] = ElementType.UNKNOWN
    element[np.isnan(flops)] = np.nan
    masked = rows[np.isnan([works[row].flops for row in operator[rows].tolist()])]
    return ModelWork(flops, element, len(np.unique(operator[masked])))


def _works(host: Host) -> Works:
    """The work of the operators that have some, by row of the host's ranges."""
    ranges, names = host.ranges, host.trace.names
    shaped = np.flatnonzero(host.is_operator & (ranges.shapes != ABSENT))
    known: dict[tuple[int, ...], Work | None] = {}
    works: Works = {}
    columns = (ranges.name, ranges.shapes, ranges.types, ranges.values)
    for row, *key in zip(
        shaped.tolist(), *(column[shaped].tolist() for column in columns), strict=True
    ):
        codes = tuple(key)
        if codes not in known:
            texts = ("" if code == ABSENT else names[code] for code in codes[1:])
            known[codes] = operator_work(names[codes[0]], Inputs.parsed(*texts))
        work = known[codes]
        if work is not None:
            works[row] = work
    return works


def _carriers(
    host: Host, rows: NDArray[np.intp], operator: NDArray[np.intp], works: Works
) -> Iterator[tuple[Work, int, list[int]]]:
    """Each work with how many of its parts some activities share.

    A part goes to all launches of one kernel name: those that take longest together. Where all
    are of one name they share the parts, of which a single launch takes no more than one.
    """
    activities = host.trace.activities
    name, duration_ns = activities.name.tolist(), activities.duration_ns.tolist()
    by_operator = rows[np.argsort(operator[rows], kind="stable")]
    for number, group in groupby(by_operator.tolist(), key=operator.tolist().__getitem__):
        work, own = works[number], list(group)
        if len(own) == 1:
            yield work, 1, own
            continue
        launches: dict[int, list[int]] = {}
        for row in own:
            launches.setdefault(name[row], []).append(row)
        longest = sorted(launches.values(), key=lambda each: -sum(duration_ns[row] for row in each))
        if len(longest) == 1:
            yield work, min(work.parts, len(own)), own
            continue
        yield work, 1, longest[0]
        said = _direction(host.trace.names[name[longest[0][0]]])
        others = [
            each
            for each in longest[1:]
            if not said or _direction(host.trace.names[name[each[0]]]) != said
        ]
        yield from ((work, 1, each) for each in others[: work.parts - 1])


def _direction(kernel: str) -> str:
    """Which gradient of a convolution a kernel's name says that it computes; empty for none."""
    return "weight" if _OF_WEIGHT.search(kernel) else "input" if _OF_INPUT.search(kernel) else ""


def _without_stand_ins(flops: Float64, kernel: NDArray[np.int32], unlinked: Mask) -> None:
    """Take FLOPs from a helper kernel where the kernel that usually has them lacks its launch.

    The launch that is missing hides the main kernel, so that a lesser one of the same call came
    to be the longest. The main kernel gets them back by `lend`.
    """
    lost = np.unique(kernel[unlinked])
    for amount in np.unique(flops[np.isfinite(flops)]):
        rows = np.flatnonzero(flops == amount)
        names, counts = np.unique(kernel[rows], return_counts=True)
        rare = names[counts * _STAND_IN <= counts.max()]
        if len(rare) and np.isin(names[counts * _STAND_IN > counts.max()], lost).any():
            flops[rows[np.isin(kernel[rows], rare)]] = np.nan


def lend(values: Float64, keys: Sequence[NDArray[np.generic]], lacks: Mask) -> Float64:
    """Values with those of equal activities given to activities that lack a launch record.

    Equal are those with the same keys (kernel, operation, phase) where all that are known agree.
    """
    wanted = np.flatnonzero(lacks & ~np.isfinite(values))
    known = np.flatnonzero(np.isfinite(values))
    if not len(wanted) or not len(known):
        return values
    group = numbered(keys)
    low = np.full(int(group.max()) + 1, np.inf)
    high = np.full(len(low), -np.inf)
    np.minimum.at(low, group[known], values[known])
    np.maximum.at(high, group[known], values[known])
    agreed = np.where(low == high, low, np.nan)
    lent = values.copy()
    lent[wanted] = agreed[group[wanted]]
    return lent


def _attention_backward(
    flops: Float64,
    element: Float64,
    host: Host,
    links: Links,
    backward: Backward,
    works: Works,
) -> None:
    attends = host.by_kernel(lambda name: kernel_class(name) == ATTENTION_CLASS) > 0
    forward = [row for row in works if ATTENTION.search(host.text(row))]
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
        work = works[int(of_forward[row])]
        flops[row] = work.flops * BACKWARD_PER_FORWARD
        element[row] = work.element
