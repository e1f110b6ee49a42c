"""Find the telemetry among files and directories, and read it whatever its format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import Struct

from chopper_core.sources.places import files_at, natural_key
from chopper_core.sources.recognise import EVENTS_KEY
from chopper_core.sources.signals import Telemetry
from chopper_core.sources.telemetry import amd_smi, nvidia_smi, rocm_smi, sampler, zeus
from chopper_core.sources.telemetry.table import first_layout, read_table
from chopper_core.sources.telemetry.text import TelemetryText, read_text, sniff
from chopper_core.util.errors import DataError

_LAYOUTS: Final = (
    sampler.csv_layout,
    amd_smi.csv_layout,
    rocm_smi.csv_layout,
    nvidia_smi.csv_layout,
)
_SUFFIXES: Final = frozenset(
    (".csv", ".json", ".jsonl", ".txt", ".log", ".out", ".parquet", ".pq", ".pkl", ".pickle", ".gz")
)
_ZEUS_WINDOWS: Final = "start_time,window_name,elapsed_time"

_Reader = Callable[[TelemetryText], Telemetry]


class TelemetryFile(Struct, frozen=True):
    """A file that looks like telemetry."""

    path: Path
    format: str
    """For people, as far as the start of the file tells."""


class OtherFile(Struct, frozen=True):
    """A file that is no telemetry."""

    path: Path
    reason: str
    """The rest of a sentence that starts with the file: "is empty"."""


class TelemetryDiscovery(Struct, frozen=True):
    """What lies at the given paths, in natural order of the names."""

    files: Sequence[TelemetryFile]
    skipped: Sequence[OtherFile]


def find_telemetry(paths: Sequence[Path]) -> TelemetryDiscovery:
    """Look for telemetry at the paths: files, or directories with everything below them.

    Only the start of each file is read. Raises DataError if a path doesn't exist.
    """
    found: list[TelemetryFile] = []
    skipped: list[OtherFile] = []
    for root, file in files_at(paths):
        if file != root and file.suffix.casefold() not in _SUFFIXES:
            continue
        try:
            found.append(TelemetryFile(file, format_of(file)))
        except DataError as error:
            reason = str(error).removeprefix(f"{file} ").rstrip(".")
            skipped.append(OtherFile(file, reason))
    return TelemetryDiscovery(sorted(found, key=lambda file: natural_key(file.path)), skipped)


def format_of(path: Path) -> str:
    """Return the format of a telemetry file, by its first 64 KiB.

    Raises DataError that says what the file is instead.
    """
    if _is_parquet(path):
        reason = sampler.why_no_parquet(path)
        if reason is not None:
            raise DataError(f"{path} {reason}.")
        return sampler.PARQUET_FORMAT
    return _reader_of(sniff(path))[1]


def read_telemetry(path: Path) -> Telemetry:
    """Read a telemetry file; its format is recognised by its content.

    Damage costs the rows it hits and is counted in `Telemetry.losses`.
    Raises DataError if the file is no telemetry or holds no usable sample.
    """
    if _is_parquet(path):
        return sampler.read_parquet(path)
    read, _ = _reader_of(sniff(path))
    return read(read_text(path))


def _reader_of(head: TelemetryText) -> tuple[_Reader, str]:
    """Return what reads a file that starts so, and the format's name."""
    start = head.text.lstrip()[:1]
    if start in ("{", "["):
        if f'"{EVENTS_KEY}"' not in head.text and amd_smi.is_amd_smi_json(head.text):
            return amd_smi.read_json, amd_smi.JSON_FORMAT
        raise DataError(f"{head.path} is JSON, but not telemetry of amd-smi.")
    if zeus.is_power_csv(head):
        return zeus.read_power_csv, zeus.FORMAT
    if nvidia_smi.is_dmon(head):
        return nvidia_smi.read_dmon, nvidia_smi.DMON_FORMAT
    found = first_layout(head, _LAYOUTS)
    if found is not None:
        layout_of, name = found
        is_own = layout_of is sampler.csv_layout
        return (sampler.read_csv if is_own else partial(read_table, layout_of=layout_of)), name
    if head.text.startswith(_ZEUS_WINDOWS):
        raise DataError(
            f"{head.path} holds the energy of Zeus's windows, not samples over time; "
            "Zeus's power CSV is read."
        )
    raise DataError(f"{head.path} is not telemetry.")


def _is_parquet(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(sampler.PARQUET_MAGIC)) == sampler.PARQUET_MAGIC
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror or error}.") from error
