"""The tables of a run for SQL and scripts: activities, steps, collectives, samples, findings.

A table is a function under `@table` in a module here, whose docstring says what a row is; its
columns carry their unit and definition (`render.arrow`). Names and units are those of `show`.
Times count from the run's first activity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from chopper_core.model.run import Run
from chopper_core.util.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

MODULES: Final = {
    "activities": "activities",
    "iterations": "steps",
    "collectives": "communication",
    "launches": "activities",
    "host_operators": "hosts",
    "samples": "samples",
    "findings": "answers",
    "gpus": "steps",
}
"""Each table and the module that makes it, imported when it is asked for."""
TABLE_NAMES: Final = tuple(MODULES)


class RunTable(Struct, frozen=True):
    """One of the tables of a run."""

    name: str
    about: str
    """What a row is."""
    make: Callable[[Run, Sequence[int] | None], pa.Table]
    """The rows of some GPUs; None: of all."""
    is_large: bool = False
    """Whether it has a file per GPU where it is written."""


_TABLES: Final[dict[str, RunTable]] = {}


def table(
    name: str, *, is_large: bool = False
) -> Callable[[Callable[[Run, Sequence[int] | None], pa.Table]], RunTable]:
    """Register a function as a table; its docstring says what a row is."""

    def registered(make: Callable[[Run, Sequence[int] | None], pa.Table]) -> RunTable:
        about = " ".join((make.__doc__ or "").split())
        return _TABLES.setdefault(name, RunTable(name, about, make, is_large))

    return registered


def run_table(name: str) -> RunTable:
    """A table by its name; raises UsageError with the names that there are."""
    if name not in MODULES:
        raise UsageError(f"unknown table {name!r}; the tables are {', '.join(TABLE_NAMES)}")
    import_module(f"{__name__}.{MODULES[name]}")
    return _TABLES[name]


def table_rows(run: Run, name: str, gpus: Sequence[int] | None = None) -> pa.Table:
    """A table of a run, or the rows of some of its GPUs, as an Arrow table.

    Unknown values are null. The metadata of each field has its unit and definition, that of the
    table its name and the run's marks. Raises UsageError for an unknown name.
    """
    made = run_table(name)
    rows = made.make(run, gpus)
    about: Mapping[str | bytes, str | bytes] = {
        "table": name,
        "about": made.about,
        "run": run.name.encode("utf-8", "replace"),
        **dict.fromkeys(run.marks, "yes"),
    }
    return rows.replace_schema_metadata({**(rows.schema.metadata or {}), **about})
