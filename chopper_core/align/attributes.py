"""Attributes of activities that a host trace or a collective's arguments have."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.align.host import Host, Links
from chopper_core.model.attributes import Attributes, TypedValue, attribute_table
from chopper_core.model.column_names import NODE
from chopper_core.model.side_table import empty
from chopper_core.sources.trace import Collective
from chopper_core.tables.losses import ABSENT
from chopper_core.util.arrays import Float64, Int32
from chopper_core.util.grouping import distinct, ranked

NODE_TYPE: Final = "node_type"
"""The attribute with the kind of a send or a receive."""
SEND: Final = "COMM_SEND"
RECEIVE: Final = "COMM_RECV"


class ActivityAttributes(Struct, frozen=True):
    """The attributes of activities, and the column that refers to them, if there are any."""

    table: Attributes
    columns: dict[str, Float64]


def activity_attributes(host: Host, links: Links, argument: Int32) -> ActivityAttributes:
    """The peer of each send and receive, and inputs and outputs of the operator that launched each
    activity, where a host trace has them; `argument` is the code of a collective's arguments."""
    trace = host.trace
    found: dict[int, dict[str, TypedValue]] = {}
    for code in distinct(argument[argument != ABSENT]).tolist():
        if peer := _peer(trace.collectives[code]):
            for row in np.flatnonzero(argument == code).tolist():
                found[row] = dict(peer)
    if trace.operators:
        rows = np.array(sorted(trace.operators), np.intp)
        around = host.intervals(rows).innermost(links.points)
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
        return ActivityAttributes(empty(Attributes), {})
    _, gpu = ranked(trace.activities.device)
    node = np.full(len(gpu), np.nan)
    node[list(found)] = list(found)
    table = attribute_table(
        sorted(((int(gpu[row]), row, each) for row, each in found.items()), key=lambda one: one[:2])
    )
    return ActivityAttributes(table, {NODE: node})


def _peer(arguments: Collective) -> dict[str, TypedValue]:
    """The attributes of a send to a rank, or of a receive from one."""
    name = arguments.name.casefold()
    if "send" in name and "recv" not in name and arguments.target_rank != ABSENT:
        kind, peer, rank = SEND, "comm_dst", arguments.target_rank
    elif "recv" in name and "send" not in name and arguments.source_rank != ABSENT:
        kind, peer, rank = RECEIVE, "comm_src", arguments.source_rank
    else:
        return {}
    return {NODE_TYPE: ("string", kind), peer: ("int32", rank)}
