"""The tokens that go into the model, from the shapes of its embedding or its attention."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import Final

import numpy as np

from chopper_core.align.flops import lend
from chopper_core.align.host import Host, Links
from chopper_core.align.intervals import NOWHERE
from chopper_core.align.kernel_names import ATTENTION_CLASS, kernel_class
from chopper_core.align.operator_work import ATTENTION, Inputs
from chopper_core.model.table import NO_LABEL, NO_TIME, Phase
from chopper_core.sources.trace import ABSENT
from chopper_core.util.arrays import Codes, Float64, Int32, Mask

_EMBEDDING: Final = re.compile(r"^aten::embedding$")
_PACKED: Final = re.compile(r"varlen")


def activity_tokens(
    host: Host, links: Links, phase: Int32, layer: Int32, keys: Sequence[Codes]
) -> Float64:
    """The tokens that come into the model with each activity; NaN where none are known to.

    They are those of the embedding with the most entries (others hold positions or types), by
    the shape of its indices. Where none shows shapes they are those of the attentions of the
    first layer, forward: batch x sequence of the query. Activities without a launch record have
    the tokens of those that are equal in `keys`.
    """
    forward = phase == Phase.FORWARD
    found = _of_embedding(host, links, forward)
    if not np.isfinite(found).any():
        found = _of_attention(host, links, forward, layer)
    return lend(found, keys, forward & (links.launch_ns == NO_TIME))


def _of_embedding(host: Host, links: Links, forward: Mask) -> Float64:
    entries: dict[int, int] = {}
    tokens: dict[int, int] = {}
    for row, inputs in _shaped(host, _EMBEDDING):
        if len(inputs.shapes) > 1 and len(inputs.shapes[0]) == 2 and inputs.shapes[1]:
            entries[row] = inputs.shapes[0][0]
            tokens[row] = prod(inputs.shapes[1])
    most = max(entries.values(), default=0)
    largest = {row: count for row, count in tokens.items() if entries[row] == most}
    return _on_longest(host, links, largest, forward)


def _of_attention(host: Host, links: Links, forward: Mask, layer: Int32) -> Float64:
    attends = host.by_kernel(lambda name: kernel_class(name) == ATTENTION_CLASS) > 0
    attends &= forward & (layer != NO_LABEL)
    if not attends.any():
        return np.full(len(layer), np.nan)
    tokens: dict[int, int] = {}
    for row, inputs in _shaped(host, ATTENTION):
        query = inputs.shapes[0] if inputs.shapes else []
        if len(query) == 4:
            head_first = not host.text(row).startswith("flash_attn::")
            tokens[row] = query[0] * query[2 if head_first else 1]
        elif len(query) == 3 and _PACKED.search(host.text(row)):
            tokens[row] = query[0]
    return _on_longest(host, links, tokens, attends & (layer == layer[attends].min()))


def _shaped(host: Host, pattern: re.Pattern[str]) -> list[tuple[int, Inputs]]:
    """The operators of a name that show the shapes of their inputs."""
    ranges, names = host.ranges, host.trace.names
    rows = np.flatnonzero(host.is_operator & host.named(pattern) & (ranges.shapes != ABSENT))
    read: dict[int, Inputs] = {}
    shapes = ranges.shapes[rows].tolist()
    for code in set(shapes):
        read[code] = Inputs.parsed(names[code])
    return [(row, read[code]) for row, code in zip(rows.tolist(), shapes, strict=True)]


def _on_longest(host: Host, links: Links, tokens: dict[int, int], where: Mask) -> Float64:
    """The tokens of operators on the longest activity that each launched, of those `where`."""
    found = np.full(len(where), np.nan)
    operator = host.intervals(np.fromiter(tokens, np.intp, len(tokens))).innermost(links.points)
    rows = np.flatnonzero(where & (operator != NOWHERE))
    duration_ns = host.trace.activities.duration_ns[rows]
    rows = rows[np.lexsort((duration_ns, operator[rows]))]
    longest = np.ones(len(rows), np.bool_)
    longest[:-1] = operator[rows[:-1]] != operator[rows[1:]]
    for row in rows[longest].tolist():
        found[row] = tokens[int(operator[row])]
    return found
