"""rocprofv3 CSV: counters, kernels, copies, agents and API calls of one process, ROCm 6.2 to 7.

Columns are found by name in any case and order; files written by `rocpd convert` have a `Guid`
first, and the rows of several processes, whose ids are the same. Counter values are sums over all
instances of a counter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np

from chopper_core.model.hardware import Agent
from chopper_core.sources.counters.joining import join_same_process
from chopper_core.sources.counters.references import gpus_by_id
from chopper_core.sources.counters.tables import CSV_COLUMNS, DispatchTable, copy_name
from chopper_core.sources.dispatches import DispatchRun
from chopper_core.sources.registry import Recognised, Unusable
from chopper_core.tables.column import TableRows
from chopper_core.tables.columns import NameInterner
from chopper_core.tables.csv_stream import CsvFile, header_of, normalised
from chopper_core.tables.losses import Losses
from chopper_core.tables.text import FileHead
from chopper_core.util.errors import DataError
from chopper_core.util.grouping import distinct
from chopper_core.util.progress import Progress, silent

NAME: Final = "rocprofv3 (CSV)"
FILES: Final = (
    "`*_counter_collection.csv`, `*_kernel_trace.csv`, `*_memory_copy_trace.csv`, "
    "`*_agent_info.csv`, API traces"
)
EXAMPLE: Final = "rocprofv3 --pmc SQ_WAVES --kernel-trace -f csv -- python train.py"
SUFFIXES: Final = ()

FORMAT: Final = "rocprofv3 CSV"
COUNTERS: Final = "counters"
KERNEL_TRACE: Final = "kernel trace"
AGENTS: Final = "agents"
API_TRACE: Final = "API trace"
COPIES: Final = "copies"

_CALL_COLUMNS: Final = {
    name: CSV_COLUMNS[name] for name in ("thread", "start_ns", "end_ns", "correlation")
}
_USED_OF_CALLS: Final = frozenset(
    (*chain.from_iterable(_CALL_COLUMNS.values()), "domain", "kind", "function", "operation",
     "name", "process_id", "guid")
)  # fmt: skip
_COPY_COLUMNS: Final = {
    **{name: CSV_COLUMNS[name] for name in ("start_ns", "end_ns", "correlation", "queue")},
    "bytes": ("size", "bytes"),
}
_ENDS: Final = ("destination_agent_id", "source_agent_id")
_USED_OF_COPIES: Final = frozenset(
    (*chain.from_iterable(_COPY_COLUMNS.values()), *_ENDS, "kind", "direction", "guid")
)
_MOST_PROCESSES: Final = 1_000
_MARKER: Final = "MARKER"
_LAUNCHES: Final = "HIP"
_NOT_USED: Final = (
    (("calls", "totaldurationns"), "has totals; Chopper adds up dispatches itself"),
    (("kind", "operation"), "has operations without counters"),
    (("sample_timestamp", "exec_mask"), "has PC samples, which are not supported"),
)


def recognise(head: FileHead) -> Recognised | Unusable | None:
    columns = header_of(head)
    has = columns.issuperset
    if has(("node_id", "agent_type")):
        return Recognised(FORMAT, AGENTS)
    if has(("kernel_name", "counter_name", "counter_value")):
        if columns & {"dispatch_id", "correlation_id"}:
            return Recognised(FORMAT, COUNTERS)
        return Unusable("has counters, but no ids of dispatches")
    is_own = "domain" not in columns and columns & {"kind", "agent_id"}
    if is_own and has(("kernel_name", "start_timestamp", "end_timestamp")):
        return Recognised(FORMAT, KERNEL_TRACE)
    if has(("domain", "function", "correlation_id", "start_timestamp", "end_timestamp")):
        return Recognised(FORMAT, API_TRACE)
    if has(("direction", *_ENDS, "start_timestamp", "end_timestamp")):
        return Recognised(FORMAT, COPIES)
    return next((Unusable(reason) for names, reason in _NOT_USED if has(names)), None)


def read(path: Path, progress: Progress = silent) -> list[DispatchRun]:
    """Read counters, or a kernel trace, without the other files of the process.

    Raises DataError as `read_processes` does.
    """
    return read_processes(path, progress=progress)


def read_processes(
    counters: Path | None = None,
    kernel_trace: Path | None = None,
    agent_info: Path | None = None,
    api_traces: Sequence[Path] = (),
    copies: Sequence[Path] = (),
    progress: Progress = silent,
) -> list[DispatchRun]:
    """Read the dispatches of one process, or of each that converted files have, with counters.

    Counters and kernel trace are joined by dispatch id, else by occurrence if they come from two
    executions. Raises DataError if neither file has a dispatch.
    """
    agents = [] if agent_info is None else read_agents(agent_info)
    found: dict[str, list[DispatchRun]] = {}
    paths = [path for path in (kernel_trace, counters) if path is not None]
    for path in paths:
        losses = Losses()
        tables: dict[str, DispatchTable] = {}
        for batch in CsvFile(path, losses).batches(progress):
            for guid, rows in _by_process(batch):
                if guid not in tables:
                    if len(tables) == _MOST_PROCESSES:
                        raise DataError(f"{path} has rows of over {len(tables):,} processes.")
                    # What is lost of the file is noted once.
                    tables[guid] = DispatchTable(Losses() if tables else losses, agents)
                columns = tables[guid].csv_columns(rows)
                if rows.has("counter_name") and not rows.has("dispatch_id"):
                    columns["dispatch_id"] = columns["correlation"]
                tables[guid].add_csv(rows, columns, {})
        tables = tables or {"": DispatchTable(losses, agents)}
        if not found:
            for api_trace in host_side(api_traces):
                _read_host_side(api_trace, tables)
            for each in copies:
                _read_copies(each, tables)
        for guid, table in tables.items():
            found.setdefault(guid, []).append(table.finish(path, FORMAT))
    if not any(len(run.dispatches) for runs in found.values() for run in runs):
        names = " and ".join(map(str, paths))
        raise DataError(f"{names} has no dispatches; was the program profiled to its end?")
    return [
        runs[0] if len(runs) == 1 else join_same_process(runs[0], runs[1])
        for runs in found.values()
    ]


def _by_process(batch: TableRows) -> Iterator[tuple[str, TableRows]]:
    """The rows of each process; converted files say of which each is."""
    if not batch.has("guid"):
        yield "", batch
        return
    texts, codes = batch.column("guid").coded
    for code in distinct(codes).tolist():
        yield texts[code], batch.take(codes == code)


def read_agents(path: Path) -> list[Agent]:
    """Return the GPUs of an `agent_info` file.

    Raises DataError if the file can't be read.
    """
    rows: list[dict[str, str]] = []
    file = CsvFile(path, Losses())
    for batch in file.batches():
        columns = [batch.column(index).texts for index in file.header.values()]
        rows += [dict(zip(file.header, row, strict=True)) for row in zip(*columns, strict=True)]
    # Converted files have them once for each process.
    once = {tuple((key, row[key]) for key in row if key != "guid"): row for row in rows}
    return list(gpus_by_id(dict(enumerate(once.values()))).values())


def host_side(api_traces: Sequence[Path]) -> list[Path]:
    """Those with calls of HIP or ranges of roctx."""
    return [path for path in api_traces if _domain(path).startswith((_MARKER, _LAUNCHES))]


def _domain(path: Path) -> str:
    rows = FileHead(path).rows
    names = [normalised(name) for name in rows[0]] if rows else []
    place = next((names.index(name) for name in ("domain", "kind") if name in names), len(names))
    return rows[1][place].upper() if len(rows) > 1 and place < len(rows[1]) else ""


def _read_host_side(path: Path, tables: Mapping[str, DispatchTable]) -> None:
    losses = Losses()
    first = next(iter(tables.values()))
    for batch in CsvFile(path, losses).batches():
        first.unused |= dict.fromkeys(name for name in batch.header if name not in _USED_OF_CALLS)
        for guid, rows in _by_process(batch):
            if (table := tables.get(guid)) is None:
                continue
            domains = rows.column("domain", "kind")
            is_marker = domains.mapped_codes(lambda one: one.upper().startswith(_MARKER)) > 0
            functions = rows.column("function", "operation", "name")
            columns = rows.read(_CALL_COLUMNS)
            columns["name"] = functions.mapped_codes(table.names.__getitem__)
            marks = {name: column[is_marker] for name, column in columns.items()}
            table.host.add_ranges(marks)
            columns["name"] = functions.mapped_codes(table.call_name)
            table.host.add_calls({name: column[~is_marker] for name, column in columns.items()})
    _add_losses(path, losses, first)


def _read_copies(path: Path, tables: Mapping[str, DispatchTable]) -> None:
    losses = Losses()
    first = next(iter(tables.values()))
    for batch in CsvFile(path, losses).batches():
        first.unused |= dict.fromkeys(name for name in batch.header if name not in _USED_OF_COPIES)
        for guid, rows in _by_process(batch):
            if (table := tables.get(guid)) is None:
                continue
            columns = rows.read(_COPY_COLUMNS)
            to_gpu, from_gpu = (rows.column(end).mapped_codes(table.agents.known) for end in _ENDS)
            columns["gpu"] = np.where(to_gpu >= 0, to_gpu, from_gpu)
            columns["name"] = rows.column("direction").mapped_codes(
                partial(_copy_code, table.names)
            )
            table.add_copies(columns)
    _add_losses(path, losses, first)


def _copy_code(names: NameInterner, direction: str) -> int:
    return names[copy_name(direction)]


def _add_losses(path: Path, losses: Losses, table: DispatchTable) -> None:
    lost = losses.unreadable_events
    if lost or losses.truncated:
        table.losses.truncated |= losses.truncated
        table.losses.notes.append(f"{path.name} is damaged: {lost:,} rows could not be read.")
