"""The settings next to a run's files: a manifest, and the configuration of its job.

A manifest (`chopper.json`, `chopper.yaml`, `manifest.json`, `manifest.yaml`) is written for readers
like this one: each of its values is a setting. Of a job's configuration (any other `.yaml`) only
the keys that name a known setting count. References such as `${trainer.devices}` are not resolved.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from chopper_core.model.settings import (
    Setting,
    known_settings,
    setting_name,
    storable,
    value_of,
)
from chopper_core.tables.bytes import ByteSource
from chopper_core.util.atomic import holds
from chopper_core.util.errors import DataError
from chopper_core.util.patterns import late

MANIFESTS: Final = ("chopper.json", "chopper.yaml", "manifest.json", "manifest.yaml")
"""The names of manifests, the one that counts first."""
YAML: Final = (".yaml", ".yml")
_MAX_BYTES: Final = 1 << 20
"""A longer file is no configuration."""
_MAX_LINE: Final = 1 << 12
_MAX_FILES: Final = 20
_LINE: Final = late(
    r"(?P<indent> *)(?:- +)?['\"]?(?P<key>[\w.\-/]+)['\"]?\s*:(?:\s+(?P<value>.*))?$"
)
_COMMENT: Final = late(r"(?<!\s)\s+#.*$")


def read_settings(directory: Path) -> dict[str, Setting]:
    """The settings in the files of a run's directory; a manifest's count before a job's."""
    found: dict[str, Setting] = {}
    for name in MANIFESTS:
        # A path of its own for each of thousands of runs takes longer than the look.
        if os.path.isfile(manifest := os.path.join(directory, name)):
            for key, value in setting_keys(Path(manifest)):
                found.setdefault(setting_name(key) or key.rpartition(".")[2], value)
    for path in _job_files(directory):
        found = known_settings(setting_keys(path)) | found
    return found


def has_settings(directory: Path) -> bool:
    """Whether a directory has a manifest or a job's configuration."""
    return any((directory / name).is_file() for name in MANIFESTS) or bool(_job_files(directory))


def gives_settings(path: Path) -> bool:
    """Whether a file is a manifest, or a job's configuration with a setting that is known."""
    if path.name in MANIFESTS:
        return True
    return path.suffix in YAML and bool(known_settings(setting_keys(path)))


def setting_keys(path: Path) -> Iterator[tuple[str, Setting]]:
    """The scalar values of a JSON or YAML file by their keys, nested ones joined by dots.

    Nothing for a file that can't be read.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            return
        with ByteSource(path, _MAX_BYTES) as source:
            text = source.read().decode("utf-8", "replace")
    except (OSError, DataError):
        return
    if path.suffix == ".json":
        try:
            yield from _flat("", json.loads(text))
        except (ValueError, RecursionError):
            return
    else:
        yield from _yaml_keys(text)


def _job_files(directory: Path) -> list[Path]:
    """The configurations in a directory and one level below, in the order of their names."""
    here = _in(directory)
    below = [path for each in here if each.is_dir() and each.name[0] != "." for path in _in(each)]
    files = [path for path in (*here, *below) if path.suffix in YAML and path.is_file()]
    return [path for path in files if path.name not in MANIFESTS][:_MAX_FILES]


def _in(directory: Path) -> list[Path]:
    """Its folders and YAML files in the order of their names."""
    try:
        with os.scandir(directory) as entries:
            found = (each for each in entries if each.name.endswith(YAML) or holds(each.is_dir))
            return sorted(map(Path, found))
    except OSError:
        return []


def _flat(prefix: str, value: object) -> Iterator[tuple[str, Setting]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _flat(f"{prefix}.{key}" if prefix else str(key), each)
    elif isinstance(value, bool):
        yield prefix, "yes" if value else "no"
    elif isinstance(value, int | float | str) and prefix:
        yield prefix, storable(value)


def _yaml_keys(text: str) -> Iterator[tuple[str, Setting]]:
    """The scalars of block mappings, which is what jobs are configured with; by their indent."""
    above: list[tuple[int, str]] = []
    for line in text.splitlines():
        if len(line) > _MAX_LINE:
            continue
        match = _LINE.match(_COMMENT.sub("", line.rstrip()))
        if match is None or line.lstrip().startswith("#"):
            continue
        indent = len(match["indent"])
        while above and above[-1][0] >= indent:
            above.pop()
        value = (match["value"] or "").strip()
        if value and value[0] not in "{[&*|>!" and value not in ("~", "null"):
            yield ".".join([*(key for _, key in above), match["key"]]), value_of(value)
        above.append((indent, match["key"]))
