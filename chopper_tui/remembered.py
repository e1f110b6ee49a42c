"""What the explorer remembers between sessions: the columns that somebody chose, per level."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from chopper_core.metrics import metric_named
from chopper_core.model.table import ACTIVITY, LEVELS, KernelTable
from chopper_core.util.errors import ChopperError, DataError
from chopper_tui.history import Columns
from chopper_tui.snapshot import state_directory

_SCHEMA: Final = "chopper.columns/1"


class _Kept(Struct, frozen=True):
    schema: str
    columns: dict[str, tuple[str, ...]]


def columns_path() -> Path:
    """Where the columns are kept."""
    return state_directory() / "columns.json"


def remembered_columns() -> dict[str, tuple[str, ...]]:
    """The columns that were kept; none where the file is missing, damaged or of another version."""
    try:
        kept = msgspec.json.decode(columns_path().read_bytes(), type=_Kept)
    except (OSError, ValueError, msgspec.MsgspecError):
        return {}
    known = kept.columns if kept.schema == _SCHEMA else {}
    return {level: names for level, names in known.items() if level in (*LEVELS, ACTIVITY)}


def remember_columns(level: str, names: tuple[str, ...]) -> None:
    """Keep the columns of a level, or forget them where there are none; raises DataError."""
    columns = {**remembered_columns(), level: names}
    kept = _Kept(_SCHEMA, {level: names for level, names in columns.items() if names})
    path = columns_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".columns-", delete=False) as file:
            file.write(msgspec.json.format(msgspec.json.encode(kept), indent=1))
        os.replace(file.name, path)
    except OSError as error:
        raise DataError(f"the columns can't be kept in {path}: {error.strerror}") from error


def fitting_columns(columns: Columns, table: KernelTable) -> dict[str, tuple[str, ...]]:
    """Of each level's columns those that a run can have."""
    found = {}
    for level, names in columns.items():
        known = tuple(name for name in names if _is_known(name, table))
        if known:
            found[level] = known
    return found


def _is_known(name: str, table: KernelTable) -> bool:
    try:
        metric_named(name, table)
    except ChopperError:
        return False
    return True
