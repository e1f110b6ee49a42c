"""Group profiled processes into passes, passes into programs, and programs into runs.

Counters of one program may take several passes, each another execution. A process without counters
is not a pass but a kernel trace, the execution whose times are shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Final

from msgspec import Struct

from chopper_core.sources.counters.joining import concatenate, join_passes, one_after_another
from chopper_core.sources.dispatches import DispatchRun
from chopper_core.sources.registry import natural_key
from chopper_core.tables.losses import ABSENT
from chopper_core.util.grouping import distinct
from chopper_core.util.patterns import late

SAME_PROGRAM: Final = 0.8
"""Sibling folders are passes of one program if they share this part of their kernels."""
RELATED: Final = 0.5
"""A pass belongs to a program that has this part of its dispatches, by kernel name."""

_WORDS: Final = late(r"[^\W_]+")


class ProcessRun(Struct, frozen=True):
    """The dispatches of one process, with its place in the folders."""

    run: DispatchRun
    folder: Path
    """The folder of the run."""
    host: str
    pass_number: int | None


def joined_runs(processes: Sequence[ProcessRun]) -> list[DispatchRun]:
    """Group processes into runs with joined passes, in order of their paths."""
    ordered = sorted(processes, key=lambda process: natural_key(process.run.paths[0]))
    folders: dict[tuple[Path, str], list[ProcessRun]] = {}
    for process in ordered:
        folders.setdefault((process.folder, process.run.format), []).append(process)
    groups: dict[tuple[Path, str, str], list[ProcessRun]] = {}
    for (folder, tool), group in folders.items():
        by_host = _hosts_ran_together(group)
        for process in group:
            host = process.host if by_host else ""
            groups.setdefault((folder, tool, host), []).append(process)
    return [
        one_after_another([join_passes(program) for program in _programs(group)])
        for group in _side_by_side(groups)
    ]


def _hosts_ran_together(group: Sequence[ProcessRun]) -> bool:
    """Return whether several hosts took part in one pass, so that their GPUs differ."""
    hosts_of_pass: dict[int | None, set[str]] = {}
    for process in group:
        hosts_of_pass.setdefault(process.pass_number, set()).add(process.host)
    return any(len(hosts) > 1 for hosts in hosts_of_pass.values())


def _side_by_side(groups: dict[tuple[Path, str, str], list[ProcessRun]]) -> list[list[ProcessRun]]:
    """Merge sibling folders that measured different counters of one program."""
    merged: list[tuple[tuple[Path, str, str], list[ProcessRun]]] = []
    for (folder, tool, host), group in groups.items():
        key = (folder.parent, tool, host)
        for other_key, others in merged:
            if other_key == key and _is_same_program(others, group):
                others += group
                break
        else:
            merged.append((key, list(group)))
    return [group for _, group in merged]


def _is_same_program(ones: Sequence[ProcessRun], others: Sequence[ProcessRun]) -> bool:
    counters, more_counters = (
        {name for process in group for name in process.run.dispatches.counters}
        for group in (ones, others)
    )
    if counters & more_counters or not (counters or more_counters):
        return False
    kernels, more_kernels = _kernels(ones), _kernels(others)
    return len(kernels & more_kernels) >= SAME_PROGRAM * len(kernels | more_kernels) > 0


def _programs(group: Sequence[ProcessRun]) -> list[list[DispatchRun]]:
    """Sort processes into programs: the kernel trace, if any, and the passes of each."""
    traces = [process for process in group if not process.run.dispatches.counters]
    counted = [process for process in group if process.run.dispatches.counters]
    programs = [[concatenate(trace)] for trace in _passes(traces)]
    for one_pass in map(concatenate, _passes(counted)):
        own = _program_of(one_pass, programs)
        if own is None:
            programs.append([one_pass])
        else:
            own.append(one_pass)
    return programs


def _program_of(
    one_pass: DispatchRun, programs: list[list[DispatchRun]]
) -> list[DispatchRun] | None:
    """Return the program that a pass belongs to: by its kernels, then by the words of its path.

    A pass that repeats counters belongs to the same program only if it has about the same kernels.
    """
    found, best = None, (0, 0.0)
    for program in programs:
        shared = _shared_kernels(one_pass, program[0])
        counters = {name for run in program for name in run.dispatches.counters}
        repeats = bool(counters & one_pass.dispatches.counters.keys())
        if shared < (SAME_PROGRAM if repeats else RELATED):
            continue
        likeness = (_shared_words(one_pass, program[0]), shared)
        if likeness > best:
            found, best = program, likeness
    return found


def _shared_kernels(one_pass: DispatchRun, program: DispatchRun) -> float:
    """Return the part of the dispatches of a pass that the program has too, by kernel name."""
    own, there = (
        Counter(run.names[code] for code in run.dispatches.name.tolist())
        for run in (one_pass, program)
    )
    return (own & there).total() / max(1, own.total())


def _shared_words(one_pass: DispatchRun, program: DispatchRun) -> int:
    """Return how many words the paths of two runs have in common from the start."""
    words = zip(*(_WORDS.findall(str(run.paths[0])) for run in (one_pass, program)), strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], words)))


def _passes(group: Sequence[ProcessRun]) -> list[list[DispatchRun]]:
    """Sort processes into passes: by the number of their folder, else by their counters.

    Without numbers, processes are one pass if they measured the same counters on other GPUs, or at
    the same time.
    """
    numbered: dict[int, list[DispatchRun]] = {}
    found: list[list[DispatchRun]] = []
    for process in group:
        if process.pass_number is not None:
            numbered.setdefault(process.pass_number, []).append(process.run)
            continue
        for one_pass in found:
            if _belongs_to(process.run, one_pass):
                one_pass.append(process.run)
                break
        else:
            found.append([process.run])
    return found + [numbered[number] for number in sorted(numbered)]


def _belongs_to(run: DispatchRun, one_pass: Sequence[DispatchRun]) -> bool:
    if run.dispatches.counters.keys() != one_pass[0].dispatches.counters.keys():
        return False
    gpus = set().union(*(_gpus(other) for other in one_pass))
    if not gpus & _gpus(run):
        return True
    return any(_overlap(run, other) for other in one_pass)


def _overlap(one: DispatchRun, other: DispatchRun) -> bool:
    """Return whether two processes ran at the same time."""
    spans = []
    for rows in (one.dispatches, other.dispatches):
        known = rows.start_ns >= 0
        if not known.any():
            return False
        spans.append((rows.start_ns[known].min(), rows.end_ns[known].max()))
    return bool(max(spans[0][0], spans[1][0]) < min(spans[0][1], spans[1][1]))


def _gpus(run: DispatchRun) -> set[tuple[int, int]]:
    used = [run.agents[number] for number in distinct(run.dispatches.gpu).tolist()]
    return {
        (agent.node_id, ABSENT) if agent.node_id >= 0 else (ABSENT, agent.type_index)
        for agent in used
    }


def _kernels(processes: Sequence[ProcessRun]) -> set[str]:
    return {
        process.run.names[code]
        for process in processes
        for code in distinct(process.run.dispatches.name).tolist()
    }
