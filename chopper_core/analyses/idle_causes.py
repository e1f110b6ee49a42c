"""Idle time of a scope by what the launching thread did during that time, for rows of causes."""

from __future__ import annotations

from typing import Final

import numpy as np

from chopper_core.analyses.host_causes import PLACE_NAMES, HostCharges, HostPlace, charges_of
from chopper_core.analyses.rows import FigureRows
from chopper_core.columns import Values, row_columns, worded
from chopper_core.model.groups import Groups
from chopper_core.model.run import Run
from chopper_core.model.side_table import HostState, HostTime
from chopper_core.model.units import time_text
from chopper_core.model.view import View
from chopper_core.util.arrays import Index, Int64
from chopper_core.util.errors import NothingToShow
from chopper_core.util.grouping import counts_of, run_starts, run_sums, sums_of

HOST: Final = "host"
"""The level of these rows."""
IDLE_CAUSE_ROWS: Final = "causes of idle time"
COLUMNS: Final = row_columns(
    IDLE_CAUSE_ROWS,
    """
    host_idle_pct | % | of idle
        Share of the scope's idle time with this cause.
    host_gaps | | gaps | sum
        Gaps of the GPUs, each before one activity, with any of this cause.
    host_longest_ns | ns | longest | max
        The longest idle time of one gap with this cause; the row leads to it in the timeline.
        missing: the run has no record of the host for this time
    host_where | | mostly in
        Where the host spent most of the time: in a runtime call, else an operator, else an
        annotation, else a Python frame of 100 µs or more, else in nothing that the trace shows.
        missing: the run has no record of the host for this time
    host_when | | longest at
        GPU and time since the run's first activity at which the longest gap of the row has it.
        missing: the run has no record of the host for this time
    host_call_ns | ns | in calls | sum
        The part in which the launching thread is in a runtime call.
    host_operator_ns | ns | in operators | sum
        The part in an operator, outside runtime calls.
    host_annotation_ns | ns | in annotations | sum
        The part in an annotation, outside calls and operators.
    host_frame_ns | ns | in frames | sum
        The part in a Python frame of 100 µs or more, outside the former.
    host_untraced_ns | ns | in nothing | sum
        The part in which the trace shows nothing on that thread.
""",
)
_STATES: Final = ("idle_host_ns", "idle_launch_ns", "idle_unknown_ns")
PLACE_COLUMNS: Final = tuple(COLUMNS)[-len(HostPlace) :]
"""By `HostPlace`."""


class IdleCauses(FigureRows, frozen=True, eq=False, kw_only=True):
    """Causes of idle time, the largest first; what no record covers comes last."""

    idle_ns: Int64
    """Of each row."""
    places: Int64
    """The same as rows x `HostPlace`: where the host is."""
    piece: Index
    """Where in `HostTime` the longest of each row begins; -1 for what no record covers."""
    operator_ns: int
    """What is idle while the hosts are in operators."""


def idle_causes(run: Run, view: View) -> IdleCauses:
    """The idle time of a scope by cause; raises NothingToShow without a record of the hosts."""
    node, host = run.tree_of(view).node(view.path), run.side(HostTime)
    idle_ns = int(node.sum("idle_ns")[0])
    if not len(host):
        raise NothingToShow(
            "the run has no record of its hosts: only traces of the PyTorch profiler show what "
            "they did while the GPUs were idle, and not where a thread launches for very many "
            "GPUs"
        )
    if not idle_ns:
        raise NothingToShow("the GPUs are never idle in the scope")
    charges = charges_of(run, node.selection)
    charges = charges.take(charges.state != HostState.COPYING)
    states, places = _idle_by_cause(run, node, charges)
    total = places.sum(axis=1)
    # What no record covers comes last.
    order = np.argsort(-total[:-1], kind="stable")
    order = np.append(order[total[order] > 0], np.flatnonzero(total[-1:]) + len(order))
    texts = [*(each.text for each in charges.causes), "no record of the host"]
    labels = [texts[cause] for cause in order.tolist()]
    total, states, places = total[order], states[order], places[order]
    gaps, longest, piece = (each[order] for each in _gaps_by_cause(charges))
    begin = [time_text(ns) for ns in (host.start_ns[piece] - run.origin_ns).tolist()]
    longest_at = zip(piece.tolist(), host.gpu[piece].tolist(), begin, strict=True)
    mostly_in = zip(piece.tolist(), places.argmax(axis=1).tolist(), strict=True)
    figures = {
        "idle_ns": Values(total),
        "host_idle_pct": Values(100.0 * total / idle_ns),
        "host_gaps": Values(gaps),
        "host_longest_ns": Values(longest, piece < 0),
        "host_where": worded([PLACE_NAMES[place] if at >= 0 else None for at, place in mostly_in]),
        "host_when": worded(
            [f"GPU {gpu}, {ns}" if at >= 0 else None for at, gpu, ns in longest_at]
        ),
        **{name: Values(states[:, at]) for at, name in enumerate(_STATES)},
        **{name: Values(places[:, at]) for at, name in enumerate(PLACE_COLUMNS)},
    }
    whole = {
        "host_idle_pct": Values(np.array([100.0])),
        "host_longest_ns": Values(longest.max(keepdims=True)),
    }
    in_operator = np.array([bool(each.operator) for each in host.stacks], np.bool_)
    operator_ns = int(charges.ns[in_operator[host.stack[charges.piece]]].sum())
    return IdleCauses(
        HOST, labels, figures, whole,
        idle_ns=total, places=places, piece=piece, operator_ns=operator_ns,
    )  # fmt: skip


def _idle_by_cause(run: Run, node: Groups, charges: HostCharges) -> tuple[Int64, Int64]:
    """Idle time as causes x `_STATES` and as causes x places; the last is what no record covers."""
    count = len(charges.causes) + 1

    def summed(column: Int64, size: int) -> Int64:
        return sums_of(charges.ns, charges.cause * size + column, count * size).reshape(count, size)

    state = np.zeros(len(charges), np.int64)
    state[charges.state == HostState.LAUNCHED] = _STATES.index("idle_launch_ns")
    state[charges.state == HostState.UNKNOWN] = _STATES.index("idle_unknown_ns")
    states, places = summed(state, len(_STATES)), summed(charges.place, len(HostPlace))
    states[-1] = [node.sum(name)[0] for name in _STATES] - states.sum(axis=0)
    places[-1, HostPlace.NOTHING] = states[-1].sum()
    return states, places


def _gaps_by_cause(charges: HostCharges) -> tuple[Int64, Int64, Index]:
    """By cause the gaps with any of it, the longest such time of one, and the place in `HostTime`
    where that begins; -1 for what no record covers."""
    count = len(charges.causes) + 1
    order = np.lexsort((charges.row, charges.cause))
    cause, row, piece = (each[order] for each in (charges.cause, charges.row, charges.piece))
    first = run_starts(cause, row)
    gap_ns = run_sums(charges.ns[order], first)
    cause, row, piece = cause[first], row[first], piece[first]
    longest, at = np.zeros(count, np.int64), np.full(count, -1, np.intp)
    by_length = np.lexsort((-row, gap_ns))
    longest[cause[by_length]], at[cause[by_length]] = gap_ns[by_length], piece[by_length]
    return counts_of(cause, count), longest, at
