"""What `chakra_timeline_visualizer` makes of a simulator's log: a timeline in ms.

It turns ticks into time by the clock frequency that it was given; Chopper takes those times.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from chopper_core.extensions.chakra.simulation import (
    SimulatedRun,
    SystemEvents,
    graph_of_names,
)
from chopper_core.model.inputs import SIMULATED
from chopper_core.sources.registry import Recognised, Unusable
from chopper_core.tables.bytes import ByteSource
from chopper_core.tables.losses import number_of
from chopper_core.tables.text import FileHead
from chopper_core.util.errors import DataError
from chopper_core.util.progress import Progress, silent

NAME: Final = "Chakra timeline"
FILES: Final = "`.json` of `chakra_timeline_visualizer`"
EXAMPLE: Final = "chakra_timeline_visualizer --input_filename log.log --npu_frequency 1500 …"
SUFFIXES: Final = (".json",)
FORMAT: Final = "Chakra timeline"
_CLOCK: Final = f"{SIMULATED}: one clock, by the frequency that the timeline was made with"
_KEY: Final = '"meta_user"'
_NS_PER_MS: Final = 1_000_000
_LATEST_MS: Final = 1e12
_MAX_SYSTEMS: Final = 1 << 20
_MAX_BYTES: Final = 1 << 30


class _TimelineEvent(Struct):
    pid: int = -1
    ts: float = -1.0
    dur: float = -1.0
    name: str = ""


class _Timeline(Struct):
    events: list[Any] = field(default_factory=list, name="traceEvents")


def recognise(head: FileHead) -> Recognised | Unusable | None:
    is_timeline = head.is_json and head.text.lstrip("{ \n\r\t").startswith(_KEY)
    return Recognised(FORMAT) if is_timeline else None


def read(path: Path, progress: Progress = silent) -> SimulatedRun:
    """Read a timeline; raises DataError if none of its events is usable."""
    progress(f"read {path.name}", 0, 1)
    with ByteSource(path) as source:
        data = source.read_all(_MAX_BYTES)
    try:
        raw = msgspec.json.decode(data, type=_Timeline).events
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        why = source.problem or error
        raise DataError(f"{path} can't be read as a Chakra timeline: {why}.") from error
    systems: dict[int, SystemEvents] = {}
    lost = 0
    for each in raw:
        try:
            event = msgspec.convert(each, _TimelineEvent)
        except msgspec.ValidationError:
            event = _TimelineEvent()
        is_time = 0 <= event.ts < _LATEST_MS and 0 <= event.dur < _LATEST_MS
        if not is_time or not 0 <= event.pid < _MAX_SYSTEMS:
            lost += 1
            continue
        done = systems.setdefault(event.pid, SystemEvents({}, {})).done
        start = round(event.ts * _NS_PER_MS)
        done[len(done) + 1] = (start, start + round(event.dur * _NS_PER_MS), event.name, None)
    progress(f"read {path.name}", 1, 1)
    if not systems:
        raise DataError(f"{path} is a Chakra timeline without a usable event.")
    graphs = tuple(graph_of_names(path, number, systems[number]) for number in sorted(systems))
    notes = (
        (f"{number_of(lost, 'event')} without a valid system or time left out",) if lost > 0 else ()
    )
    return SimulatedRun(path, graphs, {}, notes, clock=_CLOCK, format=FORMAT)
