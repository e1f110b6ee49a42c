"""Exports of a whole run for other programs: one module per format, imported when it is asked for.

A format is a module here with what `ExportFormat` lists, and one line in `EXPORTS`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, cast

import numpy as np
from msgspec import Struct

from chopper_core.model.table import activity_rows
from chopper_core.util.arrays import Index
from chopper_core.util.atomic import temporary_path
from chopper_core.util.compression import refuse_compressed
from chopper_core.util.errors import DataError, UsageError
from chopper_core.util.naming import one_named
from chopper_core.util.plugins import declared, plugins
from chopper_core.util.progress import Progress, silent

if TYPE_CHECKING:
    from chopper_core.model.run import Run

EXPORTS: Final[dict[str, str]] = {
    **declared("EXPORTS"),
    **{name: f"{__name__}.{name}" for name in ("perfetto", "parquet", "tables")},
}
_NEEDED: Final = ("DESCRIPTION", "TAKES", "write")


class ExportOptions(Struct, frozen=True):
    """The options that a format may take; one that is given and not taken is refused."""

    iteration: int | None = None
    gaps: bool = False
    """Idle time as rows of its own."""
    force: bool = False
    """Leave out what can't be written, instead of writing nothing."""
    host: bool = False
    """The host's work too."""
    nodes: int | None = None
    """At most so many."""


class ExportFormat(Protocol):
    """A module that writes a run in the format of another program."""

    DESCRIPTION: str
    """The result in one line, for help."""
    TAKES: tuple[str, ...]
    """The fields of `ExportOptions` that it takes."""

    def write(self, run: Run, path: Path, options: ExportOptions, progress: Progress) -> list[str]:
        """Write a run to a path, whole or not at all; returns sentences on what was left out.

        Raises UsageError if the path exists, DataError if the run can't be written so.
        """


def export_format(name: str) -> ExportFormat:
    name = format_named(name)
    if name in EXPORTS:
        return cast(ExportFormat, import_module(EXPORTS[name]))
    return cast(ExportFormat, plugins("exports")[name].load(*_NEEDED))


def format_named(text: str) -> str:
    """The format that people type; raises UsageError."""
    return text if text in EXPORTS else one_named("format", text, (*EXPORTS, *plugins("exports")))


def export(
    run: Run,
    name: str,
    path: Path,
    options: ExportOptions | None = None,
    progress: Progress = silent,
) -> list[str]:
    """Write a run in a format; returns sentences on what was left out.

    Raises UsageError for an option that the format doesn't take, and as `ExportFormat.write`.
    """
    name = format_named(name)
    module = export_format(name)
    asked = options or ExportOptions()
    plain = ExportOptions()
    for field in ExportOptions.__struct_fields__:
        if field not in module.TAKES and getattr(asked, field) != getattr(plain, field):
            raise UsageError(f"an export to {name} takes no --{field}")
    if run.is_sampled_only:
        raise DataError(f"{run.name} has no activities to export")
    if name not in EXPORTS:
        return plugins("exports")[name].call(module.write, run, path, asked, progress)
    return module.write(run, path, asked, progress)


def chosen_rows(run: Run, options: ExportOptions, *, has_outside: bool = False) -> Index:
    """The activities to export, in the order of the table, with time outside steps where that is a
    row, too; raises UsageError for an unknown step."""
    table = run.table
    if options.iteration is None:
        every = np.arange(len(table))
        return every if has_outside else activity_rows(table, every)
    chosen = np.flatnonzero(table.iteration == options.iteration)
    if not len(chosen):
        raise UsageError(f"{run.name} has no step {options.iteration}")
    return chosen


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    refuse_compressed(path, "this format is a folder, which isn't compressed")
    with new_file(path) as fresh:
        fresh.mkdir()
        yield fresh


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A name to write a file to, which gets its own when it is complete.

    Raises UsageError if that exists; errors of the file system become DataError.
    """
    if os.path.exists(path) and not (path.is_dir() and not any(path.iterdir())):
        raise UsageError(f"{path} exists already; nothing was written")
    fresh = temporary_path(path.absolute(), "new")
    try:
        try:
            fresh.parent.mkdir(parents=True, exist_ok=True)
            yield fresh
            if path.is_dir():
                path.rmdir()
            os.rename(fresh, path)
        finally:
            if fresh.is_dir():
                shutil.rmtree(fresh, ignore_errors=True)
            else:
                fresh.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(f"{path} can't be written: {error.strerror or error}") from error
