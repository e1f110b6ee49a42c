"""The runs next to the one that is followed: what is known of them without reading them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from chopper_core.model.inputs import FoundRun
from chopper_core.model.recent import OtherRun
from chopper_core.record.manifest import Manifest
from chopper_core.sources.ranks import process_in_name
from chopper_core.tables.bytes import ByteSource
from chopper_core.util.atomic import FileState
from chopper_core.util.errors import DataError

_STEP: Final = re.compile(rb"ProfilerStep#(\d{1,9})\b")
_PIECE: Final = 1 << 20
_OVERLAP: Final = 32
"""Bytes that a step's name has at most."""
_MOST_BYTES: Final = 256 << 20
"""Of a trace's text: in a longer one the newest step isn't looked for."""


class OtherRuns:
    """Describes runs; what a trace said stays known as long as it doesn't change."""

    def __init__(self) -> None:
        self._steps: dict[str, tuple[FileState, int]] = {}

    def found(
        self, folder: str, runs: Sequence[FoundRun], state: Mapping[str, FileState]
    ) -> list[OtherRun]:
        """Runs of traces in one directory: a rank per process that wrote some."""
        described = []
        for run in runs:
            paths = [path for path in run.path.split(",") if path in state]
            names = {process_in_name(os.path.basename(path)) or path for path in paths}
            newest = max(paths, key=lambda path: state[path][1], default="")
            step = self._newest_step(newest, state[newest]) if newest else -1
            newest_s = state[newest][1] * 1e-9 if newest else 0.0
            name = os.path.relpath(paths[0] if paths else run.path, folder)
            described.append(OtherRun(name, len(names), step, newest_s))
        return described

    def _newest_step(self, path: str, state: FileState) -> int:
        before, step = self._steps.get(path, (None, -1))
        if before != state:
            step = newest_step_of(Path(path))
            self._steps[path] = state, step
        return step


def of_manifests(manifests: Mapping[Path, Manifest]) -> list[OtherRun]:
    """The earlier starts of a job whose parts are numbered: all recordings but the newest."""
    earlier = sorted(manifests.items(), key=lambda each: each[1].started_ns)[:-1]
    return [
        OtherRun(
            folder.name,
            len([each for each in manifest.processes if each.rank is not None]),
            max((each.step for each in manifest.processes), default=-1),
            (manifest.ended_ns or manifest.started_ns) * 1e-9,
        )
        for folder, manifest in earlier
    ]


def newest_step_of(trace: Path) -> int:
    """The largest number of a profiled step in a trace as JSON; -1 without any."""
    found, tail, size = -1, b"", 0
    try:
        with ByteSource(trace, _PIECE) as source:
            while size < _MOST_BYTES and (piece := source.read()):
                text = tail + piece
                found = max([found, *(int(match[1]) for match in _STEP.finditer(text))])
                tail, size = text[-_OVERLAP:], size + len(text)
    except (OSError, DataError):
        return -1
    return found if size < _MOST_BYTES else -1
