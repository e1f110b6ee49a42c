"""Operations of a transformer layer from the shapes and order of its matrix products."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from chopper_core.align.host import BACKWARD_NODE, Host
from chopper_core.align.intervals import NOWHERE, Intervals
from chopper_core.util.arrays import Index
from chopper_core.util.grouping import distinct

_PRODUCTS: Final = re.compile(r"^aten::(?:mm|addmm|_scaled_mm)$")
_ATTENTION: Final = re.compile(r"attention|flash|sdpa|fmha", re.IGNORECASE)
_ACTIVATION: Final = re.compile(r"silu|gelu|relu|swish|sigmoid", re.IGNORECASE)
_RESIDUAL: Final = re.compile(r"^aten::add_?$")
_MOVES: Final = re.compile(
    r"^aten::(?:_?(?:unsafe_)?view|reshape|contiguous|clone|copy_|repeat|repeat_interleave|expand\w*"
    r"|transpose|permute|t|movedim|unsqueeze|squeeze|flatten|unflatten|slice|select|narrow)$"
)
"""Operators that compute nothing: after a rotary embedding they repeat keys and values."""
_OUTSIDE: Final = (
    (re.compile(r"^aten::embedding$"), "ie"),
    (re.compile(r"^aten::\w*(?:rms|layer)_norm$"), "ln"),
    (re.compile(r"^aten::(?:linear|mm|addmm)$"), "lp"),
    (re.compile(r"^aten::cross_entropy_loss$"), "cel"),
)
"""Operators of a transformer outside its layers."""

Weight = tuple[int, int]


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
    evaluates = np.flatnonzero(host.is_operator & host.named(BACKWARD_NODE))
    inside = host.intervals(evaluates).innermost(host.starts(operators)) != NOWHERE
    operators = operators[~inside]
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
        for pattern, name in _OUTSIDE:
            for row in outside[host.named(pattern)[outside]].tolist():
                named.setdefault(row, code(name))
    rows = np.fromiter(named, np.intp, len(named))
    return host.intervals(rows, np.fromiter(named.values(), np.intp, len(named)))


def _read_layer(host: Host, operators: Index) -> Iterator[tuple[int, str]]:
    """(Row, operation) of the operators of one layer, sorted by start."""
    start_ns, end_ns = host.ranges.start_ns, host.end_ns
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
    latest_end = np.maximum.accumulate(end_ns[operators])
    outermost = np.ones(len(operators), np.bool_)
    outermost[1:] = start_ns[operators[1:]] >= latest_end[:-1]
    rows = operators[outermost]
    computes = ~host.named(_MOVES)[rows] & (start_ns[rows] < start_ns[attended])
    rotated_ns = int(start_ns[rows[computes]].max(initial=0))
    for row in rows:
        holds = (start_ns[products] >= start_ns[row]) & (start_ns[products] < end_ns[row])
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
    try:
        dimensions = json.loads(host.trace.inputs[int(host.ranges.inputs[row])].shapes)
    except (ValueError, RecursionError):
        return None
    matrices = [
        (shape[0], shape[1])
        for shape in dimensions
        if isinstance(shape, list) and len(shape) == 2 and all(isinstance(n, int) for n in shape)
    ]
    return matrices[-1] if len(matrices) >= 2 else None
