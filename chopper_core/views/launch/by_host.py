"""Idle time by what the launching thread did during that time: causes, the largest first."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from chopper_core.analyses.base import Base, base_of
from chopper_core.analyses.host_causes import (
    AFTERMATH_NS,
    PLACE_NAMES,
    HostPlace,
)
from chopper_core.analyses.idle_causes import idle_causes
from chopper_core.model.charts import BarChart, Series
from chopper_core.model.groups import Groups
from chopper_core.model.phrases import facts
from chopper_core.model.run import Run
from chopper_core.model.side_table import HostTime
from chopper_core.model.table import LEVELS
from chopper_core.model.units import time_text
from chopper_core.model.view import View, Window, with_view
from chopper_core.util.grouping import distinct
from chopper_core.views.shared.table_view import columns_of, table_view
from chopper_core.views.spec import ViewResult

_MAX_BARS: Final = 200
_ALWAYS: Final = (
    *("idle_ns", "host_idle_pct", "host_gaps", "host_longest_ns", "host_where", "host_when"),
)
"""Columns that are shown also where all of them are 0."""


def answer(run: Run, view: View) -> ViewResult:
    rows, base = idle_causes(run, view), base_of(run, view)
    node, places = run.tree_of(view).node(view.path), rows.places
    idle_ns, labels = int(rows.idle_ns.sum()), rows.labels
    bars = [
        Series(PLACE_NAMES[place], base.each(places[:_MAX_BARS, place]) / 1e6)
        for place in HostPlace
        if places[:, place].any()
    ]
    title = "idle time by cause, and where the host is"
    return table_view(
        view,
        rows,
        columns_of(rows.figures),
        columns_of(rows.whole),
        opens=lambda row: _timeline_at(run, view, int(rows.piece[row])),
        sort="-idle_ns",
        shown=[
            name for name, values in rows.figures.items() if name in _ALWAYS or values.numbers.any()
        ],
        headline=(
            _host_sentence(base, idle_ns, rows.operator_ns, int(places[:, HostPlace.CALL].sum())),
            f"{time_text(base.each(rows.idle_ns[0]))} in {labels[0]}, the largest cause",
        ),
        notes=_host_notes(run, node),
        charts=(BarChart(title, "ms", tuple(labels[:_MAX_BARS]), tuple(bars)),),
    )


def _timeline_at(run: Run, view: View, piece: int) -> View:
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


def _host_sentence(base: Base, idle_ns: int, operator_ns: int, call_ns: int) -> str:
    parts = {
        f"idle{base.words}": idle_ns,
        "with the hosts in operators": operator_ns,
        "outside": idle_ns - operator_ns,
        "in runtime calls": call_ns,
    }
    return facts(*(f"{time_text(base.each(ns))} {words}" for words, ns in parts.items() if ns))


def _host_notes(run: Run, node: Groups) -> tuple[str, ...]:
    notes = (
        "a host is the thread that launches the next activity; where it does nothing, the one that "
        "launched the last",
        f"launches up to {time_text(AFTERMATH_NS)} after a call that lets the queue run dry count "
        "for that call",
    )
    traced = {source.rank for source in run.sources if source.events.get("cpu_op", 0)}
    there = set(distinct(node.table.gpu[node.rows]).tolist())
    lacking = [gpu.index for gpu in run.gpus if gpu.index in there and gpu.rank not in traced]
    if not lacking:
        return notes
    listed = f"{', '.join(map(str, lacking[:8]))}{' …' if len(lacking) > 8 else ''}"
    return (
        *notes,
        f"no operators recorded for GPU {listed}: profile with ProfilerActivity.CPU",
    )
