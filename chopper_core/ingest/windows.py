"""Several profiler windows of a rank as one: traces on one clock, one after the other."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Final

from chopper_core.model.inputs import NO_RANK, Source
from chopper_core.model.run import Run
from chopper_core.sources.ranks import TraceFile, process_in_name

_EPOCH: Final = "epoch"


def continued(
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
        if key is not None and len(run.sources) == 1 and source.clock.startswith(_EPOCH):
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
