"""A run on disk, aligned once: written whole or not at all, checked when it is opened.

A store is a directory: `kernels.arrow` (the kernel table, in the order of the levels),
`measured.arrow` (its measured columns), `operations.arrow` (sums over sets of levels, of a large
table), `series.arrow` (signals over time), `cpu.arrow` (use of the processors), `run.json` (all
else), and `store.json` with the version, sizes and checksums of the others. Tables lie
uncompressed, so that they are mapped and only what is looked at is read; of files too large to be
read whole on opening only the size is checked then, `verify` reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from chopper_core.model.hardware import CounterInfo, Hardware
from chopper_core.model.overrides import Overrides
from chopper_core.model.run import (
    CounterSource,
    Gpu,
    HostClock,
    Identity,
    Run,
    Source,
    TelemetrySource,
)
from chopper_core.model.signals import CpuSamples, CpuSource, IntegralCurve, Signal
from chopper_core.model.table import COLUMNS
from chopper_core.model.units import Unit
from chopper_core.util.errors import DataError
from chopper_core.util.mmap_columns import Place

STORE_INDEX: Final = "store.json"
"""The file that makes a directory a store."""
SCHEMA: Final = "chopper.store/3"
KERNELS: Final = "kernels.arrow"
MEASURED: Final = "measured.arrow"
SERIES: Final = "series.arrow"
CPU: Final = "cpu.arrow"
RUN: Final = "run.json"
OPERATIONS: Final = "operations.arrow"
CPU_ARRAYS: Final = CpuSamples.__struct_fields__[len(CpuSource.__struct_fields__) :]
_APART: Final = ("table", "measured", "cpu", "others", "summary")
"""Fields of a run that have files of their own, or are worked out."""


class StoreIndex(Struct, frozen=True):
    """What a store says of itself."""

    schema: str
    fingerprint: str
    """Of the names of all that is stored: another one is of another version of Chopper."""
    name: str
    """The run as it was named when it was read."""
    of: str
    """What it was read from, where it is kept in the cache; else empty."""
    files: Mapping[str, tuple[int, int]]
    """Size and CRC-32 of each file."""


class StoredSignal(Struct, frozen=True):
    """A track without its curves."""

    name: str
    title: str
    unit: Unit
    low: float
    high: float
    gpus: tuple[int, ...]


class Described(Struct, frozen=True):
    """What the JSON file of a store holds."""

    run: msgspec.Raw
    names: tuple[str, ...]
    operations: tuple[str, ...]
    signals: tuple[StoredSignal, ...]
    cubes: tuple[tuple[tuple[str, ...], int], ...]
    """Their levels and how many cells they have, in the order of the file."""
    patterns: Mapping[str, int]
    cpu: tuple[CpuSource, ...]
    """The samples of processors without their arrays."""
    places: Mapping[str, Mapping[str, Place]]
    """Where the columns of each file lie."""


def paths_of(name: str) -> list[Path]:
    """The paths of a run: one, or several separated by commas."""
    path = Path(name).expanduser()
    if not path.exists() and "," in name:
        return [Path(part).expanduser() for part in name.split(",") if part]
    return [path]


def is_store(path: Path) -> bool:
    """Whether a directory is a store."""
    return (path / STORE_INDEX).is_file()


class Label(Struct, frozen=True):
    """The part of a store's index that every version can read; empty where it can't be read."""

    name: str = ""
    of: str = ""


def read_label(folder: Path) -> Label:
    """The label of a store of any version."""
    try:
        return msgspec.json.decode((folder / STORE_INDEX).read_bytes(), type=Label)
    except (OSError, ValueError, msgspec.MsgspecError):
        return Label()


def read_index(folder: Path) -> StoreIndex:
    """What a store says of itself; raises DataError where this Chopper can't read it."""
    try:
        index = msgspec.json.decode((folder / STORE_INDEX).read_bytes(), type=StoreIndex)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise DataError(f"{folder} is a damaged store ({error}); write it anew") from error
    if index.schema != SCHEMA or index.fingerprint != fingerprint():
        raise DataError(
            f"{folder} was written by another version of Chopper; "
            f"write it anew: chopper ingest RUN -o {folder}"
        )
    return index


@cache
def fingerprint() -> str:
    """A digest of the names of everything that is stored."""
    # It takes several ms to import, and reading traces needs this module too.
    import hashlib

    parts = [SCHEMA, *COLUMNS]
    kinds = (
        Run,
        Gpu,
        Source,
        CounterSource,
        CounterInfo,
        TelemetrySource,
        HostClock,
        Identity,
        Overrides,
        IntegralCurve,
        Signal,
        CpuSamples,
    )
    for kind in (*kinds, Hardware):
        parts += [kind.__name__, *kind.__struct_fields__]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


@cache
def run_fields() -> tuple[str, ...]:
    """The fields of a run that are described as they are."""
    return tuple(name for name in Run.__struct_fields__ if name not in _APART)
