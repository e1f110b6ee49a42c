"""The ranks of a run as one: their numbers, GPUs, pieces of a trace, and one clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from chopper_core.align.collective_sets import host_clocks, labelled_by_partners
from chopper_core.ingest.rank import (
    joined_ranks,
    with_gpu_numbers,
)
from chopper_core.ingest.step_numbers import numbered_alike
from chopper_core.model.inputs import (
    BY_PROCESS,
    NO_RANK,
    ONE_CLOCK,
    TIMES_NOTES,
    Source,
)
from chopper_core.model.overrides import Overrides
from chopper_core.model.run import Run
from chopper_core.model.table import NO_TIME, KernelTable, empty_table
from chopper_core.sources.ranks import (
    TraceFile,
    assign_ranks,
    process_in_name,
)
from chopper_core.sources.signals import ClockDomain
from chopper_core.util.patterns import natural_key

GatherTables = Callable[[Sequence[Run]], KernelTable]
"""Makes one table of runs of one rank each, whose `gpus` are numbered as in the whole run."""


def join_ranks(name: str, read: Sequence[tuple[TraceFile, Run]], gather: GatherTables) -> Run:
    first_of, repeated = _continued(read)
    read = [each for each in read if each[0].path not in repeated]
    firsts = [each for each in read if each[0].path not in first_of]
    claims = [(file, source) for file, rank in firsts for source in rank.sources]
    assigned = assign_ranks(_claimed(claims))
    sources: dict[str, list[Source]] = {}
    rank_of: dict[tuple[str, int], int] = {}
    for assignment, (file, source) in zip(assigned, claims, strict=True):
        path, origin = str(file.path), source.rank_from or assignment.source
        rank_of[path, source.rank] = assignment.rank
        source = replace(source, path=path, rank=assignment.rank, rank_from=origin)
        sources.setdefault(path, []).append(source)
    for file, rank in read:
        path, first_path = str(file.path), str(first_of.get(file.path))
        for source, like in zip(rank.sources, sources.get(first_path, ()), strict=False):
            rank_of[path, source.rank] = like.rank
            own = replace(source, path=path, rank=like.rank, rank_from=like.rank_from)
            sources[path] = [own]
    # A merged file whose ranks have a GPU each and follow each other numbers them by rank too.
    by_number = all(
        gpu.rank - rank.gpus[0].rank == gpu.index for _, rank in read for gpu in rank.gpus
    )
    ranks: list[Run] = []
    numbers: dict[int, int] = {}
    """The first GPU of each rank."""
    count = 0

    def place(pair: tuple[TraceFile, Run]) -> tuple[int, int]:
        first = sources[str(pair[0].path)][0]
        return first.rank, first.span_ns[0]

    for file, rank in sorted(read, key=place):
        path = str(file.path)
        number = sources[path][0].rank
        is_first = number not in numbers
        first = numbers.setdefault(number, number if by_number else count)
        gpus = tuple(
            replace(gpu, index=first + gpu.index, rank=rank_of[path, gpu.rank]) for gpu in rank.gpus
        )
        ranks.append(with_gpu_numbers(rank, gpus, tuple(sources[path])))
        count += len(gpus) if is_first else 0
    failed = tuple((str(path), why) for path, why in repeated.items())
    base = Run(name, empty_table(), (), (), failed=failed)
    return joined_ranks(base, ranks, gather(ranks))


def _claimed(
    claims: Sequence[tuple[TraceFile, Source]],
) -> list[tuple[TraceFile, int | None]]:
    """The rank that each source of a file claims, None where it claims none.

    Where processes were counted within files, such as those of a report per node, the ranks of a
    file follow those of the files before it, in the natural order of their paths.
    """
    found = [None if source.rank == NO_RANK else source.rank for _, source in claims]
    counted = [source.rank_from == BY_PROCESS for _, source in claims]
    if any(counted):
        own = [n for n, rank in enumerate(found) if counted[n] or rank is None]
        own.sort(key=lambda number: natural_key(claims[number][0].path))
        for rank, number in enumerate(own):
            found[number] = rank
    return [(file, rank) for (file, _), rank in zip(claims, found, strict=True)]


def with_shared_gpus(run: Run) -> Run:
    """The run with a note on each rank that runs on the GPU of another rank of its host.

    A process that sees one GPU numbers it 0: that several do on a host says nothing.
    """
    host_of = {source.rank: source.host for source in run.sources}
    ranks: dict[tuple[str, int], dict[int, None]] = {}
    devices: defaultdict[str, set[int]] = defaultdict(set)
    for gpu in run.gpus:
        if host := host_of.get(gpu.rank):
            devices[host].add(gpu.device)
            ranks.setdefault((host, gpu.device), {})[gpu.rank] = None
    shared: dict[int, str] = {}
    for (host, device), own in ranks.items():
        if len(own) > 1 and (device > 0 or len(devices[host]) > 1):
            listed = ", ".join(map(str, own))
            note = f"Ranks {listed} share device {device} of {host}: their work takes turns."
            shared |= dict.fromkeys(own, note)
    sources = (
        replace(each, notes=(*each.notes, shared[each.rank])) if each.rank in shared else each
        for each in run.sources
    )
    return replace(run, sources=tuple(sources)) if shared else run


def _continued(
    read: Sequence[tuple[TraceFile, Run]],
) -> tuple[dict[Path, Path], dict[Path, str]]:
    """The first window of the rank of each trace that is a later one; why others aren't.

    Windows are on a clock that they share, have the same devices, other times and other iterations.
    Of one process's files those that aren't are left out.
    """
    ranks: dict[Hashable, list[tuple[Source, Path]]] = {}
    for file, run in read:
        source = run.sources[0]
        rank = file.rank_hint if source.rank == NO_RANK else source.rank
        key = process_in_name(file.path.name) or rank
        if key is not None and len(run.sources) == 1 and source.clock.startswith(ClockDomain.EPOCH):
            devices = tuple(gpu.device for gpu in run.gpus)
            ranks.setdefault((key, devices), []).append((source, file.path))
    found: dict[Path, Path] = {}
    repeated: dict[Path, str] = {}
    for windows in ranks.values():
        windows.sort(key=lambda each: each[0].span_ns)
        (last, first), *others = windows
        for source, path in others:
            if _follows(last, source):
                found[path], last = first, source
            elif process_in_name(path.name):
                why = "repeats steps or times of another window of its process; open it alone"
                repeated[path] = f"{path} {why}."
    return found, repeated


def _follows(before: Source, after: Source) -> bool:
    one, other = before.iterations, after.iterations
    is_later = one is None or other is None or one[1] < other[0]
    return is_later and before.span_ns[1] <= after.span_ns[0]


def on_one_clock(run: Run, overrides: Overrides) -> Run:
    """Move the times of all ranks to the clock of the first rank's host.

    Before, steps that nothing annotates get the numbers that other ranks have at the time; then the
    collectives that one GPU's trace doesn't name are named like their partners.
    """
    shifts = {source.rank: overrides.shift_ns(*source.called) for source in run.sources}
    by_hand = {rank: shift_ns for rank, shift_ns in shifts.items() if shift_ns is not None}
    common = (ONE_CLOCK, *TIMES_NOTES)
    is_common = all(source.clock.startswith(common) for source in run.sources)
    host_of = {source.rank: ONE_CLOCK if is_common else source.host for source in run.sources}
    run = numbered_alike(run, host_of, by_hand)
    table = run.table
    clocks = host_clocks(table, {gpu.index: gpu.rank for gpu in run.gpus}, host_of, by_hand)
    correction_of = {rank: clock.correction_ns for clock in clocks for rank in clock.ranks}
    moved = np.zeros(int(table.gpu.max()) + 1, np.int64)
    moved[[gpu.index for gpu in run.gpus]] = [correction_of[gpu.rank] for gpu in run.gpus]
    if moved.any():
        by = moved[table.gpu]
        launch_ns = np.where(table.launch_ns == NO_TIME, NO_TIME, table.launch_ns + by)
        table = replace(table, start_ns=table.start_ns + by, launch_ns=launch_ns)
        side = {kind: each.moved(moved) for kind, each in run.side_tables.items()}
        by_rank = {gpu.rank: int(moved[gpu.index]) for gpu in run.gpus}
        sources = (
            replace(each, span_ns=tuple(edge + by_rank.get(each.rank, 0) for edge in each.span_ns))
            for each in run.sources
        )
        run = replace(run, side_tables=side, sources=tuple(sources))
    return replace(run, table=labelled_by_partners(table), hosts=tuple(clocks))
