"""The communicators of a run, and whether all members of each run the same collectives.

A simulator starts a collective once every member has come to it: one that a member lacks stops all
of them for good. So the sequences are compared before anything is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from chopper_core.align.operations import RECOMPUTE_SUFFIX
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL, KernelTable, Kind
from chopper_core.sources.chakra.schema import CommType
from chopper_core.util.arrays import Index
from chopper_core.util.grouping import distinct
from chopper_core.views.shared.collectives import known_group_sizes

WORLD: Final = 0
"""The number of the communicator of all ranks, which needs no line in the group file."""
TYPES: Final = {
    **{kind.name.lower(): kind for kind in CommType},
    # Exchanges of mixtures of experts.
    "dispatch": CommType.ALL_TO_ALL,
    "combine": CommType.ALL_TO_ALL,
}
"""Operation of a communication kernel → its type in the schema."""
_SAME_SIZE: Final = (CommType.ALL_REDUCE, CommType.ALL_GATHER, CommType.REDUCE_SCATTER)
"""Collectives that move as many bytes on every member."""


class Communicator(Struct, frozen=True):
    """The GPUs that a process group connects, and the kernels of each in the order of start."""

    number: int
    code: int
    """The group's code among the table's names; -1 for collectives without a group."""
    label: str
    gpus: tuple[int, ...]
    size: int
    """Its ranks, 0 where that isn't known; more than `gpus` where some are not in the run."""
    rows: tuple[Index, ...]
    """The rows of each GPU."""
    mismatch: str
    """The first difference between its members, as a sentence; '' if there is none."""


def comm_type(table: KernelTable, row: int) -> CommType | None:
    """The type of a communication kernel; None for one that the schema has no type for."""
    code = int(table.operation[row])
    if code == NO_LABEL:
        return None
    return TYPES.get(table.operations[code].removesuffix(RECOMPUTE_SUFFIX))


def communicators(run: Run, rows: Index) -> list[Communicator]:
    """The communicators of the collectives among some rows, the world's first."""
    table = run.table
    comm = rows[table.kind[rows] == Kind.COMM]
    typed = np.array([comm_type(table, row) is not None for row in comm.tolist()], np.bool_)
    comm = comm[typed] if len(comm) else comm
    comm = comm[np.lexsort((table.stream[comm], table.start_ns[comm], table.gpu[comm]))]
    everyone = tuple(gpu.index for gpu in run.gpus)
    sizes, shared = known_group_sizes(run, table.group[comm], table.gpu[comm])
    found: list[Communicator] = []
    for code in distinct(table.group[comm]).tolist():
        own = comm[table.group[comm] == code]
        gpus = everyone if code < 0 else tuple(distinct(table.gpu[own]).tolist())
        of_gpu = tuple(own[table.gpu[own] == gpu] for gpu in gpus)
        label = table.names[code] if code >= 0 else ""
        if code in shared:
            wrong = "the trace gives several groups this name, so its members are not known"
        else:
            wrong = _mismatch(table, gpus, of_gpu)
        found.append(Communicator(0, code, label, gpus, sizes.get(code, 0), of_gpu, wrong))
    # Of several that connect all ranks, one is the world and the others get a number.
    world = next((one.code for one in found if one.gpus == everyone), None)
    numbers = iter(range(WORLD + 1, len(found) + 1))
    numbered = [
        Communicator(
            WORLD if one.code == world else next(numbers),
            *(getattr(one, name) for name in Communicator.__struct_fields__[1:]),
        )
        for one in found
    ]
    return sorted(numbered, key=lambda one: one.number)


def _mismatch(table: KernelTable, gpus: Sequence[int], rows: Sequence[Index]) -> str:
    """The first collective that isn't the same on all GPUs, in a sentence; '' without any."""
    for place in range(max(map(len, rows), default=0)):
        texts = [_described(table, own, place) for own in rows]
        for odd, text in enumerate(texts):
            first = next((at for at, other in enumerate(texts) if _differ(other, text)), None)
            if first is not None:
                return (
                    f"collective {place + 1} is {' of '.join(texts[first])} on rank {gpus[first]} "
                    f"and {' of '.join(text)} on rank {gpus[odd]}"
                )
    return ""


def _described(table: KernelTable, rows: Index, place: int) -> tuple[str, ...]:
    """Type and size of a collective; the size only where all members must have the same."""
    if place >= len(rows):
        return ("missing",)
    row = int(rows[place])
    kind = comm_type(table, row)
    assert kind is not None
    size = int(table.bytes[row])
    known = size >= 0 and kind in _SAME_SIZE
    return (kind.name.lower(), f"{size:,} B") if known else (kind.name.lower(),)


def _differ(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    return any(a != b for a, b in zip(one, other, strict=False))
