"""The map of slots: where in its node each GPU sits, from a file beside the run's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from chopper_core.model.run import Run
from chopper_core.sources.shared.text import csv_cells

SLOTS: Final = "slots.csv"
"""Lines `gpu,slot` under that heading: the GPU's number in its node, and a word."""
_HEADING: Final = ["gpu", "slot"]
_MAX_BYTES: Final = 1 << 16


def with_slots(run: Run, paths: Sequence[Path]) -> Run:
    """The run with the slots of `slots.csv` in its directory; `failed` names a damaged one."""
    found = next((path / SLOTS for path in paths if (path / SLOTS).is_file()), None)
    if found is None:
        return run
    slots, problem = _read(found)
    skipped = tuple(item for item in run.skipped if item[0] != str(found))
    if problem:
        return replace(run, skipped=skipped, failed=(*run.failed, (str(found), problem)))
    return replace(run, skipped=skipped, slots=slots)


def _read(path: Path) -> tuple[dict[int, str], str]:
    """The slots of a file, and why it can't be used; '' if it can."""
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES).decode("utf-8", "replace")
    except OSError as error:
        return {}, f"{path} can't be read: {error.strerror}."
    rows = [csv_cells(line) for line in text.splitlines() if line.strip()]
    slots: dict[int, str] = {}
    is_headed = bool(rows) and [cell.strip().casefold() for cell in rows[0]] == _HEADING
    for cells in rows[1:] if is_headed else ():
        if len(cells) != len(_HEADING) or not cells[0].strip().isdecimal() or not cells[1].strip():
            return {}, f"{path} is no map of slots: each line is a GPU's number and a word."
        slots[int(cells[0])] = cells[1].strip()
    if not slots:
        return {}, f"{path} is no map of slots: it has no lines below the heading gpu,slot."
    return slots, ""
