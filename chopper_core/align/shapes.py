"""Operations from the shapes and the order of the matrix products of a layer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final

import numpy as np

from chopper_core.align.host import Host
from chopper_core.align.intervals import NOWHERE, Intervals

_LAYER_OPENS: Final = re.compile(r"^FSDP::pre_forward \([^)]*\.?\d+\)|^Layer[ _]?\d+$")
_PRODUCTS: Final = re.compile(r"^aten::(?:mm|addmm|_scaled_mm)$")
_ATTENTION: Final = re.compile(r"attention|flash|sdpa|fmha", re.IGNORECASE)


def read_shapes(host: Host, code: Callable[[str], int]) -> Intervals:
    """The projections of a transformer layer, by the weights of its products.

    Between two of FSDP's hooks before a layer lie the products of one layer. Around the attention
    operator they read: projections into heads before it, the output projection after it, then
    one or two products up to the feed-forward width and one down from it.
    """
    empty = np.empty(0, np.intp)
    starts = np.flatnonzero(host.is_annotation & host.named(_LAYER_OPENS))
    products = np.flatnonzero(host.is_operator & host.named(_PRODUCTS) & (host.ranges.shapes >= 0))
    evaluates = np.flatnonzero(
        host.is_operator & host.named(re.compile(r"^autograd::engine::evaluate_function"))
    )
    inside = host.intervals(evaluates).innermost(host.starts(products)) != NOWHERE
    products = products[~inside]
    attention = np.flatnonzero(host.is_operator & host.named(_ATTENTION))
    if not len(starts) or not len(products) or not len(attention):
        return host.intervals(empty, empty)
    start_ns = host.ranges.start_ns
    products = products[np.argsort(start_ns[products], kind="stable")]
    bounds = np.sort(start_ns[starts])
    window = np.searchsorted(bounds, start_ns[products], "right")
    attended = np.sort(start_ns[attention])
    rows: list[int] = []
    codes: list[int] = []
    for number in np.unique(window[window > 0]):
        own = products[window == number]
        begin = bounds[number - 1]
        first = np.searchsorted(attended, begin)
        if first == len(attended):
            continue
        weights = [_weight(host, row) for row in own]
        names = layer_products(weights, int((start_ns[own] < attended[first]).sum()))
        for row, name in zip(own.tolist(), names, strict=False):
            rows.append(row)
            codes.append(code(name))
    return host.intervals(np.array(rows, np.intp), np.array(codes, np.intp))


def layer_products(weights: list[tuple[int, int] | None], before: int) -> tuple[str, ...]:
    """Names of a layer's products by their weights (in, out), `before` of them before attention.

    Empty where they don't look like those of a transformer layer.
    """
    into_heads = {1: ("qkv_ip",), 2: ("q_ip", "kv_ip"), 3: ("q_ip", "k_ip", "v_ip")}.get(before)
    after = weights[before:]
    if into_heads is None or len(after) < 3 or any(weight is None for weight in weights[:before]):
        return ()
    output, *feed_forward = after
    shapes = [weight for weight in feed_forward[:3] if weight is not None]
    if output is None or len(shapes) < 2 or any(w and w[0] != output[1] for w in weights[:before]):
        return ()
    width = output[1]
    if len(shapes) == 3 and shapes[0] == shapes[1] and shapes[2] == (shapes[0][1], width):
        return (*into_heads, "attn_op", "mlp_gp", "mlp_up", "mlp_dp")
    if shapes[0][0] == width and shapes[1] == (shapes[0][1], width):
        return (*into_heads, "attn_op", "mlp_up", "mlp_dp")
    if shapes[0][0] == width and shapes[1] == (shapes[0][1] // 2, width):
        return (*into_heads, "attn_op", "mlp_gup", "mlp_dp")
    return ()


def _weight(host: Host, row: int) -> tuple[int, int] | None:
    """The shape of the last matrix among an operator's inputs."""
    try:
        dimensions = json.loads(host.trace.names[int(host.ranges.shapes[row])])
    except ValueError:
        return None
    matrices = [
        tuple(shape)
        for shape in dimensions
        if isinstance(shape, list) and len(shape) == 2 and all(isinstance(n, int) for n in shape)
    ]
    return (matrices[-1][0], matrices[-1][1]) if len(matrices) >= 2 else None
