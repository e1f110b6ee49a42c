"""Sequences of kernels that memory limits, one after the other on a stream: what could be fused."""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import Final

import numpy as np

from chopper_core.columns.metric import Reduces, Scope, Values, absent, metric
from chopper_core.model.column_names import CALL_SHAPE, MODEL_BYTES
from chopper_core.model.table import Category, KernelTable, Kind, Selection, SplitCodes, add_split
from chopper_core.model.units import Unit
from chopper_core.util.arrays import Index, Int64, Numbers
from chopper_core.util.grouping import run_mask, run_starts
from chopper_core.work.kernel_classes import kernel_classes

SEQUENCE: Final = "sequence"
_MOVING: Final = frozenset(
    ("elementwise", "norm", "copy", "reduction", "softmax", "quantize", "rope", "random")
)
"""Classes of kernels that a fusion could run as one."""
_MAX_SHOWN: Final = 8


def _runs(table: KernelTable) -> tuple[Index, Index]:
    """Kernels in the order of their streams, and the number of the run of each, from 1 on; 0: none.

    A run is two kernels or more that memory limits, of one step and phase, without another
    kernel between them.
    """
    rows = np.flatnonzero((table.category == Category.KERNEL) & (table.kind == Kind.COMPUTE))
    rows = rows[np.lexsort((table.start_ns[rows], table.stream[rows], table.gpu[rows]))]
    moves = np.array([each in _MOVING for each in kernel_classes(table.names)], np.bool_)
    own = moves[table.kernel[rows]]
    labels = (table.gpu, table.stream, table.iteration, table.phase)
    begins = run_mask(own, *(column[rows] for column in labels))
    number = np.cumsum(begins)
    is_long = np.bincount(number, minlength=1)[number] > 1
    return rows, np.where(own & is_long, number, 0)


@add_split(SEQUENCE)
def _sequences(table: KernelTable) -> SplitCodes:
    rows, run = _runs(table)
    codes = np.full(len(table), -1, np.int64)
    words: dict[str, int] = {}
    of_shape = [words.setdefault(each.label.split()[0], len(words)) for each in table.shapes]
    of_name = [words.setdefault(each, len(words)) for each in kernel_classes(table.names)]
    word = np.array(of_name, np.int64)[table.kernel[rows]]
    if of_shape:
        shape = table.measured[CALL_SHAPE][rows]
        known = np.isfinite(shape)
        word[known] = np.array(of_shape, np.int64)[shape[known].astype(np.intp)]
    texts, names = list(words), dict[str, int]()
    known_runs: dict[bytes, int] = {}
    bounds = run_starts(run).tolist() if len(run) else []
    for low, high in pairwise([*bounds, len(run)]):
        if run[low]:
            key = word[low:high].tobytes()
            if key not in known_runs:
                text = _text([texts[each] for each in word[low:high].tolist()])
                known_runs[key] = names.setdefault(text, len(names))
            codes[rows[low:high]] = known_runs[key]
    return codes, list(names)


def _text(words: list[str]) -> str:
    counts = [(word, len([*same])) for word, same in groupby(words)]
    parts = [word if number == 1 else f"{word}x{number}" for word, number in counts]
    return "-".join([*parts[:_MAX_SHOWN], *(["…"] if len(parts) > _MAX_SHOWN else [])])


def _saved(table: KernelTable) -> Int64:
    """Of each kernel in a run but its last one: the bytes that it or the next moves, the fewer."""
    rows, run = _runs(table)
    moved = np.nan_to_num(table.measured[MODEL_BYTES][rows])
    saved = np.zeros(len(table), np.int64)
    pairs = np.flatnonzero((run[:-1] > 0) & (run[:-1] == run[1:]))
    saved[rows[pairs]] = np.minimum(moved[pairs], moved[pairs + 1]).astype(np.int64)
    return saved


@metric(
    "fusion_bytes", Unit.BYTES, "fusion saves", reduces=Reduces.SUM, source="trace",
    missing="no operator in the row whose bytes are known from recorded inputs",
)  # fmt: skip
def fusion_bytes(scope: Scope) -> Values:
    """Bytes that kernels which memory limits would not move at most, if those that follow each
    other on a stream were one: of each two, what the one with fewer moves."""
    table = scope.nodes.table
    if MODEL_BYTES not in table.measured:
        return absent(len(scope.nodes))
    saved = _saved(table)

    def of(_: KernelTable, rows: Selection) -> Numbers:
        return saved[rows]

    return Values(scope.nodes.sum_of(of), scope.nodes.known(MODEL_BYTES)[1] == 0)
