"""Metrics of GPU memory: what was allocated for activities, and the most that there was."""

from __future__ import annotations

from functools import partial

from chopper_core.metrics.metric import Reduces, Scope, Theme, Values, absent, metric
from chopper_core.model.column_names import ALLOC_BYTES, FRAGMENTATION_BYTES, PEAK_BYTES
from chopper_core.model.units import Unit

NO_EVENTS = "the trace has no events of GPU memory (profile_memory=True in the profiler)"
_memory = partial(metric, unit=Unit.BYTES, theme=Theme.MEMORY, missing=NO_EVENTS)


def _largest(scope: Scope, column: str) -> Values:
    found = scope.nodes.known_max(column)
    return absent(len(scope.nodes)) if found is None else Values(found)


@_memory(PEAK_BYTES, title="peak mem", reduces=Reduces.MAX)
def peak(scope: Scope) -> Values:
    """The most bytes that the framework had allocated on a GPU between the launch of an activity
    of the row and the launch before it.
    """
    return _largest(scope, PEAK_BYTES)


@_memory(ALLOC_BYTES, title="alloc")
def alloc(scope: Scope) -> Values:
    """Bytes allocated for the row's activities, released or not: each allocation counts for the
    next activity that its thread launches.
    """
    sums, known = scope.nodes.known(ALLOC_BYTES)
    return Values(sums, known == 0)


@_memory(FRAGMENTATION_BYTES, title="fragm.", reduces=Reduces.MAX)
def fragmentation(scope: Scope) -> Values:
    """The most bytes that the framework's allocator reserved on a GPU without having allocated
    them (reserved - allocated), at the same moments as peak_bytes.
    """
    return _largest(scope, FRAGMENTATION_BYTES)
