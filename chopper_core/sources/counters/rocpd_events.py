"""Which events of a rocpd database matter: those of dispatches, of their launches, and of roctx.

A database has millions of others, so that only these are kept, as numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from chopper_core.sources.counters.rocpd_relations import DISPATCHES, Relations
from chopper_core.sources.shared.columns import int_column
from chopper_core.sources.trace import ABSENT, Losses
from chopper_core.util.arrays import Int64, Mask

_NOTHING: Final = np.empty(0, np.int64)


def integers(values: Sequence[Any]) -> Int64:
    """Return the values as int64; ABSENT for what is missing or no integer."""
    try:
        return np.fromiter(values, np.int64, len(values))
    except (TypeError, ValueError, OverflowError):
        return int_column([ABSENT if value is None else value for value in values])


class Stacks:
    """The stack id, or else the correlation id, of each event that matters of a process."""

    def __init__(self) -> None:
        self._parts: list[tuple[Int64, Int64]] = []
        self._sorted: tuple[Int64, Int64] | None = None

    def add(self, events: Int64, stacks: Int64) -> None:
        """Append events."""
        if len(events):
            self._parts.append((events, stacks))
            self._sorted = None

    def of(self, events: Int64) -> Int64:
        """Return the stack ids of events, or ABSENT."""
        numbers, stacks = self._lookup()
        if not len(numbers):
            return np.full(len(events), ABSENT, np.int64)
        place = np.minimum(np.searchsorted(numbers, events), len(numbers) - 1)
        return np.where((numbers[place] == events) & (events >= 0), stacks[place], ABSENT)

    def distinct(self) -> Int64:
        """Return all stack ids, in order, each once."""
        stacks = np.unique(self._lookup()[1])
        return stacks[stacks > 0]

    def _lookup(self) -> tuple[Int64, Int64]:
        if self._sorted is None:
            events = np.concatenate([_NOTHING, *(events for events, _ in self._parts)])
            stacks = np.concatenate([_NOTHING, *(stacks for _, stacks in self._parts)])
            order = np.argsort(events, kind="stable")
            self._sorted = events[order], stacks[order]
            self._parts = [self._sorted]
        return self._sorted


class Events:
    """The events that matter, by guid."""

    def __init__(
        self, relations: Relations, is_marker: Callable[[str, Any], bool], losses: Losses
    ) -> None:
        """Look for them; `is_marker` says of a guid and a category whether it is of roctx."""
        self.stacks: dict[str, Stacks] = {}
        self.marks: dict[str, set[int]] = {}
        """The events of roctx."""
        self._is_marker = is_marker
        dispatched = _dispatched(relations)
        columns = ("id", "category_id", "stack_id", "correlation_id")
        for guid, (ids, categories, stacks, correlations) in relations.by_guid(
            "rocpd_event", columns, losses
        ):
            events = integers(ids)
            marks = self._marks(guid, categories)
            self.marks.setdefault(guid, set()).update(events[marks].tolist())
            matters = marks | _is_in(events, dispatched.get(guid, _NOTHING))
            self._add(guid, events, _first(stacks, correlations), matters)
        if not any(self.marks.values()):
            return  # Launches tell which range of roctx a dispatch is of.
        wanted = {guid: stacks.distinct() for guid, stacks in self.stacks.items()}
        # What was lost is said already. Launches share the stack ids of their dispatches.
        for guid, (ids, _, stacks, correlations) in relations.by_guid(
            "rocpd_event", columns, Losses()
        ):
            events, numbers = integers(ids), _first(stacks, correlations)
            known = _is_in(events, dispatched.get(guid, _NOTHING))
            self._add(guid, events, numbers, _is_in(numbers, wanted.get(guid, _NOTHING)) & ~known)

    def _marks(self, guid: str, categories: Sequence[Any]) -> Mask:
        is_marker = {one: self._is_marker(guid, one) for one in set(categories)}
        return np.array([is_marker[one] for one in categories], np.bool_)

    def _add(self, guid: str, events: Int64, stacks: Int64, which: Mask) -> None:
        self.stacks.setdefault(guid, Stacks()).add(events[which], stacks[which])


def _dispatched(relations: Relations) -> Mapping[str, Int64]:
    """Return the events of dispatches of each guid, in order."""
    found: dict[str, list[Int64]] = {}
    for guid, (events,) in relations.by_guid(DISPATCHES, ("event_id",), Losses()):
        found.setdefault(guid, []).append(integers(events))
    return {guid: np.unique(np.concatenate(parts)) for guid, parts in found.items()}


def _first(stacks: Sequence[Any], correlations: Sequence[Any]) -> Int64:
    found, other = integers(stacks), integers(correlations)
    return np.where(found > 0, found, other)


def _is_in(values: Int64, ordered: Int64) -> Mask:
    if not len(ordered):
        return np.zeros(len(values), np.bool_)
    place = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    found: Mask = (ordered[place] == values) & (values >= 0)
    return found
