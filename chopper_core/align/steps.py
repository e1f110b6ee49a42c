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
from chopper_core.align.kernel_classes import OPTIMIZER_CLASS
from chopper_core.align.labels import NOWHERE, Intervals, Labels, Order, Points, parents
from chopper_core.model.side_table import HostSteps, empty
from chopper_core.model.table import NO_LABEL, Phase, Rule
from chopper_core.util.arrays import Float64, Index, Int32, Mask
from chopper_core.util.grouping import counts_of, distinct, isin, numbered, run_starts
from chopper_core.util.patterns import group_of, late

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
    re.compile(r"^(?:train_)?step[ _#](\d{1,9})$"),
)
"""Step annotations; the first pattern that occurs in a trace counts."""
_OPTIMIZER_STEP: Final = late(r"^Optimizer\.step#|^opt_step$")
_LEADING: Final = late(r"^(?:sq)?(\d+)")
_PEER_STEPS: Final = 3
"""Steps after the first one that tell how many activities one has."""
_BURST_GAP: Final = 200
"""Other kernels between two optimizer kernels that separate two steps."""


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
    parts = [group_of(_LEADING, groups[side] or "") for side in ("new", "old")]
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


def steps_of(host: Host, inference: InferenceSteps) -> Intervals | None:
    """The iterations that the host annotates, by number; None without any.

    An inference engine's steps have no numbers; they count in order of time. In a run that trains
    too, the training's steps count.
    """
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


def host_steps(steps: Intervals | None, gpus: int) -> HostSteps:
    """The annotated iterations as pieces of time that don't overlap, for each GPU of a trace."""
    if steps is None or not len(steps):
        return empty(HostSteps)
    bounds = distinct(np.concatenate([steps.start_ns, steps.end_ns + 1]))
    points = Points(np.zeros(len(bounds), np.int32), bounds)
    number = steps.innermost(points, any_thread=True)
    first = run_starts(number)
    start, number = bounds[first], number[first]
    length = np.diff(start, append=start[-1:])
    own = np.flatnonzero(number >= 0)
    return HostSteps(
        (),
        np.repeat(np.arange(gpus, dtype=np.int32), len(own)),
        np.tile(start[own], gpus),
        np.tile(length[own], gpus),
        np.tile(number[own], gpus).astype(np.int32),
    )


def label_iterations(host: Host, steps: Intervals | None) -> tuple[Labels, frozenset[int]]:
    """Iterations of the activities, and those truncated by the profiling window."""
    points = host.links.points
    labels = Labels.none(len(points))
    partial: set[int] = set()
    if steps is not None:
        found = steps.innermost(points, any_thread=True)
        labels.fill(found, Rule.ANNOTATION)
        partial |= _label_before(labels, points, steps)
        partial |= _ending_without_activity(host, steps, found)
    elif ends := _optimizer_ends(host):
        found = np.searchsorted(ends, points.time_ns, "left")
        labels.fill(found, Rule.BURST, points.known())
        if len(found) and int(found.max()) == len(ends):
            partial.add(len(ends))
    elif not points.known().any():
        labels.fill(_kernel_bursts(host), Rule.BURST)
    _label_unlinked(labels, host, partial)
    return labels, frozenset(partial)


def _annotated(host: Host) -> Intervals | None:
    for pattern in ANNOTATIONS:
        rows = np.flatnonzero(host.is_annotation & host.named(pattern))
        if len(rows):
            numbers = [int(match[1]) for row in rows if (match := pattern.search(host.text(row)))]
            return host.intervals(rows, np.array(numbers, np.intp))
    return None


def _label_before(labels: Labels, points: Points, steps: Intervals) -> set[int]:
    """Launches before the first annotation belong to a truncated step.

    A range that began before profiling is not recorded, so only launches show the step before the
    first recorded one.
    """
    first = int(steps.value[np.argmin(steps.start_ns)])
    before = points.known() & (points.time_ns < steps.start_ns.min())
    if first == 0 or not before.any():
        return set()
    labels.fill(first - 1, Rule.WINDOW, before)
    return {first - 1}


def _ending_without_activity(host: Host, steps: Intervals, found: Index) -> set[int]:
    """Steps whose last launches have no activity: GPU recording ended before them."""
    launches, links = host.trace.launches, host.links
    orphans = Points(launches.thread[links.orphans], launches.start_ns[links.orphans])
    step = steps.innermost(orphans, any_thread=True)
    cut = set()
    for number in distinct(step[step >= 0]).tolist():
        linked = links.points.time_ns[(found == number) & links.points.known()]
        if not len(linked) or orphans.time_ns[step == number].max() > linked.max():
            cut.add(int(number))
    return cut


def _optimizer_ends(host: Host) -> list[int]:
    """Ends of the optimizer steps, merged if no backward work lies between them."""
    rows = np.flatnonzero(host.named(_OPTIMIZER_STEP))
    rows = rows[np.argsort(host.ranges.start_ns[rows])]
    backward = np.sort(host.ranges.start_ns[host.named(BACKWARD_NODE)])
    ends: list[int] = []
    spans = zip(host.ranges.start_ns[rows].tolist(), host.ends(rows).tolist(), strict=True)
    for start, end in spans:
        since = ends[-1] if ends else 0
        if ends and np.searchsorted(backward, start) == np.searchsorted(backward, since):
            ends[-1] = max(ends[-1], end)
        else:
            ends.append(end)
    return ends


def _kernel_bursts(host: Host) -> Int32:
    """Steps of a trace without host events: they end with a burst of optimizer kernels."""
    activities = host.trace.activities
    optimizes = host.of_class(OPTIMIZER_CLASS)
    by_start = np.argsort(activities.start_ns, kind="stable")
    steps = np.flatnonzero(optimizes[by_start])
    iteration = np.full(len(activities), NO_LABEL, np.int32)
    if len(steps):
        last = steps[np.append(np.diff(steps) > _BURST_GAP, True)]
        iteration[by_start] = np.searchsorted(last, np.arange(len(by_start)), "left")
    return iteration


def _label_unlinked(labels: Labels, host: Host, partial: set[int]) -> None:
    """Activities without a launch take the step of both neighbours on their stream, where these
    differ that of the nearer one on any.

    Those before the first linked activity of their GPU were launched before profiling began, and so
    were all before that of their stream if some were, or if they are more than the first step has
    a place for: they belong to the step before the first one, or to the first if it is truncated.
    """
    activities = host.trace.activities
    known, unlinked = ~labels.missing(), ~host.links.points.known()
    if not known.any() or not unlinked.any():
        return
    anywhere = Order.of(activities.device.astype(np.int64), activities.start_ns)
    on_stream, on_gpu = (
        [order.nearest(known, forwards=way) for way in (False, True)]
        for order in (host.order, anywhere)
    )
    codes = [np.where(near >= 0, labels.codes[near], NO_LABEL) for near in on_stream]
    is_sure = (codes[0] == codes[1]) & (codes[0] != NO_LABEL)
    previous, following = (np.where(is_sure, *near) for near in zip(on_stream, on_gpu, strict=True))
    codes_after = labels.codes[following]
    first = int(labels.codes[known].min())
    head = unlinked & (previous < 0) & (following >= 0) & (codes_after == first)
    of_stream = unlinked & (on_stream[0] < 0) & (on_stream[1] >= 0)
    of_stream &= labels.codes[on_stream[1]] == first
    before = host.lane[head | (of_stream & _exceeds_first(of_stream, labels, host))]
    head |= of_stream & isin(host.lane, before)
    if first in partial or first == 0:
        labels.fill(first, Rule.NEIGHBOUR, head)
    elif head.any():
        labels.fill(first - 1, Rule.WINDOW, head)
        partial.add(first - 1)

    end_ns = activities.start_ns + activities.duration_ns
    until_next = activities.start_ns[following] - end_ns
    since_last = activities.start_ns - end_ns[previous]
    after = (following >= 0) & ((previous < 0) | (until_next < since_last))
    nearer = np.where(after, codes_after, labels.codes[previous])
    labels.fill(nearer, Rule.NEIGHBOUR, unlinked & ((previous >= 0) | (following >= 0)))


def _exceeds_first(rows: Mask, labels: Labels, host: Host) -> Mask:
    """Whether a stream's rows of a kernel are more than the first step lacks of the next ones'."""
    first, *peers = distinct(labels.codes[~labels.missing()]).tolist()[: 1 + _PEER_STEPS]
    if not peers:
        return np.zeros(len(rows), np.bool_)
    kernel = numbered((host.lane, host.trace.activities.name))
    count = int(kernel.max()) + 1
    most = np.max([counts_of(kernel[labels.codes == step], count) for step in peers], axis=0)
    exceeds: Mask = counts_of(kernel[rows | (labels.codes == first)], count) > most
    return exceeds[kernel]
