"""Trainers' logs that grow: only their new lines are read, and rotated ones keep what they had."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopper_core.record.manifest import RING
from chopper_core.sources.registry import Failures, FoundFiles, SourceFile
from chopper_core.sources.trainer.steps import TrainerLog, joined_columns
from chopper_core.tables.losses import merged_losses
from chopper_core.util.compression import is_compressed
from chopper_core.util.errors import DataError
from chopper_core.util.progress import Progress

_ENDS: Final = (b"\n", b"\r")
_CHECKED: Final = 1 << 10
"""Bytes before the place up to which a file was read that tell whether it is another one."""
_WHOLE: Final = (".jsonl", ".json", RING)
"""Endings of files that are read as a whole: their lines depend on earlier ones."""


class _ReadLog(Struct, frozen=True):
    """What was read of a file."""

    at: int
    """The bytes up to the end of the last whole line."""
    last: bytes
    """Those before it."""
    log: TrainerLog


class LogTails:
    """Reads logs again and again."""

    def __init__(self) -> None:
        self._known: dict[Path, _ReadLog] = {}

    def read(self, found: FoundFiles, progress: Progress) -> tuple[list[TrainerLog], Failures]:
        """Read the new lines of some files; those of a rotated file follow what it had."""
        read, failed = [], []
        for number, file in enumerate(found.files):
            progress("read trainer logs", number, len(found.files))
            try:
                read.append(self._log(file))
            except DataError as error:
                failed.append((str(file.path), str(error)))
        return read, failed

    def _log(self, file: SourceFile) -> TrainerLog:
        known = self._known.get(file.path)
        if file.path.name.endswith(_WHOLE) or is_compressed(file.path):
            return file.read()  # type: ignore[no-any-return]
        try:
            with file.path.open("rb") as opened:
                begin = 0
                if known is not None:
                    opened.seek(max(known.at - len(known.last), 0))
                    if opened.read(len(known.last)) == known.last:
                        begin = known.at
                opened.seek(begin)
                new = opened.read()
        except OSError as error:
            raise DataError(f"{file.path} can't be read: {error.strerror}.") from error
        # A line may still be written.
        end = max(new.rfind(each) for each in _ENDS) + 1
        if known is not None and not end:
            return known.log
        lines = new[:end] if end else new
        try:
            log = self._read_part(file, lines)
        except DataError:
            if known is None:
                raise
            log = None
        if known is not None:
            is_again = not begin and log is not None and _repeats(known.log, log)
            if not is_again:
                log = known.log if log is None else joined_parts(known.log, log)
        assert log is not None
        at, last = begin + len(lines), lines[-_CHECKED:]
        if known is not None and begin and len(last) < _CHECKED:
            last = (known.last + last)[-_CHECKED:]
        self._known[file.path] = _ReadLog(at, last, log)
        return log

    def _read_part(self, file: SourceFile, lines: bytes) -> TrainerLog:
        """The log of some lines, as the file's reader reads them under the file's name."""
        with TemporaryDirectory(prefix="chopper-") as scratch:
            folder = Path(scratch) / file.path.parent.name
            folder.mkdir(exist_ok=True)
            part = folder / file.path.name
            part.write_bytes(lines)
            log: TrainerLog = file.source.read(part)
        return replace(log, path=file.path)


def _repeats(before: TrainerLog, after: TrainerLog) -> bool:
    """Whether a file that starts over has its earlier lines: it was rewritten, not rotated."""
    if not len(after):
        return False
    if after.time_ns[0] >= 0 and (before.time_ns >= 0).any():
        return bool(after.time_ns[0] <= before.time_ns.max())
    same = (before.step == after.step[0]) & (before.rank == after.rank[0])
    return bool(same.any())


def joined_parts(one: TrainerLog, other: TrainerLog) -> TrainerLog:
    """Two parts of a log as one."""
    unused = Counter(one.unused)
    unused.update(other.unused)
    return TrainerLog(
        one.path,
        one.format,
        one.clock,
        np.concatenate([one.rank, other.rank]),
        np.concatenate([one.step, other.step]),
        np.concatenate([one.time_ns, other.time_ns]),
        joined_columns((one, other), "figures"),
        joined_columns((one, other), "phases"),
        [*dict.fromkeys((*one.notes, *other.notes))],
        merged_losses(one.losses, other.losses),
        dict(unused),
        (*one.failed, *(replace(each, rows=each.rows + len(one)) for each in other.failed)),
        (*one.experts, *(replace(each, rows=each.rows + len(one)) for each in other.experts)),
    )
