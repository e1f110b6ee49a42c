"""The layer of each activity, and the operations of a layer by the shapes of its products.

An activity belongs to the layer that it serves, not to the one that prefetches it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from chopper_core.align.graph_marks import marked_layers
from chopper_core.align.host import Host
from chopper_core.align.labels import NOWHERE, Intervals, Labels, Points, fill_between
from chopper_core.align.modules import Modules
from chopper_core.model.operator_inputs import Inputs
from chopper_core.model.table import MODEL_PHASES, NO_LABEL, Phase, Rule
from chopper_core.util.arrays import Index
from chopper_core.util.grouping import distinct, isin
from chopper_core.util.patterns import late, matched_group

_LAYER: Final = late(r"^Layer[ _]?(\d{1,9})$")
_FSDP: Final = late(r"^FSDP::(?P<step>\w+)(?: for (?P<target>\S+))?(?: \((?P<owner>[^)]*)\))?")
_NUMBER: Final = late(r"(?:^|\.)(?:layers|blocks|h|block|layer)\.(\d{1,9})(?:\.|$)")
_SERVES: Final = late(
    r"^FSDP::(?:all_gather|all_gather_copy_in|all_gather_copy_out|post_backward_reduce"
    r"|post_backward_reshard|post_backward_accumulate|post_backward_rs_wait"
    r"|(?:forward|backward)_prefetch)\b"
)
_ROOT_GROUP: Final = -2
"""The layer of a module of FSDP that is none of the layers."""
_OUTSIDE_LAYERS: Final = late(r"^(?:ie|ln|lp|lnp|cel)(?: \(recompute\))?$")
"""Operations of a model that belong to no layer: embedding, last norm, head, loss."""
_HOOKS: Final = late(
    r"^FSDP::(?P<step>pre_forward|post_forward|pre_backward|post_backward_reduce)\b"
)
_PAIRS: Final = {
    "pre_forward": 1,
    "post_forward": -1,
    "pre_backward": 2,
    "post_backward_reduce": -2,
}
"""Codes of hooks: those that open and close the same window differ in sign only."""
_PRODUCTS: Final = late(r"^aten::(?:mm|addmm|_scaled_mm)$")
_ATTENTION: Final = late(r"attention|flash|sdpa|fmha", re.IGNORECASE)
_ACTIVATION: Final = late(r"silu|gelu|relu|swish|sigmoid", re.IGNORECASE)
_RESIDUAL: Final = late(r"^aten::add_?$")
_MOVES: Final = late(
    r"^aten::(?:_?(?:unsafe_)?view|reshape|contiguous|clone|copy_|repeat|repeat_interleave|expand\w*"
    r"|transpose|permute|t|movedim|unsqueeze|squeeze|flatten|unflatten|slice|select|narrow)$"
)
"""Operators that compute nothing: after a rotary embedding they repeat keys and values."""
_OPERATORS_OUTSIDE: Final = (
    (re.compile(r"^aten::embedding$"), "ie"),
    (re.compile(r"^aten::\w*(?:rms|layer)_norm$"), "ln"),
    (re.compile(r"^aten::(?:linear|mm|addmm)$"), "lp"),
    (re.compile(r"^aten::cross_entropy_loss$"), "cel"),
)
"""Operators of a transformer outside its layers."""

Weight = tuple[int, int]


def label_layers(host: Host, modules: Modules, iterations: Labels, phases: Labels) -> Labels:
    points = host.captured
    labels = Labels.none(len(points))
    serves = _served(host).innermost(points)
    labels.fill(np.where(serves == _ROOT_GROUP, NO_LABEL, serves), Rule.FSDP)
    # FSDP's work for its root group belongs to no layer, wherever it runs.
    points = Points(np.where(serves == _ROOT_GROUP, NOWHERE, points.thread), points.time_ns)
    # Recomputed work belongs to the layer of its backward operator.
    linked = np.where(serves == _ROOT_GROUP, NOWHERE, host.linked)
    forward = host.backward.forward.take(linked)
    labels.fill_around(annotated_layers(host), points, forward, Rule.ANNOTATION)
    labels.fill(marked_layers(host), Rule.MODULE)
    labels.fill_around(layer_windows(host), points, forward, Rule.FSDP)
    labels.fill_around(modules.layers, points, forward, Rule.MODULE)

    outside = modules.holders.innermost(points, labels.missing()) != NOWHERE
    labels.rules[outside] = Rule.MODULE
    rest = labels.missing() & ~outside
    of_outside = modules.holders.innermost(forward, rest) != NOWHERE
    labels.rules[of_outside] = Rule.AUTOGRAD
    outside |= of_outside
    outside |= serves == _ROOT_GROUP
    labels.rules[serves == _ROOT_GROUP] = Rule.FSDP

    # Only the model's work can take a neighbour's layer.
    body = isin(phases.codes, MODEL_PHASES)
    step = np.where(body, iterations.codes.astype(np.int64) * len(Phase) + phases.codes, -1)
    may = body & ~outside
    fill_between(
        labels,
        host.order,
        lambda before, after: may & (step[before] == step) & (step[after] == step),
    )
    return labels


def mark_outside(layers: Labels, operations: Labels, names: Sequence[str]) -> None:
    """Note the rule of activities whose operation lies outside the layers of a model.

    They have a rule and no layer; activities of an unknown layer have neither.
    """
    known = np.array([_OUTSIDE_LAYERS.match(name) is not None for name in (*names, "")], np.bool_)
    outside = layers.missing() & known[operations.codes]
    layers.rules[outside] = operations.rules[outside]


def annotated_layers(host: Host) -> Intervals:
    is_layer = host.is_annotation & host.named(_LAYER)
    return host.valued(is_layer, lambda name: int(matched_group(_LAYER, name)))


def _layer_of(name: str) -> int:
    """The layer of the module that a range of FSDP names; NO_LABEL if it names no module."""
    module = matched_group(_FSDP, name, "owner") or matched_group(_FSDP, name, "target")
    number = matched_group(_NUMBER, module)
    return int(number) if number else _ROOT_GROUP if module else NO_LABEL


def _served(host: Host) -> Intervals:
    """Ranges of FSDP's own work, valued with the layer whose parameters they move."""
    rows = np.flatnonzero(host.is_annotation & host.named(_SERVES))
    layers = host.by_name(_layer_of, rows)
    return host.intervals(rows[layers != NO_LABEL], layers[layers != NO_LABEL])


def layer_windows(host: Host) -> Intervals:
    """Windows from FSDP's hook before a layer to its hook after it, valued with the layer."""
    rows = np.flatnonzero(host.is_annotation & host.named(_HOOKS))
    if not len(rows):
        return host.intervals(rows)
    rows = rows[np.argsort(host.ranges.start_ns[rows], kind="stable")]
    layers = host.by_name(_layer_of, rows)
    rows, layers = rows[layers >= 0], layers[layers >= 0]
    opened: dict[tuple[int, int, int], int] = {}
    found: list[tuple[int, int, int, int]] = []
    for hook, thread, layer, start_ns, end_ns in zip(
        host.by_name(lambda name: _PAIRS[matched_group(_HOOKS, name)], rows).tolist(),
        host.ranges.thread[rows].tolist(),
        layers.tolist(),
        host.ranges.start_ns[rows].tolist(),
        host.ends(rows).tolist(),
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


def read_shapes(host: Host, layers: Intervals, code: Callable[[str], int]) -> Intervals:
    """The operators of the forward layers, valued with the code of their operation.

    `layers` are the ranges of single layers on the host. Around the attention operator a layer
    consists of: norm, projections into heads, rotary embedding, repetition of keys and values,
    attention, output projection,
    residual sum, norm, one or two products up to the feed-forward width with its activation, one
    down, residual sum. Other layers are skipped; if one matches, the embedding, the last norm,
    the logits and the loss outside the layers are named too.
    """
    operators = host.operators
    start_ns = host.ranges.start_ns
    operators = operators[np.argsort(start_ns[operators], kind="stable")]
    operators = operators[~host.in_nodes(operators)]
    named: dict[int, int] = {}
    for thread in distinct(layers.thread):
        own = operators[host.ranges.thread[operators] == thread]
        for layer in np.flatnonzero(layers.thread == thread):
            first, last = np.searchsorted(
                start_ns[own], (layers.start_ns[layer], layers.end_ns[layer])
            )
            for row, name in _read_layer(host, own[first:last]):
                named[row] = code(name)
    if named:
        outside = operators[layers.innermost(host.starts(operators)) == NOWHERE]
        for pattern, name in _OPERATORS_OUTSIDE:
            for row in outside[host.named(pattern)[outside]].tolist():
                named.setdefault(row, code(name))
    rows = np.fromiter(named, np.intp, len(named))
    return host.intervals(rows, np.fromiter(named.values(), np.intp, len(named)))


def _read_layer(host: Host, operators: Index) -> Iterator[tuple[int, str]]:
    """(Row, operation) of the operators of one layer, sorted by start."""
    start_ns = host.ranges.start_ns
    is_product = host.named(_PRODUCTS)[operators] & (host.ranges.inputs[operators] >= 0)
    products = operators[is_product]
    attention = operators[host.named(_ATTENTION)[operators]]
    if not len(products) or not len(attention):
        return
    attended = attention[0]
    before = int((start_ns[products] < start_ns[attended]).sum())
    names = layer_products([_weight(host, row) for row in products], before)
    if not names:
        return
    products = products[: len(names)]
    yield from zip(products.tolist(), names, strict=True)
    end_ns = host.ends(operators)
    latest_end = np.maximum.accumulate(end_ns)
    outermost = np.ones(len(operators), np.bool_)
    outermost[1:] = start_ns[operators[1:]] >= latest_end[:-1]
    rows, ends = operators[outermost], end_ns[outermost]
    computes = ~host.named(_MOVES)[rows] & (start_ns[rows] < start_ns[attended])
    rotated_ns = int(start_ns[rows[computes]].max(initial=0))
    for row, end in zip(rows, ends, strict=True):
        holds = (start_ns[products] >= start_ns[row]) & (start_ns[products] < end)
        if holds.any():
            continue
        passed = int((start_ns[products] < start_ns[row]).sum())
        name = _between(host.text(row), passed, before, len(names), row == attended)
        moves = name == "qkv_re" and start_ns[row] > rotated_ns
        yield int(row), "attn_i" if moves else name


def _between(name: str, passed: int, before: int, count: int, attends: bool) -> str:
    """The operation of an operator after `passed` of a layer's products."""
    if attends or _ATTENTION.search(name):
        return "attn_fa"
    if passed == 0:
        return "attn_n"
    if passed <= before:
        return "qkv_re"
    if passed == before + 1:
        return "attn_ra" if _RESIDUAL.match(name) else "mlp_n"
    if passed < count:
        return "mlp_gs" if _ACTIVATION.search(name) else "mlp_gu"
    return "mlp_ra"


def layer_products(weights: list[Weight | None], before: int) -> tuple[str, ...]:
    """Names of a layer's products by their weights (in, out), `before` of them before attention.

    Empty if they don't form a transformer layer.
    """
    into_heads = {1: ("qkv_ip",), 2: ("q_ip", "kv_ip"), 3: ("q_ip", "k_ip", "v_ip")}.get(before)
    known = [weight for weight in weights if weight is not None]
    if into_heads is None or len(known) != len(weights) or len(known) < before + 3:
        return ()
    output, *feed_forward = known[before:]
    width = output[1]
    if any(weight[0] != width for weight in known[:before]) or feed_forward[0][0] != width:
        return ()
    inner = feed_forward[0][1]
    if feed_forward[:3] == [(width, inner), (width, inner), (inner, width)]:
        return (*into_heads, "attn_op", "mlp_gp", "mlp_up", "mlp_dp")
    if feed_forward[1] == (inner, width):
        return (*into_heads, "attn_op", "mlp_up", "mlp_dp")
    if feed_forward[1] == (inner // 2, width):
        return (*into_heads, "attn_op", "mlp_gup", "mlp_dp")
    return ()


def _weight(host: Host, row: int | np.intp) -> Weight | None:
    """The shape of the last matrix among an operator's inputs."""
    shapes = Inputs.parsed(host.trace.inputs[int(host.ranges.inputs[row])].shapes).shapes
    matrices = [(shape[0], shape[1]) for shape in shapes if len(shape) == 2]
    return matrices[-1] if len(matrices) >= 2 else None
