"""ByteDance's StragglerAnalysis: the operations of all workers of a job as one Parquet file."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from chopper_core.extensions.chakra.schedule_table import EVERYWHERE
from chopper_core.extensions.chakra.schedules import Schedule
from chopper_core.model.table import Kind, Phase
from chopper_core.sources.registry import Recognised, Unusable
from chopper_core.tables.losses import Losses
from chopper_core.tables.parquet import PARQUET_MAGIC, opened_parquet, parquet_names
from chopper_core.tables.text import FileHead
from chopper_core.util.errors import DataError
from chopper_core.util.progress import Progress, silent

NAME: Final = "StragglerAnalysis (ByteDance)"
FILES: Final = (
    "`.parquet` with `rank`, `stage`, `dp_rank`, `step`, `optype`, `start_ts`, `duration`"
)
EXAMPLE: Final = ""
SUFFIXES: Final = (".parquet",)

_FORMAT: Final = "StragglerAnalysis Parquet"
_COLUMNS: Final = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "mb_id")
_NUMBERS: Final = ("rank", "stage", "dp_rank", "step", "mb_id")
_MAX_NUMBER: Final = 1 << 20
"""No job has more workers, nor a dump more steps."""
_MAX_S: Final = 1e8
_HOST: Final = ("gc", "first-op")
_COMM: Final = ("send", "recv", "reduce", "gather", "scatter")
_S: Final = 1e9


def recognise(head: FileHead) -> Recognised | Unusable | None:
    if not head.magic.startswith(PARQUET_MAGIC):
        return None
    try:
        names = parquet_names(head.path)
    except DataError:
        return None
    return Recognised(_FORMAT) if set(_COLUMNS) <= set(names) else None


def read(path: Path, _progress: Progress = silent) -> Schedule:
    from chopper_core.tables.column import TableColumn

    with opened_parquet(path) as file:
        table = file.read(list(_COLUMNS))
        given = table.column_names  # Perhaps one of them twice.
        cells = [table.column(given.index(name)) for name in _COLUMNS]
    columns = dict(zip(_COLUMNS, map(TableColumn.of_another_program, cells), strict=True))
    names = np.array(columns["optype"].texts, object)
    start, duration = (columns[key].floats() for key in ("start_ts", "duration"))
    numbers = {name: columns[name].integers(below=_MAX_NUMBER) for name in _NUMBERS}
    known = (start >= 0) & (start < _MAX_S) & (duration >= 0) & (duration < _MAX_S)
    is_placed = np.logical_and.reduce([numbers[name] >= 0 for name in _NUMBERS[:4]])
    is_host = np.isin(names, _HOST)
    kept = known & is_placed & ~is_host
    losses = Losses(bad_times=int((~known).sum()))
    losses.note(losses.bad_times, "row", "without a valid time")
    losses.unreadable_events = int((known & ~is_placed).sum())
    placed = f"without a valid {', '.join(_NUMBERS[:3])} or {_NUMBERS[3]}"
    losses.note(losses.unreadable_events, "row", placed)
    if not kept.any():
        raise DataError(f"{path} is a {_FORMAT}, but holds no usable row.")
    operations, codes = np.unique(  # noqa: TID251 (texts)
        names[kept].astype(str), return_inverse=True
    )
    begin = np.round(start[kept] * _S).astype(np.int64)
    return Schedule(
        path=path,
        format=_FORMAT,
        operations=tuple(operations.tolist()),
        **{
            ours: numbers[theirs][kept].astype(np.int32)
            for ours, theirs in (
                ("rank", "rank"), ("stage", "stage"), ("replica", "dp_rank"), ("step", "step"),
                ("microbatch", "mb_id"),
            )
        },
        chunk=np.zeros(int(kept.sum()), np.int32),
        operation=codes.astype(np.int32),
        kind=np.array([_kind(name) for name in operations], np.int8)[codes],
        phase=np.array([_phase(name) for name in operations], np.int8)[codes],
        start_ns=begin,
        duration_ns=np.round(duration[kept] * _S).astype(np.int64),
        windows_ns={},
        unused={name: int((names == name).sum()) for name in _HOST if (names == name).any()},
        losses=losses,
    )  # fmt: skip


def _kind(name: str) -> Kind:
    return Kind.COMM if any(part in name for part in (*_COMM, *EVERYWHERE)) else Kind.COMPUTE


def _phase(name: str) -> Phase:
    if name.startswith("forward"):
        return Phase.FORWARD
    if name.startswith("backward"):
        return Phase.BACKWARD
    return Phase.OPTIMIZER if "optimizer" in name else Phase.OTHER
