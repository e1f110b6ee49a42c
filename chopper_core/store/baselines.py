"""Named baselines: `@main` stands for a run wherever a run is named."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

from chopper_core.util.atomic import temporary_path
from chopper_core.util.errors import DataError, UsageError

SIGN: Final = "@"


def baselines_path() -> Path:
    """The file of names and paths: `$XDG_STATE_HOME/chopper/baselines.json`."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "chopper" / "baselines.json"


def baselines() -> dict[str, str]:
    """The named baselines: name → absolute path."""
    try:
        found = json.loads(baselines_path().read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{baselines_path()} can't be read: {error}") from error
    return {str(name): str(path) for name, path in found.items()} if isinstance(found, dict) else {}


def set_baseline(name: str, run: str) -> str:
    """Give a run a name; returns its path. Raises UsageError, DataError."""
    if not name.replace("-", "_").replace(".", "_").isidentifier():
        raise UsageError(f"{name!r} is no name of a baseline: letters, digits, - . and _")
    path = Path(named_run(run)).expanduser()
    if not path.exists():
        raise DataError(f"{run} does not exist.")
    _write({**baselines(), name: str(path.absolute())})
    return str(path.absolute())


def remove_baseline(name: str) -> None:
    """Forget a name; raises UsageError for an unknown one."""
    found = baselines()
    if name not in found:
        raise UsageError(_unknown(name, found))
    del found[name]
    _write(found)


def named_run(name: str) -> str:
    """The run that a name stands for: `@main`, or the name itself; raises UsageError."""
    if not name.startswith(SIGN) or os.path.exists(name):
        return name
    found = baselines()
    if name[1:] not in found:
        raise UsageError(_unknown(name[1:], found))
    return found[name[1:]]


def _unknown(name: str, found: dict[str, str]) -> str:
    there = ", ".join(found) or "none"
    return f"unknown baseline {name!r}; named are {there}; `chopper baseline set {name} RUN`"


def _write(found: dict[str, str]) -> None:
    path = baselines_path()
    fresh = temporary_path(path, "new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        fresh.rename(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise DataError(f"{path} can't be written: {error.strerror}") from error
