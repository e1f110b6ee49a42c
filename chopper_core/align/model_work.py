"""Model work by activity: floating-point operations, bytes, and tokens.

Tokens are counted only where the file shows that a language model reads them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from math import isfinite, isnan, prod
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.align.graphs import is_uncaptured
from chopper_core.align.host import Host
from chopper_core.align.labels import NOWHERE, Intervals
from chopper_core.model.hardware import ElementType
from chopper_core.model.operator_inputs import Inputs
from chopper_core.model.shapes import CallShape, Fused
from chopper_core.model.table import INFERENCE_PHASES, NO_LABEL, NO_TIME, Kind, Phase
from chopper_core.sources.trace import InputTexts
from chopper_core.tables.columns import MAX_BYTES, MAX_FLOPS
from chopper_core.tables.losses import ABSENT
from chopper_core.util.arrays import Codes, Float64, Index, Int32, Int64, Mask
from chopper_core.util.grouping import (
    common_of,
    counted,
    distinct,
    first_equal,
    grouped_by,
    isin,
    nth_of,
    numbered_rows,
    ranked,
    run_starts,
    runs_of,
)
from chopper_core.util.patterns import late
from chopper_core.work.kernel_classes import (
    ATTENTION_CLASS,
    MATRIX_CLASSES,
    TYPE_WORDS,
    has_any,
)
from chopper_core.work.memory import width_in
from chopper_core.work.operators import (
    ATTENTION,
    BACKWARD_PER_FORWARD,
    CAUSAL,
    FULL,
    HEADS_AFTER_SEQUENCE,
    PACKED,
    Work,
    causal_in,
    has_model,
    operator_work,
)

_EMBEDDING: Final = late(r"^aten::embedding$")
_PRODUCT: Final = late(r"^aten::(?:linear|mm|addmm|matmul|_scaled_mm)$")
_IMAGE: Final = late(r"^aten::conv(?:_transpose)?[23]d$")
_CONVOLUTION: Final = late(r"^aten::convolution$")
_BATCHED_PRODUCT: Final = late(r"^aten::(?:bmm|baddbmm)$")
_SOFTMAX: Final = late(r"^aten::_softmax$")
_STAND_IN: Final = 10
"""A kernel with the same FLOPs this many times less often than another is a stand-in."""
_MOST_SAID: Final = 64
"""More than a kernel's name can say: the bytes of an element, CAUSAL or FULL."""
_OF_WEIGHT: Final = late(r"wrw|w_?grad|bwd_?weight|grad_weight", re.IGNORECASE)
_OF_INPUT: Final = late(r"igemm_bwd|d_?grad|bwd_?data|grad_input", re.IGNORECASE)


class ModelWork(Struct, frozen=True):
    """The model's work by activity."""

    flops: Float64
    """NaN where unknown."""
    bytes: Float64
    """Read and written; NaN where unknown."""
    call_ns: Float64
    """The time of its call, by its share of the work; NaN without any."""
    element: Float64
    """The `ElementType` of the operands; NaN without FLOPs."""
    shape: Float64
    """Of the call that launched it: a position in `shapes`; NaN without one."""
    shapes: tuple[CallShape, ...]
    of_unknown_mask: int
    """Attention calls that the trace doesn't mark as causal or not."""


class Works(Struct, frozen=True):
    """The calls of operators with a shape."""

    rows: Index
    """Rows of the host's ranges."""
    work: Index
    """Position of each one's work in `distinct`."""
    distinct: Sequence[Work]

    def numbers(self, name: str) -> Float64:
        """The FLOPs, bytes or element type of one part of each call."""
        return np.array([getattr(work, name) for work in self.distinct], np.float64)[self.work]

    def take(self, where: Mask) -> Works:
        return Works(self.rows[where], self.work[where], self.distinct)

    def are(self, has: Callable[[Work], bool]) -> Mask:
        return np.array([has(work) for work in self.distinct], np.bool_)[self.work]


def model_work(host: Host, lenders: Sequence[Codes], step: Int32) -> ModelWork:
    """The model's work of each activity, and the shape of the call that launched it.

    FLOPs are assigned to the longest matrix kernels launched by the innermost counted operator. A
    backward attention kernel without recorded shapes takes its work from the forward. What no
    matrix call runs has the bytes of the operator around it, if the memory limits that. Activities
    without a launch record borrow work, but no shape, from activities that are equal in `lenders`,
    else from the same kernel in other steps (`step`).
    """
    activities = host.trace.activities
    flops = np.full(len(activities), np.nan)
    element = np.full(len(activities), np.nan)
    works = _works(host)
    is_moved = works.are(lambda work: work.is_moved)
    works, moves = works.take(~is_moved), works.take(is_moved)
    call = host.intervals(works.rows, np.arange(len(works.rows))).innermost(host.captured)
    # Each replay of a graph is another call of the operators that were captured.
    is_replayed = np.not_equal(host.captured.time_ns, host.links.points.time_ns)
    replay = np.where(is_replayed, host.links.launch, NOWHERE)
    # So is what ran at its place in a step without launch records.
    replay[host.stand_ins[0]] = NOWHERE - 1 - nth_of(host.stand_ins[1])
    is_matrix = host.of_class(*MATRIX_CLASSES)
    rows = np.flatnonzero(is_matrix & (call != NOWHERE))
    works = _completed(host, works, rows, call[rows], _causality)
    work_flops, work_element = works.numbers("flops"), works.numbers("element")
    flops[rows], element[rows] = work_flops[call[rows]], work_element[call[rows]]
    instance = np.full(len(activities), NOWHERE, np.intp)
    instance[rows] = numbered_rows((call[rows], replay[rows]))
    several = rows[np.bincount(instance[rows])[instance[rows]] > 1] if len(rows) else rows
    flops[several] = element[several] = np.nan
    for work, parts, carriers in _carriers(host, several, instance, call, works):
        flops[carriers] = work.flops * parts / len(carriers)
        element[carriers] = work.element
    call_ns = np.full(len(activities), np.nan)
    _share_time(call_ns, flops, activities.duration_ns, call, replay)
    shape = _shapes(
        call, works, is_matrix, works.are(lambda work: isinstance(work.call.sizes, Fused))
    )
    found = [work.call for work in works.distinct]
    _attention_backward(flops, element, shape, found, host, replay, works)
    linked = np.where(call == NOWHERE, host.linked, NOWHERE)
    _share_time(call_ns, flops, activities.duration_ns, linked, replay)
    lacks = host.links.launch_ns == NO_TIME
    lacks[host.stand_ins[0]] = False
    known = np.isfinite(flops)
    _without_stand_ins(flops, activities.name, lacks)
    shape[known & np.isnan(flops)] = np.nan
    moved_bytes = _bytes(found, shape, flops)
    free = ~is_matrix & np.isnan(shape) & np.isnan(flops)
    alone = _moved(host, moves, replay, free, found, (shape, moved_bytes, call_ns))
    is_open = works.are(lambda work: isfinite(work.dense) and isnan(work.flops))
    masked = call[rows[is_open[call[rows]]]]
    del instance, linked, replay, call, rows  # What is lent takes the most memory.
    if lacks.any():
        for group in _lending(host, lenders, step):
            flops, element = lend(flops, group, lacks), lend(element, group, lacks)
            whole = lend(np.where(alone, moved_bytes, np.nan), group, lacks)
            moved_bytes = np.fmax(moved_bytes, whole)
    computes_tf32 = host.by_kernel(lambda kernel: has_any(kernel, TYPE_WORDS)) > 0
    element[(element == ElementType.FP32) & computes_tf32] = ElementType.TF32
    element[np.isnan(element)] = ElementType.UNKNOWN
    element[np.isnan(flops)] = np.nan
    call_ns = np.where(np.isfinite(call_ns), call_ns, activities.duration_ns)
    call_ns[np.isnan(flops) & np.isnan(moved_bytes)] = np.nan
    has = np.flatnonzero(np.isfinite(shape))
    used, shape[has] = ranked(shape[has].astype(np.int64))
    shapes = tuple(found[code] for code in used.tolist())
    return ModelWork(flops, moved_bytes, call_ns, element, shape, shapes, len(distinct(masked)))


_REASONS: Final = (
    "no recorded operator launches them",
    "the inputs of their operators aren't recorded",
    "the recorded inputs don't determine the work of their operators",
    "no model of their operators",
    "they have no launch record, and no equal kernel with one",
    "a graph replays them, and its capture isn't in the traces",
)


def without_model(host: Host, work: ModelWork) -> dict[str, int]:
    """The time of kernels without a model in µs, by the reason."""
    is_lacking = np.isnan(work.flops) & np.isnan(work.bytes) & np.isnan(work.shape)
    is_lacking &= host.kind == Kind.COMPUTE
    rows = np.flatnonzero(is_lacking)
    around = host.many(host.operators).innermost(host.captured, is_lacking)[rows]
    inside = around[around != NOWHERE]
    reason = np.zeros(len(rows), np.intp)
    modelled = host.by_name(has_model, inside) > 0
    reason[around != NOWHERE] = np.where(modelled, 1 + (host.ranges.inputs[inside] != ABSENT), 3)
    reason[~host.links.points.known()[rows]] = 4
    reason[is_uncaptured(host)[rows]] = 5
    time_us = np.bincount(reason, host.trace.activities.duration_ns[rows], len(_REASONS)) / 1e3
    return {
        f"µs of kernels without a work model: {why}": round(time)
        for why, time in zip(_REASONS, time_us.tolist(), strict=True)
    }


def _bytes(shapes: Sequence[CallShape], shape: Float64, flops: Float64) -> Float64:
    """The bytes of the activities of matrix calls, by their share of the FLOPs, and of fused
    kernels.
    """
    of_call, whole = (
        np.array([*(getattr(each, name) for each in shapes), None], np.float64)
        for name in ("bytes", "flops")
    )
    is_fused = np.array([*(isinstance(each.sizes, Fused) for each in shapes), False])
    place = np.where(np.isfinite(shape), shape, -1).astype(np.intp)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(is_fused[place], 1.0, flops / whole[place])
    found: Float64 = share * of_call[place]
    return found


def _moved(
    host: Host,
    works: Works,
    replay: Index,
    free: Mask,
    shapes: list[CallShape],
    columns: tuple[Float64, Float64, Float64],
) -> Mask:
    """Give calls that memory limits their shape and bytes, those on the longest kernel of each.

    `columns` are shape, bytes and time of the call. Returns the activities whose bytes are those of
    a whole call of one kernel.
    """
    activities = host.trace.activities
    shape, moved_bytes, call_ns = columns
    calls = host.intervals(works.rows, np.arange(len(works.rows)))
    call = calls.outermost(host.captured, free & (host.kind == Kind.COMPUTE))
    rows = np.flatnonzero(call != NOWHERE)
    alone = np.isfinite(moved_bytes)
    if not len(rows):
        return alone
    instance = np.full(len(call), NOWHERE, np.intp)
    instance[rows] = numbered_rows((call[rows], replay[rows]))
    longest = longest_of(host, rows, instance)
    works = _completed(host, works, longest, call[longest], width_in)
    shape[rows] = len(shapes) + works.work[call[rows]]
    shapes += [work.call for work in works.distinct]
    moved_bytes[longest] = works.numbers("bytes")[call[longest]]
    own = np.full(len(call), np.nan)
    own[longest] = moved_bytes[longest]
    _share_time(call_ns, own, activities.duration_ns, call, replay)
    alone[rows] = np.bincount(instance[rows])[instance[rows]] == 1
    return alone


def _share_time(
    call_ns: Float64, flops: Float64, duration_ns: Int64, call: Index, replay: Index
) -> None:
    rows = np.flatnonzero(call != NOWHERE)
    number = numbered_rows((call[rows], replay[rows]))
    own = np.nan_to_num(flops[rows])
    total_ns = np.bincount(number, duration_ns[rows])
    has = own > 0
    share = own[has] / np.bincount(number, own)[number[has]]
    call_ns[rows[has]] = share * total_ns[number[has]]


def _shapes(call: Index, works: Works, is_matrix: Mask, is_fused: Mask) -> Float64:
    """The shape of the call of each activity, helpers too, where the call's work runs.

    That is where it launched a matrix kernel, or is a fused kernel: copies that a product makes of
    its inputs belong to it, those of an operator around the product don't.
    """
    shape = np.full(len(call), np.nan)
    rows = np.flatnonzero(call != NOWHERE)
    runs = is_fused.copy()
    runs[call[rows[is_matrix[rows]]]] = True
    rows = rows[runs[call[rows]]]
    shape[rows] = works.work[call[rows]]
    return shape


def _completed(
    host: Host, works: Works, rows: Index, call: Index, said: Callable[[str], int]
) -> Works:
    """The works, with those that only the name of a kernel completes; `said` is 0 for others."""
    is_open = works.are(lambda work: work.completed(1) is not work)
    codes = host.by_kernel(said)[rows] if is_open.any() else np.zeros(len(rows), np.intp)
    says = np.flatnonzero((codes > 0) & is_open[call])
    pairs, pair = ranked(works.work[call[says]] * _MOST_SAID + codes[says])
    work = works.work.copy()
    work[call[says]] = len(works.distinct) + pair
    made = [divmod(code, _MOST_SAID) for code in pairs.tolist()]
    completed = [works.distinct[place].completed(code) for place, code in made]
    return Works(works.rows, work, [*works.distinct, *completed])


def _causality(kernel: str) -> int:
    return {None: 0, False: FULL, True: CAUSAL}[causal_in(kernel)]


def _works(host: Host) -> Works:
    ranges, names = host.ranges, host.trace.names
    modelled = host.by_name(has_model) > 0
    shaped = np.flatnonzero(host.is_operator & modelled & (ranges.inputs != ABSENT))
    number = numbered_rows((ranges.name[shaped], ranges.inputs[shaped]))
    example = first_equal(number, np.arange(int(number.max(initial=-1)) + 1))
    place = np.full(len(example), NOWHERE, np.intp)
    found: list[Work] = []
    for code, row in enumerate(shaped[example].tolist()):
        work = _work_of(names[int(ranges.name[row])], host.trace.inputs[int(ranges.inputs[row])])
        if work is not None:
            place[code] = len(found)
            found.append(work)
    has_work = place[number] != NOWHERE
    return Works(shaped[has_work], place[number[has_work]], found)


@lru_cache(maxsize=1 << 12)
def _work_of(name: str, texts: InputTexts) -> Work | None:
    """The work of an operator's call; None without a model, or where no GPU can do as much."""
    inputs = Inputs.parsed(texts.shapes, texts.types, texts.values, texts.strides)
    work = operator_work(name, inputs)
    if work is None or work.bytes > MAX_BYTES:
        return None
    return None if any(each > MAX_FLOPS for each in (work.flops, work.dense)) else work


def _carriers(
    host: Host, rows: Index, instance: Index, call: Index, works: Works
) -> Iterator[tuple[Work, int, Index]]:
    """For calls with several kernels: the work, and the number of parts that some of them share.

    A part goes to all launches of one kernel name, the longest in total first. Launches of a
    single name share all parts, at most one per launch.
    """
    activities = host.trace.activities
    rows = rows[np.argsort(instance[rows], kind="stable")]
    name, duration_ns = activities.name[rows].tolist(), activities.duration_ns[rows].tolist()
    for _, own in runs_of(instance[rows]):
        work = works.distinct[works.work[call[rows[own.start]]]]
        launches = grouped_by(range(own.start, own.stop), name.__getitem__)
        longest = sorted(launches.values(), key=lambda each: -sum(duration_ns[at] for at in each))
        if len(longest) == 1:
            yield work, min(work.parts, own.stop - own.start), rows[own]
            continue
        yield work, 1, rows[longest[0]]
        direction = _direction(host.trace.names[name[longest[0][0]]])
        others = [
            each
            for each in longest[1:]
            if not direction or _direction(host.trace.names[name[each[0]]]) != direction
        ]
        yield from ((work, 1, rows[each]) for each in others[: work.parts - 1])


def _direction(kernel: str) -> str:
    """The gradient of a convolution in a kernel's name: `weight`, `input`, or empty."""
    return "weight" if _OF_WEIGHT.search(kernel) else "input" if _OF_INPUT.search(kernel) else ""


def _without_stand_ins(flops: Float64, kernel: Int32, unlinked: Mask) -> None:
    """Remove FLOPs from helper kernels where the main kernel lacks its launch record.

    A missing launch hides the main kernel, so a helper of the same call is the longest. The main
    kernel gets its FLOPs back by `lend`.
    """
    lost = distinct(kernel[unlinked])
    for amount in distinct(flops[np.isfinite(flops)]) if len(lost) else ():
        rows = np.flatnonzero(flops == amount)
        names, counts = counted(kernel[rows])
        rare = names[counts * _STAND_IN <= counts.max()]
        if len(rare) and isin(names[counts * _STAND_IN > counts.max()], lost).any():
            flops[rows[isin(kernel[rows], rare)]] = np.nan


def lend(values: Float64, group: Index, lacks: Mask) -> Float64:
    """Fill values of activities without a launch record from those of their group, such as those
    of equal kernel, operation and phase, where all known ones of it agree."""
    wanted = np.flatnonzero(lacks & ~np.isfinite(values))
    known = np.flatnonzero(np.isfinite(values))
    if not len(wanted) or not len(known):
        return values
    agreed = common_of(values[known], group[known], int(group.max()) + 1, np.nan)
    lent = values.copy()
    lent[wanted] = agreed[group[wanted]]
    return lent


def _lending(host: Host, lenders: Sequence[Codes], step: Int32) -> Iterator[Index]:
    """The groups whose activities lend each other their work: first those that are equal, then the
    same kernels in other steps."""
    yield numbered_rows(lenders)
    yield numbered_rows(_place_in_step(host, step))


def _place_in_step(host: Host, step: Int32) -> Sequence[Codes]:
    """Which of a step's launches of its kernel each activity is, equal in steps of as many."""
    kernel, ordered = host.trace.activities.name, host.order.rows
    group = numbered_rows((host.lane, step, kernel))
    place = np.empty(len(group), np.intp)
    place[ordered] = nth_of(group[ordered])
    return kernel, place, np.bincount(group)[group], np.where(step == NO_LABEL, group, -1)


def _attention_backward(
    flops: Float64,
    element: Float64,
    shape: Float64,
    shapes: list[CallShape],
    host: Host,
    replay: Index,
    works: Works,
) -> None:
    """Give backward attention kernels without inputs of their own 2.5 times the forward's work."""
    attends = host.of_class(ATTENTION_CLASS)
    forward = np.flatnonzero(host.named(ATTENTION)[works.rows])
    calls = host.intervals(works.rows[forward], forward)
    of_forward = calls.innermost(host.forward, attends)
    rows = np.flatnonzero(of_forward != NOWHERE)
    if not len(rows):
        return
    node = np.full(len(of_forward), NOWHERE, np.intp)
    node[rows] = numbered_rows((host.linked[rows], replay[rows]))
    counted = distinct(node[rows[np.isfinite(flops[rows])]])
    rows = rows[~isin(node[rows], counted)]
    numbers, number = ranked(works.work[of_forward[rows]])
    shape[rows] = len(shapes) + number
    shapes += [works.distinct[each].call.as_backward(BACKWARD_PER_FORWARD) for each in numbers]
    rows = longest_of(host, rows, node)
    flops[rows] = works.numbers("flops")[of_forward[rows]] * BACKWARD_PER_FORWARD
    element[rows] = works.numbers("element")[of_forward[rows]]


def longest_of(host: Host, rows: Index, owner: Index) -> Index:
    """The longest of the activities of each owner; the last of equal ones."""
    rows = rows[np.lexsort((host.trace.activities.duration_ns[rows], owner[rows]))][::-1]
    return rows[run_starts(owner[rows])]


def on_longest(host: Host, calls: Intervals, values: Float64, where: Mask | bool = True) -> Float64:
    """A value of each call, by its number, at the longest activity of it; NaN elsewhere."""
    call = calls.innermost(host.links.points)
    found = np.full(len(call), np.nan)
    rows = longest_of(host, np.flatnonzero(where & (call != NOWHERE)), call)
    found[rows] = values[call[rows]]
    return found


def activity_tokens(host: Host, phase: Int32, layer: Int32, keys: Sequence[Codes]) -> Float64:
    """The tokens that enter the model with each activity; NaN if there are none.

    The shape of the indices of the embedding with the most entries (others hold positions or
    types) gives them; without recorded shapes, the forward attention of the first layer does:
    batch x sequence of the query. Classes, features and image patches pass through the same
    operators, so both need evidence of a language model (`_reads_tokens`, `_is_text`). Activities
    without a launch record borrow from activities that are equal in `keys`.
    """
    forward = isin(phase, (Phase.FORWARD, *INFERENCE_PHASES))
    found = _of_embedding(host, forward)
    if not np.isfinite(found).any() and _is_text(host):
        found = _of_attention(host, forward, layer)
    lacks = forward & (host.links.launch_ns == NO_TIME)
    return lend(found, numbered_rows(keys), lacks) if lacks.any() else found


def _of_embedding(host: Host, forward: Mask) -> Float64:
    calls = {
        row: inputs.shapes[:2]
        for row, inputs in _shaped(host, _EMBEDDING)
        if len(inputs.shapes) > 1 and len(inputs.shapes[0]) == 2 and inputs.shapes[1]
    }
    if not calls:
        return np.full(len(forward), np.nan)
    table, _ = max(calls.values(), key=lambda call: call[0][0])
    largest = {row: indices for row, (own, indices) in calls.items() if own[0] == table[0]}
    is_sequence = any(len(indices) > 1 for indices in largest.values())
    if not _reads_tokens(host, table, is_sequence):
        return np.full(len(forward), np.nan)
    return _of_calls(host, {row: prod(indices) for row, indices in largest.items()}, forward)


def _reads_tokens(host: Host, table: Sequence[int], is_sequence: bool) -> bool:
    """Whether the rows of an embedding's table are tokens.

    They are if the model's output has an entry per row: a product with weights of the table's
    shape. A pipeline stage or an encoder without such a product needs sequences of indices,
    attention, and no image.
    """
    for _, inputs in _shaped(host, _PRODUCT):
        if any(sorted(shape) == sorted(table) for shape in inputs.shapes if len(shape) == 2):
            return True
    attends = host.of_class(ATTENTION_CLASS).any() or _runs(host, ATTENTION)
    attends = attends or (_runs(host, _BATCHED_PRODUCT) and _runs(host, _SOFTMAX))
    return is_sequence and bool(attends) and not _has_images(host)


def _is_text(host: Host) -> bool:
    """Whether attention is over text: causal, or next to an embedding, and without images."""
    if _has_images(host):
        return False
    unshaped = host.is_operator & host.named(_EMBEDDING) & (host.ranges.inputs == ABSENT)
    return bool(unshaped.any() or host.by_kernel(lambda name: causal_in(name) is True).any())


def _runs(host: Host, operator: re.Pattern[str]) -> bool:
    return bool((host.is_operator & host.named(operator)).any())


def _has_images(host: Host) -> bool:
    shaped = _shaped(host, _CONVOLUTION)
    return _runs(host, _IMAGE) or any(
        inputs.shapes and len(inputs.shapes[0]) > 3 for _, inputs in shaped
    )


def _of_attention(host: Host, forward: Mask, layer: Int32) -> Float64:
    attends = host.of_class(ATTENTION_CLASS)
    attends &= forward & (layer != NO_LABEL)
    if not attends.any():
        return np.full(len(layer), np.nan)
    tokens: dict[int, int] = {}
    for row, inputs in _shaped(host, ATTENTION):
        query = inputs.shapes[0] if inputs.shapes else []
        if len(query) == 4:
            head_first = not HEADS_AFTER_SEQUENCE.search(host.text(row))
            tokens[row] = query[0] * query[2 if head_first else 1]
        elif len(query) == 3 and PACKED.search(host.text(row)):
            tokens[row] = query[0]
    return _of_calls(host, tokens, attends & (layer == layer[attends].min()))


def _shaped(host: Host, pattern: re.Pattern[str]) -> list[tuple[int, Inputs]]:
    given = host.ranges.inputs
    rows = np.flatnonzero(host.is_operator & host.named(pattern) & (given != ABSENT))
    codes = given[rows].tolist()
    read = {code: Inputs.parsed(host.trace.inputs[code].shapes) for code in set(codes)}
    return [(row, read[code]) for row, code in zip(rows.tolist(), codes, strict=True)]


def _of_calls(host: Host, tokens: dict[int, int], where: Mask) -> Float64:
    calls = host.intervals(np.fromiter(tokens, np.intp, len(tokens)), np.arange(len(tokens)))
    return on_longest(host, calls, np.array([*tokens.values()], np.float64), where)
