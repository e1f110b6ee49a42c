"""Devices and roctx ranges of a profiled process, to which its rows refer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, TypeVar

import numpy as np
from msgspec.structs import replace

from chopper_core.model.hardware import Agent
from chopper_core.sources.trace import HostCategory, HostRanges, Launches, blank
from chopper_core.tables.columns import Columns, GrowingColumns, Interner, codes_of
from chopper_core.tables.losses import ABSENT
from chopper_core.util.arrays import Int32, Int64
from chopper_core.util.grouping import distinct, first_equal, ranked, stable_order
from chopper_core.util.patterns import late

_REFERENCE: Final = late(
    r"\s{0,9}(agent|gpu|cpu)?[\s_:-]{0,9}(\d{1,9})(?:\.0{0,9})?\s*", re.IGNORECASE
)

_Id = TypeVar("_Id")
BY_GPU_TIME: Final = (
    "Launches were not traced; each dispatch has the roctx range that was open when it started on "
    "the GPU."
)


class AgentTable:
    """The GPUs of one process; GPUs that only rows refer to are added as they occur."""

    def __init__(self, agents: Iterable[Agent] = ()) -> None:
        self.agents = list(agents)

    def number(self, reference: str) -> int:
        """Return the index in `agents` of the device that a file calls `4`, `Agent 4` or `GPU-0`.

        Any other text is the name of an agent.
        """
        known = self.known(reference)
        return self.added(_described(reference)) if known < 0 else known

    def known(self, reference: str) -> int:
        """As `number`, but ABSENT for a device that isn't in `agents`, such as a CPU."""
        wanted = _described(reference)
        fields = ("type_index",) if wanted.type_index >= 0 else ("node_id", "logical_id")
        sought = max(wanted.type_index, wanted.node_id)
        for field in fields if sought >= 0 else ():
            for index, agent in enumerate(self.agents):
                if getattr(agent, field) == sought:
                    return index
        return self.agents.index(wanted) if wanted in self.agents else ABSENT

    def of_id(self, known: Mapping[Any, Agent], number: Any) -> int:
        return self.added(known.get(number) or Agent(ABSENT, product=f"agent {number}"))

    def of_copies(
        self, known: Mapping[Any, Agent], targets: Sequence[Any], sources: Sequence[Any]
    ) -> Int64:
        """The GPU that each copy is to, else that which it is from; ABSENT without any."""

        def gpu_of(number: Any) -> int:
            return self.of_id(known, number) if number in known else ABSENT

        to_gpu, from_gpu = codes_of(targets, gpu_of), codes_of(sources, gpu_of)
        return np.where(to_gpu >= 0, to_gpu, from_gpu)

    def added(self, agent: Agent) -> int:
        if agent in self.agents:
            return self.agents.index(agent)
        self.agents.append(agent)
        return len(self.agents) - 1


def _described(reference: str) -> Agent:
    """The agent that a text refers to, as far as it says."""
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        return Agent(ABSENT, product=reference.strip())
    kind, number = (match.group(1) or "").lower(), int(match.group(2))
    return Agent(ABSENT, type_index=number) if kind == "gpu" else Agent(number)


def gpus_by_id(rows: Mapping[_Id, Mapping[str, Any]]) -> dict[_Id, Agent]:
    """Return the GPUs among agent descriptions (CSV rows or JSON objects, keys in lower case).

    They are sorted by node id, and numbered from 0 if the file doesn't number them.
    """
    found = {
        number: Agent(
            node_id=_integer(row, "node_id", "absolute_index"),
            logical_id=_integer(row, "logical_node_id", "logical_index"),
            type_index=_integer(row, "logical_node_type_id", "type_index", "gpu_index"),
            name=_text(row, "name"),
            product=_text(row, "product_name") or _text(row, "model_name"),
            compute_units=max(0, _integer(row, "cu_count")),
            simds_per_cu=max(0, _integer(row, "simd_per_cu")),
            xccs=max(0, _integer(row, "num_xcc")),
            max_clock_mhz=float(max(0, _integer(row, "max_engine_clk_fcompute"))),
            pci=_pci(row),
        )
        for number, row in rows.items()
        if str(row.get("agent_type", row.get("type", ""))).strip().upper() in ("GPU", "2")
    }
    in_order = sorted(found.items(), key=lambda item: item[1].node_id)
    if any(agent.type_index >= 0 for agent in found.values()):
        return dict(in_order)
    return {
        number: replace(agent, type_index=index) for index, (number, agent) in enumerate(in_order)
    }


def same_agent(one: Agent, other: Agent) -> bool:
    """Return whether two descriptions, from two files, can be of the same device."""
    if one.node_id >= 0 and other.node_id >= 0:
        return one.node_id == other.node_id
    if one.type_index >= 0 and other.type_index >= 0:
        return one.type_index == other.type_index
    return one == other


def fuller_agent(one: Agent, other: Agent) -> Agent:
    """Return the more complete description; one with an architecture wins."""
    return max(one, other, key=lambda agent: (bool(agent.name), agent.compute_units))


def _pci(row: Mapping[str, Any]) -> str:
    """Return the PCI address; a location id is 256 x bus + 8 x device + function."""
    place = _integer(row, "location_id")
    if place <= 0:
        return ""
    domain = max(0, _integer(row, "domain"))
    return f"{domain:04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"


def _integer(row: Mapping[str, Any], *keys: str) -> int:
    for key in keys:
        try:
            return int(float(row[key]))
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
    return -1


def _text(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    return "" if value is None else str(value).strip()


_CALL: Final = {
    **dict.fromkeys(("correlation", "start_ns", "end_ns"), np.int64),
    **dict.fromkeys(("thread", "name"), np.int32),
}


class HostSide:
    """The host's roctx ranges and launch calls of one profiled process."""

    def __init__(self) -> None:
        self._ranges = GrowingColumns(
            dict.fromkeys(("thread", "start_ns", "end_ns", "name"), np.int64)
        )
        self._calls = GrowingColumns(_CALL)
        self._threads: dict[int, int] = Interner()
        """The codes of the threads of calls."""

    def add_ranges(self, ranges: Columns) -> None:
        """Append ranges; those without a duration are marks, which contain nothing."""
        is_range = (ranges["start_ns"] >= 0) & (ranges["end_ns"] > ranges["start_ns"])
        self._ranges.add({name: column[is_range] for name, column in ranges.items()})

    def add_calls(self, calls: Columns) -> None:
        """Append calls; those without the code of a name show only what they launched."""
        names = calls.get("name", np.full(len(calls["start_ns"]), ABSENT))
        known = (calls["start_ns"] >= 0) & ((calls["correlation"] > 0) | (names >= 0))
        threads, code = ranked(calls["thread"])
        thread = np.array([self._threads[one] for one in threads.tolist()], np.int32)[code]
        columns = {**calls, "thread": thread, "name": names}
        self._calls.add({name: columns[name][known] for name in _CALL})

    @cached_property
    def _all_calls(self) -> Columns:
        """The calls, once all of them are there."""
        return self._calls.joined()

    @cached_property
    def _all_ranges(self) -> Columns:
        return self._ranges.joined()

    def tables(self, process: int) -> tuple[Launches, HostRanges, list[tuple[int, int, int]]]:
        """The calls with names and valid times, the ranges, and process, thread and part of each
        thread code.

        Releases the calls.
        """
        rows = self._all_calls
        kept = (rows["name"] >= 0) & (rows["end_ns"] >= rows["start_ns"])
        for name in () if kept.all() else tuple(rows):
            rows[name] = rows[name][kept]
        duration_ns, correlation = rows.pop("end_ns"), rows.pop("correlation")
        duration_ns -= rows["start_ns"]
        correlation[correlation <= 0] = ABSENT
        known = np.array([*self._threads], np.int64)
        ranges = self._all_ranges
        threads = distinct(np.concatenate([known[rows["thread"]], ranges["thread"]]))
        calls = Launches(
            name=rows.pop("name"),
            thread=first_equal(threads, known).astype(np.int32)[rows.pop("thread")],
            start_ns=rows.pop("start_ns"),
            duration_ns=duration_ns,
            correlation=correlation,
        )
        own = replace(
            blank(HostRanges, len(ranges["thread"])),
            name=ranges["name"].astype(np.int32),
            category=np.full(len(ranges["thread"]), HostCategory.ANNOTATION, np.int8),
            thread=first_equal(threads, ranges["thread"]).astype(np.int32),
            start_ns=ranges["start_ns"],
            duration_ns=ranges["end_ns"] - ranges["start_ns"],
        )
        return calls, own, [(process, thread, 0) for thread in threads.tolist()]

    def regions(self, dispatches: Columns) -> tuple[Int32, bool]:
        """Return the name of the innermost range around each dispatch, or ABSENT.

        The time of a dispatch is that of the call with its correlation id, else its start on the
        GPU; the second value is whether any range was found by the latter.
        """
        ranges, calls = self._all_ranges, self._all_calls
        thread, time_ns = dispatches["thread"].copy(), dispatches["start_ns"].copy()
        found = np.full(len(time_ns), ABSENT, np.int32)
        if not len(ranges["thread"]):
            return found, False
        call = first_equal(calls["correlation"], dispatches["correlation"])
        was_launched = (call >= 0) & (dispatches["correlation"] > 0)
        known = np.array([*self._threads], np.int64)
        thread[was_launched] = known[calls["thread"][call[was_launched]]]
        time_ns[was_launched] = calls["start_ns"][call[was_launched]]
        for one in distinct(thread).tolist():
            asked = np.flatnonzero((thread == one) & (time_ns >= 0))
            here = (ranges["thread"] == one) | (one < 0)
            own = {name: column[here] for name, column in ranges.items()}
            found[asked] = _innermost(time_ns[asked], own)
        return found, bool(((found >= 0) & ~was_launched).any())


def _innermost(times_ns: Int64, given: Columns) -> Int32:
    """Return the name of the last started range around each time, or ABSENT."""
    found = np.full(len(times_ns), ABSENT, np.int32)
    order = np.lexsort((-given["end_ns"], given["start_ns"]))
    columns = (given[name][order].tolist() for name in ("start_ns", "end_ns", "name"))
    ranges = zip(*columns, strict=True)
    upcoming = next(ranges, None)
    open_ranges: list[tuple[int, int]] = []
    asked = stable_order(times_ns)
    for index, time_ns in zip(asked.tolist(), times_ns[asked].tolist(), strict=True):
        while upcoming is not None and upcoming[0] <= time_ns:
            open_ranges.append(upcoming[1:])
            upcoming = next(ranges, None)
        while open_ranges and open_ranges[-1][0] < time_ns:
            open_ranges.pop()
        if open_ranges:
            found[index] = open_ranges[-1][1]
    return found
