"""The formats that Chopper reads, one line each, and the search for their files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from msgspec import Struct

from chopper_core.model.address import nothing_at
from chopper_core.record.manifest import MANIFEST, PART, recorded_parts
from chopper_core.sources.foreign import what_is
from chopper_core.tables.text import FileHead, head_of
from chopper_core.util import plugins
from chopper_core.util.atomic import MOST_FOLDERS_DEEP
from chopper_core.util.compression import copies_before, has_ending
from chopper_core.util.errors import DataError
from chopper_core.util.grouping import evenly, grouped_by
from chopper_core.util.memory import internal_error, is_out_of_memory, reading
from chopper_core.util.patterns import natural_key, shape_of_name
from chopper_core.util.plugins import Plugin
from chopper_core.util.progress import Progress, silent

if TYPE_CHECKING:
    from chopper_core.model.run import Run


class Family(StrEnum):
    """The kinds of source of a run; all formats of a family are read into the same tables."""

    TRACE = "trace"
    """Read into a `Trace`, or into tables that make a run themselves: `OwnRun`."""
    COUNTERS = "hardware counters"
    """Read into a list of `DispatchRun`."""
    TELEMETRY = "telemetry"
    """Read into a `Telemetry`."""
    HOST = "host trace"
    """Read into tables that are `joined` to a `Trace`."""
    CPU = "CPU samples"
    """Read into a `CpuTable`."""
    TRAINER = "trainer log"
    """Read into a `TrainerLog`."""
    SCHEDULE = "pipeline schedule"
    COMMUNICATION = "communication"
    MEMORY = "memory snapshot"
    """Read into a `RunPart`."""


FORMATS: Final[Mapping[Family, Sequence[str]]] = {
    Family.TRACE: ("kineto.reader", "rpd", "nsys", "perfetto.reader"),
    Family.COUNTERS: (
        "counters.rocpd",
        "counters.rocprofv3_json",
        "counters.device_samples",
        "counters.pmc_csv",
        "counters.rocprofv3_csv",
        "counters.cupti_ranges",
    ),
    Family.TELEMETRY: (
        "telemetry.zeus",
        "telemetry.charllm",
        "telemetry.sampler",
        "telemetry.amd_smi",
        "telemetry.rocm_smi",
        "telemetry.nvidia_smi",
        "telemetry.dcgm",
        "telemetry.databases",
    ),
    Family.HOST: (),
    Family.CPU: ("cpu",),
    Family.TRAINER: (
        "trainer.step_ring",
        "trainer.torchtitan_events",
        "trainer.mlperf",
        "trainer.megatron",
        "trainer.torchtitan",
        "trainer.verl",
        "trainer.maxtext",
        "trainer.mmengine",
        "trainer.deepspeed",
        "trainer.huggingface",
    ),
    Family.SCHEDULE: (),
    Family.COMMUNICATION: (),
    Family.MEMORY: ("memory_snapshot",),
}
"""The module of each format, imported on demand; the first one that recognises a file reads it.
Those of extensions and plugins follow."""


Failures = list[tuple[str, str]]
"""Paths, and why what is there can't be used."""


class Recognised(Struct, frozen=True):
    """The result for a file that a format can read."""

    format: str
    """For people: `amd-smi metric CSV`."""
    role: str = ""
    """The part of a file in a format of several files: `kernel trace`."""


class Unusable(Struct, frozen=True):
    """The result for a file that a format recognises but can't read."""

    reason: str
    """The rest of a sentence that starts with the file: "is empty"."""
    is_damaged: bool = False
    """Whether nothing of the file can be read, so that it may have the format after all."""


class SourceFormat(Protocol):
    """A module that recognises and reads the files of one tool."""

    NAME: str
    """The tool or format, for people."""
    FILES: str
    """The files it reads, in one line of Markdown."""
    EXAMPLE: str
    """A command or call that writes such a file; '' where there is none."""
    SUFFIXES: tuple[str, ...]
    """File name endings to search directories for, as they are before the file is compressed; ()
    for all files."""

    def recognise(self, head: FileHead) -> Recognised | Unusable | None:
        """Recognise a file by its start; None for files of other formats."""

    def read(self, path: Path, progress: Progress = silent, /) -> Any:
        """Read a file into the tables of the family.

        Damaged rows are skipped and counted in the tables. Raises DataError if none is usable.
        """


class OwnRun(Protocol):
    """Tables of a trace that make a run themselves, as graphs without start times do."""

    def as_run(self) -> Run:
        """The run of the file alone; raises DataError if it has no activity of a GPU."""


class RunPart(Protocol):
    """Tables that make a run together with those of other files, such as a schedule's."""

    path: Path

    def run_of(self, name: str, parts: Sequence[Any]) -> Run:
        """The run of all parts, this one among them; raises DataError where they don't fit."""


class SourceFile(Struct, frozen=True):
    """A file and the format that reads it."""

    path: Path
    root: Path
    """The path that was given: the file itself or a directory above it."""
    source: SourceFormat
    format: str
    role: str

    def read(self, progress: Progress = silent) -> Any:
        """Read the file into the tables of its family; raises DataError if it can't be used.

        No other error leaves the reader: the run opens without this file.
        """
        with reading(self.path):
            return self.source.read(self.path, progress)


class SkippedFile(Struct, frozen=True):
    """A file that no format can read."""

    path: Path
    reason: str
    """The rest of a sentence that starts with the file: "is empty"."""
    is_damaged: bool = False


class FoundFiles(Struct, frozen=True):
    """The files at the given paths, in natural order of the names (rank2 before rank10)."""

    files: Sequence[SourceFile]
    skipped: Sequence[SkippedFile]
    """Files that a format recognises but can't read."""
    unknown: Sequence[Path]
    """All other files."""

    def unread(self) -> dict[str, str]:
        """Why each other file is not read, by its path; '' where no format knows it."""
        known = {str(file.path): file.reason for file in self.skipped}
        return known | dict.fromkeys(map(str, self.unknown), "")

    def read(self, what: str, progress: Progress = silent) -> tuple[list[Any], Failures]:
        """What is in the files, and why others of them can't be read."""
        read, failed = [], []
        for number, file in enumerate(self.files):
            progress(f"read {what}", number, len(self.files))
            try:
                read.append(file.read())
            except DataError as error:
                failed.append((str(file.path), str(error)))
        return read, failed


def formats(family: Family) -> Iterator[SourceFormat]:
    """Yield the modules, each imported when its turn comes: most files have the first format."""
    yield from map(_imported, _format_names(family, FORMATS[family]))


@cache
def _format_names(family: Family, known: tuple[str, ...]) -> list[str]:
    own = [f"chopper_core.sources.{name}" for name in known]
    return [*own, *(name for table in plugins.tables("SOURCES") for name in table.get(family, ()))]


@cache
def _imported(name: str) -> SourceFormat:
    return cast("SourceFormat", import_module(name))


_NEEDED: Final = ("FAMILY", "NAME", "FILES", "EXAMPLE", "SUFFIXES", "recognise", "read")
"""What the module of a plugin has: that of a `SourceFormat`, and its family."""


class _PluginFormat:
    """A plugin's format: a failure of its code is a sentence about the file."""

    def __init__(self, plugin: Plugin, module: Any) -> None:
        self._plugin, self._module = plugin, module
        self.NAME, self.FILES, self.EXAMPLE = module.NAME, module.FILES, module.EXAMPLE
        self.SUFFIXES: tuple[str, ...] = module.SUFFIXES

    def recognise(self, head: FileHead) -> Recognised | Unusable | None:
        found = self._plugin.attempt(self._module.recognise, None, head)
        return found if isinstance(found, Recognised | Unusable) else None

    def read(self, path: Path, progress: Progress = silent, /) -> Any:
        return self._plugin.call(self._module.read, path, progress)


@cache
def _plugin_formats(family: Family) -> Sequence[SourceFormat]:
    known = plugins.loaded("sources", _NEEDED)
    return [_PluginFormat(each, module) for each, module in known if family == module.FAMILY]


NEXT_TO_TRACES: Final = (Family.COUNTERS, Family.TELEMETRY, Family.CPU, Family.TRAINER)
"""Who asks for one of these asks for the others: a file's start is read once for all of them."""


class ListedPaths(tuple[Path, ...]):
    """The paths of a run, whose folders are listed once for all families."""

    @cached_property
    def _listed(self) -> tuple[list[tuple[Path, Path]], list[SkippedFile]]:
        skipped: list[SkippedFile] = []
        return _without_masses(list(files_at(self, skipped)), skipped), skipped

    @cached_property
    def _found(self) -> dict[Family, FoundFiles]:
        return {}

    def found(self, family: Family) -> FoundFiles:
        if family not in self._found:
            families = NEXT_TO_TRACES if family in NEXT_TO_TRACES else (family,)
            self._found.update(zip(families, self._search(families), strict=True))
        return self._found[family]

    def _search(self, families: Sequence[Family]) -> list[FoundFiles]:
        listed, folders = self._listed
        found: list[tuple[list[SourceFile], list[SkippedFile], list[Path]]]
        found = [([], [*folders], []) for _ in families]
        for root, path in listed:
            head = head_of(path)
            for family, (files, skipped, unknown) in zip(families, found, strict=True):
                file = _recognise(head, family, root)
                if file is None:
                    unknown.append(path)
                elif isinstance(file, SkippedFile):
                    skipped.append(file)
                elif path != root and (copy := _copy_before(path)):
                    reason = f"lies next to {copy}, which is read instead"
                    skipped.append(SkippedFile(path, reason))
                else:
                    files.append(file)
        for files, _, _ in found:
            files.sort(key=lambda file: natural_key(file.path))
        return [FoundFiles(*each) for each in found]


def discover(paths: Sequence[Path], family: Family) -> FoundFiles:
    """Find the files of a family at the paths: files, or directories with everything below them.

    Only the start of each file is read. Raises DataError if a path doesn't exist.
    """
    return (paths if isinstance(paths, ListedPaths) else ListedPaths(paths)).found(family)


def _recognise(
    head: FileHead, family: Family, root: Path, *, is_built_in: bool = True
) -> SourceFile | SkippedFile | None:
    path, skipped, nearest = head.path, None, -1
    name = path.name.casefold()
    known = formats(family) if is_built_in else _plugin_formats(family)
    for source in known:
        # A file that nothing can read has the format with the longest of its endings.
        is_named = has_ending(name, source.SUFFIXES)
        if path != root and source.SUFFIXES and not is_named:
            continue
        try:
            found = source.recognise(head)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            found = Unusable(f"can't be recognized: {internal_error(error)}", is_damaged=True)
        if isinstance(found, Recognised):
            return SourceFile(path, root, source, found.format, found.role)
        if found is None:
            continue
        endings = (end for end in source.SUFFIXES if has_ending(name, (end,)))
        ending = max(map(len, endings), default=0)
        if ending > nearest:
            skipped = SkippedFile(path, found.reason, found.is_damaged)
            nearest = ending
    if skipped is None and is_built_in:
        return _recognise(head, family, root, is_built_in=False)
    return skipped


def _copy_before(path: Path) -> str:
    """The file that is read in place of one that is compressed; '' without one."""
    copies = (name for name in copies_before(path.name) if path.with_name(name).exists())
    return next(copies, "")


def family_of(path: Path) -> Family | None:
    """The family of a file that some format reads, by its start; None for any other file."""
    head = head_of(path)
    for family in FORMATS:
        if isinstance(_recognise(head, family, path.parent), SourceFile):
            return family
    return None


def is_recognised(path: Path) -> bool:
    """Whether some format reads a file, whatever it is called, or would if it weren't damaged."""
    head = head_of(path)
    found = (_recognise(head, family, path) for family in FORMATS)
    return any(isinstance(each, SourceFile) or (each and each.is_damaged) for each in found)


def read_source(path: Path, family: Family, progress: Progress = silent) -> Any:
    """Read a file into the tables of its family, whichever format it has.

    Raises DataError if no format recognises it or nothing in it is usable.
    """
    found = _recognise(head_of(path), family, path)
    if isinstance(found, SourceFile):
        return found.source.read(path, progress)
    raise DataError(f"{path} {found.reason if found else what_is(head_of(path))}.")


def files_at(paths: Sequence[Path], skipped: list[SkippedFile]) -> Iterator[tuple[Path, Path]]:
    """Yield each file at or below the paths once, with the path that led to it.

    Files below a path come in natural order, without hidden ones. Folders whose files are not read
    are added to `skipped`. Raises DataError if a path doesn't exist.
    """
    seen: set[str] = set()
    real_folder = cache(os.path.realpath)
    for root in paths:
        if not root.exists():
            raise nothing_at(root)
        for file in _files_below(root, skipped) if root.is_dir() else [root]:
            is_link = file.is_symlink()
            parent = "" if is_link else real_folder(str(file.parent))
            resolved = os.path.realpath(file) if is_link else os.path.join(parent, file.name)
            if resolved not in seen:
                seen.add(resolved)
                yield root, file


def _without_masses(
    listed: list[tuple[Path, Path]], skipped: list[SkippedFile]
) -> list[tuple[Path, Path]]:
    """The files without those of more names like each other than a run has, none of which is read
    as some of them tell; one entry of `skipped` stands for them."""
    below = (path for root, path in listed if path != root)
    by_shape = grouped_by(below, lambda path: (path.parent, shape_of_name(path.name)))
    left_out: set[Path] = set()
    for paths in by_shape.values():
        if len(paths) > _MOST_ALIKE and not any(map(family_of, evenly(paths, _PROBED))):
            left_out.update(paths)
            reason = (
                f"and {len(paths) - 1:,} more of such names are not read: none of {_PROBED} that "
                "were tried is data of a run; give one by its name to try it"
            )
            skipped.append(SkippedFile(paths[0], reason))
    return [each for each in listed if each[1] not in left_out] if left_out else listed


def _files_below(directory: Path, skipped: list[SkippedFile]) -> list[Path]:
    found: list[Path] = []
    failed: list[OSError] = []
    earlier = _earlier_starts(directory)
    skipped += [SkippedFile(path, _EARLIER) for path in earlier]
    for path, folders, names in os.walk(directory, onerror=failed.append):
        folder = Path(path)
        if folder == directory:
            folders[:] = [name for name in folders if folder / name not in earlier]
            names = [name for name in names if folder / name not in earlier]
        depth = len(folder.parts) - len(directory.parts)
        found += [folder / name for name in names if name[0] != "."]
        # os.walk calls itself for each level.
        folders[:] = [name for name in folders if name[0] != "." and depth < MOST_FOLDERS_DEEP]
        if folders and depth == MOST_FOLDERS_DEEP - 1:
            reason = f"holds folders deeper than {MOST_FOLDERS_DEEP}, which are not read"
            skipped.append(SkippedFile(folder, reason))
        reason = "is a link to a directory, which is not followed; give that one too"
        links = (folder / name for name in folders if (folder / name).is_symlink())
        skipped += [SkippedFile(link, reason) for link in links]
    for error in failed:
        skipped.append(SkippedFile(Path(error.filename), f"can't be read: {error.strerror}"))
    return sorted(found, key=natural_key)


def _earlier_starts(directory: Path) -> set[Path]:
    """What is in a recording of jobs that were started before its newest numbered part."""
    if not (directory / MANIFEST).is_file():
        return set()
    known = [part for part in recorded_parts(directory) if part.name != PART]
    while known and not any(known[-1].glob("step*/*")):
        known.pop()  # It has nothing to show yet.
    if not known:
        return set()
    return {path for path in directory.iterdir() if path != known[-1] and path.name[0] != "."}


_EARLIER: Final = (
    "is of an earlier start of the job; the newest one is shown, and a part opens by its own name"
)
_MOST_ALIKE: Final = 2_000
_PROBED: Final = 50
