"""The communicators of a run, and whether all members of each run the same collectives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.align.collectives import group_label
from chopper_core.align.operations import RECOMPUTE_SUFFIX
from chopper_core.extensions.chakra.lint import (
    MESSAGE,
    WORLD,
    Step,
    first_difference,
    message,
    step,
)
from chopper_core.extensions.chakra.schema import CommType
from chopper_core.model.run import Run
from chopper_core.model.table import NO_LABEL, KernelTable, Kind
from chopper_core.sources.trace import Collective
from chopper_core.util.arrays import Index
from chopper_core.util.grouping import distinct
from chopper_core.views.shared.collectives import Transfer, by_ends
from chopper_core.views.shared.process_groups import known_group_sizes, split_groups

TYPES: Final = {
    **{kind.name.lower(): kind for kind in CommType},
    # Exchanges of mixtures of experts.
    "dispatch": CommType.ALL_TO_ALL,
    "combine": CommType.ALL_TO_ALL,
}
"""Operation of a communication kernel → its type in the schema."""


class Communicator(Struct, frozen=True):
    """The GPUs that a process group connects, and the kernels of each in the order of start."""

    number: int
    code: int
    """The group's code among the names of `split_groups`; -1 for collectives without a group."""
    label: str
    gpus: tuple[int, ...]
    size: int
    """Its ranks, 0 where that isn't known; more than `gpus` where some are not in the run."""
    rows: tuple[Index, ...]
    """The rows of each GPU."""
    mismatch: str
    """The first difference between its members, as a sentence; '' if there is none."""


def comm_type(table: KernelTable, row: int) -> CommType | None:
    code = int(table.operation[row])
    if code == NO_LABEL:
        return None
    return TYPES.get(table.operations[code].removesuffix(RECOMPUTE_SUFFIX))


def communicators(run: Run, rows: Index) -> list[Communicator]:
    table = split_groups(run)
    comm = rows[table.kind[rows] == Kind.COMM]
    typed = np.array([comm_type(table, row) is not None for row in comm.tolist()], np.bool_)
    comm = comm[typed] if len(comm) else comm
    comm = comm[np.lexsort((table.stream[comm], table.start_ns[comm], table.gpu[comm]))]
    everyone = tuple(gpu.index for gpu in run.gpus)
    sizes, shared = known_group_sizes(run, table.group[comm], table.gpu[comm])
    named = _members(run)
    found: list[Communicator] = []
    for code in distinct(table.group[comm]).tolist():
        own = comm[table.group[comm] == code]
        label = table.names[code] if code >= 0 else ""
        gpus = named.get(label) or tuple(distinct(table.gpu[own]).tolist())
        gpus = everyone if code < 0 else gpus
        of_gpu = tuple(own[table.gpu[own] == gpu] for gpu in gpus)
        size = sizes.get(code, 0)
        if code in shared:
            wrong = "the trace gives several groups this name, so its members are not known"
        else:
            wrong = first_difference(gpus, [_sequence(table, rows) for rows in of_gpu])
            if not wrong and len(gpus) < size <= len(run.gpus) >= run.world:
                wrong = f"only {len(gpus)} of its {size} ranks have collectives"
        found.append(Communicator(WORLD, code, label, gpus, size, of_gpu, wrong))
    # Of several that connect all ranks, one is the world and the others get a number.
    world = next((one for one in found if one.gpus == everyone), None)
    others = [one for one in found if one is not world]
    numbered = [replace(one, number=number) for number, one in enumerate(others, WORLD + 1)]
    return [*([] if world is None else [world]), *numbered]


def unmatched(table: KernelTable, found: Mapping[int, Transfer]) -> dict[tuple[int, int], str]:
    """Pairs of GPUs whose sends and receives don't match, and the first difference of each."""
    wrong = {}
    for (sender, receiver, tag), sides in by_ends(table, found).items():
        sizes = [[found[row].bytes for row in own] for own in sides]
        sequences = [[message(size if size >= 0 else None) for size in own] for own in sizes]
        if difference := first_difference((sender, receiver), sequences, MESSAGE):
            wrong[sender, receiver] = f"with tag {tag}, {difference}"
    return wrong


def _members(run: Run) -> dict[str, tuple[int, ...]]:
    """The GPUs of the run in each process group whose ranks the traces list, by its label."""
    return {
        group_label(
            Collective(
                group_name=group.name,
                group_description=group.description,
                group_size=len(group.ranks),
            )
        ): tuple(gpu.index for gpu in run.gpus if gpu.rank in group.ranks)
        for group in run.groups
    }


def _sequence(table: KernelTable, rows: Index) -> list[Step]:
    known = ((comm_type(table, row), int(table.bytes[row])) for row in rows.tolist())
    return [step(kind, size if size >= 0 else None) for kind, size in known if kind is not None]
