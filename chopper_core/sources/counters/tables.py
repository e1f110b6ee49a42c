"""Collect the dispatches and counter values of one process, or pass, while a file is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import DTypeLike

from chopper_core.model.hardware import CounterInfo, counter_infos
from chopper_core.sources.counters.references import BY_GPU_TIME, AgentTable, HostSide
from chopper_core.sources.dispatches import CLOCK_BOOTTIME, Dispatches, DispatchRun
from chopper_core.tables.columns import (
    MAX_DURATION_NS,
    Columns,
    GrowingColumn,
    GrowingColumns,
    NameInterner,
)
from chopper_core.tables.losses import ABSENT, Losses
from chopper_core.util.arrays import Float64, Int32, Int64, Mask
from chopper_core.util.grouping import ranked, run_mask, run_starts, stable_order
from chopper_core.util.patterns import late

if TYPE_CHECKING:
    from chopper_core.tables.csv_stream import CsvBatch, Declared

GRID: Final = ("grid_x", "grid_y", "grid_z")
WORKGROUP: Final = ("workgroup_x", "workgroup_y", "workgroup_z")

_CODES: Final = ("name", "gpu", "region")
_IDS: Final = ("process", "thread", "queue", "dispatch_id", "correlation")
_TIMES: Final = ("start_ns", "end_ns")
_DISPATCH_COLUMNS: Final[Mapping[str, DTypeLike]] = {
    **dict.fromkeys((*_IDS, *_TIMES), np.int64),
    **dict.fromkeys((*_CODES, *GRID, *WORKGROUP), np.int32),
}
_INT32_LIMIT: Final = 2**31
_COUNTER_LIMIT: Final = 2.0**64
_NAME_SUFFIX: Final = late(r"(?:\s*+(?:\[clone [^\]]*+\]|\(\.kd\)|\.kd))++$")
_SUFFIX_ENDS: Final = (".kd", "(.kd)", "]")
_MAX_SUFFIX: Final = 1 << 10


def clean_kernel_name(name: str) -> str:
    """Return the name without `.kd`, ` (.kd)`, ` [clone .kd]` and other clone suffixes."""
    name = name.strip()
    if not name.endswith(_SUFFIX_ENDS):
        return name
    found = _NAME_SUFFIX.search(name, max(len(name) - _MAX_SUFFIX, 0))
    return name[: found.start()] if found else name


class CounterValues:
    """The values of counters by row: a column for each, up to its last row.

    With `sums`, values of one counter and row, those of its instances, are added up; else the first
    one counts. NaN counts as missing; what no counter of 64 bits can hold is left out and counted.
    """

    def __init__(self, losses: Losses, sums: bool) -> None:
        self._losses = losses
        self.repeated = 0
        """Values that repeat another one of their counter and row, and differ."""
        self._sums = sums
        self._columns: dict[int, GrowingColumn] = {}

    def add(self, row: Int32 | Int64, counter: Int64, value: Float64) -> None:
        """Append values: the number of a row, the code of a counter, and what was counted."""
        is_possible = np.abs(value) < _COUNTER_LIMIT
        self._losses.unreadable_events += int((~is_possible & ~np.isnan(value)).sum())
        known = np.flatnonzero(is_possible)
        if not len(known):
            return
        order = known[stable_order(counter[known])]
        for these in np.split(order, run_starts(counter[order])[1:]):
            rows, values = row[these], value[these]
            column = self._columns.setdefault(int(counter[these[0]]), GrowingColumn(np.float64))
            low, end = int(rows.min()), int(rows.max()) + 1
            if end > len(column):
                column.append(np.full(end - len(column), np.nan))
            held = column.whole()
            is_new = np.isnan(held[rows])
            if self._sums:
                held[rows[is_new]] = 0.0
                held[low:end] += np.bincount(rows - low, values)
            else:
                held[rows[is_new][::-1]] = values[is_new][::-1]
                self.repeated += int((held[rows] != values).sum())

    def take(self, code: int) -> tuple[Int64, Float64]:
        """Return the rows and values of a counter, and release them."""
        column = self._columns.pop(code, None)
        values: Float64 = np.empty(0) if column is None else column.whole()
        rows = np.flatnonzero(~np.isnan(values))
        return rows, values[rows]


class DispatchTable:
    """Dispatches and counter values, added in any order, with repeated rows.

    Rows with the same (process, GPU, dispatch id) are one dispatch; each row without id is one.
    """

    def __init__(
        self,
        losses: Losses,
        agents: AgentTable | None = None,
        *,
        sums_repeated_values: bool = False,
    ) -> None:
        """Start empty; repeated values of a counter and dispatch can be those of its instances."""
        self.names = NameInterner()
        self.counter_names = NameInterner()
        self.agents = agents or AgentTable()
        self.host = HostSide()
        self.losses = losses
        self._sums = sums_repeated_values
        self._rows = GrowingColumns(_DISPATCH_COLUMNS)
        self._values = CounterValues(losses, sums_repeated_values)
        self._count = 0

    def kernel_code(self, written: str) -> int:
        """The code of a kernel's name; all spellings of a clean name have one code."""
        return self.names[clean_kernel_name(written)]

    def add_dispatches(self, columns: Columns) -> Int64:
        """Append rows and return their numbers; missing columns are ABSENT.

        A first row that repeats the last dispatch adds no row.
        """
        count = len(columns["name"])
        absent = np.full(count, ABSENT, np.int64)
        given = {name: columns.get(name, absent) for name in _DISPATCH_COLUMNS}
        for name in (*GRID, *WORKGROUP):
            size = given[name]
            given[name] = np.where((size > 0) & (size < _INT32_LIMIT), size, 0)
        again = int(self._count > 0 < count and self._is_last(given))
        self._rows.add({name: column[again:] for name, column in given.items()})
        first, self._count = self._count - again, self._count + count - again
        return np.arange(first, self._count)

    def _is_last(self, given: Columns) -> bool:
        last = self._rows.last()
        return bool(
            last["dispatch_id"] >= 0
            and all(last[name] == given[name][0] for name in ("dispatch_id", "gpu", "process"))
        )

    def add_values(self, row: Int64, counter: Int64, value: Float64) -> None:
        self._values.add(row, counter, value)

    def csv_columns(
        self,
        batch: CsvBatch,
        declared: Mapping[str, Declared],
        kernel: Sequence[str] = ("kernel_name",),
        gpu: Sequence[str] = ("agent_id",),
    ) -> Columns:
        """Return the columns of dispatches in rows of CSV; the name is ABSENT in other rows."""
        columns = batch.read(declared)
        columns["name"] = batch.column(*kernel).mapped_codes(
            lambda name: self.kernel_code(name) if name else ABSENT
        )
        columns["gpu"] = batch.column(*gpu, missing="0").mapped_codes(self.agents.number)
        return columns

    def add_csv_counters(self, batch: CsvBatch, columns: Columns) -> Mask:
        """Add the counter in each row of CSV, and return which rows are usable."""
        counters = batch.column("counter_name")
        values = batch.column("counter_value").floats()
        is_dispatch = columns["name"] >= 0
        usable = is_dispatch & (columns["dispatch_id"] >= 0) & ~np.isnan(values)
        usable &= counters.is_filled
        self.losses.unreadable_events += int((~usable & is_dispatch).sum())
        rows = np.flatnonzero(usable)
        is_new = run_mask(*(columns[name][rows] for name in ("dispatch_id", "gpu", "process")))
        first = rows[is_new]
        number = self.add_dispatches({name: column[first] for name, column in columns.items()})
        counter = counters.take(usable).mapped_codes(self.counter_names.__getitem__)
        self.add_values(number[np.cumsum(is_new) - 1], counter, values[usable])
        return usable

    def finish(
        self,
        paths: Sequence[Path],
        format_name: str,
        counter_info: Mapping[str, CounterInfo] | None = None,
    ) -> DispatchRun:
        """Return the dispatches, one row each, in each GPU's order of dispatch."""
        rows = self._rows.joined()
        first, place = _dispatch_groups(rows)
        _take(rows, first)
        _drop_bad_times(rows, self.losses)
        order = dispatch_order(rows["gpu"], rows["process"], rows["dispatch_id"], rows["start_ns"])
        _take(rows, order)
        inverse = np.empty(len(order), np.int32)
        inverse[order] = np.arange(len(order), dtype=np.int32)
        counters = self._dense(inverse[place], len(order))
        region, by_gpu_time = self.host.regions(rows)
        named = rows.pop("region")
        rows["region"] = np.where(named >= 0, named, region).astype(np.int32)
        del rows["thread"]
        grid, workgroup = _sizes(rows, GRID), _sizes(rows, WORKGROUP)
        _note_losses(self.losses, paths[0])
        if counter_info is None:
            counter_info = counter_infos(counters)
        return DispatchRun(
            paths=tuple(paths),
            format=format_name,
            names=list(self.names),
            agents=tuple(self.agents.agents),
            dispatches=Dispatches(**rows, grid=grid, workgroup=workgroup, counters=counters),
            counter_info=counter_info,
            passes=1,
            clock=CLOCK_BOOTTIME,
            join_notes=[BY_GPU_TIME] if by_gpu_time else [],
            losses=self.losses,
        )

    def _dense(self, row_of: Int32, count: int) -> dict[str, Float64]:
        """Return one column per counter: the sum, or the first, of the values of a dispatch.

        `row_of` is the final row of each added row.
        """
        columns: dict[str, Float64] = {}
        final = CounterValues(self.losses, self._sums)
        for code, name in enumerate(self.counter_names):
            given, values = self._values.take(code)
            final.add(row_of[given], np.zeros(len(given), np.int64), values)
            given, values = final.take(0)
            columns[name] = np.full(count, np.nan)
            columns[name][given] = values
        if repeated := self._values.repeated + final.repeated:
            self.losses.notes.append(
                f"{repeated:,} values repeat a counter of the same dispatch with another value; "
                "the first is used."
            )
        return columns


def _take(columns: Columns, rows: Int64) -> None:
    for name in columns:
        columns[name] = columns[name][rows]


def _note_losses(losses: Losses, path: Path) -> None:
    for count, one, many, what in (
        (losses.unreadable_events, "row", "rows", "could not be read"),
        (losses.bad_times, "dispatch", "dispatches", "without valid times"),
    ):
        if count:
            losses.notes.append(f"{count:,} {many if count > 1 else one} {what}.")
    losses.notes[:] = [f"{'/'.join(path.parts[-2:])}: {note}" for note in losses.notes]


def _drop_bad_times(rows: Columns, losses: Losses) -> None:
    start_ns, end_ns = rows["start_ns"], rows["end_ns"]
    bad = (start_ns < 0) | (end_ns < start_ns) | (end_ns <= 0)
    bad |= end_ns - start_ns >= MAX_DURATION_NS
    given = (start_ns >= 0) | (end_ns >= 0)
    losses.bad_times += int((bad & given).sum())
    start_ns[bad] = end_ns[bad] = ABSENT


def _dispatch_groups(rows: Columns) -> tuple[Int64, Int64]:
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


def _sizes(rows: Columns, names: Sequence[str]) -> Int32:
    """Return three columns as one n x 3 table; 0 where unknown or too large."""
    return np.stack([rows.pop(name) for name in names], axis=1)
