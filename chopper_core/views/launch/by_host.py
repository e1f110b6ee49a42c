"""Idle time by what the launching thread did during that time: causes, the largest first."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.metrics import METRICS, Values, column, computed_column, worded
from chopper_core.model.charts import BarChart, Series
from chopper_core.model.groups import Groups
from chopper_core.model.host_tables import HostState, HostTime
from chopper_core.model.run import Run
from chopper_core.model.table import LEVELS, NO_TIME
from chopper_core.model.units import time_text
from chopper_core.model.view import View, Window, with_view
from chopper_core.util.arrays import Index, Int64
from chopper_core.util.errors import NothingToShow
from chopper_core.util.grouping import (
    counts_of,
    distinct,
    run_starts,
    run_sums,
    sums_of,
)
from chopper_core.views.shared.host_causes import (
    AFTERMATH_NS,
    PLACE_NAMES,
    HostCharges,
    HostPlace,
    charges_of,
)
from chopper_core.views.shared.table_view import LabelledRows, table_view
from chopper_core.views.spec import ViewResult

LEVEL: Final = "host"
_MAX_BARS: Final = 12
_NO_RECORD: Final = "no record of the host"

SHARE: Final = column("""host_idle_pct | % | of idle
    Share of the scope's idle time with this cause.""")
GAPS: Final = column("""host_gaps | | gaps
    Gaps of the GPUs, each before one activity, with any of this cause.""")
LONGEST: Final = column("""host_longest_ns | ns | longest | max
    The longest idle time of one gap with this cause; the row leads to it in the timeline.
    missing: the run has no record of the host for this time""")
WHERE: Final = column("""host_where | | mostly in
    Where the host spent most of the time: in a runtime call, else an operator, else an
    annotation, else a Python frame of 100 µs or more, else in nothing that the trace shows.
    missing: the run has no record of the host for this time""")
WHEN: Final = column("""host_when | | longest at
    GPU and time since the run's first activity at which the longest gap of the row has it.
    missing: the run has no record of the host for this time""")
_STATES: Final = ("idle_host_ns", "idle_launch_ns", "idle_unknown_ns")
IN_PLACE: Final = tuple(
    computed_column(f"host_{name}_ns", "ns", f"in {title}", definition, reduces="sum")
    for name, title, definition in (
        ("call", "calls", "The part in which the launching thread is in a runtime call."),
        ("operator", "operators", "The part in an operator, outside runtime calls."),
        ("annotation", "annotations", "The part in an annotation, outside calls and operators."),
        ("frame", "frames", "The part in a Python frame of 100 µs or more, outside the former."),
        ("untraced", "nothing", "The part in which the trace shows nothing on that thread."),
    )
)
"""By `HostPlace`."""


class _Causes(Struct, frozen=True, eq=False):
    """The idle time of a scope by cause, the largest first."""

    labels: list[str]
    total_ns: Int64
    state_ns: Int64
    """Causes x `_STATES`."""
    place_ns: Int64
    """Causes x places."""
    gaps: Int64
    longest_ns: Int64
    longest_piece: Index
    """Of `HostTime`: where the longest gap with the cause has it first; -1: none."""


def answer(run: Run, view: View) -> ViewResult:
    node, host = run.tree_of(view).node(view.path), run.side(HostTime)
    idle_ns = int(node.sum("idle_ns")[0])
    if not len(host):
        raise NothingToShow(
            "the run has no record of its hosts: only traces of the PyTorch profiler show what "
            "they did while the GPUs were idle"
        )
    if not idle_ns:
        raise NothingToShow("the GPUs are never idle in the scope")
    charges = charges_of(run, node.rows)
    charges = charges.take(charges.state != HostState.COPYING)
    causes = _causes(run, node, charges)
    in_operator = np.array([bool(each.operator) for each in host.stacks], np.bool_)
    operator_ns = int(charges.ns[in_operator[host.stack[charges.piece]]].sum())
    when: list[str | None] = [None] * len(causes.labels)
    where = list(when)
    for row in np.flatnonzero(causes.longest_piece >= 0).tolist():
        piece = causes.longest_piece[row]
        begin = time_text(int(host.start_ns[piece]) - run.origin_ns)
        when[row] = f"GPU {host.gpu[piece]}, {begin}"
        where[row] = PLACE_NAMES[causes.place_ns[row].argmax()]
    states = [(METRICS[name], causes.state_ns[:, at]) for at, name in enumerate(_STATES)]
    places = [(IN_PLACE[place], causes.place_ns[:, place]) for place in HostPlace]
    return table_view(
        view,
        LabelledRows(LEVEL, causes.labels),
        [
            (METRICS["idle_ns"], Values(causes.total_ns)),
            (SHARE, Values(100.0 * causes.total_ns / idle_ns)),
            (GAPS, Values(causes.gaps)),
            (LONGEST, Values(causes.longest_ns, causes.longest_piece < 0)),
            (WHERE, worded(where)),
            (WHEN, worded(when)),
            *((metric, Values(times)) for metric, times in (*states, *places)),
        ],
        [
            (SHARE, Values(np.array([100.0]))),
            (LONGEST, Values(causes.longest_ns.max(keepdims=True))),
        ],
        opens=lambda row: _opens(run, view, int(causes.longest_piece[row])),
        sort="-idle_ns",
        shown=(
            *("idle_ns", SHARE.name, GAPS.name, LONGEST.name, WHERE.name, WHEN.name),
            *(metric.name for metric, times in (*states, *places) if times.any()),
        ),
        headline=_headline(causes, idle_ns, operator_ns),
        notes=_notes(run, node),
        charts=(_chart(causes),),
    )


def _causes(run: Run, node: Groups, charges: HostCharges) -> _Causes:
    """The causes of a node's idle time; what no record covers is the last."""
    count = len(charges.causes) + 1

    def summed(column: Int64, size: int) -> Int64:
        return sums_of(charges.ns, charges.cause * size + column, count * size).reshape(count, size)

    state = np.where(charges.state == HostState.LATE, 0, 1)
    state[run.table.launch_ns[charges.row] == NO_TIME] = _STATES.index("idle_unknown_ns")
    states, places = summed(state, len(_STATES)), summed(charges.place, len(HostPlace))
    states[-1] = [node.sum(name)[0] for name in _STATES] - states.sum(axis=0)
    places[-1, HostPlace.NOTHING] = states[-1].sum()
    total = places.sum(axis=1)
    # A gap's time with a cause: all its pieces that have it.
    order = np.lexsort((charges.row, charges.cause))
    cause, row, piece = (each[order] for each in (charges.cause, charges.row, charges.piece))
    first = run_starts(cause, row)
    gap_ns = run_sums(charges.ns[order], first) if len(order) else np.empty(0, np.int64)
    cause, row, piece = cause[first], row[first], piece[first]
    longest, at = np.zeros(count, np.int64), np.full(count, -1, np.intp)
    by_length = np.lexsort((-row, gap_ns))
    longest[cause[by_length]], at[cause[by_length]] = gap_ns[by_length], piece[by_length]
    ranked = np.flatnonzero(total[:-1])
    ranked = ranked[np.argsort(-total[ranked], kind="stable")]
    ranked = np.append(ranked, [count - 1] * bool(states[-1].any())).astype(np.intp)
    labels = [*(each.text for each in charges.causes), _NO_RECORD]
    return _Causes(
        [labels[number] for number in ranked.tolist()],
        total[ranked],
        states[ranked],
        places[ranked],
        counts_of(cause, count)[ranked],
        longest[ranked],
        at[ranked],
    )


def _opens(run: Run, view: View, piece: int) -> View:
    """The moment in the timeline of its GPU, with as much time around it; the cursor in it."""
    timeline = with_view(view, "timeline")
    if piece < 0:
        return timeline
    host = run.side(HostTime)
    begin = int(host.start_ns[piece]) - run.origin_ns
    length = int(host.duration_ns[piece])
    window = Window(max(begin - length, 0), begin + 2 * length, begin + length // 2)
    gpu = str(host.gpu[piece])
    return replace(timeline, path=(gpu,), order=LEVELS, by="stream", window=window)


def _headline(causes: _Causes, idle_ns: int, operator_ns: int) -> tuple[str, ...]:
    call_ns = int(causes.place_ns[:, HostPlace.CALL].sum())
    where = [
        f"{time_text(size)} {words}"
        for size, words in (
            (operator_ns, "while their hosts are in operators"),
            (idle_ns - operator_ns, "outside"),
        )
        if size
    ]
    calls = f"; {time_text(call_ns)} of it in runtime calls" if call_ns else ""
    return (
        f"the GPUs are idle for {time_text(idle_ns)}: {', '.join(where)}{calls}",
        f"largest cause: {causes.labels[0]}, {time_text(causes.total_ns[0])}",
    )


def _notes(run: Run, node: Groups) -> tuple[str, ...]:
    notes = [
        "a host is the thread that launches the next activity; where it does nothing, the one that "
        "launched the last",
        "launches up to "
        f"{time_text(AFTERMATH_NS)} after a call that lets the queue run dry count for that call",
    ]
    traced = {
        gpu.index
        for gpu in run.gpus
        if any(source.rank == gpu.rank and source.events.get("cpu_op", 0) for source in run.sources)
    }
    lacking = [gpu for gpu in distinct(node.table.gpu[node.rows]).tolist() if gpu not in traced]
    if lacking:
        notes.append(
            f"no operators recorded for GPU {', '.join(map(str, lacking[:8]))}"
            f"{' …' if len(lacking) > 8 else ''}: profile with ProfilerActivity.CPU"
        )
    return tuple(notes)


def _chart(causes: _Causes) -> BarChart:
    drawn = causes.place_ns[:_MAX_BARS]
    return BarChart(
        "idle time by cause, and where the host is",
        "ms",
        tuple(causes.labels[:_MAX_BARS]),
        tuple(
            Series(PLACE_NAMES[place], drawn[:, place] / 1e6)
            for place in HostPlace
            if causes.place_ns[:, place].any()
        ),
    )
