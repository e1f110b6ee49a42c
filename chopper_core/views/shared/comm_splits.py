"""Communication by parallel dimension, inside or between nodes, and by size of the messages."""

from __future__ import annotations

from typing import Final

import numpy as np

from chopper_core.model.parallel import DIMENSIONS
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL
from chopper_core.util.arrays import Codes, Index, Int64
from chopper_core.util.grouping import distinct
from chopper_core.views.shared.places import nodes_of
from chopper_core.views.shared.process_groups import group_kinds, ranks_of_group, told_apart

DIMENSION: Final = "dimension"
NODES: Final = "nodes"
SIZE: Final = "size"
SPLITS: Final = (DIMENSION, NODES, SIZE)
_UNKNOWN: Final = "unknown"
_WHERE: Final = ("inside a node", "between nodes")
_SIZES: Final = (
    ("below 64 KiB", 1 << 16),
    ("64 KiB to 1 MiB", 1 << 20),
    ("1 to 16 MiB", 1 << 24),
    ("16 to 256 MiB", 1 << 28),
    ("256 MiB and more", 1 << 62),
)


def split_of(run: Run, rows: Index, by: str) -> tuple[Int64, list[str]]:
    """The code of each activity of a split, and the text of each code; `NO_LABEL` is the last."""
    if by == DIMENSION:
        kinds = group_kinds(run)
        known = {code: DIMENSIONS.index(kind) for code, kind in kinds.items()}
        return _looked_up(told_apart(run).group[rows], known), [*DIMENSIONS, _UNKNOWN]
    if by == SIZE:
        size = run.table.bytes[rows]
        bounds = np.array([below for _, below in _SIZES])
        codes = np.searchsorted(bounds, size, "right").astype(np.int64)
        return np.where(size < 0, NO_LABEL, codes), [*(text for text, _ in _SIZES), _UNKNOWN]
    return _between_nodes(run, rows), [*_WHERE, _UNKNOWN]


def _looked_up(codes: Codes, known: dict[int, int]) -> Int64:
    found = np.full(len(codes), NO_LABEL, np.int64)
    for code, value in known.items():
        found[codes == code] = value
    return found


def _between_nodes(run: Run, rows: Index) -> Int64:
    """0 for groups inside a node, 1 for those over several, `NO_LABEL` where it is unknown."""
    table = told_apart(run)
    rank_of = {gpu.index: gpu.rank for gpu in run.gpus}
    gpus = sorted(rank_of)
    nodes, _ = nodes_of(run, gpus)
    node_of = {rank_of[gpu]: node for gpu, node in zip(gpus, nodes, strict=True)}
    found = np.full(len(rows), NO_LABEL, np.int64)
    group, gpu_of = table.group[rows], table.gpu[rows]
    for code in distinct(group).tolist():
        for gpu in distinct(gpu_of[group == code]).tolist():
            ranks = ranks_of_group(run, code, rank_of[gpu])
            places = {node_of.get(rank, "") for rank in ranks}
            if ranks and "" not in places:
                found[(group == code) & (gpu_of == gpu)] = int(len(places) > 1)
    return found


def expert_note(run: Run, rows: Index) -> tuple[str, ...]:
    """How unevenly all-to-alls load the ranks: a sentence, or none without any of known size."""
    table = run.table
    exchange = [
        code
        for code, name in enumerate(table.operations)
        if "all_to_all" in name.lower() or "alltoall" in name.lower()
    ]
    own = rows[np.isin(table.operation[rows], exchange) & (table.bytes[rows] >= 0)]
    if not len(own):
        return ()
    gpus = distinct(table.gpu[own])
    moved = np.bincount(
        np.searchsorted(gpus, table.gpu[own]), weights=table.bytes[own], minlength=len(gpus)
    )
    if len(gpus) < 2 or not moved.mean():
        return ()
    most = int(moved.argmax())
    return (
        f"all-to-all: GPU {gpus[most]} moves {moved[most] / moved.mean():.2f} times the mean of "
        f"{len(gpus)} GPUs: its experts, or tables of a recommender, are loaded unevenly",
    )
