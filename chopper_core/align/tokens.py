"""Tokens by activity, only where the file shows that a language model reads them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import Final

import numpy as np

from chopper_core.align.host import Host, Links
from chopper_core.align.intervals import NOWHERE, Intervals
from chopper_core.align.kernel_classes import ATTENTION_CLASS
from chopper_core.align.model_work import causal_in, lend, longest_of
from chopper_core.align.operator_inputs import Inputs
from chopper_core.align.operator_work import ATTENTION, HEADS_AFTER_SEQUENCE
from chopper_core.model.table import INFERENCE_PHASES, NO_LABEL, NO_TIME, Phase
from chopper_core.tables.losses import ABSENT
from chopper_core.util.arrays import Codes, Float64, Int32, Mask
from chopper_core.util.patterns import late


def at_steps(host: Host, links: Links, steps: Intervals, values: Float64) -> Float64:
    """A value of each inference step, at the longest activity of the step; NaN elsewhere."""
    step = steps.innermost(links.points)
    found = np.full(len(step), np.nan)
    rows = longest_of(host, np.flatnonzero(step != NOWHERE), step)
    found[rows] = values[step[rows]]
    return found


_EMBEDDING: Final = late(r"^aten::embedding$")
_PACKED: Final = late(r"varlen")
_PRODUCT: Final = late(r"^aten::(?:linear|mm|addmm|matmul|_scaled_mm)$")
_IMAGE: Final = late(r"^aten::conv(?:_transpose)?[23]d$")
_CONVOLUTION: Final = late(r"^aten::convolution$")
_BATCHED_PRODUCT: Final = late(r"^aten::(?:bmm|baddbmm)$")
_SOFTMAX: Final = late(r"^aten::_softmax$")


def activity_tokens(
    host: Host, links: Links, phase: Int32, layer: Int32, keys: Sequence[Codes]
) -> Float64:
    """The tokens that enter the model with each activity; NaN if there are none.

    The shape of the indices of the embedding with the most entries (others hold positions or
    types) gives them; without recorded shapes, the forward attention of the first layer does:
    batch x sequence of the query. Classes, features and image patches pass through the same
    operators, so both need evidence of a language model (`_reads_tokens`, `_is_text`). Activities
    without a launch record borrow from activities that are equal in `keys`.
    """
    forward = np.isin(phase, (Phase.FORWARD, *INFERENCE_PHASES))
    found = _of_embedding(host, links, forward)
    if not np.isfinite(found).any() and _is_text(host):
        found = _of_attention(host, links, forward, layer)
    return lend(found, keys, forward & (links.launch_ns == NO_TIME))


def _of_embedding(host: Host, links: Links, forward: Mask) -> Float64:
    tables: dict[int, Sequence[int]] = {}
    tokens: dict[int, int] = {}
    is_sequence: dict[int, bool] = {}
    for row, inputs in _shaped(host, _EMBEDDING):
        if len(inputs.shapes) > 1 and len(inputs.shapes[0]) == 2 and inputs.shapes[1]:
            tables[row] = inputs.shapes[0]
            tokens[row] = prod(inputs.shapes[1])
            is_sequence[row] = len(inputs.shapes[1]) > 1
    most = max((table[0] for table in tables.values()), default=0)
    rows = [row for row, table in tables.items() if table[0] == most]
    if not rows or not _reads_tokens(host, tables[rows[0]], any(is_sequence[row] for row in rows)):
        return np.full(len(forward), np.nan)
    largest = {row: tokens[row] for row in rows}
    return _on_longest(host, links, largest, forward)


def _reads_tokens(host: Host, table: Sequence[int], is_sequence: bool) -> bool:
    """Whether the rows of an embedding's table are tokens.

    They are if the model's output has an entry per row: a product with weights of the table's
    shape. A pipeline stage or an encoder without such a product needs sequences of indices,
    attention, and no image.
    """
    for _, inputs in _shaped(host, _PRODUCT):
        if any(sorted(shape) == sorted(table) for shape in inputs.shapes if len(shape) == 2):
            return True
    return is_sequence and _attends(host) and not _has_images(host)


def _is_text(host: Host) -> bool:
    """Whether attention is over text: causal, or next to an embedding, and without images."""
    if _has_images(host):
        return False
    is_causal = host.by_kernel(lambda name: causal_in(name) is True) > 0
    unshaped = host.is_operator & host.named(_EMBEDDING) & (host.ranges.inputs == ABSENT)
    return bool(is_causal.any() or unshaped.any())


def _attends(host: Host) -> bool:
    def has(pattern: re.Pattern[str]) -> bool:
        return bool((host.is_operator & host.named(pattern)).any())

    if host.of_class(ATTENTION_CLASS).any() or has(ATTENTION):
        return True
    return has(_BATCHED_PRODUCT) and has(_SOFTMAX)


def _has_images(host: Host) -> bool:
    """Whether the model convolves over two or three dimensions."""
    if (host.is_operator & host.named(_IMAGE)).any():
        return True
    shaped = _shaped(host, _CONVOLUTION)
    return any(inputs.shapes and len(inputs.shapes[0]) > 3 for _, inputs in shaped)


def _of_attention(host: Host, links: Links, forward: Mask, layer: Int32) -> Float64:
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
        elif len(query) == 3 and _PACKED.search(host.text(row)):
            tokens[row] = query[0]
    return _on_longest(host, links, tokens, attends & (layer == layer[attends].min()))


def _shaped(host: Host, pattern: re.Pattern[str]) -> list[tuple[int, Inputs]]:
    """The operators of a name with recorded input shapes."""
    given = host.ranges.inputs
    rows = np.flatnonzero(host.is_operator & host.named(pattern) & (given != ABSENT))
    codes = given[rows].tolist()
    read = {code: Inputs.parsed(host.trace.inputs[code].shapes) for code in set(codes)}
    return [(row, read[code]) for row, code in zip(rows.tolist(), codes, strict=True)]


def _on_longest(host: Host, links: Links, tokens: dict[int, int], where: Mask) -> Float64:
    """The tokens of operators, on the longest activity of each among those in `where`."""
    found = np.full(len(where), np.nan)
    operator = host.intervals(np.fromiter(tokens, np.intp, len(tokens))).innermost(links.points)
    rows = np.flatnonzero(where & (operator != NOWHERE))
    for row in longest_of(host, rows, operator).tolist():
        found[row] = tokens[int(operator[row])]
    return found
