"""Which files runs are read from: no output replaces one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from chopper_core.record.manifest import MANIFEST, NODES, PROCESSES, TRIGGER, is_recording
from chopper_core.sources.registry import is_recognised
from chopper_core.sources.settings import MANIFESTS, YAML
from chopper_core.store.format import is_store
from chopper_core.util.errors import DataError

_SETTINGS: Final = (*YAML, ".toml")
"""Endings of files that a job, a run or Chopper is configured by; no output of Chopper has them."""


def is_input(path: Path) -> bool:
    """Whether a file is one that runs are read from: data, a damaged file of it, a store's file, a
    manifest, a part of a recording, a configuration.

    The file that a link leads to counts, and what is in it: a name may say nothing.
    """
    path = path.resolve()
    try:
        if not path.is_file() or not path.stat().st_size:
            return False
        return is_store(path.parent) or describes_runs(path) or is_recognised(path)
    except (OSError, DataError):  # It can't be read.
        return False


def describes_runs(path: Path) -> bool:
    """Whether a file is a manifest, a part of a recording, or a configuration."""
    return path.name in MANIFESTS or path.suffix in _SETTINGS or _is_recorded(path)


def _is_recorded(path: Path) -> bool:
    is_part = path.parent.name in (NODES, PROCESSES)
    folder = path.parent.parent if is_part else path.parent
    return (is_part or path.name in (MANIFEST, TRIGGER)) and is_recording(folder)
