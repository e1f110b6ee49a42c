"""The iteration of each activity, from the host's work at its launch.

Training has steps by annotations or optimizers, inference engines have batches, prefill or decode,
by the names of ranges.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.align.host import BACKWARD_NODE, Host
from chopper_core.align.labels import NOWHERE, Intervals, Labels, Order, parents
from chopper_core.model.step_spans import NO_SPANS, NO_STEP, StepSpans
from chopper_core.model.table import NO_LABEL, Phase, Rule
from chopper_core.util.arrays import Float64, Index, Int32, Int64, Mask
from chopper_core.util.grouping import (
    counted,
    counts_of,
    distinct,
    isin,
    maxima_of,
    minima_of,
    numbered_rows,
    ranked,
)
from chopper_core.util.patterns import late, matched_group
from chopper_core.work.kernel_classes import OPTIMIZER_CLASS

_VLLM: Final = late(
    r"^execute_(?:(?P<tokens>\d+)_)?context_(?P<prefill>\d+)(?:\((?P<new>[^)]*)\))?"
    r"_generation_(?P<decode>\d+)(?:\((?P<old>[^)]*)\))?$"
)
"""vLLM: requests that are prefilled and requests that generate, with their tokens."""
_VLLM_SHORT: Final = late(r"^execute_new_(?P<prefill>\d+)_cached_(?P<decode>\d+)$")
"""vLLM: new and running requests; running ones may still be prefilled, so no phase is certain."""
_SGLANG: Final = late(
    r"^step\[(?P<mode>\w+)(?: bs=(?P<requests>\d+))?(?: toks=(?P<tokens>\d+))?[^\]]*\]$"
)
_TENSORRT: Final = late(
    r"^\[Executor\] _forward_step \d+: (?P<prefill>\d+) ctx reqs, (?P<tokens>\d+) ctx tokens, "
    r"(?P<decode>\d+) gen reqs"
)
_SGLANG_PHASES: Final = {
    "EXTEND": Phase.PREFILL,
    "SPLIT_PREFILL": Phase.PREFILL,
    "DECODE": Phase.DECODE,
    "TARGET_VERIFY": Phase.DECODE,
}
"""Batches of one phase; MIXED ones hold both, DRAFT_EXTEND and IDLE neither."""
_NAMED: Final = late(r"^(?P<phase>prefill|decode)(?:[ _#-]?(?:step|batch))?[ _#-]?\d*$", re.I)
"""Ranges that name a phase and nothing else, as users write them."""
ANNOTATIONS: Final = (
    re.compile(r"^Iteration\s?_?#?(\d{1,9})$"),
    re.compile(r"^ProfilerStep#(\d{1,9})$"),
    late(
        r"^(?:(?:train(?:ing)?|global)[ _-]?)?(?:step|iter(?:ation)?)[ _#:=-]{0,2}(\d{1,9})$", re.I
    ),
)
"""Numbered step annotations, those nearest to the loop first: the first that occurs counts."""
STEP_NAMES: Final = (*ANNOTATIONS, _VLLM, _VLLM_SHORT, _SGLANG, _TENSORRT)
"""Names of whole steps, or of batches of inference engines."""
TRAINER_STEPS: Final = late(
    r"^(?:\[pl\]\[profile\])?run_training_batch$"
    r"|^(?:train|training)_(?:step|batch|iteration)$|^(?:\w+\.)?training_step$"
)
"""Ranges of trainers around a step, without a number; they count where no numbered ones are."""
_FEWEST_CUT: Final = 3
"""Activities that are missing at an edge of a step where the step is cut: launches in a row."""
_SHARE_CUT: Final = 0.01
"""Their least share of the step's: lost records are scattered."""
_OPTIMIZER_STEP: Final = late(r"^Optimizer\.step#|^opt_step$")
_LEADING: Final = late(r"^(?:sq)?(\d+)")
_PEER_STEPS: Final = 3
"""Steps after the first one that tell how many activities one has."""
_BURST_GAP: Final = 200
"""Other kernels between two optimizer kernels that separate two steps, or half of the most that are
between two of a run whose steps are smaller, but no fewer than the next."""
_LEAST_GAP: Final = 50


def is_step(name: str) -> bool:
    """Whether a range of that name is around a whole step."""
    return any(pattern.search(name) for pattern in (*STEP_NAMES, TRAINER_STEPS))


class Batch(Struct, frozen=True):
    """The batch that a range runs, by its name."""

    phase: Phase | None = None
    """None for a batch of both phases, or of an unknown one."""
    requests: int | None = None
    tokens: int | None = None
    """Tokens that enter the model; one per request in decoding."""
    is_step: bool = True
    """Whether the range is a step, and not a part of one."""


@lru_cache(maxsize=1 << 12)
def batch_of(name: str) -> Batch | None:
    if match := _VLLM.match(name) or _TENSORRT.match(name):
        new, old = int(match["prefill"]), int(match["decode"])
        both = new > 0 and old > 0
        phase = None if both or not new + old else Phase.PREFILL if new else Phase.DECODE
        return Batch(phase, new + old, _tokens(match, old))
    if match := _VLLM_SHORT.match(name):
        return Batch(None, int(match["prefill"]) + int(match["decode"]))
    if match := _SGLANG.match(name):
        phase = _SGLANG_PHASES.get(match["mode"])
        requests, tokens = (
            int(each) if each else None for each in match.group("requests", "tokens")
        )
        if tokens is None and match["mode"] == "DECODE":
            tokens = requests
        return Batch(phase, requests, tokens)
    if match := _NAMED.match(name):
        return Batch(Phase[match["phase"].upper()], is_step=False)
    return None


def _tokens(match: re.Match[str], generating: int) -> int | None:
    groups = match.groupdict()
    if "new" not in groups:
        return int(match["tokens"]) + generating
    if groups["tokens"] is not None:
        return int(match["tokens"])
    # `512` or `sq512sk4096`.
    parts = [matched_group(_LEADING, groups[side] or "") for side in ("new", "old")]
    return sum(map(int, parts)) if all(parts) else None


class InferenceSteps(Struct, frozen=True):
    """The steps of an inference run on the host, in order of time."""

    steps: Intervals
    """The outermost ranges of steps, valued with their number."""
    phases: Intervals
    """All ranges of a batch, valued with its phase, NOWHERE where it has none."""
    tokens: Float64
    """Of each step; NaN where unknown."""
    requests: Float64
    """Of each step; NaN where unknown."""


def read_inference(host: Host) -> InferenceSteps:
    rows = host.annotations
    rows = rows[host.by_name(lambda name: batch_of(name) is not None, rows) > 0]
    rows = rows[np.argsort(host.ranges.start_ns[rows], kind="stable")]
    batches = [batch_of(host.text(row)) or Batch() for row in rows]
    phase = np.array(
        [NOWHERE if batch.phase is None else batch.phase for batch in batches], np.intp
    )
    is_step = np.array([batch.is_step for batch in batches], np.bool_)
    outer = rows[is_step]
    outer = outer[parents(host.intervals(outer)) == NOWHERE]
    steps = host.intervals(outer, np.arange(len(outer)))
    step_of = steps.innermost(host.starts(rows[is_step]))
    chosen = [batch for batch, step in zip(batches, is_step, strict=True) if step]
    return InferenceSteps(
        steps=steps,
        phases=host.intervals(rows, phase),
        tokens=_largest([batch.tokens for batch in chosen], step_of),
        requests=_largest([batch.requests for batch in chosen], step_of),
    )


def _largest(values: list[int | None], step: Index) -> Float64:
    """The largest known value of the ranges of each step; a batch is annotated once or more."""
    found = np.full(int(step.max(initial=-1)) + 1, np.nan)
    known = np.array([np.nan if value is None else value for value in values], np.float64)
    np.fmax.at(found, step, known)
    return found


def find_steps(host: Host, inference: InferenceSteps) -> Intervals | None:
    """The iterations that the host annotates, by number; None without any.

    An inference engine's steps have no numbers; they count in order of time. In a run that trains
    too, the training's steps count.
    """
    if not host.links.points.known().any() and host.of_class(OPTIMIZER_CLASS).any():
        # Which step launched what isn't known; where one ends is.
        return None
    steps = _annotated(host)
    if len(inference.steps) and not (steps and host.named(BACKWARD_NODE).any()):
        return inference.steps
    return steps


def repeated_numbers(steps: Intervals | None) -> int:
    """How many annotations begin after one with their number has ended."""
    count, end_of = 0, dict[int, int]()
    columns = () if steps is None else (steps.start_ns, steps.end_ns, steps.value)
    for start, end, number in sorted(zip(*(each.tolist() for each in columns), strict=True)):
        count += start > end_of.get(number, start)
        end_of[number] = max(end, end_of.get(number, end))
    return count


def spans_of_steps(steps: Intervals | None) -> StepSpans:
    """The annotated steps in order of time, on any thread; of nested ones the outermost.

    A step that begins in another one begins at its end; one that several threads annotate at once
    is a single one.
    """
    if steps is None:
        return NO_SPANS
    order = np.lexsort((-steps.end_ns, steps.start_ns))
    start, end, number = steps.start_ns[order], steps.end_ns[order], steps.value[order]
    reached = np.maximum.accumulate(np.append(np.iinfo(np.int64).min, end))[:-1]
    begins = np.maximum(start, reached)
    own = np.flatnonzero(end > begins)
    continues = (start[own] < begins[own])[1:] & (np.diff(number[own]) == 0)
    first = np.flatnonzero(np.append(True, ~continues)[: len(own)])
    last = np.append(first[1:], len(own))[: len(first)] - 1
    return StepSpans(number[own[first]].astype(np.int64), begins[own[first]], end[own[last]])


class IterationLabels(Struct, frozen=True):
    """The step of each activity, by its number and by its place among the annotated ones."""

    labels: Labels
    place: Index
    """In `StepSpans`; NO_STEP for activities of none."""
    truncated: frozenset[int]
    """Steps that the profiler's window cuts."""


def label_iterations(host: Host, spans: StepSpans) -> IterationLabels:
    """Steps of the activities: what a step's annotation holds the launch of, on any thread."""
    points = host.links.points
    labels = Labels.none(len(points))
    place = np.full(len(points), NO_STEP, np.intp)
    if len(spans):
        known = np.flatnonzero(points.known())
        place[known] = spans.at(points.time_ns[known])
        if not len(known):  # When they ran is all there is.
            place = spans.at(host.trace.activities.start_ns)
        place = _with_unlinked(place, spans, host)
        found = np.append(spans.number, NO_LABEL)[place]
        labels.fill(found, Rule.ANNOTATION, points.known())
        labels.fill(found, Rule.NEIGHBOUR)
        without_loop = frozenset(spans.number[spans.lacks_loop].tolist())
        return IterationLabels(labels, place, _cut_steps(host, spans) | without_loop)
    cut: set[int] = set()
    if ends := _optimizer_ends(host):
        ends = [*_end_before(host, ends), *ends]
        found = np.searchsorted(ends, points.time_ns, "left")
        labels.fill(found, Rule.BURST, points.known())
        begins = [np.iinfo(np.int64).min, *ends[:-1]]
        steps = StepSpans(np.arange(len(ends)), np.array(begins), np.array(ends))
        # What is behind the last end, too.
        cut = {len(ends), *_cut_steps(host, steps)}
    else:
        found, cut = _kernel_bursts(host)
        labels.fill(found, Rule.BURST)
    device = host.trace.activities.device
    for each in distinct(device).tolist():
        cut |= _cut_at_begin(labels, host, device == each, cut)
    _label_unlinked(labels, host, cut)
    return IterationLabels(labels, place, frozenset(cut & {*labels.codes.tolist()}))


def _with_unlinked(place: Index, spans: StepSpans, host: Host) -> Index:
    """The places of the activities' steps, with those that have no launch record.

    They take the step of both neighbours on their stream, where these differ that of the nearer
    one on any. A step has none that starts before its annotation. Those before the first linked
    activity of their GPU may have been launched before the window, and so may all before that of
    their stream if they are more than the step has a place for: they belong to no step, unless it
    is step 0, before which there is none.
    """
    activities, points = host.trace.activities, host.links.points
    known, unlinked = place != NO_STEP, ~points.known()
    if not known.any() or not unlinked.any():
        return place
    labels = Labels(place.astype(np.int32), np.zeros(len(place), np.int8))
    near = _neighbours(labels, host)
    reached = np.searchsorted(spans.start_ns, activities.start_ns, "right") - 1
    is_head = unlinked & (_before_launches(labels, host, near) | (reached < 0))
    if spans.number[0] == 0 and _is_numbered(host):
        is_head &= reached < 0
    found = np.where(unlinked, np.minimum(_nearer(labels, host, near), reached), place)
    found[is_head] = NO_STEP
    return np.asarray(found, np.intp)


def _cut_steps(host: Host, spans: StepSpans) -> frozenset[int]:
    """Steps at whose beginning or end several launches in a row have no activity: the recording
    of the GPU began or ended within them."""
    launches, links = host.trace.launches, host.links
    linked = distinct(links.launch[links.launch >= 0])
    rows = np.concatenate([linked, links.orphans])
    has_activity = np.repeat([True, False], [len(linked), len(links.orphans)])
    place = spans.at(launches.start_ns[rows])
    cut = set()
    for step in distinct(place[np.flatnonzero(~has_activity)]).tolist():
        if step == NO_STEP:
            continue
        own = np.flatnonzero(place == step)
        own = own[np.argsort(launches.start_ns[rows[own]], kind="stable")]
        there = np.flatnonzero(has_activity[own])
        edges = (int(there[0]), len(own) - 1 - int(there[-1])) if len(there) else (len(own), 0)
        least = max(_FEWEST_CUT, _SHARE_CUT * len(own))
        if max(edges) >= least:
            cut.add(int(spans.number[step]))
    return frozenset(cut)


def _cut_at_begin(labels: Labels, host: Host, own: Mask, cut: set[int]) -> set[int]:
    """The first step of a GPU, whose activities are `own`, if the window cuts it where none is
    annotated: it isn't whole, as others show, or idle time before it is missing."""
    numbers, sizes = counted(labels.codes[own & ~labels.missing()])
    whole = [row for row, number in enumerate(numbers.tolist()) if number not in cut]
    if len(whole) < 2 or whole[0] > 0:
        return set()
    least = int(sizes[whole[1:]].min())
    lacks = least - sizes[0] >= max(_FEWEST_CUT, _SHARE_CUT * least)
    lacks = lacks or _extents(labels, host, own, numbers[whole]).lacks_loop[0]
    return {int(numbers[0])} if lacks else set()


def _extents(labels: Labels, host: Host, own: Mask, steps: Index) -> StepSpans:
    """From the first to the last activity of each of some steps of a GPU; the next begins behind
    it."""
    rows = np.flatnonzero(own & isin(labels.codes, steps))
    numbers, code = ranked(labels.codes[rows])
    begin_ns = host.trace.activities.start_ns[rows]
    end_ns = begin_ns + host.trace.activities.duration_ns[rows]
    most = np.iinfo(np.int64).max
    begin = minima_of(begin_ns, code, len(numbers), most)
    end = np.maximum.accumulate(maxima_of(end_ns, code, len(numbers), -most))
    begin[1:] = np.maximum(begin[1:], end[:-1])
    return StepSpans(numbers.astype(np.int64), begin, end)


def _is_numbered(host: Host) -> bool:
    """Whether steps have the numbers of annotations: others count from the first one traced."""
    return any((host.is_annotation & host.named(pattern)).any() for pattern in ANNOTATIONS)


def _annotated(host: Host) -> Intervals | None:
    for pattern in ANNOTATIONS:
        rows = np.flatnonzero(host.is_annotation & host.named(pattern))
        if len(rows):
            numbers = [int(match[1]) for row in rows if (match := pattern.search(host.text(row)))]
            return host.intervals(rows, np.array(numbers, np.intp))
    rows = np.flatnonzero(host.is_annotation & host.named(TRAINER_STEPS))
    if not len(rows):
        return None
    rows = rows[np.argsort(host.ranges.start_ns[rows], kind="stable")]
    rows = rows[parents(host.intervals(rows)) == NOWHERE]
    return host.intervals(rows, np.arange(len(rows)))


def _optimizer_ends(host: Host) -> list[int]:
    """Ends of the optimizer steps, merged if no backward work lies between them; in old traces,
    which don't show that, if nothing is launched."""
    rows = np.flatnonzero(host.named(_OPTIMIZER_STEP))
    rows = rows[np.argsort(host.ranges.start_ns[rows])]
    between = np.sort(host.ranges.start_ns[host.named(BACKWARD_NODE)])
    if not len(between):
        between = np.sort(host.links.points.time_ns[host.links.points.known()])
    ends: list[int] = []
    spans = zip(host.ranges.start_ns[rows].tolist(), host.ends(rows).tolist(), strict=True)
    for start, end in spans:
        since = ends[-1] if ends else 0
        if ends and np.searchsorted(between, start) == np.searchsorted(between, since):
            ends[-1] = max(ends[-1], end)
        else:
            ends.append(end)
    return ends


def _end_before(host: Host, ends: list[int]) -> list[int]:
    """The end of a step whose optimizer's range began before the window, if there is one: the first
    that is launched is the optimizer's, which begins no other step."""
    known = np.flatnonzero(host.links.points.known())
    time_ns = host.links.points.time_ns[known]
    order = np.argsort(time_ns, kind="stable")
    time_ns, optimizes = time_ns[order], host.of_class(OPTIMIZER_CLASS)[known[order]]
    begins = np.searchsorted(time_ns, ends, "right")
    begins = begins[begins < len(time_ns)]
    if optimizes[begins].any() or not optimizes[:1].any() or optimizes.all():
        return []
    return [int(time_ns[int(optimizes.argmin()) - 1])]


def _kernel_bursts(host: Host) -> tuple[Int32, set[int]]:
    """Steps that no host range shows, which end with a burst of optimizer kernels, and those that
    don't. GPUs count from the one whose first burst is the earliest."""
    activities = host.trace.activities
    optimizes = host.of_class(OPTIMIZER_CLASS)
    iteration = np.full(len(activities), NO_LABEL, np.int32)
    bursts: list[tuple[Int64, Index]] = []
    """When each of a GPU ends, and the activities of the GPU."""
    for device in distinct(activities.device[optimizes]).tolist():
        own = np.flatnonzero(activities.device == device)
        own = own[np.argsort(activities.start_ns[own], kind="stable")]
        steps = np.flatnonzero(optimizes[own])
        others = np.diff(steps) - 1
        gap = max(min(_BURST_GAP, int(others.max(initial=0)) // 2), _LEAST_GAP)
        last = steps[np.append(others >= gap, True)]
        iteration[own] = np.searchsorted(last, np.arange(len(own)), "left")
        bursts.append((activities.start_ns[own[last]], own))
    open_: set[int] = set()
    if bursts:
        earliest = min((ends for ends, _ in bursts), key=lambda ends: int(ends[0]))
        between = (earliest[:-1] + earliest[1:]) // 2
        for ends, own in bursts:
            iteration[own] += np.searchsorted(between, ends[0])
            last = int(iteration[own[-1]])
            if not optimizes[own[-1]] or _lacks_optimizer(iteration[own], optimizes[own], last):
                open_.add(last)
    return iteration, open_


def _lacks_optimizer(steps: Int32, optimizes: Mask, last: int) -> bool:
    """Whether the last step of a GPU has fewer of the optimizer's kernels than those before it; not
    than the first one, which the window may cut, where there are others."""
    found = counts_of(steps[optimizes], last + 1)[steps.min() :]
    if len(found) < 2:
        return False
    lacks = int(found[min(1, len(found) - 2) : -1].min()) - int(found[-1])
    return lacks >= max(_FEWEST_CUT, _SHARE_CUT * len(steps) / len(found))


class _Neighbours(Struct, frozen=True):
    """Of each activity the nearest labelled ones before and after it."""

    previous: Int32
    """On its stream if both of its neighbours there have one step, else on any; -1 for none."""
    following: Int32
    next_on_stream: Int32
    has_previous_on_stream: Mask


def _neighbours(labels: Labels, host: Host) -> _Neighbours:
    activities, known = host.trace.activities, ~labels.missing()
    anywhere = Order.of(activities.device.astype(np.int64), activities.start_ns)
    on_stream, on_gpu = (
        [order.nearest(known, forwards=way) for way in (False, True)]
        for order in (host.order, anywhere)
    )
    codes = [np.where(near >= 0, labels.codes[near], NO_LABEL) for near in on_stream]
    is_sure = (codes[0] == codes[1]) & (codes[0] != NO_LABEL)
    previous, following = (np.where(is_sure, *near) for near in zip(on_stream, on_gpu, strict=True))
    return _Neighbours(previous, following, on_stream[1], on_stream[0] >= 0)


def _before_launches(labels: Labels, host: Host, near: _Neighbours) -> Mask:
    """Activities without a launch that were launched before profiling began."""
    unlinked = ~host.links.points.known()
    first = int(labels.codes[~labels.missing()].min())
    head = unlinked & (near.previous < 0) & (near.following >= 0)
    head &= labels.codes[near.following] == first
    of_stream = unlinked & ~near.has_previous_on_stream & (near.next_on_stream >= 0)
    of_stream &= labels.codes[near.next_on_stream] == first
    before = host.lane[head | (of_stream & _exceeds_first(of_stream, labels, host))]
    return head | (of_stream & isin(host.lane, before))


def _nearer(labels: Labels, host: Host, near: _Neighbours) -> Int32:
    """The label of the nearer neighbour, NO_LABEL without any."""
    activities = host.trace.activities
    end_ns = activities.start_ns + activities.duration_ns
    until_next = activities.start_ns[near.following] - end_ns
    since_last = activities.start_ns - end_ns[near.previous]
    after = (near.following >= 0) & ((near.previous < 0) | (until_next < since_last))
    nearer = np.where(after, labels.codes[near.following], labels.codes[near.previous])
    nearer[(near.previous < 0) & (near.following < 0)] = NO_LABEL
    return nearer


def _label_unlinked(labels: Labels, host: Host, cut: set[int]) -> None:
    """Activities without a launch, where no annotation bounds the steps, as `_with_unlinked`.

    Those before the first linked activity belong to the step before the first one, where steps have
    one. Else they belong to the first, which the window cuts then unless they are a few; and to
    none where others show that the first is whole without them.
    """
    known, unlinked = ~labels.missing(), ~host.links.points.known()
    if not known.any() or not unlinked.any():
        return
    near = _neighbours(labels, host)
    head = _before_launches(labels, host, near) & ~known
    first, count = int(labels.codes[known].min()), int(head.sum())
    own = labels.codes[known] == first
    is_few = count < max(_FEWEST_CUT, _SHARE_CUT * (count + np.count_nonzero(own)))
    nearer = _nearer(labels, host, near)
    if first > 0 and first not in cut and count:
        labels.fill(first - 1, Rule.WINDOW, head)
        cut.add(first - 1)
    elif is_few or first in cut or own.all():
        labels.fill(first, Rule.NEIGHBOUR, head)
        cut |= set() if is_few else {first}
    else:
        nearer[head] = NO_LABEL
    labels.fill(nearer, Rule.NEIGHBOUR, unlinked)


def _exceeds_first(rows: Mask, labels: Labels, host: Host) -> Mask:
    """Whether a stream's rows of a kernel are more than the first step lacks of the next ones'."""
    first, *peers = distinct(labels.codes[~labels.missing()]).tolist()[: 1 + _PEER_STEPS]
    if not peers:
        return np.zeros(len(rows), np.bool_)
    kernel = numbered_rows((host.lane, host.trace.activities.name))
    count = int(kernel.max()) + 1
    most = np.max([counts_of(kernel[labels.codes == step], count) for step in peers], axis=0)
    exceeds: Mask = counts_of(kernel[rows | (labels.codes == first)], count) > most
    return exceeds[kernel]
