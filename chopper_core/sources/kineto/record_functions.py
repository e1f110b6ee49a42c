"""The record-function ids of a trace's operators, read only where a host trace has them too."""

from __future__ import annotations

from pathlib import Path

from chopper_core.sources.kineto.events import COMPLETE, RANGE_CATEGORIES, nanoseconds
from chopper_core.sources.kineto.text import TraceText
from chopper_core.sources.shared.bytes import ByteSource
from chopper_core.sources.shared.columns import integer
from chopper_core.sources.shared.losses import ABSENT, Losses


def record_functions(path: Path) -> dict[tuple[str, int], int]:
    """Name and start in ns on the file's clock → the id, of operators and annotations with one.

    Two that share name and start have none.
    """
    found: dict[tuple[str, int], int] = {}
    with ByteSource(path) as source:
        for events in TraceText(source, Losses()).batches():
            own = [
                event
                for event in events
                if event.ph == COMPLETE
                and event.cat in RANGE_CATEGORIES
                and event.args is not None
                and event.args.record_function != ABSENT
            ]
            starts, usable = nanoseconds([event.ts for event in own])
            for event, start, is_usable in zip(own, starts.tolist(), usable.tolist(), strict=True):
                number = integer(event.args.record_function) if event.args else None
                if is_usable and number is not None and number > 0:
                    key = (event.name, start)
                    found[key] = ABSENT if key in found else number
    return {key: number for key, number in found.items() if number != ABSENT}
