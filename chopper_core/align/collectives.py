"""What a trace states of activities: name, size, group and peer of a collective; the inputs and
outputs of operators that a host trace has.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.align.host import Host
from chopper_core.model.attributes import (
    NODE_TYPE,
    RECEIVE,
    SEND,
    Attributes,
    TypedValue,
    attribute_table,
)
from chopper_core.model.column_names import NODE
from chopper_core.model.hardware import type_bytes
from chopper_core.model.side_table import empty
from chopper_core.model.table import Kind, Rule
from chopper_core.sources.trace import Collective
from chopper_core.tables.losses import ABSENT
from chopper_core.util.arrays import Float64, Int8, Int32, Int64
from chopper_core.util.grouping import distinct, first_equal, numbered_rows, ranked
from chopper_core.util.patterns import late
from chopper_core.work.kernel_classes import UNKNOWN_COLLECTIVE, UNNAMED, collective_name

_RANGES: Final = late(
    r"^nccl:|^c10d::|^record_param_comms|^FSDP::(?:all_gather|post_backward_reduce)\b"
    r"|^## all(?:2all|toall)"
)


class CollectiveLabels(Struct, frozen=True):
    """The collective of each communication kernel; other activities have code -1."""

    names: tuple[str, ...]
    """Standard names; `codes` points into them."""
    codes: Int32
    rules: Int8
    bytes: Int64
    groups: tuple[str, ...]
    group: Int32
    argument: Int32
    """Code of the arguments, among those of the trace."""
    without_arguments: int


def read_collectives(host: Host) -> CollectiveLabels:
    """Name, bytes and group of the communication kernels.

    The name comes from the arguments on the kernel, else on the operator around its launch, else
    from the innermost range around the launch that names one, else from the kernel's name.
    """
    trace = host.trace
    activities = trace.activities
    rows = np.flatnonzero(host.kind == Kind.COMM)
    points = host.links.points.take(rows)
    described = np.flatnonzero(host.ranges.collective != ABSENT)
    around = host.intervals(described).innermost(points)
    speaking = np.flatnonzero(host.named(_RANGES))
    spoken = host.intervals(speaking).innermost(points)

    # Position -1 holds ABSENT, for activities outside all ranges.
    argument = np.append(host.ranges.collective, np.int32(ABSENT))[around]
    own = activities.collective[rows]
    argument[own != ABSENT] = own[own != ABSENT]
    spoken_name = np.append(host.ranges.name, np.int32(ABSENT))[spoken]
    columns = (argument, spoken_name, activities.name[rows])
    number = numbered_rows(columns)
    first = first_equal(number, np.arange(int(number.max(initial=-1)) + 1))

    names: dict[str, int] = {}
    groups: dict[str, int] = {}
    known = np.full((4, len(first)), ABSENT, np.int64)
    for position in np.argsort(first).tolist():
        of_argument, of_spoken, of_kernel = (int(each[first[position]]) for each in columns)
        arguments = trace.collectives[of_argument] if of_argument != ABSENT else Collective()
        texts = (
            (arguments.name, Rule.COLLECTIVE),
            (trace.names[of_spoken] if of_spoken != ABSENT else "", Rule.ANNOTATION),
            (trace.names[of_kernel], Rule.KERNEL_NAME),
        )
        name, rule = next(
            ((found, rule) for text, rule in texts if text and (found := collective_name(text))),
            (UNKNOWN_COLLECTIVE, Rule.KERNEL_NAME),
        )
        label = group_label(arguments)
        known[:, position] = (
            names.setdefault(name, len(names)),
            rule,
            message_bytes(arguments),
            groups.setdefault(label, len(groups)) if label else ABSENT,
        )

    count = len(activities)
    codes = np.full(count, -1, np.int32)
    rules = np.full(count, Rule.NONE, np.int8)
    size = np.where(host.kind == Kind.COMM, ABSENT, activities.bytes)
    group, of_arguments = np.full((2, count), ABSENT, np.int32)
    of_arguments[rows] = argument
    codes[rows], rules[rows], size[rows], group[rows] = known[:, number]
    without = int(np.count_nonzero(argument == ABSENT))
    return CollectiveLabels(
        tuple(names), codes, rules, size, tuple(groups), group, of_arguments, without
    )


def message_bytes(arguments: Collective) -> int:
    width = type_bytes(arguments.dtype)
    elements = max(arguments.in_elements, arguments.out_elements)
    return elements * width if width is not None and elements >= 0 else ABSENT


def group_label(arguments: Collective) -> str:
    """The display name of a process group: name, description and size, those that are given."""
    name, description = arguments.group_name, arguments.group_description
    label = f"{name} ({description})" if name and description else name or description
    if arguments.group_size > 0:
        label = f"{label or UNNAMED} of {arguments.group_size}"
    return label


def activity_attributes(host: Host, argument: Int32) -> tuple[Attributes, dict[str, Float64]]:
    """The peer of each send and receive, and inputs and outputs of the operator that launched each
    activity, where a host trace has them; and the column that refers to them, if there are any.
    `argument` is the code of a collective's arguments."""
    trace = host.trace
    found: dict[int, dict[str, TypedValue]] = {}
    for code in distinct(argument[argument != ABSENT]).tolist():
        if peer := _peer(trace.collectives[code]):
            for row in np.flatnonzero(argument == code).tolist():
                found[row] = dict(peer)
    if trace.operators:
        rows = np.array(sorted(trace.operators), np.intp)
        around = host.intervals(rows).innermost(host.links.points)
        for row in np.flatnonzero(around != ABSENT).tolist():
            texts = trace.operators[int(around[row])]
            found.setdefault(row, {}).update(
                {
                    "inputs.values": ("string", texts.values),
                    "inputs.shapes": ("string", texts.shapes),
                    "inputs.types": ("string", texts.types),
                    "outputs.values": ("string", texts.outputs),
                }
            )
    if not found:
        return empty(Attributes), {}
    _, gpu = ranked(trace.activities.device)
    node = np.full(len(gpu), np.nan)
    node[list(found)] = list(found)
    table = attribute_table(
        sorted(((int(gpu[row]), row, each) for row, each in found.items()), key=lambda one: one[:2])
    )
    return table, {NODE: node}


def _peer(arguments: Collective) -> dict[str, TypedValue]:
    name = arguments.name.casefold()
    if "send" in name and "recv" not in name and arguments.target_rank != ABSENT:
        kind, peer, rank = SEND, "comm_dst", arguments.target_rank
    elif "recv" in name and "send" not in name and arguments.source_rank != ABSENT:
        kind, peer, rank = RECEIVE, "comm_src", arguments.source_rank
    else:
        return {}
    return {NODE_TYPE: ("string", kind), peer: ("int32", rank)}
