"""The layer of each activity: the one it serves, not the one that prefetches it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from chopper_core.align.host import Backward, Host, Links
from chopper_core.align.intervals import NOWHERE, Intervals, Points
from chopper_core.align.labels import Labels, Order, between
from chopper_core.align.modules import Modules
from chopper_core.model.table import MODEL_PHASES, NO_LABEL, Phase, Rule

_LAYER: Final = re.compile(r"^Layer[ _]?(\d{1,9})$")
_FSDP: Final = re.compile(
    r"^FSDP::(?P<step>\w+)(?: for (?P<target>\S+))?(?: \((?P<owner>[^)]*)\))?"
)
_NUMBER: Final = re.compile(r"(?:^|\.)(?:layers|blocks|h|block|layer)\.(\d{1,9})(?:\.|$)")
_SERVES: Final = re.compile(
    r"^FSDP::(?:all_gather|all_gather_copy_in|all_gather_copy_out|post_backward_reduce"
    r"|post_backward_reshard|post_backward_accumulate|post_backward_rs_wait"
    r"|(?:forward|backward)_prefetch)\b"
)
_ROOT_GROUP: Final = -2
_OUTSIDE: Final = re.compile(r"^(?:ie|ln|lp|lnp|cel)(?: \(recompute\))?$")
"""Operations of a model that belong to no layer: embedding, last norm, head, loss."""
_HOOKS: Final = re.compile(
    r"^FSDP::(?P<step>pre_forward|post_forward|pre_backward|post_backward_reduce)\b"
)
_PAIRS: Final = {
    "pre_forward": 1,
    "post_forward": -1,
    "pre_backward": 2,
    "post_backward_reduce": -2,
}
"""Codes of hooks: those that open and close the same window differ in sign only."""


def label_layers(
    host: Host,
    links: Links,
    backward: Backward,
    modules: Modules,
    iterations: Labels,
    phases: Labels,
    order: Order,
) -> Labels:
    """Layers of the activities."""
    labels = Labels.none(len(links.points))
    points = links.points
    explicit = annotated_layers(host)
    served = _served(host)
    windows = layer_windows(host)
    serves = served.innermost(points)
    labels.fill(np.where(serves == _ROOT_GROUP, NO_LABEL, serves), Rule.FSDP)
    # FSDP's work for its root group belongs to no layer, wherever it runs.
    points = Points(np.where(serves == _ROOT_GROUP, NOWHERE, points.thread), points.time_ns)
    labels.fill(explicit.innermost(points), Rule.ANNOTATION)
    # Recomputed work belongs to the layer of its backward operator.
    forward = backward.forward_around(points)
    labels.fill(explicit.innermost(forward), Rule.AUTOGRAD)
    labels.fill(windows.innermost(points), Rule.FSDP)
    labels.fill(windows.innermost(forward), Rule.AUTOGRAD)
    labels.fill(modules.layers.innermost(points), Rule.MODULE)
    labels.fill(modules.layers.innermost(forward), Rule.AUTOGRAD)

    outside = labels.missing() & (modules.holders.innermost(points) != NOWHERE)
    labels.rules[outside] = Rule.MODULE
    of_outside = labels.missing() & ~outside & (modules.holders.innermost(forward) != NOWHERE)
    labels.rules[of_outside] = Rule.AUTOGRAD
    outside |= of_outside
    outside |= serves == _ROOT_GROUP
    labels.rules[serves == _ROOT_GROUP] = Rule.FSDP

    # Only the model's work can take a neighbour's layer.
    body = np.isin(phases.codes, MODEL_PHASES)
    step = np.where(body, iterations.codes.astype(np.int64) * len(Phase) + phases.codes, -1)
    may = body & ~outside
    between(
        labels,
        order,
        lambda before, after: may & (step[before] == step) & (step[after] == step),
    )
    return labels


def mark_outside(layers: Labels, operations: Labels, names: Sequence[str]) -> None:
    """Note the rule of activities whose operation lies outside the layers of a model.

    They have a rule and no layer; activities of an unknown layer have neither.
    """
    known = np.array([_OUTSIDE.match(name) is not None for name in (*names, "")], np.bool_)
    outside = layers.missing() & known[operations.codes]
    layers.rules[outside] = operations.rules[outside]


def annotated_layers(host: Host) -> Intervals:
    """The ranges named after a layer, valued with its number."""
    rows = np.flatnonzero(host.is_annotation & host.named(_LAYER))
    return host.intervals(rows, host.by_name(_layer_number, rows))


def _layer_number(name: str) -> int:
    match = _LAYER.match(name)
    return int(match[1]) if match else NO_LABEL


def _layer_of(name: str) -> int:
    match = _FSDP.match(name)
    if match is None:
        return NO_LABEL
    number = _NUMBER.search(match["owner"] or match["target"] or "")
    return int(number[1]) if number else NO_LABEL


def _served(host: Host) -> Intervals:
    """Ranges of FSDP's own work, valued with the layer whose parameters they move.

    Only names that contain a module count; those without a layer are the root group.
    """
    rows = np.flatnonzero(host.is_annotation & host.named(_SERVES))
    rows = rows[host.by_name(_has_module, rows) > 0]
    layers = host.by_name(_layer_of, rows)
    return host.intervals(rows, np.where(layers == NO_LABEL, _ROOT_GROUP, layers))


def _has_module(name: str) -> bool:
    match = _FSDP.match(name)
    return match is not None and bool(match["owner"] or match["target"])


def _hook(name: str) -> int:
    match = _HOOKS.match(name)
    return _PAIRS[match["step"]] if match else 0


def layer_windows(host: Host) -> Intervals:
    """Windows from FSDP's hook before a layer to its hook after it, valued with the layer."""
    rows = np.flatnonzero(host.is_annotation & host.named(_HOOKS))
    rows = rows[np.argsort(host.ranges.start_ns[rows], kind="stable")]
    layers = host.by_name(_layer_of, rows)
    rows, layers = rows[layers != NO_LABEL], layers[layers != NO_LABEL]
    opened: dict[tuple[int, int, int], int] = {}
    found: list[tuple[int, int, int, int]] = []
    for hook, thread, layer, start_ns, end_ns in zip(
        host.by_name(_hook, rows).tolist(),
        host.ranges.thread[rows].tolist(),
        layers.tolist(),
        host.ranges.start_ns[rows].tolist(),
        host.end_ns[rows].tolist(),
        strict=True,
    ):
        if hook > 0:
            opened[hook, thread, layer] = start_ns
        elif begin := opened.pop((-hook, thread, layer), None):
            found.append((thread, begin, end_ns, layer))
    columns = np.array(found, np.int64).reshape(-1, 4)
    return Intervals(
        columns[:, 0].astype(np.int32), columns[:, 1], columns[:, 2], columns[:, 3].astype(np.intp)
    )
