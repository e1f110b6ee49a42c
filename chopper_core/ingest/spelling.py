"""A run under another spelling of its path: the cache keeps one for all of them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from chopper_core.model.run import Run
from chopper_core.store.format import paths_of

_WITH_PATHS: Final = (
    *("sources", "skipped", "failed", "counters", "telemetry", "hosts", "identities", "cpu"),
    *("recordings", "status"),
)
"""The fields of a run whose texts name files."""


def absolute(name: str) -> str:
    """The name of a run that is the same from every directory."""
    return ",".join(map(os.path.abspath, paths_of(name)))


def respelled(run: Run, name: str) -> Run:
    """A run as if it had been opened by a name that leads to the same files."""
    roots = list(zip(paths_of(run.name), paths_of(name), strict=False))
    texts = [(str(old), str(new)) for old, new in roots if old != new]
    renamed = replace(run, name=name)
    if not texts:
        return renamed
    # A directory is named by what lies below it, a file alone.
    spellings = {old if os.path.isfile(new) else f"{old}/": _prefix(new) for old, new in texts}
    old = "|".join(map(re.escape, sorted(spellings, key=len, reverse=True)))
    pattern = re.compile(rf"(?<![^\s'\"(,=])(?:{old})")

    def spell(text: str) -> str:
        return pattern.sub(lambda match: spellings[match[0]], text)

    fields = {name: _with_texts(getattr(run, name), spell) for name in _WITH_PATHS}
    return replace(renamed, **fields)


def _prefix(path: str) -> str:
    """What the names of files below a path begin with, or the path of a file."""
    if os.path.isfile(path):
        return path
    return "" if path == "." else os.path.join(path, "")


def _with_texts(value: Any, spell: Any) -> Any:
    """A value with each text in it respelled, and its arrays as before."""
    if isinstance(value, str):
        return spell(value)
    if isinstance(value, tuple):
        return tuple(_with_texts(each, spell) for each in value)
    if isinstance(value, Mapping):
        return {key: _with_texts(each, spell) for key, each in value.items()}
    if isinstance(value, Struct):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        return replace(value, **{name: _with_texts(each, spell) for name, each in fields.items()})
    return value


def is_spelled_out(name: str) -> bool:
    """Whether files below a run's directories have its name in theirs: those below `.` don't."""
    return Path() not in paths_of(name)
