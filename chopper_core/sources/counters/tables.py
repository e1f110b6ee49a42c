"""Collect the dispatches and counter values of one process, or pass, while a file is read."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec.structs import replace
from numpy.typing import DTypeLike

from chopper_core.model.hardware import Agent, CounterInfo, counter_infos
from chopper_core.sources.counters.references import BY_GPU_TIME, AgentTable, HostSide
from chopper_core.sources.dispatches import Dispatches, DispatchRun
from chopper_core.sources.kernel_names import clean_kernel_name
from chopper_core.sources.trace import Activities, ActivityCategory, blank
from chopper_core.tables.columns import (
    MAX_BYTES,
    Columns,
    GrowingColumn,
    GrowingColumns,
    NameInterner,
    are_timed,
    bounded,
)
from chopper_core.tables.csv_stream import MAX_COLUMNS, refuse_width
from chopper_core.tables.losses import ABSENT, Losses
from chopper_core.tables.unread import not_used
from chopper_core.util.arrays import AnyArray, Float64, Int32, Int64, Mask
from chopper_core.util.errors import DataError
from chopper_core.util.grouping import ranked, run_mask, run_starts, stable_order
from chopper_core.util.memory import give_back
from chopper_core.util.patterns import late

if TYPE_CHECKING:
    from chopper_core.tables.column import TableRows

_GRID: Final = ("grid_x", "grid_y", "grid_z")
_WORKGROUP: Final = ("workgroup_x", "workgroup_y", "workgroup_z")
_RESOURCES: Final = ("vgprs", "accumulators", "lds")
_IDENTITY: Final = ("process", "gpu", "dispatch_id")
_NUMBERS: Final = ("process", "thread", "queue", "dispatch_id", "correlation", "start_ns", "end_ns")
_DISPATCH_COLUMNS: Final[Mapping[str, DTypeLike]] = {
    **dict.fromkeys(_NUMBERS, np.int64),
    **dict.fromkeys(("name", "gpu", "region", *_RESOURCES, *_GRID, *_WORKGROUP), np.int32),
}
_COPY: Final = late(r"(?:MEMORY_COPY_)?(host|device)_?to_?(host|device)", re.IGNORECASE)
_CALL_OF_HIP: Final = late(r"_{0,2}hip[A-Z]")
"""How names of HIP's calls begin."""
_COPY_COLUMNS: Final = ("name", "gpu", "queue", "start_ns", "end_ns", "bytes", "correlation")
STARTS: Final = ("start_timestamp", "beginns")
KERNEL: Final = ("kernel_name", "kernelname")
_GPU: Final = ("gpu_id", "node_id", "agent_id")
CSV_COLUMNS: Final[Mapping[str, Sequence[str]]] = {
    "process": ("process_id", "pid"),
    "thread": ("thread_id", "tid"),
    "queue": ("queue_id",),
    "dispatch_id": ("dispatch_id", "index"),
    "correlation": ("correlation_id",),
    "start_ns": STARTS,
    "end_ns": ("end_timestamp", "endns"),
    "grid_x": ("grid_size_x", "grid_size", "grd"),
    "grid_y": ("grid_size_y",),
    "grid_z": ("grid_size_z",),
    "workgroup_x": ("workgroup_size_x", "workgroup_size", "wgr"),
    "workgroup_y": ("workgroup_size_y",),
    "workgroup_z": ("workgroup_size_z",),
    "vgprs": ("vgpr_count", "arch_vgpr_count", "arch_vgpr", "vgpr"),
    "accumulators": ("accum_vgpr_count", "accum_vgpr"),
    "lds": ("lds_block_size", "group_segment_size", "lds_per_workgroup", "lds"),
}
"""What describes a dispatch in CSV of any rocprof."""
_USED: Final = frozenset((
    *(name for names in CSV_COLUMNS.values() for name in names),
    *KERNEL,
    *_GPU,
    *("counter_name", "counter_value", "guid"),
))  # fmt: skip
PASS_NUMBER: Final = late(r"(?:_\d+|\.\d+)$")
"""After a column of rocprof-compute that each pass repeats."""
_INT32_LIMIT: Final = 2**31
_COUNTER_LIMIT: Final = 2.0**64


_SPARSE_FROM_CELLS: Final = 1 << 24
_ROWS_AT_ONCE: Final = 1 << 16
_MOST_CELLS_PER_ITEM: Final = 64
"""Profilers count the same few counters in dispatches that follow each other."""


def is_sparse(cells: int, rows: int, values: int) -> bool:
    """Whether a table would take much more memory than the rows and values that it is made of."""
    return cells > max(_SPARSE_FROM_CELLS, _MOST_CELLS_PER_ITEM * (rows + values))


class SpannedColumn:
    """The values of a counter from its first row to its last."""

    def __init__(self, first: int) -> None:
        self.first = first
        self._values = GrowingColumn(np.float64)

    def __len__(self) -> int:
        return len(self._values)

    def covering(self, first: int, end: int) -> Float64:
        """The values from `self.first` on, of at least these rows; NaN where there is none."""
        if first < self.first:
            known, self._values = self._values.whole(), GrowingColumn(np.float64)
            self._values.append(np.full(self.first - first, np.nan))
            self._values.append(known)
            self.first = first
        if (more := end - self.first - len(self)) > 0:
            self._values.append(np.full(more, np.nan))
        return self._values.whole()


class CounterValues:
    """The values of counters by row: a column for each, from its first row to its last.

    Where that takes much more memory than the values, and for more counters than any profiler
    writes, no more of them are kept (`is_complete`).

    With `sums`, values of one counter and row, those of its instances, are added up; else the first
    one counts. NaN counts as missing; what no counter of 64 bits can hold is left out and counted.
    """

    def __init__(self, losses: Losses, sums: bool) -> None:
        self._losses = losses
        self.repeated = 0
        """Values that repeat another one of their counter and row, and differ."""
        self._sums = sums
        self._columns: dict[int, SpannedColumn] = {}
        self._cells = self._rows = self.count = 0
        self.is_complete = True

    def add(self, row: Int32 | Int64, counter: Int64, value: Float64) -> None:
        """Append values: the number of a row, the code of a counter, and what was counted."""
        is_possible = np.abs(value) < _COUNTER_LIMIT
        self._losses.unreadable_events += int((~is_possible & ~np.isnan(value)).sum())
        known = np.flatnonzero(is_possible)
        if not len(known) or not self.is_complete:
            return
        self.count += len(known)
        order = known[stable_order(counter[known])]
        for these in np.split(order, run_starts(counter[order])[1:]):
            rows, values = row[these], value[these]
            low, end = int(rows.min()), int(rows.max()) + 1
            column = self._columns.setdefault(int(counter[these[0]]), SpannedColumn(low))
            before = len(column)
            held = column.covering(low, end)
            self._rows = max(self._rows, end)
            self._cells += len(column) - before
            rows, low, end = rows - column.first, low - column.first, end - column.first
            is_new = np.isnan(held[rows])
            if self._sums:
                held[rows[is_new]] = 0.0
                held[low:end] += np.bincount(rows - low, values)
            else:
                held[rows[is_new][::-1]] = values[is_new][::-1]
                self.repeated += int((held[rows] != values).sum())
            is_bounded = not is_sparse(self._cells, self._rows, self.count)
            if len(self._columns) > MAX_COLUMNS or not is_bounded:
                self.is_complete = False
                self._columns.clear()
                break

    def take(self, code: int) -> tuple[Int64, Float64]:
        """Return the rows and values of a counter, and release them."""
        column = self._columns.pop(code, None)
        if column is None:
            return np.empty(0, np.int64), np.empty(0)
        values = column.covering(column.first, column.first)
        rows = np.flatnonzero(~np.isnan(values))
        return rows + column.first, values[rows]


class DispatchTable:
    """Dispatches and counter values, added in any order, with repeated rows.

    Rows with the same (process, GPU, dispatch id) are one dispatch; each row without id is one.
    """

    def __init__(
        self, losses: Losses, agents: Iterable[Agent] = (), *, sums_instances: bool = False
    ) -> None:
        """Start empty; repeated values of a counter and dispatch can be those of its instances."""
        self.names = NameInterner()
        self.counter_names = NameInterner()
        self.agents = AgentTable(agents)
        self.host = HostSide()
        self.losses = losses
        self.unused: dict[str, None] = {}
        """Columns of CSV, or fields of JSON, that nothing is read from."""
        self._sums = sums_instances
        self._rows = GrowingColumns(_DISPATCH_COLUMNS)
        self._copies = GrowingColumns(dict.fromkeys(_COPY_COLUMNS, np.int64))
        self._untimed_copies = 0
        self._values = CounterValues(losses, sums_instances)

    def __len__(self) -> int:
        return len(self._rows)

    def kernel_code(self, written: str) -> int:
        """The code of a kernel's name; all spellings of a clean name have one code."""
        return self.names[clean_kernel_name(written)]

    def add_dispatches(self, columns: Columns) -> Int64:
        """Append rows and return their numbers; missing columns are ABSENT.

        A first row that repeats the last dispatch adds no row.
        """
        count, before = len(columns["name"]), len(self)
        absent = np.full(count, ABSENT, np.int64)
        given = {name: columns.get(name, absent) for name in _DISPATCH_COLUMNS}
        for name in (*_GRID, *_WORKGROUP):
            size = given[name]
            given[name] = np.where((size > 0) & (size < _INT32_LIMIT), size, 0)
        for name in _RESOURCES:
            given[name] = bounded(given[name], _INT32_LIMIT)
        again = 0
        if before and count and given["dispatch_id"][0] >= 0:
            again = int(all(self._rows.column(name)[-1] == given[name][0] for name in _IDENTITY))
        self._rows.add({name: column[again:] for name, column in given.items()})
        return np.arange(before - again, len(self))

    def add_values(self, row: Int64, counter: Int64, value: Float64) -> None:
        self._values.add(row, counter, value)

    def call_name(self, text: str) -> int:
        """The code of the name of a call of HIP; ABSENT for any other call or range."""
        return self.names[text] if _CALL_OF_HIP.match(text) else ABSENT

    def add_copies(self, columns: Columns) -> None:
        """Append copies of memory; those without a GPU or valid times are counted."""
        timed = are_timed(columns["start_ns"], columns["end_ns"]) & (columns["end_ns"] > 0)
        self._untimed_copies += int((~timed).sum())
        kept = timed & (columns["gpu"] >= 0)
        self._copies.add({name: columns[name][kept] for name in _COPY_COLUMNS})

    def copies(self) -> Activities:
        rows = self._copies.joined()
        count = len(rows["name"])
        return replace(
            blank(Activities, count),
            name=rows["name"].astype(np.int32),
            category=np.full(count, ActivityCategory.MEMCPY, np.int8),
            device=rows["gpu"].astype(np.int32),
            stream=rows["queue"],
            start_ns=rows["start_ns"],
            duration_ns=rows["end_ns"] - rows["start_ns"],
            correlation=np.where(rows["correlation"] > 0, rows["correlation"], ABSENT),
            bytes=bounded(rows["bytes"], MAX_BYTES),
            launch_shape=np.zeros(count, np.int32),
            rank=np.zeros(count, np.int32),
        )

    def gpu_of(self, rows: Int64) -> Int64:
        """The number of the agent of each row that was added."""
        return self._rows.column("gpu")[rows].astype(np.int64)

    def explain(self, name: str, of: Callable[[AnyArray], AnyArray]) -> None:
        """Replace the numbers in a column, whose meaning comes later in a file."""
        column = self._rows.column(name)
        column[:] = of(column)

    def csv_columns(self, batch: TableRows) -> Columns:
        """Return the columns of dispatches in rows of CSV; the name is ABSENT in other rows."""
        columns = batch.read(CSV_COLUMNS)
        columns["name"] = batch.column(*KERNEL).mapped_codes(
            lambda name: self.kernel_code(name) if name else ABSENT
        )
        columns["gpu"] = batch.column(*_GPU, missing="0").mapped_codes(self.agents.number)
        return columns

    def add_csv(self, batch: TableRows, columns: Columns, wide: Mapping[str, int]) -> Mask:
        """Add rows of CSV, with one counter each or one in each `wide` column.

        Returns which rows are usable.
        """
        used = frozenset(wide.values())
        rest = (name for name, at in batch.header.items() if at not in used)
        bases = (PASS_NUMBER.sub("", name) for name in rest)
        self.unused |= {name: None for name in bases if name and name not in _USED}
        usable = columns["name"] >= 0
        counters = batch.column("counter_name")
        values = batch.column("counter_value").floats()
        is_long = batch.has("counter_name")
        if is_long:
            usable &= (columns["dispatch_id"] >= 0) & ~np.isnan(values) & counters.is_filled
        self.losses.unreadable_events += int((~usable).sum())
        rows = np.flatnonzero(usable)
        is_new = run_mask(*(columns[name][rows] for name in _IDENTITY)) | (not is_long)
        first = rows[is_new]
        number = self.add_dispatches({name: column[first] for name, column in columns.items()})
        if is_long:
            codes = counters.take(usable).mapped_codes(self.counter_names.__getitem__)
            self.add_values(number[np.cumsum(is_new) - 1], codes, values[usable])
        for name, index in wide.items():
            code = np.full(len(number), self.counter_names[name])
            self.add_values(number, code, batch.column(index).floats()[usable])
        return usable

    def finish(
        self,
        path: Path,
        format_name: str,
        infos: Mapping[str, CounterInfo] | None = None,
        counters: Sequence[str] | None = None,
    ) -> DispatchRun:
        """Return the dispatches, one row each, in each GPU's order of dispatch.

        `counters` are the names of counters that were added by numbers.
        """
        give_back()
        named = counters or list(self.counter_names)
        refuse_width(path, len(named), "counters")
        rows = self._rows.joined()
        first, place = _dispatch_groups(rows)
        for name in rows:
            rows[name] = rows[name][first]
        _drop_bad_times(rows, self.losses)
        order = dispatch_order(rows["gpu"], rows["process"], rows["dispatch_id"], rows["start_ns"])
        for name in rows:
            rows[name] = rows[name][order]
        row_of = np.empty(len(order), np.int32)
        row_of[order] = np.arange(len(order), dtype=np.int32)
        row_of, count = row_of[place], len(order)
        del first, place, order
        give_back()
        columns = self._dense(path, named, row_of, count)
        region, by_gpu_time = self.host.regions(rows)
        rows["region"] = np.where(rows["region"] >= 0, rows["region"], region).astype(np.int32)
        rows["part"] = np.zeros(count, np.int32)
        process = int(rows["process"][0]) if len(rows["process"]) else ABSENT
        calls, ranges, threads = self.host.tables(process)
        del rows["thread"]
        vgprs, more = rows.pop("vgprs"), rows.pop("accumulators")
        rows["registers"] = np.where(vgprs < 0, ABSENT, vgprs + np.maximum(more, 0))
        rows["registers"] = rows["registers"].astype(np.int32)
        rows["grid"] = np.stack([rows.pop(axis) for axis in _GRID], axis=1)
        rows["workgroup"] = np.stack([rows.pop(axis) for axis in _WORKGROUP], axis=1)
        losses, name = self.losses, "/".join(path.parts[-2:])
        losses.note(losses.unreadable_events, "row", "could not be read")
        losses.note(losses.bad_times, "dispatch", "without valid times")
        losses.note(self._untimed_copies, "copy", "without valid times left out")
        losses.bad_times += self._untimed_copies
        losses.notes[:] = [f"{name}: {note}" for note in losses.notes]
        kind = "fields" if any("." in name for name in self.unused) else "columns"
        described = {name: info for name, info in (infos or {}).items() if name in columns}
        return DispatchRun(
            paths=(path,),
            format=format_name,
            names=list(self.names),
            agents=tuple(self.agents.agents),
            dispatches=Dispatches(**rows, counters=columns),
            counter_info={**counter_infos(columns), **described},
            passes=1,
            join_notes=[*([BY_GPU_TIME] if by_gpu_time else []), *not_used(self.unused, kind)],
            losses=self.losses,
            calls=calls,
            ranges=ranges,
            threads=threads,
            copies=self.copies(),
        )

    def _dense(
        self, path: Path, names: Sequence[str], row_of: Int32, count: int
    ) -> dict[str, Float64]:
        """Return one column per counter: the sum, or the first, of the values of a dispatch.

        `row_of` is the final row of each added row.
        """
        is_wide = is_sparse(count * len(names), count, self._values.count)
        if is_wide or not self._values.is_complete:
            raise DataError(
                f"{path} has {len(names):,} counters, but a value for few of them in each of its "
                f"{count:,} dispatches, as no profiler writes; give a file with fewer counters."
            )
        columns: dict[str, Float64] = {}
        final, numbers = CounterValues(self.losses, self._sums), defaultdict[str, list[int]](list)
        for number, name in enumerate(names):
            numbers[name].append(number)
        for name, own in numbers.items():
            for number in own:
                given, values = self._values.take(number)
                for begin in range(0, len(given), _ROWS_AT_ONCE):
                    part = slice(begin, begin + _ROWS_AT_ONCE)
                    rows = row_of[given[part]]
                    final.add(rows, np.zeros(len(rows), np.int64), values[part])
            given, values = final.take(0)
            columns[name] = np.full(count, np.nan)
            columns[name][given] = values
        repeats = "of a counter and dispatch that have another one: the first is used"
        self.losses.note(self._values.repeated + final.repeated, "value", repeats)
        return columns


def copy_name(text: str) -> str:
    """The name of a copy as PyTorch's profiler has it: `Memcpy HtoD (Host -> Device)`."""
    match = _COPY.fullmatch(text)
    source, target = (each.title() for each in match.groups()) if match else ("", "")
    return f"Memcpy {source[0]}to{target[0]} ({source} -> {target})" if match else text


def _drop_bad_times(rows: Columns, losses: Losses) -> None:
    start_ns, end_ns = rows["start_ns"], rows["end_ns"]
    bad = ~are_timed(start_ns, end_ns) | (end_ns <= 0)
    losses.bad_times += int((bad & ((start_ns >= 0) | (end_ns >= 0))).sum())
    start_ns[bad] = end_ns[bad] = ABSENT


def _dispatch_groups(rows: Columns) -> tuple[Int64, Int64]:
    """Return the first row of each dispatch, and the number of the dispatch of each row."""
    identity = rows["dispatch_id"].copy()
    has_none = identity < 0
    identity[has_none] = -2 - np.arange(int(has_none.sum()))
    order = np.lexsort((identity, rows["gpu"], rows["process"]))
    is_new = run_mask(rows["process"][order], rows["gpu"][order], identity[order])
    group = np.empty(len(order), np.int64)
    group[order] = np.cumsum(is_new) - 1
    return order[is_new], group


def dispatch_order(
    gpu: Int32 | Int64, process: Int64, dispatch_id: Int64, start_ns: Int64
) -> Int64:
    """Return each GPU's order of dispatch: by id within a process, processes by first start.

    Rows without an id are sorted by their start. lexsort is stable, so rows without ids and times
    keep their order.
    """
    identity = np.where(dispatch_id >= 0, dispatch_id, start_ns)
    processes, code = ranked(process)
    started_ns = np.full(len(processes), np.iinfo(np.int64).max)
    known = start_ns >= 0
    np.minimum.at(started_ns, code[known], start_ns[known])
    rank = np.empty(len(processes), np.int64)
    rank[stable_order(started_ns)] = np.arange(len(processes))
    return np.lexsort((identity, rank[code], gpu))
