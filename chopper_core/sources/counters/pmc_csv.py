"""CSV of rocprof-compute (`pmc_perf.csv`, long or wide) and of rocprof v1 and v2.

The long form has one row per dispatch and counter, the others one column per counter. The wide form
of rocprof-compute repeats the columns that describe a dispatch once per pass (`Wave_Size_3`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from chopper_core.sources.counters.tables import (
    CSV_COLUMNS,
    KERNEL,
    PASS_NUMBER,
    STARTS,
    DispatchTable,
)
from chopper_core.sources.dispatches import DispatchRun
from chopper_core.sources.registry import Recognised, Unusable
from chopper_core.tables.csv_stream import CsvFile, header_of, normalised
from chopper_core.tables.losses import ABSENT, Losses
from chopper_core.tables.text import FileHead
from chopper_core.util.errors import DataError
from chopper_core.util.patterns import late
from chopper_core.util.progress import Progress, silent

NAME: Final = "rocprof-compute, rocprof v1 and v2"
FILES: Final = "`pmc_perf.csv`, long or wide, with `sysinfo.csv`; `results*.csv`"
EXAMPLE: Final = "rocprof-compute profile -n run -- python train.py"
SUFFIXES: Final = ()

COUNTERS: Final = "counters"
SYSTEM: Final = "system"
COMPUTE: Final = "rocprof-compute CSV"
ROCPROF_V1: Final = "rocprof v1 CSV"
ROCPROF_V2: Final = "rocprof v2 CSV"

_EXECUTION: Final = ("gpu", "dispatch_id", "start_ns")
_NO_COUNTERS: Final = frozenset(
    (
        *(name for headings in CSV_COLUMNS.values() for name in headings),
        *KERNEL,
        *("gpu_id", "node_id", "queue_index", "scr", "sgpr", "wave_size", "sig", "obj", "name"),
        *("dispatchns", "completens", "xcc_index", "kernel_id", "scratch_per_workitem"),
        *("sgpr_count", "scratch_size", "guid", "counter_name", "counter_value"),
        *("wave_front_size", ""),
    )
)
_ACCUMULATOR: Final = "SQ_ACCUM_PREV_HIRES"
"""Adds up, each cycle, the level counter collected before it."""
_LEVEL: Final = late(r"SQC?_(?:\w+_)?LEVEL(?:_\w+)?")


def recognise(head: FileHead) -> Recognised | Unusable | None:
    columns = header_of(head)
    has = columns.issuperset
    if has(("kernel_name", "counter_name", "counter_value")):
        is_own = bool(columns & {"gpu_id", "node_id"})
    else:
        is_own = has(("index", "kernelname")) or has(("dispatch_id", "gpu_id", "kernel_name"))
    if is_own:
        return Recognised(_format(columns), COUNTERS)
    if has(("gpu_arch", "cu_per_gpu")):
        return Recognised(COMPUTE, SYSTEM)
    if has(("domain", "roctx_id")):
        return Unusable("is a marker trace of rocprof v2, which is not supported")
    return None


def read(
    path: Path, progress: Progress = silent, *, sysinfo: Path | None = None
) -> list[DispatchRun]:
    """Read the dispatches of a file with their counters; `sysinfo.csv` describes the GPU.

    Raises DataError if a file can't be read or has no dispatches.
    """
    losses = Losses()
    table = DispatchTable(losses)
    file = CsvFile(path, losses)
    is_long = "counter_name" in file.header
    counters = {} if is_long else _counter_columns(file.columns)
    executions: set[tuple[int, int, int]] = set()
    for batch in file.batches(progress):
        columns = table.csv_columns(batch)
        columns["name"][columns["dispatch_id"] < 0] = ABSENT
        unusable = (columns["start_ns"] < 0) & batch.column(*STARTS).is_filled
        columns["end_ns"][unusable] = 0  # counts as an invalid time, not as a missing one
        usable = table.add_csv(batch, columns, counters)
        if is_long:
            # Each pass has other starts.
            keys = (columns[name][usable].tolist() for name in _EXECUTION)
            executions.update(zip(*keys, strict=True))
    run = table.finish(path, _format(file.header))
    passes = Counter((gpu, dispatch_id) for gpu, dispatch_id, _ in executions)
    run = replace(run, passes=max(passes.values(), default=1))
    if not len(run.dispatches):
        raise DataError(f"{path} has no dispatches.")
    return [run if sysinfo is None else _described(run, sysinfo)]


def _counter_columns(columns: list[str]) -> dict[str, int]:
    """Return the index of each counter among the columns of a wide file.

    Of several columns of a counter, the first is used.
    """
    found: dict[str, int] = {}
    for index, column in enumerate(columns):
        name = normalised(column)
        if name not in _NO_COUNTERS and PASS_NUMBER.sub("", name) not in _NO_COUNTERS:
            found.setdefault(column.strip(), index)
    levels = [name for name in found if _LEVEL.fullmatch(name)]
    if _ACCUMULATOR not in found or len(levels) != 1:
        return found
    named = f"{levels[0]}_ACCUM"
    return {named if name == _ACCUMULATOR else name: at for name, at in found.items()}


def _format(header: Collection[str]) -> str:
    if "kernelname" in header:
        return ROCPROF_V1
    return ROCPROF_V2 if "queue_id" in header and "counter_name" not in header else COMPUTE


def _described(run: DispatchRun, sysinfo: Path) -> DispatchRun:
    file = CsvFile(sysinfo, Losses())
    batch = next(file.batches(), None)
    if batch is None or not len(batch):
        return run

    def text(*names: str) -> str:
        return batch.column(*names).distinct[0]

    def number(*names: str) -> int:
        return max(0, int(batch.column(*names).integers()[0]))

    agents = [
        replace(
            agent,
            name=text("gpu_arch"),
            product=text("gpu_model", "gpu_name"),
            compute_units=number("cu_per_gpu"),
            simds_per_cu=number("simd_per_cu"),
            xccs=number("num_xcd", "num_xcc"),
            max_clock_mhz=float(number("max_sclk")),
        )
        for agent in run.agents
    ]
    return replace(run, agents=tuple(agents), paths=(*run.paths, sysinfo))
