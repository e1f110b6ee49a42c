"""Primus: the pipeline dump of a rank, with the starts and ends of its microbatches."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec import Struct

from chopper_core.extensions.chakra.schedules import Schedule
from chopper_core.model.table import Kind, Phase
from chopper_core.sources.registry import Recognised, Unusable
from chopper_core.tables.bytes import ByteSource
from chopper_core.tables.losses import Losses
from chopper_core.tables.text import FileHead
from chopper_core.util.compression import COMPRESSED
from chopper_core.util.errors import DataError
from chopper_core.util.nearby import file_nearby
from chopper_core.util.progress import Progress, silent

NAME: Final = "Primus (pipeline dump)"
FILES: Final = (
    "`*_<rank>.json`, one per pipeline rank: `fwd_start`, `fwd_end`, `bwd_…`, `wgrad_…`; next to "
    "them `config.json`"
)
EXAMPLE: Final = ""
SUFFIXES: Final = (".json",)

_FORMAT: Final = "Primus pipeline dump"
_KEYS: Final = ("fwd_start", "fwd_end", "bwd_start", "bwd_end")
_OPENING: Final = re.compile(r'\s*\{\s*"\d+"\s*:\s*\{')
_RANK: Final = re.compile(rf"(\d{{1,6}})\.json{COMPRESSED}$", re.IGNORECASE)
_MAX_BYTES: Final = 1 << 25
"""A dump of a thousand steps of a hundred microbatches is smaller."""
_MS: Final = 1e6
_MAX_MS: Final = 1e8
_STEP: Final = re.compile(r"\d{1,9}", re.ASCII)
_MAX_STAGES: Final = 1 << 20
_SERIES: Final = (
    ("fwd", "forward", Phase.FORWARD),
    ("bwd", "backward", Phase.BACKWARD),
    ("wgrad", "weight gradient", Phase.BACKWARD),
)
"""The lists of a step. Zero-bubble schedules list weight gradients separately."""


def recognise(head: FileHead) -> Recognised | Unusable | None:
    """Recognise a dump by the keys of its first step; its name has to say the rank."""
    if not _OPENING.match(head.text) or '"fwd_start"' not in head.text:
        return None
    if _RANK.search(head.path.name) is None:
        return Unusable(f"is a {_FORMAT}, and its name doesn't say the rank (pp8_0.json)")
    return Recognised(_FORMAT)


def read(path: Path, _progress: Progress = silent) -> Schedule:
    match = _RANK.search(path.name)
    with ByteSource(path, _MAX_BYTES) as source:
        data = source.read()
    try:
        document = json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} isn't valid JSON: {error}.") from error
    losses = Losses()
    rank = int(match[1]) if match else 0
    layout = _layout_in_folder_of(path)
    rows: list[tuple[int, ...]] = []
    windows: dict[tuple[int, int], int] = {}
    for text, step in document.items() if isinstance(document, dict) else ():
        found = _microbatches(step, layout) if _STEP.fullmatch(text) else None
        if found is None:
            losses.unreadable_events += 1
            continue
        rows += [(int(text), *row) for row in found]
        total = step.get("total")
        if isinstance(total, int | float) and total > 0:
            windows[rank, int(text)] = round(min(total, _MAX_MS) * _MS)
    if not rows:
        raise DataError(f"{path} is a {_FORMAT}, but holds no usable step.")
    losses.note(losses.unreadable_events, "step", "without equal lists of times")
    step, operation, number, chunk, start, duration = np.array(rows, np.int64).T
    same = np.full(len(rows), rank, np.int32)
    return Schedule(
        path=path,
        format=_FORMAT,
        operations=tuple(name for _, name, _ in _SERIES),
        rank=same,
        stage=same,
        replica=np.zeros(len(rows), np.int32),
        step=step.astype(np.int32),
        operation=operation.astype(np.int32),
        kind=np.full(len(rows), Kind.COMPUTE, np.int8),
        phase=np.array([phase for *_, phase in _SERIES], np.int8)[operation],
        microbatch=number.astype(np.int32),
        chunk=chunk.astype(np.int32),
        start_ns=start,
        duration_ns=duration,
        windows_ns=windows,
        unused={},
        losses=losses,
    )


class _Layout(Struct, frozen=True):
    """How many stages and chunks a stage has, by the dump's config.json; 1 without one."""

    stages: int = 1
    chunks: int = 1

    def place(self, order: int, series: int) -> tuple[int, int]:
        """Microbatch and chunk of the n-th of its kind, in the order of Megatron's schedule."""
        group, within = divmod(order, self.stages * self.chunks)
        chunk = within // self.stages
        return group * self.stages + order % self.stages, (
            self.chunks - 1 - chunk if series else chunk
        )


def _layout_in_folder_of(path: Path) -> _Layout:
    try:
        with ByteSource(file_nearby(path.parent / "config.json"), _MAX_BYTES) as source:
            found = json.loads(source.read())
    except (OSError, DataError, ValueError, RecursionError):
        return _Layout()
    given = found if isinstance(found, dict) else {}
    stages, chunks = given.get("pp_size"), given.get("vp_size", given.get("vpp_size"))
    if type(stages) is not int or type(chunks) is not int:
        return _Layout()
    fits = 0 < stages < _MAX_STAGES and 1 < chunks < _MAX_STAGES
    return _Layout(stages, chunks) if fits else _Layout()


def _microbatches(step: Any, layout: _Layout) -> list[tuple[int, ...]] | None:
    """(operation, microbatch, chunk, start, duration) of a step; None if its lists don't fit.

    An interleaved schedule lists each microbatch once per chunk.
    """
    if not isinstance(step, dict) or not all(isinstance(step.get(key), list) for key in _KEYS):
        return None
    found: list[tuple[int, ...]] = []
    lengths = set()
    for series, (name, *_) in enumerate(_SERIES):
        starts, ends = (step.get(f"{name}_{end}") or [] for end in ("start", "end"))
        if not isinstance(starts, list) or not isinstance(ends, list) or len(starts) != len(ends):
            return None
        if starts:
            lengths.add(len(starts))
        numbers, chunks = (_listed(step, f"{name}_{of}", starts) for of in ("minibatch", "chunk"))
        for order, (start, end) in enumerate(zip(starts, ends, strict=True)):
            if not (_is_time(start) and _is_time(end) and end >= start):
                return None
            number, chunk = layout.place(order, series)
            number = numbers[order] if numbers else number
            chunk = chunks[order] if chunks else chunk
            begin = round(start * _MS)
            found.append((series, number, chunk, begin, round(end * _MS) - begin))
    return found if len(lengths) == 1 else None


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < _MAX_MS


def _listed(step: dict[str, Any], key: str, starts: list[Any]) -> list[int]:
    """The numbers that a step lists for its operations; [] where it lists none that fit."""
    given = step.get(key)
    if not isinstance(given, list) or len(given) != len(starts):
        return []
    is_number = all(type(each) is int and 0 <= each < _MAX_STAGES for each in given)
    return given if is_number else []
