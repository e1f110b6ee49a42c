"""The phase of each activity: what the step was doing on the host when it was launched."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from chopper_core.align.autograd import Backward
from chopper_core.align.context import contexts, like_context
from chopper_core.align.host import Host, Links
from chopper_core.align.kernel_names import OPTIMIZER_CLASS, kernel_class
from chopper_core.align.labels import Labels, Order
from chopper_core.model.table import NO_LABEL, Kind, Phase, Rule
from chopper_core.util.arrays import Int8, Int32, Int64, Mask

_OPTIMIZER: Final = re.compile(
    r"^(?:opt_(?:zg|gc|step|lr)$|b_ga$|Optimizer\.(?:step|zero_grad)|clip_grad"
    r"|(?:aten::)?_foreach_norm|torch::optim|## (?:optimizer|zero_grad) ##)"
)
_BACKWARD: Final = re.compile(
    r"^autograd::engine::evaluate_function:|Backward\d*$|^CompiledFunctionBackward"
    r"|^FSDP::(?:pre_backward|post_backward|backward_prefetch|root_post_backward)"
    r"|^FullyShardedDataParallel\._(?:pre|post)_backward|^b_|^l$|^## backward ##$"
)
_DATA: Final = re.compile(
    r"^enumerate\(DataLoader\)|^dl$|^GetInputLabels$|^## (?:copy_batch_to_gpu|wait_for_batch) ##$"
)
_LOSS: Final = re.compile(r"nll_?loss|cross_?entropy", re.IGNORECASE)
_UPLOAD: Final = re.compile(r"^(?:Memcpy HtoD|CopyHostToDevice)")


def label_phases(
    host: Host,
    links: Links,
    backward: Backward,
    kind: Int8,
    iterations: Labels,
    order: Order,
) -> Labels:
    """Phases of the activities (codes of `Phase`)."""
    labels = Labels.none(len(links.points))
    points = links.points
    linked = points.known()

    def inside(pattern: re.Pattern[str], where: Mask) -> Mask:
        rows = np.flatnonzero(host.named(pattern) & where)
        return host.intervals(rows).innermost(points) >= 0

    def fill(phase: Phase, rule: Rule, where: Mask) -> None:
        labels.fill(np.full(len(points), phase), rule, where & linked)

    annotated, operator = host.is_annotation, host.is_operator
    fill(Phase.OPTIMIZER, Rule.ANNOTATION, inside(_OPTIMIZER, annotated))
    fill(Phase.OPTIMIZER, Rule.HOST_OPERATOR, inside(_OPTIMIZER, operator))
    fill(Phase.BACKWARD, Rule.AUTOGRAD, inside(_BACKWARD, operator))
    fill(Phase.BACKWARD, Rule.ANNOTATION, inside(_BACKWARD, annotated))
    fill(Phase.BACKWARD, Rule.AUTOGRAD, np.isin(points.thread, host.autograd_threads))
    fill(Phase.BACKWARD, Rule.AUTOGRAD, backward.recompute.innermost(points) >= 0)
    fill(Phase.DATA, Rule.ANNOTATION, inside(_DATA, annotated))
    uploads = host.by_kernel(lambda name: _UPLOAD.search(name) is not None)
    fill(Phase.DATA, Rule.KERNEL_NAME, uploads > 0)
    _by_order(labels, host, links, iterations)
    if not linked.any():
        _by_kernels(labels, host, iterations)
        return labels
    # RCCL's kernels all have one name, so their neighbours say nothing.
    like_context(labels, contexts(host, order), tuple(Rule), kind != Kind.COMM)
    _like_neighbours(labels, iterations, order)
    return labels


def _by_order(labels: Labels, host: Host, links: Links, iterations: Labels) -> None:
    """What is left runs forward until the last backward launch of its step.

    After it, what lies among the optimizer's launches (as the clipping of gradients does) is the
    optimizer's; the rest is `other`.
    """
    time_ns = links.points.time_ns
    step = iterations.codes
    last_backward = _extreme(step, time_ns, labels.codes == Phase.BACKWARD, latest=True)
    after = time_ns > last_backward
    optimizes = (labels.codes == Phase.OPTIMIZER) & after
    among = (time_ns >= _extreme(step, time_ns, optimizes, latest=False)) & (
        time_ns <= _extreme(step, time_ns, optimizes, latest=True, never=_BEFORE_ALL)
    )
    phase = np.where(after, np.where(among, Phase.OPTIMIZER, Phase.OTHER), Phase.FORWARD)
    known = links.points.known()
    has_steps = bool((step != NO_LABEL).any())
    labels.fill(phase, Rule.STEP_ORDER, known & (step != NO_LABEL) if has_steps else known)


_AFTER_ALL: Final = int(np.iinfo(np.int64).max)
_BEFORE_ALL: Final = int(np.iinfo(np.int64).min)


def _extreme(
    step: Int32,
    time_ns: Int64,
    of: Mask,
    *,
    latest: bool,
    never: int = _AFTER_ALL,
) -> Int64:
    """For each activity the latest or first time among those of its step that are in a mask."""
    steps, position = np.unique(step, return_inverse=True)
    extreme = np.full(len(steps), _BEFORE_ALL if latest else _AFTER_ALL, np.int64)
    (np.maximum if latest else np.minimum).at(extreme, position[of], time_ns[of])
    extreme[~np.isin(steps, step[of])] = never
    return extreme[position]


def _by_kernels(labels: Labels, host: Host, iterations: Labels) -> None:
    """A trace without a host: optimizer kernels, and the loss as the border to backward."""
    optimizes = host.by_kernel(lambda name: kernel_class(name) == OPTIMIZER_CLASS) > 0
    labels.fill(np.full(len(optimizes), Phase.OPTIMIZER), Rule.KERNEL_NAME, optimizes)
    start_ns, step = host.trace.activities.start_ns, iterations.codes
    loss = host.by_kernel(lambda name: _LOSS.search(name) is not None) > 0
    backward = loss & (host.by_kernel(lambda name: "backward" in name.lower()) > 0)
    until = _extreme(step, start_ns, loss & ~backward, latest=True)
    begins = _extreme(step, start_ns, backward, latest=False)
    has_loss = np.isin(step, step[loss & ~backward]) & (step != NO_LABEL)
    forward = (start_ns <= until) & (start_ns < begins)
    phase = np.where(forward, Phase.FORWARD, Phase.BACKWARD)
    labels.fill(phase, Rule.KERNEL_NAME, has_loss)


def _like_neighbours(labels: Labels, iterations: Labels, order: Order) -> None:
    """Unlinked activities take the phase of the nearest launched one of the same step."""
    known = ~labels.missing()
    for neighbour in (order.previous(known), order.following(known)):
        same = (neighbour >= 0) & (iterations.codes[neighbour] == iterations.codes)
        labels.fill(labels.codes[neighbour], Rule.NEIGHBOUR, same)
